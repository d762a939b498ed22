"""Server observations: holds a client's measurements of a server, request by request, and computes
the metrics of a load.

Requests come from the episodes of a probe and from the stages of a sweep.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from locust_llm.lab.probe.episode_requests import ProbeResult
from locust_llm.records.outcomes import OK
from locust_llm.records.record import Record
from locust_llm.trends.slope_interval import fit_slope


class ObservedRequest(NamedTuple):
    """Describes a request that was answered in full, with seconds on one clock."""

    sent_at: float
    token_at: tuple[float, ...]
    """The stamps are of chunks, which may hold several tokens."""
    prompt_tokens: int
    output_tokens: int
    held_s: float = 0.0
    """The load generator's gate delayed the send by this time."""

    @property
    def ttft_s(self) -> float:
        return self.token_at[0] - self.sent_at

    @property
    def ttft_from_due_s(self) -> float:
        """Returns the TTFT with the wait at the gate."""
        return self.held_s + self.ttft_s

    @property
    def latency_s(self) -> float:
        """Returns the time from the send to its last token."""
        return self.token_at[-1] - self.sent_at

    @property
    def decode_s(self) -> float:
        """Returns the time from its first token to its last."""
        return self.token_at[-1] - self.token_at[0]

    @property
    def itl_s(self) -> float | None:
        """Returns the mean gap, or None with a single token or a single arrival time."""
        return (
            self.decode_s / (self.output_tokens - 1)
            if self.output_tokens > 1 and self.decode_s > 0
            else None
        )

    @property
    def tokens_a_chunk(self) -> float:
        return max(1.0, self.output_tokens / len(self.token_at))

    @property
    def stall_s(self) -> float:
        """Returns the longest gap between two chunks."""
        return max((later - sooner for sooner, later in pairwise(self.token_at)), default=0.0)


class IdleEpisode(NamedTuple):
    """Holds requests of a probe that met an idle server."""

    kind: str
    requests: tuple[ObservedRequest, ...]

    @property
    def beside(self) -> int:
        """Returns how many of its last requests are prompts beside decoders."""
        return {"stall": 1, "pair": 2}.get(self.kind, 0)

    @property
    def together(self) -> int:
        """Returns how many of its last requests are equal prompts sent at one moment."""
        return {"pair": 2, "burst": len(self.requests)}.get(self.kind, 0)


class ObservedStage(NamedTuple):
    """Holds requests at one load. One of ``users`` and ``rate`` is not 0."""

    users: int
    rate: float
    """Requests are sent at this rate per second, at set times."""
    requests: tuple[ObservedRequest, ...]
    """The requests are sorted by their send times."""
    failed: int = 0

    @property
    def label(self) -> str:
        return f"{self.users} users" if self.users else f"{self.rate:g} requests/s"


def collect_episodes(results: Iterable[ProbeResult]) -> list[IdleEpisode]:
    """Collects the episodes with complete answers to every request. Repeated prompts count only the
    first time, as a cache may hold them."""
    by_number = defaultdict[int, list[ProbeResult]](list)
    for result in results:
        by_number[result.episode].append(result)
    found = list[IdleEpisode]()
    again = set[int]()
    for _, some in sorted(by_number.items()):
        first = some[0]
        repeated = first.kind == "again" and first.round in again
        again |= {first.round} if first.kind == "again" else set()
        if not repeated and all(result.whole for result in some):
            seen = sorted(map(_observe_result, some), key=lambda result: result.sent_at)
            found.append(IdleEpisode(first.kind, tuple(seen)))
    return found


def _observe_result(result: ProbeResult) -> ObservedRequest:
    return ObservedRequest(
        result.sent_at, result.chunk_at, result.input_tokens, result.output_tokens
    )


def observe_requests(record: Record) -> ObservedRequest | None:
    """Returns None for a request that failed, was cut, or lacks chunks or counts."""
    if record.outcome != OK or not record.chunk_us or record.sent_at is None:
        return None
    if not record.input_tokens or not record.output_tokens:
        return None
    sent_at = record.sent_at + record.clock_offset_s
    token_at = tuple(sent_at + us / 1e6 for us in record.chunk_us)
    return ObservedRequest(sent_at, token_at, record.input_tokens, record.output_tokens)


# -- figures of a load -----------------------------------------------------------------------------
# Stages may be measured or simulated.

