"""Twin engine: serves requests with a model in virtual time, with its noise."""

import math
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Final, NamedTuple

from locust_llm.simulator.scheduling import engine as simulated
from locust_llm.simulator.scheduling.batching_policies import POLICIES
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.scheduler_queues import Batch, Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.sequence import Sequence as Request
from locust_llm.simulator.scheduling.step_cost import BLOCK_SIZE, StepTime

from .twin_model import FrontendDelay, Noise, SchedulerSettings, ServerModel, StepWork, step_work

UNLIMITED_SEQS: Final = 1_000_000
UNLIMITED_KV_TOKENS: Final = 1 << 40
Slower = Callable[[], float]
"""The function returns the factor by which the step that begins now takes longer, for a reason
outside the model."""


class Step(NamedTuple):
    """Holds the work of a step, its begin and its duration."""

    at: float
    took_s: float
    tokens: int
    sequences: int
    context_tokens: int
    pairs: float
    own_pairs: float
    admitted: int = 0
    """This is the admission of so many requests instead of a step."""


def make_twin_engine(
    model: ServerModel,
    clock: VirtualClock,
    random: Random | None = None,
    log: list[Step] | None = None,
    slower: Slower | None = None,
) -> simulated.Engine:
    """``random`` draws the noise. None: every step takes its mean. ``log`` gets every step."""
    scheduler = Scheduler(_config(model.settings), POLICIES[model.settings.policy], record=True)
    return _Behind(
        Admitting(scheduler, Steps(model, clock, random, log, slower), clock), model.front, clock
    )


def _config(settings: SchedulerSettings) -> SchedulerConfig:
    return SchedulerConfig(
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_seqs=settings.max_num_seqs or UNLIMITED_SEQS,
        kv_tokens=(settings.kv_tokens or UNLIMITED_KV_TOKENS) // BLOCK_SIZE * BLOCK_SIZE,
        long_prefill_token_threshold=settings.long_prefill_token_threshold,
        max_num_partial_prefills=settings.max_num_partial_prefills,
        max_long_partial_prefills=settings.max_num_partial_prefills,
        common_prefix_tokens=settings.common_prefix_tokens,
    )


class Steps:
    """Computes the step times of a model: a `StepCost` that is its own `StepTime`."""

    def __init__(
        self,
        model: ServerModel,
        clock: VirtualClock,
        random: Random | None,
        log: list[Step] | None,
        slower: Slower | None,
    ) -> None:
        self.cost = model.cost
        self.noise = model.noise
        self.clock = clock
        self.random = random
        self.log = log
        self.slower = slower
        self._factor = draw_step_factor(model.noise, random)

    def step_time(self) -> StepTime:
        return self

    def __call__(
        self, segments: Iterable[tuple[int, int]], num_decodes: int = 0, num_context_tokens: int = 0
    ) -> float:
        return self.took(self.clock.now, step_work(segments, num_decodes, num_context_tokens))

    def took(self, at: float, done: StepWork) -> float:
        """Returns the time of the next step, which begins then."""
        took_s = self.cost.step_s(done)
        if self.slower is not None:
            took_s *= self.slower()
        if self.random is not None:
            took_s = took_s * self._factor(took_s) + self._pause_s(took_s)
        if self.log is not None:
            self.log.append(Step(at, took_s, *done))
        return took_s

    def _pause_s(self, took_s: float) -> float:
        noise = self.noise
        random = self.random
        if not noise.pause_every_s or random is None:
            return 0.0
        return noise.pause_s if random.random() < took_s / noise.pause_every_s else 0.0


def draw_step_factor(noise: Noise, random: Random | None) -> Callable[[float], float]:
    """Returns a function that draws a step's log-normal factor with mean 1, for a step with this
    mean time."""
    share = noise.step_sigma**2
    fixed = noise.step_s**2
    if random is None or not share + fixed:
        return lambda took_s: 1.0
    draw = random.gauss

    def drawn(took_s: float) -> float:
        variance = share + fixed / max(took_s * took_s, fixed)
        return math.exp(draw(-variance / 2, math.sqrt(variance)))

    return drawn


