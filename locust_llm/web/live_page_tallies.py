"""Live page tallies: a running run's values for the web page: the last seconds, the whole run, and
over time.

Cost and size do not grow with the run. Times are counted with three significant digits, and a long
history drops every second point. Counts are kept as totals, so rates and means between any two
points are right.
"""

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Final

import msgspec

from locust_llm.controller.run_progress import WINDOW_S, RunProgress
from locust_llm.records.histogram import Histogram, SlidingHistogram
from locust_llm.records.outcomes import OK
from locust_llm.records.phase_plan import PROFILING
from locust_llm.records.record import Record
from locust_llm.report.chart_data.timeline_lines import STALL_RATIO, make_timeline_row
from locust_llm.slo.metric_definitions import GATE_WAIT, ITL, TTFT, TTFT_FROM_DUE
from locust_llm.text.sanitise import sanitise_text

from .alerts import FailureWatch, LiveMark, SilenceWatch

MAX_POINTS: Final = 1200
"""The points of the history: 20 minutes at one a second, then one every two seconds, and so on."""
MAX_NAMES: Final = 12
"""The most request names with their own rows."""
NAME_BYTES: Final = 60
MAX_LINES: Final = 12
"""The requests that are drawn as lines, the last that ended."""
MAX_STALLS: Final = 4
"""The stalls of a line."""
MAX_MARKS: Final = 60
"""The most marks in the charts. Later ones take the place of the oldest."""
MAX_STAGES: Final = 60
"""The most stages with their own rows, the last ones."""
HOLE_S: Final = 3.0
"""A longer time between two points is a hole in the readings: the process stood still."""
BEFORE_S: Final = 60
"""The parts of the time to the first token are compared with those of so long ago."""
PERCENTILES: Final = (50, 90, 95, 99)
"""The percentiles of the table."""
PLOT_PERCENTILES: Final = (50, 95, 99)
"""The percentiles of the plots."""
ICL: Final = "inter_chunk_latency"
LATENCY: Final = "request_latency"
TABLE_ROWS: Final = {
    TTFT.tag: "TTFT",
    ITL.tag: "ITL",
    ICL: "ICL",
    GATE_WAIT.tag: "Gate wait",
    LATENCY: "Request latency",
    TTFT_FROM_DUE.tag: "TTFT from due",
}
"""The rows of the table, by tag."""
POOLED_ROWS: Final = {LATENCY: TABLE_ROWS[LATENCY], GATE_WAIT.tag: TABLE_ROWS[GATE_WAIT.tag]}
"""The rows for answers in one piece, for embeddings and rerank too."""


class LiveSample(msgspec.Struct, frozen=True, array_like=True):
    """The state of the run at a moment. Latencies are of the last WINDOW_S seconds, in ms; None:
    there were none."""

    at: float
    """Seconds since the start."""
    users: int
    limit: int | None
    used_s: float
    """The request-seconds that await the first token so far, then at the gate, then decoding.

    The mean number between two points is the difference of the totals over the difference of
    ``in_flight_at``.
    """
    waiting_s: float
    decoding_s: float
    ttft_ms: tuple[float, ...] | None
    """p50, p95, p99. Where a schedule or a gate held requests it is TTFT from due, as in the report's tiles."""
    itl_ms: tuple[float, ...] | None
    tokens_per_s: float
    ok: int
    """The successful requests so far, as the report's Request Throughput counts them."""
    failed: tuple[int, ...]
    """The failures so far by class, in the order of LivePageTallies.classes. It is shorter if a
    class came later."""
    server: tuple[tuple[float | None, ...] | None, ...] = ()
    """The server's own metrics: see charts.now."""
    latency_ms: tuple[float, ...] | None = None
    """p50, p95, p99 of whole requests, where nothing is generated."""
    in_flight_at: float = 0.0
    """Seconds from the start to the statuses behind the request-seconds."""


class RequestLine(msgspec.Struct, frozen=True, array_like=True):
    """One of the last requests. Times are ms after the start of the window."""

    asked: float
    admitted: float | None
    sent: float | None
    first: float | None
    closed: float
    stalls: tuple[tuple[float, float], ...]
    """(from, to) of gaps that are much longer than usual."""
    outcome: str
    """Empty: it was answered."""
    text: str


class RequestLines(msgspec.Struct, frozen=True):
    """The last requests, in the order in which they came."""

    start: float
    """The start of the window, in seconds since the run's start."""
    length: float
    """Milliseconds."""
    lines: tuple[RequestLine, ...]


