"""Kernel clock offset: the kernel stamps arrivals with the wall clock, and our stamps use the
monotonic clock. This measures the difference."""

import time
from collections.abc import Callable


def measure_clock_offset_ns(
    wall_ns: Callable[[], int] = time.time_ns, monotonic_ns: Callable[[], int] = time.monotonic_ns
) -> int:
    """How many ns to subtract from a wall clock stamp of this moment to get a monotonic one, good
    to 20 µs.

    Two clocks cannot be read at once: where the thread was held up between them, it reads again.
    """
    best_ns = 1 << 63
    offset_ns = 0
    for _ in range(8):
        before = monotonic_ns()
        wall = wall_ns()
        after = monotonic_ns()
        if after - before < best_ns:
            best_ns = after - before
            offset_ns = wall - (before + after) // 2
        if best_ns < 20_000:
            break
    return offset_ns
