"""Messages from workers: receives them, refuses workers that do not fit, and hands each message to
the part of the controller that it is for."""

import logging
from collections.abc import Callable
from typing import Any, Final

from locust.env import Environment
from locust.rpc.protocol import Message as LocustMessage

import gevent

from locust_llm.gate.shares import GateStatus
from locust_llm.locust_adapter.withheld_options import list_secret_names
from locust_llm.text.sanitise import NAME_BYTES, sanitise_text
from locust_llm.wire.handshake import explain_worker_refusal, make_hello
from locust_llm.wire.worker_messages import (
    LOCAL,
    TO_CONTROL,
    TO_SENDER,
    AnswerFaultFound,
    ArrivalsReturned,
    BeginFailed,
    Ended,
    FormLearnt,
    Hello,
    Records,
    Refused,
    RequestsReturned,
    RequestsWanted,
    SessionsReturned,
    SessionsWanted,
    StageHealth,
    Status,
    ToControl,
    pack_message,
    unpack_to_control,
)

from .run_controller import Controller
from .worker_registry import are_messages_waiting

logger = logging.getLogger("locust_llm")

HELLO_S: Final = 5.0
"""The longest wait for the greeting of a connected worker."""
HELLO_LOOKS: Final = 20
"""The checks in that time."""
LINE_BYTES: Final = 2_000


def receive_from_workers(
    environment: Environment,
    runner: Any,
    control: Callable[[], Controller | None],
    refuse: Callable[[str], object] = lambda why: None,
) -> Callable[[str], bool]:
    """Receive messages in the master, or the only process. Returns a test whether a worker has
    greeted and may take part. ``refuse`` ends an impossible run."""
    greeted = {LOCAL}
    secrets = list_secret_names(environment.parsed_options)

    def listener(msg: Any, **kw: Any) -> None:
        worker = msg.node_id
        try:
            epoch, message, number = unpack_to_control(msg.data)
        except ValueError:
            name = sanitise_text(worker, most=NAME_BYTES)
            logger.error(
                f"a message of worker {name} is damaged or has another version and was ignored"
            )
            return
        current = control()
        if isinstance(message, Hello):
            if why := explain_worker_refusal(
                worker, message, make_hello(environment.user_classes, secrets)
            ):
                logger.error(
                    f"worker {sanitise_text(worker, most=NAME_BYTES)} is refused: "
                    f"{sanitise_text(why, most=LINE_BYTES)}"
                )
                runner.send_message(TO_SENDER, pack_message(0, Refused(why)), worker)
                return
            greeted.add(worker)
            if current is not None:
                current.begin_worker(worker)
        elif current is not None and worker in greeted and epoch != current.epoch:
            if isinstance(message, Status):
                current.heard(worker, 0)  # its Begin is on its way, or lost
        elif current is not None and worker in greeted and current.take(worker, number):
            _handle_message(current, worker, message, refuse)

    def connected(client_id: str, **kw: Any) -> None:
        # not guarded: there may be no run
        gevent.spawn(_expect_hello, environment, runner, client_id, greeted)

    runner.register_message(TO_CONTROL, listener)
    environment.events.worker_connect.add_listener(connected)
    return greeted.__contains__


def _handle_message(
    control: Controller, worker: str, message: ToControl, refuse: Callable[[str], object]
) -> None:
    match message:
        case GateStatus():
            control.on_gate_status(worker, message)
        case Status():
            control.on_status(worker, message)
        case Records():
            control.records.take_batch(worker, message)
        case RequestsWanted():
            control.allocator.grant_requests(worker)
        case RequestsReturned():
            control.allocator.put_back(worker, message.phase, message.count)
        case ArrivalsReturned():
            control.allocator.put_back_arrivals(worker, message.phase, message.arrivals)
        case SessionsWanted():
            control.allocator.grant_sessions(worker)
        case SessionsReturned():
            control.allocator.put_back_sessions(worker, message)
        case StageHealth():
            control.phases.add_health(message.health)
        case FormLearnt():
            control.on_form_learnt(message)
        case AnswerFaultFound():
            control.store.write_answer_fault(message.line)
        case BeginFailed():
            if why := control.losses.on_begin_failed(worker, message.reason):
                refuse(why)
        case Ended():
            control.losses.on_ended(worker, message)


def _expect_hello(environment: Environment, runner: Any, worker: str, greeted: set[str]) -> None:
    # as often as the loop gets round: while it is blocked no greeting is read
    looks = 0
    while looks < HELLO_LOOKS or are_messages_waiting(runner):  # its greeting may be among them
        gevent.sleep(HELLO_S / HELLO_LOOKS)
        looks += 1
        if worker in greeted or worker not in runner.clients:
            return
    logger.error(
        f"worker {sanitise_text(worker, most=NAME_BYTES)} is refused: no handshake within "
        f"{HELLO_S:g} s. A worker needs the master's locustfile, with users of locust_llm"
    )
    runner.server.send_to_client(LocustMessage("quit", None, worker))
