"""Ramp: the limit of the prefill gate over time; AIPerf's steps (0.13, linear, from 1)."""

from collections.abc import Iterator


def ramp(limit: int, duration_s: float | None) -> Iterator[tuple[float, int]]:
    """(seconds from the start, limit from then on), the first at 0.

    Value v of 2..T begins at D (v - 1) / (T - 1): 1 to 5 over 30 s steps at 7.5, 15, 22.5 and 30 s.
    """
    if duration_s is None or limit == 1:
        yield 0.0, limit
        return
    for value in range(1, limit + 1):
        yield duration_s * (value - 1) / (limit - 1), value
