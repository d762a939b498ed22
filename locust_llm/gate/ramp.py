"""Ramp: the limit on concurrent prefills over time, as steps, and the greenlet that follows
them."""

import time
from collections.abc import Callable, Iterable, Iterator

import gevent


def make_limit_ramp(
    limit: int, duration_s: float | None, start: int = 1
) -> Iterator[tuple[float, int]]:
    """(seconds from the start, limit from then on), the first at 0.

    Value v of 2..T begins at D (v - 1) / (T - 1). 1 to 5 over 30 s steps at 7.5, 15, 22.5 and 30 s.
    Another ``start`` works the same way, also downwards.
    """
    steps = abs(limit - start)
    if duration_s is None or not steps:
        yield 0.0, limit
        return
    for step in range(steps + 1):
        yield duration_s * step / steps, start + (step if limit > start else -step)


def follow_limit_steps(
    set_limit: Callable[[int], object],
    steps: Iterable[tuple[float, int]],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = gevent.sleep,
) -> None:
    """Set each limit when its second has come. Each wait counts from the start, so that lateness
    does not add up."""
    started = clock()
    for at_s, limit in steps:
        wait_s = started + at_s - clock()
        if wait_s > 0:
            sleep(wait_s)
        set_limit(limit)