class NameRow(msgspec.Struct, frozen=True):
    """The requests of one name."""

    name: str
    ok: int
    failed: int
    count: int
    """The values of the last WINDOW_S seconds; of an ended run, of all of it."""
    ttft_ms: list[float] | None
    """PLOT_PERCENTILES of these; request latency where answers have no first token."""
    itl_count: int
    itl_ms: list[float] | None


class StageRow(msgspec.Struct, frozen=True):
    """A stage of a sweep: the counted requests."""

    number: int
    ok: int
    failed: int
    seconds: float
    """From the first counted request to the last end."""
    tokens: int
    ttft_ms: list[float] | None
    """PLOT_PERCENTILES"""
    itl_ms: list[float] | None
    latency_ms: list[float] | None
    counts: tuple[int, int, int]
    """The values behind these three."""


class LatencyRow(msgspec.Struct, frozen=True):
    """A row of the table in ms. ``None``: there are no values."""

    label: str
    count: int
    """The requests in the last WINDOW_S seconds."""
    recent_ms: list[float] | None
    whole_count: int
    whole_ms: list[float] | None
    named: bool = False
    """The row is for the requests of one name."""
    inexact: tuple[str, ...] = ()
    """Which values of the whole run the load generator may have too wrong: ``p50``."""


def order_latency_rows(rows: Mapping[str, str], *, waits: bool, gated: bool) -> dict[str, str]:
    """The rows' names by tag. ``waits``: a schedule or a gate held requests, and the users' wait
    comes first. ``gated``: it was a gate; without one nothing waits at it."""
    rows = {tag: label for tag, label in rows.items() if gated or tag != GATE_WAIT.tag}
    if TTFT_FROM_DUE.tag not in rows:
        return dict(rows)
    if not waits:  # then it is TTFT
        return {tag: label for tag, label in rows.items() if tag != TTFT_FROM_DUE.tag}
    return {TTFT_FROM_DUE.tag: rows[TTFT_FROM_DUE.tag], **rows}


