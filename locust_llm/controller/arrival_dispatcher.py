"""Arrival dispatcher: deals the arrivals and sessions of a phase out to the processes that send, in
the master or the only process."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

import gevent
import msgspec

from locust_llm.controller.schedule import DueArrival
from locust_llm.records.control_message import ControlMessage
from locust_llm.wire.worker_messages import (
    Arrival,
    Arrivals,
    ReleaseSessions,
    SessionCounts,
    Sessions,
)
from locust_llm.workload.dataset_formats import DatasetSession

KEPT_S: Final = 3.0
"""Arrivals that were due are known for so long. A run may be stopped so long before its end
begins."""
AHEAD_S: Final = 1.0
"""Arrivals are dealt out so long before they are due, as messages take time, and requests are
prepared."""
TICK_S: Final = 0.1
"""The interval of checks of the schedule."""
MAX_SESSIONS: Final = 64
"""The most sessions in one answer."""

Packed = bytes | None
"""A packed session for a process. None: a synthetic one."""


class Dispatcher:
    """``users()`` gives the present processes with their numbers of users. ``on_deal(worker,
    count)`` is called with each number of requests that goes to a process."""

    def __init__(
        self,
        send: Callable[[ControlMessage, str], object],
        users: Callable[[], Mapping[str, int]],
        on_deal: Callable[[str, int], object],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = gevent.sleep,
    ) -> None:
        self._send, self._users, self._on_deal, self._clock, self._sleep = (
            send,
            users,
            on_deal,
            clock,
            sleep,
        )
        self._credits: dict[str, float] = {}
        self._owners: dict[int, str] = {}
        """The process of each slot's user."""
        self._began = clock()
        self._phase, self._started_at = "", 0.0
        self._dealt = 0
        self._through = self._stopped = False
        self._lasts_s: float | None = None
        self._ahead: deque[float] = deque()

    def deal_out(
        self,
        dues: Iterator[DueArrival],
        phase: str,
        now: float,
        lead_s: float,
        lasts_s: float | None = None,
    ) -> None:
        """Deal out until there are no more arrivals, or it is stopped.

        ``now`` is in Unix seconds; the zero of the schedule is ``lead_s`` later. ``lasts_s`` is its
        length, where it does not end with its last arrival.
        """
        self._began = self._clock() + lead_s
        self._dealt = 0
        self._through = False
        self._stopped = False
        self._phase = phase
        self._started_at = now + lead_s
        self._lasts_s = lasts_s
        self._ahead.clear()
        self._owners.clear()
        self._credits.clear()  # both blocks of a pair go to the same processes
        following = next(dues, None)
        while following is not None and not self._stopped:
            elapsed_s = self._clock() - self._began
            batch = []
            while following is not None and following.at_s <= elapsed_s + AHEAD_S:
                batch.append(following)
                following = next(dues, None)
            if batch:
                self._ahead.extend(due.at_s for due in batch)
                self._dealt += len(batch)
                while self._ahead[0] < self._ahead[-1] - AHEAD_S - KEPT_S:
                    self._ahead.popleft()
                while not (self._stopped or self._deal(batch)):
                    self._sleep(TICK_S)
            if following is not None:
                self._sleep(TICK_S)
        self._through = not self._stopped

    def stop(self) -> None:
        """Deal out nothing more of this schedule."""
        self._stopped = True

    def due(self, ago_s: float = 0.0) -> tuple[int, float]:
        """(arrivals that have been due by now, the seconds over which they were spread). The
        seconds end now, or a mean gap after the last arrival where the schedule is over.
        ``ago_s``: the same at a moment before, of the last ``KEPT_S``."""
        elapsed_s = max(0.0, self._clock() - self._began - ago_s)
        count = self._dealt - sum(at_s > elapsed_s for at_s in self._ahead)
        if self._through and self._lasts_s is not None:
            elapsed_s = self._lasts_s
        elif self._through and count == self._dealt > 1:
            elapsed_s = self._ahead[-1] * count / (count - 1)
        return count, elapsed_s

    def put_back(self, phase: str, back: Iterable[Arrival]) -> int:
        """Give arrivals without users to other processes. Returns the number of requests."""
        if phase != self._phase:
            return 0
        dues = [
            DueArrival(
                unix_s - self._started_at,
                slot,
                None if item is None else msgspec.msgpack.decode(item, type=DatasetSession),
                draws,
            )
            for unix_s, slot, item, draws in back
        ]
        return sum(map(_requests, dues)) if self._deal(dues) else 0

    def _deal(self, batch: list[DueArrival]) -> bool:
        """Send a batch. False: there is nobody to send it to."""
        users = self._users()
        if not users:
            return False
        hands: dict[str, list[DueArrival]] = {}
        for due in batch:
            worker = self._next(users) if due.slot is None else self._owner(due.slot, users)
            hands.setdefault(worker, []).append(due)
        for worker, hand in hands.items():
            self._on_deal(worker, sum(map(_requests, hand)))
            packed = [
                (
                    due.at_s,
                    due.slot,
                    None if due.item is None else msgspec.msgpack.encode(due.item),
                    due.draws,
                )
                for due in hand
            ]
            self._send(Arrivals(self._phase, self._started_at, packed), worker)
        return True

    def _next(self, users: Mapping[str, int]) -> str:
        """The next process, as often as it has users: smooth weighted round robin."""
        weights = users if any(users.values()) else dict.fromkeys(users, 1)
        self._credits = {
            worker: self._credits.get(worker, 0.0) + weight for worker, weight in weights.items()
        }
        worker = max(self._credits, key=lambda worker: self._credits[worker])
        self._credits[worker] -= sum(weights.values())
        return worker

    def _owner(self, slot: int, users: Mapping[str, int]) -> str:
        """The process of a slot. A slot belongs to one user, so to one process, as long as that has
        enough users."""
        owner = self._owners.get(slot)
        room = dict(users)
        for other, worker in self._owners.items():
            if worker in room and other != slot:
                room[worker] -= 1
        if owner not in room or room[owner] < 1:
            most = max(room, key=lambda worker: room[worker])
            if owner not in room or room[most] > 0:
                owner = most
        self._owners[slot] = owner
        return owner


