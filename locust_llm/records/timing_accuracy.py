"""Timing accuracy: how far the reported times lie from the true ones, on streams whose send times
are known.

The truth of a send is an interval, so a difference is one too. Its end further from zero counts.
There are two kinds: from a request's send to a chunk (TTFT), and between two chunks of a stream
(gaps).
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec.structs import replace

from locust_llm.slo.load_generator_health import highest_known_percent

from .histogram import Histogram
from .record import Count, Record

SHARES: Final = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
"""Shares of the differences that may lie beyond a bound."""
DOUBT: Final = 0.025
"""The probability that a bound does not hold, where differences are independent."""
VAGUE_NS: Final = 500_000
"""A truth whose interval is longer is not used."""
LEAST: Final = 8
"""Fewer differences of a kind give no result."""
ONE: Final = 0.95
PRECISE_MS: Final = 1e-7
"""An end is found to within this."""
BISECTIONS: Final = 30
"""The most steps to it: a failed request counts with a value so large that no double beside it is
as near."""
TRIED: Final = (0.2, 0.05, 0.01)
"""Shares beyond a bound that are tried for the ends of a percentile, beside the largest."""

Ends = tuple[float, float]
"""How much lower, and how much higher, the true value may be, in ms."""
Ms = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Nanos = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class ReferenceTimes(msgspec.Struct, frozen=True):
    """The truth of one stream in ns of the monotonic clock: when its request arrived, and just
    before and after each send."""

    arrived: Nanos
    sends: tuple[tuple[Nanos, Nanos], ...]


class _Event(msgspec.Struct, frozen=True):
    truth: ReferenceTimes


class ErrorBounds(msgspec.Struct, frozen=True, kw_only=True):
    """The differences of one kind, in ms."""

    count: Count
    p50_ms: Ms
    p95_ms: Ms
    p99_ms: Ms
    """p99 of the differences; the second largest of fewer than 100. So one difference alone does
    not lower a client verdict."""
    max_ms: Ms
    within: dict[Share, Ms] = {}
    """For each share, the bound beyond which at most so much of all differences lie. Only shares
    with enough differences are here."""

    @property
    def steps(self) -> tuple[tuple[float, float], ...]:
        """(share of all differences, no larger than so many ms). The shares add up to 1; the last
        one has the largest difference."""
        steps = list[tuple[float, float]]()
        left = 1.0
        for share, ms in sorted(self.within.items(), reverse=True):
            steps.append((left - share, ms))
            left = share
        return (*steps, (left, self.max_ms))

    @property
    def pairs(self) -> tuple[tuple[float, float], ...]:
        """(share, ms beyond which at most that share lies) of some shares. The first is (0, the
        largest difference)."""
        return (0.0, self.max_ms), *((s, ms) for s, ms in self.within.items() if s in TRIED)

    @property
    def of_one_ms(self) -> float:
        """The bound of one value's difference, nineteen times in twenty."""
        return min(
            (ms for share, ms in self.within.items() if share <= 1 - ONE), default=self.max_ms
        )


class MeasurementAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """The measured errors of one process, over a run or a stage of it."""

    missing: str = ""
    """Why there is no result. Empty: the other fields are there."""
    streams: Count = 0
    chunks: Count = 0
    merged: Count = 0
    """Merged chunks, which are known to be uncertain and are in no difference."""
    ttft: ErrorBounds | None = None
    gap: ErrorBounds | None = None
    server_cpu_s: float | None = None
    """The CPU seconds of the reference server."""


class TimingDifferences:
    """The differences of one process. Its size does not grow with the run."""

    def __init__(self) -> None:
        self.streams = self.chunks = self.merged = 0
        self.ttft = Histogram()
        self.gap = Histogram()

    def add(self, record: Record, truth: ReferenceTimes) -> None:
        """Add a finished stream. One whose chunks are not the ones that were sent is left out."""
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
        """The result of all streams so far."""
        ttft = compute_error_bounds(self.ttft)
        gap = compute_error_bounds(self.gap)
        if ttft is None or gap is None:
            return MeasurementAccuracy(missing="too few reference streams ended in this time")
        return MeasurementAccuracy(
            streams=self.streams, chunks=self.chunks, merged=self.merged, ttft=ttft, gap=gap,
            server_cpu_s=server_cpu_s
        )  # fmt: skip


def parse_reference_times(event: bytes) -> ReferenceTimes | None:
    """The truth in the last event of a reference server's stream. None: it has none."""
    try:
        return msgspec.json.decode(event, type=_Event).truth
    except (ValueError, RecursionError):
        return None


def _compare(differences: Histogram, reported_us: int, low_ns: int, high_ns: int) -> None:
    """Add a difference, unless its truth is vague and does not contradict it: the reference server
    was held up at its send."""
    if high_ns - low_ns > VAGUE_NS and low_ns <= reported_us * 1000 <= high_ns:
        return
    differences.add(largest_difference_us(reported_us, low_ns, high_ns))


def largest_difference_us(reported_us: int, low_ns: int, high_ns: int) -> int:
    """The largest difference between reported and true, either way, in whole microseconds, rounded
    up.

    The truth lies between ``low_ns`` and ``high_ns``. One more microsecond is added, as reported
    times are whole ones too.
    """
    reported_ns = reported_us * 1000
    return math.ceil(max(abs(reported_ns - low_ns), abs(high_ns - reported_ns)) / 1000) + 1


