"""Inbox: how a process that sends handles each message of the control."""

import logging
from collections.abc import Callable
from typing import Any

from locust.runners import LocalRunner

from locust_llm.gate.shares import Share
from locust_llm.records.message import ControlMessage
from locust_llm.wire.messages import (
    TO_SENDER,
    Arrivals,
    AskAgain,
    Begin,
    BeginFailed,
    Cut,
    EndRun,
    Grant,
    PhaseOver,
    Refused,
    ReleaseRequests,
    ReleaseSessions,
    Renewal,
    Sessions,
    StageBegin,
    StartSpread,
    ToSender,
    unpack_to_worker,
)

from .worker import WorkerContext

logger = logging.getLogger("locust_llm")


def receive_from_control(
    runner: Any,
    sender: WorkerContext,
    on_process: Callable[[ControlMessage], object],
    on_begin: Callable[[Begin], object] = lambda begin: None,
) -> None:
    """``on_begin`` is called for each new run. ``on_process`` gets messages for the process instead
    of its sender."""

    def listener(msg: Any, **kw: Any) -> None:
        try:
            epoch, message, number = unpack_to_worker(msg.data)
        except ValueError as error:
            logger.error(f"a message of the master was ignored: {error}")
            return
        if isinstance(message, Begin):
            _begin(runner, sender, epoch, message, on_begin)
        if number and not (epoch == sender.epoch and sender.incoming.take(number)):
            return  # of another run, or it was here, or one before it is missing
        if isinstance(message, Refused | EndRun | Cut) or (
            epoch == sender.epoch and not _sender_does(sender, message)
        ):
            on_process(message)

    runner.register_message(TO_SENDER, listener)


def _begin(
    runner: Any,
    sender: WorkerContext,
    epoch: int,
    begin: Begin,
    on_begin: Callable[[Begin], object],
) -> None:
    try:
        if sender.begin(epoch, begin):
            on_begin(begin)
    except Exception as error:
        if isinstance(runner, LocalRunner):  # then this is a call of the control's
            raise
        logger.exception("this worker cannot begin")
        sender.send(BeginFailed(f"{type(error).__name__}: {error}"), epoch)


def _sender_does(sender: WorkerContext, message: ToSender) -> bool:
    """False: the message is not for the sender."""
    match message:
        case Begin():
            pass  # it has
        case StageBegin():
            sender.begin_stage(message.number, message.input_tokens)
        case Share():
            sender.lease.renew(message)
        case Renewal():
            sender.renew(message)
        case Grant():
            sender.permits.grant(message.phase, message.count)
        case StartSpread():
            sender.starts.spread(message.phase, message.spacing_s, message.longest_spacing_s)
        case AskAgain():
            sender.permits.ask_again()
            sender.tickets.ask_again(message.phase)
        case Arrivals():
            sender.add_arrivals(message)
        case Sessions():
            sender.tickets.grant(message.phase, message.items, over=message.last)
        case ReleaseRequests():
            sender.release_requests(message.phase)
        case ReleaseSessions():
            sender.release_sessions(message.phase)
        case PhaseOver():
            sender.end_phase(message.phase)
        case _:
            return False
    return True
