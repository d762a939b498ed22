"""Clocks: this process's monotonic clock against the controller's, so that the records of all
processes lie on one timeline.

Under one kernel all processes have the same monotonic clock, and the controller sends its offset to
Unix time: nothing is left to estimate. Elsewhere each answered status is a measurement, as in
Cristian's method (Probabilistic clock synchronization, Distributed Computing 3, 1989): the
control's time was taken between the status and its answer, so half the round trip bounds the error.
The best one counts; with its age its bound grows, as in NTP (RFC 5905), by the drift of the two
clocks.

No duration is made of stamps of two processes, however good this is.
"""

import os
import time
from functools import cache
from math import inf, isfinite
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from locust_llm.records.record import Record

DRIFT: Final = 200e-6
"""Two clocks that nobody corrects drift apart by at most so many seconds a second. A quartz is good
to 100 parts in a million."""


@cache
def measure_clock_offset_s() -> float:
    """The seconds to add to this process's monotonic clock to get Unix time. Taken once, so a
    stepped wall clock moves nothing."""
    return time.time() - time.monotonic()


def clock_id(
    boot: Path = Path("/proc/sys/kernel/random/boot_id"), space: Path = Path("/proc/self/ns/time")
) -> str:
    """The name of the monotonic clock. All processes of a kernel (random(4)) and of a time
    namespace (time_namespaces(7)) share it. Empty: it has no name."""
    try:
        named = boot.read_text().strip()
    except OSError:
        return ""
    try:
        return f"{named} {os.readlink(space)}"
    except OSError:
        return named


class SyncedClock:
    """``offset_s`` added to a stamp of this process gives the controller's Unix time, to within
    ``error_at(now)``."""

    def __init__(self) -> None:
        self.offset_s = measure_clock_offset_s()
        self.shared = False
        """This process has the controller's own clock."""
        self.stated_s = 0.0
        """The largest error of the stamps of any record so far."""
        self._error_s, self._at = inf, 0.0

    @property
    def known(self) -> bool:
        """The clock is the controller's own, or was compared with it."""
        return self._error_s < inf

    def same(self, offset_s: float) -> None:
        """Use the controller's own clock, with this offset."""
        self.offset_s, self.shared, self._error_s = offset_s, True, 0.0

    def error_at(self, now: float) -> float:
        """The largest error of ``offset_s`` by now, in seconds; inf: nothing is known."""
        return 0.0 if self.shared else self._error_s + max(0.0, now - self._at) * DRIFT

    def measure(self, at: float, unix_s: float, now: float) -> None:
        """A message left at ``at`` and its answer came at ``now``, both of this clock. The
        control's clock was ``unix_s`` in between."""
        if self.shared:
            return
        offset_s = unix_s - (at + now) / 2
        error_s = (now - at) * (0.5 + DRIFT)
        held_s = self.error_at(now)
        distance_s = abs(offset_s - self.offset_s)
        broken = isfinite(held_s) and distance_s > held_s + error_s
        # one of the two stood still, as of a suspended machine, or drifts more than that
        if broken:
            self.stated_s = max(self.stated_s, distance_s + error_s)
        if broken or error_s < held_s:
            self.offset_s, self._error_s, self._at = offset_s, error_s, now

    def placed(self, record: Record, now: float) -> Record:
        """A finished record with the offset that is known by now. ``stated_s`` covers all its
        stamps."""
        if self.shared or not self.known:
            return record
        since = record.asked_at if record.due_at is None else min(record.due_at, record.asked_at)
        self.stated_s = max(self.stated_s, self.error_at(now) + max(0.0, now - since) * DRIFT)
        return replace(record, clock_offset_s=self.offset_s)
