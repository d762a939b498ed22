"""Raw answer: the reads of a response and their stamps, taken apart without the load generator's own
parser, which repairs and skips what a gateway may have changed.

Nothing here knows an API. ``parse_reads`` takes the HTTP frame off, ``split_events`` finds the
events of a stream with the moment of each, and ``find_words`` the words of the timed upstream.
"""

import re
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from .upstream_script import STAMP_DIGITS

WORD: Final = re.compile(rb"w(\d{1,6})\.(\d{%d})" % STAMP_DIGITS)
FIRST_WORD: Final = re.compile(rb"r(\d{%d})\.(\d{1,4}) " % STAMP_DIGITS)
EVENT_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
CODINGS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}
"""The window bits of zlib for each coding that is read here."""

Read = tuple[int, bytes]
"""(the kernel's stamp of its newest byte in monotonic ns, bytes)"""


class RawAnswer(NamedTuple):
    """A response without its HTTP frame."""

    status: int | None
    """None: no head came, or it is not HTTP."""
    headers: tuple[tuple[str, str], ...]
    pieces: tuple[Read, ...]
    """The body, decompressed, with the moment of each piece."""
    complete: bool
    """The HTTP message has its end. A body that ends with the connection has it where that was
    closed."""
    coding: str = ""

    def header(self, name: str) -> str:
        """The values of a header, joined. ``name`` is in lower case."""
        return ", ".join(value for key, value in self.headers if key.lower() == name)

    @property
    def body(self) -> bytes:
        return b"".join(data for _, data in self.pieces)

    @property
    def is_event_stream(self) -> bool:
        return "text/event-stream" in self.header("content-type").lower()


class StreamEvent(NamedTuple):
    """One event of a stream, or a comment."""

    at_ns: int
    """Its last byte had come."""
    type: str
    """Of its field ``event``. Empty: it has none."""
    data: bytes
    id: str = ""
    comment: bytes | None = None
    """The text of a comment, where there is nothing else."""


class SentWord(NamedTuple):
    """A word of the timed upstream as it arrived."""

    number: int
    sent_ns: int
    at_ns: int
    """The event that holds it had come."""


class AnswerTimes(NamedTuple):
    """The moments of an answer, in ns of the monotonic clock of both sides."""

    received_ns: int | None
    """The upstream had the request. None: the first word is not there."""
    words: tuple[SentWord, ...]
    """Each word once, in the order of their arrival."""
    end_ns: int | None
    """The last byte of the body had come."""


class _Stamped:
    """Bytes, and when each had come."""

    def __init__(self, pieces: Iterable[Read]) -> None:
        self._ends = list[int]()
        self._stamps = list[int]()
        parts = list[bytes]()
        end = 0
        for stamp_ns, part in pieces:
            end += len(part)
            parts.append(part)
            self._ends.append(end)
            self._stamps.append(stamp_ns)
        self.data = b"".join(parts)

    def come_by(self, end: int) -> int:
        """When the first ``end`` bytes had come. ``end`` is at least 1."""
        return self._stamps[bisect_left(self._ends, end)]

    def cut(self, start: int, end: int) -> list[Read]:
        """The bytes from ``start`` to ``end``, in pieces of the reads that brought them."""
        pieces = list[Read]()
        while start < end:
            place = bisect_left(self._ends, start + 1)
            to = min(end, self._ends[place])
            pieces.append((self._stamps[place], self.data[start:to]))
            start = to
        return pieces


