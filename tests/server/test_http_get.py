"""HTTP GET: whatever a server sends, a whole answer or one sentence, in bounded time and of bounded
size."""

import gzip
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.hostile_server import ENDLESS, Hostile, answer, hostile, slowly
from support.loop_watch import HELD_S, OwnTime, loop_watched
from support.tiny_server import tiny_server

from locust_llm.client.request_exchange import UserConnection
from locust_llm.client.tls_settings import CLIENT_CERT, CLIENT_KEY
from locust_llm.server.discovery import _Models
from locust_llm.server.http_get import FetchedResponse, FetchFailed, decode_response, fetch
from locust_llm.server.tokenizer_calibration import _Tokens

MOST = 1 << 20


@pytest.fixture(scope="module")
def server() -> Iterator[Hostile]:
    with hostile() as made:
        yield made


def ask(server: Hostile, sends: Iterable[bytes], timeout_s: float = 0.4) -> FetchedResponse:
    server.paths["/"] = lambda asked: sends
    return fetch("GET", server.url + "/", {}, timeout_s=timeout_s, max_bytes=MOST)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.parametrize("over_tls", [False, pytest.param(True, marks=pytest.mark.full)])
def test_what_never_ends_ends_and_the_loop_goes_on(
    name: str, over_tls: bool, certificate: Path
) -> None:
    pieces, outcomes = ENDLESS[name]
    with hostile(certificate if over_tls else None) as server:
        server.paths["/"] = lambda asked: pieces()
        watch = OwnTime()
        with loop_watched() as held, pytest.raises(FetchFailed) as failed:
            fetch(
                "GET", server.url + "/", {}, timeout_s=0.4, max_bytes=MOST, verify=str(certificate)
            )
        assert failed.value.outcome in outcomes.split("|")
        assert "\n" not in str(failed.value)
        assert watch.seconds < 2
        assert max(held) < HELD_S
        assert server.sent_bytes < MOST + (8 << 20)  # with what lies in the buffers of the kernel


WHOLE = {
    "a length": [answer(b"abc", Server="s")],
    "a byte at a time": list(slowly(answer(b"abc", Server="s"), 0)),
    "chunks": [answer(b"1\r\na\r\n2;x=y\r\nbc\r\n0\r\nX: y\r\n\r\n", Transfer_Encoding="chunked",
        Server="s")],
    "until it closes": [b"HTTP/1.1 200 OK\r\nServer: s\r\n\r\nab", b"c"],
    "behind interim answers": [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 OK\r\nX: y\r\n\r\n",
        answer(b"abc", Server="s")],
    "with something behind it": [answer(b"abc", Server="s") + b"HTTP/1.1 200 OK\r\n\r\n"],
}  # fmt: skip


@pytest.mark.parametrize("pieces", WHOLE.values(), ids=WHOLE)
def test_a_whole_answer_however_it_comes(server: Hostile, pieces: list[bytes]) -> None:
    assert ask(server, pieces, 5.0) == FetchedResponse(200, "s", b"abc")


def test_a_connection_is_kept_and_one_that_the_server_closes_is_opened_anew() -> None:
    with tiny_server() as server:
        line = UserConnection()
        first = fetch("GET", server.url + "/v1/models", {}, line=line, timeout_s=5.0)
        kept = line.connection
        assert kept is not None
        assert fetch("GET", server.url + "/v1/models", {}, line=line, timeout_s=5.0) == first
        assert (line.connection, kept.used) == (kept, 2)
        line.close()


def test_a_kept_connection_that_is_closed_when_the_question_comes_is_no_failure() -> None:
    """As servers do whose time for an idle connection is over at that moment."""
    kept = answer(b"abc").replace(b"Connection: close\r\n", b"")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answers in ([kept, b""], [kept]):
                client, _ = listener.accept()
                for data in answers:
                    while not client.recv(65_536).endswith(b"\r\n\r\n"):
                        pass
                    client.sendall(data)
                client.close()

        threading.Thread(target=serve, daemon=True).start()
        line, url = UserConnection(), f"http://127.0.0.1:{listener.getsockname()[1]}/"
        assert [fetch("GET", url, {}, line=line, timeout_s=5.0).body for _ in range(2)] == [
            b"abc",
            b"abc",
        ]
        with pytest.raises(FetchFailed):  # it is tried once more, not again and again
            fetch("GET", url, {}, line=line, timeout_s=0.3)


def test_redirects_are_not_followed_and_statuses_are_no_failures(server: Hostile) -> None:
    with hostile() as other:
        assert ask(server, [answer(b"", 307, Location=other.url)]).status == 307
        assert other.asked == []
    assert ask(server, [answer(b"no", 500)]) == FetchedResponse(500, "", b"no")


def test_a_coding_that_changes_no_byte_is_none_and_a_compressed_error_is_read(
    server: Hostile,
) -> None:
    assert ask(server, [answer(b"abc", Content_Encoding="none")]).body == b"abc"
    assert ask(server, [answer(gzip.compress(b"no"), 500, Content_Encoding="gzip")]).body == b"no"
    with pytest.raises(FetchFailed, match="Content-Encoding gzip"):
        ask(server, [answer(gzip.compress(b"yes"), Content_Encoding="gzip")])


