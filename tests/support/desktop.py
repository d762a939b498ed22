"""Processes with leases, on a clock of their own: what a control and its workers say to each other about the gate."""

import gevent
from gevent.event import Event

from locust_llm.client.gate import Slot
from locust_llm.run.gate_shares import Lease


def turn() -> None:
    """Let every greenlet that can run do so."""
    for _ in range(4):
        gevent.sleep(0)


# -- one process ------------------------------------------------------------------------------------------------------


class Desktop:
    """A gate with its lease, on a clock of its own."""

    def __init__(self, users: int = 0) -> None:
        self.now = 50.0
        self.stir = Event()
        self.lease = Lease(self.stir, clock=lambda: self.now)
        self.gate = self.lease.gate
        self.slots: list[Slot] = []
        self.users = [gevent.spawn(self._user) for _ in range(users)]
        turn()
        self.stirred()

    def _user(self) -> None:
        self.slots.append(self.gate.enter())

    def come(self) -> None:
        self.users.append(gevent.spawn(self._user))
        turn()

    def go(self) -> None:
        self.slots.pop(0).release()
        turn()

    def stirred(self) -> bool:
        """Since it was last asked; and what there is to tell is told."""
        was = self.stir.is_set()
        self.stir.clear()
        self.lease.status()
        return was

    def close(self) -> None:
        gevent.killall(self.users)
