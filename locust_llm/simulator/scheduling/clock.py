"""Clocks: one measures real time to a tenth of a millisecond, and one jumps."""

from __future__ import annotations

import heapq
import math
import select
import selectors
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class EventClock(Protocol):
    """Has the methods of an asyncio loop (real time) that engines use. `VirtualClock` has them
    too."""

    def time(self) -> float: ...
    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer: ...


class FineSelector(selectors.DefaultSelector):
    """Makes the timers of an asyncio loop exact to about 0.1 ms. Epoll itself rounds up to whole
    milliseconds, a seventh of a decode step. `select.select` accepts fractions, and can wait for an
    epoll descriptor. On systems without epoll the default selector waits."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not hasattr(selectors, "EpollSelector"):
            return super().select(timeout)
        if timeout is None or timeout > 0:
            select.select([self], [], [], timeout)
        return super().select(0)


class VirtualClock:
    """Jumps from one callback to the next, exactly and without waiting. Callbacks with equal times
    run in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self._count = 0
        self._timers: list[tuple[float, int, _VirtualTimer]] = []

    def time(self) -> float:
        return self.now

    @property
    def next_at(self) -> float:
        """Returns when the next timer is due, even if it was cancelled, or inf without timers."""
        return self._timers[0][0] if self._timers else math.inf

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer:
        timer = _VirtualTimer(callback)
        heapq.heappush(self._timers, (when, self._count, timer))
        self._count += 1
        return timer

    def run(self, until: float = math.inf) -> None:
        """Runs all callbacks due by ``until``."""
        timers = self._timers
        while timers and timers[0][0] <= until:
            when, _, timer = heapq.heappop(timers)
            if timer.callback:
                self.now = max(self.now, when)
                timer.callback()


class _VirtualTimer:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None
