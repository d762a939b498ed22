"""A soak of a real Python server with a planted leak, in real time."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

LEAK = 200_000
SERVER = Path(__file__).parents[1] / "support" / "leaky_server.py"
pytestmark = pytest.mark.slow


@contextmanager
def leaky_server(leak: int) -> Iterator[int]:
    """Yields its port."""
    process = subprocess.Popen(
        [sys.executable, str(SERVER), "0", str(leak)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline().split()[-1])
    finally:
        process.kill()
        process.wait()


def start_soak(*words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "locust_llm", "soak", "--json", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COVERAGE_PROCESS_START": ""},
    )


def read_memory(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    result = json.loads(text)
    return result, next(one for one in result["quantities"] if one["name"] == "memory")


def wait_for_readings(run: Path, soak: "subprocess.Popen[str]") -> None:
    """Some 20 of them."""
    readings = run / "soak.jsonl"
    until = time.monotonic() + 90
    while not readings.exists() or readings.stat().st_size < 5000:
        assert time.monotonic() < until, soak.communicate()
        time.sleep(0.5)


def test_a_planted_leak_is_found_after_an_interruption(tmp_path: Path) -> None:
    folder = tmp_path / "soak"
    with leaky_server(LEAK) as port:
        load = ["--host", f"http://127.0.0.1:{port}", "-u", "2", "--output-tokens-mean=8"]
        first = start_soak(*load, "-t", "80s", f"--report-dir={folder}")
        wait_for_readings(folder / "parts" / "1", first)
        first.send_signal(signal.SIGINT)
        out, errors = first.communicate(timeout=90)
        assert first.returncode == 130, errors
        assert f"continue it: locust-llm soak --continue {folder}" in errors
        before = json.loads(out)
        assert before["parts"] == 1
        second = start_soak("--continue", str(folder), "--memory-limit", "100GB")
        out, errors = second.communicate(timeout=240)
    assert second.returncode == 3, errors
    result, memory = read_memory(out)
    assert (result["parts"], result["verdict"]) == (2, "grows")
    assert memory["verdict"] == "grows"
    assert memory["per_request"]["value"] == pytest.approx(LEAK, rel=0.2)
    assert memory["full_in_hours"] > 0
    assert result["memory_source"] == "the server's metrics page"
    assert "Memory" in (folder / "soak.html").read_text()
    run = json.loads((folder / "parts" / "2" / "run.json").read_text())
    assert run["soak"]["requests"] == result["requests"] - before["requests"]
    assert "What grew" in (folder / "parts" / "2" / "report.html").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_the_load_of_a_killed_soak_ends_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "soak"
    with leaky_server(LEAK) as port:
        load = ["--host", f"http://127.0.0.1:{port}", "-u", "2", "--output-tokens-mean=8"]
        soak = start_soak(*load, "-t", "1h", "--soak-interval=1", f"--report-dir={folder}")
        wait_for_readings(folder / "parts" / "1", soak)
        (load_process,) = psutil.Process(soak.pid).children()
        soak.kill()
        soak.communicate()
        gone, alive = psutil.wait_procs([load_process], timeout=60)
        assert (len(gone), alive) == (1, [])
    assert (folder / "parts" / "1" / "report.html").exists()
    assert json.loads((folder / "parts" / "1" / "run.json").read_text())["soak"]["hours"] > 0
