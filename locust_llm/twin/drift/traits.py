"""Traits: some figures of a load, as logarithms, that move where a parameter of the server moves."""

from collections.abc import Sequence
from random import Random
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.virtual import Request, Virtual
from locust_llm.twin.loads import as_seen
from locust_llm.twin.model import Model
from locust_llm.twin.seen import Stage

from .changes import Bursts

Array = NDArray[np.float64]
TRAITS: Final = (
    "gap p20", "gap mean", "gap p99", "gap spread", "stall", "ttft short", "ttft long", "running", "throughput",
)  # fmt: skip
"""Of the gaps between two chunks: steps that only decode, all, and steps full of prompts; ``gap spread``: from their 10th
percentile to the 40th, as a share of the 20th; ``stall``: the longest of each request, on average. ``ttft short`` and ``ttft
long``: the mean over the requests with prompts up to the median, and above it. ``running``: sequences that decode, on
average. Percentiles between these jump where steps with and without prompts are about as frequent."""
LEAST_SIGMA: Final = 0.02
"""Of the steps of a replay: without any noise its order of steps would be one of many that are as likely."""
LEAST_SPREAD: Final = 0.01
LEAST_S: Final = 1e-5
"""Below these, differences mean nothing."""


def traits(stage: Stage) -> Array:
    """In the order of TRAITS."""
    requests = stage.requests
    gaps = np.maximum(np.concatenate([np.diff(one.token_at) for one in requests]), LEAST_S)
    ttft_s = np.maximum(np.array([one.ttft_s for one in requests]), LEAST_S)
    prompts = np.array([one.prompt_tokens for one in requests])
    long = prompts > np.median(prompts)
    span_s = max(requests[-1].token_at[-1] - requests[0].sent_at, LEAST_S)
    low, usual, high, most = np.percentile(gaps, (10, 20, 40, 99))
    values = [
        np.log(usual),
        np.log(gaps.mean()),
        np.log(most),
        np.log((high - low) / usual + LEAST_SPREAD),
        np.log(np.maximum([one.stall_s for one in requests], LEAST_S)).mean(),
        np.log(ttft_s[~long]).mean(),
        np.log(ttft_s[long]).mean() if long.any() else 0.0,
        np.log(sum(one.decode_s for one in requests) / span_s + LEAST_S),
        np.log(sum(one.output_tokens for one in requests) / span_s),
    ]
    return np.array(values)


def traits_of(stages: Sequence[Stage]) -> Array:
    """Of one after the other."""
    return np.concatenate([traits(stage) for stage in stages])


def again(model: Model, stage: Stage, seed: int, *, slowed: float = 1.0) -> Stage:
    """The same requests once more on a model, with its noise: the first request of each user as it was sent, each other one,
    in the same order, when one has ended. ``slowed``: steps take so many times as long in bursts."""
    random, clock = Random(seed), VirtualClock()
    noise = msgspec.structs.replace(model.noise, step_sigma=max(model.noise.step_sigma, LEAST_SIGMA))
    model = msgspec.structs.replace(model, noise=noise)
    engine = model.engine(clock, random, slower=Bursts(slowed, clock, Random(seed)))
    virtual = Virtual(clock, engine, keep_tokens=True)
    requests = [Request(one.prompt_tokens, one.output_tokens) for one in stage.requests]
    others = iter(requests[stage.users :])

    def following() -> None:
        if (request := next(others, None)) is not None:
            virtual.ask(request, following)

    begin = stage.requests[0].sent_at
    for one, request in zip(stage.requests[: stage.users], requests, strict=False):
        clock.call_at(one.sent_at - begin, lambda request=request: virtual.ask(request, following))  # type: ignore[misc]
    clock.run()
    rows = sorted(virtual.rows, key=lambda row: row.asked_at)
    return Stage(stage.users, stage.rate, tuple(as_seen(row, model.noise, random) for row in rows))
