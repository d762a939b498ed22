"""Slope interval: how fast a series grows, with an interval that respects correlated neighbours.

The slope is of least squares. Its error is larger by the correlation of the residuals: from a fitted
AR(1) process, and from batches (``CorrelationTime``), whichever is larger. Residuals that resemble a
random walk have the error of a walk's end.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from locust_llm.slo.binomial_intervals import TAIL
from locust_llm.slo.correlation_time import CorrelationTime
from locust_llm.slo.student_t import find_student_t

LEAST_POINTS: Final = 4
HIGHEST_CORRELATION: Final = 0.95
WALK: Final = 0.5
"""From this correlation of neighbours on, the residuals may be a random walk."""
WALK_FACTOR: Final = 1.1
"""The variance of the slope of least squares over the variance of a walk's end: 6 / 5."""


class SlopeInterval(NamedTuple):
    """A slope, and what is known of it."""

    value: float
    error: float
    """The standard error."""
    freedom: float
    """The degrees of freedom of Student's t."""
    start: float
    """The fitted value at the first x."""

    def reach(self, tail: float = TAIL) -> float:
        """Half of the interval that leaves out ``tail`` at each side."""
        # a quarter of a degree does not matter, and the cache of find_student_t finds it again
        return find_student_t(math.floor(self.freedom * 4) / 4, tail) * self.error

    def low(self, tail: float = TAIL) -> float:
        return self.value - self.reach(tail)

    def high(self, tail: float = TAIL) -> float:
        return self.value + self.reach(tail)


def fit_slope(x: Sequence[float], y: Sequence[float]) -> SlopeInterval:
    """Fits a line. ``x`` rises, and has four values at least. Raises ValueError."""
    count = len(x)
    if count < LEAST_POINTS or x[-1] <= x[0]:
        raise ValueError(f"a slope needs {LEAST_POINTS} points at different places")
    middle = sum(x) / count
    level = sum(y) / count
    spread = sum((at - middle) ** 2 for at in x)
    slope = sum((at - middle) * (value - level) for at, value in zip(x, y, strict=True)) / spread
    residuals = [value - level - slope * (at - middle) for at, value in zip(x, y, strict=True)]
    squares = sum(residual * residual for residual in residuals)
    inflation = correlation_inflation(residuals)
    error = math.sqrt(squares / (count - 2) * inflation / spread)
    freedom = max(count / inflation - 2, 1.0)
    if correlate_residuals(residuals) > WALK:
        steps = sum((after - before) ** 2 for before, after in pairwise(residuals))
        variance = WALK_FACTOR * steps / (count - 2) * (count - 1)
        walk_error = math.sqrt(variance) / (x[-1] - x[0])
        if walk_error > error:
            error = walk_error
            freedom = count - 2.0
    return SlopeInterval(slope, error, freedom, level + slope * (x[0] - middle))


def correlation_inflation(values: Sequence[float]) -> float:
    """The factor by which the correlation of neighbours increases the variance of a mean, at least
    1. Values over it are the effective sample size."""
    correlation = min(max(correlate_residuals(values), 0.0), HIGHEST_CORRELATION)
    return max((1 + correlation) / (1 - correlation), batch_inflation(values))


def batch_inflation(values: Sequence[float]) -> float:
    """The same factor, from batches alone."""
    batches = CorrelationTime()
    for value in values:
        batches.add(value)
    return batches.requests


def correlate_residuals(residuals: Sequence[float]) -> float:
    """The correlation of neighbours around a fitted line, without the bias that the fit causes, about
    (2 + 4 r) / n."""
    squares = sum(residual * residual for residual in residuals)
    if squares <= 0:
        return 0.0
    found = sum(before * after for before, after in pairwise(residuals)) / squares
    return found + (2 + 4 * found) / len(residuals)
