"""The messages between the control and the processes that send: which there are, and what each end does with them.

They are Locust's: between a master and its workers over the wire, in one process plain calls. Each but the greetings carries
the number of the run.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from locust.env import Environment
from locust.rpc.protocol import Message

import gevent

from locust_llm.core.foreign_text import NAME_BYTES, shown
from locust_llm.run.protocol import LOCAL, greeting, refusal
from locust_llm.run.secrets import secret_names

from .control import Control

logger = logging.getLogger("locust_llm")

HELLO_S: Final = 5.0
"""How long after it has connected a worker may take to say who it is."""
HELLO_LOOKS: Final = 20
LINE_BYTES: Final = 2_000


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
