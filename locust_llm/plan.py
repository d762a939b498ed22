"""The plan of a run: its phases, how much may still be sent in each, and when one is over. No clock, no greenlets.

It lives in one place (the master, or the only process). What is granted to a process, or dealt out to it as arrivals,
is out until it comes back as a record or is put back; a phase is over when nothing more is to be granted and nothing is
out.
"""

from typing import Final

WARMUP: Final = "warmup"
PROFILING: Final = "profiling"
OVER: Final = "over"
PLENTY: Final = 10**9
"""A share of a phase that has no count."""


class Plan:
    """``warmup``, ``count``: how many requests the phases have; None: until they are closed."""

    def __init__(self, warmup: int | None, count: int | None, *, warms_up: bool | None = None) -> None:
        self.phase = WARMUP if warmup or warms_up else PROFILING
        self._left: dict[str, int | None] = {WARMUP: warmup, PROFILING: count}
        self._out = {WARMUP: 0, PROFILING: 0}
        self._closed: set[str] = set()

    @property
    def left(self) -> int | None:
        """How many requests of this phase are not given away yet; None: no end of them."""
        return self._left.get(self.phase)

    def grant(self, senders: int) -> int:
        """A share for one of ``senders`` processes; 0 when there is nothing now."""
        if self.phase == OVER:
            return 0
        left = self._left[self.phase]
        if left is None:
            share = PLENTY
        else:
            share = min(left, max(1, left // (4 * senders))) if senders > 1 else left
            self._left[self.phase] = left - share
        self._out[self.phase] += share
        return share

    def deal(self, count: int) -> None:
        """``count`` arrivals of this phase go to the processes."""
        left = self._left[self.phase]
        self._left[self.phase] = None if left is None else max(0, left - count)
        self._out[self.phase] += count

    def put_back(self, phase: str, count: int) -> bool:
        """Granted, but not to be sent by that process. True if that began the next phase."""
        left = self._left.get(phase)
        if left is not None and phase not in self._closed:
            self._left[phase] = left + count
        return self.returned(phase, count)

    def close(self) -> bool:
        """Nothing more is given away in this phase. True if that began the next one."""
        phase = self.phase
        if phase == OVER:
            return False
        self._left[phase] = 0
        self._closed.add(phase)
        return self.returned(phase, 0)

    def returned(self, phase: str, count: int) -> bool:
        """``count`` requests of ``phase`` are done, however they ended. True if that began the next phase."""
        if phase not in self._left:
            return False
        self._out[phase] -= count
        if phase != self.phase or self._left[phase] != 0 or self._out[phase] > 0:
            return False
        self.phase = PROFILING if phase == WARMUP else OVER
        return True
