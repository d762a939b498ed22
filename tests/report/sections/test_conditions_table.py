"""The report says what read the answers: in C, in Python, or both over several machines."""

from types import SimpleNamespace
from typing import Any

import pytest

from locust_llm.records.run_facts import ProcessHealth
from locust_llm.report.sections.conditions_table import _readers


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
