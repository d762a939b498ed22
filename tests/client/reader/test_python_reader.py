"""The Python reader by hand: what it asks the kernel for is replaced, as what the native one asks
for cannot be."""

import ssl
from pathlib import Path
from typing import Any

import pytest
from gevent.monkey import get_original
from support.scripted import Scripted, stream
from support.stamps_truth import CLOCKS_NS, DELIVERY_NS, run

from locust_llm.client.connection import Connection
from locust_llm.client.reader import python_reader, reader_choice
from locust_llm.client.reader.kernel_clock_offset import measure_clock_offset_ns
from locust_llm.client.reader.python_reader import READ_BYTES, PythonReader, kernel_stamp_ns
from locust_llm.client.reader.reader_choice import get_open_streams
from locust_llm.client.request_exchange import UserConnection
from locust_llm.records.outcomes import OK

pytestmark = pytest.mark.serial


@pytest.fixture(autouse=True)
def chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_choice, "kind", PythonReader)
    monkeypatch.setattr(reader_choice, "_reader", None)


FULL = b"\n" * READ_BYTES
"""A read that may have left something behind."""


class Scripts:
    """A socket with reads to give."""

    def __init__(self) -> None:
        self.reads: list[bytes] = []
        self.control: list[tuple[int, int, bytes]] = []

    def recvmsg(self, size: int, control_size: int) -> tuple[bytes, list[Any], int, None]:
        if not self.reads:
            raise BlockingIOError
        return self.reads.pop(0), self.control, 0, None


def test_what_a_read_leaves_behind_may_be_as_old_as_what_it_took() -> None:
    """Each round has its own moment after which all came, if the round before had left nothing."""
    reader = PythonReader()
    reader.stop()  # its thread
    ours, theirs = get_original("socket", "socketpair")()
    with ours, theirs:
        reader.add(ours.fileno(), 1, False, False)
        reading = reader._streams[ours.fileno()]
        reading.sock.detach()
        reading.sock, reading.removed = Scripts(), False

        def round_of(since_ns: int, begun_ns: int, *data: bytes) -> list[int]:
            """What is said of each read of this round."""
            reading.sock.reads = list(data)
            reader._since_ns = since_ns
            before = len(reading.since)
            reader._read(reading, begun_ns, 0)
            assert not reading.sock.reads
            return list(reading.since[before:])

        assert round_of(100, 200, b"\n") == [100]
        # nothing was left, before the read that began at 200
        assert round_of(150, 300, FULL) == [200]
        assert reading.paused  # 64 kB wait to be decoded: nothing is read
        reader.take(ours.fileno())
        assert not reading.paused
        assert round_of(400, 500, b"\n") == [200]  # as old as what was left
        assert round_of(600, 700, b"\n") == [600]
        # stamped at 690 by the kernel, and not yet reported when a poll at 695 found nothing
        kind = python_reader.SO_TIMESTAMPNS
        assert kind is not None
        reading.sock.control = [(1, kind, bytes(8) + (690).to_bytes(8, "little"))]
        assert round_of(695, 750, b"\n") == [690]
        reading.sock.control = []
        assert round_of(750, 800, b"") == []
        assert reading.end == -1
        reader._streams.clear()


def test_stamps_are_those_of_one_kind_of_control_message() -> None:
    stamp = (3).to_bytes(8, "little") + (5).to_bytes(8, "little")
    kind = python_reader.SO_TIMESTAMPNS
    assert kind is not None
    assert kernel_stamp_ns([]) == 0
    assert kernel_stamp_ns([(1, 1, stamp), (1, kind, stamp)]) == 3_000_000_005
    assert kernel_stamp_ns([(1, kind, stamp[:8])]) == 0


@pytest.mark.parametrize("step_s", [3600, -3600])
def test_a_wall_clock_set_by_an_hour_changes_no_duration(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, step_s: int
) -> None:
    """The clock is set while bytes lie in the kernel: they keep a stamp of the old time, those
    after it have the new."""
    step_ns = step_s * 10**9
    reads = [0]
    real_offset = measure_clock_offset_ns

    def offset() -> int:
        return real_offset() + (step_ns if reads[0] >= 5 else 0)

    def stamp_ns(control: Any) -> int:
        found = kernel_stamp_ns(control)
        reads[0] += 1
        return found + step_ns if found and reads[0] > 6 else found

    monkeypatch.setattr(python_reader, "kernel_stamp_ns", stamp_ns)
    monkeypatch.setattr(python_reader, "measure_clock_offset_ns", offset)
    line = UserConnection()
    line.connection = Connection(scripted.request("", []).target)
    name = f"step{step_s}"
    record, timed = run(scripted, name, stream(12, first_ms=20, each_ms=10, end_ms=10), line)
    assert record.outcome == OK
    assert record.bad_stamps == 1  # what lay there when it was set: the thread's clock serves
    assert record.clock == "kernel"
    late = 0
    for us, (before, after) in zip(record.chunk_us, scripted.row(name).chunks, strict=True):
        assert before - CLOCKS_NS <= timed.sent_ns + us * 1000 <= after + 10**9
        late += timed.sent_ns + us * 1000 > after + DELIVERY_NS
    assert late <= 1 + len(record.merged)


def test_what_comes_together_after_a_silence_came_after_it(scripted: Scripted) -> None:
    """As the native reader knows it."""
    steps = stream(6, first_ms=1000, each_ms=1000, end_ms=15, batch=3)
    record, _ = run(scripted, "python-silence", steps)
    assert [index for index, _ in record.merged] == list(range(6))
    late_us = [record.chunk_us[index] - earliest for index, earliest in record.merged]
    assert max(late_us) < 300_000


def test_bytes_that_are_no_tls_end_the_request(
    scripted_tls: Scripted, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ssl.create_default_context(cafile=str(certificate))
    line = UserConnection()
    run(scripted_tls, "tls-fine", stream(1), line, port="tls", tls=tls)
    kept = get_open_streams()._thread.take

    def take(fd: int) -> Any:
        stamps, since, data, *rest = kept(fd)
        return stamps, since, [b"garbage" + read for read in data], *rest

    monkeypatch.setattr(get_open_streams()._thread, "take", take)
    record, _ = run(scripted_tls, "tls-garbage", stream(1), line, port="tls", tls=tls)
    assert record.outcome == "tls"
