"""A tenant alone and beside the others, for real: the command, a simulator whose prompts of others
take time, the files."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from support.runs import records

from locust_llm.demo_command import start_simulator
from locust_llm.report.sections.ab_comparison import BROKEN, INCONCLUSIVE, PairedComparison
from locust_llm.settings.ab_arms import BASE


@pytest.mark.slow
def test_the_others_prompts_are_seen(tmp_path: Path) -> None:
    """Gold's user sends prompts of some 8 ms, the others' four of the same: beside them its own
    wait for theirs."""
    folder = tmp_path / "r"
    with start_simulator() as url:
        done = subprocess.run(
            [sys.executable, "-m", "locust_llm", "run", "--headless", "--host", url, "--report-dir",
                str(folder), "-u", "5",
             "-t", "22s", "--block-duration", "1", "--tenant-mix", "gold=20,free=80", "--isolate",
             "gold",
             "--synthetic-input-tokens-mean", "300", "--output-tokens-mean", "10", "--no-probe"],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode in (0, 3, 4), done.stdout + done.stderr
    sent = [record for record in records(folder) if record.phase == "profiling"]
    assert {record.tenant for record in sent if record.arm == BASE} == {"gold"}
    assert {record.tenant for record in sent if record.arm != BASE} == {"gold", "free"}
    found = msgspec.json.decode((folder / "ab.json").read_bytes(), type=PairedComparison)
    assert (found.isolated, found.pairs) == ("gold", 10)
    assert found.isolation in (BROKEN, INCONCLUSIVE)  # the latter where this machine is too busy
    ttft = next(figure for figure in found.figures if figure.label == "TTFT p50 (ms)")
    assert ttft.low_percent is not None
    assert ttft.low_percent > 10
    assert (
        "Isolation: gold with the others, compared with alone"
        in (folder / "summary.md").read_text()
    )
