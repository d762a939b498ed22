"""A TLS peer that sends records without data: it holds the event loop for no more than 50 ms and
outlasts no deadline."""

import random
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast
from urllib.parse import urlsplit

import gevent
import pytest
from support import hostile
from support.loop_watch import HELD_S, OwnTime, garbage_frozen, loop_watched
from support.tls_flood import (
    WITHOUT_DATA,
    WITHOUT_DATA_12,
    Sealer,
    Sealer12,
    context_of,
    flooding,
    sealer_12,
    secret_of,
)
from support.tls_pair import pair

from locust_llm.client.connection import ConnectFailed, Connection, Target
from locust_llm.client.reader import native_reader, reader_choice
from locust_llm.client.reader.python_reader import PythonReader
from locust_llm.client.request_bytes import Request
from locust_llm.client.request_exchange import UserConnection, exchange_request
from locust_llm.client.tls_layer import (
    ENDLESS,
    MAX_WITHOUT_DATA,
    RECORD_BYTES,
    RETRY,
    SLICE_BYTES,
    ServerHello,
    TLSLayer,
)
from locust_llm.gate.gate import Gate
from locust_llm.server.http_get import FetchFailed, fetch

DEADLINE_S = 0.5


TLS12: Final = ssl.TLSVersion.TLSv1_2
TLS13: Final = ssl.TLSVersion.TLSv1_3
KINDS: Final = {TLS12: WITHOUT_DATA_12, TLS13: WITHOUT_DATA}


def sealed_pair(
    certificate: Path, log: Path, version: ssl.TLSVersion = TLS13
) -> tuple[TLSLayer, Sealer | Sealer12]:
    """A client after its handshake, and what seals as its server."""
    client = TLSLayer(ssl.create_default_context(cafile=str(certificate)), "localhost")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context_of(str(certificate), str(log), version).wrap_bio(
        to_server, to_client, server_side=True
    )
    data = hello = b""
    while not client.established:
        to_server.write(client.handshake(data))
        with suppress(ssl.SSLWantReadError):
            server.do_handshake()
        data = to_client.read()
        hello = hello or data
    cipher = server.cipher()
    assert cipher is not None
    if version == TLS12:
        return client, sealer_12(str(log), hello, cipher[0])
    return client, Sealer(secret_of(str(log)), cipher[0])


@pytest.mark.parametrize("version", KINDS)
def test_what_is_sealed_here_is_what_a_server_seals(
    version: ssl.TLSVersion, certificate: Path, tmp_path: Path
) -> None:
    client, sealer = sealed_pair(certificate, tmp_path / "log", version)
    assert client.decrypt(sealer.record(23, b"x")) == b"x"


@pytest.mark.parametrize(
    ("version", "name"), [(version, name) for version, names in KINDS.items() for name in names]
)
def test_records_without_data_end_the_connection(
    version: ssl.TLSVersion, name: str, certificate: Path, tmp_path: Path
) -> None:
    """Each slice in 50 ms of the processor, and all of them before a quarter of a megabyte and two
    records have come."""
    client, sealer = sealed_pair(certificate, tmp_path / "log", version)
    came, longest = 0, 0.0
    while not client.failure:
        batch = bytearray()
        while len(batch) < SLICE_BYTES:
            batch += KINDS[version][name](sealer)
        with garbage_frozen():
            for at in range(0, len(batch), SLICE_BYTES):
                began = time.thread_time()
                assert client.decrypt(bytes(batch[at : at + SLICE_BYTES])) == b""
                longest = max(longest, time.thread_time() - began)
        came += len(batch)
        assert came <= MAX_WITHOUT_DATA + 2 * RECORD_BYTES
    assert longest < HELD_S


def test_data_in_between_is_no_flood(certificate: Path, tmp_path: Path) -> None:
    client, sealer = sealed_pair(certificate, tmp_path / "log")
    for _ in range(20):
        assert client.decrypt(b"".join(WITHOUT_DATA["padded"](sealer) for _ in range(10))) == b""
        assert client.decrypt(sealer.record(23, b"x")) == b"x"
    assert client.failure == ""


@pytest.fixture(scope="module")
def flood_url(certificate: Path) -> Iterator[str]:
    with flooding(certificate) as url:
        yield url


@pytest.fixture(scope="module")
def flood_url_12(certificate: Path) -> Iterator[str]:
    with flooding(certificate, "tls 1.2") as url:
        yield url


