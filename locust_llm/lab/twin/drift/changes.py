"""Changes: what may have moved in a server, each as another model of it."""

from collections.abc import Iterator
from random import Random
from typing import Any, Final, NamedTuple

import msgspec

from locust_llm.lab.twin.model import ServerModel
from locust_llm.simulator.scheduling.clock import VirtualClock

MORE: Final = 1.1
"""Costs are moved by this factor; how far they did move is measured in it."""
FRONT_S: Final = 0.02
SIGMA: Final = 0.1
SLOWED: Final = 1.3
BURST_S: Final = 0.7
"""Mean time for which another program slows the server; twice that is between two such times."""


class ServerChange(NamedTuple):
    """One that may have happened."""

    name: str
    """Of the parameter, by the twin's names."""
    words: str
    model: ServerModel
    slowed: float = 1.0
    both_ways: bool = True
    """The opposite of it is looked for with it: costs fall as well as rise."""
    size: float = 0.0
    """By what share it moved here, where it is linear; 0: it is a step from one value to
    another."""


class Bursts:
    """The factor by which steps take longer now: a burst a third of the time."""

    def __init__(self, factor: float, clock: VirtualClock, random: Random) -> None:
        self.factor, self.clock, self.random = factor, clock, random
        self.slow, self.until = False, 0.0

    def __call__(self) -> float:
        while self.factor != 1.0 and self.clock.now >= self.until:
            self.slow = not self.slow
            self.until += self.random.expovariate(1 / (BURST_S if self.slow else 2 * BURST_S))
        return self.factor if self.slow else 1.0


def possible_changes(model: ServerModel, users: int) -> list[ServerChange]:
    """``users``: the most that are sent; no limit above them would show."""
    return [*_costs(model), *_limits(model, users), *_noise(model)]


def _costs(model: ServerModel) -> Iterator[ServerChange]:
    cost, front = model.cost, model.front

    def scaled(*names: str) -> ServerModel:
        more: dict[str, Any] = {name: getattr(cost, name) * MORE for name in names}
        return msgspec.structs.replace(model, cost=msgspec.structs.replace(cost, **more))

    share = MORE - 1
    every = (name for name in cost.__struct_fields__ if name != "free_tokens")
    yield ServerChange("step", "every step", scaled(*every), size=share)
    yield ServerChange("fixed", "the fixed cost of a step", scaled("fixed_s"), size=share)
    yield ServerChange("token", "the cost of a prompt's token", scaled("token_s"), size=share)
    if cost.stream_s:
        yield ServerChange("stream", "the cost of a stream", scaled("stream_s"), size=share)
    if any((cost.context_s, cost.pair_s, cost.own_pair_s)):
        yield ServerChange(
            "attention",
            "the cost of attention",
            scaled("context_s", "pair_s", "own_pair_s"),
            size=share,
        )
    later = msgspec.structs.replace(front, request_s=front.request_s + FRONT_S)
    both = front.request_s > FRONT_S  # else there is nothing to become less
    yield ServerChange(
        "front",
        "the time before the scheduler",
        msgspec.structs.replace(model, front=later),
        both_ways=both,
    )


def _limits(model: ServerModel, users: int) -> Iterator[ServerChange]:
    settings = model.settings

    def other(**more: int) -> ServerModel:
        return model.with_settings(msgspec.structs.replace(settings, **more))

    budget, threshold = settings.max_num_batched_tokens, settings.long_prefill_token_threshold
    for factor, words in ((0.25, "a quarter"), (0.5, "half"), (2.0, "twice"), (4.0, "four times")):
        if budget * factor >= 16:
            more = {"max_num_batched_tokens": int(budget * factor)}
            if threshold:
                more["long_prefill_token_threshold"] = int(threshold * factor)
            yield ServerChange(
                "budget", f"the tokens of a step, about {words}", other(**more), both_ways=False
            )
    seqs = settings.max_num_seqs
    for most, words in (
        (users // 4, "a quarter of the users"), (users // 2, "half of the users"),
    ) if seqs is None else ((seqs // 2, "about half"), (seqs * 2, "about twice")):  # fmt: skip
        if most >= 1 and (seqs is None or most < users or seqs < users):
            yield ServerChange(
                "max_num_seqs",
                f"the requests at a time, {words}",
                other(max_num_seqs=most),
                both_ways=False,
            )
    if settings.kv_tokens is not None:
        yield ServerChange(
            "kv_tokens",
            "the tokens in the KV cache, about half",
            other(kv_tokens=settings.kv_tokens // 2),
            both_ways=False,
        )


def _noise(model: ServerModel) -> Iterator[ServerChange]:
    noise = msgspec.structs.replace(model.noise, step_sigma=model.noise.step_sigma + SIGMA)
    yield ServerChange(
        "noise", "the noise of steps", msgspec.structs.replace(model, noise=noise), both_ways=False
    )
    yield ServerChange(
        "neighbour",
        "steps are slower in bursts, as beside a noisy neighbour",
        model,
        slowed=SLOWED,
        both_ways=False,
    )
    held = msgspec.structs.replace(
        model.noise, chunk_s=2 * model.noise.chunk_s + 0.1 * model.cost.fixed_s
    )
    yield ServerChange(
        "noise",
        "the lateness of chunks",
        msgspec.structs.replace(model, noise=held),
        both_ways=False,
    )