class NameTally:
    """What is counted of the requests of one name."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.ok = self.failed = 0
        self.recent = SlidingHistogram(WINDOW_S, clock)
        self.whole = Histogram()
        self.recent_itl = SlidingHistogram(WINDOW_S, clock)
        self.whole_itl = Histogram()


class StageTally:
    """What is counted of a stage."""

    def __init__(self) -> None:
        self.ok = self.failed = self.tokens = 0
        self.began_at = float("inf")
        self.ended_at = 0.0
        self.ttft = Histogram()
        self.itl = Histogram()
        self.latency = Histogram()

    def add(self, record: Record, first_s: float | None) -> None:
        self.began_at = min(self.began_at, record.sent_unix_s)
        self.ended_at = max(self.ended_at, record.closed_unix_s)
        self.failed += record.failed
        if record.outcome != OK:
            return
        self.ok += 1
        self.tokens += record.output_tokens or 0
        for histogram, time_s in (
            (self.ttft, first_s), (self.itl, record.itl_s), (self.latency, record.latency_s),
        ):  # fmt: skip
            if time_s is not None:
                histogram.add(round(time_s * 1e6))

    def row(self, number: int) -> StageRow:
        return StageRow(
            number=number,
            ok=self.ok,
            failed=self.failed,
            seconds=max(0.0, self.ended_at - self.began_at),
            tokens=self.tokens,
            ttft_ms=shorten(self.ttft.percentiles_ms(*PLOT_PERCENTILES)),
            itl_ms=shorten(self.itl.percentiles_ms(*PLOT_PERCENTILES)),
            latency_ms=shorten(self.latency.percentiles_ms(*PLOT_PERCENTILES)),
            counts=(self.ttft.count, self.itl.count, self.latency.count),
        )


class LivePageTallies:
    """The statistics of one run. Call ``add`` for each ended request, and ``tick`` once a
    second."""

    def __init__(
        self,
        stats: RunProgress,
        started_at: float,
        clock: Callable[[], float] = time.time,
        *,
        generates: bool = True,
        streams: bool = True,
    ) -> None:
        """``generates``: answers have output; else its values are left out. ``streams``: answers
        have a first token."""
        self.stats, self.generates = stats, generates
        self.streams = generates and streams
        self.started_at = started_at
        """Unix seconds."""
        self.step = 1
        """Seconds between two points of the history."""
        self.points: list[LiveSample] = []
        self.marks: list[LiveMark] = []
        self.holes: list[tuple[float, float]] = []
        """(from, to) of the times without readings, in seconds since the start."""
        self.failures_watch = FailureWatch(self._mark_trouble)
        self.silence = SilenceWatch(self._mark_trouble)
        self.classes: list[str] = []
        """The failure classes in the order of their appearance."""
        self.ended = 0
        self._clock = clock
        self.tokens_per_s = 0.0
        """The rate of the last tick, for the tile and the last point of the chart."""
        self._of_point: dict[str, LatencyRow] = {}
        """The table at the charts' last point, by label."""
        self._ticks = 0
        self._phase = ""
        self._stage = 0
        self._recent = {tag: SlidingHistogram(WINDOW_S, clock) for tag in TABLE_ROWS}
        self._whole: dict[str, Histogram] = defaultdict(Histogram)
        self.has_waits = False
        """A schedule or a gate held requests, so TTFT from due comes first."""
        self.gated = True
        """There is, or was, a gate."""
        self._names: dict[str, NameTally] = {}
        """TTFT by request name, from due where there are waits."""
        self._stages: dict[int, StageTally] = {}
        self._parts: deque[tuple[float, int, dict[str, float]]] = deque(maxlen=BEFORE_S + 1)
        """(when, requests, means in seconds) of the parts of the time to the first token."""
        self._last_tick: float | None = None
        self._last: deque[Record] = deque(maxlen=MAX_LINES)

    def add(self, record: Record) -> None:
        if record.stage != self._stage:  # figures of two loads are not mixed
            self._stage = record.stage
            self._whole.clear()
            self._names.clear()
        if record.failed and record.outcome not in self.classes:
            self.classes.append(record.outcome)
        self.ended += 1
        self._last.append(record)
        self.failures_watch.add(max(0.0, record.closed_unix_s - self.started_at), record)
        if record.stage and record.phase == PROFILING:
            self._stages.setdefault(record.stage, StageTally()).add(record, self._first_s(record))
            if len(self._stages) > MAX_STAGES:
                del self._stages[min(self._stages)]
        for tag, times_us in iterate_latencies(record):
            self._recent[tag].add(times_us)
            if record.phase == PROFILING:
                self._whole[tag].add(*times_us)
        self._add_name(record)

    def _first_s(self, record: Record) -> float | None:
        """TTFT as the page leads with it."""
        return record.ttft_from_due_s if self.has_waits else record.ttft_s

    def _add_name(self, record: Record) -> None:
        if record.phase != PROFILING or not (record.outcome == OK or record.failed):
            return
        if record.name not in self._names and len(self._names) >= MAX_NAMES:
            return
        tally = self._names.setdefault(record.name, NameTally(self._clock))
        tally.failed += record.failed
        if record.outcome != OK:
            return
        tally.ok += 1
        first_s = self._first_s(record) if self.streams else record.latency_s
        if first_s is not None:
            tally.recent.add((round(first_s * 1e6),))
            tally.whole.add(round(first_s * 1e6))
        if record.itl_s is not None:
            tally.recent_itl.add((round(record.itl_s * 1e6),))
            tally.whole_itl.add(round(record.itl_s * 1e6))

    @property
    def seconds(self) -> float:
        """The seconds since the start."""
        return round(self._clock() - self.started_at, 2)

    def mark(self, text: str, kind: str = "phase", sentence: str = "") -> None:
        """Add a mark to the charts at this moment. ``sentence``: see LiveMark."""
        self.mark_at(self.seconds, text, kind, sentence)

    def _mark_trouble(self, at: float, text: str) -> None:
        self.mark_at(at, text, "trouble")

    def mark_at(self, at: float, text: str, kind: str, sentence: str = "") -> None:
        """The same at another moment, in seconds since the start."""
        self.marks.append(LiveMark(round(max(0.0, at), 2), text, kind, sentence))
        self.marks.sort(key=attrgetter("at"))
        del self.marks[:-MAX_MARKS]

    def tick(
        self,
        users: int,
        limit: int | None,
        phase: str,
        server: tuple[tuple[float | None, ...] | None, ...] = (),
    ) -> None:
        """Add the point of one second. ``phase`` names the phase or stage. ``server``: see
        LiveSample."""
        if phase != self._phase:
            self._phase = phase
            if self.points:
                self.mark(phase)
        self._note_hole()
        self.tokens_per_s = round(self.stats.tokens_per_s(), 1)
        count, means_s = self.stats.parts.recent()
        self._parts.append((self.seconds, count, means_s))
        self._ticks += 1
        if self._ticks % self.step:
            return
        stats = self.stats
        totals_s, age_s = stats.request_seconds()
        used_s, waiting_s, decoding_s = (round(total_s, 3) for total_s in totals_s)
        ttft_ms = self.stats.first_token_ms(*PLOT_PERCENTILES, from_due=self.has_waits)
        itl_ms = self._recent[ITL.tag].histogram().percentiles_ms(*PLOT_PERCENTILES)
        whole = (
            None
            if self.streams
            else self._recent[LATENCY].histogram().percentiles_ms(*PLOT_PERCENTILES)
        )
        self.points.append(
            LiveSample(
                at=self.seconds,
                users=users,
                limit=limit,
                used_s=used_s,
                waiting_s=waiting_s,
                decoding_s=decoding_s,
                ttft_ms=None if ttft_ms is None else tuple(round(ms, 1) for ms in ttft_ms),
                itl_ms=None if itl_ms is None else tuple(round(ms, 2) for ms in itl_ms),
                tokens_per_s=self.tokens_per_s,
                ok=stats.counts[OK],
                failed=tuple(stats.counts[name] for name in self.classes),
                server=server,
                latency_ms=None if whole is None else tuple(round(ms, 1) for ms in whole),
                in_flight_at=round(max(0.0, self.seconds - age_s), 3),
            )
        )
        if len(self.points) > MAX_POINTS:
            del self.points[::2]
            self.step *= 2
        self._of_point = {row.label: row for row in self.table()}

    def _note_hole(self) -> None:
        """Note the time since the last tick where it is a hole in the readings."""
        before, now = self._last_tick, self.seconds
        self._last_tick = now
        if before is not None and now - before > HOLE_S:
            self.holes.append((before, now))
            self._mark_trouble(before, "stood still")

    def since(self, at: float) -> list[LiveSample]:
        """The points after ``at`` seconds."""
        first = len(self.points)
        while first and self.points[first - 1].at > at:
            first -= 1
        return self.points[first:]

    def table(self) -> list[LatencyRow]:
        """TTFT of the last seconds uses first chunks that came. All other rows use ended
        requests."""
        rows = []
        shown_rows = TABLE_ROWS if self.streams else POOLED_ROWS
        for tag, label in order_latency_rows(
            shown_rows, waits=self.has_waits, gated=self.gated
        ).items():
            count, recent_ms = self._list_recent(tag)
            whole = self._whole[tag]
            whole_ms = whole.percentiles_ms(*PERCENTILES)
            rows.append(
                LatencyRow(label, count, shorten(recent_ms), whole.count, shorten(whole_ms))
            )
        return [*rows, *self.by_name()]

    def table_of_point(self) -> list[LatencyRow]:
        """The table, with the last seconds before the charts' last point, as the charts have them.
        After the stop no point comes, and requests still end."""
        return [self._take_recent(row) for row in self.table()]

    def _take_recent(self, row: LatencyRow) -> LatencyRow:
        of_point = self._of_point.get(row.label)
        if of_point is None:
            return row
        return msgspec.structs.replace(row, count=of_point.count, recent_ms=of_point.recent_ms)

    def _list_recent(self, tag: str) -> tuple[int, list[float] | None]:
        """(count, percentiles in ms) of the last seconds. The first row with a TTFT has the same
        values as the chart and the progress line."""
        if self.streams and tag == (TTFT_FROM_DUE.tag if self.has_waits else TTFT.tag):
            window = self.stats.recent_due if self.has_waits else self.stats.recent_ttft
            return window.count, self.stats.first_token_ms(*PERCENTILES, from_due=self.has_waits)
        if self.streams and tag == TTFT.tag:
            window = self.stats.recent_ttft
            return window.count, window.percentiles_ms(*PERCENTILES)
        recent = self._recent[tag].histogram()
        return recent.count, recent.percentiles_ms(*PERCENTILES)

    def by_name(self) -> list[LatencyRow]:
        """The first rows of the table by request name. Empty: there is one name only."""
        rows = []
        first = TABLE_ROWS[TTFT_FROM_DUE.tag if self.has_waits else TTFT.tag]
        first = first if self.streams else TABLE_ROWS[LATENCY]
        for name, tally in sorted(self._names.items()) if len(self._names) > 1 else ():
            recent = tally.recent.histogram()
            whole = tally.whole
            recent_ms = recent.percentiles_ms(*PERCENTILES)
            whole_ms = whole.percentiles_ms(*PERCENTILES)
            label = f"{first}, {sanitise_text(name, most=NAME_BYTES)}"
            rows.append(
                LatencyRow(
                    label,
                    recent.count,
                    shorten(recent_ms),
                    whole.count,
                    shorten(whole_ms),
                    named=True,
                )
            )
        return rows

    def names(self, *, whole: bool = False) -> list[NameRow]:
        """A row for each request name. Empty: there is one name only. ``whole``: the latencies are
        of all that was counted, not of the last seconds."""
        rows = []
        for name, tally in sorted(self._names.items()) if len(self._names) > 1 else ():
            first = tally.whole if whole else tally.recent.histogram()
            itl = tally.whole_itl if whole else tally.recent_itl.histogram()
            rows.append(
                NameRow(
                    name=sanitise_text(name, most=NAME_BYTES),
                    ok=tally.ok,
                    failed=tally.failed,
                    count=first.count,
                    ttft_ms=shorten(first.percentiles_ms(*PLOT_PERCENTILES)),
                    itl_count=itl.count,
                    itl_ms=shorten(itl.percentiles_ms(*PLOT_PERCENTILES)),
                )
            )
        return rows

    def stage_rows(self) -> list[StageRow]:
        """The stages so far, the present one included."""
        return [tally.row(number) for number, tally in self._stages.items()]

    def parts_before(self) -> tuple[int, dict[str, float]]:
        """The parts of the time to the first token ``BEFORE_S`` ago: (requests, means in seconds).
        (0, {}): the run was shorter."""
        if not self._parts or self.seconds - self._parts[0][0] < BEFORE_S - 1:
            return 0, {}
        _, count, means_s = self._parts[0]
        return count, means_s

    def lines(self) -> RequestLines | None:
        """The last requests that ended, in the order in which they came."""
        records = sorted(self._last, key=attrgetter("asked_unix_s"))
        if not records:
            return None
        start = records[0].asked_unix_s
        end = max(record.closed_unix_s for record in records)
        length = max(1.0, round((end - start) * 1e3, 1))
        gaps = self._recent[ICL].histogram()
        gap_ms = gaps.percentiles_ms(50, 99) or self._whole[ICL].percentiles_ms(50, 99)
        slow_ms = max(STALL_RATIO * gap_ms[0], gap_ms[1]) if gap_ms else length
        lines = tuple(make_request_line(record, start, slow_ms) for record in records)
        return RequestLines(round(start - self.started_at, 3), length, lines)

    def failures(self) -> dict[str, int]:
        """The failures so far, by class."""
        return {name: self.stats.counts[name] for name in self.classes}

    def failure_rows(self) -> list[tuple[str, int, str]]:
        """(class, count, last message) of the failures so far, the most frequent first."""
        messages = self.failures_watch.messages
        rows = [(name, count, messages.get(name, "")) for name, count in self.failures().items()]
        return sorted(rows, key=lambda row: -row[1])


