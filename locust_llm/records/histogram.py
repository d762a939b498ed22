"""Histogram: how often each time came, in microseconds with three significant digits. All live
percentiles use it.

Rounding keeps the order, so a percentile of the rounded times is the exact one, rounded: at most
0.5 % off. The size does not grow with the run: there are 900 values for each power of ten. The
report counts exactly, with numpy.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

import msgspec

Time = TypeVar("Time", int, float)


def round_to_three_digits(us: int) -> int:
    """123,456 becomes 123,000; half of the last digit is rounded up."""
    if us < 1000:
        return us
    step = 10
    while us >= 1000 * step:
        step *= 10
    return (us + step // 2) // step * step


def histogram_percentiles(counts: Mapping[Time, float], percents: Sequence[float]) -> list[float]:
    """The percentiles (``percents`` from 0 to 100) of at least one value, by how often each came.
    They interpolate linearly between neighbouring ranks, as numpy does."""
    values = sorted(counts)
    # upto[i] times a value is at most values[i]
    upto = list(accumulate(counts[value] for value in values))
    percentiles_found = []
    for percent in percents:
        rank = percent / 100 * (upto[-1] - 1)
        low = values[bisect_right(upto, int(rank))]
        high = values[bisect_right(upto, min(int(rank) + 1, upto[-1] - 1))]
        percentiles_found.append(low + (high - low) * (rank - int(rank)))
    return percentiles_found


class Histogram(msgspec.Struct):
    """The counts of times. Histograms can be merged; msgspec writes and reads them."""

    counts: dict[int, int] = {}
    """The count for each time in microseconds, of three significant digits."""

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    def add(self, *times_us: int) -> None:
        """Add times in whole microseconds, none negative."""
        counts = self.counts
        for us in map(round_to_three_digits, times_us):
            counts[us] = counts.get(us, 0) + 1

    def merge(self, other: "Histogram") -> None:
        """Add the counts of ``other``, which stays as it is."""
        counts = self.counts
        for us, count in other.counts.items():
            counts[us] = counts.get(us, 0) + count

    def percentiles_ms(self, *percents: float) -> list[float] | None:
        """One value in milliseconds for each of ``percents`` (0 to 100). None: there are no
        values."""
        return (
            [us / 1e3 for us in histogram_percentiles(self.counts, percents)]
            if self.counts
            else None
        )


class SlidingHistogram:
    """A histogram of the last ``seconds`` whole seconds of ``clock``, and of the present one so
    far."""

    def __init__(self, seconds: int, clock: Callable[[], float]) -> None:
        self._seconds, self._clock = seconds, clock
        self._slices: deque[tuple[int, Histogram]] = deque()

    def add(self, times_us: Iterable[int]) -> None:
        second = int(self._clock())
        if not self._slices or self._slices[-1][0] != second:
            self._slices.append((second, Histogram()))
        self._slices[-1][1].add(*times_us)
        self._drop()

    def histogram(self) -> Histogram:
        self._drop()
        merged = Histogram()
        for _, time_slice in self._slices:
            merged.merge(time_slice)
        return merged

    def _drop(self) -> None:
        oldest = int(self._clock()) - self._seconds
        while self._slices and self._slices[0][0] <= oldest:
            self._slices.popleft()