FIGURES: Final = (
    "ttft p50", "ttft p95", "ttft p99", "itl p50", "itl p99", "stall p50", "stall p95",
    "throughput",
)  # fmt: skip
"""Values are in seconds, with the mean ITL and the longest gap of each request. Throughput is in
output tokens per second."""
LATENCY_FIGURES: Final[dict[str, Callable[[ObservedRequest], float | None]]] = {
    "ttft": lambda one: one.ttft_s,
    "ttft_from_due": lambda one: one.ttft_from_due_s,
    "itl": lambda one: one.itl_s,
    "stall": lambda one: one.stall_s if one.output_tokens > 1 else None,
    "request_latency": lambda one: one.latency_s,
}
"""Each function returns seconds of a request, or None. Metrics are its percentiles (``ttft p95``)
and its mean (``ttft avg``)."""
REQUESTS_PER_S: Final = "requests/s"
IN_FLIGHT: Final = "in flight"
"""This is the mean number of open requests over time."""
SERVED: Final = "served"
"""Completed requests are this share of the arrivals. It is below 1 if a queue grows."""
SETTLED: Final = 0.2
"""After this share of the requests of an open loop, an empty server has its load."""
LEAST: Final = 3
"""A steady part is selected only if each user has this many requests."""
MOMENTS: Final = 400
"""The open requests of a load are counted at this many moments."""
BEGIN_SHARE: Final = 0.25
"""During this share of a closed loop, users that began together drift apart."""


def steady_requests(stage: ObservedStage) -> Sequence[ObservedRequest]:
    """Returns the requests of the steady part. An open loop loses its beginning. A closed loop
    loses its first quarter, at least a request of each user, and each user's last request. Others
    were not there yet, or any more."""
    requests = stage.requests
    if stage.rate:
        return requests[int(SETTLED * len(requests)) :]
    if not stage.users or len(requests) < LEAST * stage.users:
        return requests
    begin = max(stage.users, int(BEGIN_SHARE * len(requests)))
    return requests[begin : len(requests) - stage.users]


def stage_figures(stage: ObservedStage, wanted: Sequence[str] = FIGURES) -> dict[str, float]:
    """Returns the ``wanted`` metrics that have a value, by name."""
    requests = steady_requests(stage)
    found = latency_figures(requests, wanted)
    if "throughput" in wanted and (tokens_per_s := measure_throughput(stage)) is not None:
        found["throughput"] = tokens_per_s
    if {REQUESTS_PER_S, IN_FLIGHT, SERVED} & {*wanted}:
        found |= {
            name: value for name, value in _measure_flow(stage, requests).items() if name in wanted
        }
    return found


def latency_figures(requests: Sequence[ObservedRequest], wanted: Sequence[str]) -> dict[str, float]:
    """Returns the ``wanted`` metrics that are of LATENCY_FIGURES."""
    found = dict[str, float]()
    for name, value in LATENCY_FIGURES.items():
        statistics = [
            figure.partition(" ")[2] for figure in wanted if figure.startswith(f"{name} ")
        ]
        if not statistics:
            continue
        values = [seconds for seconds in map(value, requests) if seconds is not None]
        if values:
            found |= {f"{name} {each}": _statistic(values, each) for each in statistics}
    return found


def _statistic(values: Sequence[float], name: str) -> float:
    return float(
        np.mean(values) if name == "avg" else np.percentile(values, float(name.removeprefix("p")))
    )


def _measure_flow(stage: ObservedStage, requests: Sequence[ObservedRequest]) -> dict[str, float]:
    """Measures the flow from the first to the last send of ``requests``. Unserved requests add to
    the queue, so its growth shows them. A line over all moments measures it, as the open requests
    at the first and the last moment depend on chance."""
    begin = requests[0].sent_at
    end = stage.requests[-1].sent_at
    if end <= begin:
        return {}
    sent_at = np.sort([request.sent_at for request in stage.requests])
    ended_at = np.sort([request.token_at[-1] for request in stage.requests])
    moments = np.linspace(begin, end, MOMENTS)
    open_then = np.searchsorted(sent_at, moments) - np.searchsorted(ended_at, moments)
    growth = fit_slope((moments - begin).tolist(), open_then.tolist()).value
    here = [
        (max(request.sent_at, begin), min(request.token_at[-1], end)) for request in stage.requests
    ]
    completed = sum(begin < request.token_at[-1] <= end for request in stage.requests)
    came = sum(begin < request.sent_at <= end for request in stage.requests)
    return {
        REQUESTS_PER_S: completed / (end - begin),
        IN_FLIGHT: sum(max(0.0, last - first) for first, last in here) / (end - begin),
        SERVED: max(0.0, 1 - growth * (end - begin) / came),
    }


def measure_throughput(stage: ObservedStage) -> float | None:
    """Returns output tokens per second from the begin of the steady part to the last send, or None
    without time between them."""
    requests = steady_requests(stage)
    begin = requests[0].sent_at
    end = stage.requests[-1].sent_at
    if end <= begin:
        return None
    tokens = 0.0
    for request in stage.requests:
        if request.token_at[-1] > begin and request.token_at[0] <= end:
            at = np.array(request.token_at)
            tokens += float(((at > begin) & (at <= end)).sum()) * request.tokens_a_chunk
    return tokens / (end - begin)
