"""The HTTP front: every token one write, the clock read just before and just after it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from random import Random
from time import monotonic
from typing import Any, cast

import httptools

from locust_llm.simulator import api
from locust_llm.simulator.engine import Engine
from locust_llm.simulator.scheduler import Sequence
from locust_llm.simulator.tokens import WORDS
from locust_llm.simulator.truth import Row, Truth

MAX_BODY_BYTES = 64 * 1024 * 1024
_SERVER_LINE = f"Server: {api.NAME}\r\n"
_WORDS = [f" {word}".encode() for word in WORDS]


@dataclass(slots=True)
class Request:
    method: str
    path: str
    id: str | None  # X-Request-Id
    body: bytes
    chunked: bool  # HTTP/1.1: the answer may be in chunks, and the connection may stay
    keep_alive: bool
    arrived_at: float


class Server:
    """What all connections share: the engine, the truth, and what each path answers."""

    def __init__(
        self,
        engine: Engine,
        *,
        names: tuple[str, ...],
        max_model_len: int,
        seed: int = 0,
        full_truth: bool = False,
        idle_close_s: float | None = None,
    ) -> None:
        """``names``: all are accepted and listed, answers carry the first (vLLM's --served-model-name)."""
        self.engine, self.names, self.max_model_len = engine, names, max_model_len
        self.idle_close_s = idle_close_s
        self.truth = Truth(full=full_truth)
        self.random = Random(seed)
        self.connections: set[Connection] = set()
        self.routes: dict[str, tuple[str, Callable[[Connection, Request], None]]] = {
            "/v1/chat/completions": ("POST", self.chat),
            "/v1/models": ("GET", lambda c, _: c.respond(200, api.models(names, max_model_len))),
            "/tokenize": ("POST", lambda c, r: c.respond(200, api.tokenize(r.body, names, max_model_len))),
            "/health": ("GET", lambda c, _: c.respond(200, {"status": "ok", "server": api.NAME})),
            "/truth": ("GET", lambda c, _: c.respond(200, {**self.truth.as_json(), "engine": engine.state()})),
            "/truth/reset": ("POST", self.reset_truth),
        }

    def handle(self, connection: Connection, request: Request) -> None:
        if request.path not in self.routes:
            connection.respond(404, {"detail": "Not Found"})
            return
        method, answer = self.routes[request.path]
        if request.method != method:
            connection.respond(405, {"detail": "Method Not Allowed"}, f"Allow: {method}\r\n")
            return
        try:
            answer(connection, request)
        except api.RefusedError as error:
            self.truth.refused += 1
            connection.respond(error.status, error.body)

    def chat(self, connection: Connection, request: Request) -> None:
        asked = api.parse_chat(request.body, self.names, self.max_model_len)
        own_id = f"{self.random.getrandbits(64):016x}"
        answer_id = f"chatcmpl-{request.id or own_id}"
        row = Row(request.id or answer_id, asked.prompt_tokens, asked.max_tokens, request.arrived_at)
        self.truth.arrived(row)
        kind = StreamedAnswer if asked.stream else WholeAnswer
        connection.answer = answer = kind(self, connection, asked, row, answer_id)
        self.engine.add(answer.sequence, answer.on_token)

    def reset_truth(self, connection: Connection, _: Request) -> None:
        self.truth.reset()
        connection.respond(200, {"reset": True})


class Answer:
    """A chat completion on its way, one `on_token` at a time."""

    def __init__(
        self, server: Server, connection: Connection, asked: api.ChatRequest, row: Row, answer_id: str
    ) -> None:
        self.server, self.connection, self.asked, self.row, self.id = server, connection, asked, row, answer_id
        self.transport = connection.transport
        self.sequence = Sequence(asked.prompt_tokens, asked.max_tokens)
        self.first_word = server.random.randrange(len(WORDS))

    def on_token(self) -> None:
        raise NotImplementedError

    def hang_up(self) -> None:
        """The client is gone."""
        self.server.engine.abort(self.sequence)
        if self.sequence.num_output_tokens == 0:
            self.server.truth.prefilled(monotonic())
        self.server.truth.done(self.row, aborted=True)

    def usage(self) -> dict[str, Any]:
        return api.usage(self.asked.prompt_tokens, self.sequence.num_output_tokens)


class WholeAnswer(Answer):
    def on_token(self) -> None:
        if self.sequence.num_output_tokens == 1:
            self.server.truth.prefilled(monotonic())
        if not self.sequence.is_finished:
            return
        first, count = self.first_word, self.sequence.num_output_tokens
        text = " ".join(WORDS[index % len(WORDS)] for index in range(first, first + count))
        body = api.completion(self.id, self.server.names[0], text, self.usage())
        before = monotonic()
        self.connection.respond(200, body)
        self.row.first_at = before, monotonic()
        self.row.output_tokens = count
        self.server.truth.done(self.row)
        self.connection.answered()


class StreamedAnswer(Answer):
    def __init__(
        self, server: Server, connection: Connection, asked: api.ChatRequest, row: Row, answer_id: str
    ) -> None:
        super().__init__(server, connection, asked, row, answer_id)
        self.chunks = api.Chunks(answer_id, server.names[0])
        self.frame = connection.begin_stream()

    def on_token(self) -> None:
        sequence, row, transport = self.sequence, self.row, self.transport
        count = sequence.num_output_tokens
        word = _WORDS[(self.first_word + count - 1) % len(_WORDS)]
        if count == 1:
            word = word[1:]
        data = self.frame(b"%b%b%b" % (self.chunks.before, word, api.LAST if sequence.is_finished else api.MIDDLE))
        if count == 1:  # vLLM sends the role only when there is a token
            data = self.frame(self.chunks.role) + data

        before = monotonic()
        transport.write(data)
        after = monotonic()

        row.output_tokens = count
        if transport.get_write_buffer_size():
            row.buffered += 1
        if row.token_at is not None:
            row.token_at.extend((before, after))
        if count == 1:
            row.first_at = before, after
            self.server.truth.prefilled(after)
        if sequence.is_finished:
            self._end()

    def _end(self) -> None:
        usage = self.frame(self.chunks.usage(self.usage())) if self.asked.include_usage else b""
        self.transport.write(usage + self.frame(api.DONE) + self.connection.end_of_stream)
        self.server.truth.done(self.row)
        self.connection.answered()


def _chunked(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


def _bare(event: bytes) -> bytes:
    return event


class Connection(asyncio.Protocol):
    """One client: requests are parsed into a queue and answered in turn. asyncio sets TCP_NODELAY."""

    transport: asyncio.Transport

    def __init__(self, server: Server) -> None:
        self.server = server
        self.answer: Answer | None = None
        self.requests: deque[Request] = deque()
        self.request: Request | None = None  # being answered
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
        del self.parser  # it refers back to us: without this only the garbage collector frees the two

    # from httptools

    body_bytes = 0

    def on_message_begin(self) -> None:
        self.url = b""
        self.id: str | None = None
        self.body: list[bytes] = []
        self.body_bytes = 0
        self.expects_continue = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"x-request-id":
            self.id = value.decode("latin-1")
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
        method, body = self.parser.get_method().decode(), b"".join(self.body)
        self.requests.append(Request(method, path, self.id, body, chunked, keep_alive, arrived_at))

    # from the server

    def respond(self, status: int, body: Any, extra_headers: str = "") -> None:
        data = api.dump(body)
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{_SERVER_LINE}Content-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n{extra_headers}{self._connection_line()}\r\n"
        )
        self.transport.write(head.encode() + data)

    def begin_stream(self) -> Callable[[bytes], bytes]:
        """Send the headers of a stream; return what wraps each event. HTTP/1.0 has no chunks, only the close."""
        chunked = self.request is not None and self.request.chunked
        head = (
            f"HTTP/1.1 200 OK\r\n{_SERVER_LINE}Content-Type: text/event-stream; charset=utf-8\r\n"
            + ("Transfer-Encoding: chunked\r\n" if chunked else "")
            + f"{self._connection_line()}\r\n"
        )
        self.transport.write(head.encode())
        self.end_of_stream = b"0\r\n\r\n" if chunked else b""
        return _chunked if chunked else _bare

    def answered(self) -> None:
        """A chat completion is over."""
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
        if self.server.idle_close_s is not None:
            loop = asyncio.get_running_loop()
            self.idle = loop.call_later(self.server.idle_close_s, self.transport.close)

    def _connection_line(self) -> str:
        return "" if self.request and self.request.keep_alive else "Connection: close\r\n"

    def _refuse_all(self, status: int) -> None:
        """What came is no HTTP, or too much: say so unless an answer is under way, and close."""
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
