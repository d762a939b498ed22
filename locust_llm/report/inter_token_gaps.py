"""Inter-token gaps: how often each gap between two chunks occurred; mergeable, and exact until too
many different ones came."""

from collections.abc import Iterable, Sequence
from typing import Final, Self

import numpy as np

from locust_llm.records.timing_accuracy import OrderedValues
from locust_llm.report.array_types import Ints

BLOCK_GAPS: Final = 2**18
"""Gaps are kept as they came until there are so many, and then counted."""
SHORT_US: Final = 2**17
"""Most gaps are below it: 0.13 s."""
MAX_VALUES: Final = 2**21
"""So many different values are counted exactly. An hour at 10,000 chunks a second has 36 million
gaps. They are whole microseconds, mostly below 0.1 s, so only some 100,000 differ, and the counts
stay exact."""


class GapCounts:
    """Counts of gaps in whole microseconds.

    Percentiles interpolate linearly between neighbouring values, like numpy's default. They are
    exact up to ``different`` different values; from then on values are rounded to three significant
    digits (an error of at most
    0.5 %: 0.05 ms at 10 ms, 5 ms at 1 s) and ``exact`` is False. ``avg``, ``std``, ``min`` and
      ``max`` are exact
    either way. All are None of nothing.
    """

    def __init__(self, different: int = MAX_VALUES) -> None:
        self._exact = True
        self.count = 0
        self._different = different
        self._total = 0.0
        self._squares = 0.0
        self._ends: tuple[int, int] | None = None
        self._values: Ints = np.empty(0, np.int64)
        self._counts: Ints = np.empty(0, np.int64)
        self._pending: list[Ints] = []
        self._pending_count = 0
        self._short: Ints | None = None
        """How often each value below SHORT_US came in whole blocks. None: there was no block."""

    def add(self, gaps_us: Ints) -> None:
        """Add gaps in whole microseconds."""
        if not len(gaps_us):
            return
        self.count += len(gaps_us)
        self._total += float(gaps_us.sum())
        self._squares += float(np.square(gaps_us, dtype=np.float64).sum())
        self._widen(int(gaps_us.min()), int(gaps_us.max()))
        self._pending.append(gaps_us)
        self._pending_count += len(gaps_us)
        if self._pending_count >= BLOCK_GAPS:
            self._count_block()

    def merge(self, other: Self) -> None:
        """Add the gaps of ``other``, which stays as it is."""
        if other._ends is None:
            return
        other._settle()
        self.count += other.count
        self._total += other._total
        self._squares += other._squares
        self._widen(*other._ends)
        self._exact = self._exact and other._exact
        self._put(other._values, other._counts)

    @property
    def exact(self) -> bool:
        """No value has been rounded."""
        self._settle()
        return self._exact

    @property
    def sum_ms(self) -> float:
        return self._total / 1e3

    @property
    def avg_ms(self) -> float | None:
        return self._total / self.count / 1e3 if self.count else None

    @property
    def std_ms(self) -> float | None:
        """The standard deviation of the sample (ddof=1). None: there are fewer than two gaps."""
        if self.count < 2:
            return None
        spread = self._squares - self._total * self._total / self.count
        return float(np.sqrt(max(spread, 0.0) / (self.count - 1))) / 1e3

    @property
    def min_ms(self) -> float | None:
        return self._ends[0] / 1e3 if self._ends else None

    @property
    def max_ms(self) -> float | None:
        return self._ends[1] / 1e3 if self._ends else None

    def within(self, most_us: int) -> int:
        """How many gaps are at most so long."""
        self._settle()
        return int(self._counts[: int(np.searchsorted(self._values, most_us, side="right"))].sum())

    def ordered(self) -> OrderedValues:
        """The gaps in order, in milliseconds."""
        self._settle()
        return OrderedValues((self._values / 1e3).data, np.cumsum(self._counts).data)

    def percentiles_ms(self, percentiles: Sequence[float]) -> list[float | None]:
        """One value in milliseconds for each of ``percentiles`` (0 to 100)."""
        self._settle()
        if not self.count:
            return [None] * len(percentiles)
        upto = np.cumsum(self._counts)  # upto[i] gaps are at most values[i]
        rank = np.asarray(percentiles, np.float64) / 100 * (self.count - 1)
        below = np.floor(rank).astype(np.int64)
        above = np.minimum(below + 1, self.count - 1)
        low = self._values[np.searchsorted(upto, below, side="right")]
        high = self._values[np.searchsorted(upto, above, side="right")]
        return [float(value) for value in (low + (high - low) * (rank - below)) / 1e3]

    def _widen(self, low: int, high: int) -> None:
        self._ends = (
            (min(low, self._ends[0]), max(high, self._ends[1])) if self._ends else (low, high)
        )

    def _count_block(self) -> None:
        """Add what is pending to a table of all short values. No block is sorted."""
        values = np.concatenate(self._pending)
        self._pending, self._pending_count = [], 0
        if self._short is None:
            self._short = np.zeros(SHORT_US, np.int64)
        long = values[values >= SHORT_US]
        if len(long):
            self._put(*np.unique(long, return_counts=True))
            values = values[values < SHORT_US]
        self._short += np.bincount(values, minlength=SHORT_US)

    def _settle(self) -> None:
        """Count what is pending."""
        if self._pending:
            values, counts = count_different(np.concatenate(self._pending))
            self._pending, self._pending_count = [], 0
            self._put(values, counts)
        if self._short is not None:
            seen = np.flatnonzero(self._short)
            counts, self._short = self._short[seen], None
            self._put(seen, counts)

    def _put(self, values: Ints, counts: Ints) -> None:
        self._values, self._counts = _summed([self._values, values], [self._counts, counts])
        self._exact = self._exact and len(self._values) <= self._different
        if not self._exact:
            self._values, self._counts = _summed(
                [round_array_to_three_digits(self._values)], [self._counts]
            )


def merge_gap_counts(parts: Iterable[GapCounts]) -> GapCounts:
    """Counts the gaps of all parts, which stay as they are."""
    merged = GapCounts()
    for part in parts:
        merged.merge(part)
    return merged


def count_different(values: Ints) -> tuple[Ints, Ints]:
    """Each value from 0 on once, in order, and how often it occurs. The short ones are counted
    without sorting, in a tenth of the time."""
    short = values < SHORT_US
    counts_of = np.bincount(values[short], minlength=1)
    seen = np.flatnonzero(counts_of)
    others, counts = np.unique(values[~short], return_counts=True)
    return np.concatenate([seen, others]), np.concatenate([counts_of[seen], counts])


def round_array_to_three_digits(values: Ints) -> Ints:
    """Round to three significant digits: 123,456 becomes 123,000."""
    digits = np.floor(np.log10(np.maximum(values, 1))).astype(np.int64)
    step: Ints = np.power(10, np.maximum(digits - 2, 0))
    rounded: Ints = (values + step // 2) // step * step
    return rounded


def _summed(values: Iterable[Ints], counts: Iterable[Ints]) -> tuple[Ints, Ints]:
    """Each value once, in order, with the sum of its counts."""
    value = np.concatenate(list(values))
    count = np.concatenate(list(counts))
    order = np.argsort(value, kind="stable")
    value, count = value[order], count[order]
    first = np.flatnonzero(np.diff(value, prepend=-1))  # gaps are never negative
    return value[first], np.add.reduceat(count, first) if len(first) else count
