"""The outbox: each record arrives once and unchanged, however many messages are lost, doubled or
late."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from locust_llm.controller.record_inbox import RecordInbox, list_record_frames
from locust_llm.locust_adapter.wire_frames import MAX_FRAME_BYTES
from locust_llm.records import journal as journals
from locust_llm.records.journal import (
    Journal,
    read_journal_counts,
    read_journal_frames,
    read_journal_records,
)
from locust_llm.records.outcomes import FAILURES, OK
from locust_llm.records.profile_export_jsonl import (
    MAX_RECORD_BYTES,
    EncodedRecord,
    decode_record,
    encode_record,
    format_record_line,
)
from locust_llm.records.record import MOST_CHUNKS, Record
from locust_llm.wire import worker_messages
from locust_llm.wire.worker_messages import Records, unpack_to_control
from locust_llm.worker.records_to_master import (
    BATCH_RECORDS,
    RESEND_AFTER_S,
    RecordOutbox,
)


def record(number: int) -> Record:
    return Record(
        id=f"r{number}", clock_offset_s=0.0, due_at=0.0, asked_at=0.0, closed_at=float(number)
    )


def encoded(*numbers: int) -> list[EncodedRecord]:
    """The records with these numbers, as a master takes them."""
    return [encode_record(record(number)) for number in numbers]


class Wire:
    """An outbox on a clock of its own, and what it sent."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sent: list[Records] = []
        self.outbox = RecordOutbox(self.sent.append, clock=lambda: self.now)


def test_a_batch_of_many_bytes_leaves_at_once() -> None:
    """A record of 12,000 equal stamps has 72,000 bytes: "0," and "0.0,"."""
    wire = Wire()
    for number in range(4):
        wire.outbox.add(msgspec.structs.replace(record(number), chunk_us=(0,) * 12_000))
    assert [len(batch.lines) for batch in wire.sent] == [2, 2]
    assert wire.outbox.waiting == 4


def test_a_full_batch_leaves_at_once_and_a_part_of_one_with_the_next_flush() -> None:
    wire, inbox = Wire(), RecordInbox()
    for number in range(BATCH_RECORDS + 3):
        wire.outbox.add(record(number))
    assert [len(batch.lines) for batch in wire.sent] == [BATCH_RECORDS]
    wire.outbox.flush()
    assert [len(batch.lines) for batch in wire.sent] == [BATCH_RECORDS, 3]
    got = [got for batch in wire.sent for got in inbox.take("w", list_record_frames(batch))]
    assert got == encoded(*range(BATCH_RECORDS + 3))


def test_only_what_is_lost_is_sent_again() -> None:
    wire = Wire()
    for number in range(2):
        wire.outbox.add(record(number))
        wire.outbox.flush()
        wire.now += 0.25
    assert [batch.number for batch in wire.sent] == [1, 2]
    wire.outbox.acknowledged(2)
    wire.now = 1000.0 + RESEND_AFTER_S
    wire.outbox.flush()
    assert len(wire.sent) == 2
    wire.now += 0.1
    wire.outbox.flush()
    wire.outbox.flush()
    assert [batch.number for batch in wire.sent] == [1, 2, 1]  # of the first record in it
    assert wire.sent[2] == wire.sent[0]


def test_a_batch_that_waits_at_a_late_master_is_not_lost() -> None:
    """The master takes messages in their order, and has answered none that was sent later."""
    wire = Wire()
    for number in range(2):
        wire.outbox.add(record(number))
        wire.outbox.flush()
        wire.now += 0.25
    wire.outbox.answered(999.0)
    wire.now += 60.0
    wire.outbox.flush()
    wire.outbox.answered(1000.0)  # the first batch's own moment
    wire.outbox.flush()
    assert [batch.number for batch in wire.sent] == [1, 2]
    wire.outbox.answered(1000.25)  # a status that left with the second batch: the first is lost
    wire.outbox.flush()
    assert [batch.number for batch in wire.sent] == [1, 2, 1]
    assert wire.outbox.waiting == 2