SEEDS = [str(random.Random(n).randrange(1 << 30)) for n in range(12)]
"""Odd ones and even ones: see ``flood``."""
FLOODS = [*WITHOUT_DATA, *(f"late_{name}" for name in WITHOUT_DATA), *SEEDS]
FEW = ["empty", "tickets", "late_asked_keys", SEEDS[0], SEEDS[1]]
AT_LENGTH = [pytest.param(name, marks=[] if name in FEW else pytest.mark.full) for name in FLOODS]
FLOODS_12 = [*WITHOUT_DATA_12, *(f"late_{name}" for name in WITHOUT_DATA_12)]
AT_LENGTH_12 = [
    pytest.param(name, marks=[] if "any_ren" in name else pytest.mark.full) for name in FLOODS_12
]


@pytest.mark.parametrize("name", AT_LENGTH)
def test_a_question_ends_in_time_and_the_loop_goes_on(
    name: str, flood_url: str, certificate: Path
) -> None:
    """Discovery, the check and the metrics ask by ``fetch``."""
    watch = OwnTime()
    with loop_watched() as held, pytest.raises(FetchFailed) as failed:
        fetch("GET", f"{flood_url}/{name}", {}, verify=str(certificate), timeout_s=DEADLINE_S)
    assert failed.value.outcome in ("tls", "timeout", "too_large")
    assert watch.seconds < DEADLINE_S + 1
    assert max(held) < HELD_S


