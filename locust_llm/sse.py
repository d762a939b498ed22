"""Server-sent events out of the pieces of a response body: sseclient-py behind a guard.

sseclient-py is right about fields and line ends, but it dispatches a tail that no blank line ended, raises on bad UTF-8,
loses the first event after a byte order mark and needs time that grows with the square of an endless event. So only what
a blank line has ended is given to it, as latin-1 (which never raises; the bytes come back unchanged), and an event above
``MAX_EVENT_BYTES`` or ``MAX_EVENT_LINES`` is refused.
https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

from collections.abc import Iterable, Iterator

from sseclient import SSEClient

MAX_EVENT_BYTES = 1 << 20
MAX_EVENT_LINES = 2_000
BOM = b"\xef\xbb\xbf"
BLANK_LINES = (b"\n\n", b"\r\r", b"\r\n\r\n")

Piece = tuple[int, bytes]
"""(number of the read that brought it, bytes)"""
Event = tuple[int, str, bytes]
"""(number of the read that ended it, type, data)"""


class EventTooLong(ValueError):
    """An event above the size that any chat completion needs."""


def end_of_last_event(data: bytes) -> int:
    """Length of the part of ``data`` that ends with a blank line; 0 without one."""
    if data.endswith(b"\n\n"):  # nearly always
        return len(data)
    return max((at + len(mark) for mark in BLANK_LINES if (at := data.rfind(mark)) >= 0), default=0)


class EventDecoder:
    """Feed it pieces as they come, in any split; it gives each event once, when its blank line is there."""

    def __init__(self) -> None:
        self._held: list[Piece] = []  # the event under way
        self._held_bytes = 0
        self._held_lines = 0
        self._tail = b""  # its last three bytes: a blank line may be split over pieces
        self._started = False

    def feed(self, pieces: Iterable[Piece]) -> Iterator[Event]:
        """Raises EventTooLong."""
        whole: list[Piece] = []
        for read, data in pieces:
            if not self._started:
                data = self._without_bom(data)
                if not self._started:
                    continue
            seen = self._tail + data
            end = end_of_last_event(seen) - len(self._tail)
            self._tail = seen[-3:]
            if end <= 0:
                self._hold(read, data)
                continue
            whole += self._held
            whole.append((read, data[:end]))
            self._held, self._held_bytes, self._held_lines = [], 0, 0
            if end < len(data):
                self._hold(read, data[end:])
        if whole:
            yield from _events(whole)

    @property
    def unterminated(self) -> bool:
        """Something that no blank line ended is left: it is no event."""
        return any(data.strip(b"\r\n") for _, data in self._held)

    def _hold(self, read: int, data: bytes) -> None:
        self._held.append((read, data))
        self._held_bytes += len(data)
        self._held_lines += data.count(b"\n") + data.count(b"\r")
        if self._held_bytes > MAX_EVENT_BYTES or self._held_lines > MAX_EVENT_LINES:
            raise EventTooLong(f"an event of more than {MAX_EVENT_BYTES} bytes or {MAX_EVENT_LINES} lines")

    def _without_bom(self, data: bytes) -> bytes:
        """``data`` without a leading byte order mark; nothing while it may still turn out to be one."""
        data = self._tail + data
        if len(data) < len(BOM) and BOM.startswith(data):
            self._tail = data
            return b""
        self._started = True
        self._tail = b""
        return data.removeprefix(BOM)


def _events(pieces: list[Piece]) -> Iterator[Event]:
    read = 0

    def source() -> Iterator[bytes]:
        nonlocal read
        for number, data in pieces:
            read = number
            yield data

    for event in SSEClient(source(), char_enc="latin-1").events():
        yield read, event.event, event.data.encode("latin-1")
