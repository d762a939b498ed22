"""``--check-cancellations``: the ghost tokens of a run are those that the simulator wrote down."""

import json
from pathlib import Path
from typing import Final

import pytest
from support.runs import Server, run

from locust_llm.demo_command import start_simulator

pytestmark = pytest.mark.slow

LOAD: Final = (
    "--request-rate", "12", "--arrival-pattern", "constant", "-u", "100", "-t", "12",
    "--output-tokens-mean", "120", "--output-tokens-stddev", "0", "--synthetic-input-tokens-mean",
    "20", "--no-probe", "--selftest", "off", "--request-cancellation-rate", "50",
    "--request-cancellation-delay", "0.2", "--check-cancellations", "--slo", "ghost_tokens < 10",
)  # fmt: skip
"""An answer takes half a second; half of the clients leave behind some 45 of 120 tokens."""


@pytest.mark.parametrize(("ghosts", "status"), [("max_tokens", "FAIL"), ("none", "PASS")])
def test_the_ghost_tokens_are_those_of_the_simulator(
    tmp_path: Path, ghosts: str, status: str
) -> None:
    """A token may be on its way when a client leaves."""
    times = ("--ttft-ms", "20", "--itl-ms", "4")
    with start_simulator("--truth", "full", *times, "--quirks", f"ghosts={ghosts}") as url:
        server = Server(url)
        done = run(server, tmp_path, *LOAD)
        rows = server.rows()
    assert "Traceback" not in done.stderr, done.stderr
    found = json.loads((tmp_path / "run.json").read_text())
    work = found["cancelled_work"]
    assert work["cancelled"] >= 40
    planted = sum(row.get("ghost_tokens", 0) for row in rows) / work["cancelled"]
    assert (planted > 50) == (ghosts == "max_tokens")
    assert work["ghost_tokens"] == pytest.approx(planted, rel=0.1, abs=1.0)
    low, high = work["interval"]
    assert low - 1 <= planted <= high + 1
    assert work["still_running"] == 0
    assert [slo["status"] for slo in found["slos"]] == [status]
