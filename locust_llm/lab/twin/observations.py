"""Observations: what a client measured of a server, request by request, and the figures of a load.

Requests come from the episodes of a probe and from the stages of a sweep.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from locust_llm.lab.probe.requests import ProbeResult
from locust_llm.records.record import OK, Record


class ObservedRequest(NamedTuple):
    """A request that was answered in full. Seconds on one clock."""

    sent_at: float
    token_at: tuple[float, ...]
    """Of its chunks, which may hold several tokens."""
    prompt_tokens: int
    output_tokens: int
    held_s: float = 0.0
    """Before it was sent, by the load generator's gate."""

    @property
    def ttft_s(self) -> float:
        return self.token_at[0] - self.sent_at

    @property
    def ttft_from_due_s(self) -> float:
        """With the wait at the gate."""
        return self.held_s + self.ttft_s

    @property
    def latency_s(self) -> float:
        """From the send to its last token."""
        return self.token_at[-1] - self.sent_at

    @property
    def decode_s(self) -> float:
        """From its first token to its last."""
        return self.token_at[-1] - self.token_at[0]

    @property
    def itl_s(self) -> float | None:
        """The mean one; None with a single token, or where all came at once."""
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
        """The longest gap between two chunks."""
        return max((later - sooner for sooner, later in pairwise(self.token_at)), default=0.0)


class IdleEpisode(NamedTuple):
    """Requests of a probe that met an idle server."""

    kind: str
    requests: tuple[ObservedRequest, ...]

    @property
    def beside(self) -> int:
        """How many of its last requests are prompts beside decoders."""
        return {"stall": 1, "pair": 2}.get(self.kind, 0)

    @property
    def together(self) -> int:
        """How many of its last requests are equal prompts, sent at one moment."""
        return {"pair": 2, "burst": len(self.requests)}.get(self.kind, 0)


class ObservedStage(NamedTuple):
    """Requests at one load. One of ``users`` and ``rate`` is not 0."""

    users: int
    rate: float
    """Requests a second, at set times."""
    requests: tuple[ObservedRequest, ...]
    """In the order in which they were sent."""
    failed: int = 0

    @property
    def label(self) -> str:
        return f"{self.users} users" if self.users else f"{self.rate:g} requests/s"


def collect_episodes(results: Iterable[ProbeResult]) -> list[IdleEpisode]:
    """Those of which every request was answered in full; a repeated prompt only the first time, as
    a cache may have it."""
    by_number = defaultdict[int, list[ProbeResult]](list)
    for one in results:
        by_number[one.episode].append(one)
    found = list[IdleEpisode]()
    again = set[int]()
    for _, some in sorted(by_number.items()):
        first = some[0]
        repeated = first.kind == "again" and first.round in again
        again |= {first.round} if first.kind == "again" else set()
        if not repeated and all(one.whole for one in some):
            seen = sorted(map(_of_result, some), key=lambda one: one.sent_at)
            found.append(IdleEpisode(first.kind, tuple(seen)))
    return found


def _of_result(one: ProbeResult) -> ObservedRequest:
    return ObservedRequest(one.sent_at, one.chunk_at, one.input_tokens, one.output_tokens)


def observe_requests(record: Record) -> ObservedRequest | None:
    """None of a request that failed, was cut or has no chunks or counts."""
    if record.outcome != OK or not record.chunk_us or record.sent_at is None:
        return None
    if not record.input_tokens or not record.output_tokens:
        return None
    sent_at = record.sent_at + record.clock_offset_s
    token_at = tuple(sent_at + us / 1e6 for us in record.chunk_us)
    return ObservedRequest(sent_at, token_at, record.input_tokens, record.output_tokens)


# -- figures of a load -----------------------------------------------------------------------------
# TTFT, ITL, stalls and throughput of a stage, whether it was measured or simulated.

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
MOMENTS: Final = 400
"""At which the open requests of a load are counted."""
BEGIN_SHARE: Final = 0.25
"""Of a closed loop, in which the users that began together drift apart."""


def steady_requests(stage: ObservedStage) -> Sequence[ObservedRequest]:
    """Of an open loop without its beginning. Of a closed one without the first quarter, of which
    there is at least a request of each user, and the last request of each: they came when others
    were not there yet, or any more."""
    requests = stage.requests
    if stage.rate:
        return requests[int(SETTLED * len(requests)) :]
    if not stage.users or len(requests) < LEAST * stage.users:
        return requests
    begin = max(stage.users, int(BEGIN_SHARE * len(requests)))
    return requests[begin : len(requests) - stage.users]


def stage_figures(stage: ObservedStage, wanted: Sequence[str] = FIGURES) -> dict[str, float]:
    """By the names of ``wanted``; without those of which there is nothing."""
    requests = steady_requests(stage)
    found = latency_figures(requests, wanted)
    if "throughput" in wanted and (tokens_per_s := measure_throughput(stage)) is not None:
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
    """From the first to the last send of ``requests``, which are those that came then. What is not
    served adds to the queue, so its growth tells, by a line over all moments: how many are open at
    the first and at the last one is chance."""
    begin, end = requests[0].sent_at, stage.requests[-1].sent_at
    if end <= begin:
        return {}
    sent_at = np.sort([one.sent_at for one in stage.requests])
    ended_at = np.sort([one.token_at[-1] for one in stage.requests])
    moments = np.linspace(begin, end, MOMENTS)
    open_then = np.searchsorted(sent_at, moments) - np.searchsorted(ended_at, moments)
    growth = float(np.polyfit(moments - begin, open_then, 1)[0])
    here = [(max(one.sent_at, begin), min(one.token_at[-1], end)) for one in stage.requests]
    completed = sum(begin < one.token_at[-1] <= end for one in stage.requests)
    came = sum(begin < one.sent_at <= end for one in stage.requests)
    return {
        REQUESTS_PER_S: completed / (end - begin),
        IN_FLIGHT: sum(max(0.0, last - first) for first, last in here) / (end - begin),
        SERVED: max(0.0, 1 - growth * (end - begin) / came),
    }


def measure_throughput(stage: ObservedStage) -> float | None:
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
