"""Sweeping: runs a closed-loop sweep in virtual time on a simulated engine, with noise, as a client
observes it."""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Final

from locust_llm.lab.twin.server_observations import ObservedRequest, ObservedStage
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.virtual_time import Virtual, VirtualRequest, VirtualResult

from .probing import Noise, Server, engine, traffic

Lengths = Callable[[Random], tuple[int, int]]
ROUNDS: Final = 6
"""Each user of a stage sends this many requests on average."""
FEWEST: Final = 48
"""A stage has at least this many requests."""
BLOCK: Final = 16
STAGGER_S: Final = 0.01


def chat(random: Random) -> tuple[int, int]:
    """Draws prompts of 100 to 4,000 tokens, answers of 40 to 200."""
    return round(min(4000, max(100, random.lognormvariate(6.3, 0.8)))), random.randint(40, 200)


def swept(
    server: Server,
    noise: Noise,
    seed: int,
    users: Sequence[int],
    lengths: Lengths = chat,
    rounds: int = ROUNDS,
) -> list[ObservedStage]:
    """Runs a stage for each number of users, each on an idle server."""
    return [stage(server, noise, seed + i, count, lengths, rounds) for i, count in enumerate(users)]


def stage(
    server: Server,
    noise: Noise,
    seed: int,
    users: int,
    lengths: Lengths,
    rounds: int = ROUNDS,
    count: int = 0,
) -> ObservedStage:
    """Runs a stage. ``count`` is its number of requests. 0: ``rounds`` decides."""
    count = count or max(FEWEST, rounds * users)
    random = Random(seed)
    clock = VirtualClock()
    run = Virtual(clock, engine(server, clock, noise, random), keep_tokens=True)
    traffic(run, clock, noise, random)
    done = list[tuple[int, VirtualResult]]()
    left = iter(range(count))

    def following() -> None:
        if (number := next(left, None)) is None:
            return
        prompt, output = lengths(random)
        request = VirtualRequest(prompt, max(1, round(output / (1 + noise.guessed))))
        late_s = (noise.reading_s + noise.held_s) * prompt

        def ended() -> None:
            done.append((number, run.rows[-1]))
            following()

        clock.call_at(clock.now + late_s, lambda: run.ask(request, ended))

    for user in range(users):
        clock.call_at(user * STAGGER_S, following)
    most = 1e5 if noise.traffic_per_s else float("inf")
    while clock._timers and len(done) < count and clock._timers[0][0] < most:
        clock.run(clock._timers[0][0])
    asked = [row for _, row in sorted(done, key=lambda one: one[0])]
    return ObservedStage(
        users=users, rate=0.0, requests=tuple(_seen(row, noise, random) for row in asked)
    )


def _seen(row: VirtualResult, noise: Noise, random: Random) -> ObservedRequest:
    last = 0.0
    times = list[float]()
    tokens = row.request.output_tokens
    for at in row.token_at or (row.first_at, row.done_at):
        last = max(last, at + (random.expovariate(1 / noise.network_s) if noise.network_s else 0.0))
        times.append(last)
    times = list(_merged(times, noise, random))
    read_s = (noise.reading_s + noise.held_s) * row.request.prompt_tokens
    return ObservedRequest(
        row.sent_at - read_s,
        tuple(times),
        row.request.prompt_tokens,
        round(tokens * (1 + noise.guessed)),
    )


def _merged(times: Sequence[float], noise: Noise, random: Random) -> Iterator[float]:
    end = len(times) - 1
    for i, at in enumerate(times):
        if i in (0, end) or (i % noise.tokens_a_chunk == 0 and random.random() >= noise.merged):
            yield at
