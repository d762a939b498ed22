"""A warning of the report for real: a run against a stub, and one against a model."""

from pathlib import Path

import pytest
from support.runs import Server, run

from locust_llm.demo_command import start_simulator

# tests/report/sections/test_notes.py has the same from records by hand
pytestmark = pytest.mark.full


@pytest.mark.parametrize(
    ("server", "longest", "stub"),
    [(("--ttft-ms", "40", "--itl-ms", "2"), 30_000, True), ((), 3000, False)],
)
def test_a_run_against_a_stub_and_one_against_a_model(
    tmp_path: Path, server: tuple[str, ...], longest: int, stub: bool
) -> None:
    with start_simulator(*server) as url:
        words = (
            "--seq-dist",
            f"500,4:50;{longest},4:50",
            "-u",
            "4",
            "--request-count",
            "60",
            "--random-seed",
            "1",
        )
        done = run(Server(url), tmp_path / "r", *words)
    assert done.returncode == 0, done.stderr
    assert ("WARNING: TTFT does not grow with the prompt" in done.stdout) == stub, done.stdout
