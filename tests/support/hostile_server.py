"""Hostile server: sends chosen bytes at each path, in a thread of this process."""

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple


class Asked(NamedTuple):
    path: str
    headers: dict[str, str]
    """The names are in lower case."""
    body: bytes


Sends = Callable[[Asked], Iterable[bytes]]
"""The pieces are sent to a request in order, then the connection closes."""


def answer(
    body: bytes | str = b"", status: int | str = 200, kind: str = "application/json", **headers: str
) -> bytes:
    """Makes a whole response. ``headers`` stay as they are, in latin-1."""
    data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    lines = [
        f"HTTP/1.1 {status}" + (" OK" if isinstance(status, int) else ""),
        f"Content-Type: {kind}",
        "Connection: close",
    ]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if "Transfer_Encoding" not in headers and "Content_Length" not in headers:
        lines.append(f"Content-Length: {len(data)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + data


def forever(data: bytes, each_s: float = 0.0) -> Iterator[bytes]:
    while True:
        yield data
        if each_s:
            time.sleep(each_s)


def slowly(data: bytes, each_s: float) -> Iterator[bytes]:
    """Yields a byte at a time."""
    for at in range(len(data)):
        yield data[at : at + 1]
        time.sleep(each_s)


BLOCK: Final = b"x" * 65_536
DEEP: Final = b"[" * 100_000 + b"]" * 100_000
PLAIN: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKED: Final = PLAIN + b"Transfer-Encoding: chunked\r\n\r\n"


def _after(first: bytes, rest: Iterable[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


# what is sent, by name: (pieces, the outcome of a fetch)
ENDLESS: Final[dict[str, tuple[Callable[[], Iterable[bytes]], str]]] = {
    "blank lines": (lambda: forever(b"\r\n" * 30_000), "timeout|malformed|too_large"),
    "an extension of a chunk without end": (
        lambda: _after(CHUNKED + b"1;", forever(b"x=y;" * 16_000)), "too_large|malformed",
    ),
    "extensions of chunks": (lambda: _after(CHUNKED, forever(b"1;a\r\nx\r\n" * 6_000)),
        "too_large|timeout"),
    "interim answers, one at a time": (lambda: forever(b"HTTP/1.1 102 Wait\r\n\r\n", 0.02),
        "timeout"),
    "silence": (lambda: forever(b"", 0.05), "timeout"),
    "the first line, a byte at a time": (lambda: slowly(PLAIN * 1000, 0.05), "timeout"),
    "headers, a line at a time": (lambda: _after(PLAIN, forever(b"X-More: y\r\n", 0.05)),
        "timeout"),
    "a body, a byte at a time": (lambda: _after(CHUNKED, forever(b"1\r\nx\r\n", 0.05)), "timeout"),
    "a body without end": (lambda: _after(PLAIN + b"\r\n", forever(BLOCK)), "too_large"),
    "chunks without end": (lambda: _after(CHUNKED, forever(b"10000\r\n" + BLOCK + b"\r\n")),
        "too_large"),
    "chunks of nothing but their size": (lambda: _after(CHUNKED, forever(b"0" * 65_536)),
        "too_large|malformed"),
    "trailers without end": (lambda: _after(CHUNKED + b"0\r\n", forever(b"X-More: y\r\n" * 5_000)),
        "too_large|malformed"),
    "a length of terabytes": (
        lambda: _after(PLAIN + b"Content-Length: 9999999999999\r\n\r\n", forever(BLOCK)),
        "too_large",
    ),
    "endless headers": (lambda: _after(PLAIN, forever(b"X-More: y\r\n" * 5_000)), "malformed"),
    "one header without end": (lambda: _after(PLAIN + b"X-More: ", forever(BLOCK)), "malformed"),
    "interim answers without end": (lambda: forever(b"HTTP/1.1 100 Continue\r\n\r\n" * 2_000),
        "malformed|too_large"),
    "no HTTP": (lambda: forever(b"SSH-2.0-OpenSSH_9.2\r\n" * 3_000), "malformed"),
    "less than it promised": (lambda: [PLAIN + b"Content-Length: 10\r\n\r\nxx"], "closed"),
    "nothing": (lambda: [], "closed|reset"),
    "two lengths": (lambda: [PLAIN + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x"],
        "malformed"),
    "packed": (lambda: [answer(b"\x1f\x8b\x08", Content_Encoding="gzip")], "malformed"),
    "a version of its own": (lambda: [b"HTTP/9.9 abc\r\n\r\n"], "malformed"),
}  # fmt: skip

# bodies that come in order, and are not what they should be
WRONG: Final[dict[str, bytes]] = {
    "nothing": b"",
    "no JSON": b"<html>\x1b[31m",
    "bytes": bytes(range(256)),
    "null": b"null",
    "truth": b"true",
    "a number": b"1e400",
    "a text": b'"text"',
    "a list": b"[]",
    "nested": DEEP,
    "nested in all": json.dumps({"data": 0, "count": 0, "usage": 0, "choices": 0})
    .replace("0", DEEP.decode())
    .encode(),
    "texts for lists": b'{"data":"abc","choices":"abc","usage":"abc","count":"abc"}',
    "lists for texts": b'{"data":[{"id":["a"]}],"choices":[[]],"usage":[],"count":[7]}',
    "truth for numbers": b'{"data":[{"id":true}],"count":true,"usage":{"prompt_tokens":true,"completion_tokens":true}}',
    "too much": b'{"count":1e400,"usage":{"prompt_tokens":1e400,"completion_tokens":1e400}}',
    "more than a number has": b'{"count":'
    + b"9" * 5_000
    + b',"usage":{"prompt_tokens":'
    + b"9" * 5_000
    + b"}}",
    "no number": b'{"count":NaN,"usage":{"prompt_tokens":NaN}}',
    "below zero": b'{"count":-1,"usage":{"prompt_tokens":-1,"completion_tokens":-5},"choices":[]}',
    "half a pair": b'{"data":[{"id":"\\ud800"}],"choices":[{"finish_reason":"\\udfff"}],"count":"\\ud800","usage":{}}',
    "null everywhere": b'{"data":null,"choices":null,"usage":null,"count":null}',
    "nulls within": b'{"data":[null],"choices":[null],"usage":{"prompt_tokens":null},"count":null}',
    "many": b'{"data":[' + b'{"id":"m"},' * 100_000 + b'{"id":"m"}]}',
    "names without end": b'{"data":['
    + (b'{"id":"' + b"m" * 1_000_000 + b'"},') * 3
    + b'{"id":"n"}]}',
}


class Hostile:
    """Sends ``paths``, and HTTP 404 at others. ``asked`` has each request."""

    def __init__(self, certificate: Path | None = None) -> None:
        """Starts the server, with TLS if there is a ``certificate``."""
        self._context: ssl.SSLContext | None = None
        if certificate is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(certificate)
        self.paths: dict[str, Sends] = {}
        self.asked: list[Asked] = []
        self.sent_bytes = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http{'s' if certificate else ''}://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open = True
        self._threads: list[threading.Thread] = []
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def whole(self, path: str, body: bytes | str, **more: Any) -> None:
        """Makes a server with the same response to every request."""
        self.paths[path] = lambda asked: [answer(body, **more)]

    def _listen(self) -> None:
        while self._open:
            with suppress(OSError):
                thread = threading.Thread(
                    target=self._serve, args=self._listener.accept()[:1], daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError, ValueError):
            client.settimeout(20)
            if self._context is not None:
                client = self._context.wrap_socket(client, server_side=True)
            file = client.makefile("rb")
            path = file.readline().split()[1].decode()
            headers = {}
            while line := file.readline().strip():
                name, _, value = line.decode("latin-1").partition(":")
                headers[name.lower()] = value.strip()
            asked = Asked(path, headers, file.read(int(headers.get("content-length", 0))))
            self.asked.append(asked)
            for data in self.paths.get(path, lambda asked: [answer("{}", 404)])(asked):
                if not self._open:
                    return
                client.sendall(data)
                self.sent_bytes += len(data)

    def close(self) -> None:
        self._open = False
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._listening.join()  # it starts no more threads
        for thread in self._threads:  # else it closes its socket when another test counts them
            thread.join(0.5)


@contextmanager
def hostile(certificate: Path | None = None) -> Iterator[Hostile]:
    server = Hostile(certificate)
    try:
        yield server
    finally:
        server.close()
