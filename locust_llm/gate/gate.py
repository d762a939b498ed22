"""The prefill gate: how many requests may be waiting for their first token; first in, first out.

The slots are the permits of a gevent BoundedSemaphore with a high ceiling. The permits beyond the
gate's share are held back: ``ceiling - share`` of them, fewer as the share rises. In front of it is
our own queue, because a bare semaphore lets a newcomer of the same loop turn overtake those who
wait. Lowering the share is a debt: slots that come back pay it before any waiter gets one, and
nothing that runs is ended. The bound of the semaphore catches a slot given back twice.

The limit is over all processes, and each has a gate with a share of it, as long as the controller
of the run answers (gate/shares.py). One process alone has all of it.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from gevent.event import Event
from gevent.lock import BoundedSemaphore

from .request_seconds import RequestSeconds

CEILING: Final = 1 << 16
"""The permits of the semaphore. No share is above this number."""


class GateClosed(Exception):
    """The run is ending: nothing new is admitted."""


class Slot:
    """The right to be in prefill. ``release`` may be called by whoever comes first; only the first
    call counts."""

    __slots__ = ("_gate", "limit")

    def __init__(self, gate: "Gate | None", limit: int | None) -> None:
        self._gate = gate
        self.limit = limit
        """The limit over all processes when the slot was taken."""

    def release(self) -> bool:
        """Give the slot back. False: it already was. It never blocks, as the event loop itself
        calls it."""
        gate, self._gate = self._gate, None
        if gate is None:
            return False
        gate._give_back()
        return True


class _Waiter:
    __slots__ = ("asked_at", "slot", "turn")

    def __init__(self, asked_at: float) -> None:
        self.asked_at = asked_at
        self.turn = Event()
        self.slot: Slot | None = None


class Gate:
    """Shared by the users of a process. ``limit`` None: no gate, everything is admitted at once."""

    def __init__(
        self,
        limit: int | None = None,
        *,
        lapses_at: float = math.inf,
        on_change: Callable[[], object] | None = None,
        on_enter: Callable[[], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``on_change`` is called in the event loop when somebody came, was admitted or has
        finished; it must not block. Whoever is admitted calls ``on_enter`` just before it goes
        on."""
        self.limit: int | None = None
        """The limit over all processes, as records have it."""
        self.share: int | None = None
        """The slots of this process. None: there is no gate."""
        self.used = 0
        self.admitted = 0
        self.lapses_at = lapses_at
        """When the lease ends (seconds of the clock). Past it nothing is admitted until the lease
        is renewed and the share is set."""
        self._on_change, self._on_enter = on_change, on_enter
        self._clock = clock
        self._held_back = 0
        self._semaphore = BoundedSemaphore(CEILING)
        self._queue: deque[_Waiter] = deque()
        self._closed = False
        self.used_seconds = RequestSeconds(clock)
        self.waiting_seconds = RequestSeconds(clock)
        self.set_limit(limit)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def crowded(self) -> bool:
        """More requests wait than there are slots: a newcomer is behind all that could be admitted
        at once."""
        return self.share is not None and len(self._queue) > self.share

    @property
    def waited_s(self) -> float:
        """The seconds for which the first in the queue has waited; 0 with an empty queue."""
        return self._clock() - self._queue[0].asked_at if self._queue else 0.0

    @property
    def lapsed(self) -> bool:
        return self._clock() >= self.lapses_at

    def enter(self, timeout: float | None = None) -> Slot:
        """Wait for a slot, in order of arrival. Raises GateClosed. A greenlet killed here leaves
        nothing behind."""
        if self._closed:
            raise GateClosed
        self._lapse()
        if not self._queue and self._semaphore.acquire(blocking=False):
            self.used += 1
            return self._entered(Slot(self, self.limit))
        waiter = _Waiter(self._clock())
        self._queue.append(waiter)
        self._changed()
        while True:
            slot = self._wait(waiter, timeout)
            if not self.lapsed:
                return self._entered(slot)
            waiter.turn.clear()  # this process slept between the hand-over and its turn
            waiter.slot = None
            if not self._closed:
                self._queue.appendleft(waiter)
            slot.release()

    def _wait(self, waiter: _Waiter, timeout: float | None) -> Slot:
        try:
            if not self._closed:
                waiter.turn.wait(timeout)
        except BaseException:
            if waiter.slot is not None:  # killed between the hand-over and its turn
                waiter.slot.release()
            else:
                self._leave(waiter)
            raise
        if waiter.slot is None:
            self._leave(waiter)
            raise GateClosed
        return waiter.slot

    def _entered(self, slot: Slot) -> Slot:
        self.admitted += 1
        self._changed()
        if self._on_enter is not None:
            self._on_enter()
        return slot

    def set_limit(self, limit: int | None) -> None:
        """Set the limit of one process alone, whose share is the whole limit."""
        self.limit = limit
        self.set_share(limit)

    def set_share(self, share: int | None) -> None:
        """Set the share to ``share`` slots; 0 admits nobody. An increase takes effect at once, a
        decrease as slots come back."""
        if share is not None and not 0 <= share <= CEILING:
            raise ValueError(f"a share from 0 to {CEILING}, not {share}")
        self.share = share
        self._settle()

    def close(self) -> None:
        """Turn away all that wait and all newcomers. What was admitted goes on."""
        self._closed = True
        while self._queue:
            self._queue.popleft().turn.set()
        self._count_seconds()

    def _settle(self) -> None:
        """Hold back the free permits beyond the share, then admit as many waiters as possible."""
        target = 0 if self.share is None else CEILING - self.share
        # at once, as thousands of calls would hold the event loop; nobody waits for the semaphore
        taken = min(target - self._held_back, self._semaphore.counter)
        self._semaphore.counter -= taken
        self._held_back += taken
        while self._queue and self._semaphore.acquire(blocking=False):
            self.used += 1
            self._admit()
        self._count_seconds()

    def _admit(self) -> None:
        """Give a permit that is already taken to the oldest waiter."""
        waiter = self._queue.popleft()
        waiter.slot = Slot(self, self.limit)
        waiter.turn.set()

    def _give_back(self) -> None:
        """Take a slot back: it goes to the debt first, then to the oldest waiter, else to the
        semaphore."""
        self._lapse()
        if self.share is not None and self._held_back < CEILING - self.share:
            self._held_back += 1
            self.used -= 1
        elif self._queue:
            self._admit()  # handed over: used stays, and nobody can slip in between
        else:
            self.used -= 1
            self._semaphore.release()
        self._changed()

    def _leave(self, waiter: _Waiter) -> None:
        if waiter in self._queue:
            self._queue.remove(waiter)
            self._changed()

    def _lapse(self) -> None:
        if self.share != 0 and self.lapsed:
            self.set_share(0)

    def _count_seconds(self) -> None:
        self.used_seconds.become(self.used)
        self.waiting_seconds.become(len(self._queue))

    def _changed(self) -> None:
        self._count_seconds()
        if self._on_change is not None:
            self._on_change()
