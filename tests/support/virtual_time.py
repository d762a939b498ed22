"""Virtual time: clocks move only by ``advance``, and a sleep ends when they reach its end."""

import heapq

import gevent
from gevent.event import Event

from locust_llm.controller.run_context import TimeSource
from support import unpatched_locust  # noqa: F401  before the rest

UNIX = 1_900_000_000.0
"""This is the Unix time at 0."""


def turn() -> None:
    """Lets every ready greenlet run."""
    for _ in range(6):
        gevent.sleep(0)


class VirtualTime:
    def __init__(self) -> None:
        self.at = 0.0
        """The clock shows this many seconds since its start."""
        self.source = TimeSource(
            now=lambda: UNIX + self.at, monotonic=lambda: self.at, sleep=self.sleep
        )
        self._sleepers: list[tuple[float, int, Event]] = []
        self._count = 0

    def sleep(self, seconds: float) -> None:
        self._count += 1
        sleeper = self.at + seconds, self._count, Event()
        heapq.heappush(self._sleepers, sleeper)
        sleeper[2].wait()

    def advance(self, seconds: float) -> None:
        """Moves the clocks. Every sleeper wakes at its time."""
        until = self.at + seconds
        turn()
        while self._sleepers and self._sleepers[0][0] <= until + 1e-9:
            self.at, _, wake = heapq.heappop(self._sleepers)
            wake.set()
            turn()
        self.at = until
