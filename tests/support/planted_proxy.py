"""Planted proxy: an HTTP/1.1 gateway of the tests that delays and changes what it was told to, and
writes down when it read and wrote each request and each event.

It is a process of its own, one thread around epoll. Each line of its log is the JSON of one
exchange: ``id`` (of the request's script), ``plant`` and how often it ``acted``, ``request``
(``[read_ns, written_ns]``) and ``words``: ``[index, read_ns, written_ns]`` of each word that left.
A read is the kernel's stamp of the last byte, a write the time just before it, both in ns of
CLOCK_MONOTONIC. So what the proxy added to an event is the difference, whatever was asked for.

A plant may stand for all requests, or one of several is drawn for each, by its id. A plant that
finds nothing to change leaves ``acted`` at 0.
"""

import gc
import heapq
import json
import random
import re
import select
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from support.planted_changes import PLANTS, WORD, Event, Headers, HideErrors, Plant

SO_TIMESTAMPNS: Final = getattr(socket, "SO_TIMESTAMPNS", 35)
READ_BYTES: Final = 65_536
CONTROL_BYTES: Final = 64
CLOCKS_NS: Final = 20_000
"""Clocks that were read further apart than so are read again in the next round."""
ID: Final = re.compile(rb'gwbench \{\\"id\\": ?\\"([^"\\]+)')
_timespec: Final = struct.Struct("qq")


# -- what the tests call ---------------------------------------------------------------------------


