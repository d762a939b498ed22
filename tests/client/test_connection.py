"""Connections: opened, checked and closed in the open; each way to fail has its name, and none
leaves a socket behind."""

import errno
import os
import resource
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gevent
import gevent.socket
import pytest
from gevent import Timeout
from support.scripted import Scripted

from locust_llm.client import connection as module
from locust_llm.client.connection import ConnectFailed, Connection, Target
from locust_llm.client.source_address_rotation import connect_socket
from locust_llm.records.outcomes import FAILURES


@pytest.fixture(autouse=True)
def _no_socket_is_left() -> Iterator[None]:
    gevent.get_hub().threadpool.apply(lambda: None)  # name lookups need its descriptors
    gevent.sleep(0.01)
    before = _files()
    yield
    gevent.sleep(0.01)  # gevent closes in the next turn of its loop
    assert _files() == before


def _files() -> list[str]:
    return os.listdir("/proc/self/fd")


@pytest.fixture
def black_hole() -> Iterator[int]:
    """A port that answers no connection: its queue is full, and the kernel drops what comes."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
        yield server.getsockname()[1]
        for filler in fillers:
            filler.close()


def failure(target: Target, timeout: float = 5.0) -> str:
    began = time.monotonic()
    with pytest.raises(ConnectFailed) as caught:
        Connection(target, timeout)
    assert time.monotonic() - began < timeout + 5
    assert str(caught.value).startswith(f"{target.host}:{target.port}: ")
    return caught.value.outcome


def test_refused() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, but nobody listens
        assert failure(Target("127.0.0.1", unused.getsockname()[1])) == "refused"


def test_no_answer(black_hole: int) -> None:
    assert failure(Target("127.0.0.1", black_hole), 0.2) == "connect_timeout"


def test_the_time_limit_is_one_for_all_addresses_of_a_name(
    black_hole: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve(monkeypatch, black_hole, black_hole)
    with Timeout(10):
        assert failure(Target("two-addresses.test", black_hole), 0.2) == "connect_timeout"


def test_names_that_do_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failure(Target("a..b", 80)) == "dns"  # not even a name
    assert failure(Target("x" * 64 + ".test", 80)) == "dns"

    def unknown(*_: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(gevent.get_hub().resolver, "getaddrinfo", unknown)
    assert failure(Target("nobody.test", 80)) == "dns"


def test_no_open_file_is_left(scripted: Scripted) -> None:
    """For a name too, of which the lookup fails first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        assert failure(Target("127.0.0.1", scripted.ports["plain"])) == "no_socket"
        assert failure(Target("localhost", scripted.ports["plain"])) == "no_socket"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert failure(Target("a..b", 80)) == "dns"


def test_a_network_that_is_not_there() -> None:
    # no TCP to all hosts: connect(2) says ENETUNREACH
    assert failure(Target("255.255.255.255", 80)) == "unreachable"


