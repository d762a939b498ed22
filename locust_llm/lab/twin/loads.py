"""Loads in virtual time: what a client would see of a model at so many users, or so many requests a
second."""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Final, NamedTuple

import numpy as np

from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.virtual import Virtual, VirtualRequest, VirtualResult

from .engine import Slower, engine
from .model import Noise, ServerModel
from .observations import ObservedRequest, ObservedStage
from .replay import send_again

ROUNDS: Final = 12
FEWEST: Final = 240
"""Requests of a load: so many of each user, and at least so many."""
STAGGER_S: Final = 0.01


class OfferedLoad(NamedTuple):
    """One of the two is not 0."""

    users: int = 0
    rate: float = 0.0

    @property
    def label(self) -> str:
        return f"{self.users} users" if self.users else f"{self.rate:g} requests/s"


Lengths = Sequence[tuple[int, int]]
"""(prompt tokens, output tokens) to draw from."""


def simulated(
    model: ServerModel,
    load: OfferedLoad,
    lengths: Lengths,
    seed: int,
    *,
    prefill_limit: float = float("inf"),
    count: int = 0,
) -> ObservedStage:
    """``count``: of requests; 0: as many as suit the load. ``prefill_limit``: of the load
    generator's gate. Of one seed the requests are the same, whatever the model and its settings:
    they are drawn before its noise."""
    random = Random(seed)
    clock = VirtualClock()
    count = count or max(FEWEST, ROUNDS * load.users)
    requests = [VirtualRequest(*one) for one in stratified(lengths, count, random)]
    arrivals = list(_arrivals(load.rate, requests, random)) if load.rate else []
    virtual = Virtual(
        clock, engine(model, clock, random), prefill_limit=prefill_limit, keep_tokens=True
    )
    if load.users:
        virtual.closed_loop(load.users, iter(requests), stagger_s=STAGGER_S)
    else:
        virtual.open_loop(arrivals)
    return _stage(virtual, model.noise, seed, load)


def stratified(lengths: Lengths, count: int, random: Random) -> list[tuple[int, int]]:
    """So many, in any order: one of each of ``count`` equal parts of ``lengths`` from the shortest
    prompt to the longest (stratified sampling), as a few long prompts more or less would move the
    figures of few requests."""
    ordered = sorted(lengths)
    found = [ordered[int((part + random.random()) * len(ordered) / count)] for part in range(count)]
    random.shuffle(found)
    return found


def again(
    model: ServerModel,
    stage: ObservedStage,
    seed: int,
    slower: Callable[[VirtualClock], Slower] | None = None,
) -> ObservedStage:
    """The very requests of a stage, with the noise of the model. ``slower``: what makes its steps
    longer beside that."""
    clock = VirtualClock()
    behind = engine(model, clock, Random(seed), slower=slower(clock) if slower else None)
    virtual = Virtual(clock, behind, keep_tokens=True)
    send_again(stage, virtual)
    return _stage(virtual, model.noise, seed, OfferedLoad(stage.users, stage.rate))


def _stage(virtual: Virtual, noise: Noise, seed: int, load: OfferedLoad) -> ObservedStage:
    rows = sorted(virtual.run(), key=lambda row: row.asked_at)
    late = np.random.default_rng(seed)
    return ObservedStage(
        users=load.users, rate=load.rate, requests=tuple(_seen(row, noise, late) for row in rows)
    )


def _arrivals(
    rate: float, requests: Sequence[VirtualRequest], random: Random
) -> Iterator[tuple[float, VirtualRequest]]:
    """Poisson."""
    at = 0.0
    for request in requests:
        at += random.expovariate(rate)
        yield at, request


def _seen(row: VirtualResult, noise: Noise, random: np.random.Generator) -> ObservedRequest:
    """As a client sees it, with late chunks, of which none comes before an earlier one, and some in
    one."""
    times = np.array(row.token_at)
    if noise.chunk_s:
        times = np.maximum.accumulate(times + random.exponential(noise.chunk_s, len(times)))
    if noise.merged:
        kept = random.random(len(times)) >= noise.merged
        kept[0] = kept[-1] = True
        times = times[kept]
    held_s = row.sent_at - row.asked_at
    return ObservedRequest(
        row.sent_at,
        tuple(times.tolist()),
        row.request.prompt_tokens,
        row.request.output_tokens,
        held_s,
    )
