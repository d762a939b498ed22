"""Timed upstream: the server behind the gateway. It knows when each request came and when it wrote
each event. Standard library only.

``python -m locust_llm.lab.gateway.timed_upstream REPLICA FOLDER``, with a listening socket as
descriptor 0 and the end of a pipe as descriptor 1: when nobody has the other end any more, it is
over. upstream_process.py starts it so. It speaks HTTP/1.0 and 1.1 with keep-alive, and answers
chat completions, completions, Responses, Messages and embeddings, under any prefix of their paths.
A request without a script gets a short answer. ``GET .../models`` names a model, and any other GET
gets ``ok``.

One thread and one epoll serve all connections. A write is made ready when the one before it went
out. When it is due, only its moment is put in before it goes.
"""

from __future__ import annotations

import gc
import heapq
import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TextIO

from locust_llm.accuracy.reference_server import SO_TIMESTAMPNS, received

from .upstream_answers import (
    JSON,
    AnswerPlan,
    PlannedWrite,
    find_kind,
    plan_answer,
    read_answer_request,
    write_head,
)
from .upstream_events import MODEL, STAMP, encode_compact
from .upstream_log import (
    ARRIVALS_NAME,
    CANARY,
    CLIENT_GONE,
    COMPLETE,
    FAULT,
    UpstreamRequest,
    encode_log_line,
    mask_secrets,
    name_log_file,
)
from .upstream_script import STAMP_DIGITS, UpstreamScript, find_script

MOST_HEAD_BYTES: Final = 65_536
MOST_BODY_BYTES: Final = 64 << 20
MOST_CONNECTIONS: Final = 16_384
PLAIN: Final = UpstreamScript(id="", ttft_ms=0, gap_ms=1, tokens=3)
"""The answer to a request without a script."""
IDLE_S: Final = 1.0
LOG_S: Final = 0.2
"""Lines of the log lie in memory for at most so long while writes are due."""
LINE_NS: Final = 100_000
"""A line is written in less time than this."""


class ConnectionGone(Exception):
    """This connection is of no more use."""


class HttpError(Exception):
    """The request cannot be read. Its connection is answered with 400 and closed."""


class RequestHead:
    """The head of a request, and where its body ends."""

    def __init__(self, head: bytes) -> None:
        """Raises HttpError."""
        try:
            first, *lines = head.decode("latin-1").split("\r\n")
            self.method, self.path, version = first.split(" ")
            pairs = [line.split(":", 1) for line in lines if line]
            self.headers = [(name, value.strip()) for name, value in pairs]
        except ValueError:
            raise HttpError from None
        if not version.startswith("HTTP/1."):
            raise HttpError
        self.version = version[5:]
        self._low = {name.lower(): value for name, value in self.headers}
        self.chunked = "chunked" in self.value("transfer-encoding").lower()
        length = self.value("content-length") or "0"
        if not length.isascii() or not length.isdigit() or int(length) > MOST_BODY_BYTES:
            raise HttpError
        self.length = int(length)

    def value(self, name: str) -> str:
        return self._low.get(name, "")

    @property
    def keep_alive(self) -> bool:
        asked = self.value("connection").lower()
        return "close" not in asked if self.version == "1.1" else "keep-alive" in asked


def take_body(head: RequestHead, data: bytes) -> tuple[bytes, int] | None:
    """(body, bytes that it took) of what follows a head. None: it is not whole yet. Raises
    HttpError."""
    if not head.chunked:
        return None if len(data) < head.length else (data[: head.length], head.length)
    body = b""
    at = 0
    while True:
        end = data.find(b"\r\n", at)
        if end < 0:
            return None
        try:
            size = int(data[at:end].partition(b";")[0], 16)
        except ValueError:
            raise HttpError from None
        at = end + 2
        if size == 0:
            end = data.find(b"\r\n", at)
            while end > at:  # trailers
                at = end + 2
                end = data.find(b"\r\n", at)
            return None if end < 0 else (body, end + 2)
        if size + len(body) > MOST_BODY_BYTES:
            raise HttpError
        if len(data) < at + size + 2:
            return None
        body += data[at : at + size]
        at += size + 2


