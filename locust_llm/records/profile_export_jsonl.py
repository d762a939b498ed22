"""Record lines: profile_export.jsonl has a record on each line, with AIPerf's fields (0.13) for its
readers, and all of ours. The file is read, sampled, searched and extended here.

A record becomes its line in the process that made it. The line goes to the worker's journal, to the
master and into the file as it is; only where a controller changes a record is it written anew.
"""

import math
import os
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Self

import msgspec

from locust_llm.files.regular_file import open_regular

from .outcomes import CANCELLED, CUT, FAILURES, OK, RETRIED
from .record import MOST_CHUNKS, Record
from .record_parts import LINES, WHOLE, RecordPart, list_record_parts, stand_alone
from .run_facts import RECORDS

OUTCOMES: Final = frozenset({OK, CANCELLED, CUT, RETRIED, *FAILURES})
PHASES: Final = frozenset({"warmup", "profiling"})
MAX_UNIX_S: Final = 1e11
"""The year 5138."""


class _Metadata(msgspec.Struct, omit_defaults=True):
    """The known fields of aiperf.common.models.MetricRecordMetadata. Times are Unix nanoseconds."""

    session_num: int
    x_request_id: str
    request_start_ns: int
    request_end_ns: int
    worker_id: str
    record_processor_id: str
    benchmark_phase: str
    conversation_id: str = ""
    turn_index: int = 0
    credit_issued_ns: int | None = None
    request_ack_ns: int | None = None
    was_cancelled: bool = False
    cancellation_time_ns: int | None = None


class _Error(msgspec.Struct):
    code: int | None
    type: str
    message: str


class _Value(msgspec.Struct):
    value: float | int | list[float]
    unit: str


class RecordLine(msgspec.Struct):
    metadata: _Metadata
    metrics: dict[str, _Value]
    error: _Error | None
    record: Record


class _RecordOfLine(msgspec.Struct):
    record: Record


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_RecordOfLine).decode


def format_record_line(record: Record) -> bytes:
    """One line of profile_export.jsonl, without its newline: AIPerf's ``metadata``, ``metrics``,
    ``error`` (its model is MetricRecordInfo) and, as ``record``, the whole of ours. It runs on the
    load generator's loop: 8 µs a request and 0.2 µs a chunk."""
    whole = RecordLine(_metadata(record), make_record_metrics(record), _error(record), record)
    try:
        return _encode(whole)
    except (
        UnicodeEncodeError
    ):  # a lone surrogate, say from a file name in an OSError: no reason to lose the record
        return format_record_line(_encodable(record))


class EncodedRecord(NamedTuple):
    """A record and its line."""

    record: Record
    line: bytes


def encode_record(record: Record) -> EncodedRecord:
    """The record with its line."""
    return EncodedRecord(record, format_record_line(record))


_BEGIN: Final = b'{"metadata":'
_KEY: Final = b',"record":{'
_decode_record = msgspec.json.Decoder(Record).decode
MAX_REQUEST_S: Final = 1e7
"""The longest time of a request: 115 days."""
CLOCK_SLACK_S: Final = 1.0
"""Two clocks may differ so far that a request ends before it began, by less than this."""


def parse_record_line(data: bytes) -> Record:
    """The record of a line, exactly as it was.

    Raises ValueError of one sentence if the line has no record, more than one, or a record that
    contradicts itself. Of our own lines only the record is decoded, which comes last: AIPerf's
    fields before it are a fifth of the time. No text can look like its key, as quotes inside texts
    are escaped.
    """
    at = data.rfind(_KEY)
    end = data.rfind(b"}")
    try:
        if at < 0:
            record = _decode(data).record
        else:
            if data.rfind(_BEGIN, 1, at) > 0 or (end + 2 != len(data) and data[end + 1 :].strip()):
                raise ValueError("its line holds more than a record")
            record = _decode_record(data[at + len(_KEY) - 1 : end])
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
    if wrong := find_contradiction(record):
        raise ValueError(wrong)
    # the error comes before the record
    if at >= 0 and (data[at - 4 : at] == b"null") != (record.outcome == OK):
        raise ValueError(f"its outcome {record.outcome!r} and its error contradict each other")
    return record


