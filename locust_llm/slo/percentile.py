"""Percentile: a percentile of ordered values, and when there are too few values."""

import math
from typing import Any, Protocol


class OrderedNumbers(Protocol):
    """Numbers from the smallest to the largest: a list or an array."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> Any: ...


def find_percentile(ordered: OrderedNumbers, percentile: float, *, nearest: bool = False) -> float:
    """The percentile of at least one value. It is linear between two values (numpy's default),
    infinite where the upper one is; or it is the nearest rank."""
    if nearest:
        rank = max(math.ceil(round(percentile / 100 * len(ordered), 9)), 1)
        return float(ordered[rank - 1])
    place = round(percentile / 100 * (len(ordered) - 1), 9)
    below = float(ordered[math.floor(place)])
    above = float(ordered[math.ceil(place)])
    if not (math.isfinite(below) and math.isfinite(above)):
        return above
    return below + (above - below) * (place - math.floor(place))


def has_too_few_values(count: int, percentile: float) -> bool:
    """Whether a percentile has too few values: under 100 / (100 - p), which is 10 for p90, 100 for
    p99."""
    return count * (100 - percentile) < 100 - 1e-6
