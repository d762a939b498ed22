"""Server-sent events out of the pieces of a response body: sseclient-py behind a guard.

sseclient-py is right about fields, but it dispatches a tail that no blank line ended, knows no blank line of mixed line
ends, raises on bad UTF-8, loses the first event after a byte order mark and needs time that grows with the square of an
endless event. So only what a blank line has ended is given to it, all line ends as \\n, as latin-1 (which never raises;
the bytes come back unchanged), and an event above ``MAX_EVENT_BYTES`` or ``MAX_EVENT_LINES`` is refused.
https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

import logging
from collections.abc import Iterable, Iterator

from sseclient import SSEClient

logging.getLogger("sseclient").setLevel(logging.WARNING)  # else it logs what a server wrote, as it came

MAX_EVENT_BYTES = 1 << 20
MAX_EVENT_LINES = 2_000
BOM = b"\xef\xbb\xbf"

Piece = tuple[int, bytes]
"""(number of the read that brought it, bytes)"""
Event = tuple[int, str, bytes]
"""(number of the read that ended it, type, data)"""
Alike = tuple[list[int], bytes]
"""Events that differ in the text of their chunk alone: (for each the number of the read that ended it, data of the last)"""


class EventTooLong(ValueError):
    """An event above the size that any chat completion needs."""


class EventDecoder:
    """Feed it pieces as they come, in any split; it gives each event once, when its blank line is there."""

    def __init__(self) -> None:
        self.shared: set[int] = set()
        """The reads that brought the end of an event and the beginning, but not the end, of the next."""
        self._held: list[bytes] = []  # the event under way
        self._held_bytes = 0
        self._held_lines = 0
        self._line_ended = False
        self._after_cr = False
        self._start: bytes | None = b""  # what may still turn out to be a byte order mark; None: that is decided

    def feed(self, pieces: Iterable[Piece]) -> Iterator[Event]:
        """Raises EventTooLong, after the events that were whole."""
        whole: list[Piece] = []
        for read, data in pieces:
            if self._start is not None:
                data = self._without_bom(self._start + data)
            if self._after_cr or b"\r" in data:
                data = self._lines(data)
            if not data:
                continue
            end = data.rfind(b"\n\n") + 2
            if end == 1:  # not there; but a blank line may be split over pieces
                end = 1 if self._line_ended and data.startswith(b"\n") else 0
            self._line_ended = data.endswith(b"\n")
            if end:
                whole.append((read, b"".join(self._held) + data[:end]))
                self._held, self._held_bytes, self._held_lines = [], 0, 0
                data = data[end:]
            if data:
                self._held.append(data)
                self._held_bytes += len(data)
                self._held_lines += data.count(b"\n")
                if whole and whole[-1][0] == read:
                    self.shared.add(read)
        if whole:
            yield from _events(whole)
        if self._held_bytes > MAX_EVENT_BYTES or self._held_lines > MAX_EVENT_LINES:
            raise EventTooLong(f"an event of more than {MAX_EVENT_BYTES} bytes or {MAX_EVENT_LINES} lines")

    @property
    def between(self) -> bool:
        """All that came was whole events: nothing of it is waiting for what follows."""
        return not self._held and not self._after_cr and not self._start

    def passed(self) -> None:
        """Whole events, which began with no byte order mark, came past this decoder."""
        self._start, self._line_ended = None, True

    @property
    def unterminated(self) -> bool:
        """Something that no blank line ended is left: it is no event."""
        return any(data.strip(b"\n") for data in self._held)

    def _lines(self, data: bytes) -> bytes:
        """``data`` with \\n at the end of each line; a \\r\\n may be split over pieces."""
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        self._after_cr = self._after_cr or data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _without_bom(self, data: bytes) -> bytes:
        """``data`` without a leading byte order mark; nothing while it may still turn out to be one."""
        if len(data) < len(BOM) and BOM.startswith(data):
            self._start = data
            return b""
        self._start = None
        return data.removeprefix(BOM)


def _events(pieces: list[Piece]) -> Iterator[Event]:
    """Pieces of whole events, as sseclient-py reads them; where all of a piece are one ``data:`` line, alone or after
    ``event:``, they are read here."""
    other: list[Piece] = []
    for piece in pieces:
        read, data = piece
        if data.startswith(b"data: ") and data.find(b"\n") == len(data) - 2:  # as nearly all come
            plain = [("message", data[6:-2])]
        else:
            plain = _plain(data)
        if not plain:
            other.append(piece)
            continue
        if other:
            yield from _parsed(other)
            other = []
        for kind, text in plain:
            yield read, kind, text
    if other:
        yield from _parsed(other)


def _plain(data: bytes) -> list[tuple[str, bytes]]:
    """(type, data) of each event; empty where one of them has more lines, or other fields."""
    events = []
    for event in data[:-2].split(b"\n\n") if data.endswith(b"\n\n") else ():
        if event.startswith(b"data: ") and b"\n" not in event:
            events.append(("message", event[6:]))
        elif event.startswith(b"event: ") and event.count(b"\n") == 1:  # as Responses and Messages come
            kind, _, text = event[7:].partition(b"\ndata: ")
            if not kind or not text:
                return []
            events.append((kind.decode("latin-1"), text))
        else:
            return []
    return events


def _parsed(pieces: list[Piece]) -> Iterator[Event]:
    read = 0

    def source() -> Iterator[bytes]:
        nonlocal read
        for number, data in pieces:
            read = number
            yield data

    for event in SSEClient(source(), char_enc="latin-1").events():
        yield read, event.event, event.data.encode("latin-1")
