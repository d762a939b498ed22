"""Steady growth: whether a value keeps growing, as a leak makes it grow.

Servers grow for good reasons too: caches fill and are emptied, a warm-up ends, a buffer is loaded
once. So a series *grows* only if all of this holds, in the whole of it or in its later part:

- Its level rises: the minima of blocks (memory) or their means (latencies), in 24 blocks as well as
  in 12 and 8. A sawtooth shorter than an eighth of the series has its bottom in each of 8 blocks.
- It rises in each half, which a single step does not explain.
- It rises in the second half at least at four fifths of the rate of the first half. A warm-up
  becomes slower.
- It rises without its two largest steps.
- Means rise by a tenth of their range at least. The phase of a sawtooth moves means by less.

A series is *stable* if its later half cannot grow by what matters. Otherwise nobody can tell yet.
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple

from .slope_interval import SlopeInterval, fit_slope

BLOCKS: Final = 24
FEWER_BLOCKS: Final = (12, 8)
BEGINS: Final = (0.1, 0.4)
"""The shares of the series that are left out as a warm-up: one of them must show the growth."""
TAIL_WHOLE: Final = 1e-5
TAIL_FEWER: Final = 1e-3
TAIL_HALF: Final = 0.003
"""The probabilities at which a stable series would seem to rise, for each test."""
STEADY: Final = 0.8
"""The rate of the second half over the rate of the first half is at least so much."""
CURVED: Final = 0.5
"""It is certainly more than this share of it,"""
SURE: Final = 2.5
"""by so many standard errors."""
LARGEST_STEPS: Final = 2
LEFT: Final = 0.4
"""Without its largest steps the rise is at least this share of the whole rise."""
LEAST_OF_RANGE: Final = 0.1
LEAST_POINTS: Final = 2 * BLOCKS
DOUBLINGS: Final = 30
HALVINGS: Final = 3
"""Of the search for the smallest visible slope, which is known within 10 %."""


class GrowthVerdict(StrEnum):
    GROWS = "grows"
    STABLE = "stable"
    OPEN = "cannot tell yet"


class OpenReason(StrEnum):
    """Why nobody can tell yet."""

    NONE = ""
    SHORT = "too short"
    SLOWS = "growth slows"
    UNEVEN = "growth is uneven"
    WIDE = "interval is wide"


class Growth(NamedTuple):
    """What a series shows."""

    verdict: GrowthVerdict
    reason: OpenReason
    slope: SlopeInterval | None
    """From ``begin`` on. None: the series is too short."""
    begin: int
    """The point from which on the slope is measured."""
    longer: float | None
    """The series must be so many times as long to tell. None: it tells, or nobody knows."""


def judge_growth(
    x: Sequence[float], y: Sequence[float], least: float, *, minima: bool = False
) -> Growth:
    """``x`` rises. A slope below ``least`` does not matter. ``minima`` follows the lower edge of the
    values, else their mean."""
    count = len(x)
    if count < LEAST_POINTS:
        longer = LEAST_POINTS / count if count else None
        return Growth(GrowthVerdict.OPEN, OpenReason.SHORT, None, 0, longer)
    reasons = []
    for share in BEGINS:
        begin = int(count * share)
        reason = find_doubt_of_growth(x[begin:], y[begin:], minima=minima)
        if reason is OpenReason.NONE:
            slope = fit_slope(*reduce_to_blocks(x[begin:], y[begin:], BLOCKS, minima=minima))
            return Growth(GrowthVerdict.GROWS, reason, slope, begin, None)
        reasons.append(reason)
    return _judge_later_half(x, y, least, reasons[-1], minima=minima)


def _judge_later_half(
    x: Sequence[float], y: Sequence[float], least: float, doubt: OpenReason, *, minima: bool
) -> Growth:
    begin = len(x) // 2
    slope = fit_slope(*reduce_to_blocks(x[begin:], y[begin:], BLOCKS, minima=minima))
    high = slope.high()
    if high < least:
        return Growth(GrowthVerdict.STABLE, OpenReason.NONE, slope, begin, None)
    if doubt in (OpenReason.SLOWS, OpenReason.UNEVEN):
        return Growth(GrowthVerdict.OPEN, doubt, slope, begin, 2.0)
    # the error of a slope falls with the power 3/2 of the length
    longer = max((2 * slope.reach() / least) ** (2 / 3), 1.5)
    return Growth(GrowthVerdict.OPEN, OpenReason.WIDE, slope, begin, longer)


def find_doubt_of_growth(x: Sequence[float], y: Sequence[float], *, minima: bool) -> OpenReason:
    """NONE: the series grows steadily."""
    if len(x) < BLOCKS:
        return OpenReason.SHORT
    at, level = reduce_to_blocks(x, y, BLOCKS, minima=minima)
    slope = fit_slope(at, level)
    rise = slope.value * (at[-1] - at[0])
    half = BLOCKS // 2
    first = fit_slope(at[:half], level[:half])
    second = fit_slope(at[half:], level[half:])
    # a warm-up may seem steady by chance
    margin = SURE * math.hypot(second.error, CURVED * first.error)
    slows = second.value < STEADY * first.value or second.value - CURVED * first.value < margin
    if slope.low(TAIL_WHOLE) <= 0:
        is_curve = slows and rise > _range_around_line(at, level)
        return OpenReason.SLOWS if is_curve else OpenReason.WIDE
    for blocks in FEWER_BLOCKS:
        if fit_slope(*reduce_to_blocks(x, y, blocks, minima=minima)).low(TAIL_FEWER) <= 0:
            return OpenReason.UNEVEN
    if not minima and rise < LEAST_OF_RANGE * _range_around_line(x, y):
        return OpenReason.UNEVEN
    if slows:
        return OpenReason.SLOWS
    if first.low(TAIL_HALF) <= 0 or second.low(TAIL_HALF) <= 0:
        return OpenReason.UNEVEN
    steps = sorted(after - before for before, after in pairwise(level))
    if sum(steps[:-LARGEST_STEPS]) < LEFT * rise:
        return OpenReason.UNEVEN
    return OpenReason.NONE


def _range_around_line(x: Sequence[float], y: Sequence[float]) -> float:
    slope = fit_slope(x, y)
    rest = [value - slope.value * at for at, value in zip(x, y, strict=True)]
    return max(rest) - min(rest)


def reduce_to_blocks(
    x: Sequence[float], y: Sequence[float], blocks: int, *, minima: bool = False
) -> tuple[list[float], list[float]]:
    """The mean x and the mean y of so many blocks of successive points, or their lowest points."""
    ends = [len(x) * i // blocks for i in range(blocks + 1)]
    at = []
    level = []
    for begin, end in pairwise(ends):
        if minima:
            place = min(range(begin, end), key=y.__getitem__)
            at.append(x[place])
            level.append(y[place])
        else:
            at.append(sum(x[begin:end]) / (end - begin))
            level.append(sum(y[begin:end]) / (end - begin))
    return at, level


def find_visible_slope(
    x: Sequence[float], y: Sequence[float], least: float, *, minima: bool = False
) -> float | None:
    """The smallest steady slope, from ``least`` on, that would have been called growth, had it been
    added to these values. None: they are too few, they do not vary, or no slope would."""
    if len(x) < LEAST_POINTS or min(y) == max(y):
        return None

    def shows(slope: float) -> bool:
        planted = [value + slope * at for at, value in zip(x, y, strict=True)]
        return judge_growth(x, planted, math.inf, minima=minima).verdict is GrowthVerdict.GROWS

    high = least
    for _ in range(DOUBLINGS):
        if shows(high):
            break
        high *= 2
    else:
        return None
    if high == least:
        return least
    low = high / 2
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        if shows(middle):
            high = middle
        else:
            low = middle
    return high
