"""The death of the thread that reads ends the run with a report and exit status 2."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.runs import Server

from locust_llm.client.reader.open_streams import DIED
from locust_llm.client.reader.reader_choice import NO_READER
from locust_llm.demo_command import start_simulator
from locust_llm.records.outcomes import CLIENT_ERROR

LOCUSTFILE = """
import gevent
from locust import events

from locust_llm import LLMUser
from locust_llm.locustfiles.run import *
from locust_llm.client.reader.reader_choice import get_open_streams


def fails(*args):
    raise MemoryError("injected")


@events.spawning_complete.add_listener
def inject(user_count, **kw):
    def die():
        gevent.sleep(0.3)
        get_open_streams()._sweep = fails

    gevent.spawn(die)
"""


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.full)])
def test_the_run_ends_with_a_report_and_status_2(tmp_path: Path, processes: int) -> None:
    """A rule that holds does not make it good."""
    (tmp_path / "file.py").write_text(LOCUSTFILE)
    with start_simulator("--ttft-ms", "50", "--itl-ms", "50") as url:
        began = time.monotonic()
        done = subprocess.run(
            [
                sys.executable, "-m", "locust", "-f", str(tmp_path / "file.py"), "--headless",
                "--host", url, "-u", "4",
                "-t", "60", "--no-probe", "--output-tokens-mean", "200", "--report-dir",
                str(tmp_path / "run"),
                "--slo", "ttft p50 < 100s", *(["--processes",
                    str(processes)] if processes > 1 else []),
            ],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert time.monotonic() - began < 50
    assert f"{DIED}: MemoryError: injected" in done.stderr
    summary = (tmp_path / "run" / "summary.md").read_text()
    assert CLIENT_ERROR in summary.replace("\\_", "_")
    assert "the run ends, and its result is incomplete" in summary
    lines = (tmp_path / "run" / "profile_export.jsonl").read_text().splitlines()
    assert any(CLIENT_ERROR in line for line in map(str, map(json.loads, lines)))


NEVER_STARTS = """
from locust_llm import LLMUser
from locust_llm.locustfiles.run import *
from locust_llm.client.reader import reader_choice


def no_thread():
    raise OSError(22, "Invalid argument")


reader_choice.kind = no_thread
"""


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_reader_that_cannot_start_ends_the_run_before_anything_is_sent(
    tmp_path: Path, processes: int
) -> None:
    (tmp_path / "file.py").write_text(NEVER_STARTS)
    with start_simulator("--truth", "full") as url:
        began = time.monotonic()
        done = subprocess.run(
            [
                sys.executable, "-m", "locust", "-f", str(tmp_path / "file.py"), "--headless",
                "--host", url, "-u", "4",
                "-t", "60", "--no-probe", "--report-dir", str(tmp_path / "run"),
                *(["--processes", str(processes)] if processes > 1 else []),
            ],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        sent = Server(url).rows()
    assert done.returncode == 2, done.stderr
    assert time.monotonic() - began < 30
    assert sent == []
    assert "Traceback" not in done.stderr
    assert f"{NO_READER}: OSError: [Errno 22] Invalid argument; the run ends" in done.stderr
