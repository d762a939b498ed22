"""Correlation time of values as they come: by how much their correlation blows up the variance of
their mean."""

import math
from typing import Final

from .student_t import find_student_t

MIN_BATCHES: Final = 8
"""A batch length of which fewer were filled says nothing."""
TAIL_RISE: Final = 0.0005
"""What a walk without a direction may look like one that rises with, at any one time."""


class BatchSums:
    """Sums of as many neighbours each."""

    def __init__(self) -> None:
        self.half: float | None = None
        """The batch that waits for its other half."""
        self.count = 0
        self.squares = 0.0
        """Sum of the squared batches."""
        self.first = self.last = 0.0
        self.steps = 0.0
        """Sum of the squared differences of neighbours."""

    def add(self, value: float) -> None:
        if self.count:
            self.steps += (value - self.last) ** 2
        else:
            self.first = value
        self.count += 1
        self.squares += value * value
        self.last = value


class CorrelationTime:
    """Of a series of any length in little memory: batches of 1, 2, 4, 8 ... values. What the
    variance of the batches of a length is above that of independent values is the correlation as
    far as they reach (batch means: Schmeiser, Batch size effects in the analysis of simulation
    output, Operations Research 30, 1982)."""

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
        """So many values say as much as one independent one; at least 1."""
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
        """Its longest batches, eight to fifteen of them, rise steadily: their steps have a mean
        above zero by Student's t, as those of a walk that goes up and down for long have not."""
        longest = next(
            (batches for batches in reversed(self._lengths) if batches.count >= MIN_BATCHES), None
        )
        if longest is None:
            return False
        steps = longest.count - 1
        rise = longest.last - longest.first
        around = (longest.steps - rise * rise / steps) / (steps - 1)
        return rise > find_student_t(steps - 1.0, TAIL_RISE) * math.sqrt(max(around, 0.0) * steps)
