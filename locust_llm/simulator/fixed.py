"""Fixed latency: no batch, no GPU, every request as if it were alone."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from locust_llm.simulator.clock import Clock, Timer
from locust_llm.simulator.sequence import Sequence, Status


class FixedEngine:
    """A request's first token after ttft_s, one more each itl_s, whatever else is going on.

    With jitter_s each of these is drawn evenly from plus or minus jitter_s around it (never below 0).
    """

    def __init__(self, ttft_s: float, itl_s: float, clock: Clock, *, jitter_s: float = 0.0, seed: int = 0) -> None:
        self.ttft_s, self.itl_s, self.jitter_s, self.clock = ttft_s, itl_s, jitter_s, clock
        self.random = Random(seed)
        self.max_late_s = 0.0
        self._drips: dict[Sequence, _Drip] = {}

    def add(self, sequence: Sequence, on_token: Callable[[], None], *, each: bool = True) -> None:
        sequence.status, sequence.started_at = Status.RUNNING, self.clock.time()
        drip = self._drips[sequence] = _Drip(self, sequence, on_token, each)
        drip.wait(self.ttft_s)

    def abort(self, sequence: Sequence) -> None:
        drip = self._drips.pop(sequence, None)
        if drip:
            sequence.status = Status.FINISHED
            drip.timer.cancel()

    def finish(self, sequence: Sequence) -> None:
        sequence.status = Status.FINISHED
        del self._drips[sequence]

    def forget_lateness(self) -> None:
        self.max_late_s = 0.0

    def state(self) -> dict[str, float]:
        return {"running": len(self._drips), "waiting": 0, "max_late_s": self.max_late_s}


class _Drip:
    """One sequence of a `FixedEngine`: each token is due a latency after the one before was due."""

    __slots__ = ("due", "each", "engine", "on_token", "sequence", "timer")
    timer: Timer

    def __init__(self, engine: FixedEngine, sequence: Sequence, on_token: Callable[[], None], each: bool) -> None:
        self.engine, self.sequence, self.on_token, self.each = engine, sequence, on_token, each
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
        sequence.output_then += 1
        if sequence.output_then == sequence.max_tokens:
            engine.finish(sequence)
        else:
            self.wait(engine.itl_s)
        if self.each or sequence.output_then == 1 or sequence.is_finished:
            self.on_token()