@pytest.mark.parametrize(
    ("number", "outcome"),
    [
        (errno.EMFILE, "no_socket"), (errno.ENFILE, "no_socket"),
        (errno.EADDRNOTAVAIL, "no_socket"),
        (errno.ENETUNREACH, "unreachable"), (errno.EHOSTUNREACH, "unreachable"),
        (errno.ETIMEDOUT, "connect_timeout"),
        (errno.ECONNREFUSED, "refused"), (errno.ECONNRESET, "reset"), (errno.EPROTO, "reset"),
        (errno.ENOMEM, "no_socket"), (errno.ENOBUFS, "no_socket"), (errno.EPERM, "unreachable"),
        (errno.EACCES, "unreachable"), (errno.ENETDOWN, "unreachable"),
        (errno.EAFNOSUPPORT, "unreachable"),
    ],
)  # fmt: skip
def test_whose_fault_it_is(monkeypatch: pytest.MonkeyPatch, number: int, outcome: str) -> None:
    def connect(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(gevent.socket, "socket", connect)
    assert failure(Target("127.0.0.1", 80)) == outcome
    assert outcome in FAILURES


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_what_this_machine_lacks_is_no_reset(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def connect(*_: Any) -> None:
        raise error

    monkeypatch.setattr(gevent.socket, "socket", connect)
    assert failure(Target("127.0.0.1", 80)) == "no_socket"


def test_tls_with_somebody_who_speaks_none(scripted: Scripted) -> None:
    """The server takes the hello for the beginning of a request and waits for the rest."""
    target = Target("127.0.0.1", scripted.ports["plain"], ssl.create_default_context())
    assert failure(target, 0.3) == "connect_timeout"


def resolve(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    """Every name now means this machine, with these ports one after the other."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]
    monkeypatch.setattr(gevent.get_hub().resolver, "getaddrinfo", lambda *_: found)


def test_tls_with_a_stranger_or_another_name(
    scripted_tls: Scripted, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = scripted_tls.ports["tls"]
    assert failure(Target("127.0.0.1", port, ssl.create_default_context())) == "tls"
    ours = ssl.create_default_context(cafile=str(certificate))
    Connection(Target("127.0.0.1", port, ours)).close()
    resolve(monkeypatch, port)
    Connection(Target("localhost", port, ours)).close()
    assert failure(Target("other.test", port, ours)) == "tls"


def test_a_server_that_leaves_during_the_handshake() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)

        def leave() -> None:
            gevent.socket.wait_read(server.fileno())
            server.accept()[0].close()

        leaving = gevent.spawn(leave)
        assert failure(
            Target("127.0.0.1", server.getsockname()[1], ssl.create_default_context())
        ) in ("tls", "reset")
        leaving.join()


def test_killed_while_it_connects(black_hole: int) -> None:
    job = gevent.spawn(Connection, Target("127.0.0.1", black_hole))
    gevent.sleep(0.02)
    job.kill()
    assert isinstance(job.value, gevent.GreenletExit)


def test_a_timeout_of_somebody_elses_passes_through(black_hole: int) -> None:
    with pytest.raises(Timeout) as caught, Timeout(0.05) as theirs:
        Connection(Target("127.0.0.1", black_hole), 5)
    assert caught.value is theirs


def pair() -> tuple[Connection, socket.socket]:
    """A connection and its other end."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        connection = Connection(Target("127.0.0.1", server.getsockname()[1]))
        return connection, server.accept()[0]


def test_alive_until_the_server_closes_or_says_something_unasked() -> None:
    connection, server = pair()
    assert connection.alive()
    assert connection.alive()
    server.close()
    assert not connection.alive()
    connection.close()
    assert not connection.alive()
    connection, server = pair()
    server.send(b"unasked")
    assert not connection.alive()
    assert not connection.alive()  # a look takes nothing away
    connection.close()
    server.close()


def test_the_server_hears_at_once_that_it_is_closed() -> None:
    """Before the loop turns: whoever gets the slot next may send in the same turn."""
    connection, server = pair()
    server.settimeout(5)
    connection.close()
    assert server.recv(1) == b""
    server.close()
    connection.close()


def test_tls_lives_with_session_tickets_and_dies_with_close_notify(
    scripted_tls: Scripted, certificate: Path
) -> None:
    target = Target(
        "127.0.0.1", scripted_tls.ports["tls"], ssl.create_default_context(cafile=str(certificate))
    )
    connection = Connection(target)
    gevent.sleep(0.05)  # the tickets come after the handshake
    assert connection.alive()
    assert connection.tls is not None
    connection.tls.closed = True  # as a close_notify in the last read of an answer leaves it
    assert not connection.alive()
    connection.close()


def test_a_large_request_is_sealed_whole(scripted_tls: Scripted, certificate: Path) -> None:
    target = Target(
        "127.0.0.1", scripted_tls.ports["tls"], ssl.create_default_context(cafile=str(certificate))
    )
    connection = Connection(target)
    (sealed,) = connection.encrypt([b"x" * 2_000_000, b"", b"y" * 3_000_000])
    assert len(sealed) > 5_000_000
    connection.close()


def test_pieces_arrive_one_after_the_other_however_little_a_write_takes() -> None:
    """The second write begins in the middle of the second piece: the first one takes what the
    buffers hold."""
    pieces = [b"a" * 5, b"b" * 4_000_000, b"", b"c" * 1_000_000, b"d"]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = Connection(Target("127.0.0.1", listener.getsockname()[1]))
        peer, _ = listener.accept()
        got = list[bytes]()

        def read() -> None:
            while data := peer.recv(1 << 20):
                got.append(data)

        reader = threading.Thread(target=read)
        reader.start()
        connection.send(pieces)
        connection.close()
        reader.join(20)
        peer.close()
    assert b"".join(got) == b"".join(pieces)


def test_the_kernel_tells_the_round_trip(scripted: Scripted) -> None:
    connection = Connection(scripted.request("", []).target)
    rtt_us, again = connection.round_trip()
    assert rtt_us is not None
    assert 0 < rtt_us < 1_000_000  # loopback: tens of microseconds, on a machine that is not asleep
    assert again == 0
    connection.close()
    assert connection.round_trip() == (None, 0)


def test_a_busy_process_is_no_slow_network(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever opens 30 connections at once, and has other work for 100 ms, sees each of them late;
    the kernel does not."""
    target = scripted.request("", []).target

    def late(host: str, port: int, sources: object) -> Any:
        sock = connect_socket(host, port, None)
        time.sleep(0.1)
        return sock

    monkeypatch.setattr(module, "connect_socket", late)
    connection = Connection(target)
    assert 0 < connection.connect_s < 0.1
    connection.close()


def test_the_shortest_round_trip_counts_and_an_old_kernel_has_the_smoothed_one() -> None:
    connection = object.__new__(Connection)
    connection._retransmits = 1
    connection.target = cast(Any, SimpleNamespace(proxy=None))
    for length, least_us, expected in ((152, 40, 40), (152, 2**32 - 1, 4000), (104, 40, 4000)):
        info = bytearray(152)
        info[68:72], info[100:104], info[148:152] = (
            number.to_bytes(4, "little") for number in (4000, 3, least_us)
        )
        connection._socket = SimpleNamespace(
            getsockopt=lambda *asked, info=bytes(info[:length]): info
        )
        connection._retransmits = 1
        assert connection.round_trip() == (expected, 2)


def test_session_tickets_without_end_are_not_waited_for() -> None:
    """They would be read in the event loop."""
    connection = object.__new__(Connection)
    connection.tls = cast(Any, SimpleNamespace(reusable=True, decrypt=lambda data: b""))
    reads = iter([b"tickets"] * 100)
    connection._socket = SimpleNamespace(_sock=SimpleNamespace(recv=lambda size: next(reads)))
    assert not connection.alive()
    assert len(list(reads)) == 100 - module.TICKET_READS
