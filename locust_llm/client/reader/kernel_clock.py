"""The kernel stamps what arrives with the wall clock; our stamps are of the monotonic one: the
difference of the two."""

import time
from collections.abc import Callable


def measure_clock_offset_ns(
    wall_ns: Callable[[], int] = time.time_ns, monotonic_ns: Callable[[], int] = time.monotonic_ns
) -> int:
    """What to take from a wall clock stamp of this moment to get a monotonic one, good to 20 µs.

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
