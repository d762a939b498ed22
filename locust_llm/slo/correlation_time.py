"""Correlation time: how much the correlation of consecutive values increases the variance of their
mean."""

import math
from typing import Final

from .student_t import find_student_t

MIN_BATCHES: Final = 8
"""A batch length with fewer full batches is not used."""
TAIL_RISE: Final = 0.0005
"""The probability that a walk without direction looks like a rising one, at any one time."""


class BatchSums:
    """The sums of batches of so many neighbours."""

    def __init__(self) -> None:
        self.half: float | None = None
        """A batch that waits for its other half."""
        self.count = 0
        self.squares = 0.0
        """The sum of the squared batches."""
        self.first = self.last = 0.0
        self.steps = 0.0
        """The sum of the squared differences of neighbours."""

    def add(self, value: float) -> None:
        if self.count:
            self.steps += (value - self.last) ** 2
        else:
            self.first = value
        self.count += 1
        self.squares += value * value
        self.last = value


class CorrelationTime:
    """The correlation time of a series of any length, in little memory: from batches of 1, 2, 4, 8
    and so on values.

    The variance of batches above that of independent values shows the correlation over their length
    (batch means: Schmeiser, Batch size effects in the analysis of simulation output, Operations
    Research 30, 1982).
    """

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0.0
        self._lengths: list[BatchSums] = []

    def add(self, value: float) -> None:
        self.count += 1
        self._sum += value
        for batches in self._lengths:
            batches.add(value)
            if batches.half is None:
                batches.half = value
                return
            value = value + batches.half
            batches.half = None
        self._lengths.append(longest := BatchSums())
        longest.add(value)
        longest.half = value

    @property
    def mean(self) -> float:
        return self._sum / self.count if self.count else math.nan

    @property
    def variance(self) -> float:
        return (
            max(self._lengths[0].squares / self.count - self.mean**2, 0.0)
            if self.count
            else math.nan
        )

    @property
    def requests(self) -> float:
        """So many values carry as much information as one independent value, at least 1."""
        if self.count < MIN_BATCHES:
            return 1.0
        mean, variance, longest = self.mean, self.variance, 1.0
        if variance <= 1e-12 * mean * mean:
            return 1.0
        for i, batches in enumerate(self._lengths):
            if batches.count >= MIN_BATCHES:
                length = 1 << i
                spread = batches.squares / batches.count - (length * mean) ** 2
                longest = max(
                    longest, spread * batches.count / (batches.count - 1) / (length * variance)
                )
        return longest

    @property
    def rises(self) -> bool:
        """Whether its longest batches (eight to fifteen) rise steadily. Their steps then have a
        mean above zero by Student's t, unlike a long walk that goes up and down."""
        longest = next(
            (batches for batches in reversed(self._lengths) if batches.count >= MIN_BATCHES), None
        )
        if longest is None:
            return False
        steps = longest.count - 1
        rise = longest.last - longest.first
        around = (longest.steps - rise * rise / steps) / (steps - 1)
        return rise > find_student_t(steps - 1.0, TAIL_RISE) * math.sqrt(max(around, 0.0) * steps)
