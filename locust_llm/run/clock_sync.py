"""Clocks: this process's monotonic clock against the control's, so that the records of all processes lie on one timeline.

On one machine all processes have the same monotonic clock, and the control sends its offset to Unix time: nothing is left to
estimate. Elsewhere each answered status is a measurement, as in Cristian's method (Probabilistic clock synchronization,
Distributed Computing 3, 1989): the control's time was taken between the status and its answer, so half the round trip
bounds the error. The best one counts; with its age its bound grows, as in NTP (RFC 5905, 15 parts in a million).

No duration is made of stamps of two processes, however good this is.
"""

import time
from functools import cache
from math import inf
from pathlib import Path
from typing import Final

DRIFT: Final = 15e-6
"""Seconds a second."""


@cache
def offset_s() -> float:
    """What to add to this process's monotonic clock to get Unix time; taken once, so a stepped wall clock moves nothing."""
    return time.time() - time.monotonic()


def boot_id(file: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """Of the kernel, whose monotonic clock is that of all its processes (random(4)); empty where there is none."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""


class Clock:
    """``offset_s``: what to add to a stamp of this process to get Unix time as the control has it, to within
    ``error_s``."""

    def __init__(self) -> None:
        self.offset_s = offset_s()
        self.error_s = inf
        self._at = 0.0

    def same(self, offset_s: float) -> None:
        """The control runs on this machine, with this offset."""
        self.offset_s, self.error_s, self._at = offset_s, 0.0, inf

    def measure(self, at: float, unix_s: float, now: float) -> None:
        """A message left at ``at``, its answer came at ``now`` (of this clock); the control's was ``unix_s`` in between."""
        error_s = (now - at) / 2
        if error_s < self.error_s + max(0.0, now - self._at) * DRIFT:
            self.offset_s, self.error_s, self._at = unix_s - (at + now) / 2, error_s, now
