"""recvmsg and epoll_wait through ctypes: the same answers as Python's own, and the same errors."""

import select
import socket
import struct
import time

import pytest

from locust_llm.client.connection import SO_TIMESTAMPNS
from locust_llm.client.syscalls import READ_BYTES, make_poll, make_recvmsg, quiet


@pytest.fixture
def pair() -> tuple[socket.socket, socket.socket]:
    """(where to send, where to read with stamps)."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        reader, _ = server.accept()
    reader.setblocking(False)
    reader.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    for _ in range(1000):
        arrive((sender, reader), b"?")
        if reader.recvmsg(1, 64)[1]:
            return sender, reader
        time.sleep(0.01)  # the kernel begins to stamp a moment after it was asked
    pytest.fail("the kernel gives no stamps")


def arrive(pair: tuple[socket.socket, socket.socket], data: bytes) -> tuple[int, int]:
    """It lies there; between which two moments it came."""
    sender, reader = pair
    before = time.time_ns()
    sender.sendall(data)
    assert select.select([reader], [], [], 10)[0]
    return before, time.time_ns()


def test_bytes_and_stamp(pair: tuple[socket.socket, socket.socket]) -> None:
    _, reader = pair
    receive = make_recvmsg()
    before, after = arrive(pair, b"hello")
    data, stamp_ns = receive(reader.fileno())
    assert data == b"hello"
    assert before <= stamp_ns <= after
    first = data
    before, after = arrive(pair, b"x" * 300)
    data, stamp_ns = receive(reader.fileno())
    assert (data, first) == (b"x" * 300, b"hello")  # the buffer is used again, the bytes are not
    assert before <= stamp_ns <= after


def test_python_says_the_same(pair: tuple[socket.socket, socket.socket]) -> None:
    _, reader = pair
    arrive(pair, b"twice")
    _, ((_, _, control),), _, _ = reader.recvmsg(10, 64, socket.MSG_PEEK)
    seconds, nanoseconds = struct.unpack("qq", control)
    assert make_recvmsg()(reader.fileno()) == (b"twice", seconds * 10**9 + nanoseconds)


def test_a_large_arrival_comes_in_parts(pair: tuple[socket.socket, socket.socket]) -> None:
    _, reader = pair
    sent = bytes(range(256)) * 600
    arrive(pair, sent)
    receive, got = make_recvmsg(), b""
    while len(got) < len(sent):
        data, _ = receive(reader.fileno())
        assert 0 < len(data) <= READ_BYTES
        got += data
    assert got == sent


def test_nothing_there_the_end_and_a_reset(pair: tuple[socket.socket, socket.socket]) -> None:
    sender, reader = pair
    receive = make_recvmsg()
    with pytest.raises(BlockingIOError):
        receive(reader.fileno())
    sender.shutdown(socket.SHUT_WR)
    assert select.select([reader], [], [], 10)[0]
    assert receive(reader.fileno()) == (b"", 0)
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    fd = reader.fileno()
    reader.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        receive(fd)


def test_no_stamp_where_none_was_asked_for() -> None:
    one, other = socket.socketpair()
    one.send(b"plain")
    assert make_recvmsg()(other.fileno()) == (b"plain", 0)


def test_each_thread_has_buffers_of_its_own(pair: tuple[socket.socket, socket.socket]) -> None:
    _, reader = pair
    one, other = make_recvmsg(), make_recvmsg()
    arrive(pair, b"first")
    first = one(reader.fileno())
    arrive(pair, b"other")
    assert (first[0], other(reader.fileno())[0]) == (b"first", b"other")


def test_what_is_ready_is_what_python_says() -> None:
    epoll, pairs = select.epoll(), [socket.socketpair() for _ in range(5)]
    poll = make_poll(epoll.fileno())
    assert poll() == []
    for _, reader in pairs:
        epoll.register(reader, select.EPOLLIN | select.EPOLLRDHUP)
    pairs[1][0].send(b"x")
    pairs[3][0].close()
    assert sorted((fd, what) for what, fd in poll()) == sorted(epoll.poll(0))
    assert len(poll()) == 2
    for sender, reader in pairs:
        sender.close()
        reader.close()


def test_quiet_until_something_comes_or_the_connection_ends() -> None:
    ours, theirs = socket.socketpair()
    assert quiet(ours.fileno())
    theirs.send(b"x")
    assert not quiet(ours.fileno())
    assert ours.recv(2) == b"x"  # a look takes nothing away
    assert quiet(ours.fileno())
    theirs.close()
    assert not quiet(ours.fileno())
    ours.close()
    assert not quiet(ours.fileno())
