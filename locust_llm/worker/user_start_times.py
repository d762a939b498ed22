"""User start times: when each user of this process sends its first request of a phase.

Users that start at once wait together, and go on waiting together, so their requests are no
independent samples. The users of a closed loop therefore start one after the other, and more slowly
if more of them make the server slower.
"""

import time
from collections.abc import Callable
from typing import Final

from gevent.lock import BoundedSemaphore

LOOK_S: Final = 0.005
"""The interval of checks for a first token."""


class StartTimes:
    """The users of all processes start at least ``spacing_s`` apart. Each process has every n-th
    start."""

    def __init__(
        self,
        place: int = 0,
        processes: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``place`` is the process's place, from 0."""
        self._processes = max(1, processes)
        self._place = place % self._processes
        self._clock = clock
        self._phase = ""
        self._spacing_s = self._longest_spacing_s = 0.0
        self._last_at: float | None = None
        """When the last user started, in monotonic seconds."""
        self._started = set[int]()
        self._turn = BoundedSemaphore(1)

    def spread(self, phase: str, spacing_s: float, longest_spacing_s: float) -> None:
        """Begin a phase whose users start so far apart: ``longest_spacing_s`` while requests await
        their first token. In any other phase they start at once."""
        self._phase = phase
        self._spacing_s, self._longest_spacing_s = spacing_s, longest_spacing_s
        self._last_at = None
        self._started.clear()

    def has_started(self, user: int, phase: str) -> bool:
        """The user need not wait any more."""
        return phase != self._phase or user in self._started

    def note_start(self, user: int, phase: str) -> None:
        """The user goes on with a session, which does not wait."""
        if phase == self._phase:
            self._started.add(user)

    def wait(
        self, user: int, wait_until: Callable[[float], None], awaiting: Callable[[], int]
    ) -> None:
        """Wait for this user's turn.

        ``wait_until`` sleeps until a moment of the clock and may raise. ``awaiting`` counts this
        process's requests that await their first token.
        """
        self._started.add(user)
        with self._turn:
            if self._last_at is None:  # the first user here begins the count
                begin = self._clock()
                step = self._place
            else:
                begin = self._last_at
                step = self._processes
            wait_until(begin + step * self._spacing_s)
            latest = begin + step * self._longest_spacing_s
            while step and awaiting() and (now := self._clock()) < latest:
                wait_until(min(latest, now + LOOK_S))
            self._last_at = self._clock()
