"""Timeline: some requests of a run line by line, around the longest stall.

It shows a long prompt in prefill and the streams that stall during it.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from itertools import islice, pairwise
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from locust_llm.records.outcomes import OK
from locust_llm.records.record import Record
from locust_llm.records.run_facts import Run
from locust_llm.report.array_types import Floats
from locust_llm.report.inter_token_gaps import GapCounts
from locust_llm.report.load_records import RequestColumns
from locust_llm.report.request_table import RequestTable
from locust_llm.text.format import clean_line, format_count, format_duration

from .timeline_lines import MAX_DOTS, STALL_RATIO, TimelineRow, TimelineRows, make_timeline_row

MAX_ROWS: Final = 60
"""The requests that are shown."""
MAX_PREFILL_ROWS: Final = 20
"""The rows of a sample for requests in prefill during the stall."""
MAX_RECORDS: Final = 50_000
"""So many records are read to find the window's own."""
MIN_WINDOW_S: Final = 1e-3
"""The shortest window, as times in it are tenths of a millisecond."""
SLACK_S: Final = 5.0
"""A record comes so long after its end in the file, as workers send records in batches."""
MAX_GAPS: Final = 160
"""The length of a window in median gaps; or ten times its stall, if that is more and not above
MAX_DENSE_GAPS."""
MAX_DENSE_GAPS: Final = 256
"""The most median gaps. In a longer window dots of chunks overlap. Only a long stall makes it so
long."""

Mask = NDArray[np.bool_]
Since = Callable[[float], Iterable[Record]]
"""The records of requests that ended at a moment (Unix seconds) or later, in about the order of
their ends."""


class LongestStall(NamedTuple):
    """The longest gap between two chunks of a request, in Unix seconds."""

    start: float
    end: float
    id: str
    """The id of the request."""


class TimelineWindow(NamedTuple):
    """Unix seconds."""

    start: float
    end: float
    stall: "LongestStall | None"


class Timeline(TimelineRows, frozen=True, kw_only=True):
    """A scene with its texts."""

    title: str
    caption: str
    label: str
    """The main values in words, for screen readers."""


class TimelineScene(NamedTuple):
    """What a timeline shows: some requests of a stretch of a run."""

    window: TimelineWindow
    records: list[Record]
    """The records in the order in which they came."""
    under_way: int
    """The requests in the window. If they are more than the records, these are a sample."""
    slow: float
    """A gap of so many milliseconds is a stall; 0: none is."""
    started_at: float
    """The start of the run, in Unix seconds."""
    simulated: bool
    asked: bool
    """The user chose the window."""

    @property
    def title(self) -> str:
        """``12 requests around the longest stall``."""
        shown = format_count(len(self.records), "request")
        if self.asked:
            start, end = (at - self.started_at for at in self.window[:2])
            return f"{shown}, second {start:.2f} to {end:.2f}"
        return (
            f"{shown} around "
            f"{'the middle of the run' if self.window.stall is None else 'the longest stall'}"
        )


def find_scene(
    columns: RequestColumns,
    run: Run,
    since: Since,
    span: tuple[float, float] | None = None,
    most: int = MAX_ROWS,
) -> TimelineScene | None:
    """The scene around the profiling phase's longest stall, or around its middle request; or
    ``span`` in seconds after the run's start. It has at most ``most`` requests.

    None: nothing was sent, or it ended before it was requested. Raises ValueError of one sentence
    for an impossible span.
    """
    requests = columns.requests
    sent = ~np.isnan(requests.floats("sent_at"))
    main = sent if span else sent & requests.has("phase", "profiling")
    if not main.any():
        return None
    gap_ms = columns.gaps.get("profiling", GapCounts()).percentiles_ms((50,))[0] or 0.0
    began = requests.floats("asked_at")
    closed = requests.floats("closed_at")
    if span:
        window = TimelineWindow(run.started_at + span[0], run.started_at + span[1], None)
    else:
        ok = main & requests.has("outcome", OK)
        stalls = np.where(ok, requests.floats("longest_stall_s"), np.nan)
        worst = None if np.isnan(stalls).all() else int(np.nanargmax(stalls))
        stall = None if worst is None else _stall(requests.rows(np.array([worst])), since)
        window = choose_window(began, closed, main, stall, gap_ms / 1e3, most)
    if (lacking := MIN_WINDOW_S - (window.end - window.start)) > 0:
        window = window._replace(start=window.start - lacking / 2, end=window.end + lacking / 2)
    under_way = (began < window.end) & (closed > window.start)
    count = int(under_way.sum())
    if span and not 0 < count <= MAX_RECORDS:
        between = f"between second {span[0]:g} and {span[1]:g}"
        if count:
            raise ValueError(
                f"{count:,} requests were in flight {between}, but at most {MAX_RECORDS:,} can be "
                "read"
            )
        first, last = (float(at) - run.started_at for at in (began.min(), closed.max()))
        raise ValueError(
            f"no request was in flight {between}: the requests are from second {first:.2f} to "
            f"{last:.2f}"
        )
    if not count:  # stamps of a damaged record
        return None
    records = _read_records_within(window, since, float(closed[under_way].max()))
    if span:
        window = window._replace(stall=_longest(records, window))
    return TimelineScene(
        window=window,
        records=sorted(pick_records(records, window, most), key=attrgetter("asked_unix_s")),
        under_way=count,
        slow=round(max(STALL_RATIO * gap_ms, 2 * _ms(window.end, window) / MAX_DOTS), 1)
        if gap_ms
        else 0.0,
        started_at=run.started_at,
        simulated=run.simulated or bool(requests.floats("simulated").any()),
        asked=span is not None,
    )