def _requests(due: DueArrival) -> int:
    return 1 if due.item is None else len(due.item.turns)


class SessionDispatcher:
    """Deals each session to one of the processes that ask. When there are no more, sessions that
    one process has not begun go to the ones that still ask. ``on_over`` is called when the last one
    has ended."""

    def __init__(
        self,
        send: Callable[[ControlMessage, str], object],
        senders: Callable[[], int],
        on_over: Callable[[], object],
        add_note: Callable[[str], None],
    ) -> None:
        self.out = 0
        """Sessions that are dealt out and have not ended."""
        self.over = False
        """There are no more sessions to deal."""
        self.phase = ""
        """The phase of the sessions."""
        self._send, self._senders, self._on_over, self._add_note = send, senders, on_over, add_note
        self.begin("", None)

    def begin(self, phase: str, items: Iterator[DatasetSession | None] | None) -> None:
        """Begin a phase. ``items``: None means synthetic sessions without end."""
        self.phase, self._items = phase, items
        self._back: deque[Packed] = deque()
        self._hands: dict[str, deque[Packed]] = {}
        """The sessions that each process has and has not begun, as far as is known."""
        self._begun: dict[str, tuple[int, int]] = {}
        """(begun, ended) of each process, as it reported."""
        self._asking: list[str] = []
        self._recalled: set[str] = set()
        self.out, self.over = 0, False

    def ask(self, worker: str) -> None:
        if worker not in self._asking:
            self._asking.append(worker)
        self._serve()

    def update(self, worker: str, counts: SessionCounts) -> None:
        """Take a process's report on its sessions."""
        if counts.phase != self.phase:
            return
        begun, ended = counts.begun, counts.ended
        before, ended_before = self._begun.get(worker, (0, 0))
        hand = self._hands.get(worker, deque())
        for _ in range(min(begun - before, len(hand))):
            hand.popleft()
        self._begun[worker] = begun, ended
        self.out -= ended - ended_before
        self._look()

    def put_back(self, worker: str, items: Iterable[Packed]) -> None:
        """Take the sessions that a process has not begun, and was asked for."""
        returned = list(items)
        self._recalled.discard(worker)
        self._hands.pop(worker, None)
        self._back.extend(returned)
        self.out -= len(returned)
        self._serve()

    def lost(self, worker: str, phase: str, sessions: tuple[int, int] | None) -> int:
        """A process is lost: the sessions that it had not begun go to others. Returns how many are
        lost with it.

        ``sessions``: (begun, ended) in ``phase``; None: not known.
        """
        reported, ended_before = self._begun.pop(worker, (0, 0))
        hand = list(self._hands.pop(worker, ()))
        known = sessions is not None and phase == self.phase
        begun, ended = (
            sessions if sessions is not None and known else (reported + len(hand), ended_before)
        )
        unbegun = hand[max(0, begun - reported) :]
        gone = len(hand) - len(unbegun) + reported - ended
        self._asking = [other for other in self._asking if other != worker]
        self._recalled.discard(worker)
        self._back.extend(unbegun)
        self.out -= gone + len(unbegun) + ended - ended_before
        self._serve()
        self._look()
        return gone

    def _serve(self) -> None:
        while self._asking:
            worker = self._asking[0]
            if packed := self._more():
                self._asking.pop(0)
                self._hands.setdefault(worker, deque()).extend(packed)
                self.out += len(packed)
                self._send(Sessions(self.phase, packed), worker)
            elif not self._recall():
                self._asking.pop(0)
                self.over = True
                self._send(Sessions(self.phase, [], last=True), worker)
                self._look()
            else:
                return

    def _more(self) -> list[Packed]:
        senders = max(1, self._senders())
        count = max(1, MAX_SESSIONS // senders)
        if self._back:
            return [self._back.popleft() for _ in range(max(1, len(self._back) // senders))]
        if self._items is None:
            return [None] * count
        try:
            return [
                None if item is None else msgspec.msgpack.encode(item)
                for item in islice(self._items, count)
            ]
        except (ValueError, OSError) as error:  # a row far behind those that were looked at before
            self._add_note(f"WARNING: the dataset ends early: {error}")
            self._items = iter(())
            return []

    def _recall(self) -> bool:
        """Ask the processes that may have sessions to spare. False: none has."""
        for worker, hand in self._hands.items():
            if hand and worker not in self._asking and worker not in self._recalled:
                self._recalled.add(worker)
                self._send(ReleaseSessions(self.phase), worker)
        return bool(self._recalled)

    def _look(self) -> None:
        if self.over and self.out <= 0:
            self._on_over()