MAX_RECORD_BYTES: Final = 1 << 25
"""The longest line that a worker may send: twice the line of an answer with ``MOST_CHUNKS``, all
merged and counted."""


def decode_record(line: bytes) -> EncodedRecord:
    """The record of a line that another process has encoded. Raises ValueError for bytes that are
    not one line with one record."""
    if len(line) > MAX_RECORD_BYTES:
        raise ValueError("longer than a record may be")
    if b"\n" in line or line.count(_KEY) != 1 or line.rfind(_BEGIN) != 0:
        raise ValueError("not a line with one record")
    line.decode()
    try:
        record = _decode(line).record
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
    if len(record.chunk_us) > 2 * MOST_CHUNKS:  # the last read may bring more
        raise ValueError("more chunks than a response may have")
    return EncodedRecord(record, line)


def parse_trusted_line(data: bytes) -> Record:
    """The record of a line that ``parse_record_line`` has read before, in three quarters of the
    time."""
    at = data.rfind(_KEY)
    return (
        _decode(data).record
        if at < 0
        else _decode_record(data[at + len(_KEY) - 1 : data.rfind(b"}")])
    )


_ID: Final = b'"id":"'
_RETRIED: Final = b'"outcome":"%s"' % RETRIED.encode()


def parse_request_id(line: bytes) -> str | None:
    """The id in a line that was read before, without reading the rest of it. None: it is an attempt
    that was tried again. Quotes inside texts are escaped, so no text can look like a field."""
    begin = line.rfind(_KEY) + len(_KEY)
    end = line.find(b'"', begin + len(_ID))
    name = line[begin + len(_ID) : end]
    if begin < len(_KEY) or not line.startswith(_ID, begin) or b"\\" in name:
        record = parse_trusted_line(line)
        return None if record.outcome == RETRIED else record.id
    return None if line.find(_RETRIED, end) > 0 else name.decode()


def begins_record(head: bytes) -> bool:
    """Whether a long line may hold a record, by its begin."""
    return head.lstrip(b"\0 \t").startswith(b"{") or _BEGIN in head


def split_record_line(data: bytes) -> list[bytes]:
    """The parts of a line that is not one whole record: several records, half a record, or rubbish
    before them."""
    begins = [0]
    while (begin := data.find(_BEGIN, begins[-1] + 1)) > 0:
        begins.append(begin)
    pieces = (data[begin:end] for begin, end in pairwise([*begins, len(data)]))
    return [piece for piece in pieces if piece.strip()]


def find_contradiction(record: Record) -> str:
    """Why a record contradicts itself. Empty: it does not. Its numbers are within their bounds."""
    us, outcome, asked_at = record.chunk_us, record.outcome, record.asked_at
    if outcome not in OUTCOMES:
        return f"outcome {outcome[:40]!r} is unknown to this version"
    if record.phase not in PHASES:
        return f"phase {record.phase[:40]!r} is unknown to this version"
    took_s = record.closed_at - asked_at
    if not -CLOCK_SLACK_S <= took_s <= MAX_REQUEST_S:
        return f"it ended {took_s:.0f} s after it began"
    for at in (
        record.due_at,
        record.sent_at,
        record.admitted_at,
        record.headers_at,
        record.freed_at,
    ):
        if at is not None and not -MAX_REQUEST_S <= at - asked_at <= MAX_REQUEST_S:
            return "its stamps are months apart"
    if abs(asked_at + record.clock_offset_s) > MAX_UNIX_S:
        return "its date is out of range"
    if not us:
        none = record.first_output is None and not record.merged and not record.chunk_tokens
        return "" if none else "indices of chunks without a chunk"
    if tuple(sorted(us)) != us:
        return "chunk_us is not rising"
    if us[0] < 0 or us[-1] > MAX_REQUEST_S * 1e6:
        return "chunk_us is before the send, or months after it"
    if record.sent_at is None:
        return "chunks of a request that was never sent"
    if record.first_output is not None and record.first_output >= len(us):
        return "first_output is beyond the last chunk"
    if record.merged and max(index for index, _ in record.merged) >= len(us):
        return "merged has an index beyond the last chunk"
    if record.chunk_tokens and sum(chunks for _, chunks in record.chunk_tokens) != len(us):
        return "chunk_tokens do not match its chunks"
    return ""