def make_timeline(scene: TimelineScene, dots: int = MAX_DOTS) -> Timeline:
    """``dots``: the separate dots of a line. Chunks nearer to each other are one dot."""
    window, stall = scene.window, scene.window.stall
    long = "" if stall is None else format_duration(stall.end - stall.start)
    return Timeline(
        title=scene.title,
        caption=_caption(scene),
        label=f"Timeline of {scene.title} {long if not scene.asked else ''}".rstrip(),
        start=round(window.start - scene.started_at, 4),
        length=_ms(window.end, window),
        slow=scene.slow,
        rows=tuple(_row(record, window, scene.slow, dots) for record in scene.records),
        stall=None if stall is None else (_ms(stall.start, window), _ms(stall.end, window)),
        stall_text="" if stall is None else f"longest stall {'here ' if scene.asked else ''}{long}",
    )


def _caption(scene: TimelineScene) -> str:
    window = scene.window
    count = scene.under_way
    shown = len(scene.records)
    start = window.start - scene.started_at
    which = (
        f"{'all ' if count > 1 else ''}{count:,} {'request' if count == 1 else 'requests'} that "
        f"{'was' if count == 1 else 'were'} in flight in this interval"
    )
    if shown < count:
        waited = (
            "; requests that waited longest for their first token during the stall come first (at "
            f"most {MAX_PREFILL_ROWS})"
        )
        longest = waited if window.stall else ""
        which = (
            f"{shown:,} of the {count:,} requests that were in flight in this interval, a "
            f"sample{longest}"
        )
    stalls = f" Red: a gap above {format_duration(scene.slow / 1e3)}." if scene.slow else ""
    return (
        f"From {start:.2f} s to {start + window.end - window.start:.2f} s after the start: "
        f"{which}, in order of "
        f"arrival. Each dot is a chunk; overlapping dots are drawn as one.{stalls}"
    )


