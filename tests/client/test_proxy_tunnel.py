"""Proxies: which one it is, what becomes of its answers, and the tunnel through it; its login is
never shown."""

import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.hostile_server import ENDLESS, hostile
from support.loop_watch import HELD_S, OwnTime, loop_watched
from support.scripted import Scripted, stream

from locust_llm.client.connection import ConnectFailed, Connection, Target
from locust_llm.client.proxy_choice import find_proxy
from locust_llm.client.proxy_tunnel import MAX_REPLY_BYTES, Proxy, ProxyFailed
from locust_llm.client.request_exchange import UserConnection, exchange_request
from locust_llm.client.requests_bridge import make_target
from locust_llm.gate.gate import Gate
from locust_llm.records.outcomes import FAILURES
from locust_llm.server.http_get import FetchFailed, fetch

PASSWORD = "love:lace/1815"
LOGIN = "http://ada:love%3Alace%2F1815@127.0.0.1"
BASIC = b64encode(f"ada:{PASSWORD}".encode()).decode()
NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def _no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    find_proxy.cache_clear()
    yield
    find_proxy.cache_clear()


# -- which one -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "url", "name"),
    [
        ({"HTTPS_PROXY": "http://p:3128"}, "https://x", "p:3128"),
        ({"HTTPS_PROXY": "http://p:3128"}, "http://x", ""),  # each scheme has its own
        ({"HTTPS_PROXY": "p"}, "https://x", "p:80"),
        ({"HTTPS_PROXY": "http://big:1", "https_proxy": "http://small:2"}, "https://x", "small:2"),
        ({"HTTP_PROXY": "http://p:1", "ALL_PROXY": "http://all:2"}, "https://x", "all:2"),
        ({"HTTP_PROXY": "http://p:1", "ALL_PROXY": "http://all:2"}, "http://x", "p:1"),
        (
            {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "other, .corp.test"},
            "https://llm.corp.test:8443/v1",
            "",
        ),
        (
            {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "other,.corp.test"},
            "https://corp.example",
            "p:1",
        ),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8"}, "https://10.1.2.3", ""),
        ({"HTTPS_PROXY": "http://p:1", "no_proxy": "*"}, "https://x", ""),
        # its localhost is another one
        ({"HTTPS_PROXY": "http://p:1"}, "https://localhost:8000", ""),
        ({"HTTP_PROXY": "http://p:1"}, "http://127.0.0.1:8000", ""),
        ({"HTTP_PROXY": "http://p:1"}, "http://[::1]:8000", ""),
        ({"HTTPS_PROXY": f"{LOGIN}:3128"}, "https://x", "127.0.0.1:3128"),
        ({"HTTPS_PROXY": "http://[fd00::1]:3128"}, "https://x", "[fd00::1]:3128"),
        ({"HTTPS_PROXY": " "}, "https://x", ""),
    ],
)
def test_which_proxy_the_environment_names(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], url: str, name: str
) -> None:
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    found = make_target(url, False, None).proxy
    assert ("" if found is None else found.name) == name
    assert PASSWORD not in repr(found)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("socks5://p:1080", "p:1080 is a proxy for socks5, but only http:// is supported"),
        ("https://p", "p:80 is a proxy for https, but only http:// is supported"),
        ("http://p:port", "its URL in the environment is not valid"),
        ("http://:3128", "its URL in the environment has no host"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_a_failure_of_its_own(
    monkeypatch: pytest.MonkeyPatch, url: str, why: str
) -> None:
    monkeypatch.setenv("HTTP_PROXY", url)
    with pytest.raises(FetchFailed, match=why) as caught:
        fetch("GET", "http://llm.test/v1/models", {}, timeout_s=5.0)
    assert caught.value.outcome == "proxy"


# -- what it answers -------------------------------------------------------------------------------

PLAIN = Proxy("p", 3128)
WITH_LOGIN = Proxy("p", 3128, f"ada:{PASSWORD}")
REASONS = st.text(st.characters(codec="latin-1", exclude_characters="\r\n"), max_size=40)


def test_what_is_asked_for() -> None:
    assert (
        PLAIN.connect("llm.test", 443)
        == b"CONNECT llm.test:443 HTTP/1.1\r\nHost: llm.test:443\r\n\r\n"
    )
    asked = WITH_LOGIN.connect("fd00::1", 8000)
    assert asked.startswith(b"CONNECT [fd00::1]:8000 HTTP/1.1\r\nHost: [fd00::1]:8000\r\n")
    assert asked.endswith(f"\r\nProxy-Authorization: Basic {BASIC}\r\n\r\n".encode())


@given(
    interim=st.booleans(),
    status=st.integers(200, 299),
    reason=REASONS,
    lines=st.lists(st.from_regex(r"[A-Za-z-]{1,12}: [ -~]{0,30}", fullmatch=True), max_size=4),
    end=st.sampled_from(["\r\n", "\n"]),
)
def test_a_tunnel_is_open_at_the_last_byte_of_the_head_and_no_sooner(
    interim: bool, status: int, reason: str, lines: list[str], end: str
) -> None:
    head = end.join([f"HTTP/1.1 {status} {reason}", *lines, "", ""]).encode("latin-1")
    reply = (b"HTTP/1.1 100 Continue\r\n\r\n" if interim else b"") + head
    assert [size for size in range(len(reply) + 1) if PLAIN.opened(reply[:size])] == [len(reply)]
    with pytest.raises(ProxyFailed, match="its own bytes into the tunnel"):
        PLAIN.opened(reply + b"x")


@given(
    st.one_of(
        st.binary(max_size=200), st.binary(max_size=100).map(lambda tail: b"HTTP/1.1 " + tail)
    )
)
def test_whatever_it_sends_opens_a_tunnel_fails_or_is_not_all(data: bytes) -> None:
    found, said = False, ""
    try:
        found = PLAIN.opened(data)
    except ProxyFailed as failed:
        said = str(failed)
    assert said.isprintable()
    assert said or data.startswith(b"HTTP/1."[: len(data)])
    assert not found or data.endswith((b"\n\n", b"\n\r\n"))


@given(
    st.integers(300, 599),
    st.sampled_from([PASSWORD, BASIC, f"Basic {BASIC}", f"ada:{PASSWORD}"]),
    REASONS,
)
def test_no_refusal_shows_the_login(status: int, quoted: str, reason: str) -> None:
    with pytest.raises(ProxyFailed) as caught:
        WITH_LOGIN.opened(f"HTTP/1.1 {status} {quoted} {reason}\r\n\r\n".encode("latin-1"))
    assert PASSWORD not in str(caught.value)
    assert BASIC not in str(caught.value)


@pytest.mark.parametrize(
    ("proxy", "reply", "said"),
    [
        (
            PLAIN,
            "407 Who\r\nProxy-Authenticate: Basic realm=x",
            "HTTP 407 Who; it requires a user name and password",
        ),
        (
            WITH_LOGIN,
            "407 Who\r\nProxy-Authenticate: Basic realm=x",
            "it refuses the user name and password",
        ),
        (WITH_LOGIN, "401 Unauthorized", "it refuses the user name and password"),
        (
            PLAIN,
            "407 Who\r\nProxy-Authenticate: Negotiate\r\nproxy-authenticate: NTLM",
            "takes negotiate, ntlm, but only",
        ),
        (
            PLAIN,
            "403 Filtered",
            "HTTP 403 Filtered; it does not allow a tunnel to this host or port",
        ),
        (PLAIN, "502 Bad Gateway", "HTTP 502 Bad Gateway; it cannot connect to the server"),
        (PLAIN, "302 Found", "answered CONNECT with HTTP 302 Found"),
    ],
)
def test_a_refusal_says_what_to_do(proxy: Proxy, reply: str, said: str) -> None:
    with pytest.raises(ProxyFailed, match=said):
        proxy.opened(f"HTTP/1.0 {reply}\r\n\r\nbody".encode())


def test_headers_without_end_are_given_up() -> None:
    begun = b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * (MAX_REPLY_BYTES // 6)
    with pytest.raises(ProxyFailed, match="endless headers"):
        PLAIN.opened(begun)
    with pytest.raises(ProxyFailed, match="endless headers"):
        PLAIN.opened(b"HTTP/1.1 100 Go on\r\n\r\n" * MAX_REPLY_BYTES)


# -- the tunnel ------------------------------------------------------------------------------------


@contextmanager
def proxy(*replies: bytes, to: int | None = None) -> Iterator[tuple[int, list[bytes]]]:
    """(its port, what it is asked): it sends the replies, one write each, then passes bytes on to
    the port ``to``, or closes; without a reply it says nothing at all."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as near:
                asked.append(near.recv(4096))
                for reply in replies:
                    near.sendall(reply)
                if to is not None:
                    with socket.create_connection(("127.0.0.1", to)) as far:
                        back = threading.Thread(target=pass_on, args=(far, near), daemon=True)
                        back.start()
                        pass_on(near, far)
                        back.join(5)
                elif not replies:
                    near.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1], asked
        thread.join(5)


def pass_on(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(4096):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@pytest.mark.parametrize("port", ["plain", "tls"])
def test_through_the_tunnel_answers_come_as_they_are(
    scripted_tls: Scripted, certificate: Path, port: str
) -> None:
    """With the kernel's stamps; TLS is with the server, whose certificate is that of its own
    name."""
    context = ssl.create_default_context(cafile=str(certificate)) if port == "tls" else None
    to = scripted_tls.ports[port]
    with proxy(b"HTTP/1.1 200 Connection", b" established\r\n\r\n", to=to) as (near, asked):
        request = scripted_tls.request(f"proxied-{port}", stream(3), port=port, tls=context)
        login = Proxy("127.0.0.1", near, f"ada:{PASSWORD}")
        line = UserConnection()
        record = exchange_request(
            line, Gate(), replace(request, target=Target("localhost", to, context, login)), 0.0
        )
        line.close()
    assert (record.outcome, len(record.chunk_us), record.clock, record.rtt_us) == (
        "ok",
        3,
        "kernel",
        None,
    )
    for us, (before_ns, _) in zip(
        record.chunk_us, scripted_tls.row(request.labels["id"]).chunks, strict=True
    ):
        assert us * 1000 + record.sent_at * 1e9 > before_ns - 1000
    assert asked == [login.connect("localhost", to)]


@pytest.mark.parametrize(
    ("replies", "said"),
    [
        ([b"HTTP/1.1 407 Who are you\r\n\r\n"], "answered CONNECT with HTTP 407 Who are you"),
        ([b"SSH-2.0-OpenSSH\r\n"], "did not answer with HTTP: 'SSH-2.0-OpenSSH'"),
        ([b"HTTP/1.1 2"], "closed the connection without a response to CONNECT"),
        ([], "gave no connection within 0.2 s"),
    ],
)
def test_what_fails_before_the_tunnel_is_open_is_the_proxys(
    replies: list[bytes], said: str
) -> None:
    with proxy(*replies) as (port, _), pytest.raises(ConnectFailed) as caught:
        Connection(
            Target("llm.test", 443, None, Proxy("127.0.0.1", port)),
            timeout=0.2 if not replies else 5.0,
        )
    assert caught.value.outcome == "proxy"
    assert caught.value.outcome in FAILURES
    assert str(caught.value).startswith(f"llm.test:443: the proxy 127.0.0.1:{port} ")
    assert said in str(caught.value)


def test_nobody_is_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(
            ConnectFailed, match=f"the proxy 127.0.0.1:{port} cannot be used: Connection refused"
        ) as caught:
            Connection(Target("llm.test", 443, None, Proxy("127.0.0.1", port)))
    assert caught.value.outcome == "proxy"


@pytest.mark.parametrize("name", [
    "headers, a line at a time", "endless headers", "interim answers without end",
    "one header without end",
    "interim answers, one at a time", "the first line, a byte at a time", "blank lines",
])  # fmt: skip
def test_a_proxy_whose_answer_never_ends_ends_and_the_loop_goes_on(name: str) -> None:
    pieces, _ = ENDLESS[name]
    with hostile() as server:
        server.paths["llm.test:443"] = lambda asked: pieces()
        port = int(server.url.rpartition(":")[2])
        watch = OwnTime()
        with loop_watched() as held, pytest.raises(ConnectFailed) as caught:
            Connection(Target("llm.test", 443, None, Proxy("127.0.0.1", port)), timeout=0.4)
    assert caught.value.outcome == "proxy"
    assert watch.seconds < 2
    assert max(held) < HELD_S
