"""Spans file: spans that a collector has written, or another run's spans.jsonl, joined to the
records of a run."""

import gzip
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final, cast

import msgspec

from locust_llm.files.json_file import replace_file
from locust_llm.files.regular_file import open_regular
from locust_llm.records.outcomes import OK, RETRIED
from locust_llm.records.profile_export_jsonl import RecordFile
from locust_llm.records.run_facts import RECORDS
from locust_llm.records.server_times import ServerTimes
from locust_llm.records.spans import otlp_json
from locust_llm.records.spans.join_spans import SortedSpans, SpanJoin, sort_spans
from locust_llm.records.spans.span_counts import SpanCounts
from locust_llm.records.spans.span_times import FILE, read_spans
from locust_llm.records.spans.trace_ids import make_request_part

GZIP: Final = b"\x1f\x8b"
MAX_BYTES: Final = 2**28
"""The bytes of one document, and of one line."""


class SpansRefused(OSError):
    """The file of spans cannot be joined. The text is one sentence."""


class _Request(msgspec.Struct, gc=False):
    id: str


_request: Final = msgspec.json.Decoder(_Request).decode
_times: Final = msgspec.json.Decoder(ServerTimes).decode


def join_spans_file(folder: Path, file: Path, run: str) -> SpanCounts:
    """Write the folder's spans.jsonl anew, unless none of the spans belongs to this run. ``run`` is
    ``Run.trace``. Raises SpansRefused."""
    if not run:
        raise SpansRefused(
            "its requests had no traceparent header, so no span can be joined to them"
        )
    join = SpanJoin(most_open=2**62)
    lines: list[bytes] = []
    try:
        for record in RecordFile(folder / RECORDS):
            if record.outcome != RETRIED:
                join.request(record.id, ok=record.outcome == OK)
        for sorted_spans in _spans(file, run):
            lines += map(msgspec.json.encode, join.spans(sorted_spans))
    except (OSError, EOFError, zlib.error) as error:
        raise SpansRefused(
            f"{file} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    counts = join.counts
    if not counts.received:
        raise SpansRefused(
            f"{file} contains no OTLP/JSON spans{f': {counts.mistake}' if counts.mistake else ''}"
        )
    if lines:
        replace_file(folder / FILE, b"\n".join(lines) + b"\n")
    return counts


def find_span_rows(folder: Path, records: RecordFile, count: int) -> dict[int, ServerTimes]:
    """The times of the folder's spans by the rows of their requests, of which there are
    ``count``. Raises OSError."""
    times = read_spans(folder).times
    if not times:
        return {}
    ids = islice(records.read_ids(), count)
    return {row: times[name] for row, name in enumerate(ids) if name in times}


def _spans(path: Path, run: str) -> Iterator[SortedSpans]:
    """Read line by line. A file whose first line is no document may be one as a whole."""
    with open_regular(path) as raw:
        packed = raw.read(2) == GZIP
        raw.seek(0)
        file = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw
        first = file.readline(MAX_BYTES)
        sorted_spans = _sorted(first, run)
        if "malformed" in sorted_spans.counts:
            rest = file.read(MAX_BYTES)
            whole = _sorted(first + rest, run)
            yield sorted_spans if "malformed" in whole.counts else whole
            yield from (
                _sorted(line, run) for line in rest.splitlines() if "malformed" in whole.counts
            )
            return
        yield sorted_spans
        while line := file.readline(MAX_BYTES):
            yield _sorted(line, run)


def _sorted(data: bytes, run: str) -> SortedSpans:
    """The spans of an export, or of a line of spans.jsonl, sorted."""
    if not data.strip():
        return SortedSpans()
    try:
        return sort_spans(otlp_json.decode_otlp_json(data), run)
    except ValueError as error:
        wrong = SortedSpans(counts={"malformed": 1}, mistake=str(error)[:200])
    try:
        return SortedSpans(
            [(int(make_request_part(_request(data).id), 16), _times(data))], {"received": 1}
        )
    except (ValueError, RecursionError):
        return wrong
