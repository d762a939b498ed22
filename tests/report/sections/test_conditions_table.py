"""The report says what read the answers: in C, in Python, or both over several machines."""

from types import SimpleNamespace
from typing import Any

import pytest

from locust_llm.records.run_facts import ProcessHealth
from locust_llm.report.sections.conditions_table import _describe_gate_waits, _readers
from locust_llm.report.summary_rows import GateUse


@pytest.mark.parametrize(
    ("kinds", "says"),
    [
        ([], ""),
        ([None], ""),
        (["native"], ", reader: native"),
        (["python", "native"], ", reader: native and python"),
    ],
)
def test_what_read_the_answers(kinds: list[str | None], says: str) -> None:
    health = [
        ProcessHealth(worker=str(n), cpu_share=0.1, loop_lag_p99_ms=1.0, reader=kind)
        for n, kind in enumerate(kinds)
    ]
    run: Any = SimpleNamespace(health=health)
    assert _readers(run) == says


@pytest.mark.parametrize(
    ("waited_s", "used", "said"),
    [
        (0.0, None, "no request waited for a prefill slot"),
        (0.014, 0.311, "requests waited for a prefill slot for under 0.1 s in all"),
        (
            0.25,
            1.0,
            "100.0% of the limit used in the 0.2 s when requests waited for a prefill slot",
        ),
    ],
)
def test_the_use_of_the_limit_is_of_waits_that_last(
    waited_s: float, used: float | None, said: str
) -> None:
    gate = GateUse(mean_used=0.73, max_used=4, waited_s=waited_s, utilisation=used)
    assert _describe_gate_waits(gate) == f"; {said}"
