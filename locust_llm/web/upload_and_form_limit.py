"""Upload and form limit: how much of a request the web pages read, and for how long, so that no
body fills the memory or holds the loop.

Neither Locust nor Flask has a limit. gevent's server reads what is there without a turn for
anything else. It also reads after the response, to find the next request.
"""

import io
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import gevent

from .cross_site_guard import App, Start

MAX_FORM_BYTES: Final = 256 << 10
"""The most bytes of any request, except an upload."""
MAX_DIGITS: Final = 18
"""The digits of a length."""
BLOCK_BYTES: Final = 4096
MAX_WIRE_BYTES: Final = 2 << 20
"""The most bytes of such a body with the lengths of its chunks."""
TURN_S: Final = 0.005
"""After so long others have a turn."""
PAUSE_S: Final = 1e-4
"""A pause of 0 would not do: gevent looks at timers and sockets after fifty such turns."""
LINGER_S: Final = 5.0
"""The rest of an unwanted body is read for so long. If it stays unread, many clients do not see the
response."""


def limit_bodies(app: App, is_upload: Callable[[str], bool], most_upload_bytes: int) -> App:
    """``app`` behind the limits. ``is_upload`` decides by the path whether the body is passed on as
    a stream."""

    turn_at = 0.0

    def answer(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        nonlocal turn_at
        if time.monotonic() > turn_at:  # a client may have sent thousands of requests at once
            gevent.sleep(PAUSE_S)
            turn_at = time.monotonic() + TURN_S
        stream = environ["wsgi.input"]
        upload = is_upload(environ.get("PATH_INFO", ""))
        incoming = None
        if hasattr(stream, "rfile"):  # of gevent's server
            incoming = stream.rfile = IncomingBody(
                stream.rfile, 2 * most_upload_bytes if upload else MAX_WIRE_BYTES
            )
        most = most_upload_bytes if upload else MAX_FORM_BYTES
        chunked = environ.get("HTTP_TRANSFER_ENCODING", "").lower() == "chunked"
        length = _length(environ)

        def closing(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            """The rest of the body may stay unread: no next request is looked for after it."""
            if incoming is not None:
                incoming.end_by(time.monotonic() + LINGER_S)
            return start(status, [*headers, ("Connection", "close")], *more)

        if length is None or _has_no_end(environ, length):
            return _refused(
                closing, most, "400 Bad Request", "the length of the body is not valid in HTTP"
            )
        if length > most:
            return _refused(closing, most)
        if not (length or chunked):
            environ["wsgi.input"] = io.BytesIO()
            return app(environ, start)
        if upload:
            return app(environ, closing)
        try:
            body = _body(stream, most + 1)
        except OSError:
            return _refused(
                closing, most, "400 Bad Request", "the body of the request is incomplete"
            )
        if len(body) > most:
            return _refused(closing, most)
        environ["wsgi.input"] = io.BytesIO(body)
        environ["CONTENT_LENGTH"] = str(len(body))
        environ.pop("HTTP_TRANSFER_ENCODING", None)
        return app(environ, start)

    return answer


class IncomingBody:
    """The bytes of a client, as gevent's server reads them: byte by byte between chunks. It gives
    others a turn."""

    def __init__(self, file: Any, most: int) -> None:
        """``most`` bounds the bytes of a body with the lengths of its chunks."""
        self._file, self._left = file, most
        self._turn_at = time.monotonic() + TURN_S
        self._until = float("inf")

    def end_by(self, until: float) -> None:
        """After ``until`` (monotonic seconds) nothing more is read; before it, any amount is."""
        self._until, self._left = until, sys.maxsize

    def read(self, size: int) -> bytes:
        self._give_turn()
        data: bytes = self._file.read(size)
        self._left -= len(data)
        return data

    def readline(self, size: int) -> bytes:
        self._give_turn()
        line: bytes = self._file.readline(size)
        self._left -= len(line)
        return line

    def _give_turn(self) -> None:
        now = time.monotonic()
        if now > self._until or self._left < 0:
            raise OSError("a body is too long")
        if now > self._turn_at:
            gevent.sleep(PAUSE_S)
            self._turn_at = time.monotonic() + TURN_S


def _length(environ: dict[str, Any]) -> int | None:
    """The announced length, 0 without one. None: gevent's server could wait for any number of
    bytes, as it accepts everything that Python's ``int`` does."""
    text = environ.get("CONTENT_LENGTH") or "0"
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else None


def _has_no_end(environ: dict[str, Any], length: int) -> bool:
    """Whether a body has no end. gevent's server knows one coding, and passes on anything where
    another protocol is requested."""
    coding = environ.get("HTTP_TRANSFER_ENCODING", "").lower()
    if coding not in ("", "chunked"):
        return True
    return "HTTP_UPGRADE" in environ and bool(length or coding)


def _body(stream: Any, most: int) -> bytes:
    """At most ``most`` bytes. Raises OSError."""
    body = bytearray()
    while len(body) < most and (block := stream.read(min(BLOCK_BYTES, most - len(body)))):
        body += block
    return bytes(body)


def _refused(
    start: Start, most: int, status: str = "413 Content Too Large", why: str = ""
) -> Iterable[bytes]:
    size = f"{most >> 20} MB" if most >> 20 else f"{most >> 10} kB"
    line = (
        f"{status[:3]}: {why or f'the body of a request here may have at most {size}'}\n".encode()
    )
    start(
        status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(line)))]
    )
    return [line]
