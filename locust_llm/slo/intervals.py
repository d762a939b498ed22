"""Intervals: between which ranks and shares a figure lies with 95 % confidence, and the
distributions that say so."""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Final

Ends = tuple[float | None, float | None]
"""None: there are too few values for this end."""

TAIL: Final = 0.025
"""What may lie outside on either side."""
TAIL_FAR: Final = 0.02
"""On the side of rare, large values, of which a short run sees too few: report/slo/intervals.py."""
MIN_OF_BOTH: Final = 5
"""From so many requests of either kind on mid-P holds what it says within 1 %."""
BEYOND: Final = 3.0
"""What values are worth is divided by this for a bound beyond the largest: none is there to show
its correlation."""
NEEDED_ROOM: Final = 3.0
"""Times ``needed``: with that an upper end is there in more than 19 of 20 runs of independent
requests."""


def find_interval_ranks(count: int, percentile: float) -> tuple[int, int]:
    """The ranks (1 is the smallest of ``count``) of both ends of a percentile's interval; 0 and
    count + 1 stand for none.

    Exact for any distribution (Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2):
    how many of n values lie below the percentile is binomial. It takes them as independent.
    """
    share = percentile / 100
    low = _first(0, count, lambda k: binomial_cdf(k, count, share) > TAIL)
    high = _first(0, count, lambda k: binomial_cdf(k, count, share) >= 1 - TAIL)
    return low, high + 1


def count_needed_values(percentile: float) -> int:
    """From how many values on both ends of the interval exist: 6 for p50, 36 for p90, 72 for p95,
    368 for p99."""
    share = max(percentile, 100 - percentile) / 100
    return math.ceil(math.log(TAIL) / math.log(share))


def rank_shares(size: float, share: float, low: float, high: float) -> Ends:
    """Between which shares of the ordered values a percentile of ``share`` lies, of as many
    independent values as ``size`` (any number from 1 on): how many lie below it is binomial.
    ``low``, ``high``: what may lie beyond either end. None: there is no such end; the upper one
    there is as long as the largest value lies above with the 97.5 % of ``needed``."""
    below = None if binomial_cdf(0, size, share) > low else (_count(size, share, low) + 0.5) / size
    if share**size > high * TAIL / TAIL_FAR:
        return below, None
    return below, min((_count(size, share, 1 - high) + 0.5) / size, 1.0)


def extrapolate_bound(
    largest: float, size: float, share: float, tail: float, room: float = 1.0
) -> float | None:
    """A bound of the percentile of ``share`` (a half and more) where no rank is one, as too few
    values lie above it.

    Values worth ``size`` independent ones are at most ``largest``: so the share beyond that is at
    most 1 - tail^(1 / size), for any distribution. Further out it is assumed to fall with the
    square at least: what is twice as large is at most a quarter as frequent, as with exponential
    tails, and with heavy ones that have a variance. Of mirrored values (below
    0) the same is assumed towards 0. ``room``: so many times as far. None: the largest is infinite
      or 0.
    """
    if not largest or math.isinf(largest):
        return None
    times = room * math.sqrt(max((1 - math.pow(tail, BEYOND / size)) / (1 - share), 1.0))
    return largest * times if largest > 0 else largest / times


def _count(size: float, share: float, below: float) -> float:
    """The number, whole or not, that a binomial one is not above with probability ``below``."""
    low, high = 0.0, size
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if binomial_cdf(middle, size, share) < below else (low, middle)
    return (low + high) / 2


def binomial_shares(some: float, of: float, low: float, high: float) -> tuple[float, float]:
    """Of a share, from ``some`` out of ``of`` independent requests, whole numbers or not. ``low``,
    ``high``: what may lie beyond either end. Exact of fewer than MIN_OF_BOTH of a kind (Clopper and
    Pearson, Biometrika 26, 1934); of more the outcome itself counts half (mid-P: Berry and
    Armitage, Mid-P confidence intervals, The Statistician 44, 1995)."""
    inner = 0.5 if min(some, of - some) >= MIN_OF_BOTH else 0.0
    lower = _root(lambda p: 1 - binomial_cdf(some - 1 + inner, of, p) - low) if some > 0 else 0.0
    upper = _root(lambda p: high - binomial_cdf(some - inner, of, p)) if some < of else 1.0
    return lower, upper


def student_quantile(freedom: float, tail: float) -> float:
    """What Student's t exceeds with probability ``tail`` (Abramowitz and Stegun 26.7.5; exact to
    0.7 % from 4 degrees and a tail of 1 % on, below that too small by up to a tenth)."""
    z = NormalDist().inv_cdf(1 - tail)
    n = max(freedom, 1.5)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def normal_tail(z: float) -> float:
    """What a standard normal value exceeds ``z`` with."""
    return 0.5 * math.erfc(z / math.sqrt(2))


def binomial_cdf(k: float, n: float, p: float) -> float:
    """Probability of at most ``k`` successes of ``n``, each with probability ``p``: I_(1-p)(n - k,
    k + 1), which is defined between whole numbers too."""
    if k < 0:
        return 0.0
    if k >= n or p <= 0:
        return 1.0
    if p >= 1:
        return 0.0
    a, b, x = n - k, k + 1, 1 - p
    front = math.exp(
        math.lgamma(n + 1) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(p)
    )
    # the continued fraction of the incomplete beta function converges fast on one side of its
    # middle
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, p) / b


def _fraction(a: float, b: float, x: float) -> float:
    """Lentz's method (Press et al., Numerical Recipes, 3rd ed., section 6.4)."""
    tiny = 1e-300
    c = 1.0
    d = 1 / ((1 - (a + b) * x / (a + 1)) or tiny)
    value = d
    for m in range(1, 100_000):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / ((1 + step * d) or tiny)
            c = (1 + step / c) or tiny
            value *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return value


def _first(low: int, high: int, true: Callable[[int], bool]) -> int:
    """The smallest whole number from ``low`` to ``high`` for which a condition holds that stays
    true; else ``high``."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if true(middle) else (middle + 1, high)
    return low


def _root(rising: Callable[[float], float]) -> float:
    """Where a rising function of a share is 0."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2
