"""Changes: where a series of values shifts for good, by ranks, at a stated rate of false alarms.
Pure functions.

Seeded binary segmentation (Kovács, Li, Bühlmann, Munk, Biometrika 110, 2023) of ranks. In each of a
fixed set of intervals every split into before and after has a score: how far the sum of the ranks
before it is from what chance gives, in standard deviations. The split with the largest score is a
change if random order reaches that score once in 1,000 series at most; then the values before it
and those after it are series of their own. The intervals find a change up that one down follows,
which no split of the whole series shows. Ranks know neither units nor outliers, so ``SCORES`` holds
for any noise whose values are independent of each other; where neighbours resemble each other,
scores have to be larger (docs/history.md).
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from random import Random
from statistics import NormalDist, median
from typing import Final, NamedTuple

ALARMS: Final = 0.001
"""Share of series without any change in which one is found."""
SIDE: Final = 4
"""Values on either side of a split, at least."""
SHORTEST: Final = 16
"""The shortest interval, but for the whole series."""
NEAREST: Final = 100
"""Values on either side of a change that its size is taken from."""
CONFIDENCE: Final = 0.95
Z: Final = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
CORRELATED: Final = 0.2
"""Correlation of neighbours from which it counts."""
LEAST: Final = 0.02
"""Of the median before: a smaller shift is none that matters."""
MOST: Final = 1000
"""Values that are looked at, the last ones."""
SCORES: Final[dict[int, float]] = {
    14: 3.10, 15: 3.19, 16: 3.23, 17: 3.28, 18: 3.31, 19: 3.35, 20: 3.39, 21: 3.46, 22: 3.47,
    23: 3.51, 26: 3.60,
    28: 3.62, 30: 3.68, 33: 3.72, 36: 3.79, 40: 3.84, 45: 3.91, 50: 3.98, 60: 4.04, 70: 4.09,
    85: 4.14, 100: 4.26,
    120: 4.29, 150: 4.37, 200: 4.43, 250: 4.55, 300: 4.60, 400: 4.68, 500: 4.76, 700: 4.80,
    1000: 4.85,
}  # fmt: skip
"""By the length of a series: the largest score of its splits that one random order in 1,000
exceeds, of 100,000 orders; `tests/bench/changes.py scores` makes them again. A series of fewer than
14 has too few orders to say anything so rarely."""


class LevelChange(NamedTuple):
    """From the value ``at`` on (from 0) the level is another. In the values' unit."""

    at: int
    before: float
    after: float
    """Medians of the stretches between this change and its neighbours."""
    shift: float
    """Median of the differences of a value after it and one before it (Hodges and Lehmann,
    1963)."""
    low: float
    high: float
    """Its 95 % interval, of the order statistics of these differences (Moses, 1965)."""

    @property
    def relative(self) -> float | None:
        """Returns the shift as a share of the median before; None where that is 0."""
        return self.shift / abs(self.before) if self.before else None


def find_level_changes(
    values: Sequence[float], least: float = LEAST, seed: int = 0
) -> list[LevelChange]:
    """The changes of a series in time, first to last. ``values``: finite; ``least``: relative shift
    that is marked; ``seed``: of the order among equal values, which is by chance."""
    skipped = max(0, len(values) - MOST)
    values = values[skipped:]
    places, wider = _places(values, seed)
    while places:
        sized = [_sized(values, *around, wider) for around in _list_neighbours(places, len(values))]
        small = [
            change
            for change in sized
            if change.relative is not None and abs(change.relative) < least
        ]
        if not small:
            return [change._replace(at=change.at + skipped) for change in sized]
        places.remove(min(small, key=lambda change: abs(change.shift)).at)
    return []


def _places(values: Sequence[float], seed: int) -> tuple[list[int], float]:
    """(the changes, how much wider sums of neighbours vary than those of independent values).

    Where neighbours resemble each other (r), the variance of their sums is larger by (1 + r) / (1 -
    r), of a long AR(1) series: so much larger has a score to be. r is that between the changes,
    which may be chance themselves: again then."""
    wider = 1.0
    while True:
        places = _settled(
            values, sorted(_splits(values, 0, len(values), Random(seed), wider)), seed
        )
        r = min(measure_resemblance(values, places), 0.95)
        needed = math.sqrt((1 + r) / (1 - r))
        if needed <= wider:
            return places, wider
        wider = needed


def _splits(
    values: Sequence[float], begin: int, end: int, random: Random, wider: float
) -> Iterator[int]:
    """Finds the splits of a part of the series."""
    count = end - begin
    if count < min(SCORES):
        return
    score, at = best_split(random_ranks(values[begin:end], random))
    if score > wider * change_threshold(count):
        yield begin + at
        yield from _splits(values, begin, begin + at, random, wider)
        yield from _splits(values, begin + at, end, random, wider)


