"""Live: a running run's values for the web page: the last seconds, the whole run, and over time.

Cost and size do not grow with the run. Times are counted with three significant digits, and a long
history drops every second point. Counts are kept as totals, so rates and means between any two
points are right.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final

import msgspec

from locust_llm.controller.live_stats import WINDOW_S, LiveStats
from locust_llm.records.histogram import Histogram, SlidingHistogram
from locust_llm.records.outcomes import OK
from locust_llm.records.phase_plan import PROFILING
from locust_llm.records.record import Record
from locust_llm.report.charts.timeline_lines import (
    MAX_DOTS,
    STALL_RATIO,
    TimelineRows,
    make_timeline_row,
)
from locust_llm.slo.metric_definitions import GATE_WAIT, ITL, TTFT, TTFT_FROM_DUE
from locust_llm.text.sanitise import sanitise_text

MAX_POINTS: Final = 1200
"""The points of the history: 20 minutes at one a second, then one every two seconds, and so on."""
MAX_NAMES: Final = 12
"""The most request names with their own rows."""
NAME_BYTES: Final = 60
MAX_LINES: Final = 32
"""The requests of the timeline, the last that ended."""
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
    """p50, p95, p99."""
    itl_ms: tuple[float, ...] | None
    tokens_per_s: float
    ok: int
    """The successful requests so far, as the report's Request Throughput counts them."""
    failed: tuple[int, ...]
    """The failures so far by class, in the order of LiveStatistics.classes. It is shorter if a
    class came later."""
    server: tuple[tuple[float | None, ...] | None, ...] = ()
    """The server's own metrics: see charts.now."""
    latency_ms: tuple[float, ...] | None = None
    """p50, p95, p99 of whole requests, where nothing is generated."""
    in_flight_at: float = 0.0
    """Seconds from the start to the statuses behind the request-seconds."""


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


def order_latency_rows(rows: Mapping[str, str], *, waits: bool, gated: bool) -> dict[str, str]:
    """The rows' names by tag. ``waits``: a schedule or a gate held requests, and the users' wait
    comes first. ``gated``: it was a gate; without one nothing waits at it."""
    rows = {tag: label for tag, label in rows.items() if gated or tag != GATE_WAIT.tag}
    if TTFT_FROM_DUE.tag not in rows:
        return dict(rows)
    if not waits:  # then it is TTFT
        return {tag: label for tag, label in rows.items() if tag != TTFT_FROM_DUE.tag}
    return {TTFT_FROM_DUE.tag: rows[TTFT_FROM_DUE.tag], **rows}


