"""Load features: some figures of a load, as logarithms, that move where a parameter of the server
moves."""

from collections.abc import Sequence
from random import Random
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from locust_llm.lab.twin.observations import ObservedStage
from locust_llm.lab.twin.replay import again

from .changes import Bursts, ServerChange

Array = NDArray[np.float64]
TRAITS: Final = (
    "gap p20", "gap mean", "gap p99", "gap spread", "stall", "ttft short", "ttft long", "running",
    "throughput",
)  # fmt: skip
"""Of the gaps between two chunks: steps that only decode, all, and steps full of prompts; ``gap
spread``: from their 10th percentile to the 40th, as a share of the 20th; ``stall``: the longest of
each request, on average. ``ttft short`` and ``ttft long``: the mean over the requests with prompts
up to the median, and above it. ``running``: sequences that decode, on average. Percentiles between
these jump where steps with and without prompts are about as frequent."""
LEAST_SIGMA: Final = 0.02
"""Of the steps of a replay: without any noise its order of steps would be one of many that are as
likely."""
LEAST_SPREAD: Final = 0.05
LEAST_S: Final = 1e-5
"""Below these, differences mean nothing."""


def traits(stage: ObservedStage) -> Array:
    """In the order of TRAITS."""
    requests = stage.requests
    gaps = np.concatenate([np.diff(one.token_at) for one in requests])
    gaps = np.maximum(gaps if gaps.size else [0.0], LEAST_S)
    ttft_s = np.maximum(np.array([one.ttft_s for one in requests]), LEAST_S)
    prompts = np.array([one.prompt_tokens for one in requests])
    long = prompts > np.median(prompts)
    # not the end of the last in the list: of those sent at one moment any may be the last
    span_s = max(max(one.token_at[-1] for one in requests) - requests[0].sent_at, LEAST_S)
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


def traits_of(stages: Sequence[ObservedStage]) -> Array:
    """Of one after the other."""
    return np.concatenate([traits(stage) for stage in stages])


def replayed(change: ServerChange, stage: ObservedStage, seed: int) -> ObservedStage:
    """The same requests once more, with the noise of the changed model."""
    noise = change.model.noise
    least = msgspec.structs.replace(noise, step_sigma=max(noise.step_sigma, LEAST_SIGMA))
    model = msgspec.structs.replace(change.model, noise=least)
    return again(model, stage, seed, lambda clock: Bursts(change.slowed, clock, Random(seed)))
