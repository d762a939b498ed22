"""The threads that read, in C and in Python, by hand: what they keep of a socket, when they tell of
it, how they end."""

import errno
import select
import socket
import struct
import time
from array import array
from collections.abc import Iterator
from typing import Any

import pytest

from locust_llm.client.connection import SO_TIMESTAMPNS
from locust_llm.client.reader import native_reader
from locust_llm.client.reader.python_reader import PythonReader

KINDS: dict[str, Any] = {"native": native_reader.Reader, "python": PythonReader}
needs_native = pytest.mark.skipif(
    native_reader.Reader is None, reason="the native reader was not compiled"
)

NS = 1_000_000_000
FAR_NS = 3600 * NS


@pytest.fixture(params=[pytest.param("native", marks=needs_native), "python"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def reader(kind: str) -> Iterator[Any]:
    reader = KINDS[kind]()
    yield reader
    reader.stop()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """(where to send, where to read with stamps)."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    with sender, receiver:
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        receiver.setblocking(False)
        receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        for _ in range(1000):
            sender.sendall(b"?")
            time.sleep(0.001)
            if receiver.recvmsg(1, 64)[1]:
                break
            time.sleep(0.01)  # the kernel begins to stamp a moment after it was asked
        yield sender, receiver


def take(reader: Any, fd: int) -> tuple[list[int], list[int], list[bytes], int, list[int]]:
    stamps, since, data, end, *counts, _ = reader.take(fd)
    return list(array("q", stamps)), list(array("q", since)), data, end, counts


def told(reader: Any, fd: int, within_s: float = 5.0) -> bool:
    until = time.monotonic() + within_s
    while (left := until - time.monotonic()) > 0:
        if select.select([reader.event_fd], [], [], left)[0] and fd in due(reader):
            return True
    return False


def due(reader: Any) -> list[int]:
    """All streams that it gives now."""
    return list(iter(reader.next, -1))


def arrived(reader: Any, count: int) -> None:
    """So many reads, of all streams."""
    until = time.monotonic() + 5
    while reader.reads < count:
        assert time.monotonic() < until
        time.sleep(0.0005)


def test_each_read_has_its_bytes_its_stamp_and_a_moment_before_it(reader: Any, pair: Any) -> None:
    sender, receiver = pair
    fd = receiver.fileno()
    reader.add(fd, time.monotonic_ns(), False, False)
    moments = []
    for number in range(3):
        before = time.monotonic_ns()
        sender.sendall(b"%d" % number)
        arrived(reader, number + 1)
        moments.append((before, time.monotonic_ns()))
    assert told(reader, fd)
    assert reader.newest(fd) > moments[2][0] - 20_000
    stamps, since, data, end, counts = take(reader, fd)
    assert (data, end, counts[:2]) == ([b"0", b"1", b"2"], 0, [0, 0])
    for (before, after), stamp_ns, since_ns in zip(moments, stamps, since, strict=True):
        assert before - 20_000 <= stamp_ns <= after
        assert since_ns <= stamp_ns
    assert all(later > stamp - 20_000 for stamp, later in zip(stamps, since[1:], strict=False))
    assert take(reader, fd)[2] == []


def test_what_cannot_be_its_stamp_is_replaced_and_counted(reader: Any, pair: Any) -> None:
    sender, receiver = pair
    reader.add(receiver.fileno(), time.monotonic_ns() + FAR_NS, False, False)  # sent after it came
    before = time.monotonic_ns()
    sender.sendall(b"x")
    arrived(reader, 1)
    (stamp,), _, _, _, (unstamped, bad, lag) = take(reader, receiver.fileno())
    assert before <= stamp <= time.monotonic_ns()
    assert (unstamped, bad, lag) == (0, 1, 0)
    reader.sent(receiver.fileno(), before)
    sender.sendall(b"x")
    arrived(reader, 2)
    assert take(reader, receiver.fileno())[4][:2] == [0, 1]
    reader.sent(receiver.fileno() + 1000, before)  # one that is over already


def test_where_the_kernel_gives_no_stamps_the_threads_clock_serves(reader: Any) -> None:
    one, other = socket.socketpair()
    with one, other:
        reader.add(other.fileno(), 0, False, False)
        before = time.monotonic_ns()
        one.send(b"x")
        arrived(reader, 1)
        (stamp,), _, _, _, (unstamped, bad, _) = take(reader, other.fileno())
        assert before <= stamp <= time.monotonic_ns()
        assert (unstamped, bad) == (1, 0)


def test_the_end_of_a_connection_comes_behind_what_came_before_it(reader: Any, pair: Any) -> None:
    sender, receiver = pair
    fd = receiver.fileno()
    reader.add(fd, 0, False, False)
    sender.sendall(b"last")
    sender.shutdown(socket.SHUT_WR)
    arrived(reader, 2)
    assert told(reader, fd)
    _, _, data, end, (unstamped, _, _) = take(reader, fd)
    assert (data, end, unstamped) == ([b"last"], -1, 0)


def test_a_reset_has_its_number(reader: Any, pair: Any) -> None:
    sender, receiver = pair
    reader.add(receiver.fileno(), 0, False, False)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sender.close()
    assert told(reader, receiver.fileno())
    assert take(reader, receiver.fileno())[3] == errno.ECONNRESET


def test_a_server_that_is_faster_than_it_is_decoded_waits_and_nothing_is_lost(
    reader: Any, pair: Any
) -> None:
    sender, receiver = pair
    fd, sent = receiver.fileno(), bytes(range(256)) * 40_000
    reader.add(fd, 0, False, False)
    sender.setblocking(False)
    at, got, most, since = 0, b"", 0, [0]
    until = time.monotonic() + 20
    while len(got) < len(sent):
        assert time.monotonic() < until
        try:
            at += sender.send(sent[at : at + 500_000]) if at < len(sent) else 0
        except BlockingIOError:
            assert told(reader, fd)
        stamps, later, data, _, _ = take(reader, fd)
        assert all(a <= b for a, b in zip(later, stamps, strict=True))
        since += later
        most = max(most, sum(map(len, data)))
        got += b"".join(data)
    assert got == sent
    assert since == sorted(since)
    assert 0 < most < 4 * 65_536


def test_a_calm_stream_is_told_of_when_it_has_much_or_may_have_ended(
    reader: Any, pair: Any
) -> None:
    sender, receiver = pair
    fd = receiver.fileno()
    reader.add(fd, 0, True, False)
    reader.calm(fd, 100, True, FAR_NS)
    sender.sendall(b"x" * 60)
    arrived(reader, 1)
    assert due(reader) == []
    sender.sendall(b"x" * 60)
    arrived(reader, 2)
    assert told(reader, fd)
    assert len(take(reader, fd)[2]) == 2
    for number, end in enumerate([b"0\r\n\r\n", b"some\r\n0\r\n\r\n", b"\r\n"]):
        sender.sendall(end)
        arrived(reader, 3 + number)
        assert told(reader, fd)
        assert take(reader, fd)[2] == [end]
    sender.sendall(b"data: x\r\n\r\n\r\n")  # perhaps trailers: it has time
    arrived(reader, 6)
    assert due(reader) == []
    reader.calm(fd, 100, True, 1_000_000)
    sender.sendall(b"0\r\nTrailer: 1\r\n\r\n")
    arrived(reader, 7)
    reader.sweep(0, 0)
    assert told(reader, fd)
    assert len(take(reader, fd)[2]) == 2


def test_with_patience_all_is_told_of_within_it(reader: Any, pair: Any) -> None:
    sender, receiver = pair
    fd = receiver.fileno()
    reader.add(fd, 0, False, False)
    reader.calm(fd, 100_000, False, 20_000_000)
    sender.sendall(b"sealed")
    arrived(reader, 1)
    stamp_ns = reader.newest(fd)
    assert told(reader, fd)
    assert time.monotonic_ns() - stamp_ns >= 20_000_000
    reader.calm(fd, 100_000, False, 0)
    sender.sendall(b"until the close")
    arrived(reader, 2)
    assert not told(reader, fd, 0.03)


def record(size: int) -> bytes:
    """One of TLS."""
    return b"\x17\x03\x03" + size.to_bytes(2, "big") + bytes(size)


UNUSUAL = {
    "usual": ([record(300)], False),
    "as_long_as_another": ([record(400)], False),
    "short": ([record(64)], True),
    "empty": ([record(0)], True),
    "not_so_short": ([record(65)], False),
    "longer_than_all": ([record(401)], True),
    "usual_with_a_short_one": ([record(300) + record(22)], True),
    "a_short_one_and_a_part": ([record(22) + record(300)[:200]], True),
    "several_usual": ([record(300) * 3], False),
    "a_part_of_a_long_one": ([record(401)[:-1]], False),
    "the_rest_of_a_long_one": ([record(401)[:-1], b"\0"], True),
    "a_short_one_cut_in_its_header": ([record(300) + record(22)[:3], record(22)[3:]], True),
    "a_header_by_the_byte": ([record(22)[i : i + 1] for i in range(5)] + [bytes(22)], True),
}


@needs_native
@pytest.mark.parametrize("kind", ["native"], indirect=True)
@pytest.mark.parametrize("name", UNUSUAL)
def test_the_end_shows_by_its_tls_record(reader: Any, pair: Any, name: str) -> None:
    sender, receiver = pair
    fd = receiver.fileno()
    reader.add(fd, 0, False, True)
    sender.sendall(record(900))  # the headers, before it is calm
    arrived(reader, 1)
    assert told(reader, fd)
    reader.calm(fd, 100_000, False, FAR_NS)
    sender.sendall(record(400))  # the first since then
    arrived(reader, 2)
    assert told(reader, fd)
    assert reader.take(fd)[7]
    reads, unusual = UNUSUAL[name]
    for number, data in enumerate(reads):
        sender.sendall(data)
        arrived(reader, 3 + number)
        assert (fd in due(reader)) == (unusual and number == len(reads) - 1)
    assert reader.take(fd)[7] == unusual


def test_the_event_fd_is_readable_until_all_was_given_and_again_for_what_comes_then(
    reader: Any, pair: Any
) -> None:
    sender, receiver = pair
    fd = receiver.fileno()
    reader.add(fd, 0, False, False)
    for number in range(2):
        sender.sendall(b"x")
        arrived(reader, number + 1)
        assert select.select([reader.event_fd], [], [], 5)[0]
        assert reader.next() == fd
        # it is not known yet that it was the last
        assert select.select([reader.event_fd], [], [], 0)[0]
        assert reader.next() == -1
        assert not select.select([reader.event_fd], [], [], 0)[0]


def test_quiet_bytes_are_swept_up(reader: Any, pair: Any) -> None:
    sender, receiver = pair
    fd = receiver.fileno()
    reader.add(fd, 0, False, False)
    reader.calm(fd, 100_000, False, 0)
    reader.sweep(0, 0)
    assert due(reader) == []  # nothing came
    sender.sendall(b"x")
    arrived(reader, 1)
    reader.sweep(FAR_NS, FAR_NS)
    assert due(reader) == []
    reader.sweep(0, FAR_NS)
    assert told(reader, fd)


def test_what_was_removed_is_read_no_more(reader: Any, pair: Any) -> None:
    sender, receiver = pair
    fd = receiver.fileno()
    reader.add(fd, 0, False, False)
    sender.sendall(b"ours")
    arrived(reader, 1)
    reader.remove(fd)
    reader.remove(fd)
    sender.sendall(b"not ours")
    time.sleep(0.01)
    assert receiver.recv(100) == b"not ours"
    assert due(reader) == []
    with pytest.raises(KeyError):
        reader.take(fd)
    assert reader.newest(fd) == 0
    reader.add(fd, 0, False, False)
    sender.sendall(b"again")
    arrived(reader, 2)
    assert take(reader, fd)[2] == [b"again"]


def test_what_cannot_be_added_and_a_thread_that_is_ended(reader: Any, pair: Any) -> None:
    fd = pair[1].fileno()
    reader.add(fd, 0, False, False)
    with pytest.raises(ValueError, match="cannot be added"):
        reader.add(fd, 0, False, False)
    with pytest.raises(OSError, match="Bad file descriptor"):
        reader.add(9_999, 0, False, False)
    with pytest.raises(TypeError):
        reader.add("x", 0, False, False)
    reader.stop()
    reader.stop()
    pair[0].sendall(b"nobody reads")
    assert not told(reader, fd, 0.01)
    assert take(reader, fd)[2] == []


@needs_native
def test_a_reader_that_nobody_holds_ends_with_its_streams(pair: Any) -> None:
    assert native_reader.Reader is not None
    reader = native_reader.Reader()
    reader.add(pair[1].fileno(), 0, True, False)
    pair[0].sendall(b"x")
    arrived(reader, 1)
    del reader
    pair[0].sendall(b"y")
    time.sleep(0.01)
    assert pair[1].recv(10) == b"y"
