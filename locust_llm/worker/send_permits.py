"""What one process may still send: a number of requests, or arrivals that are due at set moments;
first come, first served.

It is filled by asking (counts) or by the controller's schedule (arrivals, dealt out a second
ahead). A user takes a permit, makes its request ready, and then waits until the arrival is due: so
nothing that takes time lies between due and send.
"""

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from gevent.event import Event

from locust_llm.gate.gate import GateClosed
from locust_llm.records.phase_plan import PROFILING, WARMUP
from locust_llm.wire.worker_messages import SessionCounts


class Permit(NamedTuple):
    """To send one request."""

    phase: str
    due_at: float | None = None
    """Seconds of this process's monotonic clock; None: as soon as the user likes."""
    slot: int | None = None
    """The user-centric rate: the place of the user that this arrival belongs to."""
    item: bytes | None = None
    """The fixed schedule: the session that begins with it, packed."""
    draws: str = ""
    """Names what its lengths are drawn from: arrivals of one name have the same lengths. Empty:
    they follow from those before it."""


class _Waiter:
    __slots__ = ("later", "permit", "turn", "user")

    def __init__(self, user: int, *, later: bool) -> None:
        self.user = user
        self.later = later
        self.turn = Event()
        self.permit: Permit | None = None


class PermitQueue:
    """``ask`` is called when it runs low; the answer comes through ``grant``. Arrivals come
    unasked, through ``arrive``."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self.phase = PROFILING
        self._ask = ask
        self._left = 0
        self._low = 0
        self._asked = False
        self._closed = False
        self._due: deque[Permit] = deque()
        self._owners: dict[int, int] = {}
        """By slot: the number of its user."""
        self._queue: deque[_Waiter] = deque()

    def unreserved(self, until: float) -> int:
        """Arrivals that are due before ``until`` (monotonic seconds), and that no user is free
        for."""
        return sum(permit.due_at is not None and permit.due_at < until for permit in self._due)

    def list_overdue(self, now: float) -> Iterator[float]:
        """When each arrival was due (monotonic seconds) that has found no user by now."""
        for permit in self._due:
            if permit.due_at is not None and permit.due_at <= now:
                yield permit.due_at

    def take(self, user: int = 0, *, later: bool = False) -> Permit:
        """The next permit, when there is one. ``later``: a session goes on, which comes before new
        ones.

        Raises GateClosed when there will be none.
        """
        if self._closed:
            raise GateClosed
        permit = self._permit(user) or self._wait(user, later)
        if permit.due_at is None and self._left <= self._low:
            self._refill()
        return permit

    def _wait(self, user: int, later: bool) -> Permit:
        waiter = _Waiter(user, later=later)
        (self._queue.appendleft if later else self._queue.append)(waiter)
        self._refill()  # the answer may come at once
        try:
            waiter.turn.wait()
        except BaseException:
            if waiter.permit is not None:
                self.put_back(waiter.permit)
            elif waiter in self._queue:
                self._queue.remove(waiter)
            raise
        if waiter.permit is None:
            raise GateClosed
        return waiter.permit

    def _permit(self, user: int) -> Permit | None:
        for at, permit in enumerate(self._due):
            if self._suits(permit.slot, user):
                del self._due[at]
                return permit
        if self._left > 0:
            self._left -= 1
            return Permit(self.phase)
        return None

    def _suits(self, slot: int | None, user: int) -> bool:
        """A slot belongs to the first user that took an arrival of it, and a user has one slot."""
        if slot is None or self._owners.get(slot) == user:
            return True
        if slot in self._owners or user in self._owners.values():
            return False
        self._owners[slot] = user
        return True

    def dismiss(self, user: int) -> None:
        """This user shall go: it waits no longer for a permit, unless it is within a session."""
        for waiter in list(self._queue):
            if waiter.user == user and not waiter.later:
                self._queue.remove(waiter)
                waiter.turn.set()

    def leave(self, user: int) -> None:
        """This user is gone: its slot is free for another."""
        self._owners = {slot: owner for slot, owner in self._owners.items() if owner != user}
        self._hand_out()

    def grant(self, phase: str, count: int) -> None:
        """``count`` more of ``phase``; what was left of an earlier share is void. 0: ask again
        after AskAgain."""
        self._asked = count == 0
        self._enter(phase)
        self._left += count
        self._low = self._left // 4
        self._hand_out()

    def arrive(self, permits: Iterable[Permit]) -> None:
        """Arrivals, in the order in which they are due."""
        for permit in permits:
            self._enter(permit.phase)
            self._due.append(permit)
        self._hand_out()

    def _enter(self, phase: str) -> None:
        if phase == self.phase:
            return
        if self.phase != WARMUP:  # the last ones of a warmup whose load goes on are still to come
            self._due.clear()
        self.phase, self._left = phase, 0

    def ask_again(self) -> None:
        """Something changed at the plan: whoever waits may ask anew."""
        self._asked = False
        if self._queue:
            self._refill()

    def put_back(self, permit: Permit) -> None:
        """A permit that was taken was not used."""
        if permit.phase != self.phase or self._closed:
            return
        if permit.due_at is None:
            self._left += 1
        else:
            at = bisect_right(self._due, permit.due_at, key=lambda other: other.due_at or 0.0)
            self._due.insert(at, permit)
        self._hand_out()

    def release_all(self, *, arrivals: bool = False) -> int:
        """Give up what is left of the share, and ``arrivals`` if they are over (else they wait for
        users to come); how much that was."""
        left, self._left = self._left, 0
        if arrivals:
            left += len(self._due)
            self._due.clear()
        self._asked = False
        return left

    def release_idle(self) -> int:
        """Others wait for a share: give up what nobody here waits for; how much that was."""
        return 0 if self._queue else self.release_all()

    def unassignable(self, users: int) -> list[Permit]:
        """Give up the arrivals that none of so many users can have: all without users, else those
        of too many slots."""
        slots = {permit.slot for permit in self._due} - {None} - set(self._owners)
        room = users - len(self._owners)
        stay = set(self._owners) | set(sorted(slots)[: max(0, room)])  # type: ignore[type-var]
        released = [
            permit
            for permit in self._due
            if not users or (permit.slot is not None and permit.slot not in stay)
        ]
        self._due = deque(permit for permit in self._due if permit not in released)
        return released

    def close(self, now: float | None = None) -> int:
        """Nothing more is sent; how many arrivals had been due by now (monotonic seconds), and
        found nobody."""
        now = time.monotonic() if now is None else now
        self._closed = True
        while self._queue:
            self._queue.popleft().turn.set()
        missed = sum(permit.due_at is not None and permit.due_at <= now for permit in self._due)
        self._due.clear()
        self._left = 0
        return missed

    def _refill(self) -> None:
        if not self._asked:
            self._asked = True
            self._ask()

    def _hand_out(self) -> None:
        """Permits to those who wait, in their order."""
        for waiter in list(self._queue) if self._left or self._due else ():
            permit = self._permit(waiter.user)
            if permit is None:
                if not self._due:
                    return
                continue  # there are arrivals, but they belong to others
            waiter.permit = permit
            self._queue.remove(waiter)
            waiter.turn.set()


# -- sessions that this process may begin ----------------------------------------------------------


class SessionTicket(NamedTuple):
    """To begin one session."""

    phase: str
    item: bytes | None = None
    """Its turns, packed (formats.Item); None: a synthetic session."""


class SessionQueue:
    """``ask`` is called when it is empty and somebody waits, or has become low; the answer comes
    through ``grant``."""

    def __init__(
        self, ask: Callable[[], None], on_change: Callable[[], object] = lambda: None
    ) -> None:
        """``on_change`` is called when a session was begun, or has ended."""
        self.begun = self.ended = 0
        """Sessions of this phase."""
        self._ask, self._on_change = ask, on_change
        self._asked = False
        self._over = False
        self._low = 0
        self._phase = ""
        self._tickets: deque[SessionTicket] = deque()
        self._more = Event()
        self._waiting = 0

    def take(self) -> SessionTicket:
        """The next session. Raises GateClosed when there is none any more."""
        while not self._tickets:
            if self._over:
                raise GateClosed
            self._more.clear()
            self._refill()
            if not self._tickets and not self._over:  # the answer may come at once
                self._wait()
        ticket = self._tickets.popleft()
        self.begun += 1
        self._on_change()
        if len(self._tickets) <= self._low:
            self._refill()
        return ticket

    def _wait(self) -> None:
        self._waiting += 1
        try:
            self._more.wait()
        finally:
            self._waiting -= 1

    def grant(self, phase: str, items: Iterable[bytes | None], *, over: bool) -> None:
        """More sessions of ``phase``; those of an earlier one are void. ``over``: they are the
        last."""
        self._enter(phase)
        self._tickets.extend(SessionTicket(phase, item) for item in items)
        self._low = len(self._tickets) // 4
        self._over, self._asked = over, False
        self._more.set()

    def release_idle(self, phase: str) -> list[bytes | None]:
        """Others wait for sessions of ``phase``: give up those that nobody here waits for."""
        if phase != self._phase:
            return []
        keep = min(self._waiting, len(self._tickets))
        released = [self._tickets.pop().item for _ in range(len(self._tickets) - keep)]
        self._low = 0
        return released[::-1]

    def ask_again(self, phase: str) -> None:
        """Something changed at the controller; a phase that is new here has sessions of its own."""
        self._enter(phase)
        self._asked = False
        self._more.set()

    def _enter(self, phase: str) -> None:
        if phase != self._phase:
            self._tickets.clear()
            self._phase, self._over = phase, False
            self.begun = self.ended = 0

    def end(self, phase: str) -> None:
        """A session that was taken in ``phase`` has come to its end."""
        if phase == self._phase:
            self.ended += 1
            self._on_change()

    @property
    def counts(self) -> SessionCounts:
        """For the controller."""
        return SessionCounts(self._phase, self.begun, self.ended)

    def close(self) -> None:
        self._over = True
        self._tickets.clear()
        self._more.set()

    def _refill(self) -> None:
        if not self._asked and not self._over:
            self._asked = True
            self._ask()
