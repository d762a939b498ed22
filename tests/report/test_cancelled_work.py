"""The tokens that a server generated for cancelled requests: columns and counters by hand, and the
rule on them."""

from typing import Any

import pytest
from support.records import UNIX, a_run, answered

from locust_llm.records.outcomes import CANCELLED
from locust_llm.records.record import Record
from locust_llm.records.server_metrics_history import EngineHistory
from locust_llm.records.server_metrics_parser import EngineSample
from locust_llm.report.cancelled_work import CancelledWork, measure_cancelled_work
from locust_llm.report.load_records import collect_columns
from locust_llm.report.sections.cancelled_work_text import describe_cancelled_work
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.slo.rules import FAIL, INCONCLUSIVE, PASS

CHECKED = a_run(
    check_cancellations=True, request_cancellation_rate=50.0, slo=("ghost_tokens < 10",)
)


def cancel(*chunk_ms: float, **other: object) -> Record:
    return answered(*chunk_ms, outcome=CANCELLED, tokens_from="chunks", **other)


def read_counters(*tokens: float, begin: float = 9.0, **last: Any) -> EngineHistory:
    """A reading each second."""
    history = EngineHistory()
    for number, count in enumerate(tokens):
        fields = last if number == len(tokens) - 1 else {}
        history.add(
            EngineSample(at=UNIX + begin + number, engine="vLLM", generated=count, **fields)
        )
    return history


TWO_LEFT = [answered(100, 200, 300), cancel(100, 200), cancel(150)]
"""Six tokens were received, three of them by clients who left."""


def test_ghosts_are_the_tokens_that_nobody_received() -> None:
    """The server restarted between two readings: it counted 10, then 16 tokens."""
    found = measure_cancelled_work(
        read_counters(100.0, 110.0, 6.0, 16.0), collect_columns(TWO_LEFT), CHECKED
    )
    assert found == CancelledWork(
        cancelled=2, generated=26.0, received=6.0, ghost_tokens=10.0, still_running=0.0
    )
    assert describe_cancelled_work(found) == (
        "The server generated 26 tokens, and the run received 6: 10 ghost tokens for each of 2 "
        "cancelled requests, if nobody else used the server."
    )


def test_a_chunk_has_as_many_tokens_as_in_complete_answers() -> None:
    records = [answered(100, 200, output_tokens=8), cancel(100)]
    found = measure_cancelled_work(read_counters(0.0, 20.0), collect_columns(records), CHECKED)
    assert found is not None
    assert (found.received, found.ghost_tokens) == (12.0, 8.0)


@pytest.mark.parametrize(
    ("history", "records", "problem"),
    [
        (read_counters(0.0, 9.0), [answered(100)], "no request was cancelled"),
        (EngineHistory(), TWO_LEFT, "no metrics of the server"),
        (read_counters(0.0, 9.0, begin=11.0), TWO_LEFT, "no metrics of the server"),
        (
            read_counters(0.0, 9.0),
            [answered(100, tokens_from="chunks"), cancel(100)],
            "the server counts no tokens of its answers",
        ),
    ],
)
def test_why_ghosts_are_unknown(
    history: EngineHistory, records: list[Record], problem: str
) -> None:
    found = measure_cancelled_work(history, collect_columns(records), CHECKED)
    assert found is not None
    assert found.ghost_tokens is None
    assert problem in describe_cancelled_work(found)


def test_a_run_without_the_check_has_none() -> None:
    assert (
        measure_cancelled_work(read_counters(0.0, 9.0), collect_columns(TWO_LEFT), a_run()) is None
    )


@pytest.mark.parametrize(
    ("history", "status", "observed"),
    [
        (read_counters(0.0, 24.0), PASS, 9.0),
        (read_counters(0.0, 26.0), FAIL, 10.0),
        (read_counters(0.0, 24.0, running=1.0), INCONCLUSIVE, 9.0),
        (read_counters(0.0, 26.0, running=1.0), FAIL, 10.0),
        (EngineHistory(), INCONCLUSIVE, None),
    ],
)
def test_the_rule(history: EngineHistory, status: str, observed: float | None) -> None:
    columns = collect_columns(TWO_LEFT)
    work = measure_cancelled_work(history, columns, CHECKED)
    (found,) = summarise_run(columns, CHECKED, cancelled_work=work).slos
    assert (found.status, found.observed) == (status, observed)
