"""Event loop yields: long work lets the event loop look at its timers and sockets in between."""

import time
from collections.abc import Callable
from typing import Final

import gevent
from gevent.lock import BoundedSemaphore

SLICE_S: Final = 0.005
"""Work in one piece takes at most so long."""
LONG_S: Final = 0.0002
"""Nothing that can wait begins when the loop has not looked at its timers and sockets for so
long."""


def yield_to_event_loop() -> None:
    """Return when the loop has looked at its timers and sockets. It takes 2 µs. ``gevent.sleep(0)``
    may return up to fifty times in a row without such a look."""
    hub = gevent.get_hub()
    with hub.loop.timer(0.0) as turn:
        hub.wait(turn)


class WorkSlices:
    """Long work in pieces: after ``SLICE_S`` of work the event loop has a turn."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_at = clock()

    def pause(self) -> None:
        """Let the loop turn between two pieces of work, if it is time."""
        if self._clock() - self._began_at > SLICE_S:
            yield_to_event_loop()
            self._began_at = self._clock()


class LoopTurns:
    """The turns of the event loop of one process. gevent runs up to fifty ready greenlets before it
    looks at timers and sockets again. If each of them makes a request or a record, a send that is
    due waits for 5 ms."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """``clock`` is the loop's own, from libev."""
        self._first = BoundedSemaphore(1)
        self._clock = clock

    def take(self) -> None:
        """Return when it is this greenlet's turn, in order of arrival; at once where the loop has
        just turned. One turn is enough, and there may be no second: after a step of the wall clock,
        libev's clock differs for a while."""
        with self._first:
            if self._clock() - gevent.get_hub().loop.now() > LONG_S:
                yield_to_event_loop()


can_wait = LoopTurns()
"""Work that can wait takes a turn here: requests that are prepared ahead, and records."""
