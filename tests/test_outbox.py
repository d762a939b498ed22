"""The outbox: each record arrives once and unchanged, however many messages are lost, doubled or late."""

from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from locust_llm.outbox import BATCH_RECORDS, RESEND_AFTER_S, Inbox, Outbox
from locust_llm.record import FAILURES, OK, Record


def record(number: int) -> Record:
    return Record(id=f"r{number}", clock_offset_s=0.0, due_at=0.0, asked_at=0.0, closed_at=float(number))


class Wire:
    """An outbox on a clock of its own, and what it sent."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sent: list[dict[str, Any]] = []
        self.outbox = Outbox(self.sent.append, clock=lambda: self.now)


def test_a_full_batch_leaves_at_once_and_a_part_of_one_with_the_next_flush() -> None:
    wire, inbox = Wire(), Inbox()
    for number in range(BATCH_RECORDS + 3):
        wire.outbox.add(record(number))
    assert [batch["count"] for batch in wire.sent] == [BATCH_RECORDS]
    wire.outbox.flush()
    assert [batch["count"] for batch in wire.sent] == [BATCH_RECORDS, 3]
    got = [got for batch in wire.sent for got in inbox.take("w", batch)]
    assert got == [record(number) for number in range(BATCH_RECORDS + 3)]


def test_only_what_was_not_acknowledged_in_time_is_sent_again() -> None:
    wire = Wire()
    for number in range(2):
        wire.outbox.add(record(number))
        wire.outbox.flush()
    assert [batch["number"] for batch in wire.sent] == [1, 2]
    wire.outbox.acknowledged(2)
    wire.now += RESEND_AFTER_S
    wire.outbox.flush()
    assert len(wire.sent) == 2
    wire.now += 0.1
    wire.outbox.flush()
    wire.outbox.flush()
    assert [batch["number"] for batch in wire.sent] == [1, 2, 1]
    assert wire.sent[2] == wire.sent[0]


def test_waiting_counts_records_until_the_master_is_known_to_have_them() -> None:
    wire = Wire()
    counts = [wire.outbox.waiting]
    for step in (
        lambda: wire.outbox.add(record(0)),
        lambda: wire.outbox.add(record(1)),
        wire.outbox.flush,
        lambda: wire.outbox.add(record(2)),
        wire.outbox.flush,
        lambda: wire.outbox.acknowledged(1),
        lambda: wire.outbox.acknowledged(1),
        lambda: wire.outbox.acknowledged(99),
        lambda: wire.outbox.acknowledged(2),
    ):
        step()
        counts.append(wire.outbox.waiting)
    assert counts == [0, 1, 2, 2, 3, 3, 1, 1, 1, 0]


def test_a_flush_of_nothing_sends_nothing() -> None:
    wire = Wire()
    wire.outbox.flush()
    assert wire.sent == []


def test_the_numbers_of_two_workers_are_not_mixed_up() -> None:
    inbox, wires = Inbox(), {"a": Wire(), "b": Wire()}
    for number, wire in enumerate(wires.values()):
        wire.outbox.add(record(number))
        wire.outbox.flush()
    assert [inbox.take(name, wire.sent[0]) for name, wire in wires.items()] == [[record(0)], [record(1)]]
    assert inbox.take("a", wires["a"].sent[0]) == []


def test_a_damaged_batch_is_refused_and_may_come_again() -> None:
    wire, inbox = Wire(), Inbox()
    wire.outbox.add(record(0))
    wire.outbox.flush()
    with pytest.raises(msgspec.DecodeError):
        inbox.take("w", wire.sent[0] | {"records": wire.sent[0]["records"][:-1]})
    assert inbox.take("w", wire.sent[0]) == [record(0)]


STAMPS = st.floats(0, 2**40, allow_nan=False)
COUNTS = st.none() | st.integers(0, 2**40)
RECORDS = st.builds(
    Record,
    id=st.text(max_size=5),
    worker=st.text(max_size=5),
    user=st.integers(0, 10),
    clock_offset_s=STAMPS,
    due_at=STAMPS,
    asked_at=STAMPS,
    admitted_at=st.none() | STAMPS,
    sent_at=st.none() | STAMPS,
    freed_at=st.none() | STAMPS,
    closed_at=STAMPS,
    chunk_us=st.lists(st.integers(0, 2**40), max_size=5).map(tuple),
    merged=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2**40)), max_size=3).map(tuple),
    outcome=st.sampled_from([OK, *FAILURES]),
    message=st.text(max_size=8),
    streamed=st.booleans(),
    input_tokens=COUNTS,
    output_tokens=COUNTS,
    connect_s=st.none() | STAMPS,
    limit=st.none() | st.integers(0, 100),
)


@given(RECORDS)
def test_a_record_is_the_same_after_the_trip(sent: Record) -> None:
    """Through msgpack, as Locust's messages are packed."""
    wire = Wire()
    wire.outbox.add(sent)
    wire.outbox.flush()
    (came,) = Inbox().take("w", msgpack.loads(msgpack.dumps(wire.sent[0]), raw=False))
    assert came == sent
    assert [type(value) for value in msgspec.structs.astuple(came)] == [
        type(value) for value in msgspec.structs.astuple(sent)
    ]


STEPS = st.tuples(st.sampled_from(["add", "flush", "wait", "deliver", "double", "lose"]), st.integers(0, 20))


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, min_size=10, max_size=120))
def test_every_record_arrives_once_over_a_bad_wire(steps: list[tuple[str, int]]) -> None:
    """Two workers; messages of both ways are delivered in any order, twice, or never."""
    inbox, wires, came = Inbox(), {"a": Wire(), "b": Wire()}, []
    under_way: list[tuple[str, dict[str, Any] | int]] = []  # a batch to the master, or the number of one back
    added = 0

    def collect() -> None:
        for name, wire in wires.items():
            under_way.extend((name, batch) for batch in wire.sent)
            wire.sent.clear()

    def deliver(message: tuple[str, dict[str, Any] | int]) -> None:
        name, batch = message
        if isinstance(batch, int):
            wires[name].outbox.acknowledged(batch)
        else:
            came.extend(inbox.take(name, batch))
            under_way.append((name, batch["number"]))

    for action, which in steps:
        wire = wires["ab"[which % 2]]
        if action == "add":
            wire.outbox.add(record(added))
            added += 1
        elif action == "flush":
            wire.outbox.flush()
        elif action == "wait":
            wire.now += which
        elif under_way:
            place = which % len(under_way)
            if action != "lose":
                deliver(under_way[place])
            if action != "double":
                del under_way[place]
        collect()
    rounds = 0
    while any(wire.outbox.waiting for wire in wires.values()):  # from here on nothing is lost
        rounds += 1
        assert rounds < 4
        for wire in wires.values():
            wire.now += RESEND_AFTER_S + 1
            wire.outbox.flush()
        collect()
        while under_way:
            deliver(under_way.pop())
    assert sorted(record.closed_at for record in came) == list(range(added))
