"""Student's t: how far a mean of few values may be off, in standard errors."""

from functools import lru_cache
from typing import Final

from .binomial_intervals import incomplete_beta

STEPS: Final = 60
"""The steps of a bisection, after which a double does not change."""


@lru_cache(maxsize=4096)
def find_student_t(freedom: float, tail: float) -> float:
    """The value that Student's t exceeds with probability ``tail``, which is at most a half. It is
    exact, except for rounding.

    ``freedom`` is the degrees of freedom, a whole number or not.
    """
    low = 0.0
    high = 1.0
    while _exceeds(high, freedom) > tail:
        low = high
        high *= 2
    for _ in range(STEPS):
        middle = (low + high) / 2
        if _exceeds(middle, freedom) > tail:
            low = middle
        else:
            high = middle
    return high


def _exceeds(t: float, freedom: float) -> float:
    """The probability of a larger value (Abramowitz and Stegun 26.7.1)."""
    whole = freedom + t * t
    return incomplete_beta(freedom / 2, 0.5, freedom / whole, t * t / whole) / 2
