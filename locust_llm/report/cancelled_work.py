"""Cancelled work: the tokens that the server generated for requests after they were cancelled, by its
own counters."""

from collections.abc import Sequence

import msgspec

from locust_llm.records.outcomes import CANCELLED, OK
from locust_llm.records.run_facts import Run
from locust_llm.records.server_metrics_history import EngineHistory, counter_increase
from locust_llm.records.server_metrics_parser import EngineSample
from locust_llm.report.load_records import RequestColumns


class CancelledWork(msgspec.Struct, frozen=True, kw_only=True):
    """The server's work for cancelled requests. It is only known if nobody else used the server."""

    cancelled: int
    """So many requests were cancelled on purpose."""
    generated: float | None = None
    """The tokens that the server generated for all requests of the run."""
    received: float | None = None
    """The tokens that the run received. Without a count each chunk of an answer has as many as in
    complete answers."""
    ghost_tokens: float | None = None
    """(generated - received) / cancelled, at least 0. null: unknown."""
    still_running: float = 0.0
    """So many requests ran in the server at the last reading, so it generated more."""
    problem: str = ""
    """Why the ghost tokens are unknown."""


def measure_cancelled_work(
    history: EngineHistory, columns: RequestColumns, run: Run
) -> CancelledWork | None:
    """None: the run does not check cancellations."""
    if not run.settings.check_cancellations:
        return None
    requests = columns.requests
    cancelled = int((requests["outcome"] == CANCELLED).sum())
    if not cancelled:
        return CancelledWork(cancelled=0, problem="no request was cancelled")
    received = _count_received(columns)
    if received is None:
        problem = "the server counts no tokens of its answers"
        return CancelledWork(cancelled=cancelled, problem=problem)
    generated = still_running = 0.0
    for name in history.engines:
        samples = [sample for sample in history.by_name[name] if not sample.failure]
        own = _count_generated(samples, float(requests["sent_at"].min()))
        if own is None:
            history = EngineHistory()
            break
        generated += own
        still_running += samples[-1].running or 0.0
    if not history.engines:
        problem = "no metrics of the server count its tokens from before the first request on"
        return CancelledWork(cancelled=cancelled, received=received, problem=problem)
    return CancelledWork(
        cancelled=cancelled,
        generated=generated,
        received=received,
        ghost_tokens=max(generated - received, 0.0) / cancelled,
        still_running=still_running,
    )


def _count_generated(samples: Sequence[EngineSample], sent_at: float) -> float | None:
    """The increase from before the first send (Unix seconds). None: it is not known."""
    counted = [
        EngineSample(at=sample.at, engine=sample.engine, generated=sample.generated_tokens)
        for sample in samples
        if sample.generated_tokens is not None
    ]
    if not counted or counted[0].at > sent_at:
        return None
    return counter_increase(counted, "generated")


def _count_received(columns: RequestColumns) -> float | None:
    """None: complete answers have no count of the server."""
    requests = columns.requests
    complete = requests[requests["outcome"] == OK]
    if (complete["tokens_from"] != "usage").any():
        return None
    each = complete["tokens_per_chunk"].mean() if len(complete) else 1.0
    partly = requests[requests["outcome"] != OK]
    by_chunks = partly["tokens_from"] == "chunks"
    tokens = complete["output_tokens"].sum() + partly["output_tokens"][~by_chunks].sum()
    return float(tokens + max(each, 1.0) * partly["output_tokens"][by_chunks].sum())