def test_records_wait_here_while_two_batches_are_under_way() -> None:
    """Of a master that is behind. Each record has 72,000 bytes, so two are a batch."""
    wire = Wire()
    for number in range(9):
        wire.outbox.add(msgspec.structs.replace(record(number), chunk_us=(0,) * 12_000))
    wire.outbox.flush()
    assert [(batch.number, len(batch.lines)) for batch in wire.sent] == [(1, 2), (3, 2)]
    wire.outbox.acknowledged(3)
    wire.outbox.flush()
    wire.outbox.flush()
    assert [batch.number for batch in wire.sent] == [1, 3, 5]
    assert wire.outbox.waiting == 7
    assert [one.id for one in wire.outbox.undelivered()] == [
        "r0",
        "r1",
        *["r4", "r5", "r6", "r7", "r8"],
    ]
    for number in (1, 5, 7, 9):
        wire.outbox.acknowledged(number)
        wire.outbox.flush()
    assert [(batch.number, len(batch.lines)) for batch in wire.sent[3:]] == [(7, 2), (9, 1)]
    assert wire.outbox.waiting == 0


def test_what_waited_leaves_in_batches_of_their_size() -> None:
    wire = Wire()
    for number in range(3 * BATCH_RECORDS + 2):
        wire.outbox.add(record(number))
        if number < 2:
            wire.outbox.flush()
    assert [batch.number for batch in wire.sent] == [1, 2]
    for number in (1, 2, 3, 3 + BATCH_RECORDS):
        wire.outbox.acknowledged(number)
        wire.outbox.flush()
    assert [(batch.number, len(batch.lines)) for batch in wire.sent[2:]] == [
        (3, BATCH_RECORDS),
        (3 + BATCH_RECORDS, BATCH_RECORDS),
        (3 + 2 * BATCH_RECORDS, BATCH_RECORDS),
    ]


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
        lambda: wire.outbox.acknowledged(3),  # the first record of the second batch
    ):
        step()
        counts.append(wire.outbox.waiting)
    assert counts == [0, 1, 2, 2, 3, 3, 1, 1, 1, 0]


def test_a_flush_of_nothing_sends_nothing() -> None:
    wire = Wire()
    wire.outbox.flush()
    assert wire.sent == []


def test_the_numbers_of_two_workers_are_not_mixed_up() -> None:
    inbox, wires = RecordInbox(), {"a": Wire(), "b": Wire()}
    for number, wire in enumerate(wires.values()):
        wire.outbox.add(record(number))
        wire.outbox.flush()
    assert [inbox.take(name, list_record_frames(wire.sent[0])) for name, wire in wires.items()] == [
        encoded(0),
        encoded(1),
    ]
    assert inbox.take("a", list_record_frames(wires["a"].sent[0])) == []


def test_a_damaged_batch_is_refused_and_may_come_again() -> None:
    wire, inbox = Wire(), RecordInbox()
    for number in range(2):
        wire.outbox.add(record(number))
    wire.outbox.flush()
    first, second = wire.sent[0].lines
    for broken in (second[:-1], second[:3], b"", second[:4] + b"x" + second[5:]):
        with pytest.raises(ValueError):  # noqa: PT011  of msgspec, too
            inbox.take("w", [(1, first), (2, broken)])
    assert inbox.take("w", list_record_frames(wire.sent[0])) == encoded(0, 1)


LINE = format_record_line(record(0))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (LINE + b"\n", "not a line with one record"),
        (LINE + b"\n" + LINE, "not a line with one record"),
        (LINE + LINE, "not a line with one record"),
        (b" " + LINE, "not a line with one record"),
        (LINE + b" {}", "malformed"),
        (LINE[:-1], "truncated"),
        (LINE.replace(b'"unit":"ms"', b'"unit":ms'), "malformed"),
        (LINE.replace(b'"r0"', b'"r\xff"'), "utf-8"),
        (LINE.replace(b'"closed_at":0.0', b'"closed_at":1e12'), "<= 100000000000"),
        (LINE.replace(b'"closed_at":0.0', b'"closed_at":NaN'), "malformed"),
        (LINE.replace(b'"closed_at":0.0', b'"closed_at":1e999'), "Number out of range"),
        (LINE.replace(b'"metrics":{', b'"metrics":{"x":' + b"[" * 99_999), "nested too deeply"),
        (LINE.replace(b',"record":{', b',"record":{"x":{"y":1,"record":{}},'), "not a line with one"),
        (b'{"metadata":{},"metrics":{},"error":null}', "not a line with one record"),
        (b'{"metadata":"' + b"x" * MAX_RECORD_BYTES, "longer than a record may be"),
    ],
)  # fmt: skip
def test_the_master_takes_nothing_but_a_line_with_one_record(line: bytes, why: str) -> None:
    """Whoever can reach its port may send anything, and the file must stay one that can be read."""
    with pytest.raises(ValueError, match=why):
        decode_record(line)
    assert decode_record(LINE) == EncodedRecord(record(0), LINE)


