"""The certificate end to end: the command without a server, and a run with sentinels beside its
load."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.runs import CHAT

from locust_llm.__main__ import main
from locust_llm.demo_command import start_simulator
from locust_llm.exit_status import ExitStatus
from locust_llm.records.run_facts import read_run


@pytest.mark.serial
@pytest.mark.parametrize("tls", [False, True])
def test_the_command(tls: bool, certificate: Path) -> None:
    words = ["selftest", "--streams", "10", "--itl", "20ms", "-t", "1", "--json", *["--tls"] * tls]
    done = subprocess.run(
        [sys.executable, "-m", "locust_llm", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found = json.loads(done.stdout)
    assert not found["failures"]
    assert found["chunks"] >= 10 * 50
    assert found["tls"] is tls
    for row in (found["ttft"], found["gap"]):
        (least, most), reported = row["true"]["p50"], row["reported"]["p50"]
        low, high = row["plus_minus"]["p50"]
        assert reported - low <= most
        assert least <= reported + high
    assert done.returncode == (
        ExitStatus.OK if found["verdict"]["level"] == "OK" else ExitStatus.FAILED_REQUESTS
    )


@pytest.mark.parametrize("words", [["--streams", "0"], ["--itl", "0ms"], ["-t", "0.1"]])
def test_what_it_cannot_do_it_refuses(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", *words]) == ExitStatus.REFUSED
    assert "--streams takes" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "workers"), [([], 1), pytest.param(["--processes", "2"], 2, marks=pytest.mark.full)]
)
def test_a_run_with_sentinels(words: list[str], workers: int, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    with start_simulator("--ttft-ms", "50", "--itl-ms", "20") as url:
        command = [
            sys.executable, "-m", "locust", "-f", CHAT, "--headless", "--host", url, "--no-probe",
            "-u", "4", "-t", "7s",
            "--output-tokens-mean", "20", "--synthetic-input-tokens-mean", "50", "--report-dir",
            str(folder), *words,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    run = read_run(folder)
    assert len(run.health) == workers
    for health in run.health:
        assert health.machine is not None
        assert health.machine.kernel
        assert health.certificate is not None
        assert health.certificate.gap is not None
    facts = json.loads((folder / "run.json").read_bytes())
    assert set(facts["plus_minus"]) >= {
        "time_to_first_token",
        "inter_token_latency",
        "inter_chunk_latency",
    }
    assert "Measurement error" in (folder / "summary.md").read_text()
    records = (folder / "profile_export.jsonl").read_text()
    assert "sentinel" not in records
    assert "truth" not in records


@pytest.mark.full
def test_a_run_that_is_too_short_for_what_it_requires(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    with start_simulator() as url:
        command = [
            sys.executable, "-m", "locust", "-f", CHAT, "--headless", "--host", url, "--no-probe",
            "-u", "2", "-t", "2s",
            "--output-tokens-mean", "10", "--synthetic-input-tokens-mean", "50", "--report-dir",
            str(folder),
            "--selftest", "require", "--slo", "ttft p50 < 10s",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == ExitStatus.INCONCLUSIVE, done.stderr
    said = " ".join(done.stdout.split())
    assert said.startswith("SLO INCONCLUSIVE: The load generator's own error was not measured; ")
    why = "No measurement accuracy check, although --selftest require is set"
    assert f"CLIENT INVALID: do not use these metrics. {why}" in said
