"""Precise timer: wakes greenlets at moments of the monotonic clock, to within a fraction of a
millisecond.

gevent's own timers are rounded to milliseconds (libev waits with epoll_wait). This one is a
timerfd, see timerfd_create(2), that the event loop watches like a socket. It is set to the nearest
moment, absolute, so lateness does not add up. Systems other than Linux have gevent's own timers.
"""

import ctypes
import heapq
import os
import time
from collections.abc import Callable
from struct import Struct
from typing import Any, Final

import gevent
from gevent.event import Event
from gevent.lock import BoundedSemaphore

TURN_S: Final = 0.001
"""A short timer, without which the event loop would not look at what is due."""
_CLOCK_MONOTONIC: Final = 1
_ABSOLUTE: Final = 1
_itimerspec: Final = Struct("qqqq")


class Alarm:
    """The alarm of a process. Any number of greenlets may call ``wait_until``."""

    def __init__(self) -> None:
        self._sleepers: list[tuple[float, int, Event]] = []
        self._number = 0
        self._timer: TimerFd | LoopTimer = (
            TimerFd(self._ring) if has_timerfd() else LoopTimer(self._ring)
        )

    def wait_until(self, at: float) -> None:
        """Sleep until ``at`` (seconds of time.monotonic). Returns at once if that is over."""
        if at <= time.monotonic():
            return
        self._number += 1
        sleeper = at, self._number, Event()
        heapq.heappush(self._sleepers, sleeper)
        if self._sleepers[0] is sleeper:
            self._arm()
        # one that is killed here stays in the heap until its time has come, and harms nobody
        sleeper[2].wait()

    def wake_all(self) -> None:
        """Wake everybody who waits."""
        while self._sleepers:
            heapq.heappop(self._sleepers)[2].set()

    def close(self) -> None:
        self.wake_all()
        self._timer.close()

    def _ring(self) -> None:
        now = time.monotonic()
        while self._sleepers and self._sleepers[0][0] <= now:
            heapq.heappop(self._sleepers)[2].set()
        self._arm()

    def _arm(self) -> None:
        if self._sleepers:
            self._timer.set(self._sleepers[0][0])


class TimerFd:
    """Calls ``ring`` at the moment to which it is set."""

    def __init__(self, ring: Callable[[], None]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._set_time = libc.timerfd_settime
        self._fd = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._ring = ring
        self._watcher = gevent.get_hub().loop.io(self._fd, 1)  # 1: to read
        self._watcher.start(self._is_readable)

    def set(self, at: float) -> None:
        """``at`` is in seconds of time.monotonic."""
        seconds, rest = divmod(at, 1)
        # a double just below 1 makes a whole second, which is refused
        ns = min(int(rest * 1e9), 999_999_999)
        self._set_time(self._fd, _ABSOLUTE, _itimerspec.pack(0, 0, int(seconds), ns), None)

    def _is_readable(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        self._ring()

    def close(self) -> None:
        self._watcher.stop()
        self._watcher.close()
        os.close(self._fd)


class LoopTimer:
    """Does the same with a timer of the event loop, which is right to a millisecond."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._watcher: Any = None

    def set(self, at: float) -> None:
        """``at`` is in seconds of time.monotonic."""
        self.close()
        self._watcher = gevent.get_hub().loop.timer(max(0.0, at - time.monotonic()))
        self._watcher.start(self._ring, update=True)

    def close(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher.close()
            self._watcher = None


def has_timerfd() -> bool:
    return hasattr(ctypes.CDLL(None), "timerfd_create")


class ExclusiveTurns:
    """Turns for work that takes milliseconds of the event loop, such as building a request of
    megabytes. One greenlet works after the other. Between two of them the loop turns, so that what
    is due is sent."""

    def __init__(self) -> None:
        self._one = BoundedSemaphore(1)

    def take(self) -> None:
        """Return when it is this greenlet's turn."""
        with self._one:
            gevent.sleep(TURN_S)
