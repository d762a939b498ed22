"""Phase plan: the phases of a run, the requests left in each, and when one is over. It has no clock
and no greenlets.

It lives in one place (the master, or the only process). A request that is granted to a process, or
dealt out as an arrival, is out until its record comes or it is put back. A phase is over when
nothing is left to grant and nothing is out. A warmup whose load goes on is over when its time is
(``go_on``).

In a sweep each stage is a profiling phase of its own, ``profiling 3`` for the third. Between two of
them nothing is sent.
"""

from typing import Final

WARMUP: Final = "warmup"
PROFILING: Final = "profiling"
BETWEEN: Final = "between stages"
OVER: Final = "over"
UNCOUNTED_SHARE: Final = 10**9
"""Share of a process in a phase without a count."""


def profiling_phase(stage: int = 0) -> str:
    """The phase of a stage (from 1), or of a run without stages."""
    return f"{PROFILING} {stage}" if stage else PROFILING


def stage_of_phase(phase: str) -> int:
    """0: the phase belongs to no stage."""
    return int(phase.partition(" ")[2]) if phase.startswith(f"{PROFILING} ") else 0


def label_phase(phase: str) -> str:
    """The phase in records: ``warmup`` or ``profiling``."""
    return WARMUP if phase == WARMUP else PROFILING


class PhasePlan:
    """``warmup`` and ``count`` are the requests of the phases; None: until they are closed.
    ``staged``: the caller begins each stage and ends the plan."""

    def __init__(
        self,
        warmup: int | None,
        count: int | None,
        *,
        warms_up: bool | None = None,
        staged: bool = False,
    ) -> None:
        self._staged = staged
        self.phase = BETWEEN if staged else PROFILING
        if warmup or warms_up:
            self.phase = WARMUP
        self._left: dict[str, int | None] = {WARMUP: warmup, PROFILING: count}
        self._out = {WARMUP: 0, PROFILING: 0}
        self._closed: set[str] = set()

    @property
    def left(self) -> int | None:
        """The requests of this phase that are not granted yet. None: there is no limit."""
        return self._left.get(self.phase)

    def grant(self, senders: int) -> int:
        """The share for one of ``senders`` processes. 0: nothing is left now."""
        if self.phase not in self._left:
            return 0
        left = self._left[self.phase]
        if left is None:
            share = UNCOUNTED_SHARE
        else:
            share = min(left, max(1, left // (4 * senders))) if senders > 1 else left
            self._left[self.phase] = left - share
        self._out[self.phase] += share
        return share

    def deal(self, count: int) -> None:
        """Deal out ``count`` arrivals of this phase to the processes."""
        if self.phase not in self._left:  # it ended in between
            return
        left = self._left[self.phase]
        self._left[self.phase] = None if left is None else max(0, left - count)
        self._out[self.phase] += count

    def put_back(self, phase: str, count: int) -> bool:
        """Take back granted requests that the process will not send. True: that began the next
        phase."""
        left = self._left.get(phase)
        if left is not None and phase not in self._closed:
            self._left[phase] = left + count
        return self.returned(phase, count)

    def close(self) -> bool:
        """Give nothing more away in this phase. True: that began the next one."""
        phase = self.phase
        if phase not in self._left:
            return False
        self._left[phase] = 0
        self._closed.add(phase)
        return self.returned(phase, 0)

    def go_on(self) -> None:
        """Profiling begins, while requests of the warmup are under way."""
        self._left[WARMUP] = 0
        self._closed.add(WARMUP)
        self.phase = PROFILING

    def returned(self, phase: str, count: int) -> bool:
        """Count ``count`` requests of ``phase`` as done, however they ended. True: that began the
        next phase."""
        if phase not in self._left:
            return False
        self._out[phase] -= count
        if phase != self.phase or self._left[phase] != 0 or self._out[phase] > 0:
            return False
        if self._staged:
            self.phase = BETWEEN
        else:
            self.phase = PROFILING if phase == WARMUP else OVER
        return True

    def begin(self, stage: int, count: int | None) -> None:
        """Begin a stage with ``count`` requests. None: until it is closed."""
        self.phase = profiling_phase(stage)
        self._left[self.phase], self._out[self.phase] = count, 0

    def end(self) -> None:
        """Note that there are no more stages."""
        self.phase = OVER
