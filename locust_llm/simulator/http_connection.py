"""HTTP connection: parses one client's bytes into requests, and answers them in turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

import httptools

from . import openai_chat
from . import simulated_faults as quirks

if TYPE_CHECKING:
    from .response_stream import SimulatedAnswer
    from .simulated_server import SimulatorServer


MAX_BODY_BYTES = 64 * 1024 * 1024
TENANT = b"x-gateway-inference-fairness-id"  # the Gateway API Inference Extension's
_SERVER_LINE = f"Server: {openai_chat.NAME}\r\n"


@dataclass(slots=True)
class HttpRequest:
    method: str
    path: str
    id: str | None  # X-Request-Id
    authorization: str | None
    quirks: str  # X-Simulate
    session: str  # of the header that the router looks at
    tenant: str  # TENANT
    traceparent: str
    body: bytes
    chunked: bool  # HTTP/1.1: the answer may be in chunks, and the connection may stay
    keep_alive: bool
    arrived_at: float


def _chunked(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


def _bare(event: bytes) -> bytes:
    return event


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Error"


class ClientConnection(asyncio.Protocol):
    """Queues the requests of one client, and answers them in turn. asyncio sets TCP_NODELAY."""

    transport: asyncio.Transport

    def __init__(self, server: SimulatorServer) -> None:
        self.server = server
        self.answer: SimulatedAnswer | None = None
        self.requests: deque[HttpRequest] = deque()
        self.request: HttpRequest | None = None  # being answered
        self.parser = httptools.HttpRequestParser(self)
        self.idle: asyncio.TimerHandle | None = None
        self.end_of_stream = b""

    # from asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.server.connections.add(self)
        self.server.truth.connections += 1
        self._next()

    def data_received(self, data: bytes) -> None:
        if self.idle:
            self.idle.cancel()
            self.idle = None
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse_all(400)
            return
        if self.body_bytes > MAX_BODY_BYTES:
            self._refuse_all(413)
            return
        self._next()

    def eof_received(self) -> bool:
        self._hang_up()
        return False  # asyncio closes the connection

    def connection_lost(self, exc: Exception | None) -> None:
        self._hang_up()
        self.server.connections.discard(self)
        # it refers back to us: without this only the garbage collector frees the two
        del self.parser

    # from httptools

    body_bytes = 0

    def on_message_begin(self) -> None:
        self.url = b""
        self.id: str | None = None
        self.authorization: str | None = None
        self.quirks = self.session = self.tenant = self.traceparent = ""
        self.body: list[bytes] = []
        self.body_bytes = 0
        self.expects_continue = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"x-request-id":
            self.id = value.decode("latin-1")
        elif name == b"authorization":
            self.authorization = value.decode("latin-1")
        elif name == b"x-api-key":  # of Messages
            self.authorization = self.authorization or f"Bearer {value.decode('latin-1')}"
        elif name == quirks.HEADER:
            self.quirks = value.decode("latin-1")
        elif name == self.server.session_header:
            self.session = value.decode("latin-1")
        elif name == TENANT:
            self.tenant = value.decode("latin-1")
        elif name == b"traceparent":
            self.traceparent = value.decode("latin-1")
        elif name == b"expect":
            self.expects_continue = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        if self.expects_continue and not self.answer:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self.body.append(body)
        self.body_bytes += len(body)

    def on_message_complete(self) -> None:
        arrived_at = monotonic()
        path = self.url.partition(b"?")[0].decode("latin-1")
        chunked = self.parser.get_http_version() != "1.0"
        keep_alive = chunked and self.parser.should_keep_alive()
        method = self.parser.get_method().decode()
        body = b"".join(self.body)
        self.requests.append(
            HttpRequest(
                method, path, self.id, self.authorization, self.quirks, self.session, self.tenant,
                self.traceparent, body,
                chunked, keep_alive, arrived_at,
            )
        )  # fmt: skip

    # from the server

    def respond(self, status: int, body: Any, extra_headers: str = "") -> None:
        """Sends a response. ``body`` is an object, JSON bytes or a text."""
        kind = "application/json"
        if isinstance(body, str):
            kind = "text/plain; version=0.0.4; charset=utf-8"
            data = body.encode()
        elif isinstance(body, bytes):
            data = body
        else:
            data = openai_chat.encode_json(body)
        head = (
            f"HTTP/1.1 {status} {_phrase(status)}\r\n{_SERVER_LINE}Content-Type: {kind}\r\n"
            f"Content-Length: {len(data)}\r\n{extra_headers}{self._connection_line()}\r\n"
        )
        self.transport.write(head.encode() + data)

    def stream_framing(self, extra_headers: str = "") -> tuple[Callable[[bytes], bytes], bytes]:
        """Returns the function that wraps each event of a stream, and the headers. HTTP/1.0 has no
        chunks and closes the connection instead."""
        chunked = self.request is not None and self.request.chunked
        head = (
            f"HTTP/1.1 200 OK\r\n{_SERVER_LINE}Content-Type: text/event-stream; charset=utf-8\r\n"
            + ("Transfer-Encoding: chunked\r\n" if chunked else "")
            + f"{extra_headers}{self._connection_line()}\r\n"
        )
        self.end_of_stream = b"0\r\n\r\n" if chunked else b""
        return _chunked if chunked else _bare, head.encode()

    def answered(self) -> None:
        """Ends an answer."""
        self.answer = None
        self._next()

    def _next(self) -> None:
        while not self.answer and not self.transport.is_closing():
            if self.request and not self.request.keep_alive:
                self.transport.close()
                return
            if not self.requests:
                self._wait_idle()
                return
            self.request = self.requests.popleft()
            self.server.handle(self, self.request)

    def _wait_idle(self) -> None:
        if self.server.front.idle_close_s is not None:
            loop = asyncio.get_running_loop()
            self.idle = loop.call_later(self.server.front.idle_close_s, self.transport.close)

    def _connection_line(self) -> str:
        return "" if self.request and self.request.keep_alive else "Connection: close\r\n"

    def _refuse_all(self, status: int) -> None:
        """Refuses invalid HTTP or too many bytes: responds unless an answer is running, then
        closes."""
        self.requests.clear()
        self.request = None
        if not self.answer:
            self.respond(status, {"detail": HTTPStatus(status).phrase})
        self._hang_up()
        self.transport.close()

    def _hang_up(self) -> None:
        if self.idle:
            self.idle.cancel()
        self.requests.clear()
        if self.answer:
            self.answer.hang_up()
            self.answer = None