def choose_window(
    began: Floats,
    closed: Floats,
    main: Mask,
    stall: LongestStall | None,
    gap_s: float,
    rows: int = MAX_ROWS,
) -> TimelineWindow:
    """The longest window around the stall (or the middle) with at most ``rows`` requests, within
    bounds.

    It is at least two and a half stalls. At most it is ten stalls (but no more than MAX_DENSE_GAPS
    gaps) or MAX_GAPS gaps, whichever is more. ``gap_s`` is a usual gap.
    """
    first = float(began[main].min())
    last = float(closed[main].max())
    halves = np.sort(((began + closed) / 2)[main])
    # where a request is
    middle = float(halves[len(halves) // 2]) if stall is None else (stall.start + stall.end) / 2
    longest = 0.0 if stall is None else stall.end - stall.start
    tenfold = min(10 * longest, max(2.5 * longest, MAX_DENSE_GAPS * gap_s))
    most = max(tenfold, MAX_GAPS * gap_s) or (last - first) / 10 or 1.0  # all at one moment
    least = max(2.5 * longest, MAX_GAPS / 4 * gap_s) or most
    for length in np.geomspace(most, min(least, most), 12).tolist():
        start = middle - length / 2
        end = middle + length / 2
        if np.count_nonzero((began < end) & (closed > start)) <= rows:
            break
    return TimelineWindow(max(start, first - 0.02 * length), min(end, last + 0.02 * length), stall)


def pick_records(
    records: list[Record], window: TimelineWindow, rows: int = MAX_ROWS
) -> list[Record]:
    """At most ``rows`` records: the one that stalled, the ones longest in prefill during the stall,
    and others evenly by start."""
    records = sorted(records, key=attrgetter("asked_unix_s"))
    if len(records) <= rows:
        return records
    first: list[Record] = []
    if window.stall is not None:
        start, end, name = window.stall
        prefill = {
            id(r): min(_first_at(r), end) - max(r.sent_unix_s, start)
            for r in records
            if r.sent_at is not None
        }
        longest = sorted(
            (r for r in records if prefill.get(id(r), 0) > 0), key=lambda r: -prefill[id(r)]
        )
        first = [
            *[r for r in records if r.id == name][:1],
            *longest[: min(MAX_PREFILL_ROWS, rows // 3)],
        ]
    held = {id(record) for record in first}
    others = [record for record in records if id(record) not in held]
    even = np.linspace(0, len(others) - 1, rows - len(held)).astype(int).tolist()
    return [record for record in records if id(record) in held] + [others[i] for i in even]


def _stall(row: RequestTable, since: Since) -> LongestStall | None:
    """When the longest gap of this request began and ended. None: its record is not found."""
    sent_at, closed_at, latency_s = (
        float(row.floats(name)[0]) for name in ("sent_at", "closed_at", "latency_s")
    )
    for record in islice(since(closed_at - SLACK_S), MAX_RECORDS):
        if record.sent_at is not None and record.chunk_us and record.sent_unix_s == sent_at:
            us = np.array(record.chunk_us)
            if len(us) > 1 and us[-1] == round(latency_s * 1e6):
                at = int(np.argmax(np.diff(us)))
                start, end = (record.sent_unix_s + record.chunk_us[i] / 1e6 for i in (at, at + 1))
                return LongestStall(start, end, record.id)
    return None


def _longest(records: list[Record], window: TimelineWindow) -> LongestStall | None:
    """The longest gap that reaches into the window."""
    longest_us = 0.0
    longest: LongestStall | None = None
    for record in records:
        sent = record.sent_unix_s
        for before, after in pairwise(record.known_us):
            start = sent + before / 1e6
            end = sent + after / 1e6
            within = end > window.start and start < window.end
            if within and (longest is None or after - before > longest_us):
                longest_us = after - before
                longest = LongestStall(start, end, record.id)
    return longest


def _read_records_within(window: TimelineWindow, since: Since, last: float) -> list[Record]:
    """The records of the requests that were under way. ``last``: when the last of them ended."""
    records_within = []
    for record in islice(since(window.start - SLACK_S), MAX_RECORDS):
        closed = record.closed_unix_s
        if closed > last + SLACK_S:
            break
        if closed > window.start and record.asked_unix_s < window.end:
            records_within.append(record)
    return records_within


def _row(record: Record, window: TimelineWindow, slow: float, dots: int) -> TimelineRow:
    """Its chunks in the window, and one more on each side, as the line goes on to the edge."""
    length = _ms(window.end, window)
    row = make_timeline_row(record, window.start, length / dots, slow)
    first = bisect_left(row.chunks, 0)
    last = bisect_right(row.chunks, length)
    return msgspec.structs.replace(
        row, text=clean_line(row.text), chunks=row.chunks[max(first - 1, 0) : last + 1]
    )


def _ms(at: float, window: TimelineWindow) -> float:
    return round(float(at - window.start) * 1e3, 1)


def _first_at(record: Record) -> float:
    """When the record left prefill: with its first chunk, or with its end."""
    if record.chunk_us:
        return record.sent_unix_s + record.chunk_us[0] / 1e6
    return record.closed_unix_s


def resolve_span(
    requests: RequestTable, run: Run, start: float | None, end: float | None
) -> tuple[float, float]:
    """(start, end) in seconds after the run's start. A missing end is the run's. Raises ValueError
    of one sentence."""
    first = requests.earliest("asked_at") - run.started_at
    last = requests.latest("closed_at") - run.started_at
    start = first if start is None else start
    end = last if end is None else end
    if not (math.isfinite(start) and math.isfinite(end) and start < end):
        raise ValueError(
            f"nothing lies between {start:g} s and {end:g} s: this run goes from {first:.2f} s to "
            f"{last:.2f} s"
        )
    return start, end
