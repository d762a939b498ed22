"""Ghost runs: rounds of the disconnect test against the simulated scheduler in virtual time, with a
planted number of ghost tokens and noise in each step."""

import random
from collections.abc import Callable, Iterable
from typing import Final

from locust_llm.lab.disconnect.disconnect_rounds import (
    DECODE_TOKENS,
    QUIET_GAPS,
    RoundTimes,
    cut_witness,
    divide_prompt_tokens,
)
from locust_llm.lab.disconnect.ghost_tokens import WitnessRound
from locust_llm.simulator.scheduling.batching_policies import POLICIES
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.engine import BatchEngine
from locust_llm.simulator.scheduling.scheduler_queues import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.sequence import Sequence
from locust_llm.simulator.scheduling.step_cost import LLAMA_8B_H100, StepTime

PROMPT_TOKENS: Final = 60
MOST_GHOSTS: Final = 256
"""The answer of a client would go on for so many tokens."""


class NoisyCost:
    """The cost of the simulator, with normal noise whose neighbours are correlated."""

    def __init__(self, draw: random.Random, spread: float, correlation: float = 0.3) -> None:
        self._draw = draw
        self._spread = spread
        self._correlation = correlation
        self._last = 0.0

    def step_time(self) -> StepTime:
        exact = LLAMA_8B_H100.step_time()

        def noisy(
            segments: Iterable[tuple[int, int]], decodes: int = 0, context_tokens: int = 0, /
        ) -> float:
            fresh = (1 - self._correlation**2) ** 0.5
            self._last = self._correlation * self._last + fresh * self._draw.gauss()
            return exact(segments, decodes, context_tokens) * max(
                1 + self._spread * self._last, 0.1
            )

        return noisy


def simulate_ghost_round(
    draw: random.Random, clients: int, ghosts: int, spread: float, jitter_s: float = 0.0
) -> WitnessRound:
    """``clients`` leave in mid-decode, and the server generates ``ghosts`` more tokens for each.
    ``jitter_s`` moves the arrival of each chunk."""
    clock = VirtualClock()
    config = SchedulerConfig(
        max_num_batched_tokens=8192,
        max_num_seqs=256,
        kv_tokens=400_000,
        enable_prefix_caching=False,
    )
    engine = BatchEngine(Scheduler(config, POLICIES["chunked"]), NoisyCost(draw, spread), clock)
    longest = MOST_GHOSTS + 2 * clients
    prompt_tokens = divide_prompt_tokens(clients)
    times = list[float]()
    begun = dict[Sequence, float]()
    counts = dict[Sequence, int]()
    leaving = list[float]()
    left_at = list[float]()

    def leave() -> None:
        left_at.append(clock.now)
        for client in counts:
            counts[client] = 0
            if ghosts:
                engine.redirect(client, make_counter(client, work_on))
            else:
                engine.abort(client)

    def work_on(client: Sequence) -> None:
        if counts[client] >= ghosts:
            engine.abort(client)

    def decode(client: Sequence) -> None:
        begun.setdefault(client, clock.now)
        if not leaving and min(counts.values()) == DECODE_TOKENS:
            leaving.append(clock.now)
            clock.call_at(clock.now + draw.random() * 0.005, leave)

    def make_counter(client: Sequence, then: Callable[[Sequence], None]) -> Callable[[], None]:
        def count() -> None:
            counts[client] += 1
            then(client)

        return count

    def watch() -> None:
        times.append(clock.now)
        if len(times) == QUIET_GAPS + 2:
            for client in [Sequence(prompt_tokens, 10_000) for _ in range(clients)]:
                counts[client] = 0
                engine.add(client, make_counter(client, decode))

    witness_tokens = 2 * QUIET_GAPS + DECODE_TOKENS + 10 + longest
    engine.add(Sequence(PROMPT_TOKENS, witness_tokens), watch)
    clock.run()
    came_at = times[QUIET_GAPS + 1]
    at = RoundTimes(came_at, max(begun.values()), left_at[0])
    arrivals = [moment + abs(draw.gauss(0.0, jitter_s)) for moment in times]
    cut = cut_witness(sorted(arrivals), at, longest)
    assert cut is not None
    return cut


def simulate_ghost_rounds(
    seed: int, rounds: int, clients: int, ghosts: int, spread: float, jitter_s: float = 0.0
) -> list[WitnessRound]:
    draw = random.Random(seed)
    return [simulate_ghost_round(draw, clients, ghosts, spread, jitter_s) for _ in range(rounds)]
