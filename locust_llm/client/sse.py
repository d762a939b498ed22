"""Server-sent events out of the pieces of a response body: sseclient-py behind a guard.

sseclient-py is right about fields, but it dispatches a tail that no blank line ended, knows no
blank line of mixed line ends, raises on bad UTF-8, loses the first event after a byte order mark
and needs time that grows with the square of an endless event. So only what a blank line has ended
is given to it, all line ends as \\n, as latin-1 (which never raises; the bytes come back
unchanged), and an event of more than ``MAX_EVENT_LINES`` is refused. What it may be long is the
bound of the whole answer, which is its reader's affair.
https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation

What servers write into a stream when they fail, and no browser would read, is made an event first:
a field ``error`` (llama.cpp), an event of that type whose text is a comment (Dynamo), JSON without
a field before it.
"""

import logging
import re
from collections.abc import Iterable, Iterator

from sseclient import SSEClient

# else it logs what a server wrote, as it came
logging.getLogger("sseclient").setLevel(logging.WARNING)

MAX_EVENT_LINES = 2_000
HEAD_BYTES = 4096
LARGE_BYTES = 1 << 20
MAX_VALUES = 1 << 18
"""JSON in an event above LARGE_BYTES may have so many values. An image has few; many would take
many times its memory."""
BOM = b"\xef\xbb\xbf"

Piece = tuple[int, bytes]
"""(number of the read that brought it, bytes)"""
Event = tuple[int, str, bytes]
"""(number of the read that ended it, type, data)"""
SameFormChunks = tuple[list[int], bytes]
"""Events that differ only in the text of their chunk: (the number of the read that ended each one,
data of the last)."""


FIELD = re.compile(rb"(?:data|event|id|retry|error)?:|(?:data|event|id|retry)\n")
"""The begin of a line of an event stream: a field or a comment."""
BEGIN = re.compile(rb"(?:\xef\xbb\xbf)?\s*")
FIELDS = (b"data:", b"event:", b"id:", b"retry:", b"error:")
ODD = re.compile(rb"^(?:[{\[]|error:|event: ?error *$)", re.MULTILINE | re.IGNORECASE)
"""Text in whole events that is turned into an event first."""
ERROR = re.compile(rb"event: ?error *", re.IGNORECASE)


class EventTooLong(ValueError):
    """An event has more lines or values than are allowed."""


class EventDecoder:
    """Feed it pieces as they come, split anywhere. It gives each event once, when the blank line
    after it has come."""

    def __init__(self, shortcut: bool = True) -> None:
        """With ``shortcut``, events of one ``data:`` line do not go through sseclient-py."""
        self._shortcut = shortcut
        self.head = b""
        """The first bytes of a stream that has no event yet."""
        self._none_yet = True
        self.shared: set[int] = set()
        """The reads that brought the end of an event and the begin, but not the end, of the
        next."""
        self._held: list[bytes] = []  # the event under way
        self._held_lines = 0
        self._line_ended = False
        self._after_cr = False
        # what may still turn out to be a byte order mark; None: that is decided
        self._start: bytes | None = b""

    def feed(self, pieces: Iterable[Piece]) -> Iterator[Event]:
        """Raises EventTooLong after the events that were whole."""
        whole: list[Piece] = []
        for read, data in pieces:
            if self._start is not None:
                data = self._without_bom(self._start + data)
            if self._after_cr or b"\r" in data:
                data = self._lines(data)
            if not data:
                continue
            if self._none_yet and len(self.head) < HEAD_BYTES:
                self.head += data[:HEAD_BYTES]
            end = data.rfind(b"\n\n") + 2
            if end == 1:  # not there; but a blank line may be split over pieces
                end = 1 if self._line_ended and data.startswith(b"\n") else 0
            self._line_ended = data.endswith(b"\n")
            if end:
                whole.append((read, b"".join(self._held) + data[:end]))
                self._held, self._held_lines = [], 0
                data = data[end:]
            if data:
                self._held.append(data)
                self._held_lines += data.count(b"\n")
                if whole and whole[-1][0] == read:
                    self.shared.add(read)
        if whole:
            for event in _events(whole, self._shortcut):
                self._none_yet = False
                if len(event[2]) > LARGE_BYTES and count_json_values(event[2]) > MAX_VALUES:
                    raise EventTooLong(
                        f"an event of more than {LARGE_BYTES} bytes and {MAX_VALUES} values"
                    )
                yield event
        if self._held_lines > MAX_EVENT_LINES:
            raise EventTooLong(f"an event of more than {MAX_EVENT_LINES} lines")

    @property
    def between(self) -> bool:
        """Nothing waits for more bytes: all that came was whole events."""
        return not self._held and not self._after_cr and not self._start

    def passed(self) -> None:
        """Note that whole events went past this decoder, without a byte order mark before them."""
        self._start, self._line_ended, self._none_yet = None, True, False

    @property
    def unterminated(self) -> bool:
        """Bytes are left that no blank line ended: they are no event."""
        return any(data.strip(b"\n") for data in self._held)

    def rest(self, read: int) -> list[Event]:
        """The events in what no blank line ended, as if one had. ``read`` is the number of the last
        read. Above LARGE_BYTES it can only be whole JSON: no server's error is that long."""
        if sum(map(len, self._held)) > LARGE_BYTES and not self.ends_with_json:
            return []
        data = b"".join(self._held).strip(b"\n")
        if len(data) > LARGE_BYTES and count_json_values(data) > MAX_VALUES:
            return []
        return list(_events([(read, data + b"\n\n")], self._shortcut)) if data else []

    @property
    def ends_with_json(self) -> bool:
        """What no blank line ended has no field before it, so it is as complete as its JSON."""
        beginning = b"".join(piece[:64] for piece in self._held[:64])
        return beginning.lstrip().startswith((b"{", b"["))

    @property
    def unseparated(self) -> bool:
        """No blank line came, and yet there is more than one event."""
        return self._none_yet and len(re.findall(rb"^data: ?\{", self.head, re.MULTILINE)) > 1

    @property
    def no_stream(self) -> bytes:
        """The first line that shows that this is no event stream. It is empty after any event, and
        where only comments came."""
        lines = self.head.split(b"\n") if self._none_yet else []
        return next((line for line in lines if line.strip() and not FIELD.match(line + b"\n")), b"")

    def _lines(self, data: bytes) -> bytes:
        """``data`` with \\n at the end of each line. A \\r\\n may be split over pieces."""
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        self._after_cr = self._after_cr or data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _without_bom(self, data: bytes) -> bytes:
        """``data`` without a leading byte order mark. Gives nothing while it may still turn out to
        be one."""
        if len(data) < len(BOM) and BOM.startswith(data):
            self._start = data
            return b""
        self._start = None
        return data.removeprefix(BOM)


