"""How many requests may still be sent: a plan of phases, granted in small shares, so that N asked for is N sent.

The plan lives in one place (the master, or the only process). Every sending process holds a budget that it fills by
asking; shares get smaller towards the end, and a process without users never asks, so no share is left over.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from gevent.event import Event

from .gate import GateClosed

WARMUP: Final = "warmup"
PROFILING: Final = "profiling"
OVER: Final = "over"
WITHOUT_END: Final = -1


class Plan:
    """The phases of a run and how many requests each has; None: until the run is stopped. No clock, no greenlets."""

    def __init__(self, warmup: int | None, count: int | None) -> None:
        self.phase = WARMUP if warmup else PROFILING
        self._left: dict[str, int | None] = {WARMUP: warmup or 0, PROFILING: count}
        self._out = {WARMUP: 0, PROFILING: 0}

    def grant(self, senders: int) -> int:
        """A share for one of ``senders`` processes: WITHOUT_END, or at most what is left; 0 when there is nothing now."""
        if self.phase == OVER:
            return 0
        left = self._left[self.phase]
        if left is None:
            return WITHOUT_END
        share = min(left, max(1, left // (4 * senders))) if senders > 1 else left
        self._left[self.phase] = left - share
        self._out[self.phase] += share
        return share

    def put_back(self, phase: str, count: int) -> None:
        """Granted, but never to be sent by that process."""
        if (left := self._left.get(phase)) is not None:
            self._left[phase] = left + count
            self._out[phase] -= count

    def returned(self, phase: str, count: int) -> bool:
        """``count`` requests of ``phase`` are done, however they ended. True if that began the next phase."""
        if self._left.get(phase) is None:
            return False
        self._out[phase] -= count
        if phase != self.phase or self._left[phase] or self._out[phase] > 0:
            return False
        self.phase = PROFILING if phase == WARMUP else OVER
        return True


class Budget:
    """What one process may still send. ``ask`` is called when it runs low; the answer comes through ``grant``."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self.phase = PROFILING
        self._ask = ask
        self._left = 0
        self._low = 0
        self._asked = False
        self._closed = False
        self._queue: deque[Event] = deque()

    def take(self) -> str:
        """The phase of the next request, when there may be one. Raises GateClosed when there will be none."""
        while self._left == 0 and not self._closed:
            self._refill()
            if self._may_go():  # the answer may have come at once
                break
            turn = Event()
            self._queue.append(turn)
            try:
                turn.wait()
            except BaseException:
                if turn in self._queue:
                    self._queue.remove(turn)
                elif self._left:
                    self._wake()  # it was this greenlet's turn: pass it on
                raise
        if self._closed:
            raise GateClosed
        if self._left > 0:
            self._left -= 1
            if self._left <= self._low:
                self._refill()
        return self.phase

    def grant(self, phase: str, count: int) -> None:
        """``count`` more of ``phase``; what was left of an earlier phase is void. 0 says: ask again when told."""
        self._asked = count == 0
        if phase != self.phase:
            self.phase, self._left = phase, 0
        if count == WITHOUT_END or self._left == WITHOUT_END:
            self._left = WITHOUT_END
        else:
            self._left += count
        self._low = self._left // 4
        self._wake()

    def ask_again(self) -> None:
        """Something changed at the plan: whoever waits may ask anew."""
        self._asked = False
        if self._queue:
            self._refill()

    def put_back(self) -> None:
        """A request that was taken was not sent after all."""
        if self._left >= 0:
            self._left += 1
            self._wake()

    def surrender(self) -> int:
        """Give up what is left of the share, where there is nobody to use it."""
        left, self._left = (self._left, 0) if self._left > 0 else (0, self._left)
        self._asked = False
        return left

    def close(self) -> int:
        """Nothing more is sent; how many of the share are left over."""
        self._closed = True
        while self._queue:
            self._queue.popleft().set()
        left, self._left = max(self._left, 0), 0
        return left

    def _may_go(self) -> bool:
        return self._left != 0 or self._closed

    def _refill(self) -> None:
        if not self._asked:
            self._asked = True
            self._ask()

    def _wake(self) -> None:
        for _ in range(len(self._queue) if self._left < 0 else min(self._left, len(self._queue))):
            self._queue.popleft().set()