@contextmanager
def planted_proxy(
    upstreams: Sequence[int],
    log: Path,
    *,
    delay_ms: float = 0.0,
    spread: bool = False,
    plants: Sequence[str] = (),
    share: float = 1.0,
    seed: int = 1,
) -> Iterator[int]:
    """Forwards to these ports of 127.0.0.1 in turn, and yields its own port. Each request and each
    event waits ``delay_ms``; with ``spread`` it waits for a random time of this mean. ``share`` of
    the requests get one of the ``plants``."""
    order = {
        "upstreams": list(upstreams),
        "log": str(log),
        "delay_ms": delay_ms,
        "spread": spread,
        "plants": list(plants),
        "share": share,
        "seed": seed,
    }
    command = [sys.executable, "-m", "support.planted_proxy", json.dumps(order)]
    tests = Path(__file__).parents[1]
    process = subprocess.Popen(
        command, cwd=tests, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        try:
            process.communicate(timeout=10)  # it ends with its input, when its log is whole
        finally:
            process.kill()


class ProxyExchange(NamedTuple):
    """What the proxy wrote down of one exchange."""

    id: str
    plant: str
    acted: int
    request: tuple[int, int]
    words: tuple[tuple[int, int, int], ...]


def read_proxy_log(log: Path) -> list[ProxyExchange]:
    exchanges = []
    for line in log.read_text().splitlines():
        written = json.loads(line)
        words = tuple((index, read, wrote) for index, read, wrote in written["words"])
        read_ns, written_ns = written["request"]
        exchanges.append(
            ProxyExchange(
                written["id"], written["plant"], written["acted"], (read_ns, written_ns), words
            )
        )
    return exchanges


# -- HTTP/1.1 --------------------------------------------------------------------------------------


def split_head(data: bytes) -> tuple[str, Headers]:
    """The first line and the headers of a head without its empty line."""
    first, *lines = data.decode("latin-1").split("\r\n")
    headers = []
    for line in lines:
        name, _, value = line.partition(":")
        headers.append((name, value.strip()))
    return first, headers


def find_header(headers: Headers, wanted: str) -> str:
    return next((value for name, value in headers if name.lower() == wanted), "")


def join_head(first: str, headers: Headers) -> bytes:
    lines = [first, *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


HOP: Final = ("connection", "keep-alive", "content-length", "transfer-encoding", "te", "upgrade")


def drop_hop_headers(headers: Headers) -> Headers:
    return [(name, value) for name, value in headers if name.lower() not in HOP]


def frame_as_http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class BodyReader:
    """Takes a body out of its frame: chunks, a length, or the end of the connection."""

    def __init__(self, headers: Headers, *, is_response: bool) -> None:
        self._chunked = "chunked" in find_header(headers, "transfer-encoding").lower()
        length = find_header(headers, "content-length")
        self._left = int(length) if length else 0
        self._until_close = is_response and not self._chunked and not length
        self._pending = b""
        self.over = not self._chunked and not self._until_close and not self._left

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """The bytes of the body in ``data``, and what lies behind the body."""
        if self._until_close:
            return data, b""
        if not self._chunked:
            body, rest = data[: self._left], data[self._left :]
            self._left -= len(body)
            self.over = not self._left
            return body, rest
        self._pending += data
        bodies = []
        while not self.over:
            line, found, rest = self._pending.partition(b"\r\n")
            if not found:
                break
            size = int(line.split(b";")[0], 16)
            if len(rest) < size + 2:
                break
            bodies.append(rest[:size])
            self._pending = rest[size + 2 :]
            self.over = not size
        rest = b""
        if self.over:
            rest, self._pending = self._pending, b""
        return b"".join(bodies), rest

    def close(self) -> None:
        """The connection is closed: that ends a body without a length."""
        self.over = self.over or self._until_close


# -- one exchange ----------------------------------------------------------------------------------


class Exchange:
    """One request and its response."""

    def __init__(self, first: str, headers: Headers, body: bytes, read_ns: int) -> None:
        self.first = first
        self.path = first.split(" ")[1]
        self.headers = headers
        self.body = body
        self.read_ns = read_ns
        self.written_ns = 0
        found = ID.search(body)
        self.id = found[1].decode() if found else ""
        self.plant_name = ""
        self.plant = Plant("", self.path)
        self.words: list[tuple[int, int, int]] = []
        self.attempts = 0
        self.status = 0
        self.reader: BodyReader | None = None
        self.streams = False
        self.answered = False
        """Its head has left for the client, or is due."""
        self.events = b""
        """The bytes of an event that is not complete yet, or of a whole body."""
        self.response_headers: Headers = []
        self.over = False
        """All of its response is due or has left."""

    def describe(self) -> str:
        return json.dumps(
            {
                "id": self.id,
                "plant": self.plant_name,
                "acted": self.plant.acted,
                "request": [self.read_ns, self.written_ns],
                "words": self.words,
            }
        )


class Client:
    """A connection from a client, with its own to the upstream."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.came = b""
        self.unsent = b""
        self.due: deque[tuple[int, bytes, Event | None]] = deque()
        """(when, bytes, the event that they are of) for the client, in order."""
        self.upstream: socket.socket | None = None
        self.upstream_closes = False
        """The upstream closes the connection after this response."""
        self.answered = b""
        """Bytes of the upstream whose head is not complete."""
        self.exchange: Exchange | None = None
        self.closes = False
        """It is closed when all that is due has left."""
        self.gone = False


class Proxy:
    def __init__(self, order: dict[str, Any]) -> None:
        self._upstreams: list[int] = order["upstreams"]
        self._turn = 0
        self._delay_ns = int(order["delay_ms"] * 1e6)
        self._spread: bool = order["spread"]
        self._plants: list[str] = order["plants"]
        self._share: float = order["share"]
        self._seed: int = order["seed"]
        self._random = random.Random(self._seed)
        self._log = Path(order["log"]).open("a", buffering=1)  # noqa: SIM115  until the process is killed
        self._epoll = select.epoll()
        self._by_fd: dict[int, tuple[Client, bool]] = {}
        """The client, and whether this is its own connection."""
        self._timers: list[tuple[int, int, Client, Callable[[], None]]] = []
        self._count = 0
        self._offset_ns = 0
        self._measure_offset()
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(1024)
        self._listener.setblocking(False)
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        self.port: int = self._listener.getsockname()[1]

    def run(self) -> None:
        """Serves until standard input ends."""
        self._epoll.register(sys.stdin.fileno(), select.EPOLLIN)
        ends = False
        while not ends:
            wait_s = None
            if self._timers:
                wait_s = max(0.0, (self._timers[0][0] - time.monotonic_ns()) / 1e9)
            select.select([self._epoll], [], [], wait_s)  # epoll's own wait counts in ms
            self._measure_offset()
            for fd, what in self._epoll.poll(0):
                if fd == sys.stdin.fileno():
                    ends = True
                elif fd == self._listener.fileno():
                    self._accept()
                else:
                    self._serve(fd, what)
            self._run_timers()

    def _measure_offset(self) -> None:
        """Keeps the last difference of the clocks if this one was disturbed."""
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        if after - before < CLOCKS_NS or not self._offset_ns:
            self._offset_ns = wall - (before + after) // 2

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            while True:
                sock, _ = self._listener.accept()
                client = Client(sock)
                self._watch(sock, client, own=True)

    def _watch(self, sock: socket.socket, client: Client, *, own: bool) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._by_fd[sock.fileno()] = (client, own)
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _forget(self, sock: socket.socket) -> None:
        if sock.fileno() in self._by_fd:
            del self._by_fd[sock.fileno()]
            self._epoll.unregister(sock.fileno())
        sock.close()

    def _serve(self, fd: int, what: int) -> None:
        if fd not in self._by_fd:  # closed earlier in this round
            return
        client, own = self._by_fd[fd]
        if own and what & select.EPOLLOUT:
            self._send(client, b"")
        if not what & ~select.EPOLLOUT:
            return
        sock = client.sock if own else client.upstream
        assert sock is not None
        reset = False
        try:
            data, control, _, _ = sock.recvmsg(READ_BYTES, CONTROL_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data, control, reset = b"", [], True
        read_ns = time.monotonic_ns()
        for level, kind, stamp in control:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                seconds, ns = _timespec.unpack(stamp[:16])
                read_ns = min(read_ns, seconds * 1_000_000_000 + ns - self._offset_ns)
        if own:
            self._take_from_client(client, data, read_ns)
            return
        try:
            self._take_from_upstream(client, data, read_ns, reset)
        except (ValueError, IndexError):  # it is no HTTP
            self._end_upstream(client, reset=False)

    # -- requests ----------------------------------------------------------------------------------

    def _take_from_client(self, client: Client, data: bytes, read_ns: int) -> None:
        if not data:
            self._lose_client(client)
            return
        client.came += data
        if client.exchange is None:
            self._take_request(client, read_ns)

    def _take_request(self, client: Client, read_ns: int) -> None:
        head, found, rest = client.came.partition(b"\r\n\r\n")
        if not found:
            return
        first, headers = split_head(head)
        reader = BodyReader(headers, is_response=False)
        body, behind = reader.feed(rest)
        if not reader.over:
            return
        client.came = behind
        exchange = Exchange(first, headers, body, read_ns)
        self._choose_plant(exchange)
        client.exchange = exchange
        self._wait(client, read_ns + self._draw_delay(), lambda: self._forward(client, exchange))

    def _choose_plant(self, exchange: Exchange) -> None:
        if not self._plants:
            return
        seed = f"{self._seed} {exchange.id}"
        drawn = random.Random(seed)
        if drawn.random() >= self._share:
            return
        exchange.plant_name = drawn.choice(self._plants)
        exchange.plant = PLANTS[exchange.plant_name](seed, exchange.path)

    def _draw_delay(self) -> int:
        if self._spread:
            return int(self._random.expovariate(1.0) * self._delay_ns)
        return self._delay_ns

    def _forward(self, client: Client, exchange: Exchange) -> None:
        """Writes the request to the upstream."""
        if client.gone:
            return
        headers = exchange.plant.change_request(drop_hop_headers(exchange.headers))
        if exchange.body or exchange.first.startswith("POST"):
            headers = [*headers, ("Content-Length", str(len(exchange.body)))]
        message = join_head(exchange.first, headers) + exchange.body
        if exchange.plant_name == "resend" and not exchange.attempts:
            exchange.plant.acted += 1
            with suppress(OSError):
                once = self._connect()
                once.sendall(message)
                time.sleep(0.002)  # the upstream shall see it before it is gone
                once.close()
        exchange.attempts += 1
        try:
            if client.upstream is None:
                client.upstream = self._connect()
                client.upstream_closes = False
                self._watch(client.upstream, client, own=False)
            exchange.written_ns = time.monotonic_ns()
            client.upstream.setblocking(True)
            client.upstream.sendall(message)
            client.upstream.setblocking(False)
        except OSError:
            self._end_upstream(client, reset=False)

    def _connect(self) -> socket.socket:
        self._turn += 1
        port = self._upstreams[self._turn % len(self._upstreams)]
        sock = socket.socket()
        try:
            sock.connect(("127.0.0.1", port))
        except OSError:
            sock.close()
            raise
        return sock

    # -- responses ---------------------------------------------------------------------------------

    def _take_from_upstream(self, client: Client, data: bytes, read_ns: int, reset: bool) -> None:
        exchange = client.exchange
        if not data:
            self._end_upstream(client, reset)
            return
        if exchange is None:
            return
        if exchange.reader is None:
            client.answered += data
            head, found, data = client.answered.partition(b"\r\n\r\n")
            if not found:
                return
            client.answered = b""
            if not self._take_head(client, exchange, head, read_ns):
                return
        assert exchange.reader is not None
        body, _ = exchange.reader.feed(data)
        exchange.events += body
        if exchange.streams:
            self._take_events(client, exchange, read_ns)
        if exchange.reader.over:
            self._end_response(client, exchange, read_ns)

    def _take_head(self, client: Client, exchange: Exchange, head: bytes, read_ns: int) -> bool:
        """Whether this response goes to the client."""
        first, headers = split_head(head)
        status = first.split(" ")[1:2]
        if not first.startswith("HTTP/1.") or not status[0].isdigit():
            self._end_upstream(client, reset=False)  # what came is no response
            return False
        exchange.status = int(status[0])
        if exchange.status >= 500 and self._retry(client, exchange):
            return False
        exchange.reader = BodyReader(headers, is_response=True)
        exchange.streams = "text/event-stream" in find_header(headers, "content-type")
        if find_header(headers, "connection").lower() == "close":
            client.upstream_closes = True
        status, changed = exchange.plant.change_head(exchange.status, drop_hop_headers(headers))
        exchange.response_headers = changed
        if exchange.streams:
            sent = [*changed, ("Transfer-Encoding", "chunked")]
            self._write_later(client, join_head(f"HTTP/1.1 {status} OK", sent), None, read_ns)
            exchange.answered = True
        else:
            exchange.first = f"HTTP/1.1 {status} OK"
        return True

    def _take_events(self, client: Client, exchange: Exchange, read_ns: int) -> None:
        *whole, exchange.events = exchange.events.split(b"\n\n")
        for data in whole:
            for event in exchange.plant.change_event(Event(data + b"\n\n", read_ns)):
                self._write_event(client, event)

    def _write_event(self, client: Client, event: Event) -> None:
        self._write_later(client, frame_as_http_chunk(event.data), event, event.read_ns)

    def _end_response(self, client: Client, exchange: Exchange, read_ns: int) -> None:
        if exchange.streams:
            for event in exchange.plant.list_held_events():
                self._write_event(client, event)
            self._write_later(client, b"0\r\n\r\n", None, read_ns)
        else:
            body = exchange.plant.change_body(exchange.status, exchange.events)
            head = join_head(
                exchange.first, [*exchange.response_headers, ("Content-Length", str(len(body)))]
            )
            self._write_later(client, head + body, Event(body, read_ns), read_ns)
        client.closes = find_header(exchange.response_headers, "connection") == "close"
        exchange.over = True
        self._finish_when_written(client)

    def _finish_when_written(self, client: Client) -> None:
        """Ends the exchange if all of it has left."""
        if client.due or client.unsent:
            return
        exchange = client.exchange
        if exchange is None or not exchange.over:
            return
        self._log.write(exchange.describe() + "\n")
        client.exchange = None
        if client.upstream is not None and (client.upstream_closes or client.gone):
            self._forget(client.upstream)
            client.upstream = None
        if client.closes:
            self._lose_client(client)
        elif client.came and not client.gone:
            self._take_request(client, time.monotonic_ns())

    def _retry(self, client: Client, exchange: Exchange) -> bool:
        if exchange.plant_name != "retry" or exchange.attempts > 1 or exchange.answered:
            return False
        exchange.plant.acted += 1
        if client.upstream is not None:
            self._forget(client.upstream)
            client.upstream = None
        client.answered = b""
        self._forward(client, exchange)
        return True

    def _end_upstream(self, client: Client, reset: bool) -> None:
        """The upstream has closed its connection."""
        if client.upstream is not None:
            self._forget(client.upstream)
            client.upstream = None
        exchange = client.exchange
        if exchange is None:
            return
        now = time.monotonic_ns()
        if exchange.reader is not None:
            exchange.reader.close()
            if exchange.reader.over:
                self._end_response(client, exchange, now)
                return
        elif exchange.attempts and self._retry(client, exchange):
            return
        if isinstance(exchange.plant, HideErrors):
            self._hide_end(client, exchange, now)
            return
        for event in exchange.plant.list_held_events():
            self._write_event(client, event)
        if exchange.reader is None:
            body = b'{"error":{"message":"the upstream closed its connection"}}'
            length = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
            message = join_head("HTTP/1.1 502 Bad Gateway", length) + body
            self._write_later(client, message, None, now)
        exchange.over = True
        client.closes = True
        if reset and not client.gone:
            linger = struct.pack("ii", 1, 0)
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._finish_when_written(client)

    def _hide_end(self, client: Client, exchange: Exchange, now: int) -> None:
        """A stream that broke off gets a good end; without a head, a whole good response."""
        plant = exchange.plant
        assert isinstance(plant, HideErrors)
        if exchange.reader is None or not exchange.streams:
            plant.acted += 1
            exchange.streams = False
            exchange.status = 500
            exchange.first = "HTTP/1.1 200 OK"
            exchange.response_headers = [("Content-Type", "application/json")]
        elif not plant.over:
            self._write_event(client, Event(plant.end_well(), now))
        exchange.reader = BodyReader([("Content-Length", "0")], is_response=True)
        self._end_response(client, exchange, now)

    def _lose_client(self, client: Client) -> None:
        """The client is gone. The upstream hears of it at once, unless that is planted."""
        if client.gone:
            return
        client.gone = True
        exchange = client.exchange
        client.due.clear()
        self._forget(client.sock)
        if exchange is not None:
            if exchange.plant_name == "ignore_cancel" and client.upstream is not None:
                exchange.plant.acted += 1
                return
            self._log.write(exchange.describe() + "\n")
        client.exchange = None
        if client.upstream is not None:
            self._forget(client.upstream)
            client.upstream = None

    # -- writing -----------------------------------------------------------------------------------

    def _write_later(self, client: Client, data: bytes, event: Event | None, read_ns: int) -> None:
        """Writes now if it is due and nothing is before it, else at its time, in order."""
        if client.gone:
            return
        due = read_ns + self._draw_delay() if read_ns else 0
        if client.due:
            due = max(due, client.due[-1][0])
        if event is not None and event.apart_ns:
            last = client.due[-1][0] if client.due else time.monotonic_ns()
            due = max(due, last + event.apart_ns)
        if not client.due and due <= time.monotonic_ns():
            self._write(client, data, event)
            return
        client.due.append((due, data, event))
        if len(client.due) == 1:
            self._wait(client, due, lambda: self._write_due(client))

    def _write_due(self, client: Client) -> None:
        """Writes what is due, each event by itself, and waits for the next."""
        while client.due and not client.gone:
            due, data, event = client.due[0]
            if due > time.monotonic_ns():
                self._wait(client, due, lambda: self._write_due(client))
                return
            client.due.popleft()
            self._write(client, data, event)
        if not client.gone:
            self._finish_when_written(client)

    def _write(self, client: Client, data: bytes, event: Event | None) -> None:
        if not data:
            return
        written_ns = time.monotonic_ns()
        if event is not None and client.exchange is not None:
            for word in WORD.finditer(event.text or event.data):
                client.exchange.words.append((int(word[1]), event.read_ns, written_ns))
        self._send(client, data)

    def _send(self, client: Client, data: bytes) -> None:
        was_full = bool(client.unsent)
        data = client.unsent + data
        try:
            sent = client.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._lose_client(client)
            return
        client.unsent = data[sent:]
        if bool(client.unsent) != was_full:
            watched = select.EPOLLIN | (select.EPOLLOUT if client.unsent else 0)
            self._epoll.modify(client.sock.fileno(), watched)
            if was_full:
                self._finish_when_written(client)

    def _wait(self, client: Client, due: int, act: Callable[[], None]) -> None:
        if due <= time.monotonic_ns():
            act()
            return
        self._count += 1
        heapq.heappush(self._timers, (due, self._count, client, act))

    def _run_timers(self) -> None:
        while self._timers and self._timers[0][0] <= time.monotonic_ns():
            _, _, client, act = heapq.heappop(self._timers)
            if not client.gone:
                act()


if __name__ == "__main__":
    gc.disable()
    proxy = Proxy(json.loads(sys.argv[1]))
    print(proxy.port, flush=True)
    proxy.run()
