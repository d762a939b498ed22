"""Figures of a load: TTFT, ITL, stalls and throughput of a stage, whether it was measured or simulated."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from .seen import Seen, Stage

FIGURES: Final = (
    "ttft p50", "ttft p95", "ttft p99", "itl p50", "itl p99", "stall p50", "stall p95", "throughput",
)  # fmt: skip
"""Seconds, of each request its mean ITL and its longest gap; output tokens a second."""
LEAST: Final = 3
"""Requests of each user, without which no steady part is cut out."""
BEGIN_SHARE: Final = 0.25
"""Of a closed loop, in which the users that began together drift apart."""


def steady(stage: Stage) -> Sequence[Seen]:
    """Without the first quarter, of which there is at least a request of each user, and the last request of each: they came
    when others were not there yet, or any more."""
    requests = stage.requests
    if not stage.users or len(requests) < LEAST * stage.users:
        return requests
    begin = max(stage.users, int(BEGIN_SHARE * len(requests)))
    return requests[begin : len(requests) - stage.users]


def figures(stage: Stage) -> dict[str, float]:
    """By the names of FIGURES; without those of which there is nothing."""
    found = percentiles(steady(stage))
    if (tokens_per_s := throughput(stage)) is not None:
        found["throughput"] = tokens_per_s
    return found


def percentiles(requests: Sequence[Seen]) -> dict[str, float]:
    """Those of FIGURES, by name."""
    found = dict[str, float]()
    for name, values in (
        ("ttft", [one.ttft_s for one in requests]),
        ("itl", [one.itl_s for one in requests if one.itl_s is not None]),
        ("stall", [one.stall_s for one in requests if one.output_tokens > 1]),
    ):
        for figure in FIGURES:
            if figure.startswith(f"{name} p") and values:
                found[figure] = float(np.percentile(values, float(figure.partition(" p")[2])))
    return found


def throughput(stage: Stage) -> float | None:
    """Output tokens a second, from the first send of the steady part to the last send. None: no time between them."""
    requests = steady(stage)
    begin, end = requests[0].sent_at, stage.requests[-1].sent_at
    if end <= begin:
        return None
    tokens = 0.0
    for one in stage.requests:
        if one.token_at[-1] > begin and one.token_at[0] <= end:
            at = np.array(one.token_at)
            tokens += float(((at > begin) & (at <= end)).sum()) * one.tokens_a_chunk
    return tokens / (end - begin)