def shorten(values_ms: list[float] | None) -> list[float] | None:
    """The values with four significant digits at least, as a page shows no more."""
    if values_ms is None:
        return None
    return [round(value, 4 if value < 1 else 2) for value in values_ms]


def make_request_line(record: Record, start: float, slow_ms: float) -> RequestLine:
    """``start``: of the window, in Unix seconds. A gap above ``slow_ms`` is a stall."""
    row = make_timeline_row(record, start, math.inf, math.inf)
    stalls = []
    for before_us, after_us in pairwise(record.chunk_us):
        if after_us - before_us > slow_ms * 1e3 and row.sent is not None:
            stall = row.sent + before_us / 1e3, row.sent + after_us / 1e3
            stalls.append((round(stall[0], 1), round(stall[1], 1)))
    stalls.sort(key=lambda stall: stall[0] - stall[1])
    return RequestLine(
        asked=row.asked,
        admitted=row.admitted,
        sent=row.sent,
        first=row.first,
        closed=row.closed,
        stalls=tuple(stalls[:MAX_STALLS]),
        outcome=row.outcome,
        text=row.text,
    )


def iterate_latencies(record: Record) -> Iterator[tuple[str, Sequence[int]]]:
    """(tag, microseconds) of a request, as in the report's main table: successful requests, but
    gate waits of all."""
    times_s = [(GATE_WAIT.tag, record.gate_wait_s)]
    if record.outcome == OK:
        times_s += [
            (TTFT.tag, record.ttft_s),
            (ITL.tag, record.itl_s),
            (LATENCY, record.latency_s),
            (TTFT_FROM_DUE.tag, record.ttft_from_due_s),
        ]
        if gaps_us := record.sharp_gaps_us:
            yield ICL, gaps_us
    yield from ((tag, (round(time_s * 1e6),)) for tag, time_s in times_s if time_s is not None)
