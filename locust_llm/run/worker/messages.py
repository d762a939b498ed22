"""What a process that sends understands of what the control sends it."""

import logging
from collections.abc import Callable
from typing import Any

from locust.runners import LocalRunner

import msgspec

from locust_llm.run.protocol import Order

from .sender import Sender

logger = logging.getLogger("locust_llm")


def to_sender(runner: Any, sender: Sender, on_begin: Callable[[Order], object] = lambda order: None) -> None:
    """What a process that sends understands. ``on_begin`` hears of each new run."""

    def begin(msg: Any, **kw: Any) -> None:
        try:
            order = msgspec.msgpack.decode(msg.data["order"], type=Order)
            if sender.begin(order):
                on_begin(order)
        except Exception as error:
            if isinstance(runner, LocalRunner):  # then this is a call of the control's
                raise
            logger.exception("this worker cannot begin")
            why = f"{type(error).__name__}: {error}"
            runner.send_message("llm_unable", {"epoch": msg.data["epoch"], "why": why})

    def of_this_run(handle: Callable[..., object]) -> Callable[..., None]:
        def handler(msg: Any, **kw: Any) -> None:
            if msg.data["epoch"] == sender.epoch:
                handle(**{name: value for name, value in msg.data.items() if name != "epoch"})

        return handler

    def again(phase: str) -> None:
        sender.budget.ask_again()
        sender.supply.again(phase)

    handlers: dict[str, Callable[..., object]] = {
        "llm_stage": sender.stage,
        "llm_limit": sender.told,
        "llm_grant": lambda phase, count: sender.budget.grant(phase, count),
        "llm_again": again,
        "llm_arrivals": sender.arrive,
        "llm_sessions": lambda phase, items, over: sender.supply.grant(phase, items, over=over),
        "llm_spare": sender.spare,
        "llm_spare_sessions": sender.spare_sessions,
        "llm_over": sender.over,
    }
    runner.register_message("llm_begin", begin)
    for kind, handle in handlers.items():
        runner.register_message(kind, of_this_run(handle))
    if isinstance(runner, LocalRunner):
        runner.register_message("llm_end", lambda **kw: sender.close())
