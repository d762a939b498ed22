"""Response chunks: one response as its bytes arrive, and the stamps of its chunks. Stamps come
first; everything else waits until there is time.

Until the first chunk with content, each read is decoded soon, because a slot of the gate waits for
that chunk. After it a read costs a few appends and one check for the end. The bytes are decoded at
the end, or when ``DECODE_BYTES`` are waiting, so that a long answer does not pile up.
"""

import re
from array import array
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Final

from locust_llm.protocols.answer_parser import Completion
from locust_llm.protocols.error_message import error_line, status_message
from locust_llm.protocols.lenient_json import decode_lenient_json
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.records.outcomes import CANCELLED, CUT, OK, TOO_LARGE, TOO_LONG
from locust_llm.records.record import MOST_CHUNKS
from locust_llm.records.server_times import (
    HEADER_NAMES,
    DraftCounts,
    ServerTimes,
    parse_llama_timings,
    parse_timing_headers,
    parse_vllm_drafts,
    parse_vllm_metrics,
)
from locust_llm.settings.run_options import MAX_RESPONSE_BYTES

from .compression import UNCOMPRESSED, decompress_body, parse_codings
from .http_response_parser import HTTPParseError, HTTPResponseParser
from .sse import Event, EventDecoder, EventTooLong, Piece, SameFormChunks, is_event_stream

DECODE_BYTES: Final = 16_384
FORM_READS: Final = 2
"""The first reads behind the headers mostly bring the role and the first chunk."""
MIN_READ_BYTES: Final = 64
"""A read counts for at least so many bytes: its stamps take memory too, and a server may send byte
by byte."""
MIN_CHUNK_BYTES: Final = 256
"""A chunk counts for at least so many bytes, which it takes in a record. No answer may have more
than ``MOST_CHUNKS``."""
MAX_CHOICES: Final = 1024
MAX_BODY_BYTES: Final = 1 << 24
MAX_ERROR_BYTES: Final = 1 << 18
"""So much is kept of the body of an error, and of an answer that is given up. A message shows less
of it."""
MAX_HEADER_BYTES: Final = 1 << 16
BEGINNING_BYTES: Final = 256
"""The first bytes of a body, which show whether it is an event stream."""
DONE_NS: Final = 1_000_000_000
"""How long after ``[DONE]`` the end of the HTTP message may come. Most servers send both at once,
together with a token count behind ``[DONE]``. A second is a thousand round trips of a nearby
network."""
QUIET_NS: Final = 1_000_000_000
WAITED_NS: Final = 5_000_000_000
"""Bytes are decoded when nothing has followed them for QUIET_NS, and at the latest so long after
they came."""
EARLY_NS: Final = 1_000_000
SLOW_READ_NS: Final = 1_000_000
"""Above this read lag, a chunk may have come before the events without content that follow it."""
STATUS_OUTCOMES: Final = {429: "rate_limited", 503: "unavailable"}
SPOILT: Final = ("malformed", TOO_LARGE, TOO_LONG)
"""An answer that has its ``[DONE]`` can still have these outcomes. Any other end came too late to
change it."""
CHUNK_SIZE: Final = re.compile(rb"0*[1-9a-fA-F][0-9a-fA-F]{0,5}")
CUT_SHORT: Final = (
    "the server closed the connection without a TLS close_notify, so the end may be missing"
)
NO_END: Final = "the stream has its [DONE], but the HTTP message does not end"


