"""Correlation time of values as they come: by how much their correlation blows up the variance of their mean."""

from typing import Final

MIN_BATCHES: Final = 8
"""A batch length of which fewer were filled says nothing."""


class CorrelationTime:
    """Of a series of any length in little memory: sums of batches of 1, 2, 4, 8 ... values. What the variance of the batches
    of a length is above that of independent values is the correlation as far as they reach (batch means: Schmeiser, Batch
    size effects in the analysis of simulation output, Operations Research 30, 1982)."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = self._squares = 0.0
        self._half: list[float | None] = []
        """Of each length the batch that waits for its other half."""
        self._batches: list[int] = []
        self._squared: list[float] = []
        """Sum of the squared batches."""

    def add(self, value: float) -> None:
        self.count += 1
        self._sum += value
        self._squares += value * value
        length = 0
        while True:
            if length == len(self._half):
                self._half.append(None)
                self._batches.append(0)
                self._squared.append(0.0)
            self._batches[length] += 1
            self._squared[length] += value * value
            half = self._half[length]
            if half is None:
                self._half[length] = value
                return
            value, self._half[length], length = value + half, None, length + 1

    @property
    def requests(self) -> float:
        """So many values say as much as one independent one; at least 1."""
        if self.count < MIN_BATCHES:
            return 1.0
        mean = self._sum / self.count
        variance, longest = self._squares / self.count - mean * mean, 1.0
        if variance <= 1e-12 * mean * mean:
            return 1.0
        for i, (batches, squared) in enumerate(zip(self._batches, self._squared, strict=True)):
            if batches >= MIN_BATCHES:
                length = 1 << i
                spread = (squared / batches - (length * mean) ** 2) * batches / (batches - 1)
                longest = max(longest, spread / (length * variance))
        return longest
