"""Request statistics: a finished request in Locust's statistics: its row, the rows of its
latencies, and its failure."""

from collections.abc import Mapping
from typing import Any

from locust.env import Environment

from locust_llm.locust_adapter.locust_tables import ROWS
from locust_llm.records.outcomes import CANCELLED, CUT, OK, RETRIED
from locust_llm.records.record import Record


class RequestFailed(Exception):
    """A failed request in Locust's failure table."""


class RequestCut(Exception):
    """The request still ran when the grace period at the end was over. It is no failure, and no
    reason for exit status 1."""


class RequestCancelled(Exception):
    """The request was cancelled on purpose. It is no failure, and no reason for exit status 1."""


def log_to_locust(
    environment: Environment,
    record: Record,
    failure: str,
    url: str | None,
    context: Mapping[str, Any],
    *,
    retried: bool = False,
    gated: bool = True,
) -> None:
    """``failure`` is its name in Locust's table. ``retried``: another attempt followed, so it
    counts in its own row. ``gated``: there is a prefill gate; without one nothing waits."""
    latency_s = record.latency_s
    if latency_s is None:
        latency_s = record.closed_at - (record.sent_at or record.asked_at)
    stats: Any = environment.stats  # typed as whole milliseconds, and it takes any
    if retried:
        stats.get(record.name, RETRIED).log(latency_s * 1000, 0)
    else:
        environment.events.request.fire(
            request_type="POST",
            name=record.name,
            response_time=latency_s * 1000,
            response_length=record.response_bytes,
            response=None,
            context=context,
            exception=_exception(record, failure),
            start_time=record.clock_offset_s + (record.sent_at or record.asked_at),
            url=url,
        )
    for row, seconds in zip(ROWS, (record.ttft_s, record.itl_s, record.gate_wait_s), strict=True):
        # as in the report: latencies are those of answers, but failed requests waited at the gate
        # like any other
        counts = gated if row == ROWS[-1] else record.outcome == OK
        if seconds is not None and counts:
            stats.get(record.name, row).log(seconds * 1000, 0)


def _exception(record: Record, failure: str) -> Exception | None:
    if record.outcome == OK:
        return None
    if record.outcome == CUT:
        return RequestCut(record.outcome)
    if record.outcome == CANCELLED:
        return RequestCancelled(record.outcome)
    return RequestFailed(failure)