class Response:
    """One answer. The reader's thread alone fills it until it is over; then the greenlet that sent
    the request reads it."""

    def __init__(
        self,
        sent_ns: int,
        *,
        kind: str = "chat",
        keep_text: bool = False,
        checked: bool = False,
        max_bytes: int = MAX_RESPONSE_BYTES,
        max_chunks: int | None = None,
    ) -> None:
        """``kind`` is the protocol of the endpoint: see ``PROTOCOLS``. ``checked``: see
        ``Completion``."""
        self.sent_ns = sent_ns
        self.written_ns: int | None = None
        """When the whole request had been written."""
        self.newest: Callable[[], int] | None = None
        """Asks the reader for the stamp of its last read (monotonic ns), whose bytes may not be
        here yet. None: they are here."""
        self.plain_events: (
            Callable[
                [list[bytes], int, bytes, bytes], tuple[list[Event | SameFormChunks], int, int]
            ]
            | None
        ) = None
        """Takes events out of reads faster than the parser does: see client/reader/_reader.pyi.
        None: there is only the parser."""
        self.max_bytes, self.max_chunks = max_bytes, max_chunks
        self.stamps = array("q")
        """The arrival of each read in monotonic ns: the kernel's stamp of its newest byte, else the
        clock after the read."""
        self.since = array("q")
        """For each read, the moment after which all of its bytes came, in monotonic ns."""
        self.unstamped = 0
        self.bad_stamps = 0
        self.read_lag_ns = 0
        self.received_bytes = 0
        self.headers_ns: int | None = None
        self.answer = Completion(PROTOCOLS[kind], keep_text, checked=checked)
        self.frame = HTTPResponseParser()
        self.first_seen = False
        """Prefill is over: the first chunk has come, or an error in its place."""
        self.over = False
        self.failure: tuple[str, str] | None = None
        self._cut = False
        """The connection's end was the only end of the answer, and TLS did not announce it."""
        self.waiting_bytes = 0
        """Bytes that are read and not decoded yet."""
        self._unframed: list[bytes] = []
        self._framed = self._decoded = 0
        """How many reads are taken out of the HTTP frame."""
        self._aligned = False
        """The last read ended with a whole HTTP chunk, or with the headers before the first one."""
        # streams that begin together do not all decode at the same moment
        self._decode_at = sent_ns % DECODE_BYTES
        self._events: EventDecoder | None = None
        self._beginning: list[Piece] | None = None
        """The begin of a body that may still turn out to be an event stream. None: that is
        known."""
        self._codings: tuple[str, ...] = ()
        self._body: list[bytes] = []
        self._body_bytes = 0

    def append_read(self, stamp_ns: int, since_ns: int, data: bytes) -> bool:
        """Add one read. Return whether ``decode_pending`` must follow. Set ``over`` if the read
        brought the end."""
        self.stamps.append(stamp_ns)
        self.since.append(since_ns)
        self._unframed.append(data)
        self.waiting_bytes += len(data)
        if not self.first_seen or self.waiting_bytes > self._decode_at:
            return True
        # it may hold the end (rfind: half the time of ``in``); only the parser knows
        if not self.frame.chunked or data.rfind(b"\r\n\r\n") >= 0 or len(data) < 5:
            self._unframe()
            self.over = self.over or self.frame.complete
        return False

    def append_reads(self, stamps: bytes, since: bytes, data: list[bytes]) -> None:
        """Add reads of the native reader; ``decode_pending`` follows. ``stamps`` and ``since`` are
        the bytes of arrays of int64."""
        self.stamps.frombytes(stamps)
        self.since.frombytes(since)
        self._unframed += data
        self.waiting_bytes += sum(map(len, data))

    def decode_pending(self, now_ns: int = 0) -> None:
        """Decode what came. Sets ``first_seen`` and ``over`` if the bytes brought that.

        An answer is also over when its ``[DONE]`` came more than DONE_NS before ``now_ns`` and its
        HTTP message has no end.
        """
        self._decode()
        self._decode_at = DECODE_BYTES if self.first_seen else self._decode_at
        answer = self.answer
        self.first_seen = self.first_seen or bool(answer.chunk_reads) or answer.error is not None
        self.over = self.over or self.frame.complete
        if (
            answer.done_read is not None
            and not self.over
            and now_ns - self.stamps[answer.done_read] > DONE_NS
        ):
            self.failure = self.failure or ("closed", NO_END)
            self.over = True

    def must_decode(self, now_ns: int) -> bool:
        """Whether ``decode_pending`` must run although nothing came: bytes have waited long enough,
        or the end of the message is overdue."""
        stamps, decoded = self.stamps, self._decoded
        if decoded < len(stamps):
            return now_ns - stamps[-1] > QUIET_NS or now_ns - stamps[decoded] > WAITED_NS
        done = self.answer.done_read
        return done is not None and now_ns - stamps[done] > DONE_NS

    def note_closed(self, *, cut: bool = False) -> None:
        """The peer closed the connection. ``cut``: TLS did not announce the end."""
        self._unframe()
        if self.failure is None and not self.frame.complete:
            self.frame.end()
            self._cut = cut and self.frame.complete
            if not self.frame.complete:
                self.failure = (
                    "closed",
                    "the server closed the connection before the response was complete",
                )
        self.over = True

    def end_with(self, outcome: str, message: str) -> None:
        """End the answer, for a reason of this process or of the network."""
        if not self.over:
            self._unframe()
            if not self.frame.complete:  # else it was all there already
                self.failure = self.failure or (outcome, message)
            self.over = True

    def give_up(self, outcome: str, message: str) -> None:
        """End the answer, for a fault of this program. What is not decoded may be what cannot be
        decoded, and is dropped."""
        if not self.over or self._decoded < len(self.stamps):
            self._stop_reading(outcome, message)
        self._unframed, self.frame.pieces, self.waiting_bytes = [], [], 0

    def finish(self) -> tuple[str, str]:
        """Decode what is left. Returns (outcome, message). Called once, after the answer is
        over."""
        try:
            self._decode()
            self._take_unterminated()
            return self._outcome()
        except Exception as error:
            self.failure = (
                "malformed",
                f"the response could not be read: {describe_exception(error)}",
            )
            return self.failure

    @property
    def newest_ns(self) -> int:
        """The arrival of the last bytes in monotonic ns. Valid after the first read."""
        newest = self.newest  # the reader takes it away when the answer is over
        return self.stamps[-1] if newest is None else max(self.stamps[-1], newest())

    @property
    def ended_ns(self) -> int | None:
        """When all of the answer had come, in monotonic ns. None: it never came whole."""
        if self.frame.complete:
            return self.stamps[-1]
        if not self._done:
            return None
        answer = self.answer
        return max(
            self.stamps[read]
            for read in (answer.done_read, *answer.chunk_reads[-1:])
            if read is not None
        )

    @property
    def _done(self) -> bool:
        """The last event came, whatever became of the HTTP message."""
        return self.answer.done_read is not None and (
            self.failure is None or self.failure[0] not in SPOILT
        )

    @property
    def status(self) -> int | None:
        return self.frame.get_code() if self.frame.has_headers else None

    @property
    def streamed(self) -> bool:
        """The answer is an event stream, or there is no answer."""
        return self._events is not None or not self.frame.has_headers

    @property
    def body(self) -> bytes:
        """The body, decompressed where it can be: an error may come compressed, though no request
        asks for that."""
        whole = b"".join(self._body)
        if not self._codings:
            return whole
        plain = decompress_body(whole, self._codings, MAX_ERROR_BYTES)
        return readable_body(whole, self._codings) if plain is None else plain

    @property
    def sample(self) -> bytes:
        """The evidence of a failure: the body. Of an event stream it is the event that was wrong,
        else the last one."""
        return self.body if self._events is None else self.answer.broken or self.answer.last

    def _outcome(self) -> tuple[str, str]:
        status = self.status
        if self._done and not self.frame.complete:
            outcome, message = self.answer.outcome()
            return outcome, message or NO_END
        if self.failure is not None and self.failure[0] in (CUT, CANCELLED, "malformed"):
            return self.failure
        if status is not None and not 200 <= status < 300:
            why = status_message(self.body)
            if 300 <= status < 400 and (to := self.frame.get("location")):
                why = (
                    f"to {error_line(str(to).partition('?')[0].encode())}, and redirects are not "
                    f"followed"
                )
            return STATUS_OUTCOMES.get(status, "http_status"), f"HTTP {status}: {why}"
        # it explains more than the end of the connection after it
        if self.answer.error is not None:
            return self.answer.outcome()
        if self.failure is not None:
            return self.failure
        if self._events is None and self._codings:
            if self.answer.look_for_error(self.body):
                return self.answer.outcome()
            return "malformed", self._compressed
        if self._events is None:
            self.answer.whole(self.body)
        elif not self.answer.last and (line := self._events.no_stream):
            return (
                "malformed",
                f"not an event stream, despite its Content-Type: {error_line(line)}",
            )
        elif self._events.unseparated and not self.answer.finished:
            return (
                "malformed",
                "no blank lines between the events, so the time of each event is unknown",
            )
        elif self._events.unterminated and not self.answer.finished:
            return "truncated", "the last event is incomplete"
        outcome, message = self.answer.outcome()
        if self._cut and outcome in (OK, "malformed") and not self._ended_in_itself(outcome):
            return "truncated", CUT_SHORT
        return outcome, message

    def _ended_in_itself(self, outcome: str) -> bool:
        """The answer itself shows that nothing is missing: it has whole JSON, or a last event."""
        if self._events is None:
            return outcome == OK
        return self._done or self.answer.closing

    @property
    def _compressed(self) -> str:
        return f"Content-Encoding {', '.join(self._codings)}: {UNCOMPRESSED}"

    def _take_unterminated(self) -> None:
        """Drop what no blank line ended, unless it is an error, or whole JSON."""
        if self._events is None or not self._events.unterminated or not self.stamps:
            return
        if self.failure is not None and self.failure[0] in SPOILT:
            return
        for event in self._events.rest(len(self.stamps) - 1):
            _, kind, data = event
            if kind.lower() == "error" or self._events.ends_with_json:
                if kind.lower() == "error" or is_json(data):
                    self.answer.add(event)
            else:
                self.answer.look_for_error(data)

    def _unframe(self, *, until_aligned: bool = False) -> None:
        """Take what was read out of its HTTP frame. ``until_aligned``: leave the reads behind the
        headers, if the shortcut can go on there."""
        unframed, self._unframed = self._unframed, []
        frame = self.frame
        try:
            for number, data in enumerate(unframed):
                if self.over or frame.complete:
                    break
                if until_aligned and self._aligned:
                    self._unframed = unframed[number:]
                    return
                frame.read = self._framed
                self._framed += 1
                self.received_bytes += len(data)
                self._aligned = False
                frame.feed(data)
                if self.headers_ns is None and frame.has_headers:
                    self._handle_headers(data)
                if self.received_bytes > MAX_HEADER_BYTES and not frame.has_headers:
                    raise HTTPParseError("headers without end")
        except HTTPParseError as mistake:
            if frame.complete:  # a whole answer, and something after it
                frame.closed_by_peer = True
            else:
                self.failure = self.failure or ("malformed", f"not HTTP: {mistake}")
            self.over = True
            if self.headers_ns is None and frame.has_headers:
                self._handle_headers(b"")
        # read before it was known that the answer was over: no part of it
        if self._framed < len(self.stamps):
            del self.stamps[self._framed :], self.since[self._framed :]
            frame.closed_by_peer = self.over = True

    def _handle_headers(self, data: bytes) -> None:
        """Handle the complete headers. ``data`` is the read that ended them."""
        self.headers_ns = self.stamps[self.frame.headers_read]
        if not 200 <= self.frame.get_code() < 300:
            self._codings = parse_codings(str(self.frame.get("content-encoding", "")))
            return
        kind = str(self.frame.get("content-type", "")).lower()
        self._codings = parse_codings(str(self.frame.get("content-encoding", "")))
        if self._codings and "event-stream" in kind:
            self._stop_reading("malformed", self._compressed)
        elif "event-stream" in kind:
            self._events = EventDecoder(shortcut=self.plain_events is not None)
            self._aligned = str(
                self.frame.get("transfer-encoding")
            ).strip().lower() == "chunked" and ends_aligned(data)
        elif not self._codings:
            self._beginning = []

    def _detect_event_stream(self, pieces: list[Piece]) -> list[Piece]:
        """Recognise an event stream by its first bytes, as some servers forget its Content-Type.
        Returns what can be decoded."""
        if self._beginning is None:
            return pieces
        pieces = self._beginning + pieces
        self._beginning = None
        beginning = b"".join(data for _, data in pieces)[: BEGINNING_BYTES + 1]
        is_stream = is_event_stream(beginning)
        if is_stream:
            self._events = EventDecoder(shortcut=self.plain_events is not None)
        elif is_stream is None and len(beginning) <= BEGINNING_BYTES and not self.over:
            self._beginning = pieces
            return []
        return pieces

    def _decode(self) -> None:
        """Turn the bytes into events and add the events to the answer, within its bounds."""
        if self.headers_ns is None and self.plain_events:
            self._unframe(until_aligned=True)
            self._decode_pieces()
        self._decode_plain_events()
        self._unframe()
        self._decode_pieces()
        self._decoded = self._framed
        self.waiting_bytes = 0
        self._check_bounds()

    def _decode_pieces(self) -> None:
        """Turn what was taken out of the HTTP frame into events, or keep it as a body."""
        pieces = self._detect_event_stream(self.frame.pieces)
        self.frame.pieces = []
        if self._events is None:
            self._extend_body(pieces)
        else:
            try:
                for event in self._events.feed(pieces):
                    self.answer.add(event)
            except EventTooLong as mistake:
                self._stop_reading("malformed", str(mistake))

    def _decode_plain_events(self) -> None:
        """Take the events at the begin of the reads by the shortcut, as far as it knows them."""
        if not self._aligned or self._events is None or not self._events.between:
            return
        if not self.answer.form[0]:  # the first reads show the form that most others have
            self._take_plain_events(self._events, self._unframed[:FORM_READS])
        self._take_plain_events(self._events, self._unframed)

    def _take_plain_events(self, decoder: EventDecoder, unframed: list[bytes]) -> None:
        """Take the events of some reads by the shortcut. ``unframed`` is the begin of all."""
        if not self.plain_events:
            return
        events, reads, size = self.plain_events(unframed, self._framed, *self.answer.form)
        if not events:
            return
        decoder.passed()
        del self._unframed[:reads]
        self._framed += reads
        self.received_bytes += size
        for event in events:
            if len(event) == 3:
                self.answer.add(event)
            else:
                self.answer.add_same_form(*event)
        self.answer.find_form()

    def _extend_body(self, pieces: list[Piece]) -> None:
        most = MAX_BODY_BYTES if 200 <= (self.status or 0) < 300 else MAX_ERROR_BYTES
        for _, data in pieces:
            if self._body_bytes + len(data) <= most:
                self._body.append(data)
            elif self._body_bytes < most:
                self._body.append(data[: most - self._body_bytes])
            self._body_bytes += len(data)

    def _check_bounds(self) -> None:
        chunks = len(self.answer.chunk_reads)
        most = self.max_bytes
        if (
            self.received_bytes > most
            or MIN_READ_BYTES * self._framed > most
            or MIN_CHUNK_BYTES * chunks > most
        ):
            self._stop_reading(TOO_LARGE, f"more than {most} bytes")
            self._body = [b"".join(self._body[:8])[:MAX_ERROR_BYTES]]
        if chunks > MOST_CHUNKS:
            self._stop_reading(TOO_LARGE, f"more than {MOST_CHUNKS} chunks")
        if self.max_chunks is not None and chunks > self.max_chunks:
            self._stop_reading(TOO_LONG, f"more than {self.max_chunks} chunks")
        if len(self.answer.others) > MAX_CHOICES:
            self._stop_reading("malformed", f"more than {MAX_CHOICES} choices")

    def _stop_reading(self, outcome: str, message: str) -> None:
        """What came is reason enough to read no more of the answer."""
        self.failure = self.failure or (outcome, message)
        self.over = True

    def chunks(self) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
        """(chunk_us, merged) of the record, in whole microseconds after the send: see Record.

        Two stamps may differ by a few microseconds, hence the ``max``. A stamp belongs to the
        newest byte of its read. So a chunk is merged where another chunk came with it, or the begin
        of the next event.

        Most servers send the events without content behind a chunk (usage, ``[DONE]``) at once with
        it. Such events make a chunk merged only where the reader was slow, as they may have come
        long after the chunk.
        """
        sent, stamps, reads = self.sent_ns, self.stamps, self.answer.chunk_reads
        chunk_us = tuple([(stamps[read] - sent) // 1000 for read in reads])
        if tuple(sorted(chunk_us)) != chunk_us:  # a third of the time of the maximum of each two
            chunk_us = tuple(accumulate(chunk_us, max))
        crowded = self._events.shared if self._events is not None else set()
        if self.read_lag_ns > SLOW_READ_NS:
            crowded = crowded | {
                read
                for read in self.answer.followed
                if stamps[read] - self.since[read] > SLOW_READ_NS
            }
        if len(set(reads)) < len(reads):
            crowded = crowded | {a for a, b in pairwise(reads) if a == b}
        merged = []
        for index, read in enumerate(reads) if crowded else ():
            if read in crowded:
                earliest = self.since[read] - sent
                merged.append((index, max(0, min(earliest // 1000, chunk_us[index]))))
        return chunk_us, tuple(merged)

    @property
    def early_us(self) -> int | None:
        """See Record."""
        answer = self.answer
        if answer.early_read is None or not answer.chunk_reads:
            return None
        early, first = self.stamps[answer.early_read], self.stamps[answer.chunk_reads[0]]
        return (early - self.sent_ns) // 1000 if first - early > EARLY_NS else None

    @property
    def drafts(self) -> DraftCounts | None:
        """The counts of speculative decoding, where the server reports them for each request."""
        return parse_vllm_drafts(self.answer.metrics) if self.answer.metrics else None

    @property
    def server(self) -> ServerTimes | None:
        """The server's own times, if the answer has any."""
        times = parse_llama_timings(self.answer.timings) if self.answer.timings else None
        if times is None and self.answer.metrics:
            times = parse_vllm_metrics(self.answer.metrics)
        if times is None and self.frame.has_any(HEADER_NAMES):
            times = parse_timing_headers(self.frame.get, streamed=self.streamed)
        return times


def ends_aligned(data: bytes) -> bool:
    """Whether the first read of an answer has nothing but the headers and whole HTTP chunks."""
    head, _, rest = data.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 2") or head.count(b"\n") != head.count(b"\r\n"):
        return False
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        if not CHUNK_SIZE.fullmatch(size) or rest[(end := int(size, 16)) : end + 2] != b"\r\n":
            return False
        rest = rest[end + 2 :]
    return True


def readable_body(data: bytes, applied: tuple[str, ...]) -> bytes:
    """The body, decompressed; as it is where it never was compressed."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return f"(compressed: {', '.join(applied)})".encode()
    return data


def is_json(data: bytes) -> bool:
    try:
        decode_lenient_json(data)
    except (ValueError, RecursionError):
        return False
    return True


def describe_exception(error: BaseException) -> str:
    return error_line(f"{type(error).__name__}: {error}".encode())
