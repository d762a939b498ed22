"""Real time to a tenth of a millisecond, and time that jumps."""

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
    """What is used of an asyncio loop (real time); `VirtualClock` is the other one."""

    def time(self) -> float: ...
    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer: ...


class FineSelector(selectors.DefaultSelector):
    """For an asyncio loop whose timers are exact to about 0.1 ms: epoll itself rounds up to whole
    milliseconds, a seventh of a decode step. An epoll descriptor can be waited for like any other,
    and `select.select` takes fractions. Where there is no epoll, the selector of that system waits
    itself.
    """

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not hasattr(selectors, "EpollSelector"):
            return super().select(timeout)
        if timeout is None or timeout > 0:
            select.select([self], [], [], timeout)
        return super().select(0)


class VirtualClock:
    """Time that jumps from one callback to the next: exact, and as fast as the machine. Equal times
    run in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self._count = 0
        self._timers: list[tuple[float, int, _VirtualTimer]] = []

    def time(self) -> float:
        return self.now

    @property
    def next_at(self) -> float:
        """When the next timer is due, one that was cancelled too; inf: there is none."""
        return self._timers[0][0] if self._timers else math.inf

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer:
        timer = _VirtualTimer(callback)
        heapq.heappush(self._timers, (when, self._count, timer))
        self._count += 1
        return timer

    def run(self, until: float = math.inf) -> None:
        """Until nothing is left to happen by then."""
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