class LiveStatistics:
    """The statistics of one run. Call ``add`` for each ended request, and ``tick`` once a
    second."""

    def __init__(
        self,
        stats: LiveStats,
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
        self.marks: list[tuple[float, str]] = []
        """(seconds since the start, label)."""
        self.classes: list[str] = []
        """The failure classes in the order of their appearance."""
        self.ended = 0
        self._clock = clock
        self.tokens_per_s = 0.0
        """The rate of the last tick, for the tile and the last point of the chart."""
        self._ticks = 0
        self._phase = ""
        self._stage = 0
        self._recent = {tag: SlidingHistogram(WINDOW_S, clock) for tag in TABLE_ROWS}
        self._whole: dict[str, Histogram] = defaultdict(Histogram)
        self.has_waits = False
        """A schedule or a gate held requests, so TTFT from due comes first."""
        self.gated = True
        """There is, or was, a gate."""
        self._names: dict[str, tuple[SlidingHistogram, Histogram]] = {}
        """By request name: TTFT of the last seconds and of the whole run, from due where there are
        waits."""
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
        for tag, times_us in iterate_latencies(record):
            self._recent[tag].add(times_us)
            if record.phase == PROFILING:
                self._whole[tag].add(*times_us)
        self._add_name(record)

    def _add_name(self, record: Record) -> None:
        first_s = record.ttft_from_due_s if self.has_waits else record.ttft_s
        if record.outcome != OK or first_s is None or record.phase != PROFILING:
            return
        if record.name not in self._names and len(self._names) >= MAX_NAMES:
            return
        recent, whole = self._names.setdefault(
            record.name, (SlidingHistogram(WINDOW_S, self._clock), Histogram())
        )
        recent.add((round(first_s * 1e6),))
        whole.add(round(first_s * 1e6))

    @property
    def seconds(self) -> float:
        """The seconds since the start."""
        return round(self._clock() - self.started_at, 2)

    def mark(self, text: str) -> None:
        """Add a label to the plots at this moment."""
        self.marks.append((self.seconds, text))

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
        self.tokens_per_s = round(self.stats.tokens_per_s(), 1)
        self._ticks += 1
        if self._ticks % self.step:
            return
        stats = self.stats
        totals_s, age_s = stats.request_seconds()
        used_s, waiting_s, decoding_s = (round(total_s, 3) for total_s in totals_s)
        ttft_ms = self._window_of(TTFT.tag).histogram().percentiles_ms(*PLOT_PERCENTILES)
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

    def since(self, at: float) -> list[LiveSample]:
        """The points after ``at`` seconds."""
        first = len(self.points)
        while first and self.points[first - 1].at > at:
            first -= 1
        return self.points[first:]

    def table(self) -> list[LatencyRow]:
        """Without waits, TTFT of the last seconds uses first chunks. All other rows use ended
        requests."""
        rows = []
        shown_rows = TABLE_ROWS if self.streams else POOLED_ROWS
        for tag, label in order_latency_rows(
            shown_rows, waits=self.has_waits, gated=self.gated
        ).items():
            recent = self._window_of(tag).histogram()
            whole = self._whole[tag]
            recent_ms = recent.percentiles_ms(*PERCENTILES)
            whole_ms = whole.percentiles_ms(*PERCENTILES)
            rows.append(LatencyRow(label, recent.count, recent_ms, whole.count, whole_ms))
        return [*rows, *self.by_name()]

    def _window_of(self, tag: str) -> SlidingHistogram:
        """The window that the table and the charts share, so that their last seconds have the same
        requests."""
        return (
            self.stats.recent_ttft if tag == TTFT.tag and not self.has_waits else self._recent[tag]
        )

    def by_name(self) -> list[LatencyRow]:
        """The first rows of the table by request name. Empty: there is one name only."""
        rows = []
        first = TABLE_ROWS[TTFT_FROM_DUE.tag if self.has_waits else TTFT.tag]
        for name, (window, whole) in sorted(self._names.items()) if len(self._names) > 1 else ():
            recent = window.histogram()
            recent_ms = recent.percentiles_ms(*PERCENTILES)
            whole_ms = whole.percentiles_ms(*PERCENTILES)
            label = f"{first}, {sanitise_text(name, most=NAME_BYTES)}"
            rows.append(
                LatencyRow(label, recent.count, recent_ms, whole.count, whole_ms, named=True)
            )
        return rows

    def lines(self) -> TimelineRows | None:
        """The last requests that ended, in the order in which they came."""
        records = sorted(self._last, key=attrgetter("asked_unix_s"))
        if not records:
            return None
        start = records[0].asked_unix_s
        end = max(record.closed_unix_s for record in records)
        length = max(1.0, round((end - start) * 1e3, 1))
        gap_ms = self._recent[ICL].histogram().percentiles_ms(50) or self._whole[
            ICL
        ].percentiles_ms(50)
        slow = max(STALL_RATIO * gap_ms[0], 2 * length / MAX_DOTS) if gap_ms else 0.0
        return TimelineRows(
            rows=tuple(
                make_timeline_row(record, start, length / MAX_DOTS, slow) for record in records
            ),
            start=round(start - self.started_at, 3),
            length=length,
            slow=round(slow, 1),
        )

    def failures(self) -> dict[str, int]:
        """The failures so far, by class."""
        return {name: self.stats.counts[name] for name in self.classes}


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
