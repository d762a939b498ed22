"""User turnaround: the time that a user of a closed loop takes from an answer to its next request,
and the part of it that the run, or the code of a locustfile, asked for."""

import time
from collections.abc import Callable

from locust_llm.client.request_bytes import PreviousAnswer
from locust_llm.records.outcomes import OK
from locust_llm.records.record import Record


def is_paced_wait(wait_time: Callable[[], float]) -> bool:
    """Whether it is Locust's ``constant_pacing``, or ``constant_throughput``, which calls that."""
    return getattr(wait_time, "__qualname__", "").startswith("constant_pacing.")


class UserTurnaround:
    """Of one sender. Pauses are: code between its requests, the wait time of Locust, the delay of a
    turn. A wait of Locust that lasts longer than it was asked for is no pause by the excess. A paced
    wait ends so long after the last one, and makes up for all that came late before it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._phase = ""
        self._answered_at: float | None = None
        self._paused_s = 0.0
        self._outside_since: float | None = None
        """Since when the locustfile has had control."""
        self._wait_began_at: float | None = None
        self._asked_s: float | None = None
        self._is_paced = False

    def forget(self) -> None:
        """The next request follows on no answer: how long it takes says nothing."""
        self._answered_at = None
        self._outside_since = self._wait_began_at = None

    def answered(self, record: Record, phase: str) -> None:
        """Time begins with the last byte of an answer. After a failure a user pauses."""
        self.forget()
        if record.outcome == OK:
            self._answered_at, self._phase, self._paused_s = record.closed_at, phase, 0.0

    def pause(self, seconds: float) -> None:
        """A pause of so many seconds from the answer on was asked for."""
        self._paused_s += seconds

    def leave(self) -> None:
        """The locustfile takes over."""
        self._outside_since = self._clock()

    def begin_wait(self) -> None:
        """Locust begins the wait between two tasks."""
        self._end_code()
        self._wait_began_at = self._clock()
        self._asked_s, self._is_paced = None, False

    def ask_wait(self, seconds: float, *, is_paced: bool = False) -> None:
        """Locust was told to wait for so long. Below 0 it does not wait, and makes up for
        nothing."""
        self._asked_s = max(0.0, seconds)
        self._is_paced = is_paced and seconds > 0

    def end_wait(self) -> None:
        """The wait is over. Where nobody knows what was asked for, all of it was."""
        if self._wait_began_at is None:
            return
        now = self._clock()
        waited_s = now - self._wait_began_at
        self._paused_s += waited_s if self._asked_s is None else min(self._asked_s, waited_s)
        if self._is_paced and self._answered_at is not None:  # the next wait is as much shorter
            self._paused_s = now - self._answered_at
        self._wait_began_at = None
        self._outside_since = self._clock()

    def enter(self) -> None:
        """The locustfile asks for the next request."""
        self.end_wait()
        self._end_code()

    def _end_code(self) -> None:
        if self._outside_since is not None:
            self._paused_s += self._clock() - self._outside_since
            self._outside_since = None

    def before(self, phase: str) -> PreviousAnswer | None:
        """The answer that the next request of this phase follows on. None: there is none."""
        if self._answered_at is None or phase != self._phase:
            return None
        return PreviousAnswer(self._answered_at, self._paused_s)
