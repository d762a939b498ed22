"""When each token comes out: the step loop, on any clock that can call back."""

from __future__ import annotations

import heapq
import select
import selectors
from collections.abc import Callable
from random import Random
from typing import Protocol

from locust_llm.simulator.cost import Cost, step_s
from locust_llm.simulator.scheduler import Scheduler, Sequence, Status

MAX_LATE_S = 0.1


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """What is used of an asyncio loop (real time); `VirtualClock` is the other one."""

    def time(self) -> float: ...
    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer: ...


class Engine(Protocol):
    def add(self, sequence: Sequence, on_token: Callable[[], None]) -> None:
        """Start a sequence. on_token is called at each output token, the last time with the sequence finished."""

    def abort(self, sequence: Sequence) -> None:
        """Drop a sequence: its blocks are free at once and on_token is not called again."""

    def state(self) -> dict[str, float]:
        """Gauges for people and tests."""


class BatchEngine:
    """Continuous batching: every sequence's tokens come at the ends of the steps they share.

    The end of a step is computed from the end of the one before, not from the clock, so a busy engine does not drift.
    Beyond MAX_LATE_S behind (a stopped process, a host too slow for the load) the excess is given up and counted in
    lost_s: answering arrivals in steps long past would be faster than light.
    """

    def __init__(self, scheduler: Scheduler, cost: Cost, clock: Clock, *, time_scale: float = 1.0) -> None:
        self.scheduler, self.cost, self.clock, self.time_scale = scheduler, cost, clock, time_scale
        self.num_steps = 0
        self.max_late_s = 0.0
        self.lost_s = 0.0
        self._on_token: dict[Sequence, Callable[[], None]] = {}
        self._batch: dict[Sequence, int] = {}
        self._due = 0.0
        self._idle = True

    def add(self, sequence: Sequence, on_token: Callable[[], None]) -> None:
        self.scheduler.add(sequence)
        self._on_token[sequence] = on_token
        if self._idle:
            self._idle = False
            self._due = self.clock.time()
            # Through the clock, not at once: what arrives in the same turn of the loop shares the first step.
            self.clock.call_at(self._due, self._begin_step)

    def abort(self, sequence: Sequence) -> None:
        self.scheduler.finish(sequence)
        self._on_token.pop(sequence, None)

    def _begin_step(self) -> None:
        self._batch = self.scheduler.schedule()
        if not self._batch:
            self._idle = True
            return
        segments = ((sequence.num_computed_tokens, new) for sequence, new in self._batch.items())
        self._due += self.time_scale * step_s(self.cost, segments)
        self.clock.call_at(self._due, self._end_step)

    def _end_step(self) -> None:
        self.num_steps += 1
        late = self.clock.time() - self._due
        self.max_late_s = max(self.max_late_s, late)
        if late > MAX_LATE_S:
            self._due += late - MAX_LATE_S
            self.lost_s += late - MAX_LATE_S
        for sequence in self.scheduler.postprocess(self._batch):
            on_token = self._on_token.pop(sequence) if sequence.is_finished else self._on_token[sequence]
            on_token()
        self._begin_step()

    def state(self) -> dict[str, float]:
        scheduler = self.scheduler
        return {
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "used_blocks": scheduler.num_blocks - scheduler.num_free_blocks,
            "preemptions": scheduler.num_preemptions,
            "steps": self.num_steps,
            "max_late_s": self.max_late_s,
            "lost_s": self.lost_s,
        }


class FixedEngine:
    """No batching: a request's first token after ttft_s, one more each itl_s, whatever else is going on.

    With jitter_s each of these is drawn evenly from plus or minus jitter_s around it (never below 0).
    """

    def __init__(self, ttft_s: float, itl_s: float, clock: Clock, *, jitter_s: float = 0.0, seed: int = 0) -> None:
        self.ttft_s, self.itl_s, self.jitter_s, self.clock = ttft_s, itl_s, jitter_s, clock
        self.random = Random(seed)
        self.max_late_s = 0.0
        self._drips: dict[Sequence, _Drip] = {}

    def add(self, sequence: Sequence, on_token: Callable[[], None]) -> None:
        sequence.status = Status.RUNNING
        drip = self._drips[sequence] = _Drip(self, sequence, on_token)
        drip.wait(self.ttft_s)

    def abort(self, sequence: Sequence) -> None:
        drip = self._drips.pop(sequence, None)
        if drip:
            sequence.status = Status.FINISHED
            drip.timer.cancel()

    def finish(self, sequence: Sequence) -> None:
        sequence.status = Status.FINISHED
        del self._drips[sequence]

    def state(self) -> dict[str, float]:
        return {"running": len(self._drips), "waiting": 0, "max_late_s": self.max_late_s}


class _Drip:
    """One sequence of a `FixedEngine`: each token is due a latency after the one before was due."""

    __slots__ = ("due", "engine", "on_token", "sequence", "timer")
    timer: Timer

    def __init__(self, engine: FixedEngine, sequence: Sequence, on_token: Callable[[], None]) -> None:
        self.engine, self.sequence, self.on_token = engine, sequence, on_token
        self.due = engine.clock.time()

    def wait(self, latency_s: float) -> None:
        engine = self.engine
        if engine.jitter_s:
            latency_s = max(0.0, latency_s + engine.random.uniform(-engine.jitter_s, engine.jitter_s))
        self.due += latency_s
        self.timer = engine.clock.call_at(self.due, self.emit)

    def emit(self) -> None:
        engine, sequence = self.engine, self.sequence
        engine.max_late_s = max(engine.max_late_s, engine.clock.time() - self.due)
        sequence.num_output_tokens += 1
        if sequence.num_output_tokens == sequence.max_tokens:
            engine.finish(sequence)
        else:
            self.wait(engine.itl_s)
        self.on_token()


class FineSelector(selectors.EpollSelector):
    """For an asyncio loop whose timers are exact to about 0.1 ms: epoll itself rounds up to whole milliseconds, a
    seventh of a decode step. An epoll descriptor can be waited for like any other, and `select.select` takes fractions.
    """

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            select.select([self], [], [], timeout)
        return super().select(0)


class VirtualClock:
    """Time that jumps from one callback to the next: exact, and as fast as the machine. Equal times run in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self._count = 0
        self._timers: list[tuple[float, int, _VirtualTimer]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer:
        timer = _VirtualTimer(callback)
        heapq.heappush(self._timers, (when, self._count, timer))
        self._count += 1
        return timer

    def run(self) -> None:
        """Until nothing is left to happen."""
        while self._timers:
            when, _, timer = heapq.heappop(self._timers)
            if timer.callback:
                self.now = max(self.now, when)
                timer.callback()


class _VirtualTimer:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None
