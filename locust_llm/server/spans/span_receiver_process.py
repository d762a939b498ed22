"""Span receiver process: takes OTLP/HTTP exports on the socket that it was started with, and prints
the run's spans.

It prints a line of JSON (SortedSpans of join_spans.py) for each export. It ends when its standard
input does: its run is over, or was killed. Nothing that comes in can reach the run's
process but these lines.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from itertools import count
from socket import SHUT_RDWR, socket
from socketserver import TCPServer, ThreadingMixIn
from threading import Lock, Thread
from typing import Any, Final

import msgspec

from locust_llm.records.spans.join_spans import SortedSpans, sort_spans

from .otlp_http import (
    PATH,
    ExportRefused,
    ExportResponse,
    accept_export,
    decode_exported_spans,
    parse_content_length,
    parse_content_type,
    refuse_export,
)

MOST_OPEN: Final = 32
"""The most connections. An exporter has one."""
REQUEST_S: Final = 20.0
"""The longest time from a request's first byte to the last of its body."""
IDLE_S: Final = 120.0
"""The longest time without a request. An exporter that is idle for longer connects again."""
LAST_S: Final = 2.0
"""The time at the end for exports that are under way."""
LINE_SPANS: Final = 1_000
"""The spans of a line, which the run reads in one piece."""
PIECE: Final = 1 << 16

Tell = Callable[[SortedSpans], None]


class SpanExportHandler(BaseHTTPRequestHandler):
    server: "SpanExportServer"
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "locust-llm-spans", ""
    timeout = IDLE_S
    rbufsize = PIECE

    def handle_one_request(self) -> None:
        if self.rfile.peek(1):  # type: ignore[attr-defined]  # a BufferedReader; empty: the client has gone
            with self.server.timed(self.connection):
                super().handle_one_request()
        else:
            self.close_connection = True

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:  # it has gone, or it was cut for being slow
            self.close_connection = True

    def do_POST(self) -> None:
        kind = ""
        try:
            if self.path.partition("?")[0].rstrip("/") != PATH:
                raise ExportRefused(404, f"spans go to {PATH}")
            kind = parse_content_type(self.headers.get("Content-Type", ""))
            body = self._body(parse_content_length(self.headers.get("Content-Length")))
            self.server.take(kind, self.headers.get("Content-Encoding", ""), body)
            answer = accept_export(kind)
        except ExportRefused as no:
            answer = refuse_export(no.status, no.why, kind)
            self.close_connection = True  # its body may still be on the way
            if no.status != 404:
                self.server.tell(
                    SortedSpans(
                        counts={"malformed" if no.status == 400 else "refused": 1}, mistake=no.why
                    )
                )
        self._answer(answer)

    def do_GET(self) -> None:
        self.close_connection = True
        self._answer(
            refuse_export(404 if self.path != PATH else 405, f"send spans to {PATH} by POST", "")
        )

    def _body(self, length: int) -> bytes:
        body = self.rfile.read(length)
        if len(body) < length:
            raise ExportRefused(400, "the body is incomplete")
        return body

    def _answer(self, answer: ExportResponse) -> None:
        self.send_response_only(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(answer.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what is no HTTP, for the parser."""
        self.close_connection = True
        self.server.tell(
            SortedSpans(counts={"refused": 1}, mistake=f"not HTTP: {(message or '')[:100]}")
        )
        self.command = getattr(self, "command", "") or ""
        self.request_version = "HTTP/1.1"
        self._answer(refuse_export(code, message or "", ""))

    def log_message(self, format: str, *values: Any) -> None:
        """Log nothing."""


class SpanExportServer(ThreadingMixIn, TCPServer):
    daemon_threads = True

    def __init__(
        self, listener: socket, run: str, tell: Tell, request_s: float = REQUEST_S
    ) -> None:
        """``run`` is ``Run.trace``. One thread at a time calls ``tell``."""
        super().__init__(listener.getsockname()[:2], SpanExportHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self._run, self._tell, self._request_s = run, tell, request_s
        self._decoding = Lock()
        self._telling = Lock()
        self._counting = Lock()
        self._under_way: dict[int, tuple[float, socket]] = {}
        self._open = 0
        self._numbers = count()

    @contextmanager
    def timed(self, connection: socket) -> Iterator[None]:
        """A request is under way on the connection."""
        number = next(self._numbers)
        self._under_way[number] = time.monotonic(), connection
        try:
            yield
        finally:
            self._under_way.pop(number, None)

    @property
    def busy(self) -> bool:
        return bool(self._under_way)

    def service_actions(self) -> None:
        """Every half second, cut the connections whose request takes too long."""
        late = time.monotonic() - self._request_s
        for began, connection in list(self._under_way.values()):
            if began < late:
                self.tell(
                    SortedSpans(counts={"refused": 1}, mistake="an export took too long to arrive")
                )
                _cut(connection)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        with self._counting:
            self._open += 1
        if self._open > MOST_OPEN:
            self.tell(
                SortedSpans(counts={"refused": 1}, mistake=f"more than {MOST_OPEN} connections")
            )
            return False
        return True

    def shutdown_request(self, request: Any) -> None:
        with self._counting:
            self._open -= 1
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        self.tell(
            SortedSpans(
                counts={"refused": 1}, mistake=f"the receiver failed: {sys.exception()!r}"[:200]
            )
        )

    def take(self, kind: str, coding: str, body: bytes) -> None:
        """Take an export. One is decoded at a time, as each may be large in memory. Raises
        ExportRefused."""
        with self._decoding:
            sorted_spans = sort_spans(decode_exported_spans(kind, coding, body), self._run)
        times = sorted_spans.times
        self.tell(msgspec.structs.replace(sorted_spans, times=times[:LINE_SPANS]))
        for begin in range(LINE_SPANS, len(times), LINE_SPANS):
            self.tell(SortedSpans(times[begin : begin + LINE_SPANS]))

    def tell(self, sorted_spans: SortedSpans) -> None:
        with self._telling:
            self._tell(sorted_spans)


def _cut(connection: socket) -> None:
    with suppress(OSError):
        connection.shutdown(SHUT_RDWR)


def main(listener: int, run: str) -> None:
    out = sys.stdout.buffer

    def tell(sorted_spans: SortedSpans) -> None:
        out.write(msgspec.json.encode(sorted_spans) + b"\n")
        out.flush()

    server = SpanExportServer(socket(fileno=listener), run, tell)
    Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.buffer.read()
    server.shutdown()
    until = time.monotonic() + LAST_S
    while server.busy and time.monotonic() < until:
        time.sleep(0.01)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
