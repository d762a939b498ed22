"""The messages: each arrives as it was sent, and bytes of strangers are ignored with a line."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import unpatched_locust  # noqa: F401  before the rest

from locust_llm.controller import messages_from_workers
from locust_llm.gate.shares import GateStatus
from locust_llm.records.run_facts import ProcessHealth
from locust_llm.wire import worker_messages as protocol
from locust_llm.wire.handshake import make_hello
from locust_llm.wire.worker_messages import (
    TO_CONTROL,
    TO_SENDER,
    Grant,
    Hello,
    Status,
    pack_message,
    unpack_to_control,
    unpack_to_worker,
)


def test_a_message_arrives_as_it_was_sent_with_its_epoch() -> None:
    health = ProcessHealth(worker="a", stage=0, cpu_share=0.1, loop_lag_p99_ms=1.0)
    status = Status(
        gate=GateStatus(used=3, waiting=0, number=7),
        ttfts_s=[0.25],
        health=health,
        clock_error_s=float("inf"),
    )
    assert unpack_to_control(pack_message(5, status)) == (5, status, 0)
    assert unpack_to_worker(pack_message(5, Grant("profiling", 3), 8)) == (
        5,
        Grant("profiling", 3),
        8,
    )


def test_each_direction_has_messages_of_its_own() -> None:
    with pytest.raises(ValueError, match="Grant"):
        unpack_to_control(pack_message(1, Grant("profiling", 3)))
    with pytest.raises(ValueError, match="Hello"):
        unpack_to_worker(pack_message(1, Hello()))


@given(
    st.binary(max_size=40)
    | st.none()
    | st.integers()
    | st.dictionaries(st.text(max_size=3), st.integers())
)
def test_damaged_bytes_are_a_value_error(data: Any) -> None:
    for unpack in (unpack_to_control, unpack_to_worker):
        with pytest.raises(ValueError):  # noqa: PT011  the words are msgspec's
            unpack(data)


def test_a_message_that_was_cut_off_or_is_nested_deep_is_a_value_error() -> None:
    whole = pack_message(1, Status(gate=GateStatus(1, 2, 3)))
    for data in (
        *(whole[:length] for length in range(len(whole))),
        b"\x92\x01\x81\xa1x" + b"\x91" * 100_000,
    ):
        with pytest.raises(ValueError):  # noqa: PT011  the words are msgspec's
            unpack_to_control(data)


class Site:
    """What a master has of its workers' messages, and what is called for a run of epoch 7."""

    def __init__(self) -> None:
        self.called: list[tuple[Any, ...]] = []
        self.listeners: dict[str, Any] = {}
        self.sent: list[tuple[str, bytes, str]] = []
        self.epoch = 7
        listener = SimpleNamespace(add_listener=lambda listener: None)
        environment: Any = SimpleNamespace(
            parsed_options=None, user_classes=[], events=SimpleNamespace(worker_connect=listener)
        )
        runner = SimpleNamespace(
            register_message=self.listeners.__setitem__,
            send_message=lambda *message: self.sent.append(message),
        )
        self.greeted = messages_from_workers.receive_from_workers(environment, runner, lambda: self)  # type: ignore[arg-type, return-value]

    def begin_worker(self, worker: str) -> None:
        self.called.append(("begin", worker))

    def take(self, worker: str, number: int) -> bool:
        return not number

    def heard(self, worker: str, number: int) -> None:
        self.called.append((f"{worker} has all up to", number))

    def on_gate_status(self, worker: str, status: GateStatus) -> None:
        self.called.append((worker, status.used))

    def say(self, worker: str, data: Any) -> None:
        self.listeners[TO_CONTROL](environment=None, msg=SimpleNamespace(node_id=worker, data=data))


def test_who_has_not_greeted_and_what_is_of_another_run_is_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    site = Site()
    site.say("a", pack_message(7, GateStatus(1, 0, 0)))
    site.say("a", pack_message(0, make_hello([])))
    for epoch in (7, 6):
        site.say("a", pack_message(epoch, GateStatus(2, 0, 0)))
    assert site.called == [("begin", "a"), ("a", 2)]
    assert (site.greeted("a"), site.greeted("b"), caplog.messages) == (True, False, [])


def test_a_worker_that_has_not_begun_is_told_so_again() -> None:
    """Its status is of no run, or of the last one."""
    site = Site()
    site.say("a", pack_message(0, make_hello([])))
    site.say("a", pack_message(0, Status(gate=GateStatus(0, 0, -1))))
    assert site.called == [("begin", "a"), ("a has all up to", 0)]


def test_who_is_of_another_version_is_refused_and_told_why() -> None:
    site = Site()
    site.say("a", pack_message(0, Hello(version="0.0")))
    ((kind, data, worker),) = site.sent
    _, refused, _ = unpack_to_worker(data)
    assert (kind, worker, site.greeted("a")) == (TO_SENDER, "a", False)
    assert isinstance(refused, protocol.Refused)
    assert refused.reason.startswith("its locust-llm is 0.0, the master's is ")


def test_damaged_bytes_are_ignored_with_a_line(caplog: pytest.LogCaptureFixture) -> None:
    site = Site()
    caplog.set_level(logging.DEBUG)
    site.say("x\n" * 100, b"\xc1\x00")
    (message,) = caplog.messages
    assert "ignored" in message
    assert "\n" not in message
    assert len(message) < 300
    assert site.called == site.sent == []