def random_ranks(values: Sequence[float], random: Random) -> list[int]:
    """From 1. Equal values have theirs in random order: so all orders of the ranks are alike where
    nothing changes."""
    order = sorted(range(len(values)), key=lambda i: (values[i], random.random()))
    ranks = [0] * len(values)
    for rank, i in enumerate(order, 1):
        ranks[i] = rank
    return ranks


def seeded_intervals(count: int) -> Iterator[tuple[int, int]]:
    """Layers of intervals, each shorter than the last by the root of 2, evenly over the series,
    each half over the next."""
    yield 0, count
    layer = 1
    while (length := math.ceil(count * 2 ** (-layer / 2))) >= SHORTEST:
        many = 2 * math.ceil(2 ** (layer / 2)) - 1
        for i in range(many):
            begin = (count - length) * i // (many - 1)
            yield begin, begin + length
        layer += 1


def best_split(ranked: Sequence[int]) -> tuple[float, int]:
    """(largest score, its split) over all intervals."""
    sums = [0, *accumulate(ranked)]
    squares = [0, *accumulate(rank * rank for rank in ranked)]
    largest, at = 0.0, 0
    for begin, end in seeded_intervals(len(ranked)):
        length = end - begin
        first = sums[begin]
        total = sums[end] - first
        # length² times their variance
        spread = (squares[end] - squares[begin]) * length - total * total
        excess, split = max(
            ((length * (sums[i] - first) - (i - begin) * total) ** 2 / ((i - begin) * (end - i)), i)
            for i in range(begin + SIDE, end - SIDE + 1)
        )
        # of k of them the sum has the variance k (length - k) / (length - 1) times theirs: drawn
        # without replacement
        score = math.sqrt(excess * (length - 1) / spread)
        if score > largest:
            largest, at = score, split
    return largest, at


def change_threshold(count: int) -> float:
    """For a series of so many values: that of the next length in the table, which is no lower."""
    lengths = list(SCORES)
    return SCORES[lengths[min(bisect_left(lengths, count), len(lengths) - 1)]]


def _settled(values: Sequence[float], places: list[int], seed: int) -> list[int]:
    """Each change where it fits best between its neighbours: it was found in an interval that may
    hold others."""
    for before, at, after in list(_list_neighbours(places, len(values))):
        if after - before >= 2 * SIDE:
            ranked = random_ranks(values[before:after], Random(seed))
            places[places.index(at)] = before + _find_best_split(ranked)
    return sorted(set(places))


def _find_best_split(ranked: Sequence[int]) -> int:
    """The best split of the whole."""
    count = len(ranked)
    total = sum(ranked)
    sums = [0, *accumulate(ranked)]
    return max(
        range(SIDE, count - SIDE + 1),
        key=lambda k: (count * sums[k] - k * total) ** 2 / (k * (count - k)),
    )


def _list_neighbours(places: Sequence[int], count: int) -> Iterator[tuple[int, int, int]]:
    """(the change before or the beginning, a change, the change after or the end)."""
    edges = [0, *places, count]
    return zip(edges, places, edges[2:], strict=False)


def _sized(values: Sequence[float], before: int, at: int, after: int, wider: float) -> LevelChange:
    old = sorted(values[max(before, at - NEAREST) : at])
    new = sorted(values[at : min(after, at + NEAREST)])
    differences = sorted(b - a for a in old for b in new)
    pairs = len(differences)
    spread = wider * math.sqrt(pairs * (len(old) + len(new) + 1) / 12)
    outside = max(0, math.floor(pairs / 2 - Z * spread) - 1)
    return LevelChange(
        at, median(values[before:at]), median(values[at:after]), median(differences),
        differences[outside],
        differences[-1 - outside],
    )  # fmt: skip


def measure_resemblance(values: Sequence[float], at: Sequence[int]) -> float:
    """The correlation where it counts: beyond ``CORRELATED`` and two standard errors; else 0."""
    correlation = correlate_neighbours(values, at)
    return correlation if correlation > max(CORRELATED, 2 / math.sqrt(max(1, len(values)))) else 0.0


def correlate_neighbours(values: Sequence[float], at: Sequence[int]) -> float:
    """Of neighbouring values between the changes ``at``, by ranks: Spearman's, at a lag of one, of
    the stretches together. 0 where nothing varies."""
    product = spread = 0.0
    random = Random(0)
    for begin, end in pairwise([0, *at, len(values)]):
        middle = (end - begin + 1) / 2
        off = [rank - middle for rank in random_ranks(values[begin:end], random)]
        product += sum(a * b for a, b in pairwise(off))
        spread += sum(a * a for a in off)
    return product / spread if spread else 0.0


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(median, low end, high end): the 95 % interval by order statistics; of fewer than six values
    all of them."""
    ordered = sorted(values)
    outside = max(0, math.floor((len(ordered) - Z * math.sqrt(len(ordered))) / 2) - 1)
    return median(ordered), ordered[outside], ordered[-1 - outside]