class Admitting(simulated.BatchEngine):
    """Admits new requests between two steps, one after the other, until no further one arrives
    meanwhile. llama.cpp's server does so (tools/server/server-queue.cpp, `start_loop`: all tasks,
    then the slots), and stores a slot's cache for each."""

    clock: VirtualClock

    def __init__(self, scheduler: Scheduler, steps: Steps, clock: VirtualClock) -> None:
        super().__init__(scheduler, steps, clock, count_parts=False)
        self.steps = steps
        self._num_arrived = 0

    def add(self, sequence: Request, on_token: Callable[[], None], *, each: bool = True) -> None:
        self._num_arrived += 1
        super().add(sequence, on_token, each=each)

    def _begin_step(self) -> None:
        arrived = self._num_arrived
        self._num_arrived = 0
        if arrived and (self.steps.cost.admission_s or self.steps.log is not None):
            self._admit(arrived)
        elif self._only_decodes():
            self._decode()
        else:
            super()._begin_step()

    def _admit(self, count: int) -> None:
        took_s = count * self.steps.cost.admission_s
        if self.steps.log is not None:
            self.steps.log.append(Step(self._due, took_s, 0, 0, 0, 0.0, 0.0, count))
        self._due += took_s
        self.clock.call_at(self._due, self._begin_step)

    def _only_decodes(self) -> bool:
        """Returns whether every step is a round of the same sequences until something happens, so
        the policy is not needed."""
        scheduler = self.scheduler
        before = self._batch
        return bool(
            # else somebody ended, and others come for it
            len(scheduler.decoding.sequences) == before.num_decodes > 0
            and not before.prefills  # else the same, where a gate waits for first tokens
            and not scheduler.prefilling
            and not scheduler.waiting
            and not self._each  # else each round has callbacks
            and self.steps.slower is None  # it reads the clock, which stands still here
            and scheduler.blocks.num_free >= 2 * len(scheduler.decoding.sequences)
        )

    def _decode(self) -> None:
        """Runs successive rounds up to the next timer or the end of a sequence, with the same
        results as single steps."""
        decoding = self.scheduler.decoding
        blocks = self.scheduler.blocks
        steps = self.steps
        at = self._due
        count = len(decoding.sequences)
        last = decoding.next_end
        until = self.clock.next_at
        enough = 2 * count  # free blocks
        while True:
            took_s = steps.took(at, StepWork(count, count, decoding.num_context_tokens))
            decoding.pace_s += took_s
            self.busy_s += took_s
            blocks.take(decoding.num_new_blocks)
            at += took_s
            if at >= until or decoding.rounds + 1 >= last or blocks.num_free < enough:
                break
            decoding.end_round(at)
            self.num_steps += 1
        self._batch = Batch(num_decodes=count, num_context_tokens=decoding.num_context_tokens)
        decoding.in_round = True
        self._due = at
        self.clock.call_at(at, self._end_step)


class _Behind:
    """Puts an engine behind a front."""

    def __init__(
        self, engine: simulated.BatchEngine, front: FrontendDelay, clock: VirtualClock
    ) -> None:
        self.engine = engine
        self.front = front
        self.clock = clock

    def add(self, sequence: Request, on_token: Callable[[], None], *, each: bool = True) -> None:
        late_s = self.front.request_s + self.front.token_s * sequence.num_prompt_tokens
        self.clock.call_at(
            self.clock.now + late_s, lambda: self.engine.add(sequence, on_token, each=each)
        )

    def redirect(self, sequence: Request, on_token: Callable[[], None]) -> None:
        self.engine.redirect(sequence, on_token)

    def abort(self, sequence: Request) -> None:
        self.engine.abort(sequence)

    def find(self, block_keys: Sequence[int]) -> int:
        return self.engine.find(block_keys)

    def state(self) -> dict[str, float]:
        return self.engine.state()

    def forget_lateness(self) -> None:
        self.engine.forget_lateness()
