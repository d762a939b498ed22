"""Leases: runs a prefill gate with its lease on a clock that the test sets."""

import gevent
from gevent.event import Event

from locust_llm.gate.gate import Slot
from locust_llm.gate.shares import GateLease


def turn() -> None:
    """Lets every ready greenlet run."""
    for _ in range(4):
        gevent.sleep(0)


class LeasedGate:
    """Is the gate of one worker, with users who enter it."""

    def __init__(self, users: int = 0) -> None:
        self.now = 50.0
        self.due = Event()
        self.lease = GateLease(self.due, clock=lambda: self.now)
        self.gate = self.lease.gate
        self.slots: list[Slot] = []
        self.users = [gevent.spawn(self._user) for _ in range(users)]
        turn()
        self.report_due()

    def _user(self) -> None:
        self.slots.append(self.gate.enter())

    def come(self) -> None:
        self.users.append(gevent.spawn(self._user))
        turn()

    def go(self) -> None:
        self.slots.pop(0).release()
        turn()

    def report_due(self) -> bool:
        """Makes a report if one is due since the last call, and returns whether it was."""
        was = self.due.is_set()
        self.due.clear()
        self.lease.status()
        return was

    def close(self) -> None:
        gevent.killall(self.users)
