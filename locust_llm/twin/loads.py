"""Loads in virtual time: what a client would see of a model at so many users, or so many requests a second."""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Final, NamedTuple

from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.virtual import Request, Row, Virtual

from .model import Model, Noise
from .replay import send_again
from .seen import Seen, Stage

ROUNDS: Final = 12
FEWEST: Final = 240
"""Requests of a load: so many of each user, and at least so many."""
STAGGER_S: Final = 0.01
MAX_BEHIND: Final = 20
"""Of a load at a rate: it ends when so many times as many requests are open as a second brings, as the server never catches
up."""


class Load(NamedTuple):
    """One of the two is not 0."""

    users: int = 0
    rate: float = 0.0

    @property
    def label(self) -> str:
        return f"{self.users} users" if self.users else f"{self.rate:g} requests/s"


Lengths = Sequence[tuple[int, int]]
"""(prompt tokens, output tokens) to draw from."""


def simulated(model: Model, load: Load, lengths: Lengths, seed: int, *, prefill_limit: float = float("inf")) -> Stage:
    """As many requests as suit the load, with lengths drawn from those. ``prefill_limit``: of the load generator's gate."""
    random, clock = Random(seed), VirtualClock()
    virtual = Virtual(clock, model.engine(clock, random), prefill_limit=prefill_limit, keep_tokens=True)
    count = max(FEWEST, ROUNDS * load.users)
    requests = (Request(*lengths[random.randrange(len(lengths))]) for _ in range(count))
    if load.users:
        virtual.closed_loop(load.users, requests, stagger_s=STAGGER_S)
    else:
        virtual.open_loop(_arrivals(load.rate, requests, random))
    return _stage(virtual, model.noise, random, load)


def again(model: Model, stage: Stage, seed: int) -> Stage:
    """The very requests of a stage, with the noise of the model."""
    random, clock = Random(seed), VirtualClock()
    virtual = Virtual(clock, model.engine(clock, random), keep_tokens=True)
    send_again(stage, virtual)
    return _stage(virtual, model.noise, random, Load(stage.users, stage.rate))


def _stage(virtual: Virtual, noise: Noise, random: Random, load: Load) -> Stage:
    rows = sorted(virtual.run(), key=lambda row: row.asked_at)
    return Stage(users=load.users, rate=load.rate, requests=tuple(_seen(row, noise, random) for row in rows))


def _arrivals(rate: float, requests: Iterator[Request], random: Random) -> Iterator[tuple[float, Request]]:
    """Poisson."""
    at = 0.0
    for request in requests:
        at += random.expovariate(rate)
        yield at, request


def _seen(row: Row, noise: Noise, random: Random) -> Seen:
    """As a client sees it, with late chunks and some in one."""
    times: Sequence[float] = row.token_at
    if noise.chunk_s:
        times = list(_late(times, lambda: random.expovariate(1 / noise.chunk_s)))
    if noise.merged:
        end = len(times) - 1
        times = [at for i, at in enumerate(times) if i in (0, end) or random.random() >= noise.merged]
    return Seen(row.asked_at, tuple(times), row.request.prompt_tokens, row.request.output_tokens)


def _late(times: Sequence[float], by_s: Callable[[], float]) -> Iterator[float]:
    """Never before an earlier one."""
    last = 0.0
    for at in times:
        last = max(last, at + by_s())
        yield last