@pytest.mark.parametrize("name", AT_LENGTH)
@pytest.mark.parametrize("kind", [PythonReader, native_reader.Reader])
def test_a_request_of_the_load_ends_in_time_and_the_loop_goes_on(
    name: str, kind: Any, flood_url: str, certificate: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(reader_choice, "kind", kind)
    monkeypatch.setattr(reader_choice, "_reader", None)
    flooded(name, flood_url, certificate)
    reader_choice.get_open_streams().stop()


@pytest.mark.parametrize("name", AT_LENGTH_12)
def test_the_same_by_tls_1_2(name: str, flood_url_12: str, certificate: Path) -> None:
    flooded(name, flood_url_12, certificate)
    watch = OwnTime()
    with loop_watched() as held, pytest.raises(FetchFailed):
        fetch("GET", f"{flood_url_12}/{name}", {}, verify=str(certificate), timeout_s=DEADLINE_S)
    assert watch.seconds < DEADLINE_S + 1
    assert max(held) < HELD_S


def test_twenty_deadlines_in_one_turn_do_not_hold_the_loop(
    flood_url: str, certificate: Path
) -> None:
    flooded("tickets", flood_url, certificate, requests=20)


def flooded(name: str, flood_url: str, certificate: Path, requests: int = 1) -> None:
    """Requests of the load: their deadlines hold, and the loop goes on."""
    place = urlsplit(flood_url)
    target = Target(
        "127.0.0.1", place.port or 0, ssl.create_default_context(cafile=str(certificate))
    )
    wire = f"POST /{name} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode()
    request = Request(
        target=target, data=wire, labels={"id": "1", "name": "flood"}, timeout_s=DEADLINE_S
    )
    lines = [UserConnection() for _ in range(requests)]
    watch = OwnTime()
    with loop_watched() as held:
        sending = [gevent.spawn(exchange_request, line, Gate(), request, 0.0) for line in lines]
        records = [one.get() for one in sending]
    for line in lines:
        line.close()
    outcomes = {record.outcome for record in records}
    assert outcomes <= {"tls", "timeout", "too_large", "malformed"}
    assert watch.seconds < DEADLINE_S + 1
    assert max(held) < HELD_S


def test_a_handshake_ends_in_time_and_the_loop_goes_on(certificate: Path) -> None:
    """Behind its first record the server changes to the cipher, again and again."""
    with flooding(certificate, "handshake") as url:
        target = Target(
            "127.0.0.1",
            urlsplit(url).port or 0,
            ssl.create_default_context(cafile=str(certificate)),
        )
        watch = OwnTime()
        with loop_watched() as held, pytest.raises(ConnectFailed) as failed:
            Connection(target, timeout=DEADLINE_S)
    assert failed.value.outcome in ("tls", "connect_timeout", "reset")
    assert watch.seconds < DEADLINE_S + 1
    assert max(held) < HELD_S


def test_the_reason_is_one_sentence(flood_url: str, certificate: Path) -> None:
    with pytest.raises(FetchFailed, match=ENDLESS) as failed:
        fetch("GET", f"{flood_url}/tickets", {}, verify=str(certificate), timeout_s=20.0)
    assert failed.value.outcome == "tls"


def test_a_deadline_holds_whatever_lies_in_the_socket_and_whatever_tls_makes_of_it() -> None:
    """There always is more to read, and never any data."""
    connection = object.__new__(Connection)
    connection.tls = cast(Any, SimpleNamespace(decrypt=lambda data: b"", failure="", closed=False))
    connection._socket = SimpleNamespace(recv=lambda size: b"x" * size)
    with loop_watched() as held, pytest.raises(gevent.Timeout), gevent.Timeout(0.1):
        connection.receive()
    assert max(held) < HELD_S


SLOW_KEYS = {
    "-groups ffdhe8192": "key of 8,192 bits",
    "-groups ffdhe6144": "key of 6,144 bits",
    "-tls1_2 -cipher DHE-RSA-AES256-GCM-SHA384": "handshake failure",
}


@pytest.mark.parametrize("words", SLOW_KEYS)
def test_no_server_chooses_a_key_that_takes_long(words: str, certificate: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = (
        f"openssl s_server -accept 127.0.0.1:{port} -cert {certificate} -www -naccept 1 {words}"
    ).split()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as server:
        assert server.stdout is not None
        while b"ACCEPT" not in server.stdout.readline():
            assert server.poll() is None
        with loop_watched() as held, pytest.raises(FetchFailed, match=SLOW_KEYS[words]) as failed:
            fetch("GET", f"https://127.0.0.1:{port}/", {}, verify=str(certificate), timeout_s=20.0)
        server.kill()
    assert failed.value.outcome == "tls"
    assert max(held) < HELD_S


def record(content: bytes, kind: int = 22) -> bytes:
    return bytes([kind, 3, 3]) + len(content).to_bytes(2, "big") + content


def retry(group: int, cookie: int = 0) -> bytes:
    """A HelloRetryRequest of RFC 8446, 4.1.4."""
    extensions = (
        b"\0\x2c" + (cookie + 2).to_bytes(2, "big") + cookie.to_bytes(2, "big") + bytes(cookie)
    )
    extensions += b"\0\x33\0\2" + group.to_bytes(2, "big")
    body = b"\3\3" + RETRY + b"\0\x13\1\0" + len(extensions).to_bytes(2, "big") + extensions
    return b"\2" + len(body).to_bytes(3, "big") + body


@pytest.mark.parametrize(
    ("group", "bits"), [(0x1D, 0), (0x100, 0), (0x102, 0), (0x103, 6144), (0x104, 8192)]
)
@pytest.mark.parametrize("size", [1, 7, 300, 16_384])
@pytest.mark.parametrize("cookie", [0, 9_000])
def test_a_greeting_is_read_however_it_is_cut(
    group: int, bits: int, size: int, cookie: int
) -> None:
    message = retry(group, cookie)
    sent = record(b"\1", 20) + b"".join(
        record(message[at : at + size]) for at in range(0, len(message), size)
    )
    greeting = ServerHello()
    for at in range(0, len(sent), size):
        assert greeting.slow_key == 0
        greeting.add(sent[at : at + size])
    assert greeting.slow_key == bits


def test_the_end_of_tls_is_the_end_though_it_comes_with_the_last_data(certificate: Path) -> None:
    """Here the peer keeps the TCP connection, so that no more would ever come."""
    both = pair(certificate)
    came = iter([both.to_client.read() + both.says(b"all") + both.closes()])
    connection = object.__new__(Connection)
    connection.tls = both.client
    connection._socket = SimpleNamespace(recv=lambda size: next(came))
    assert connection.receive() == b"all"
    assert connection.receive() is None


LONGEST = ["broken JSON", "errors", "an event"]


@pytest.fixture(scope="module")
def hostile_port(certificate: Path) -> Iterator[int]:
    command = [sys.executable, hostile.__file__, "", str(certificate)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[] if name in LONGEST else pytest.mark.full)
    for name in hostile.CATALOGUE if not hostile.CATALOGUE[name].pause_s
])  # fmt: skip
def test_data_that_is_hostile_does_not_hold_the_loop_either(
    name: str, hostile_port: int, certificate: Path
) -> None:
    target = Target("127.0.0.1", hostile_port, ssl.create_default_context(cafile=str(certificate)))
    wire = f"POST / HTTP/1.1\r\nHost: x\r\nX-Hostile: {name}\r\nContent-Length: 0\r\n\r\n".encode()
    request = Request(
        target=target, data=wire, labels={"id": "1", "name": name}, timeout_s=DEADLINE_S,
        gap_timeout_s=DEADLINE_S,
        max_chunks=5_000,
    )  # fmt: skip
    line = UserConnection()
    with loop_watched() as held:
        record = exchange_request(line, Gate(), request, 0.0)
    line.close()
    assert record.closed_at - (record.sent_at or 0.0) < DEADLINE_S + 1
    assert max(held) < 2 * HELD_S  # 200 kB that come at once are decoded at once
