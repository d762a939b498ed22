"""Model: what a twin is made of, as frozen data: the scheduler, the cost of a step, what is around it; and its engine."""

import math
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Final, NamedTuple

import msgspec

from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.cost import BLOCK_SIZE, StepTime
from locust_llm.simulator.scheduling.engine import BatchEngine, Engine
from locust_llm.simulator.scheduling.policies import POLICIES
from locust_llm.simulator.scheduling.scheduler import Config, Scheduler
from locust_llm.simulator.scheduling.sequence import Sequence as Request

UNLIMITED_SEQS: Final = 1_000_000
UNLIMITED_KV_TOKENS: Final = 1 << 40
Slower = Callable[[], float]
"""By what factor a step that begins now takes longer, for a reason that is not in the model."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler, by the names of vLLM's flags."""

    policy: str
    """Of the simulator: one of POLICIES."""
    max_num_batched_tokens: int
    long_prefill_token_threshold: int = 0
    """Of a step, the most tokens of one prompt while others run; 0: no limit."""
    max_num_partial_prefills: int = 1
    max_num_seqs: int | None = None
    """None: not seen, so not known; predictions beyond the loads of the fit say so."""
    kv_tokens: int | None = None
    """Tokens in the KV cache; None: not seen."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a step: ``fixed + token x max(0, tokens - free_tokens) + stream x sequences + context x tokens read + pair
    x pairs``. The form is the simulator's roofline (simulator/scheduling/cost.py): up to ``free_tokens`` the linear
    layers take as long as the weights are read, which is in ``fixed``; a pair is a new token of a prompt and a token
    before it, for which attention is computed. Before a step the engine takes who has come, in ``admission_s`` each, and who
    comes meanwhile too."""

    fixed_s: float
    token_s: float
    stream_s: float = 0.0
    context_s: float = 0.0
    pair_s: float = 0.0
    free_tokens: float = 0.0
    admission_s: float = 0.0


