"""Figures of a load: TTFT, ITL, stalls and throughput of a stage, whether it was measured or
simulated."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from .observations import ObservedRequest, ObservedStage

FIGURES: Final = (
    "ttft p50", "ttft p95", "ttft p99", "itl p50", "itl p99", "stall p50", "stall p95",
    "throughput",
)  # fmt: skip
"""Seconds, of each request its mean ITL and its longest gap; output tokens a second."""
LATENCY_FIGURES: Final[dict[str, Callable[[ObservedRequest], float | None]]] = {
    "ttft": lambda one: one.ttft_s,
    "ttft_from_due": lambda one: one.ttft_from_due_s,
    "itl": lambda one: one.itl_s,
    "stall": lambda one: one.stall_s if one.output_tokens > 1 else None,
    "request_latency": lambda one: one.latency_s,
}
"""Of a request, in seconds: each has percentiles (``ttft p95``) and a mean (``ttft avg``). None: it
has none."""
REQUESTS_PER_S, IN_FLIGHT, SERVED = "requests/s", "in flight", "served"
"""Completed a second; open at once, the mean over time; completed as a share of what came, below 1
where a queue grows."""
SETTLED: Final = 0.2
"""Of an open loop, the share of the requests after which an empty server has its load."""
LEAST: Final = 3
"""Requests of each user, without which no steady part is cut out."""
BEGIN_SHARE: Final = 0.25
"""Of a closed loop, in which the users that began together drift apart."""


def steady_requests(stage: ObservedStage, *, settled: bool = False) -> Sequence[ObservedRequest]:
    """Without the first quarter, of which there is at least a request of each user, and the last
    request of each: they came when others were not there yet, or any more. ``settled``: of an open
    loop without its beginning."""
    requests = stage.requests
    if settled and stage.rate:
        return requests[int(SETTLED * len(requests)) :]
    if not stage.users or len(requests) < LEAST * stage.users:
        return requests
    begin = max(stage.users, int(BEGIN_SHARE * len(requests)))
    return requests[begin : len(requests) - stage.users]


def stage_figures(
    stage: ObservedStage, wanted: Sequence[str] = FIGURES, *, settled: bool = False
) -> dict[str, float]:
    """By the names of ``wanted``; without those of which there is nothing. ``settled``: of an open
    loop without its beginning."""
    requests = steady_requests(stage, settled=settled)
    found = latency_figures(requests, wanted)
    if "throughput" in wanted and (tokens_per_s := throughput(stage)) is not None:
        found["throughput"] = tokens_per_s
    if {REQUESTS_PER_S, IN_FLIGHT, SERVED} & {*wanted}:
        found |= {name: value for name, value in _flow(stage, requests).items() if name in wanted}
    return found


def latency_figures(requests: Sequence[ObservedRequest], wanted: Sequence[str]) -> dict[str, float]:
    """Those of ``wanted`` that are of LATENCIES."""
    found = dict[str, float]()
    for name, value in LATENCY_FIGURES.items():
        statistics = [
            figure.partition(" ")[2] for figure in wanted if figure.startswith(f"{name} ")
        ]
        values = (
            [seconds for one in requests if (seconds := value(one)) is not None]
            if statistics
            else []
        )
        for statistic in statistics if values else ():
            found[f"{name} {statistic}"] = _statistic(values, statistic)
    return found


def _statistic(values: Sequence[float], name: str) -> float:
    return float(
        np.mean(values) if name == "avg" else np.percentile(values, float(name.removeprefix("p")))
    )


def _flow(stage: ObservedStage, requests: Sequence[ObservedRequest]) -> dict[str, float]:
    """From the first to the last send of ``requests``, which are those that came then."""
    begin, end = requests[0].sent_at, stage.requests[-1].sent_at
    if end <= begin:
        return {}
    here = [(max(one.sent_at, begin), min(one.token_at[-1], end)) for one in stage.requests]
    completed = sum(begin < one.token_at[-1] <= end for one in stage.requests)
    came = sum(begin < one.sent_at <= end for one in stage.requests)
    return {
        REQUESTS_PER_S: completed / (end - begin),
        IN_FLIGHT: sum(max(0.0, last - first) for first, last in here) / (end - begin),
        SERVED: completed / came,
    }


def throughput(stage: ObservedStage) -> float | None:
    """Output tokens a second, from the first send of the steady part to the last send. None: no
    time between them."""
    requests = steady_requests(stage)
    begin, end = requests[0].sent_at, stage.requests[-1].sent_at
    if end <= begin:
        return None
    tokens = 0.0
    for one in stage.requests:
        if one.token_at[-1] > begin and one.token_at[0] <= end:
            at = np.array(one.token_at)
            tokens += float(((at > begin) & (at <= end)).sum()) * one.tokens_a_chunk
    return tokens / (end - begin)
