"""User count: how many users there are. An open loop without a number has as many as the arrivals
need."""

import logging
from typing import Final

from .run_context import RunContext

SPAWNING_S: Final = 3.0
"""A phase waits at most so long for its first users."""


_STEPS: Final = ("Ramping to ", "All users spawned", "Your selected spawn rate")


def _is_no_step(line: logging.LogRecord) -> bool:
    """In an open loop Locust would write up to twelve lines a second about users that arrivals
    need."""
    return not line.getMessage().startswith(_STEPS)


class UserPool:
    def __init__(self, context: RunContext) -> None:
        settings = context.settings
        self._max_users = settings.max_users
        self.grows = not settings.users and settings.open_loop
        """No number of users was given."""
        environment = getattr(context.runner, "environment", None)
        self.shaped = getattr(environment, "shape_class", None) is not None
        """A load shape has their number."""
        of_locust = logging.getLogger("locust.runners")
        (of_locust.addFilter if self.grows else of_locust.removeFilter)(_is_no_step)
        self.count = settings.users or 0
        """The present or requested number. Only ``become`` lowers it."""
        self.exhausted = False
        """The maximum is reached, and arrivals wait."""
        self._runner, self._store, self._time, self._spawn = (
            context.runner,
            context.store,
            context.time,
            context.spawn,
        )
        self._missing: dict[str, int] = {}
        self._sum_missing = self._updates = 0
        """The sum of ``_missing``; the updates since Locust's users were counted."""

    @property
    def missing(self) -> int:
        """Arrivals that are due about now, and find no free user."""
        return self._sum_missing

    def become(self, count: int) -> None:
        """Change the number, as the web page does, while the run goes on. Returns when they are
        there, or after SPAWNING_S."""
        self.count = count
        until = self._time.monotonic() + SPAWNING_S
        # else Locust would take it for another run
        while self._runner.state not in ("spawning", "running"):
            if self._time.monotonic() >= until:
                return
            self._time.sleep(0.01)
        if self._runner.target_user_count != count:
            self._runner.start(count, float(max(count, 100)))
        while self._runner.user_count != count and self._time.monotonic() < until:
            self._time.sleep(0.02)

    def wait(self) -> None:
        """Wait until they are there, or SPAWNING_S are over."""
        until = self._time.monotonic() + SPAWNING_S
        while self._runner.user_count < max(1, self.count) and self._time.monotonic() < until:
            self._time.sleep(0.02)

    def update(self, worker: str, unreserved: int) -> None:
        """Note how many arrivals of a process are due soon and find no free user."""
        self._sum_missing += unreserved - self._missing.get(worker, 0)
        self._missing[worker] = unreserved
        missing = self.missing
        self._updates += 1
        if not missing and self._updates < len(self._missing):
            return  # Locust would count the users of all workers at each status of one
        self._updates = 0
        there = self._runner.user_count
        self.count = max(self.count, there)
        if not missing or not self.grows or there < self.count:  # some are on their way
            return
        if self.count < self._max_users:
            self.count = min(self._max_users, self.count + missing)
            self._spawn(self.become, self.count)
        elif not self.exhausted:
            self.exhausted = True
            busy = f"all {self._max_users} users are busy and arrivals wait"
            self._store.add_note(
                f"WARNING: {busy}. If the server keeps up with the load, raise --max-users. More "
                "users do not help an overloaded server"
            )
