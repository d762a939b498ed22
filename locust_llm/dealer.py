"""The dealer: deals a phase's arrivals and sessions out to the processes that send; in the master or the only process."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

import gevent
import msgspec

from .formats import Item
from .timetable import Due

AHEAD_S: Final = 1.0
"""How long before they are due arrivals are dealt out: messages take time, and requests are made ready."""
TICK_S: Final = 0.1
MOST_SESSIONS: Final = 64
"""In one answer."""


class Dealer:
    """``tell(kind, worker, **data)`` sends a message; ``workers()`` are those that there are now."""

    def __init__(
        self,
        tell: Callable[..., None],
        workers: Callable[[], list[str]],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = gevent.sleep,
    ) -> None:
        self._tell, self._workers, self._clock, self._sleep = tell, workers, clock, sleep
        self._turn = 0
        self._began = clock()
        self._dealt = 0
        self._through = False
        self._lasts_s: float | None = None
        self._ahead: deque[float] = deque()
        self.sessions_out = 0

    def deal_out(
        self,
        dues: Iterator[Due],
        phase: str,
        now: float,
        lead_s: float,
        on_deal: Callable[[int], object],
        lasts_s: float | None = None,
    ) -> None:
        """Until there are no more. ``now``: in Unix seconds; the zero of the schedule is ``lead_s`` later. ``on_deal`` hears
        how many requests go out. ``lasts_s``: when it ends, where it does not end with its last arrival."""
        self._began, self._dealt, self._through = self._clock() + lead_s, 0, False
        self._lasts_s = lasts_s
        self._ahead.clear()
        following = next(dues, None)
        while following is not None:
            elapsed_s = self._clock() - self._began
            batch = []
            while following is not None and following.at_s <= elapsed_s + AHEAD_S:
                batch.append(following)
                following = next(dues, None)
            if batch:
                on_deal(sum(1 if due.item is None else len(due.item.turns) for due in batch))
                self._send(batch, phase, now + lead_s)
            if following is not None:
                self._sleep(TICK_S)
        self._through = True

    def due(self) -> tuple[int, float]:
        """How many arrivals of this schedule have been due by now, and over how many seconds they were spread: until now,
        or a mean gap beyond the last one where the schedule is through."""
        elapsed_s = self._clock() - self._began
        count = self._dealt - sum(at_s > elapsed_s for at_s in self._ahead)
        if self._through and self._lasts_s is not None:
            elapsed_s = self._lasts_s
        elif self._through and count == self._dealt > 1:
            elapsed_s = self._ahead[-1] * count / (count - 1)
        return count, elapsed_s

    def _send(self, batch: list[Due], phase: str, started_at: float) -> None:
        workers = self._workers()
        if not workers:
            return
        hands: dict[str, list[Due]] = {}
        for due in batch:
            if due.slot is None:
                self._turn += 1
            hands.setdefault(workers[(self._turn if due.slot is None else due.slot) % len(workers)], []).append(due)
        for worker, hand in hands.items():
            self._tell(
                "llm_arrivals",
                worker,
                phase=phase,
                started_at=started_at,
                due=[
                    (due.at_s, due.slot, None if due.item is None else msgspec.msgpack.encode(due.item)) for due in hand
                ],
            )
        self._dealt += len(batch)
        self._ahead.extend(due.at_s for due in batch)
        oldest = self._ahead[-1] - 2 * AHEAD_S
        while self._ahead[0] < oldest:
            self._ahead.popleft()

    def sessions(self, worker: str, items: Iterator[Item | None], phase: str) -> bool:
        """An answer to a process that asks for sessions; False when these are the last."""
        packed: list[Any] = [
            None if item is None else msgspec.msgpack.encode(item)
            for item in islice(items, max(1, MOST_SESSIONS // max(1, len(self._workers()))))
        ]
        self.sessions_out += len(packed)
        self._tell("llm_sessions", worker, phase=phase, items=packed, over=not packed)
        return bool(packed)
