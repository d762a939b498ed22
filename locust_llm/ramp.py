"""Ramp: the limit of the prefill gate over time; AIPerf's steps (0.13, linear)."""

from collections.abc import Iterator


def ramp(limit: int, duration_s: float | None, start: int = 1) -> Iterator[tuple[float, int]]:
    """(seconds from the start, limit from then on), the first at 0.

    Value v of 2..T begins at D (v - 1) / (T - 1): 1 to 5 over 30 s steps at 7.5, 15, 22.5 and 30 s. Likewise from
    another ``start``, downwards too.
    """
    steps = abs(limit - start)
    if duration_s is None or not steps:
        yield 0.0, limit
        return
    for step in range(steps + 1):
        yield duration_s * step / steps, start + (step if limit > start else -step)
