"""The messages between the control and the processes that send: which there are, and what each end does with them.

They are Locust's: between a master and its workers over the wire, in one process plain calls. Each but the greetings carries
the number of the run.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from locust.env import Environment
from locust.rpc.protocol import Message
from locust.runners import LocalRunner

import gevent
import msgspec

from .control import Control
from .foreign_text import NAME_BYTES, shown
from .greeting import greeting, refusal
from .roster import LOCAL
from .sender import Order, Sender
from .withheld import secret_names

logger = logging.getLogger("locust_llm")

HELLO_S: Final = 5.0
"""How long after it has connected a worker may take to say who it is."""
HELLO_LOOKS: Final = 20
LINE_BYTES: Final = 2_000


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


def to_control(
    environment: Environment,
    runner: Any,
    control: Callable[[], Control | None],
    refuse: Callable[[str], object] = lambda why: None,
) -> Callable[[str], bool]:
    """What the master, or the only process, understands. Tells whether a worker has said who it is, and may take part.
    ``refuse``: ends a run that cannot be."""
    greeted, secrets = {LOCAL}, secret_names(environment.parsed_options)

    def of_this_run(handle: Callable[[Control, str, dict[str, Any]], object]) -> Callable[..., None]:
        def handler(msg: Any, **kw: Any) -> None:
            its = control()
            if its is not None and msg.node_id in greeted and msg.data.get("epoch") == its.epoch:
                handle(its, msg.node_id, {name: value for name, value in msg.data.items() if name != "epoch"})

        return handler

    def hello(msg: Any, **kw: Any) -> None:
        worker, data = msg.node_id, msg.data if isinstance(msg.data, dict) else {}
        why = refusal(worker, data.get("greeting"), greeting(environment.user_classes, secrets))
        if why:
            logger.error(f"worker {shown(worker, most=NAME_BYTES)} is refused: {shown(why, most=LINE_BYTES)}")
            runner.send_message("llm_refused", {"why": why}, worker)
            return
        greeted.add(worker)
        if (its := control()) is not None:
            its.welcome(worker)

    def unable(its: Control, worker: str, data: dict[str, Any]) -> None:
        if why := its.refused(worker, data["why"]):
            refuse(why)

    def connected(client_id: str, **kw: Any) -> None:
        gevent.spawn(_expect_hello, environment, runner, client_id, greeted)

    runner.register_message("llm_hello", hello)
    for kind, handle in {
        "llm_want": lambda its, worker, data: its.work.want(worker),
        "llm_want_sessions": lambda its, worker, data: its.work.want_sessions(worker),
        "llm_spared_sessions": lambda its, worker, data: its.work.spared(worker, **data),
        "llm_back": lambda its, worker, data: its.work.put_back(worker, **data),
        "llm_arrivals_back": lambda its, worker, data: its.work.arrive_again(worker, **data),
        "llm_stand": lambda its, worker, data: its.stands(worker, **data),
        "llm_news": hears,
        "llm_health": lambda its, worker, data: its.course.healthy(data["health"]),
        "llm_records": lambda its, worker, data: its.batch(worker, data),
        "llm_unable": unable,
        "llm_ended": lambda its, worker, data: its.ended(worker, data),
    }.items():
        runner.register_message(kind, of_this_run(handle))
    environment.events.worker_connect.add_listener(connected)
    return greeted.__contains__


def hears(control: Control, worker: str, news: dict[str, Any]) -> None:
    """The news of a process; where they carry the time, they are answered."""
    at = news.get("at")
    control.hears(worker, **news)
    if at is not None:
        control.answer(worker, at)


def _expect_hello(environment: Environment, runner: Any, worker: str, greeted: set[str]) -> None:
    for _ in range(HELLO_LOOKS):  # as often as the loop gets round: while it is blocked what a worker said is not read
        gevent.sleep(HELLO_S / HELLO_LOOKS)
        if worker in greeted or worker not in runner.clients:
            return
    logger.error(
        f"worker {shown(worker, most=NAME_BYTES)} is refused: in {HELLO_S:g} s it has not said who it is; "
        "the locustfile of a worker must be the master's, which has users of locust_llm"
    )
    runner.server.send_to_client(Message("quit", None, worker))
