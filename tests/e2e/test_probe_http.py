"""The interference probe over HTTP: three servers of the confusion matrix in real time, diagnosed
from their records."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from locust_llm.demo_command import start_simulator
from locust_llm.exit_status import ExitStatus
from locust_llm.lab.probe.episode_requests import read_probe_result
from locust_llm.lab.probe.probe_measurements import measure_probe
from locust_llm.lab.probe.scheduler_diagnosis import (
    CANNOT_TELL,
    CHUNKED,
    PARTIAL,
    PREFILL_FIRST,
    Diagnosis,
    diagnose_scheduler,
)
from locust_llm.records.profile_export_jsonl import RecordFile

TIMES = 3
PROBE = Path(__file__).parents[2] / "locustfiles" / "interference.py"


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "budget", "slots", "words"),
    [
        (CHUNKED, 512, 1, ("--policy", "chunked", "--max-num-batched-tokens", "512")),
        (PREFILL_FIRST, None, None, ("--policy", "prefill-first")),
        (
            PARTIAL, 2048, 4,
            (
                "--policy", "partial-prefills", "--max-num-batched-tokens", "2048",
                "--max-num-partial-prefills", "4",
                "--max-long-partial-prefills", "4", "--long-prefill-token-threshold", "1310",
            ),
        ),
    ],
    ids=["chunked", "prefill-first", "partial prefills"],
)  # fmt: skip
def test_a_server_over_http(
    name: str, budget: int | None, slots: int | None, words: tuple[str, ...], tmp_path: Path
) -> None:
    """A busy machine holds the simulator or the client up, and then it is right to say that it
    cannot be told: so up to three times. Another name is wrong at once."""
    with start_simulator(*words) as url:
        said = next(
            (
                said
                for i in range(TIMES)
                if (said := probed(url, tmp_path / str(i))).name != CANNOT_TELL
            ),
            None,
        )
    assert said is not None, "it could not be told"
    assert (said.name, said.slots) == (name, slots), said
    if budget is not None:
        assert said.budget is not None
        assert said.budget[0] <= budget <= said.budget[2]


def probed(url: str, folder: Path) -> Diagnosis:
    """Also printed: pytest -s."""
    done = subprocess.run(
        [
            sys.executable, "-m", "locust", "-f", str(PROBE), "--headless", "--host",
            url.removeprefix("http://"),
            "--rounds", "2", "--longest", "16000", "--report-dir", str(folder),
        ],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode in (ExitStatus.OK, ExitStatus.INCONCLUSIVE), done.stderr
    shots = [
        shot
        for record in RecordFile(folder / "profile_export.jsonl")
        if (shot := read_probe_result(record))
    ]
    assert all(shot.ok for shot in shots)
    client = json.loads((folder / "run.json").read_text())["conditions"]["client_verdict"]
    said = diagnose_scheduler(measure_probe(shots))
    print(f"{len(shots)} shots, client {client}: {said}")
    return said
