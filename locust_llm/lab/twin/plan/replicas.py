"""Replicas: the most that one replica holds within the rules, and how many the peak needs with one
lost."""

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

ROUNDS: Final = (9, 6, 5)
"""Rates that are tried at once, each time between the last that holds and the next."""
LEAST, MOST = 1e-3, 8.0
"""Of the peak, what is tried for one replica."""
HYSTERESIS: Final = 0.9
"""Of the rate at which a replica would be added again, below which one is removed."""
Holds = Callable[[Sequence[float]], Sequence[bool]]
"""Of each rate, in requests a second, whether a replica holds it."""


def most(holds: Holds, peak: float) -> float:
    """The highest rate of one replica that holds, within 3%, as far as up to MOST times the peak;
    0: none does. A rate holds only where all lower ones that are tried do."""
    low, high = 0.0, MOST * peak
    for number, count in enumerate(ROUNDS):
        first = LEAST * peak if number == 0 else low
        tried = between(first, high, count, number == 0)
        found = holds(tried)
        for rate, good in zip(tried, found, strict=True):
            if not good:
                high = rate
                break
            low = rate
        if low == 0.0:
            return 0.0
        if low >= high:
            break
    return low


def between(low: float, high: float, count: int, ends: bool) -> list[float]:
    """Rates with equal ratios, with both ends or with neither."""
    if ends:
        return [low * (high / low) ** (i / (count - 1)) for i in range(count)]
    return [low * (high / low) ** (i / (count + 1)) for i in range(1, count + 1)]


class Fleet(NamedTuple):
    """Replicas for a peak."""

    per_replica: float
    """Requests a second that one holds."""
    working: int
    """That hold the peak."""

    @property
    def replicas(self) -> int:
        """With one more, so that the rest holds it when one is lost."""
        return self.working + 1

    def needed(self, rate: float) -> int:
        """At this rate, with one that may be lost."""
        return max(1, math.ceil(rate / self.per_replica - 1e-9)) + 1

    @property
    def add_above(self) -> float:
        """Requests a second of each replica: with more, the rest would not hold it when one is
        lost."""
        return self.per_replica * self.working / self.replicas

    @property
    def remove_below(self) -> float:
        """Requests a second of each replica, where one fewer would do, with some room; 0: there are
        no fewer than two."""
        return HYSTERESIS * self.per_replica * (self.working - 1) / self.replicas


def fleet(per_replica: float, peak: float) -> Fleet:
    return Fleet(per_replica, max(1, math.ceil(peak / per_replica - 1e-9)))
