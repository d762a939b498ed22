"""Engine: runs the step loop on any clock with callbacks, and emits each token in time."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from collections.abc import Sequence as Series
from random import Random
from typing import Final, Protocol

from .clock import EventClock, Timer
from .scheduler_queues import Batch, Scheduler
from .sequence import Sequence, SequenceStatus
from .step_cost import StepCost

MAX_LATE_S = 0.1
NUM_LATE = 20_000


class Engine(Protocol):
    def add(self, sequence: Sequence, on_token: Callable[[], None], *, each: bool = True) -> None:
        """Starts a sequence. The engine calls on_token at each output token, the last time with the
        finished sequence. Without ``each`` it calls at the first and the last token only."""

    def redirect(self, sequence: Sequence, on_token: Callable[[], None]) -> None:
        """Replaces on_token of a running sequence."""

    def abort(self, sequence: Sequence) -> None:
        """Drops a sequence. Its blocks are free at once, and on_token is not called again."""

    def find(self, block_keys: Series[int]) -> int:
        """Returns how many of these blocks of a prompt, from the first on, its prefix cache has."""

    def state(self) -> dict[str, float]:
        """Returns gauges for people and tests."""

    def forget_lateness(self) -> None:
        """Resets the lateness in `state`."""


class BatchEngine:
    """Batches continuously: every sequence's tokens come at the ends of the steps they share.

    The end of a step is computed from the end of the one before instead of from the clock, so a
    busy engine does not drift. A stopped process, or a host too slow for the load, can fall behind.
    Beyond MAX_LATE_S the excess is dropped and counted in lost_s, as steps in the past must not
    answer new requests. The next step begins before the tokens of the last one are emitted. vLLM
    does the same in another process. Without ``count_parts`` a step is timed once, and the latency
    parts of requests are unknown.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        cost: StepCost,
        clock: EventClock,
        *,
        time_scale: float = 1.0,
        count_parts: bool = True,
    ) -> None:
        self.count_parts = count_parts
        self.scheduler = scheduler
        self.cost = cost
        self.clock = clock
        self.time_scale = time_scale
        self._step_time = cost.step_time()
        self.num_steps = 0
        self.busy_s = 0.0
        self.max_used_blocks = 0
        self.max_late_s = 0.0
        self.lost_s = 0.0
        self.late_s: deque[float] = deque(maxlen=NUM_LATE)  # how late the last steps began
        self._each: dict[Sequence, Callable[[], None]] = {}
        self._ends: dict[Sequence, Callable[[], None]] = {}
        self._batch = Batch()
        self._due = 0.0
        self._idle = True

    def add(self, sequence: Sequence, on_token: Callable[[], None], *, each: bool = True) -> None:
        self.scheduler.add(sequence)
        if sequence.arrived_at is None:
            sequence.arrived_at = self.clock.time()
        callbacks = self._each if each else self._ends
        callbacks[sequence] = on_token
        if self._idle:
            self._idle = False
            self._due = self.clock.time()
            # Through the clock, not at once: what arrives in the same turn of the loop shares the
            # first step.
            self.clock.call_at(self._due, self._begin_step)

    def redirect(self, sequence: Sequence, on_token: Callable[[], None]) -> None:
        callbacks = self._each if sequence in self._each else self._ends
        callbacks[sequence] = on_token

    def abort(self, sequence: Sequence) -> None:
        self.scheduler.finish(sequence)
        self._each.pop(sequence, None)
        self._ends.pop(sequence, None)

    def find(self, block_keys: Series[int]) -> int:
        blocks = self.scheduler.blocks
        return blocks.find(block_keys)[0] if blocks.caching else 0

    def _begin_step(self) -> None:
        batch = self._batch = self._choose()
        if not batch.prefills and not batch.num_decodes:
            self._idle = True
            return
        blocks = self.scheduler.blocks
        self.max_used_blocks = max(self.max_used_blocks, blocks.num_blocks - blocks.num_free)
        segments = []
        for sequence, num_new_tokens in batch.prefills.items():
            segments.append((sequence.computed_then, num_new_tokens))
            if sequence.started_at is None:
                sequence.started_at = self._due
        step_s = self.time_scale * self._step_time(
            segments, batch.num_decodes, batch.num_context_tokens
        )
        if segments and self.count_parts:
            self._count_parts(batch, segments, step_s)
        else:
            self.scheduler.decoding.pace_s += step_s
        self.busy_s += step_s
        self._due += step_s
        self.clock.call_at(self._due, self._end_step)

    def _choose(self) -> Batch:
        """Chooses the work of the step that begins."""
        return self.scheduler.schedule(self._due)

    def _count_parts(self, batch: Batch, segments: Series[tuple[int, int]], step_s: float) -> None:
        """Adds up the latency parts: the time of the round without prompts, and of each prompt
        alone. Decoding sequences stay unchanged."""
        if batch.num_decodes:
            alone = self.time_scale * self._step_time(
                (), batch.num_decodes, batch.num_context_tokens
            )
            self.scheduler.decoding.pace_s += alone
        by_itself = len(segments) == 1 and not batch.num_decodes
        for sequence, segment in zip(batch.prefills, segments, strict=True):
            if sequence.first_at is not None:
                continue
            if by_itself:
                sequence.own_prefill_s += step_s
            else:
                sequence.own_prefill_s += self.time_scale * self._step_time((segment,))

    def _end_step(self) -> None:
        scheduler = self.scheduler
        due = self._due
        self._count_late()
        in_round = self._in_round()
        prefilled, finished = scheduler.postprocess(self._batch, due)
        self._begin_step()
        self._give_out(due, in_round, prefilled, finished)

    def _count_late(self) -> None:
        late = self.clock.time() - self._due
        self.num_steps += 1
        self.late_s.append(late)
        if late > self.max_late_s:
            self.max_late_s = late
        if late > MAX_LATE_S:
            self._due += late - MAX_LATE_S
            self.lost_s += late - MAX_LATE_S

    def _in_round(self) -> list[Sequence]:
        """Lists the sequences that get a token of the round, if some callback needs each token."""
        decoding = self.scheduler.decoding
        return list(decoding.sequences) if self._each and decoding.in_round else []

    def _give_out(
        self,
        at: float,
        in_round: list[Sequence],
        prefilled: list[Sequence],
        finished: list[Sequence],
    ) -> None:
        """Emits the tokens of the step that ended at that time."""
        for sequence in in_round:
            if on_token := self._each.get(sequence):
                on_token()
        for sequence in prefilled:
            on_token = self._each.get(sequence)
            if not on_token and sequence.first_at == at and sequence.max_tokens > 1:
                on_token = self._ends.get(sequence)
            if on_token:
                on_token()
        for sequence in finished:
            self._each.pop(sequence, None)
            if on_token := self._ends.pop(sequence, None):
                on_token()

    def forget_lateness(self) -> None:
        self.max_late_s = self.lost_s = 0.0
        self.late_s.clear()

    def state(self) -> dict[str, float]:
        scheduler = self.scheduler
        late = sorted(self.late_s)
        return {
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "used_blocks": scheduler.blocks.num_blocks - scheduler.blocks.num_free,
            "max_used_blocks": self.max_used_blocks,
            "num_blocks": scheduler.blocks.num_blocks,
            "preemptions": scheduler.num_preemptions,
            "cache_queries": scheduler.num_cache_queries,
            "cache_hits": scheduler.num_cache_hits,
            "steps": self.num_steps,
            "busy_s": self.busy_s,
            "max_late_s": self.max_late_s,
            "late_p99_s": late[len(late) * 99 // 100] if late else 0.0,
            "lost_s": self.lost_s,
        }


# -- fixed latency ---------------------------------------------------------------------------------


class FixedEngine:
    """Emits a request's first token after ttft_s, and one more every itl_s, at any load.

    With jitter_s each time varies evenly by plus or minus jitter_s, but stays at least 0.
    """

    def __init__(
        self,
        ttft_s: float,
        itl_s: float,
        clock: EventClock,
        *,
        jitter_s: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.ttft_s = ttft_s
        self.itl_s = itl_s
        self.jitter_s = jitter_s
        self.clock = clock
        self.random = Random(seed)
        self.max_late_s = 0.0
        self._drips: dict[Sequence, _Drip] = {}

    def add(self, sequence: Sequence, on_token: Callable[[], None], *, each: bool = True) -> None:
        sequence.status = SequenceStatus.RUNNING
        sequence.arrived_at = self.clock.time()
        sequence.started_at = sequence.arrived_at
        drip = self._drips[sequence] = _Drip(self, sequence, on_token, each)
        drip.wait(self.ttft_s)

    def redirect(self, sequence: Sequence, on_token: Callable[[], None]) -> None:
        self._drips[sequence].on_token = on_token

    def abort(self, sequence: Sequence) -> None:
        drip = self._drips.pop(sequence, None)
        if drip:
            sequence.status = SequenceStatus.FINISHED
            drip.timer.cancel()

    def finish(self, sequence: Sequence) -> None:
        sequence.status = SequenceStatus.FINISHED
        sequence.last_at = self._drips.pop(sequence).due
        sequence.pace_s = sequence.last_at - (sequence.first_at or 0.0)

    def find(self, block_keys: Series[int]) -> int:
        return 0

    def forget_lateness(self) -> None:
        self.max_late_s = 0.0

    def state(self) -> dict[str, float]:
        return {"running": len(self._drips), "waiting": 0, "max_late_s": self.max_late_s}


class _Drip:
    """Emits one sequence of a `FixedEngine`. Each token is due a latency after the one before was
    due."""

    __slots__ = ("due", "each", "engine", "on_token", "sequence", "timer")
    timer: Timer

    def __init__(
        self, engine: FixedEngine, sequence: Sequence, on_token: Callable[[], None], each: bool
    ) -> None:
        self.engine = engine
        self.sequence = sequence
        self.on_token = on_token
        self.each = each
        self.due = engine.clock.time()

    def wait(self, latency_s: float) -> None:
        engine = self.engine
        if engine.jitter_s:
            jitter_s = engine.random.uniform(-engine.jitter_s, engine.jitter_s)
            latency_s = max(0.0, latency_s + jitter_s)
        self.due += latency_s
        self.timer = engine.clock.call_at(self.due, self.emit)

    def emit(self) -> None:
        engine = self.engine
        sequence = self.sequence
        engine.max_late_s = max(engine.max_late_s, engine.clock.time() - self.due)
        sequence.output_then += 1
        if sequence.output_then == 1:
            sequence.first_at = self.due
            sequence.own_prefill_s = self.due - (sequence.started_at or 0.0)
        if sequence.output_then == sequence.max_tokens:
            engine.finish(sequence)
        else:
            self.wait(engine.itl_s)
        if self.each or sequence.output_then == 1 or sequence.is_finished:
            self.on_token()


# -- several replicas ------------------------------------------------------------------------------

ROUTES: Final = ("round-robin", "session", "prefix", "token")
MAX_SESSIONS: Final = 100_000
"""The router remembers this many sessions, then forgets the one without a request for the longest
time."""
_TOKEN: Final = "replica-"


class Router:
    """Chooses one of several engines, each with its own scheduler and cache, for a request.

    round-robin takes the next engine. session takes the next engine for the first request of a
    session, and the same one for the others. token follows the response before (`token_of`) without
    memory. prefix takes the engine whose cache has most blocks of the prompt, among equal ones the
    one with the fewest requests, then the next one.
    """

    def __init__(self, engines: Series[Engine], route: str = "round-robin") -> None:
        self.engines = engines
        self.route = route
        self.num_open = [0] * len(engines)
        self._next = 0
        self._sessions: OrderedDict[str, int] = OrderedDict()

    def choose(self, block_keys: Series[int] = (), session: str = "") -> int:
        """Returns the number of the engine. Call `ended` when the request is over. ``session`` is
        its id or its token."""
        number = self._known(session)
        if number is None:
            number = self._best(block_keys) if self.route == "prefix" else self._next
            self._next = (number + 1) % len(self.engines)
        if self.route == "session" and session:
            self._sessions[session] = number
            self._sessions.move_to_end(session)
            if len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        self.num_open[number] += 1
        return number

    def ended(self, number: int) -> None:
        self.num_open[number] -= 1

    def token_of(self, number: int) -> str:
        """Returns the token that the client must send back. Empty: this route has no tokens."""
        return f"{_TOKEN}{number}" if self.route == "token" else ""

    def _known(self, session: str) -> int | None:
        if self.route == "token":
            tokens = [self.token_of(number) for number in range(len(self.engines))]
            return tokens.index(session) if session in tokens else None
        return self._sessions.get(session)

    def _best(self, block_keys: Series[int]) -> int:
        cached_blocks = [engine.find(block_keys) for engine in self.engines]
        count = len(cached_blocks)
        return min(
            range(count),
            key=lambda i: (-cached_blocks[i], self.num_open[i], (i - self._next) % count),
        )


def merge_engine_states(states: Series[dict[str, float]]) -> dict[str, float]:
    """Merges the states of several engines into sums, and into the maximum of lateness."""
    merged: dict[str, float] = {}
    for name in states[0]:
        values = [state[name] for state in states]
        merged[name] = max(values) if "late" in name else sum(values)
    return merged
