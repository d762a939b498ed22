"""Hostile answers: lists them in a catalogue, and a server in a process of its own sends them at
full speed."""

import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CLOSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DRIP_S = 0.02


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Hostile(NamedTuple):
    begins: bytes
    """These bytes are sent first."""
    goes_on: Callable[[int], bytes]
    """The function returns the next bytes by number. Without bytes the connection stays open and
    silent."""
    outcomes: str
    """These outcomes are possible. Time limits are too, as the number of bytes read until then
    depends on the machine."""
    pause_s: float = 0.0


def again(data: bytes) -> Callable[[int], bytes]:
    return lambda number: data


def once(data: bytes) -> Callable[[int], bytes]:
    return lambda number: b"" if number else data


def choices(number: int) -> bytes:
    """Makes each of a choice of its own."""
    return chunk(
        b"".join(
            b'data: {"choices":[{"index":%d,"delta":{"content":"x"}}]}\n\n' % (1000 * number + n)
            for n in range(1000)
        )
    )


LARGE = b"x" * 65_536
CATALOGUE: dict[str, Hostile] = {
    # events without end
    "pings": Hostile(EVENTS, again(chunk(b": ping\n\n" * 8192)), "too_large timeout"),
    "tokens": Hostile(EVENTS, again(chunk(TOKEN * 1000)), "too_long"),
    "newlines": Hostile(EVENTS, again(chunk(b"\n" * 65_536)), "too_large timeout"),
    "carriage returns": Hostile(EVENTS, again(chunk(b"\r" * 65_536)), "too_large timeout"),
    "pings behind a token": Hostile(EVENTS + chunk(TOKEN), again(chunk(b": ping\n\n" * 8192)),
        "too_large timeout"),
    "until close": Hostile(CLOSE + TOKEN, again(b": ping\n\n" * 1000), "too_large timeout"),
    "empty deltas": Hostile(EVENTS, again(chunk(b'data: {"choices":[]}\n\n' * 3000)),
        "too_large timeout"),
    "usage": Hostile(EVENTS, again(chunk(b'data: {"usage":{"completion_tokens":1}}\n\n' * 1500)),
        "too_large timeout"),
    "errors": Hostile(EVENTS, again(chunk(b"event: error\ndata: x\n\n" * 3000)), "stream_error"),
    "broken JSON": Hostile(EVENTS, again(chunk(b"data: {broken\n\n" * 4000)),
        "too_large malformed timeout"),
    "an event": Hostile(EVENTS, again(chunk(b"data: " + LARGE)), "malformed"),
    "an event of lines": Hostile(EVENTS, again(chunk(b"data: x\n" * 8000)), "malformed"),
    "choices": Hostile(EVENTS, choices, "malformed too_long"),
    "a done that goes on": Hostile(EVENTS + chunk(TOKEN + FINISH),
        again(chunk(b"data: [DONE]\n\n" * 4000)), "ok too_large"),
    # HTTP without end
    "a header": Hostile(b"HTTP/1.1 200 OK\r\nX: ", again(LARGE), "malformed"),
    "headers": Hostile(b"HTTP/1.1 200 OK\r\n", again(b"X: y\r\n" * 10_000), "malformed"),
    "a status line": Hostile(b"HTTP/1.1 200 ", again(LARGE), "malformed"),
    "interim responses": Hostile(b"", again(b"HTTP/1.1 100 Continue\r\n\r\n" * 2500), "malformed"),
    "a chunk size": Hostile(EVENTS, again(b"0" * 65_536), "malformed too_large"),
    "a chunk extension": Hostile(EVENTS + b"1;", again(LARGE), "too_large"),
    "a trailer": Hostile(EVENTS + b"0\r\nX: ", again(LARGE), "too_large"),
    "a length of 200 MB": Hostile(JSON + b'Content-Length: 200000000\r\n\r\n{"a": "', again(LARGE),
        "too_large"),
    "JSON without end": Hostile(JSON + b'Connection: close\r\n\r\n{"choices": "', again(LARGE),
        "too_large"),
    "an error page": Hostile(b"HTTP/1.1 500 No\r\nConnection: close\r\n\r\n", again(LARGE),
        "http_status"),
    "a length and chunks": Hostile(EVENTS[:-2] + b"Content-Length: 5\r\n\r\n", again(chunk(TOKEN)),
        "malformed"),
    "another protocol": Hostile(b"HTTP/1.1 101 Go\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        again(LARGE), "malformed"),
    "no content, and more": Hostile(b"HTTP/1.1 204 No Content\r\n\r\n", again(LARGE), "malformed"),
    "gzip": Hostile(CLOSE[:-2] + b"Content-Encoding: gzip\r\n\r\n", again(LARGE), "malformed"),
    "zeros": Hostile(b"", again(bytes(65_536)), "malformed"),
    # slow, or silent
    "nothing": Hostile(b"", once(b""), "first_token_timeout"),
    "headers that drip": Hostile(b"HTTP/1.1 200 OK\r\nX: ", again(b"x"), "first_token_timeout",
        DRIP_S),
    "interim responses that drip": Hostile(b"", again(b"HTTP/1.1 100 C\r\n\r\n"),
        "first_token_timeout", DRIP_S),
    "pings that drip": Hostile(EVENTS, again(chunk(b": ping\n\n")), "first_token_timeout", DRIP_S),
    "pings that drip behind a token": Hostile(EVENTS + chunk(TOKEN), again(chunk(b": ping\n\n")),
        "timeout", DRIP_S),
    "an event that drips": Hostile(EVENTS + chunk(TOKEN) + b"ffff\r\ndata: ", again(b"x"),
        "timeout", DRIP_S),
    "a trailer that drips": Hostile(EVENTS + chunk(TOKEN) + b"0\r\nX: ", again(b"x"), "timeout",
        DRIP_S),
    "a token, then nothing": Hostile(EVENTS + chunk(TOKEN), once(b""), "gap_timeout"),
    "gzip, then nothing": Hostile(CLOSE[:-2] + b"Content-Encoding: gzip\r\n\r\n", once(b""),
        "malformed"),
    "done, and no end": Hostile(EVENTS, once(chunk(TOKEN + FINISH + b"data: [DONE]\n\n")), "ok"),
    "done, and pings": Hostile(
        EVENTS + chunk(TOKEN + FINISH + b"data: [DONE]\n\n"), again(chunk(b": ping\n\n")), "ok",
        DRIP_S
    ),
}  # fmt: skip
GOOD = EVENTS + chunk(TOKEN * 3 + FINISH + b"data: [DONE]\n\n") + b"0\r\n\r\n"


def answer(name: str) -> Iterator[tuple[bytes, float]]:
    """Yields (bytes, seconds to wait before them)."""
    if name not in CATALOGUE:
        yield GOOD, 0.0
        return
    hostile = CATALOGUE[name]
    yield hostile.begins, 0.0
    number = 0
    while data := hostile.goes_on(number):
        yield data, hostile.pause_s
        number += 1
    yield b"", 3600.0


# -- the server, in its own process ----------------------------------------------------------------


def serve(sock: socket.socket, context: ssl.SSLContext | None, only: str) -> None:
    try:
        if context is not None:
            sock = context.wrap_socket(sock, server_side=True)
        while data := request(sock):
            top, _, _ = data.partition(b"\r\n\r\n")
            if top.startswith(b"GET"):  # the questions before a run
                sock.sendall(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n")
                continue
            named = [
                line[len(b"X-Hostile: ") :]
                for line in top.split(b"\r\n")
                if line.startswith(b"X-Hostile: ")
            ]
            for part, pause_s in answer(named[0].decode() if named else only):
                time.sleep(pause_s)
                sock.sendall(part)
    except OSError:
        pass
    finally:
        sock.close()


def request(sock: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        more = sock.recv(65_536)
        if not more:
            return b""
        data += more
    return data


def main(only: str = "", certificate: str = "") -> None:
    context = None
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    print(listener.getsockname()[1], flush=True)
    # ends with whoever began it
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=serve, args=(sock, context, only), daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