def test_a_record_of_more_chunks_than_an_answer_may_have_is_none() -> None:
    """A master that unpacked three million would stand still for half a second."""
    most = msgspec.structs.replace(record(0), chunk_us=(0,) * (2 * MOST_CHUNKS))
    assert decode_record(format_record_line(most)).record == most
    longer = msgspec.structs.replace(most, chunk_us=(*most.chunk_us, 1))
    with pytest.raises(ValueError, match="more chunks than a response may have"):
        decode_record(format_record_line(longer))
    merged = msgspec.structs.replace(record(0), merged=((2**31, 2**31),) * 2_000_000)
    with pytest.raises(ValueError, match="longer than a record may be"):
        decode_record(format_record_line(merged))


def test_the_longest_answer_fits_into_a_message() -> None:
    """Each chunk merged and counted, after an hour, and of another number of tokens than its
    neighbours."""
    us = tuple(range(3_600_000_000, 3_600_000_000 + 13 * MOST_CHUNKS, 13))
    longest = msgspec.structs.replace(
        record(0),
        sent_at=0.0,
        chunk_us=us,
        merged=tuple((index, before) for index, before in enumerate(us)),
        chunk_tokens=((100, 1), (101, 1)) * (MOST_CHUNKS // 2),
    )
    assert decode_record(format_record_line(longest)).record == longest
    assert 2 * MAX_RECORD_BYTES <= MAX_FRAME_BYTES


# -- on the worker's own disk ----------------------------------------------------------------------


def test_what_was_not_delivered_is_found_in_the_journal_and_the_rest_not_taken_twice(
    tmp_path: Path,
) -> None:
    wire, inbox = Wire(), RecordInbox()
    wire.outbox.begin(Journal(tmp_path / "run" / "w"))
    for number in range(6):
        wire.outbox.add(record(number))
        if number in (1, 3):
            wire.outbox.flush()
    wire.outbox.count(9, 4, 3)
    _, second = wire.sent
    assert inbox.take("w", list_record_frames(second)) == encoded(2, 3)
    path = tmp_path / "run" / "w"  # the process is killed here
    assert read_journal_counts(path) == (9, 4, 3)
    assert inbox.take("w", read_journal_frames(path)) == encoded(0, 1, 4, 5)
    assert (
        inbox.take("w", read_journal_frames(path))
        == inbox.take("w", list_record_frames(wire.sent[0]))
        == []
    )
    assert wire.outbox.undelivered() == [record(number) for number in range(6)]


def test_a_journal_is_gone_when_all_is_delivered_and_stays_when_not(tmp_path: Path) -> None:
    wire = Wire()
    wire.outbox.begin(Journal(tmp_path / "run" / "w"))
    wire.outbox.add(record(0))
    wire.outbox.flush()
    wire.outbox.acknowledged(1)
    wire.outbox.close(keep=False)
    assert (list(tmp_path.iterdir()), wire.outbox.kept) == ([], None)
    wire.outbox.begin(Journal(tmp_path / "run" / "w"))
    wire.outbox.add(record(1))
    assert wire.outbox.undelivered() == [record(1)]  # of this run
    wire.outbox.close(keep=True)
    assert wire.outbox.kept == tmp_path / "run" / "w"
    assert len([*read_journal_frames(tmp_path / "run" / "w")]) == 1


def test_a_journal_does_not_grow_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "EMPTY_AT", 1000)
    wire, path = Wire(), tmp_path / "w"
    wire.outbox.begin(Journal(path))
    for number in range(50):
        wire.outbox.add(record(number))
        wire.outbox.flush()
        wire.outbox.acknowledged(number + 1)
    assert path.stat().st_size < 1200
    wire.outbox.add(record(50))
    assert [*read_journal_frames(path)][-1] == (51, format_record_line(record(50)))


