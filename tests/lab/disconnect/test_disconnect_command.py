"""The command: its refusals, and a short test of simulated servers whose ghosts are planted."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.simulated import started

from locust_llm.exit_status import ExitStatus
from locust_llm.lab.disconnect.disconnect_command import run_disconnect
from locust_llm.records.run_facts import SIMULATED

SCHEMA = Path(__file__).parents[3] / "docs" / "schemas" / "disconnect-output.schema.json"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["127.0.0.1:1"], "cannot reach"),
        ([], "the server's address is missing"),
        (["a:1,b:2"], "one address at a time"),
        (["127.0.0.1:1", "--slo", "ttft p95 < 1s"], "such as ghost_tokens < 10"),
        (["127.0.0.1:1", "--client", "3"], "--clients"),
    ],
)
def test_what_it_refuses(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_disconnect(words) == ExitStatus.REFUSED
    assert why in capsys.readouterr().err


def disconnect(port: int, *words: str) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, "-m", "locust_llm", "disconnect", f"127.0.0.1:{port}", "--clients", "4",
            "-t", "10s", "--json", *words],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    result = json.loads(done.stdout)
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text("utf-8"))).validate(result)
    return done.returncode, result, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ghosts", "statuses"),
    [
        ("none", (ExitStatus.OK, ExitStatus.INCONCLUSIVE)),
        ("step", (ExitStatus.OK, ExitStatus.INCONCLUSIVE)),
        ("max_tokens", (ExitStatus.RULE_FAILED,)),
        ("unstreamed", (ExitStatus.RULE_FAILED,)),
    ],
)
def test_counters_find_the_planted_ghosts(ghosts: str, statuses: tuple[ExitStatus, ...]) -> None:
    """The simulator's own record has the tokens that it generated for clients who had left. A step
    that was under way may count on either side. Two rounds on a busy machine may leave a rule open."""
    with started("--ttft-ms", "20", "--itl-ms", "2", "--quirks", f"ghosts={ghosts}") as simulator:
        ended, result, told = disconnect(simulator.port, "--slo", "ghost_tokens < 10")
        rows = [row for row in simulator.truth()["requests"] if row["aborted"]]
    assert ended in statuses, told
    assert len(result["situations"]) == 5
    assert result["simulated"]
    assert SIMULATED in told
    found = sum(one["left"] * one["ghosts"]["tokens"] for one in result["situations"])
    planted = sum(row.get("ghost_tokens", 0) for row in rows)
    assert sum(one["left"] for one in result["situations"]) == len(rows)
    # on a busy machine the counters are read at uncertain moments, and the intervals are as wide
    unsure = sum(one["left"] * one["ghosts"]["smallest"] for one in result["situations"])
    assert abs(found - planted) <= 0.1 * planted + len(rows) + unsure, (found, planted, unsure)
    assert (planted > 10 * len(rows)) == (ghosts in ("max_tokens", "unstreamed"))
    assert {one["method"] for one in result["situations"]} == {"counters"}