def test_a_body_goes_with_its_length_and_the_headers_that_were_given(server: Hostile) -> None:
    server.whole("/post", b"yes")
    said = fetch("POST", server.url + "/post", {"X-Key": "k"}, b'{"a": 1}', timeout_s=5.0)
    path, headers, _ = server.asked[-1]
    assert (said.body, path, headers["content-length"], headers["x-key"]) == (
        b"yes",
        "/post",
        "8",
        "k",
    )
    assert (headers["x-locust-llm-probe"], headers["accept-encoding"]) == ("1", "identity")


@pytest.mark.parametrize(("url", "outcome"), [
    ("ftp://localhost", "no_url"), ("http://localhost:99999", "no_url"), ("http://", "no_url"),
    ("localhost", "no_url"),
    ("http://a b", "no_url"), ("http://no-such-host.invalid", "dns"),
    ("http://127.0.0.1:9", "refused"),
])  # fmt: skip
def test_where_nobody_can_be_asked(url: str, outcome: str) -> None:
    with pytest.raises(FetchFailed) as failed:
        fetch("GET", url, {}, timeout_s=5.0)
    assert failed.value.outcome == outcome
    assert "127.0.0.1:9" not in str(failed.value)


def test_certificates_are_verified_by_those_of_a_file_or_not_at_all(
    certificate: Path, tmp_path: Path
) -> None:
    with tiny_server(started=False) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.start()
        server.socket = context.wrap_socket(server.socket, server_side=True)
        url = server.url.replace("http:", "https:") + "/v1/models"
        for verify, outcome in (
            (True, "tls"),
            (str(certificate), ""),
            (False, ""),
            (str(tmp_path / "none.pem"), "tls"),
        ):
            try:
                assert fetch("GET", url, {}, verify=verify, timeout_s=5.0).status == 200
                found = ""
            except FetchFailed as error:
                found = error.outcome
            assert found == outcome


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["data", "id", "count", "x"]), inner)
    ),
    max_leaves=10,
)


@examples(200)
@given(
    JSON.map(lambda content: __import__("json").dumps(content).encode()) | st.binary(max_size=100)
)
def test_no_json_and_no_bytes_raise(body: bytes) -> None:
    tokens, models = decode_response(body, _Tokens), decode_response(body, _Models)
    assert tokens is None or type(tokens.known) is int
    assert models is None or all(type(model.id) is str for model in models.data)


def test_a_server_that_asks_for_a_certificate(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the environment, as the flags put it there; without one TLS fails, by the server's
    alert."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificate))
    context.load_cert_chain(certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    seen: list[Any] = []

    def serve(listener: socket.socket) -> None:
        for _ in range(2):
            sock = context.wrap_socket(
                listener.accept()[0], server_side=True, do_handshake_on_connect=False
            )
            try:
                sock.do_handshake()
            except ssl.SSLError:  # the alert is out; to close with bytes unread would be a reset, which may overtake it
                with socket.socket(fileno=sock.detach()) as plain:
                    while plain.recv(4096):
                        pass
                continue
            with sock:
                seen.append(sock.getpeercert())
                sock.recv(4096)
                sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        ask = partial(
            fetch,
            "GET",
            f"https://127.0.0.1:{listener.getsockname()[1]}/x",
            {},
            verify=str(certificate),
            timeout_s=5.0,
        )
        with pytest.raises(FetchFailed, match=r"(?i)certificate.required") as caught:
            ask()
        assert caught.value.outcome == "tls"
        monkeypatch.setenv(CLIENT_CERT, str(certificate))
        monkeypatch.setenv(CLIENT_KEY, str(certificate.with_name("key.pem")))
        assert ask().body == b"ok"
        thread.join(5)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("body", "whole"), [(b'{"a": 1}', True), (b"vllm:num_requests_running 3\nvllm:num", False)]
)
def test_an_answer_that_only_the_end_of_a_tls_connection_ends(
    body: bytes, whole: bool, certificate: Path
) -> None:
    """Without a close_notify, as anybody on the way could end it: it must show itself that it is
    whole."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    def serve() -> None:
        with context.wrap_socket(listener.accept()[0], server_side=True) as sock:
            sock.recv(4096)
            sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + body)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        ask = partial(
            fetch,
            "GET",
            f"https://127.0.0.1:{listener.getsockname()[1]}/",
            {},
            verify=str(certificate),
            timeout_s=5.0,
        )
        if whole:
            assert ask().body == body
        else:
            with pytest.raises(FetchFailed) as failed:
                ask()
            assert failed.value.outcome == "closed"


def test_of_a_stream_the_first_event_may_be_enough() -> None:
    """The connection is closed behind it: many a server would compute to the end of the answer."""
    top = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    event = b"data: {}\r\n\r\n"

    def stream(asked: object) -> Iterator[bytes]:
        yield top
        yield from slowly(event, 0.001)
        for _ in range(1_000):
            time.sleep(0.01)
            yield event

    with hostile() as server:
        server.paths["/"] = stream
        line = UserConnection()
        watch = OwnTime()
        found = fetch("GET", server.url + "/", {}, line=line, timeout_s=8, begun=True)
        assert watch.seconds < 5
        assert found.body.startswith(event)
        assert line.connection is None
        server.paths["/"] = lambda asked: [answer(b"data: {}\n\nmore", 400)]
        assert fetch("GET", server.url + "/", {}, timeout_s=5, begun=True) == FetchedResponse(
            400, "", b"data: {}\n\nmore"
        )
        server.paths["/"] = lambda asked: [answer(b'{"whole": 1}')]
        assert fetch("GET", server.url + "/", {}, timeout_s=5, begun=True).body == b'{"whole": 1}'