def test_a_journal_that_ends_in_the_middle_of_a_record_gives_the_whole_ones(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "w")
    for serial in (1, 2):
        journal.add(serial, format_record_line(record(serial)))
    data = (tmp_path / "w").read_bytes()
    first_ends = 28 + (len(data) - 28) // 2
    for length in range(len(data)):
        (tmp_path / "w").write_bytes(data[:length])
        assert read_journal_counts(tmp_path / "w") == (None if length < 28 else (0, 0, 0))
        assert [*read_journal_records(tmp_path / "w")] == [record(1)] * (length >= first_ends)
    assert read_journal_counts(tmp_path / "nothing") is None
    assert [*read_journal_frames(tmp_path / "nothing")] == []


def test_a_journal_is_read_as_far_as_it_was_there(tmp_path: Path) -> None:
    """A worker that was given up, and lives, may write on; and no length in it is believed."""
    journal = Journal(tmp_path / "w")
    for serial in (1, 2):
        journal.add(serial, format_record_line(record(serial)))
    frames = read_journal_frames(tmp_path / "w")
    assert next(frames)[0] == 1
    journal.add(3, format_record_line(record(3)))
    assert [serial for serial, _ in frames] == [2]
    with (tmp_path / "w").open("ab") as file:
        file.write(b"\4\0\0\0\xff\xff\xff\xff and much more")
    assert [serial for serial, _ in read_journal_frames(tmp_path / "w")] == [1, 2, 3]


def test_a_full_disk_ends_the_journal_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = Wire()
    wire.outbox.begin(Journal(tmp_path / "w"))

    def full(*what: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journals.os, "pwrite", full)
    wire.outbox.add(record(0))
    wire.outbox.count(1, 1, 1)
    wire.outbox.flush()
    assert len(wire.sent[0].lines) == 1


STAMPS = st.floats(0, 2**36, allow_nan=False)
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
    error=st.text(max_size=8),
    streamed=st.booleans(),
    input_tokens=COUNTS,
    output_tokens=COUNTS,
    connect_s=st.none() | STAMPS,
    limit=st.none() | st.integers(0, 100),
)


@given(RECORDS)
def test_a_record_is_the_same_after_the_trip(sent: Record) -> None:
    wire = Wire()
    wire.outbox.add(sent)
    wire.outbox.flush()
    _, batch, _ = unpack_to_control(worker_messages.pack_message(1, wire.sent[0]))
    assert isinstance(batch, Records)
    ((came, line),) = RecordInbox().take("w", list_record_frames(batch))
    assert came == sent
    assert line == format_record_line(sent)  # what a single process writes
    assert [type(value) for value in msgspec.structs.astuple(came)] == [
        type(value) for value in msgspec.structs.astuple(sent)
    ]


STEPS = st.tuples(
    st.sampled_from(["add", "flush", "wait", "deliver", "double", "lose"]), st.integers(0, 20)
)


@examples(300)
@given(st.lists(STEPS, min_size=10, max_size=120))
def test_every_record_arrives_once_over_a_bad_wire(steps: list[tuple[str, int]]) -> None:
    """Two workers; messages of both ways are delivered in any order, twice, or never."""
    inbox, wires, came = RecordInbox(), {"a": Wire(), "b": Wire()}, []
    # a batch to the master, or the number of one back
    under_way: list[tuple[str, Records | int]] = []
    added = 0

    def collect() -> None:
        for name, wire in wires.items():
            under_way.extend((name, batch) for batch in wire.sent)
            wire.sent.clear()

    def deliver(message: tuple[str, Records | int]) -> None:
        name, batch = message
        if isinstance(batch, int):
            wires[name].outbox.acknowledged(batch)
        else:
            came.extend(inbox.take(name, list_record_frames(batch)))
            under_way.append((name, batch.number))

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
            wire.outbox.answered(wire.now - 0.1)  # as the status before
            wire.outbox.flush()
        collect()
        while under_way:
            deliver(under_way.pop())
    assert sorted(taken.record.closed_at for taken in came) == list(range(added))
