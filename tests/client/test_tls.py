"""The TLS layer: each read gives the plain bytes of the records that it completed, however they
were cut and ended."""

import itertools
import socket
import ssl
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest
from gevent.socket import wait_read
from hypothesis import given
from hypothesis import strategies as st
from support.tls_pair import Pair, pair

from locust_llm.client.connection import ConnectFailed, Connection, Target
from locust_llm.client.reader.open_streams import OpenStream
from locust_llm.client.response_chunks import Response

VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def opened_to(target: Target) -> Connection:
    """As soon as somebody listens."""
    for _ in range(1000):
        with suppress(ConnectFailed):
            return Connection(target)
        time.sleep(0.01)
    raise AssertionError("nobody listens")


def pair_of(version: str, certificate: Path) -> Pair:
    """Behind the handshake, and what belongs to it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = context.maximum_version = VERSIONS[version]
    both = pair(certificate, context)
    assert both.client.decrypt(both.to_client.read()) == b""
    return both


@pytest.fixture(params=VERSIONS)
def both(request: pytest.FixtureRequest, certificate: Path) -> Pair:
    return pair_of(request.param, certificate)


def test_what_was_written_comes_out(both: Pair) -> None:
    assert both.client.decrypt(both.says(b"one", b"two")) == b"onetwo"
    assert both.client.decrypt(both.says(b"x" * 40_000)) == b"x" * 40_000
    assert (both.client.closed, both.client.failure) == (False, "")


def test_a_record_that_is_not_all_there_waits(both: Pair) -> None:
    data = both.says(b"first") + both.says(b"second")
    got = [both.client.decrypt(data[i : i + 1]) for i in range(len(data))]
    assert [piece for piece in got if piece] == [b"first", b"second"]


def test_close_notify_ends_it(both: Pair) -> None:
    data = both.says(b"last")
    assert both.client.decrypt(data + both.closes()) == b"last"
    assert (both.client.closed, both.client.failure) == (True, "")


def test_what_came_before_a_broken_record_is_kept(both: Pair) -> None:
    good, bad = both.says(b"good"), bytearray(both.says(b"bad"))
    bad[-1] ^= 1
    assert both.client.decrypt(good + bytes(bad)) == b"good"
    assert both.client.failure
    assert both.client.decrypt(both.says(b"more")) == b""


def test_the_servers_alert_is_named(certificate: Path) -> None:
    """It asks for a certificate that the client has not: by TLS 1.3 it says so after the
    handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificate)
    both = pair(certificate, context)
    assert both.client.decrypt(both.to_client.read()) == b""
    assert "certificate required" in both.client.failure.lower().replace("_", " ")


@given(
    pieces=st.lists(st.one_of(st.binary(min_size=1, max_size=300), st.just(b"x" * 20_000)),
        min_size=1, max_size=8),
    cuts=st.lists(st.integers(0, 45_000), max_size=8), version=st.sampled_from(list(VERSIONS)),
    ends=st.booleans(),
    damaged=st.none() | st.integers(0, 7),
)  # fmt: skip
def test_each_byte_has_the_stamp_of_the_read_that_completed_its_record(
    certificate: Path,
    pieces: list[bytes],
    cuts: list[int],
    version: str,
    ends: bool,
    damaged: int | None,
) -> None:
    """Records, some of them too large for one slice, split anywhere; one of them damaged, closed or
    not."""
    both = pair_of(version, certificate)
    wire, completed = bytearray(), list[tuple[int, bytes]]()
    """Where each record ends, with what it holds."""
    for number, piece in enumerate(pieces):
        for at in range(0, len(piece), 16_384):
            part = piece[at : at + 16_384]
            wire += both.says(part)
            if number == damaged:
                wire[-1] ^= 1
            if damaged is None or number < damaged:
                completed.append((len(wire), part))
    broken = damaged is not None and damaged < len(pieces)
    if ends:
        wire += both.closes()
    bounds = [0, *sorted(cut for cut in set(cuts) if 0 < cut < len(wire)), len(wire)]
    reads = list(itertools.pairwise(bounds))
    expected = [
        (end, b"".join(part for at, part in completed if start < at <= end)) for start, end in reads
    ]

    class Taken(Response):
        def append_read(self, stamp_ns: int, since_ns: int, data: bytes) -> bool:
            got.append((stamp_ns, since_ns, data))
            return False

    got = list[tuple[int, int, bytes]]()
    stream, connection = Taken(0), SimpleNamespace(tls=both.client)
    reading = OpenStream(connection, stream)  # type: ignore[arg-type]
    reading.encrypted += [(end, start, bytes(wire[start:end])) for start, end in reads]
    reading.decrypt(None)
    assert [(stamp, data) for stamp, _, data in got] == [row for row in expected if row[1]]
    assert all(since < stamp for stamp, since, _ in got)
    assert bool(both.client.failure) == broken
    assert both.client.closed == (ends and not broken)


@pytest.mark.parametrize("command", [b"k\n", b"K\n"])
def test_a_new_key_of_the_server_is_used(certificate: Path, command: bytes) -> None:
    """``k`` lets openssl's server take one; ``K`` asks for one of ours too, which comes with the
    next request."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = [
        "-tls1_3",
        "-accept",
        f"127.0.0.1:{port}",
        "-cert",
        str(certificate),
        "-naccept",
        "1",
    ]
    server = subprocess.Popen(
        ["openssl", "s_server", *options], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert server.stdin is not None
    with server, server.stdin:
        target = Target("127.0.0.1", port, ssl.create_default_context(cafile=str(certificate)))
        connection = opened_to(target)
        assert connection.tls is not None
        got = list[bytes | None]()
        for line in (b"before\n", command, b"after\n"):
            server.stdin.write(line)
            server.stdin.flush()
            # lines that come together are one to it, and no command
            wait_read(connection.fd, timeout=10)
            if line != command:
                got.append(connection.receive())
        assert got == [b"before\n", b"after\n"]
        assert (connection.tls.closed, connection.tls.reusable) == (False, True)
        connection.close()
