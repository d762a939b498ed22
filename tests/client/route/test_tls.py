"""The TLS layer: what the native part opens is what Python's ssl opens, however it was split, damaged or ended."""

import itertools
import os
import socket
import ssl
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from gevent.socket import wait_read
from hypothesis import given
from hypothesis import strategies as st
from support.tls_pair import pair

from locust_llm.client import native
from locust_llm.client.connection import ConnectFailed, Connection, Target
from locust_llm.client.native import key_log
from locust_llm.client.route import tls as layer

SUITES: Final = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")

needs_native = pytest.mark.skipif(native.Opener is None, reason="the native part was not compiled")


def opened_to(target: Target) -> Connection:
    """As soon as somebody listens."""
    for _ in range(1000):
        with suppress(ConnectFailed):
            return Connection(target)
        time.sleep(0.01)
    raise AssertionError("nobody listens")


def by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that are made from now on are read by Python's ssl."""
    monkeypatch.setattr(layer, "opener", lambda *_: None)


@pytest.fixture(params=["native", "python"])
def opened_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "python":
        by_python(monkeypatch)
    elif native.Opener is None:
        pytest.skip("the native part was not compiled")
    return str(request.param)


def test_what_was_written_comes_out(opened_by: str, certificate: Path) -> None:
    both = pair(certificate)
    assert (both.client.opener is not None) == (opened_by == "native")
    assert both.client.received(both.says(b"one", b"two")) == b"onetwo"
    assert both.client.received(both.says(b"x" * 40_000)) == b"x" * 40_000
    assert (both.client.closed, both.client.failure) == (False, "")


def test_a_record_that_is_not_all_there_waits(opened_by: str, certificate: Path) -> None:
    both = pair(certificate)
    data = both.says(b"first") + both.says(b"second")
    got = [both.client.received(data[i : i + 1]) for i in range(len(data))]
    assert [piece for piece in got if piece] == [b"first", b"second"]


def test_close_notify_ends_it(opened_by: str, certificate: Path) -> None:
    both = pair(certificate)
    data = both.says(b"last")
    assert both.client.received(data + both.closes()) == b"last"
    assert (both.client.closed, both.client.failure) == (True, "")


def test_what_came_before_a_broken_record_is_kept(opened_by: str, certificate: Path) -> None:
    both = pair(certificate)
    good, bad = both.says(b"good"), bytearray(both.says(b"bad"))
    bad[-1] ^= 1
    assert both.client.received(good + bytes(bad)) == b"good"
    assert both.client.failure
    assert both.client.received(both.says(b"more")) == b""


def test_the_servers_alert_is_named(opened_by: str, certificate: Path) -> None:
    """It asks for a certificate that the client has not: by TLS 1.3 it says so after the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificate)
    both = pair(certificate, context)
    assert both.client.received(both.to_client.read()) == b""
    assert "certificate required" in both.client.failure.lower().replace("_", " ")


def test_tls_1_2_is_opened_by_python(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    both = pair(certificate, context)
    assert both.client.opener is None
    assert both.client.received(both.says(b"plain")) == b"plain"


# -- of the native part alone ----------------------------------------------------------------------------------------------

# RFC 8448, 3: a TLS 1.3 handshake with all of its values
SECRET_8448: Final = bytes.fromhex("a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643")
TICKET_8448: Final = bytes.fromhex(
    "17030300de3a6b8f90414a97d6959c3487680de5134a2b240e6cffac116e95d41d6af8f6b580dcf3d11d63c758db289a015940252f5571"
    "3e061dc13e078891a38efbcf5753ad8ef170ad3c7353d16d9da773b9ca7f2b9fa1b6c0d4a3d03f75e09c30ba1e62972ac46f75f7b981be"
    "63439b2999ce13064615139891d5e4c5b406f16e3fc181a77ca475840025db2f0a77f81b5ab05b94c01346755f69232c86519d86cbeeac"
    "87aac347d143f9605d64f650db4d023e70e952ca49fe5137121c74bc2697687e248746d6df353005f3bce18696129c8153556b3b6c6779"
    "b37bf15985684f"
)
ANSWER_8448: Final = bytes.fromhex(
    "17030300432e937e11ef4ac740e538ad36005fc4a46932fc3225d05f82aa1b36e30efaf97d90e6dffc602dcb501a59a8fcc49c4bf2e5f0a2"
    "1c0047c2abf332540dd032e167c2955d"
)


@needs_native
def test_the_records_of_rfc_8448_are_opened() -> None:
    """A ticket, then 50 bytes."""
    assert native.Opener is not None
    opener = native.Opener("TLS_AES_128_GCM_SHA256", SECRET_8448)
    assert opener.received(TICKET_8448) == b""
    assert opener.received(ANSWER_8448) == bytes(range(50))
    assert (opener.closed, opener.failure) == (False, 0)


@needs_native
def test_other_suites_and_secrets_are_refused() -> None:
    assert native.Opener is not None
    with pytest.raises(ValueError, match="no cipher suite TLS_AES_128_CCM_SHA256"):
        native.Opener("TLS_AES_128_CCM_SHA256", bytes(32))
    with pytest.raises(ValueError, match="with a secret of 31 bytes"):
        native.Opener(SUITES[0], bytes(31))


@needs_native
def test_the_log_is_emptied_and_a_key_log_of_the_environment_is_left_alone(certificate: Path, tmp_path: Path) -> None:
    assert pair(certificate).client.opener is not None
    assert key_log._log is not None
    assert os.fstat(key_log._log[1]).st_size == 0
    context = ssl.create_default_context(cafile=str(certificate))
    context.keylog_filename = str(tmp_path / "keys")
    key_log.log_secrets(context)
    assert context.keylog_filename == str(tmp_path / "keys")


@needs_native
def test_a_handshake_that_fails_leaves_no_secret(certificate: Path) -> None:
    """The server's certificate is one of a stranger, which shows when the secrets of the handshake are there."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def serve() -> None:
        with suppress(OSError):
            context.wrap_socket(listener.accept()[0], server_side=True)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(ConnectFailed, match="certificate verify failed"):
            Connection(Target("localhost", listener.getsockname()[1], ssl.create_default_context()))
    assert key_log._log is not None
    assert os.fstat(key_log._log[1]).st_size == 0


