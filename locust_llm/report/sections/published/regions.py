"""Regions of concurrency, as the rules of MLPerf Endpoints bound them.

mlcommons/endpoints_policies, endpoints_rules.md at commit 00135a0, sections 5.3 to 5.6. The tests have the worked examples
of section 5.4 and the table of appendix B. They contradict each other for 16 and 1,024: the example prints 16 to 26 and 27
to 116, the table and the algorithm 17 to 26 and 27 to 117, for 16 + 1008^(2/3) is 116.5 and more. The algorithm counts.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

ULTRA_LOW: Final = 32
"""The highest concurrency of the first region, in which a curve begins."""
MARGIN: Final = 1.10
"""Of the highest concurrency declared: up to there a later point is in range, but covers no region."""


class ConcurrencyRegion(NamedTuple):
    """Both ends belong to it; none where ``low`` is above ``high``."""

    name: str
    low: int
    high: int

    def __contains__(self, concurrency: object) -> bool:
        return isinstance(concurrency, int) and self.low <= concurrency <= self.high

    def __str__(self) -> str:
        return f"{self.name} ({self.low:,} to {self.high:,})"


def divide_into_regions(lowest: int, highest: int) -> tuple[ConcurrencyRegion, ...]:
    """Between the lowest and the highest concurrency of a curve: Ultra Low, Low, Medium, High and the margin above.

    Low and Medium end at lowest + (highest - lowest)^(1/3) and ^(2/3), rounded half to even: three equal parts of the
    logarithm of what lies between. Raises ValueError of one sentence where the rules know none.
    """
    if not 1 <= lowest <= ULTRA_LOW:
        raise ValueError(f"the lowest concurrency must be 1 to {ULTRA_LOW}, and is {lowest:,}")
    if highest <= ULTRA_LOW:
        raise ValueError(f"the highest concurrency must be above {ULTRA_LOW}, and is {highest:,}")
    third = math.log2(highest - lowest) / 3
    low, medium = round(lowest + 2**third), round(lowest + 2 ** (2 * third))
    return (
        ConcurrencyRegion("Ultra Low", 1, lowest),
        ConcurrencyRegion("Low", lowest + 1, low),
        ConcurrencyRegion("Medium", low + 1, medium),
        ConcurrencyRegion("High", medium + 1, highest),
        ConcurrencyRegion("margin", highest + 1, math.ceil(MARGIN * highest)),
    )


def find_uncovered_regions(points: Sequence[int]) -> list[ConcurrencyRegion]:
    """The regions without a point, from the lowest and highest point. One that rounding left without any concurrency has the
    one at its boundary (section 5.4). Raises ValueError as ``regions``, and of no points."""
    if not points:
        raise ValueError("there is no point")
    asked = divide_into_regions(min(points), max(points))[:-1]
    asked = tuple(ConcurrencyRegion(r.name, min(r.low, r.high), r.high) for r in asked)
    return [region for region in asked if not any(point in region for point in points)]