class UpstreamConnection:
    """One connection, and the answer under way on it, if there is one."""

    def __init__(self, sock: socket.socket, number: int) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.number = number
        self.received = b""
        self.received_ns = 0
        self.head: RequestHead | None = None
        self.row: UpstreamRequest | None = None
        self.plan: AnswerPlan | None = None
        self.following: PlannedWrite | None = None
        self.unsent = b""
        """What the kernel did not take yet."""
        self.then = ""
        """What follows when all is sent."""
        self.keep_alive = True


class TimedUpstream:
    """The server. All it needs of the outside are arguments."""

    def __init__(
        self,
        listener: socket.socket,
        log: TextIO,
        replica: int = 0,
        count_arrival: Callable[[str], int] = lambda identity: 1,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._listener = listener
        self._log = log
        self._replica = replica
        self._count_arrival = count_arrival
        self._clock = clock
        self._poll = select.epoll()
        self._poll.register(listener.fileno(), select.EPOLLIN)
        self._connections: dict[int, UpstreamConnection] = {}
        self._due: list[tuple[int, int, UpstreamConnection, PlannedWrite]] = []
        self._order = 0
        self._accepted = 0
        self._lines: list[UpstreamRequest] = []

    def serve(self, alive: int | None = None) -> None:
        """Serve until nobody has the other end of the pipe ``alive``."""
        if alive is not None:
            self._poll.register(alive, 0)  # errors and hang-ups are always reported
        fine = [self._poll.fileno()]
        try:
            while True:
                wait_s = self._wait_s()
                if wait_s > 0:
                    select.select(fine, [], [], wait_s)  # epoll's own wait counts in ms
                for fd, mask in self._poll.poll(0):
                    if fd == alive:
                        return
                    self._handle(fd, mask)
                self._write_due()
                self._write_log()
        finally:
            self._write_log(at_once=True)

    def _wait_s(self) -> float:
        if self._lines:
            return 0.0 if not self._due else min(LOG_S, self._until_due_s)
        return self._until_due_s if self._due else IDLE_S

    @property
    def _until_due_s(self) -> float:
        return max(0, self._due[0][0] - self._clock()) / 1e9

    def _handle(self, fd: int, mask: int) -> None:
        if fd == self._listener.fileno():
            self._accept()
            return
        connection = self._connections.get(fd)
        if connection is None:
            return
        try:
            if mask & select.EPOLLOUT:
                self._send_rest(connection)
            if mask & ~select.EPOLLOUT:
                self._read(connection)
        except (ConnectionGone, OSError):
            self._note_gone(connection)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            if len(self._connections) >= MOST_CONNECTIONS:
                sock.close()
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            self._accepted += 1
            self._connections[sock.fileno()] = UpstreamConnection(sock, self._accepted)
            self._poll.register(sock.fileno(), select.EPOLLIN | select.EPOLLRDHUP)

    # -- requests

    def _read(self, connection: UpstreamConnection) -> None:
        """Raises ConnectionGone and OSError."""
        try:
            data, stamp_ns = received(connection.sock)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionGone
        connection.received += data
        connection.received_ns = stamp_ns
        self._take_request(connection)

    def _take_request(self, connection: UpstreamConnection) -> None:
        """Begin the answer to the next request that is whole, unless one is under way."""
        if connection.row is not None:
            return
        try:
            request = self._find_request(connection)
        except HttpError:
            connection.keep_alive = False
            head = write_head(400, JSON, [("Content-Length", "2"), ("Connection", "close")])
            self._send(connection, head + b"{}")
            self._after_answer(connection, "close")
            return
        if request is not None:
            self._answer(connection, *request)

    def _find_request(self, connection: UpstreamConnection) -> tuple[RequestHead, bytes] | None:
        """Raises HttpError."""
        if connection.head is None:
            end = connection.received.find(b"\r\n\r\n")
            if end < 0:
                if len(connection.received) > MOST_HEAD_BYTES:
                    raise HttpError
                return None
            connection.head = RequestHead(connection.received[:end])
            connection.received = connection.received[end + 4 :]
            if connection.head.value("expect").lower() == "100-continue":
                self._send(connection, b"HTTP/1.1 100 Continue\r\n\r\n")
        head = connection.head
        taken = take_body(head, connection.received)
        if taken is None:
            return None
        body, size = taken
        connection.received = connection.received[size:]
        connection.head = None
        return head, body

    def _answer(self, connection: UpstreamConnection, head: RequestHead, body: bytes) -> None:
        connection.keep_alive = head.keep_alive
        kind = find_kind(head.path) if head.method == "POST" else None
        if kind is None:
            self._answer_other(connection, head)
            return
        try:
            value: Any = json.loads(body)
        except (ValueError, RecursionError):
            value = None
        script = find_script(value) or PLAIN
        comes = True
        if script.fault_arrivals:
            comes = self._count_arrival(script.id) <= script.fault_arrivals
        asked = read_answer_request(
            kind,
            value,
            chunked=head.version == "1.1",
            gzip="gzip" in head.value("accept-encoding").lower(),
            keep_alive=head.keep_alive,
        )
        received_ns = connection.received_ns
        plan = plan_answer(
            script,
            asked,
            received_ns,
            fault=script.fault if comes else "",
            replica=self._replica,
            headers=self._own_headers(script.id),
        )
        connection.plan = plan
        connection.row = UpstreamRequest(
            id=script.id,
            replica=self._replica,
            connection=connection.number,
            method=head.method,
            path=head.path.partition("?")[0],  # a query may hold a key
            version=head.version,
            received_ns=received_ns,
            headers=head.headers,
            model=asked.model,
            stream=asked.stream,
            include_usage=asked.include_usage,
            fault=plan.fault,
            status=plan.status,
        )
        self._plan_next(connection)

    def _own_headers(self, request_id: str) -> list[tuple[str, str]]:
        """Headers as servers have them, and the bench's own."""
        return [
            ("Server", "gwbench"),
            ("x-request-id", f"up-{request_id}"),
            ("openai-processing-ms", "7"),
            ("x-ratelimit-remaining-requests", "42"),
            ("x-upstream-replica", str(self._replica)),
            ("x-upstream-secret", f"{CANARY}-upstream"),
        ]

    def _answer_other(self, connection: UpstreamConnection, head: RequestHead) -> None:
        path = head.path.partition("?")[0].rstrip("/")
        status = 200
        value: Any = "ok"
        if head.method != "GET":
            status = 404
            value = {"error": {"message": f"no such path: {path[:200]}", "code": 404}}
        elif path.endswith("/models"):
            model = {
                "id": MODEL,
                "object": "model",
                "created": 1_700_000_000,
                "owned_by": "gwbench",
            }
            value = {"object": "list", "data": [model]}
        data = encode_compact(value)
        headers = [*self._own_headers(""), ("Content-Length", str(len(data)))]
        if not connection.keep_alive:
            headers.append(("Connection", "close"))
        self._send(connection, write_head(status, JSON, headers) + data)
        self._after_answer(connection, "" if connection.keep_alive else "close")

    # -- writes

    def _plan_next(self, connection: UpstreamConnection) -> None:
        """Make the next write ready. Without one the answer is over."""
        assert connection.plan is not None
        assert connection.row is not None
        following = next(connection.plan.writes, None)
        connection.following = following
        if following is None:
            self._end_row(connection, FAULT if connection.row.fault else COMPLETE)
            self._take_request(connection)
            return
        self._order += 1
        due_ns = connection.row.received_ns + following.at_ns
        heapq.heappush(self._due, (due_ns, self._order, connection, following))

    def _write_due(self) -> None:
        due = self._due
        while due and due[0][0] <= self._clock():
            _, _, connection, write = heapq.heappop(due)
            if connection.following is not write:
                continue  # its client is gone
            try:
                self._write(connection, write)
            except (ConnectionGone, OSError):
                self._note_gone(connection)

    def _write(self, connection: UpstreamConnection, write: PlannedWrite) -> None:
        row, plan = connection.row, connection.plan
        assert row is not None
        assert plan is not None
        data = write.data
        moment_ns = self._clock()
        if data:
            data = data.replace(STAMP, b"%0*d" % (STAMP_DIGITS, moment_ns))
            if write.seal is not None:
                data = write.seal(data)
            self._send(connection, data)
            row.last_sent_ns = moment_ns
        if write.words:
            row.words += write.words
            plan.moments += [moment_ns] * write.words
        if write.then == "stall":
            return
        if write.then:
            self._end_row(connection, FAULT if row.fault else COMPLETE)
            self._after_answer(connection, write.then)
        else:
            self._plan_next(connection)

    def _send(self, connection: UpstreamConnection, data: bytes) -> None:
        """Raises OSError."""
        if connection.unsent:
            connection.unsent += data
            return
        try:
            sent = connection.sock.send(data)
        except BlockingIOError:
            sent = 0
        if sent == len(data):
            return
        connection.unsent = data[sent:]
        self._poll.modify(connection.fd, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLOUT)

    def _send_rest(self, connection: UpstreamConnection) -> None:
        """Raises OSError."""
        sent = connection.sock.send(connection.unsent)
        connection.unsent = connection.unsent[sent:]
        if connection.unsent:
            return
        self._poll.modify(connection.fd, select.EPOLLIN | select.EPOLLRDHUP)
        if connection.then:
            self._drop(connection, reset=connection.then == "reset")

    def _after_answer(self, connection: UpstreamConnection, then: str) -> None:
        if not then:
            self._take_request(connection)
        elif connection.unsent and then == "close":
            connection.then = then
        else:
            self._drop(connection, reset=then == "reset")

    # -- ends

    def _note_gone(self, connection: UpstreamConnection) -> None:
        if connection.row is not None:
            connection.row.gone_ns = self._clock()
            self._end_row(connection, CLIENT_GONE)
        self._drop(connection)

    def _end_row(self, connection: UpstreamConnection, end: str) -> None:
        row = connection.row
        assert row is not None
        row.end = end
        self._lines.append(row)
        connection.row = connection.plan = connection.following = None

    def _drop(self, connection: UpstreamConnection, *, reset: bool = False) -> None:
        if self._connections.pop(connection.fd, None) is None:
            return
        connection.following = None
        if reset:
            linger = struct.pack("ii", 1, 0)
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        connection.sock.close()

    def _write_log(self, *, at_once: bool = False) -> None:
        """Write one line when nothing is due soon, or it has waited long enough."""
        if not self._lines:
            return
        now_ns = self._clock()
        soon = bool(self._due) and self._due[0][0] - now_ns < LINE_NS
        waited_ns = now_ns - max(self._lines[0].last_sent_ns, self._lines[0].received_ns)
        if soon and not at_once and waited_ns < LOG_S * 1e9:
            return
        count = len(self._lines) if at_once else 1
        for row in self._lines[:count]:
            row.headers = mask_secrets(row.headers)
            self._log.write(encode_log_line(row))
        del self._lines[:count]
        self._log.flush()


class SharedArrivals:
    """Counts how often each id came, at whichever replica: all of them append to one file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)

    def count(self, identity: str) -> int:
        """The number of this arrival, from 1 on."""
        line = f"{json.dumps(identity)}\n".encode()
        os.write(self._file, line)
        # one write appends at once, and leaves the place at its own end
        end = os.lseek(self._file, 0, os.SEEK_CUR)
        return os.pread(self._file, end, 0).splitlines(keepends=True).count(line)


def main(arguments: list[str]) -> None:
    replica, folder = arguments
    log_path = Path(folder) / name_log_file(int(replica))
    with socket.socket(fileno=0) as listener, log_path.open("a", encoding="utf-8") as log:
        listener.setblocking(False)
        gc.disable()  # a plan refers to nothing that refers to it
        arrivals = SharedArrivals(Path(folder) / ARRIVALS_NAME)
        TimedUpstream(listener, log, int(replica), arrivals.count).serve(1)


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)
