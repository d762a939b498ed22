"""Change points: tests by ranks find where a series shifts for good, at a stated rate of false
alarms. All functions are pure.

The method is seeded binary segmentation of ranks (Kovács, Li, Bühlmann, Munk, Biometrika 110,
2023). In each of a fixed set of intervals every split into before and after has a score. The score
is the distance of the rank sum before the split from its expectation, in standard deviations. The
split with the largest score is a change if random order reaches that score in at most 1 of 1,000
series. Then the values before and after it are searched in the same way. The intervals also find a
change up that a change down follows, which no split of the whole series shows. Ranks depend neither
on units nor on outliers, so ``SCORES`` holds for any independent noise. Correlated neighbours
require larger scores (benchmarks/changes.md).
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise, product
from random import Random
from statistics import NormalDist, median
from typing import Final, NamedTuple

ALARMS: Final = 0.001
"""At most this share of series without any change shows one."""
SIDE: Final = 4
"""Each side of a split has at least this many values."""
SHORTEST: Final = 16
"""Intervals are at least this long, except the whole series."""
NEAREST: Final = 100
"""At most this many values on either side of a change determine its size."""
CONFIDENCE: Final = 0.95
Z: Final = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
CORRELATED: Final = 0.2
"""A correlation of neighbours counts above this value."""
LEAST: Final = 0.02
"""Smaller shifts, as a share of the median before, do not matter."""
MOST: Final = 1000
"""Only the last values are examined, at most this many."""
SCORES: Final[dict[int, float]] = {
    14: 3.10, 15: 3.19, 16: 3.23, 17: 3.28, 18: 3.31, 19: 3.35, 20: 3.39, 21: 3.46, 22: 3.47,
    23: 3.51, 26: 3.60,
    28: 3.62, 30: 3.68, 33: 3.72, 36: 3.79, 40: 3.84, 45: 3.91, 50: 3.98, 60: 4.04, 70: 4.09,
    85: 4.14, 100: 4.26,
    120: 4.29, 150: 4.37, 200: 4.43, 250: 4.55, 300: 4.60, 400: 4.68, 500: 4.76, 700: 4.80,
    1000: 4.85,
}  # fmt: skip
"""Largest score by the length of a series: random order exceeds it in 1 of 1,000 cases, of 100,000
orders. `tests/bench/changes.py scores` recomputes the table. A series of fewer than 14 values has
too few orders for so rare an event."""


class LevelChange(NamedTuple):
    """Describes a shift of the level from the value ``at`` on, counted from 0, in the unit of the
    values."""

    at: int
    before: float
    after: float
    """``before`` and ``after`` are medians of the stretches between this change and its
    neighbours."""
    shift: float
    """The shift is the median difference of a value after and a value before (Hodges and Lehmann,
    1963)."""
    low: float
    high: float
    """``low`` and ``high`` bound the 95 % interval, from order statistics of these differences
    (Moses, 1965)."""

    @property
    def relative(self) -> float | None:
        """Returns the shift as a share of the median before, or None if that median is 0."""
        return self.shift / abs(self.before) if self.before else None


def find_level_changes(
    values: Sequence[float], least: float = LEAST, seed: int = 0
) -> list[LevelChange]:
    """Finds the changes of a series, first to last. ``values`` are finite. Shifts below the
    relative ``least`` are not marked. ``seed`` orders equal values at random."""
    skipped = max(0, len(values) - MOST)
    values = values[skipped:]
    places, widening = _find_places(values, seed)
    while places:
        sized = [
            _measure_change(values, *around, widening)
            for around in _list_neighbours(places, len(values))
        ]
        small = [
            change
            for change in sized
            if change.relative is not None and abs(change.relative) < least
        ]
        if not small:
            return [change._replace(at=change.at + skipped) for change in sized]
        places.remove(min(small, key=lambda change: abs(change.shift)).at)
    return []


def _find_places(values: Sequence[float], seed: int) -> tuple[list[int], float]:
    """Finds the places of the changes, and the factor by which scores must exceed the table.

    Correlated neighbours (r) multiply the variance of their sums by (1 + r) / (1 - r), for a long
    AR(1) series, so scores must be that much larger. The correlation between the changes depends on
    the changes found, so the search repeats until the factor suffices.
    """
    widening = 1.0
    while True:
        found = sorted(_splits(values, 0, len(values), Random(seed), widening))
        places = _settle(values, found, seed)
        correlation = min(measure_resemblance(values, places), 0.95)
        needed = math.sqrt((1 + correlation) / (1 - correlation))
        if needed <= widening:
            return places, widening
        widening = needed


def _splits(
    values: Sequence[float], begin: int, end: int, random: Random, widening: float
) -> Iterator[int]:
    """Yields the splits of a part of the series."""
    count = end - begin
    if count < min(SCORES):
        return
    score, at = best_split(random_ranks(values[begin:end], random))
    if score > widening * change_threshold(count):
        yield begin + at
        yield from _splits(values, begin, begin + at, random, widening)
        yield from _splits(values, begin + at, end, random, widening)


def random_ranks(values: Sequence[float], random: Random) -> list[int]:
    """Returns ranks from 1. Equal values get random order, so all orders are equally likely without
    a change."""
    order = sorted(range(len(values)), key=lambda i: (values[i], random.random()))
    ranks = [0] * len(values)
    for rank, i in enumerate(order, 1):
        ranks[i] = rank
    return ranks


def seeded_intervals(count: int) -> Iterator[tuple[int, int]]:
    """Yields layers of intervals over the series. Each layer is shorter by the root of 2, and each
    interval overlaps the next by half."""
    yield 0, count
    layer = 1
    while (length := math.ceil(count * 2 ** (-layer / 2))) >= SHORTEST:
        count_in_layer = 2 * math.ceil(2 ** (layer / 2)) - 1
        for i in range(count_in_layer):
            begin = (count - length) * i // (count_in_layer - 1)
            yield begin, begin + length
        layer += 1


def best_split(ranked: Sequence[int]) -> tuple[float, int]:
    """Returns the largest score and its split over all intervals."""
    sums = [0, *accumulate(ranked)]
    squares = [0, *accumulate(rank * rank for rank in ranked)]
    largest = 0.0
    at = 0
    for begin, end in seeded_intervals(len(ranked)):
        length = end - begin
        first = sums[begin]
        total = sums[end] - first
        # length² times the variance of the ranks
        spread = (squares[end] - squares[begin]) * length - total * total
        excess, split = max(
            ((length * (sums[i] - first) - (i - begin) * total) ** 2 / ((i - begin) * (end - i)), i)
            for i in range(begin + SIDE, end - SIDE + 1)
        )
        # the sum of k ranks, drawn without replacement, has k (length - k) / (length - 1) times the
        # variance of one rank
        score = math.sqrt(excess * (length - 1) / spread)
        if score > largest:
            largest, at = score, split
    return largest, at


def change_threshold(count: int) -> float:
    """Returns the threshold for a series of this length: the table's entry for the next length,
    which is not lower."""
    lengths = list(SCORES)
    return SCORES[lengths[min(bisect_left(lengths, count), len(lengths) - 1)]]


def _settle(values: Sequence[float], places: list[int], seed: int) -> list[int]:
    """Moves each change to the best place between its neighbours, as its interval may have held
    other changes."""
    for before, at, after in list(_list_neighbours(places, len(values))):
        if after - before >= 2 * SIDE:
            ranked = random_ranks(values[before:after], Random(seed))
            places[places.index(at)] = before + _find_best_split(ranked)
    return sorted(set(places))


def _find_best_split(ranked: Sequence[int]) -> int:
    """Returns the best split of the whole series."""
    count = len(ranked)
    total = sum(ranked)
    sums = [0, *accumulate(ranked)]
    return max(
        range(SIDE, count - SIDE + 1),
        key=lambda k: (count * sums[k] - k * total) ** 2 / (k * (count - k)),
    )


def _list_neighbours(places: Sequence[int], count: int) -> Iterator[tuple[int, int, int]]:
    """Yields each change with the change before, or the beginning, and the change after, or the
    end."""
    edges = [0, *places, count]
    return zip(edges, places, edges[2:], strict=False)


def _measure_change(
    values: Sequence[float], before: int, at: int, after: int, widening: float
) -> LevelChange:
    old = sorted(values[max(before, at - NEAREST) : at])
    new = sorted(values[at : min(after, at + NEAREST)])
    differences = sorted(later - earlier for earlier, later in product(old, new))
    pairs = len(differences)
    spread = widening * math.sqrt(pairs * (len(old) + len(new) + 1) / 12)
    outside = max(0, math.floor(pairs / 2 - Z * spread) - 1)
    return LevelChange(
        at, median(values[before:at]), median(values[at:after]), median(differences),
        differences[outside],
        differences[-1 - outside],
    )  # fmt: skip


def measure_resemblance(values: Sequence[float], at: Sequence[int]) -> float:
    """Returns the correlation if it exceeds ``CORRELATED`` and two standard errors, else 0."""
    correlation = correlate_neighbours(values, at)
    return correlation if correlation > max(CORRELATED, 2 / math.sqrt(max(1, len(values)))) else 0.0


def correlate_neighbours(values: Sequence[float], at: Sequence[int]) -> float:
    """Correlates neighbouring values between the changes ``at``: Spearman's correlation at a lag of
    one, pooled over the stretches. Constant series give 0."""
    product = spread = 0.0
    random = Random(0)
    for begin, end in pairwise([0, *at, len(values)]):
        middle = (end - begin + 1) / 2
        deviations = [rank - middle for rank in random_ranks(values[begin:end], random)]
        product += sum(a * b for a, b in pairwise(deviations))
        spread += sum(a * a for a in deviations)
    return product / spread if spread else 0.0


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Returns the median and the ends of its 95 % interval by order statistics. Fewer than six
    values give their full range."""
    ordered = sorted(values)
    outside = max(0, math.floor((len(ordered) - Z * math.sqrt(len(ordered))) / 2) - 1)
    return median(ordered), ordered[outside], ordered[-1 - outside]
