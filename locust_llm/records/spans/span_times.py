"""Span times: the server times of a run's requests, from its spans.jsonl."""

from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from locust_llm.files.regular_file import open_regular
from locust_llm.records.server_times import ServerTimes

FILE: Final = "spans.jsonl"
"""The file has a line for each request with a span."""
BLOCK_BYTES: Final = 2**22
"""So much is read at once, as lines together are decoded twice as fast as one by one."""
MAX_LINE_BYTES: Final = 2**14


class SpanLine(ServerTimes, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A line of spans.jsonl: the times of one request."""

    id: str
    """The id of its record."""


class ReportedSpans(NamedTuple):
    times: dict[str, SpanLine]
    """The times by the id of the record."""
    unread: int = 0
    """Lines that could not be read."""


def find_spans_file(folder: Path) -> Path | None:
    """The file of a run's folder; for a stage the run's file. None: there is none."""
    if (path := folder / FILE).exists():
        return path
    path = folder.parent.parent / FILE
    return path if folder.parent.name == "stages" and path.exists() else None


def read_spans(folder: Path) -> ReportedSpans:
    """The times are empty without a file. Of two lines for a request the first counts. Raises
    OSError."""
    times: dict[str, SpanLine] = {}
    path = find_spans_file(folder)
    if path is None:
        return ReportedSpans(times)
    unread = 0
    known = times.setdefault
    decoder = msgspec.json.Decoder(SpanLine)
    with open_regular(path) as file:
        while block := file.read(BLOCK_BYTES) + file.readline(MAX_LINE_BYTES):
            try:
                lines = decoder.decode_lines(block)
            except (ValueError, RecursionError):
                lines, bad = _readable(block, decoder)
                unread += bad
            for line in lines:
                known(line.id, line)
    return ReportedSpans(times, unread)


def _readable(
    block: bytes, decoder: "msgspec.json.Decoder[SpanLine]"
) -> tuple[list[SpanLine], int]:
    """(the readable lines of a block, how many are unreadable)."""
    lines = list[SpanLine]()
    bad = 0
    for line in block.splitlines():
        try:
            lines.append(decoder.decode(line))
        except (ValueError, RecursionError):
            bad += bool(line.strip())
    return lines, bad
