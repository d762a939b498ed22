"""Accuracy: how far the times that are reported lie from the true ones, on streams whose send times
are known.

The truth of a send is an interval, so a difference is one too; what counts of it is the end further
from zero. Two kinds are kept apart: from the send of a request to a chunk (TTFT), and between two
chunks of a stream (gaps).
"""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec.structs import replace

from locust_llm.slo.client_verdict import highest_known_percent

from .histogram import Histogram
from .record import Count, Record

SHARES: Final = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
"""Of the differences that may lie beyond a bound."""
DOUBT: Final = 0.025
"""A bound does not hold with this probability, where differences are independent."""
LEAST: Final = 8
"""Fewer differences of a kind are no certificate."""

Ends = tuple[float, float]
"""By how much the true figure may be lower, and by how much higher, in ms."""
Quantile = Callable[[float], float | None]
"""From a percentile (0 to 100) to a value in ms; None of nothing."""
Ms = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Nanos = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class ReferenceTimes(msgspec.Struct, frozen=True):
    """Of one stream, in ns of the monotonic clock: when its request arrived, and just before and
    after each send."""

    arrived: Nanos
    sends: tuple[tuple[Nanos, Nanos], ...]


class _Event(msgspec.Struct, frozen=True):
    truth: ReferenceTimes


class ErrorBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Differences of one kind, in ms."""

    count: Count
    p50_ms: Ms
    p95_ms: Ms
    p99_ms: Ms
    """Of fewer than 100 differences the second largest, for p95 too where they are fewer than 22:
    one alone does not lower a client verdict."""
    max_ms: Ms
    within: dict[Share, Ms] = {}
    """By share: at most so much of all differences lie beyond this; only shares for which there
    were enough."""

    @property
    def pairs(self) -> tuple[tuple[float, float], ...]:
        """(share, ms beyond which at most that share lies), as ``within``, and first (0, the
        largest that was seen)."""
        return (0.0, self.max_ms), *self.within.items()


class MeasurementAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Of one process, over a run or a stage of it."""

    missing: str = ""
    """Why there is none; else the rest is there."""
    streams: Count = 0
    chunks: Count = 0
    merged: Count = 0
    """Chunks that came more than one to a read: known to be uncertain, and in no difference."""
    ttft: ErrorBounds | None = None
    gap: ErrorBounds | None = None
    server_cpu_s: float | None = None
    """What the truth server took."""


class TimingDifferences:
    """Of one process; its size does not grow with the run."""

    def __init__(self) -> None:
        self.streams = self.chunks = self.merged = 0
        self.ttft = Histogram()
        self.gap = Histogram()

    def add(self, record: Record, truth: ReferenceTimes) -> None:
        """One finished stream; one whose chunks are not those that were sent is left out."""
        us, sends, arrived = record.chunk_us, truth.sends, truth.arrived
        if len(us) != len(sends) or not us:
            return
        self.streams += 1
        self.chunks += len(us)
        self.merged += len(record.merged)
        blurred = {index for index, _ in record.merged}
        if 0 not in blurred:
            self.ttft.add(
                largest_difference_us(us[0], sends[0][0] - arrived, sends[0][1] - arrived)
            )
        for i in range(1, len(us)):
            if i not in blurred and i - 1 not in blurred:
                low, high = sends[i][0] - sends[i - 1][1], sends[i][1] - sends[i - 1][0]
                self.gap.add(largest_difference_us(us[i] - us[i - 1], low, high))

    def certificate(self, server_cpu_s: float | None = None) -> MeasurementAccuracy:
        """What they amount to."""
        ttft = compute_error_bounds(self.ttft)
        gap = compute_error_bounds(self.gap)
        if ttft is None or gap is None:
            return MeasurementAccuracy(missing="too few sentinel streams ended in this time")
        return MeasurementAccuracy(
            streams=self.streams, chunks=self.chunks, merged=self.merged, ttft=ttft, gap=gap,
            server_cpu_s=server_cpu_s
        )  # fmt: skip


def parse_reference_times(event: bytes) -> ReferenceTimes | None:
    """From the last event of a stream of the truth server; None where it has none."""
    try:
        return msgspec.json.decode(event, type=_Event).truth
    except (ValueError, RecursionError):
        return None


def largest_difference_us(reported_us: int, low_ns: int, high_ns: int) -> int:
    """The largest that reported minus true can be, either way, where the truth lies between
    ``low_ns`` and ``high_ns``; in whole microseconds, rounded up. One more, as reported times are
    whole microseconds too."""
    reported_ns = reported_us * 1000
    return math.ceil(max(abs(reported_ns - low_ns), abs(high_ns - reported_ns)) / 1000) + 1


def compute_error_bounds(differences: Histogram) -> ErrorBounds | None:
    """None of fewer than LEAST."""
    count = differences.count
    known = highest_known_percent(count)
    found = differences.percentiles_ms(50, min(95.0, known), min(99.0, known), 100)
    if count < LEAST or found is None:
        return None
    within = {}
    for share in SHARES:
        beyond = count_surely_beyond(count, share)
        if beyond is not None:
            within[share] = _from_top(differences, beyond) / 1e3
    p50, p95, p99, most = found
    return ErrorBounds(count=count, p50_ms=p50, p95_ms=p95, p99_ms=p99, max_ms=most, within=within)


