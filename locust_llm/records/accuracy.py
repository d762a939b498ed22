"""Accuracy: how far the times that are reported lie from the true ones, on streams whose send times
are known.

The truth of a send is an interval, so a difference is one too; what counts of it is the end further
from zero. Two kinds are kept apart: from the send of a request to a chunk (TTFT), and between two
chunks of a stream (gaps).
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec.structs import replace

from locust_llm.slo.client_verdict import highest_known_percent

from .histogram import Histogram
from .record import Count, Record

SHARES: Final = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
"""Of the differences that may lie beyond a bound."""
DOUBT: Final = 0.025
"""A bound does not hold with this probability, where differences are independent."""
VAGUE_NS: Final = 500_000
"""A truth that is known within a longer time only is none."""
LEAST: Final = 8
"""Fewer differences of a kind are no certificate."""
ONE: Final = 0.95
BISECTIONS: Final = 30
TRIED: Final = (0.2, 0.05, 0.01)
"""Shares beyond a bound that the ends of a percentile are tried with, beside the largest."""

Ends = tuple[float, float]
"""By how much the true figure may be lower, and by how much higher, in ms."""
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
    def steps(self) -> tuple[tuple[float, float], ...]:
        """(share of all differences, no larger than so many ms): the shares add up to 1, and the
        last one is of the largest that was seen."""
        steps = list[tuple[float, float]]()
        left = 1.0
        for share, ms in sorted(self.within.items(), reverse=True):
            steps.append((left - share, ms))
            left = share
        return (*steps, (left, self.max_ms))

    @property
    def pairs(self) -> tuple[tuple[float, float], ...]:
        """(share, ms beyond which at most that share lies), of some shares, and first (0, the
        largest that was seen)."""
        return (0.0, self.max_ms), *((s, ms) for s, ms in self.within.items() if s in TRIED)

    @property
    def of_one_ms(self) -> float:
        """No larger is the difference of one value, nineteen times in twenty."""
        return min(
            (ms for share, ms in self.within.items() if share <= 1 - ONE), default=self.max_ms
        )


class MeasurementAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """The measured errors of one process, over a run or a stage of it."""

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
    """The differences of one process; its size does not grow with the run."""

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
            _compare(self.ttft, us[0], sends[0][0] - arrived, sends[0][1] - arrived)
        for i in range(1, len(us)):
            if i not in blurred and i - 1 not in blurred:
                low = sends[i][0] - sends[i - 1][1]
                high = sends[i][1] - sends[i - 1][0]
                _compare(self.gap, us[i] - us[i - 1], low, high)

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


def _compare(differences: Histogram, reported_us: int, low_ns: int, high_ns: int) -> None:
    """One whose truth is not known well enough, and that it does not contradict, says nothing: the
    truth server was held up at its send."""
    if high_ns - low_ns > VAGUE_NS and low_ns <= reported_us * 1000 <= high_ns:
        return
    differences.add(largest_difference_us(reported_us, low_ns, high_ns))


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
    percentiles = differences.percentiles_ms(50, min(95.0, known), min(99.0, known), 100)
    if count < LEAST or percentiles is None:
        return None
    within = {}
    for share in SHARES:
        beyond = count_surely_beyond(count, share)
        if beyond is not None:
            within[share] = _from_top(differences, beyond) / 1e3
    p50, p95, p99, most = percentiles
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


def combine_worst_bounds(several_bounds: list[ErrorBounds]) -> ErrorBounds:
    """One that holds for each of several processes."""
    common = set(several_bounds[0].within).intersection(
        *(bounds.within for bounds in several_bounds)
    )
    within = {
        share: _largest_within(several_bounds, share)
        for share in several_bounds[0].within
        if share in common
    }

    def most(name: str) -> Any:
        return max(getattr(bounds, name) for bounds in several_bounds)

    return ErrorBounds(
        count=sum(bounds.count for bounds in several_bounds),
        p50_ms=most("p50_ms"), p95_ms=most("p95_ms"), p99_ms=most("p99_ms"), max_ms=most("max_ms"),
        within=within,
    )  # fmt: skip


def _largest_within(several_bounds: list[ErrorBounds], share: float) -> float:
    return max(bounds.within[share] for bounds in several_bounds)


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
    known_errors = [
        (certificate.ttft, certificate.gap)
        for certificate in each
        if certificate is not None and certificate.ttft is not None and certificate.gap is not None
    ]
    if not known_errors or len(known_errors) < len(each):
        return None
    return combine_worst_bounds([ttft for ttft, _ in known_errors]), combine_worst_bounds(
        [between for _, between in known_errors]
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


class OrderedValues:
    """Values in ms in rising order, each with how many are at most that."""

    def __init__(self, values_ms: Sequence[float], upto: Sequence[int] | None = None) -> None:
        """``upto``: None, each value counts once."""
        self._values, self._upto = values_ms, upto
        if upto is None:
            self.count = len(values_ms)
        else:
            self.count = int(upto[-1]) if len(upto) else 0

    def count_within(self, most_ms: float) -> int:
        """How many are at most so large."""
        index = bisect_right(self._values, most_ms)
        if self._upto is None:
            return index
        return int(self._upto[index - 1]) if index else 0

    def at_rank(self, rank: int) -> float:
        """The value with so many below it, or as near to that as there is one."""
        rank = min(max(rank, 0), self.count - 1)
        index = rank if self._upto is None else bisect_right(self._upto, rank)
        return float(self._values[index])


def percentile_error_ends(
    percentile: float,
    least: OrderedValues,
    reported: OrderedValues,
    most: OrderedValues,
    bounds: ErrorBounds | None,
) -> Ends:
    """By how much the percentile of the true values may be lower, and higher, than that of the
    reported ones. Each true value lies between ``least`` and ``most``, and beyond that by an error
    that is distributed as ``bounds`` say, whatever the value is."""
    rank = round(percentile / 100 * (reported.count - 1))
    figure = reported.at_rank(rank)
    share = (rank + 1) / reported.count
    pairs = ((0.0, 0.0),) if bounds is None else bounds.pairs
    low = min(figure - _true_end(least, share, pair, pairs, -1) for pair in pairs)
    high = min(_true_end(most, share, pair, pairs, 1) - figure for pair in pairs)
    return min(max(low, 0.0), figure), max(high, 0.0)


def _true_end(
    values: OrderedValues,
    share: float,
    pair: tuple[float, float],
    pairs: Sequence[tuple[float, float]],
    sign: int,
) -> float:
    """The least (sign -1) or the most (1) that this share of the true values can be within, by
    bisection. All errors are at most ``pair[1]``, but for a share of ``pair[0]``: of these only as
    many count as lie near enough to cross the end."""
    beyond, off = pair
    rarer = sorted((pair for pair in pairs if pair[0] < beyond), reverse=True)
    shares = [beyond, *(pair[0] for pair in rarer)]
    tail = [(before - rare, ms) for before, (rare, ms) in zip(shares, rarer, strict=False)]
    needed = share * values.count
    start = values.at_rank(math.ceil(needed - 1e-9) - 1)
    largest = max(ms for _, ms in pairs)
    low, high = sorted((start, start + sign * largest))

    def count_within(end: float) -> float:
        """How many true values are within ``end``, at most where it is sought below, else at
        least."""
        near = values.count_within(end - sign * off)
        crossing = sum(mass * abs(values.count_within(end - sign * ms) - near) for mass, ms in tail)
        return near - sign * _surely_at_most(crossing)

    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if count_within(middle) >= needed - 1e-9:
            high = middle
        else:
            low = middle
    return high if sign > 0 else low


def _surely_at_most(mean: float) -> int:
    """Of so many on average; more are there in one run of forty."""
    return 0 if mean < 0.025 else math.floor(mean + 2 * math.sqrt(mean)) + 1


def largest_error_ms(bounds: ErrorBounds, *, average: bool) -> float:
    """By how much one value may be off, in ms; or the mean of many."""
    if not average:
        return bounds.max_ms
    return sum(mass * ms for mass, ms in bounds.steps)
