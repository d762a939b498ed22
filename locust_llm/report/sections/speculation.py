"""Speculation: how many draft tokens the server accepted over the profiling phase, from its answers
or its own counters."""

from collections.abc import Iterator

import msgspec
import numpy as np

from locust_llm.records.outcomes import OK
from locust_llm.records.record import DRAFTS
from locust_llm.records.run_facts import Run
from locust_llm.records.server_metrics_history import EngineHistory, counter_increase
from locust_llm.records.server_metrics_parser import EngineSample
from locust_llm.report.request_selection import RequestSelection
from locust_llm.report.request_table import RequestTable


class Speculation(msgspec.Struct, frozen=True, kw_only=True):
    """The speculative decoding of one server."""

    engine: str
    source: str = ""
    """The address of its metrics. Empty: the server's own."""
    share: float
    """The accepted share of the draft tokens."""
    drafted: int | None = None
    accepted: int | None = None
    """The count over the window. None: the server has only a rate, and ``share`` is the mean of its
    readings."""
    tokens_per_step: float | None = None
    """The tokens of a step with a draft: 1 + accepted / drafts (vLLM's mean acceptance length)."""
    window_s: float
    """The seconds from the last reading before the profiling phase, or the first in it, to the last
    in it; 0 with ``answers``."""
    answers: int = 0
    """The number of the run's answers in the sum. 0: the counts are the server's, for whoever used
    it."""


def measure_speculation(
    history: EngineHistory, run: Run, requests: RequestTable
) -> Iterator[Speculation]:
    """The speculation of each server that drafted, or of all together where the answers report it.
    ``requests`` are as in ``collect_columns``."""
    if (of_responses := _of_answers(requests, run)) is not None:
        yield of_responses
        return
    for name in sorted(history.names):
        ended_at = run.stopping_at or run.ended_at or float("inf")
        samples = history.between(name, run.profiling_at, ended_at)
        if (
            samples
            and (
                of_responses := _measure_engine_speculation(
                    samples, "simulator" if run.simulated else samples[-1].engine
                )
            )
            is not None
        ):
            yield of_responses


def _of_answers(requests: RequestTable, run: Run) -> Speculation | None:
    """The speculation in the answered requests of the profiling phase."""
    counted = RequestSelection(
        requests,
        requests.has("phase", "profiling")
        & requests.has("outcome", OK)
        & ~np.isnan(requests.floats("drafted_tokens")),
    )
    steps, drafted, accepted = (int(np.nansum(counted[name])) for name in DRAFTS)
    if not drafted:
        return None
    return Speculation(
        engine="simulator" if run.simulated else run.server.partition(" ")[0] or "the server",
        share=accepted / drafted,
        drafted=drafted, accepted=accepted, tokens_per_step=1 + accepted / steps if steps else None,
        window_s=0.0,
        answers=counted.size,
    )  # fmt: skip


def _measure_engine_speculation(samples: list[EngineSample], engine: str) -> Speculation | None:
    drafted, accepted, drafts = (
        counter_increase(samples, field) for field in ("drafted", "accepted", "drafts")
    )
    rates = [sample.acceptance for sample in samples if sample.acceptance is not None]
    window_s = samples[-1].at - samples[0].at
    source = samples[-1].source
    if drafted and accepted is not None:
        return Speculation(
            engine=engine, source=source, share=accepted / drafted, drafted=round(drafted),
            accepted=round(accepted),
            tokens_per_step=1 + accepted / drafts if drafts else None, window_s=window_s,
        )  # fmt: skip
    if rates:
        return Speculation(
            engine=engine, source=source, share=sum(rates) / len(rates), window_s=window_s
        )
    return None