@needs_native
def test_each_process_has_a_log_of_its_own(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked child has the contexts of its parent."""
    context = ssl.create_default_context(cafile=str(certificate))
    key_log.log_secrets(context)
    first = context.keylog_filename
    monkeypatch.setattr(os, "getpid", lambda: -1)
    monkeypatch.setattr(key_log, "_log", key_log._log)
    key_log.log_secrets(context)
    assert context.keylog_filename != first


@needs_native
@given(
    pieces=st.lists(st.binary(max_size=300), min_size=1, max_size=8), cuts=st.lists(st.integers(0, 3000), max_size=6),
    damage=st.none() | st.tuples(st.integers(0, 3000), st.integers(1, 255)), ends=st.booleans(),
)  # fmt: skip
def test_both_make_the_same_of_any_bytes(
    certificate: Path, pieces: list[bytes], cuts: list[int], damage: tuple[int, int] | None, ends: bool
) -> None:
    """Records, tickets of the handshake before them, split anywhere, a byte changed, closed or not."""
    both = pair(certificate)
    assert both.client.opener is not None
    data = bytearray(both.says(*pieces))
    if ends:
        data += both.closes()
    if damage is not None and damage[0] < len(data):
        data[damage[0]] ^= damage[1]
    bounds = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    reads = [bytes(data[a:b]) for a, b in itertools.pairwise(bounds)]
    got = [both.client.received(read) for read in reads]
    said = both.client.closed, bool(both.client.failure)
    both.client.opener = None  # the same connection, which Python's ssl has not read from yet
    assert got == [both.client.received(read) for read in reads]
    assert said == (both.client.closed, bool(both.client.failure))


@needs_native
@pytest.mark.parametrize(("command", "reusable"), [(b"k\n", True), (b"K\n", False)])
def test_a_new_key_of_the_server_is_used(certificate: Path, command: bytes, reusable: bool) -> None:
    """``k`` lets openssl's server take one; ``K`` asks for one of ours too, which nobody makes: no next request is sent."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["-tls1_3", "-accept", f"127.0.0.1:{port}", "-cert", str(certificate), "-naccept", "1"]
    server = subprocess.Popen(["openssl", "s_server", *options], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert server.stdin is not None
    with server, server.stdin:
        target = Target("127.0.0.1", port, ssl.create_default_context(cafile=str(certificate)))
        connection = opened_to(target)
        assert connection.tls is not None
        got = list[bytes | None]()
        for line in (b"before\n", command, b"after\n"):
            server.stdin.write(line)
            server.stdin.flush()
            wait_read(connection.fd, timeout=10)  # lines that come together are one to it, and no command
            if line != command:
                got.append(connection.receive())
        assert got == [b"before\n", b"after\n"]
        assert (connection.tls.closed, connection.tls.reusable) == (False, reusable)
        connection.close()
