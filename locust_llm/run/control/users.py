"""How many users there are; in an open loop without a number as many as the arrivals need."""

from typing import Final

import gevent

from .context import RunContext

SPAWNING_S: Final = 3.0
"""How long a phase waits for its first users."""


class UserPool:
    def __init__(self, context: RunContext) -> None:
        settings = context.settings
        self.most = settings.max_users
        self.grows = not settings.users and settings.open_loop
        """Nobody said how many users."""
        self.count = settings.users or 0
        """How many there are, or are asked for; never falls but by ``become``."""
        self.exhausted = False
        """There are as many as there may be, and arrivals wait."""
        self._runner, self._store = context.runner, context.store
        self._missing: dict[str, int] = {}

    @property
    def missing(self) -> int:
        """Arrivals that are due about now, and find no free user."""
        return sum(self._missing.values())

    def become(self, count: int) -> None:
        """As from the web page, but that the run goes on. Comes back when they are there, or after SPAWNING_S."""
        self.count = count
        with gevent.Timeout(SPAWNING_S, False):
            while self._runner.state not in ("spawning", "running"):  # else Locust would take it for another run
                gevent.sleep(0.01)
            if self._runner.target_user_count != count:
                self._runner.start(count, float(max(count, 100)))
            while self._runner.user_count != count:
                gevent.sleep(0.02)

    def wait(self) -> None:
        """Until they are there, or SPAWNING_S are over."""
        with gevent.Timeout(SPAWNING_S, False):
            while self._runner.user_count < max(1, self.count):
                gevent.sleep(0.02)

    def update(self, worker: str, unreserved: int) -> None:
        """So many arrivals of a process are due soon and find no free user."""
        self._missing[worker] = unreserved
        missing = self.missing
        there = self._runner.user_count
        self.count = max(self.count, there)
        if not missing or not self.grows or there < self.count:  # some are on their way
            return
        if self.count < self.most:
            self.count = min(self.most, self.count + missing)
            gevent.spawn(self.become, self.count)
        elif not self.exhausted:
            self.exhausted = True
            self._store.add_note(f"all {self.most} users are busy and arrivals wait: --max-users is reached")
