"""Shutdown: ends a run as Locust does, and waits until every process has handed over what it
had."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Final

from locust.env import Environment

import gevent
from gevent.event import Event

QUIET_END_S: Final = 5.0
"""After the time for the end, the longest wait for further records of any process."""
MAX_HAND_OVER_S: Final = 300.0
"""The longest time that records may still come after the time for the end."""


class Shutdown:
    """``active()`` gives the processes that are not lost."""

    def __init__(
        self,
        environment: Environment,
        active: Callable[[], Sequence[str]],
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``now``: Unix seconds."""
        self.begun = False
        """Nothing new may start."""
        self.over = Event()
        """All is handed over, as far as it ever will be."""
        self.asked_at: float | None = None
        """When the end was asked for first, in Unix seconds: the time was up, all was sent, or
        somebody stopped the run. It begins later where this process has no CPU."""
        self._environment, self._now = environment, now
        self._active, self._clock = active, clock
        self._ended: dict[str, Event] = {}
        self._by = math.inf
        """When the shutdown is over (monotonic seconds), unless records still come."""
        self._records_at = -math.inf

    def note_asked(self) -> None:
        """The end is asked for now."""
        if self.asked_at is None:
            self.asked_at = self._now()

    def begin(self) -> None:
        """End the run as Locust ends it, as all is sent."""
        if not self.begun:
            self.begun = True
            self.note_asked()
            # the caller is one of those that the end waits for
            gevent.spawn(_end, self._environment)

    def expect(self, workers: Sequence[str]) -> None:
        """Note the processes that are asked to end next."""
        self._ended = {worker: Event() for worker in workers}

    def ended(self, worker: str) -> None:
        """A process has handed over all that it had."""
        if worker in self._ended:
            self._ended[worker].set()

    def note_records(self) -> None:
        """A process hands over records now: the others may wait behind it."""
        self._records_at = self._clock()

    def within(self, seconds: float) -> None:
        """The shutdown is over then, whatever is missing."""
        self._by = min(self._by, self._clock() + seconds)

    def wait(self, seconds: float) -> list[str]:
        """Wait until all processes have ended or are lost, at most ``seconds``, or longer while
        they hand over records. Returns the ones that have not ended."""
        self.within(seconds)
        for worker, ended in self._ended.items():
            while not ended.wait(0.2) and worker in self._active() and not self._is_too_late():
                continue
        self.over.set()
        return [worker for worker, ended in self._ended.items() if not ended.is_set()]

    def _is_too_late(self) -> bool:
        now = self._clock()
        return now >= self._by + MAX_HAND_OVER_S or now >= max(
            self._by, self._records_at + QUIET_END_S
        )


def _end(environment: Environment) -> None:
    """End the run as Locust does when its own time is up."""
    runner, options = environment.runner, environment.parsed_options
    assert runner is not None
    if options is None or options.headless:
        runner.quit()
        return
    runner.stop()
    if getattr(options, "autostart", False) and options.autoquit != -1:
        gevent.sleep(options.autoquit)
        runner.quit()
        if environment.web_ui is not None:
            environment.web_ui.stop()