def parse_reads(reads: Iterable[Read], *, closed: bool) -> RawAnswer:
    """Takes the HTTP frame off. ``closed``: the peer closed the connection in order."""
    raw = _Stamped(read for read in reads if read[1])
    start = 0
    while True:
        end = raw.data.find(b"\r\n\r\n", start)
        first, *lines = raw.data[start:end].decode("latin-1").split("\r\n")
        match = re.match(r"HTTP/1\.[01] (\d{3})", first)
        if end < 0 or match is None:
            return RawAnswer(None, (), (), complete=False)
        start = end + 4
        if int(match[1]) >= 200:  # others announce the answer
            break
    pairs = [line.partition(":") for line in lines]
    headers = tuple((name.strip(), value.strip()) for name, _, value in pairs)
    head = RawAnswer(int(match[1]), headers, (), complete=False)
    chunked = "chunked" in head.header("transfer-encoding").lower()
    length = head.header("content-length")
    if chunked:
        pieces, complete = _unchunk(raw, start)
    elif length.isdigit():
        pieces = raw.cut(start, min(len(raw.data), start + int(length)))
        complete = len(raw.data) - start >= int(length)
    else:
        pieces = raw.cut(start, len(raw.data))
        complete = closed
    coding = head.header("content-encoding").lower()
    pieces = _decompress(pieces, coding)
    return head._replace(pieces=tuple(pieces), complete=complete, coding=coding)


def _unchunk(raw: _Stamped, at: int) -> tuple[list[Read], bool]:
    """(pieces of the body, whether its end came). A broken chunk ends them."""
    pieces = list[Read]()
    while True:
        end = raw.data.find(b"\r\n", at)
        try:
            size = int(raw.data[at:end].partition(b";")[0], 16) if end >= 0 else -1
        except ValueError:
            size = -1
        if size < 0:
            return pieces, False
        if size == 0:
            return pieces, raw.data.find(b"\r\n\r\n", end) >= 0
        start = end + 2
        pieces += raw.cut(start, min(len(raw.data), start + size))
        at = start + size + 2
        if at > len(raw.data):
            return pieces, False


def _decompress(pieces: list[Read], coding: str) -> list[Read]:
    """The plain pieces. A coding that is not read here, or broken bytes, leave them as they are."""
    if coding not in CODINGS:
        return pieces
    unpacker = zlib.decompressobj(CODINGS[coding])
    try:
        return [(stamp_ns, unpacker.decompress(data)) for stamp_ns, data in pieces]
    except zlib.error:
        return pieces


def split_events(pieces: Iterable[Read]) -> list[StreamEvent]:
    """The events of a stream, and its comments. Bytes that no blank line ended are none."""
    stamped = _Stamped(piece for piece in pieces if piece[1])
    events = list[StreamEvent]()
    start = 0
    for match in EVENT_END.finditer(stamped.data):
        block = stamped.data[start : match.start()]
        start = match.end()
        if block.strip():
            events.append(_parse_event(stamped.come_by(match.end()), block))
    return events


def _parse_event(at_ns: int, block: bytes) -> StreamEvent:
    kind, event_id = "", ""
    data = list[bytes]()
    comments = list[bytes]()
    for line in block.splitlines():
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"":
                comments.append(value)
            case b"data":
                data.append(value)
            case b"event":
                kind = value.decode("latin-1")
            case b"id":
                event_id = value.decode("latin-1")
    only = b"\n".join(comments) if comments and not data and not kind else None
    return StreamEvent(at_ns, kind, b"\n".join(data), event_id, only)


def find_words(texts: Iterable[tuple[int, bytes]]) -> list[SentWord]:
    """Every word in texts with their moments, also those that come more than once."""
    words = list[SentWord]()
    for at_ns, text in texts:
        for index, sent in WORD.findall(text):
            words.append(SentWord(int(index), int(sent), at_ns))
    return words


def read_times(answer: RawAnswer) -> AnswerTimes:
    """The moments of an answer, streamed or whole. Texts that APIs repeat at the end count once."""
    texts: Sequence[tuple[int, bytes]]
    end_ns = answer.pieces[-1][0] if answer.pieces else None
    if answer.is_event_stream:
        texts = [(event.at_ns, event.data) for event in split_events(answer.pieces)]
    else:
        texts = [] if end_ns is None else [(end_ns, answer.body)]
    first: Any = next(filter(None, (FIRST_WORD.search(text) for _, text in texts)), None)
    seen = dict[int, SentWord]()
    for word in find_words(texts):
        seen.setdefault(word.number, word)
    return AnswerTimes(
        received_ns=None if first is None else int(first[1]),
        words=tuple(seen.values()),
        end_ns=end_ns,
    )
