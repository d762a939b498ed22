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


def test_a_planted_leak_is_found_after_an_interruption(tmp_path: Path) -> None:
    folder = tmp_path / "soak"
    with leaky_server(LEAK) as port:
        load = ["--host", f"http://127.0.0.1:{port}", "-u", "2", "--output-tokens-mean=8"]
        first = start_soak(*load, "-t", "60s", f"--report-dir={folder}")
        until = time.monotonic() + 90
        while not (folder / "soak.jsonl").exists() or (folder / "soak.jsonl").stat().st_size < 4000:
            assert time.monotonic() < until, first.communicate()
            time.sleep(0.5)
        first.send_signal(signal.SIGINT)
        out, errors = first.communicate(timeout=90)
        assert first.returncode == 130, errors
        assert f"continue it: locust-llm soak --continue {folder}" in errors
        assert json.loads(out)["parts"] == 1
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