def make_record_metrics(record: Record) -> dict[str, _Value]:
    """AIPerf's metrics of one request and ours, in ms and tokens, also for a failed one."""
    us = record.known_us
    itl_s = record.itl_s
    values: tuple[tuple[str, float | None, str], ...] = (
        ("request_latency", _ms(record.latency_s), "ms"),
        ("time_to_first_token", _ms(record.ttft_s), "ms"),
        ("time_to_first_output_token", _ms(record.ttfo_s), "ms"),
        ("inter_token_latency", _ms(itl_s), "ms"),
        ("output_token_throughput_per_user", 1 / itl_s if itl_s else None, "tokens/sec/user"),
        ("input_sequence_length", record.input_tokens, "tokens"),
        ("output_sequence_length", record.output_tokens, "tokens"),
        ("reasoning_token_count", record.reasoning_tokens, "tokens"),
        ("inputs", record.inputs, "inputs"),
        ("tokens_per_chunk", record.tokens_per_chunk if record.chunk_tokens else None, "tokens"),
        ("usage_prompt_cache_read_tokens", record.cached_tokens, "tokens"),
        ("http_req_connecting", _ms(record.connect_s), "ms"),
        ("prefill_gate_wait", _ms(record.gate_wait_s), "ms"),
        ("schedule_delay", _ms(record.late_s), "ms"),
        ("time_to_first_token_from_due", _ms(record.ttft_from_due_s), "ms"),
        ("read_lag", None if record.read_lag_us is None else record.read_lag_us / 1e3, "ms"),
    )
    known = {tag: _Value(value, unit) for tag, value, unit in values if value is not None}
    if len(us) > 1:
        gaps = [(b - a) / 1e3 for a, b in pairwise(us)]
        known["inter_chunk_latency"] = _Value(gaps, "ms")
        known["longest_stall"] = _Value(max(gaps), "ms")
    return known


def _metadata(record: Record) -> _Metadata:
    offset = record.clock_offset_s
    began = record.asked_at if record.sent_at is None else record.sent_at
    given_up = record.outcome in (CUT, CANCELLED)
    end_ns = _ns(record.closed_at + offset)
    return _Metadata(
        session_num=record.user,
        x_request_id=record.id,
        request_start_ns=_ns(began + offset),
        request_end_ns=end_ns,
        worker_id=record.worker,
        record_processor_id=record.worker,
        benchmark_phase=record.phase,
        conversation_id=record.session,
        turn_index=record.turn,
        credit_issued_ns=None if record.admitted_at is None else _ns(record.admitted_at + offset),
        request_ack_ns=None if record.headers_at is None else _ns(record.headers_at + offset),
        was_cancelled=given_up,
        cancellation_time_ns=end_ns if given_up else None,
    )


def _error(record: Record) -> _Error | None:
    """It is not only for failures: a reader that ignores ``was_cancelled`` must not take a cut
    request for a success."""
    if record.outcome == OK:
        return None
    message = record.error or FAILURES.get(record.outcome, record.outcome)
    return _Error(
        record.status if record.failed or record.outcome == RETRIED else 499,
        record.outcome,
        message,
    )


def _encodable(record: Record) -> Record:
    texts = {
        name: value.encode("utf-8", "replace").decode()
        for name, value in msgspec.structs.asdict(record).items()
        if isinstance(value, str)
    }
    return msgspec.structs.replace(record, **texts)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 6)  # the rest is noise of doubles


def _ns(unix_s: float) -> int:
    """Nanoseconds of whole microseconds, as a double holds no more of Unix time."""
    return int(unix_s * 1e6) * 1000


# -- the file --------------------------------------------------------------------------------------

SAMPLE_STRETCHES: Final = 100
"""Stretches of neighbouring records in a sample."""
UNORDERED_PARTS: Final = 8
"""Records that ended later than all of the next part are at most so many parts before it."""
MIN_BISECTED_BYTES: Final = 2**16
"""Bisection of a record file stops below so many bytes."""
HEAD_BYTES: Final = 2**20
"""The begin of a long line, by which the line is read on or skipped."""
MAX_LINE_BYTES: Final = 2**28
"""The longest line. The record of an answer with ten million chunks is shorter."""
MAX_REASONS: Final = 10
"""So many unreadable lines keep their reason."""