def _events(pieces: list[Piece], shortcut: bool) -> Iterator[Event]:
    """Whole events, as sseclient-py reads them. With ``shortcut``, pieces of events of one
    ``data:`` line, alone or after ``event:``, are read here."""
    other: list[Piece] = []
    for piece in pieces:
        read, data = piece
        if not shortcut:
            plain = []
        elif data.startswith(b"data: ") and data.find(b"\n") == len(data) - 2:  # as nearly all come
            plain = [("message", data[6:-2])]
        else:
            plain = _plain(data)
        if not plain:
            other.append((read, _made_events(data)) if ODD.search(data) else piece)
            continue
        if other:
            yield from _parsed(other)
            other = []
        for kind, text in plain:
            yield read, kind, text
    if other:
        yield from _parsed(other)


def _plain(data: bytes) -> list[tuple[str, bytes]]:
    """(type, data) of each event. It is empty where one of them has more lines, or other fields."""
    events = []
    for event in data[:-2].split(b"\n\n") if data.endswith(b"\n\n") else ():
        if event.startswith(b"data: ") and b"\n" not in event:
            events.append(("message", event[6:]))
        elif (
            event.startswith(b"event: ") and event.count(b"\n") == 1
        ):  # as Responses and Messages come
            kind, _, text = event[7:].partition(b"\ndata: ")
            if not kind or not text:
                return []
            events.append((kind.decode("latin-1"), text))
        else:
            return []
    return events


def count_json_values(data: bytes) -> int:
    """Counts at most the values that a JSON text can hold."""
    return data.count(b",") + data.count(b"[") + data.count(b"{")


def is_event_stream(beginning: bytes) -> bool | None:
    """Whether the first bytes of a body are an event stream, whatever its Content-Type. None: they
    are too few."""
    if beginning and BOM.startswith(beginning):
        return None
    blank = BEGIN.match(beginning)
    text = beginning[blank.end() if blank else 0 :]
    if FIELD.match(text):
        return True
    return None if any(field.startswith(text) for field in FIELDS) else False


def _made_events(data: bytes) -> bytes:
    """Whole events, in which a server's error text has become an event of its own."""
    return b"".join(_made_event(event) + b"\n\n" for event in data.split(b"\n\n") if event)


def _made_event(event: bytes) -> bytes:
    lines = [line for line in event.split(b"\n") if line]
    if not ODD.search(event) or any(
        line.startswith(b"data") and line[5:].strip() for line in lines
    ):
        return event
    if lines[0].startswith((b"{", b"[")):
        return b"\n".join(b"data: " + line for line in lines)
    texts = [
        line
        for line in lines
        if not ERROR.fullmatch(line) and not line.startswith((b"id:", b"retry:", b"data"))
    ]
    texts = [
        line.lstrip(b":") if line.startswith(b":") else re.sub(rb"(?i)^error:", b"", line)
        for line in texts
    ]
    texts = [text.strip() for text in texts if text.strip()] or [b"an event named error"]
    return b"event: error\n" + b"\n".join(b"data: " + text for text in texts)


def _parsed(pieces: list[Piece]) -> Iterator[Event]:
    read = 0

    def source() -> Iterator[bytes]:
        nonlocal read
        for number, data in pieces:
            read = number
            yield data

    for event in SSEClient(source(), char_enc="latin-1").events():
        yield read, event.event, event.data.encode("latin-1")