def count_surely_beyond(count: int, share: float) -> int | None:
    """Of ``count`` independent values, how many lie above the quantile of 1 - ``share`` but for
    DOUBT: the value with so many above it is a bound of that quantile (Wilks 1941, Ann. Math.
    Statist. 12). None: not even the largest is."""
    mean = count * share
    sure = math.floor(mean - 2 * math.sqrt(mean) - 1)
    if sure >= 0:
        return sure
    return 0 if (1 - share) ** count <= DOUBT else None


def _from_top(differences: Histogram, beyond: int) -> int:
    """The value that has ``beyond`` values above it."""
    for us, count in sorted(differences.counts.items(), reverse=True):
        beyond -= count
        if beyond < 0:
            return us
    raise ValueError("there are not so many")


def first_chunk_bounds(ttft: ErrorBounds, gap: ErrorBounds) -> ErrorBounds:
    """Of times from a send to a chunk: the chunk's stamp is like any other, and of those there are
    many more. Where there are too few sends for the bound of a share, the largest difference takes
    its place."""
    within = {
        share: max(ms, ttft.within.get(share, ttft.max_ms)) for share, ms in gap.within.items()
    }
    return replace(ttft, max_ms=max(ttft.max_ms, gap.max_ms), within=within)


def combine_worst_bounds(some: list[ErrorBounds]) -> ErrorBounds:
    """One that holds for each of several processes."""
    common = set(some[0].within).intersection(*(one.within for one in some))
    within = {share: _largest_within(some, share) for share in some[0].within if share in common}

    def most(name: str) -> Any:
        return max(getattr(one, name) for one in some)

    return ErrorBounds(
        count=sum(one.count for one in some),
        p50_ms=most("p50_ms"), p95_ms=most("p95_ms"), p99_ms=most("p99_ms"), max_ms=most("max_ms"),
        within=within,
    )  # fmt: skip


def _largest_within(some: list[ErrorBounds], share: float) -> float:
    return max(one.within[share] for one in some)


def combine_accuracies(
    each: Sequence[MeasurementAccuracy | None],
) -> tuple[ErrorBounds, ErrorBounds] | None:
    """(of times from a send to a chunk, of gaps) over all processes that sent; None where one of
    them has no certificate."""
    if (both := combine_sentinel_errors(each)) is None:
        return None
    ttft, gap = both
    return first_chunk_bounds(ttft, gap), gap


def combine_sentinel_errors(
    each: Sequence[MeasurementAccuracy | None],
) -> tuple[ErrorBounds, ErrorBounds] | None:
    """(of TTFT alone, of gaps), as in combine_accuracies."""
    found = [
        (one.ttft, one.gap)
        for one in each
        if one is not None and one.ttft is not None and one.gap is not None
    ]
    if not found or len(found) < len(each):
        return None
    return combine_worst_bounds([ttft for ttft, _ in found]), combine_worst_bounds(
        [between for _, between in found]
    )


def spread_over_tokens(bounds: ErrorBounds, lengths: Sequence[float]) -> ErrorBounds:
    """Of a difference that is spread over the tokens of an answer. It weighs most in a short one:
    the 5th percentile of ``lengths`` (tokens) counts."""
    tokens = max(sorted(lengths)[len(lengths) // 20], 1.0) if len(lengths) else 1.0
    return ErrorBounds(
        count=bounds.count,
        p50_ms=bounds.p50_ms / tokens, p95_ms=bounds.p95_ms / tokens, p99_ms=bounds.p99_ms / tokens,
        max_ms=bounds.max_ms / tokens, within={share: ms / tokens for share,
            ms in bounds.within.items()},
    )  # fmt: skip


def percentile_error_ends(
    percentile: float,
    count: int,
    least: Quantile,
    reported: Quantile,
    most: Quantile,
    pairs: Sequence[Ends],
) -> Ends:
    """For one percentile of ``count`` values. ``pairs``: (share, ms beyond which at most that share
    of differences lies)."""
    figure = reported(percentile)
    lower, upper = [], []
    for share, ms in pairs:
        step = 100 * max_values_beyond(count, share) / max(count - 1, 1)
        if percentile - step >= 0 and (low := least(percentile - step)) is not None:
            lower.append(low - ms)
        if percentile + step <= 100 and (high := most(percentile + step)) is not None:
            upper.append(high + ms)
    if figure is None or not lower or not upper:
        return math.inf, math.inf
    return max(0.0, figure - max(0.0, *lower)), max(0.0, min(upper) - figure)


def largest_error_ms(bounds: ErrorBounds, count: int, *, average: bool) -> float:
    """By how much one of ``count`` values may be off, in ms; or their average, to which those
    beyond a bound, being few, add little."""
    if not average:
        return bounds.max_ms
    return min(
        ms + max_values_beyond(count, share) / max(count, 1) * bounds.max_ms
        for share, ms in bounds.pairs
    )


def max_values_beyond(count: int, share: float) -> int:
    """How many of ``count`` values may lie beyond a bound that each passes with the probability
    ``share``: more do in one run of forty."""
    mean = count * share
    return 0 if mean < 0.025 else math.floor(mean + 2 * math.sqrt(mean)) + 1