class Front(msgspec.Struct, frozen=True, kw_only=True):
    """Before the scheduler has a request: network, HTTP, tokenizer. It holds up nobody else."""

    request_s: float = 0.0
    token_s: float = 0.0
    """For each token of the prompt."""


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """What makes equal steps unequal at the client."""

    step_sigma: float = 0.0
    """Standard deviation of the logarithm of a step's time."""
    step_s: float = 0.0
    """Standard deviation of a step's time beside that: what an operating system does to short steps and long ones alike."""
    chunk_s: float = 0.0
    """Mean time by which a chunk is late, exponential."""
    merged: float = 0.0
    """Share of the tokens that come in one chunk with the next."""
    pause_s: float = 0.0
    """Length of the server's pauses"""
    pause_every_s: float = 0.0
    """and the mean time between two; 0: no pauses."""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A server, as far as it can be simulated."""

    settings: Settings
    cost: Cost
    front: Front = Front()
    noise: Noise = Noise()

    def with_settings(self, settings: Settings) -> "Model":
        return msgspec.structs.replace(self, settings=settings)

    def step_time(self) -> StepTime:
        """Without the noise."""
        return _Steps(self, VirtualClock(), None, None)

    def engine(
        self,
        clock: VirtualClock,
        random: Random | None = None,
        log: "list[Step] | None" = None,
        slower: Slower | None = None,
    ) -> Engine:
        """``random``: for the noise; None: every step takes its mean. ``log``: gets every step."""
        settings = self.settings
        kv_tokens = settings.kv_tokens or UNLIMITED_KV_TOKENS
        config = Config(
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_num_seqs=settings.max_num_seqs or UNLIMITED_SEQS,
            kv_tokens=kv_tokens // BLOCK_SIZE * BLOCK_SIZE,
            long_prefill_token_threshold=settings.long_prefill_token_threshold,
            max_num_partial_prefills=settings.max_num_partial_prefills,
            max_long_partial_prefills=settings.max_num_partial_prefills,
        )
        scheduler = Scheduler(config, POLICIES[settings.policy], record=True)
        engine = _Admitting(scheduler, _Steps(self, clock, random, log, slower), clock, self.cost.admission_s, log)
        return _Behind(engine, self.front, clock)


class Step(NamedTuple):
    """What a step was made of, when it began and how long it took."""

    at: float
    took_s: float
    tokens: int
    sequences: int
    context_tokens: int
    pairs: float
    admitted: int = 0
    """No step, but the time in which so many requests were taken."""


class _Steps:
    """The step times of a model: a `StepCost` that is its own `StepTime`."""

    def __init__(
        self,
        model: Model,
        clock: VirtualClock,
        random: Random | None,
        log: list[Step] | None,
        slower: Slower | None = None,
    ) -> None:
        self.slower = slower
        self.cost, self.noise, self.clock, self.random, self.log = model.cost, model.noise, clock, random, log
        self._factor = _factor(model.noise, random)

    def step_time(self) -> StepTime:
        return self

    def __call__(self, segments: Iterable[tuple[int, int]], num_decodes: int = 0, num_context_tokens: int = 0) -> float:
        cost, tokens, sequences, context_tokens, pairs = self.cost, num_decodes, num_decodes, num_context_tokens, 0.0
        for computed, new in segments:
            tokens += new
            sequences += 1
            context_tokens += computed + new
            if new > 1:
                pairs += new * (computed + new / 2)
        took_s = (
            cost.fixed_s
            + cost.token_s * max(0.0, tokens - cost.free_tokens)
            + cost.stream_s * sequences
            + cost.context_s * context_tokens
            + cost.pair_s * pairs
        )
        if self.slower is not None:
            took_s *= self.slower()
        if self.random is not None:
            took_s = took_s * self._factor(took_s) + self._pause_s(took_s)
        if self.log is not None:
            self.log.append(Step(self.clock.now, took_s, tokens, sequences, context_tokens, pairs))
        return took_s

    def _pause_s(self, took_s: float) -> float:
        noise, random = self.noise, self.random
        if not noise.pause_every_s or random is None:
            return 0.0
        return noise.pause_s if random.random() < took_s / noise.pause_every_s else 0.0


def _factor(noise: Noise, random: Random | None) -> Callable[[float], float]:
    """Of a step that takes so many seconds on average: log-normal, its mean is 1."""
    share, beside = noise.step_sigma**2, noise.step_s**2
    if random is None or not share + beside:
        return lambda took_s: 1.0
    draw = random.gauss

    def factor(took_s: float) -> float:
        variance = share + beside / max(took_s * took_s, beside)
        return math.exp(draw(-variance / 2, math.sqrt(variance)))

    return factor


class _Admitting(BatchEngine):
    """Takes who has come between two steps, one after the other, until nobody comes meanwhile. llama.cpp's server does
    (tools/server/server-queue.cpp, `start_loop`: all tasks, then the slots), with a slot's cache to be stored for each."""

    def __init__(
        self, scheduler: Scheduler, cost: _Steps, clock: VirtualClock, admission_s: float, log: list[Step] | None
    ) -> None:
        super().__init__(scheduler, cost, clock, count_parts=False)
        self._admission_s, self._log, self._come = admission_s, log, 0

    def add(self, sequence: Request, on_token: Callable[[], None], *, each: bool = True) -> None:
        self._come += 1
        super().add(sequence, on_token, each=each)

    def _begin_step(self) -> None:
        come, self._come = self._come, 0
        if not come or not self._admission_s and self._log is None:
            super()._begin_step()
            return
        took_s = come * self._admission_s
        if self._log is not None:
            self._log.append(Step(self._due, took_s, 0, 0, 0, 0.0, come))
        self._due += took_s
        self.clock.call_at(self._due, self._begin_step)


class _Behind:
    """An engine behind a front."""

    def __init__(self, engine: BatchEngine, front: Front, clock: VirtualClock) -> None:
        self.engine, self.front, self.clock = engine, front, clock

    def add(self, sequence: Request, on_token: Callable[[], None], *, each: bool = True) -> None:
        late_s = self.front.request_s + self.front.token_s * sequence.num_prompt_tokens
        self.clock.call_at(self.clock.now + late_s, lambda: self.engine.add(sequence, on_token, each=each))

    def abort(self, sequence: Request) -> None:
        self.engine.abort(sequence)

    def find(self, block_keys: Sequence[int]) -> int:
        return self.engine.find(block_keys)

    def state(self) -> dict[str, float]:
        return self.engine.state()

    def forget_lateness(self) -> None:
        self.engine.forget_lateness()
