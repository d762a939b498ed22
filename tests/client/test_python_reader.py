"""The Python reader by hand: what it asks the kernel for is replaced, as what the native one asks for cannot be."""

import socket
import ssl
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from support.scripted import Scripted, delta, event, head, stream
from support.stamps_truth import CLOCKS_NS, DELIVERY_NS, run

from locust_llm.client import process_reader
from locust_llm.client import reader as reader_module
from locust_llm.client.connection import Connection
from locust_llm.client.exchange import UserConnection
from locust_llm.client.kernel_clock import wall_minus_monotonic_ns
from locust_llm.client.open_stream import OpenStream
from locust_llm.client.process_reader import stream_reader
from locust_llm.client.reader import StreamReader
from locust_llm.client.response import Response
from locust_llm.client.syscalls import READ_BYTES
from locust_llm.core.record import OK

pytestmark = pytest.mark.serial


@pytest.fixture(autouse=True)
def python_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_reader, "kind", StreamReader)
    monkeypatch.setattr(process_reader, "_reader", None)


FULL = b"\n" * READ_BYTES
"""A read that may have left something behind."""


def test_what_a_read_leaves_behind_may_be_as_old_as_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader by hand: each round has its own moment after which all came, if the round before had left nothing."""
    reader, stream = StreamReader(), Response(0)
    give(stream, head(Connection="close") + event(delta(content="a")))
    with closing(socket.socket()) as sock:
        reading = OpenStream(cast(Connection, SimpleNamespace(fd=sock.fileno(), tls=None)), stream)
        reader._epoll.register(sock.fileno(), 0)
        reads: list[bytes] = []
        monkeypatch.setattr(reader, "_receive", lambda fd: (reads.pop(0), 0))

        def rounds(since_ns: int, begun_ns: int, *data: bytes, closes: bool = False) -> list[int]:
            """What is said of each read of this round."""
            reads[:] = data
            before = len(stream.since)
            reader._read(reading, since_ns, begun_ns, 0, closes)
            assert not reads
            return list(stream.since[before:])

        assert rounds(100, 200, FULL, FULL) == [100, 100]  # and no third
        assert rounds(300, 400) == []  # 128 kB wait to be decoded: nothing is read
        stream.look()
        assert rounds(500, 600, FULL, b"\n") == [100, 100]  # as old as what was left
        stream.look()
        assert rounds(550, 700, b"\n") == [600]  # nothing was left, before the read that began at 600
        assert rounds(800, 900, b"\n") == [800]
        assert rounds(850, 1000, b"\n", b"\n", closes=True) == [900, 1000]
        assert rounds(1100, 1200, b"\n", b"", closes=True) == [1000]
        assert stream.over


def give(stream: Response, data: bytes) -> None:
    if stream.arrived(1, 0, data):
        stream.look()


@pytest.mark.parametrize("step_s", [3600, -3600])
def test_a_wall_clock_set_by_an_hour_changes_no_duration(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, step_s: int
) -> None:
    """The clock is set while bytes lie in the kernel: they keep a stamp of the old time, those after it have the new."""
    step_ns = step_s * 10**9
    reads = [0]
    real_offset = wall_minus_monotonic_ns

    def offset() -> int:
        return real_offset() + (step_ns if reads[0] >= 5 else 0)

    kernel = stream_reader()._receive

    def receive(fd: int) -> tuple[bytes, int]:
        data, stamp_ns = kernel(fd)
        reads[0] += 1
        return data, stamp_ns + step_ns if stamp_ns and reads[0] > 6 else stamp_ns

    monkeypatch.setattr(stream_reader(), "_receive", receive)
    monkeypatch.setattr(reader_module, "wall_minus_monotonic_ns", offset)
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


def test_bytes_that_are_no_tls_end_the_request(
    scripted_tls: Scripted, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = UserConnection()
    run(scripted_tls, "tls-fine", stream(1), line, port="tls", tls=ssl.create_default_context(cafile=str(certificate)))
    kernel = stream_reader()._receive
    monkeypatch.setattr(stream_reader(), "_receive", lambda fd: (b"garbage" + kernel(fd)[0], 0))
    record, _ = run(
        scripted_tls,
        "tls-garbage",
        stream(1),
        line,
        port="tls",
        tls=ssl.create_default_context(cafile=str(certificate)),
    )
    assert record.outcome == "tls"