@dataclass(frozen=True)
class UnreadLines:
    """Lines without a usable record."""

    count: int = 0
    first: tuple[tuple[int, str], ...] = ()
    """(line number from 1, reason) of at most MAX_REASONS first lines."""
    lines: int = 0
    """The number of all lines."""

    @property
    def reasons(self) -> list[str]:
        """``line 3: NUL bytes``"""
        return [f"line {number}: {why}" for number, why in self.first]

    def __add__(self, other: "UnreadLines") -> "UnreadLines":
        """``other`` has the lines that follow."""
        later = tuple((self.lines + number, why) for number, why in other.first)
        return UnreadLines(
            self.count + other.count, (*self.first, *later)[:MAX_REASONS], self.lines + other.lines
        )


class RecordFile:
    """The records of a profile_export.jsonl, one by one; of a run with --no-jsonl, also
    the records in its parts. A line without a record is skipped and counted in ``unread``: it was
    half-written when the process was killed, is damaged, or has another version."""

    def __init__(
        self,
        path: Path,
        begin: int = 0,
        end: float = math.inf,
        *,
        sound: bool = False,
        lines_only: bool = False,
    ) -> None:
        """Read the lines that begin between the bytes ``begin`` and ``end``. ``sound``: each line
        was read before and has a record. ``lines_only``: leave out the parts."""
        self.path = path
        self._parse = parse_trusted_line if sound else parse_record_line
        self._sound = sound
        self._lines = self._count = 0
        self._first: list[tuple[int, str]] = []
        self._begin, self._end = begin, end
        self._lines_only = lines_only or path.name != RECORDS
        self._parts: list[Path] | None = None
        """The parts at the first look for requests that ended since a moment."""
        self._last_part: RecordPart | None = None
        """The part that was read last: who looks for one request often looks for its neighbour."""
        self._last_ends: dict[Path, float] = {}
        """When the last request of each part ended, as far as it is known."""

    @property
    def unread(self) -> UnreadLines:
        """The unreadable lines so far."""
        return UnreadLines(self._count, tuple(self._first), self._lines)

    def __iter__(self) -> Iterator[Record]:
        for part in self._list_parts():
            yield from self._records_of(part)
        if not self.path.exists():
            return
        with open_regular(self.path) as file:
            at = self._begin
            if at:  # it may lie within a line, which is not of this part
                file.seek(at - 1)
                at += _pass_line(file) - 1
            parse, readline = self._parse, file.readline
            while at < self._end and (line := readline(HEAD_BYTES)):
                self._lines += 1
                if len(line) == HEAD_BYTES and not line.endswith(b"\n"):
                    line += _rest_of(line, file)
                at += len(line)
                if (
                    len(line) >= HEAD_BYTES
                    and not line.endswith(b"\n")
                    and (passed := _pass_line(file))
                ):
                    at += passed
                    self._left_out(_why_passed(line))
                    continue
                try:
                    record = parse(line)
                except ValueError:
                    for piece in _of_pieces(line):
                        if isinstance(piece, Record):
                            yield piece
                        else:
                            self._left_out(piece)
                else:
                    yield record

    def _list_parts(self) -> list[Path]:
        """The parts and their lines that hold records which this file does not have."""
        folder = self.path.parent
        return list_record_parts(folder) if not self._lines_only and stand_alone(folder) else []

    def _records_of(self, path: Path) -> Iterator[Record]:
        """The records of a part, or of the lines that have become no part."""
        if path.suffix == LINES and path.exists():  # else it has just become a part
            lines = RecordFile(path, sound=self._sound)
            yield from lines
            self._add_unread(lines.unread)
            return
        try:
            for record in RecordPart(path.with_suffix(WHOLE)).records():
                self._lines += 1
                if not self._sound and (wrong := find_contradiction(record)):
                    self._left_out(wrong)
                else:
                    yield record
        except (OSError, ValueError) as error:
            self._left_out(f"{path.name}: {getattr(error, 'strerror', None) or error}")

    def _add_unread(self, more: UnreadLines) -> None:
        known = self.unread + more
        self._lines, self._count, self._first = known.lines, known.count, [*known.first]

    def _left_out(self, why: str) -> None:
        self._count += 1
        if self._count <= MAX_REASONS:
            self._first.append((self._lines, why))

    def read_ids(self) -> Iterator[str]:
        """The ids of all requests, in the order of their records; of a file without damage in a
        fraction of the time of reading these, and of its parts in a fraction of that."""
        if not self._sound:
            yield from (record.id for record in self if record.outcome != RETRIED)
            return
        at = 0
        alone = stand_alone(self.path.parent)
        for path in [] if self._lines_only else list_record_parts(self.path.parent):
            if path.suffix == LINES:
                yield from RecordFile(path, sound=True).read_ids()
                continue
            try:
                part = RecordPart(path)
                ids = part.read_ids()
            except (OSError, ValueError):
                break  # the lines have them
            if not alone and not (part.lines_begin == at and has_same_last_line(self.path, part)):
                break
            yield from ids
            at = part.lines_end
        with open_regular(self.path) as file:
            file.seek(at)
            for line in file:
                if (name := parse_request_id(line)) is not None:
                    yield name

    def evenly(
        self,
        share: float,
        stretches: int = SAMPLE_STRETCHES,
        needed: Collection[str] | None = None,
    ) -> Iterator[Record]:
        """About this share of the records, in stretches of neighbours spread evenly over the file.
        All records for 1 and above. ``needed``: the fields of the records, where not all are."""
        if share >= 1:
            yield from RecordFile(self.path, sound=self._sound)
            return
        if parts := self._list_parts():
            # each part that is opened costs as much as a hundred records
            step = max(1, min(2 * len(parts) // stretches, int(1 / share)))
            for part in parts[::step]:
                of_part = max(1, stretches // len(parts))
                yield from _pick_evenly(part, share * step, of_part, needed)
            return
        length = self.path.stat().st_size / stretches if self.path.exists() else 0
        for i in range(stretches):
            yield from RecordFile(
                self.path,
                int(i * length),
                int((i + share) * length),
                sound=self._sound,
                lines_only=True,
            )

    def since(self, at: float) -> Iterator[Record]:
        """The records of requests that ended at ``at`` (Unix seconds) or later. Broken lines are not
        counted."""
        return (record for record in self._find_since(at) if record.closed_unix_s >= at)

    def _find_since(self, at: float) -> Iterator[Record]:
        """Some that ended before may come. Bisection finds the lines, as the file is nearly in the
        order of their ends."""
        if self._parts is None:
            self._parts = self._list_parts()
        # the parts are nearly in the order of their ends, too
        first = bisect_left(self._parts, at, key=self._find_last_end) - UNORDERED_PARTS
        for part in self._parts[max(first, 0) :]:
            if part.suffix == LINES:
                yield from self._records_of(part)
            elif self._find_last_end(part) >= at:
                yield from self._pick_since(part, at)
        if not self.path.exists():
            return
        with open_regular(self.path) as file:
            low = 0
            high = self.path.stat().st_size
            while high - low > MIN_BISECTED_BYTES:
                middle = (low + high) // 2
                file.seek(middle)
                _pass_line(file)  # the rest of one
                record = next(_parsed(file), None)
                if record is None or record.closed_unix_s >= at:
                    high = middle
                else:
                    low = middle
            file.seek(low)
            if low:
                _pass_line(file)
            yield from _parsed(file)

    def _find_last_end(self, path: Path) -> float:
        """When the last request of a part ended, in Unix seconds. Infinite: its lines are to be
        read, or it is damaged."""
        if path not in self._last_ends:
            ended_at: list[float] = []
            if path.suffix == WHOLE:
                with suppress(OSError, ValueError, KeyError):
                    ended_at = self._open_part(path).ended_at
            self._last_ends[path] = max(ended_at, default=math.inf)
        return self._last_ends[path]

    def _open_part(self, path: Path) -> RecordPart:
        if self._last_part is None or self._last_part.path != path:
            self._last_part = RecordPart(path)
        return self._last_part

    def _pick_since(self, path: Path, at: float) -> Iterator[Record]:
        """The records of a part from the first request on that ended at ``at`` or later. What is
        damaged is left out: the report counts it."""
        with suppress(OSError, ValueError, KeyError):
            part = self._open_part(path)
            first = next((row for row, end in enumerate(part.ended_at) if end >= at), part.rows)
            for record in part.records(range(first, part.rows)):
                if self._sound or not find_contradiction(record):
                    yield record


def has_same_last_line(path: Path, part: RecordPart) -> bool:
    """Whether the last record of a part is the last one of its lines in profile_export.jsonl,
    ``path``: then no line before it became longer or shorter. Raises OSError and ValueError."""
    with open_regular(path) as file:
        begin = file.seek(max(part.lines_begin, part.lines_end - HEAD_BYTES))
        lines = file.read(part.lines_end - begin)
    if begin + len(lines) < part.lines_end or not lines.endswith(b"\n"):
        return False
    return parse_record_line(lines.splitlines()[-1]).id == part.last_id


def _pick_evenly(
    path: Path, share: float, stretches: int, needed: Collection[str] | None
) -> Iterator[Record]:
    """Of a part, or of its lines. What is damaged is left out: the report counts it."""
    if path.suffix == LINES and path.exists():
        yield from RecordFile(path).evenly(share, stretches)
        return
    with suppress(OSError, ValueError):
        part = RecordPart(path.with_suffix(WHOLE))
        length = part.rows / stretches
        rows: list[int] = []
        for i in range(stretches):
            rows += range(int(i * length), int((i + share) * length))
        yield from part.records(rows, needed)


def _parsed(file: BinaryIO) -> Iterator[Record]:
    while line := file.readline(HEAD_BYTES):
        if len(line) == HEAD_BYTES and not line.endswith(b"\n"):
            line += _rest_of(line, file)
            if not line.endswith(b"\n") and _pass_line(file):
                continue
        yield from (piece for piece in _of_pieces(line) if isinstance(piece, Record))


def _of_pieces(line: bytes) -> Iterator[Record | str]:
    """Each record of a line, and the reason for each other piece."""
    for piece in split_record_line(line):
        end = piece.rfind(b"}") + 1
        try:
            yield parse_record_line(piece)
            continue
        except ValueError as error:
            why = _why(piece, error)
        if rest := piece[end:].strip():  # it may follow a whole record
            with suppress(ValueError):
                yield parse_record_line(piece[:end])
                why = _why(rest, ValueError("something follows the record"))
        yield why


def _rest_of(head: bytes, file: BinaryIO) -> bytes:
    """The rest of a long line, up to MAX_LINE_BYTES in all. A line that cannot hold a record gives
    nothing."""
    return file.readline(MAX_LINE_BYTES - len(head)) if begins_record(head) else b""


def _why_passed(line: bytes) -> str:
    return (
        f"longer than {MAX_LINE_BYTES >> 20} MB"
        if begins_record(line)
        else _why(line, ValueError("no record"))
    )


def _pass_line(file: BinaryIO) -> int:
    """Go to the next line. Returns the number of skipped bytes."""
    passed = 0
    while chunk := file.readline(MIN_BISECTED_BYTES):
        passed += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return passed


def _why(line: bytes, error: ValueError) -> str:
    """Why the line has no record, in a few words."""
    text = line.strip()
    if not text.strip(b"\0"):
        return "NUL bytes"
    if not text.startswith(b"{"):
        return "it does not begin like a record"
    if not text.endswith(b"}"):
        return "it ends in the middle"
    return str(error)[:200]


class RecordAppender:
    """Adds new records to a file of records. Only their ids are in memory. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self._there = {record.id for record in RecordFile(path)}
        self._lines = path.open("r+b")
        size = self._lines.seek(0, os.SEEK_END)
        self._whole = size == 0 or (
            self._lines.seek(-1, os.SEEK_END) >= 0 and self._lines.read() == b"\n"
        )

    def add(self, record: Record) -> bool:
        """False: the record was there."""
        if record.id in self._there:
            return False
        self._lines.write((b"" if self._whole else b"\n") + format_record_line(record) + b"\n")
        self._there.add(record.id)
        self._whole = True
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._lines.close()


def add_records(path: Path, records: Iterable[Record]) -> int:
    """Add new records to a file, each on its own line. Returns how many were new. Raises
    OSError."""
    with RecordAppender(path) as lines:
        return sum(lines.add(record) for record in records)
