"""The end of a run that fails: what is known of it is written."""

from types import SimpleNamespace
from typing import Any

import pytest

from locust_llm.controller.run_controller import Controller


def test_why_the_end_of_a_run_failed_is_written_with_its_end() -> None:
    gaps = list[str]()
    written = list[tuple[str, ...]]()

    def end_parts() -> None:
        raise RuntimeError("no such reference")

    control: Any = SimpleNamespace(
        _end_parts=end_parts,
        _shown=str,
        facts=lambda: tuple(gaps),
        store=SimpleNamespace(add_gap=gaps.append, write_facts=written.append),
    )
    with pytest.raises(RuntimeError):
        Controller.report(control)
    assert written == [
        ("the load generator failed after the load: RuntimeError('no such reference')",)
    ]
