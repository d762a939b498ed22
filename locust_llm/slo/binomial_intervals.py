"""Binomial intervals: the ranks and shares between which a value lies with 95 % confidence, and the
distributions behind them."""

import math
from collections.abc import Callable
from typing import Final

Ends = tuple[float | None, float | None]
"""None: there are too few values for this end."""

TAIL: Final = 0.025
"""The probability beyond either end."""
NORMAL_REACH: Final = 1.96
"""A 95 % interval of a normal value reaches so many standard errors either way."""
MIN_OF_BOTH: Final = 5
"""With so many requests of either kind, mid-P holds its confidence within 1 %."""


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
    """How many values give the interval both ends: 6 for p50, 36 for p90, 72 for p95, 368 for
    p99."""
    share = max(percentile, 100 - percentile) / 100
    return math.ceil(math.log(TAIL) / math.log(share))


def binomial_shares(successes: float, of: float, low: float, high: float) -> tuple[float, float]:
    """The interval of a share, from ``successes`` out of ``of`` independent requests, whole numbers
    or not. ``low`` and ``high`` are the probabilities beyond either end.

    It is exact with fewer than MIN_OF_BOTH of a kind (Clopper and Pearson, Biometrika 26, 1934).
    With more, the outcome itself counts half (mid-P: Berry and Armitage, Mid-P confidence
    intervals, The Statistician 44, 1995).
    """
    inner = 0.5 if min(successes, of - successes) >= MIN_OF_BOTH else 0.0
    lower = (
        _root(lambda p: 1 - binomial_cdf(successes - 1 + inner, of, p) - low)
        if successes > 0
        else 0.0
    )
    upper = (
        _root(lambda p: high - binomial_cdf(successes - inner, of, p)) if successes < of else 1.0
    )
    return lower, upper


def normal_tail(z: float) -> float:
    """The probability that a standard normal value exceeds ``z``."""
    return 0.5 * math.erfc(z / math.sqrt(2))


def binomial_cdf(k: float, n: float, p: float) -> float:
    """The probability of at most ``k`` successes of ``n``, each with probability ``p``: I_(1-p)(n -
    k, k + 1), which is also defined between whole numbers."""
    if k < 0:
        return 0.0
    if k >= n or p <= 0:
        return 1.0
    if p >= 1:
        return 0.0
    return incomplete_beta(n - k, k + 1, 1 - p, p)


def incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """The regularised incomplete beta function I_x(a, b), of ``x`` between 0 and 1. ``rest``: 1 -
    x, which would lose its digits where it is small."""
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    )
    # its continued fraction converges fast on one side of its middle
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, rest) / b


def _fraction(a: float, b: float, x: float) -> float:
    """A continued fraction by Lentz's method (Press et al., Numerical Recipes, 3rd ed., section
    6.4)."""
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
    true above; else ``high``."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if true(middle) else (middle + 1, high)
    return low


def _root(rising: Callable[[float], float]) -> float:
    """The share at which a rising function is 0."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2