def compute_error_bounds(differences: Histogram) -> ErrorBounds | None:
    """None: there are fewer than LEAST."""
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
    """How many of ``count`` independent values surely lie above the quantile of 1 - ``share``, but
    for DOUBT. The value with so many above it bounds that quantile (Wilks 1941, Ann. Math. Statist.
    12).

    None: not even the largest does.
    """
    mean = count * share
    sure = math.floor(mean - 2 * math.sqrt(mean) - 1)
    if sure >= 0:
        return sure
    return 0 if (1 - share) ** count <= DOUBT else None


def _from_top(differences: Histogram, beyond: int) -> int:
    for us, count in sorted(differences.counts.items(), reverse=True):
        beyond -= count
        if beyond < 0:
            return us
    raise ValueError("there are not so many")


def first_chunk_bounds(ttft: ErrorBounds, gap: ErrorBounds) -> ErrorBounds:
    """The bounds for times from a send to a chunk. The chunk's stamp is like any other, of which
    there are many more. Where there are too few sends for a share, the largest difference takes its
    place."""
    within = {
        share: max(ms, ttft.within.get(share, ttft.max_ms)) for share, ms in gap.within.items()
    }
    return replace(ttft, max_ms=max(ttft.max_ms, gap.max_ms), within=within)


def combine_worst_bounds(several_bounds: list[ErrorBounds]) -> ErrorBounds:
    """Bounds that hold for each of several processes."""
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
    """(bounds for times from a send to a chunk, bounds for gaps) over all processes that sent.
    None: one of them has no result."""
    if (both := combine_sentinel_errors(each)) is None:
        return None
    ttft, gap = both
    return first_chunk_bounds(ttft, gap), gap


def combine_sentinel_errors(
    each: Sequence[MeasurementAccuracy | None],
) -> tuple[ErrorBounds, ErrorBounds] | None:
    """(bounds for TTFT alone, bounds for gaps), as in ``combine_accuracies``."""
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
    """The bounds of a difference that is spread over an answer's tokens. It weighs most in a short
    answer: the 5th percentile of ``lengths`` (tokens) counts."""
    tokens = max(sorted(lengths)[len(lengths) // 20], 1.0) if len(lengths) else 1.0
    return ErrorBounds(
        count=bounds.count,
        p50_ms=bounds.p50_ms / tokens, p95_ms=bounds.p95_ms / tokens, p99_ms=bounds.p99_ms / tokens,
        max_ms=bounds.max_ms / tokens, within={share: ms / tokens for share,
            ms in bounds.within.items()},
    )  # fmt: skip


class OrderedValues:
    """Values in ms in rising order, each with the number of values up to it."""

    def __init__(self, values_ms: Sequence[float], upto: Sequence[int] | None = None) -> None:
        """``upto``: None counts each value once."""
        self._values, self._upto = values_ms, upto
        if upto is None:
            self.count = len(values_ms)
        else:
            self.count = int(upto[-1]) if len(upto) else 0

    def count_within(self, most_ms: float) -> int:
        """How many values are at most ``most_ms``."""
        index = bisect_right(self._values, most_ms)
        if self._upto is None:
            return index
        return int(self._upto[index - 1]) if index else 0

    def at_rank(self, rank: int) -> float:
        """The value with so many values below it, or the nearest one."""
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
    """How much lower, and how much higher, the percentile of the true values may be than the
    reported one.

    Each true value lies between ``least`` and ``most``, give or take an error with the distribution
    ``bounds``, whatever the value is.
    """
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
    """The least (sign -1) or the most (1) that the percentile of the true values can be, by
    bisection.

    All errors are at most ``pair[1]``, except for a share of ``pair[0]``. Of these only the ones
    near enough to cross the end count.
    """
    beyond, off = pair
    rarer = sorted((pair for pair in pairs if pair[0] < beyond), reverse=True)
    shares = [beyond, *(pair[0] for pair in rarer)]
    tail = [(before - rare, ms) for before, (rare, ms) in zip(shares, rarer, strict=False)]
    needed = share * values.count
    start = values.at_rank(math.ceil(needed - 1e-9) - 1)
    largest = max(ms for _, ms in pairs)
    if not largest:
        return start
    low, high = sorted((start, start + sign * largest))

    def count_within(end: float) -> float:
        """The most true values within ``end`` where the least end is sought, else the fewest."""
        near = values.count_within(end - sign * off)
        crossing = sum(mass * abs(values.count_within(end - sign * ms) - near) for mass, ms in tail)
        return near - sign * _surely_at_most(crossing)

    for _ in range(BISECTIONS):
        if high - low <= PRECISE_MS:
            break
        middle = (low + high) / 2
        if count_within(middle) >= needed - 1e-9:
            high = middle
        else:
            low = middle
    return high if sign > 0 else low


def _surely_at_most(mean: float) -> int:
    """The count that is exceeded in one run of forty, where ``mean`` is the average."""
    return 0 if mean < 0.025 else math.floor(mean + 2 * math.sqrt(mean)) + 1


def largest_error_ms(bounds: ErrorBounds, *, average: bool) -> float:
    """How far one value may be off, in ms; with ``average``, the mean of many."""
    if not average:
        return bounds.max_ms
    return sum(mass * ms for mass, ms in bounds.steps)
