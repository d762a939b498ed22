"""Histograms: the means of the server's own histograms over a run, for all its requests together, beside those of the parts.

Of a server that reports nothing of single requests that is all it says; where estimates lie far from it, they are wrong.
"""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from locust_llm.core.engine_metrics import History, histogram
from locust_llm.core.run import Run
from locust_llm.report.results.waterfall import DECODE, OwnMean, OwnMeans, Waterfall

OURS: Final = {
    "queue": ("queue",),
    "prefill": ("prefill", "others"),
    "decode": (DECODE,),
    "inference": ("prefill", "others", DECODE),
}
"""By what a server calls it, the parts that it amounts to: to a server the prefill is all from its first step to the first
token, with whatever else is computed in between."""


def with_histograms(found: Waterfall | None, history: History, run: Run) -> Waterfall | None:
    """With those of each server whose metrics were read."""
    return None if found is None else replace(found, own_means=tuple(_of_servers(found, history, run)))


def _of_servers(found: Waterfall, history: History, run: Run) -> Iterator[OwnMeans]:
    for name in sorted(history.names):
        samples = history.between(name, run.profiling_at, run.ended_at or run.stopping_at or float("inf"))
        means = list[OwnMean]()
        for what, parts in OURS.items():
            if what == "inference" and means and means[-1].name == "decode":  # it parts the two
                continue
            if samples and (grown := histogram(samples, what)) is not None:
                here = [found.means_ms[part] for part in parts if part in found.means_ms]
                ours = sum(here) if len(here) == len(parts) else None
                means.append(OwnMean(name=what, server_ms=grown[0] * 1e3, count=grown[1], here_ms=ours))
        if means:
            engine = "simulator" if run.simulated else samples[-1].engine
            yield OwnMeans(engine=engine, source=samples[-1].source, means=tuple(means))
