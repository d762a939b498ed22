"""Histograms: the means of the server's own histograms over a run, for all its requests together.

Of a server that reports nothing of single requests that is all it says of its queue; where it does,
both stand beside each other.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Final

from msgspec.structs import replace

from locust_llm.records.run import Run
from locust_llm.records.server_metrics import EngineHistory, EngineSample, histogram_mean
from locust_llm.report.sections.latency_parts.model import (
    DECODE,
    DELIVERY,
    HISTOGRAMS,
    PREFILL,
    QUEUE,
    REQUESTS,
    TTFT,
    LatencyAttribution,
    ServerHistogramMean,
    ServerHistogramMeans,
    ServerTime,
)

OURS: Final = {
    "queue": (QUEUE,),
    "prefill": (PREFILL,),
    "decode": (DECODE, DELIVERY),
    "ttft": (TTFT,),
    "inference": (),
}
"""By what a server calls it, the parts that it amounts to; of an inference (prefill and decode)
there are none."""
REPORTED_PARTS: Final = ("queue", "prefill")
"""Parts that only the server knows."""
MIN_COUNTED: Final = 0.9
"""Of the requests of a run: a server that counted fewer has not ended the others, and its means are
of the first ones."""
MIN_SAME: Final = 0.95
"""Of the larger count: from there on first tokens and queues are of the same requests. First tokens
are counted when they come, queues when a request ends, and few end where a server is
overloaded."""

AFTER_S: Final = 5.0
"""Seconds after the end of a run in which a reading still counts as its last one."""


def add_server_histograms(
    found: LatencyAttribution | None, history: EngineHistory, run: Run
) -> LatencyAttribution | None:
    """With those of each server whose metrics were read, and with what they say of queue and
    prefill, where single requests do not."""
    if found is None:
        return None
    own_means = tuple(_of_servers(found, history, run))
    server = found.server
    if server.basis != REQUESTS:
        server = _by_histograms(own_means, found) or server
    return replace(found, own_means=own_means, server=server)


def _of_servers(
    found: LatencyAttribution, history: EngineHistory, run: Run
) -> Iterator[ServerHistogramMeans]:
    for name in sorted(history.names):
        samples = _samples(history, name, run)
        means = list[ServerHistogramMean]()
        for what, parts in OURS.items():
            # the server parts it
            if what == "inference" and any(mean.name == "decode" for mean in means):
                continue
            if samples and (grown := histogram_mean(samples, what)) is not None:
                known = parts and (what not in REPORTED_PARTS or found.server.basis == REQUESTS)
                here_ms = sum(found.means_ms[part] for part in parts) if known else None
                means.append(
                    ServerHistogramMean(
                        name=what, server_ms=grown[0] * 1e3, count=grown[1], here_ms=here_ms
                    )
                )
        if means:
            engine = "simulator" if run.simulated else samples[-1].engine
            yield ServerHistogramMeans(engine=engine, source=samples[-1].source, means=tuple(means))


def _samples(history: EngineHistory, name: str, run: Run) -> list[EngineSample]:
    """Those of the run, and the first one after it, whose counters have the last requests; after a
    stage they have those of the next one."""
    ended_at = run.ended_at or run.stopping_at or float("inf")
    last_at = ended_at + (AFTER_S if run.stage is None else 0.0)
    after = (
        sample
        for sample in history.by_name[name]
        if ended_at < sample.at < last_at and not sample.failure
    )
    return [*history.between(name, run.profiling_at, ended_at), *islice(after, 1)]


def _by_histograms(
    servers: Sequence[ServerHistogramMeans], found: LatencyAttribution
) -> ServerTime | None:
    """Of all servers together. None where they lack queue or prefill, or counted too few
    requests."""
    (queue_ms, queued), (prefill_ms, prefilled), (ttft_ms, first) = (
        _mean_over(servers, what) for what in ("queue", "prefill", "ttft")
    )
    split = [count for count in (queued, prefilled) if count]
    if not split or min(queued, prefilled) < MIN_COUNTED * found.requests:
        return None
    same = MIN_SAME * first <= min(split) and MIN_SAME * max(split) <= first
    counts = [*split, first] if same else split
    return ServerTime(
        basis=HISTOGRAMS,
        engine=" and ".join(dict.fromkeys(server.engine for server in servers)),
        server_ms=found.server.server_ms,
        count=max(counts),
        least=min(counts),
        ttft_ms=max(ttft_ms if same else 0.0, queue_ms + prefill_ms),
        queue_ms=queue_ms,
        prefill_ms=prefill_ms,
        unsplit_of=0 if same else first,
        unsplit_ms=0.0 if same else ttft_ms,
    )


def _mean_over(servers: Sequence[ServerHistogramMeans], what: str) -> tuple[float, int]:
    """(mean in ms, of how many requests); 0 of none."""
    every = chain.from_iterable(server.means for server in servers)
    means = [mean for mean in every if mean.name == what]
    count = sum(mean.count for mean in means)
    return sum(mean.server_ms * mean.count for mean in means) / max(count, 1), count
