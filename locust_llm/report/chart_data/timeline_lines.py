"""Timeline lines: requests as lines of a timeline, and which chunks of a line are separate dots.

It is pure Python, as the live page makes its timeline in the process that generates the load.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Final

import msgspec

from locust_llm.records.outcomes import FAILURES, OK
from locust_llm.records.record import Record
from locust_llm.text.format import format_duration

MAX_DOTS: Final = 400
"""The dots of a line. Chunks nearer to each other are one dot."""
STALL_RATIO: Final = 4.0
"""A gap above this many median gaps is a stall, if it is as wide as two dots."""


class TimelineRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request. Times are ms after the start of the window."""

    text: str
    asked: float
    sent: float | None
    first: float | None
    closed: float
    admitted: float | None = None
    chunks: tuple[float, ...] = ()
    tokens: int | None = None
    outcome: str = ""


class TimelineRows(msgspec.Struct, frozen=True, kw_only=True):
    """Some requests in a window of a run, in the order in which they came."""

    rows: tuple[TimelineRow, ...]
    start: float
    """The start of the window, in seconds since the run's start."""
    length: float
    """Milliseconds."""
    slow: float
    """A gap of more milliseconds is a stall; 0: none is."""
    stall: tuple[float, float] | None = None
    """The longest stall, in ms after the start of the window."""
    stall_text: str = ""


def make_timeline_row(record: Record, start: float, dot: float, slow: float) -> TimelineRow:
    """``start`` is the window's, in Unix seconds. ``dot`` is the width of a dot and ``slow`` a
    stall, in ms."""

    def ms(at: float | None) -> float | None:
        return None if at is None else round((at + record.clock_offset_s - start) * 1e3, 1)

    chunks: tuple[float, ...] = ()
    sent = ms(record.sent_at)
    if sent is not None and record.chunk_us:
        chunks = tuple(
            round(sent + us / 1e3, 1) for us in thin_chunks(record.chunk_us, dot * 1e3, slow * 1e3)
        )
    parts = [f"TTFT {format_duration(record.ttft_s)}"] if record.ttft_s is not None else []
    if record.gate_wait_s is not None and record.limit is not None:
        parts.append(f"gate wait {format_duration(record.gate_wait_s)}")
    if record.output_tokens is not None:
        parts.append(f"{record.output_tokens:,} tokens out")
    if record.longest_stall_s is not None:
        parts.append(f"longest stall {format_duration(record.longest_stall_s)}")
    if record.outcome != OK:
        parts.append(record.outcome)
    outcome = "failed" if record.outcome in FAILURES else record.outcome
    return TimelineRow(
        text=", ".join([record.name or "request", *parts]),
        asked=ms(record.asked_at) or 0.0,
        sent=sent,
        first=chunks[0] if chunks else None,
        closed=ms(record.closed_at) or 0.0,
        admitted=ms(record.admitted_at),
        chunks=chunks,
        tokens=record.asked_input_tokens if record.input_tokens is None else record.input_tokens,
        outcome="" if record.outcome == OK else outcome,
    )


def thin_chunks(chunk_us: Sequence[int], dot_us: float, slow_us: float) -> Iterator[int]:
    """The indices of chunks without the ones nearer than a dot to the chunk before. The ends of
    stalls, and the last chunk, are always there."""
    last_kept = -math.inf
    for us, following in zip_longest(chunk_us, chunk_us[1:]):
        if us - last_kept >= dot_us or following is None or following - us > slow_us:
            last_kept = us
            yield us
