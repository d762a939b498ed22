"""Percentile: the one definition of a percentile, for tables, rules and prefill limits; and when
there are too few values.

numpy's percentile, which charts use on arrays, has the same values to the last bit.
"""

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
    place = percentile / 100 * (len(ordered) - 1)
    below = float(ordered[math.floor(place)])
    above = float(ordered[min(math.floor(place) + 1, len(ordered) - 1)])
    if not (math.isfinite(below) and math.isfinite(above)):
        # without the error of the product, which would reach for an infinite neighbour
        return float(ordered[math.ceil(round(place, 9))])
    part = place - math.floor(place)
    if part < 0.5:
        return below + (above - below) * part
    return above - (above - below) * (1 - part)


def find_share_beyond(share: float) -> float:
    """``1 - share`` without the error of the subtraction, which is 0.0500...4 of 0.95."""
    return round(1 - share, 12)


def count_beyond(count: float, outside: float) -> float:
    """How many of so many values a share has, without the error of the product: 10 of 100 are a
    tenth, and not 9.9999."""
    return round(count * outside, 9)


def has_too_few_values(count: int, percentile: float) -> bool:
    """Whether a percentile has too few values: under 100 / (100 - p), which is 10 for p90, 100 for
    p99."""
    return count * (100 - percentile) < 100 - 1e-6
