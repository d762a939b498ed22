"""Without what Linux alone has: everything can be imported, and a load test runs with the Python
reader. No other system than Linux is tried."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from support.runs import CHAT, Server, records, server  # noqa: F401

WITHOUT: Final = str(Path(__file__).parents[1] / "support" / "other_system")
EVERYTHING: Final = """
import importlib, os, pkgutil, sys
assert not hasattr(os, "sched_getaffinity")
import locust
import locust_llm
tried = 0
for found in pkgutil.walk_packages(locust_llm.__path__, "locust_llm."):
    if found.name.endswith("__main__") or ".locustfiles." in found.name:
        continue
    try:
        importlib.import_module(found.name)
        tried += 1
    except ModuleNotFoundError as error:
        assert not error.name.startswith("locust_llm"), error
print(tried)
"""


def environment() -> dict[str, str]:
    return os.environ | {"LOCUST_LLM_READER": "python", "PYTHONPATH": WITHOUT}


def test_every_module_can_be_imported() -> None:
    command = [sys.executable, "-c", EVERYTHING]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) > 200


def test_the_blockade_holds() -> None:
    attempts = (
        "import os, select, ctypes; print(hasattr(select, 'epoll'), "
        "hasattr(ctypes.CDLL(None), 'timerfd_create'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", attempts],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["False", "False"]
    attempts = (
        "from locust_llm.records.machine import detect_machine; m = detect_machine(); "
        "print(repr(m.kernel), m.cores > 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", attempts],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["''", "True"], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [("-u", "4"), ("-u", "8", "--request-rate", "20")], ids=["closed loop", "schedule"]
)
def test_a_load_test_runs(server: Server, tmp_path: Path, how: tuple[str, ...]) -> None:  # noqa: F811
    folder = tmp_path / "run"
    command = [
        sys.executable, "-m", "locust", "-f", CHAT, "--headless", "--host", server.url, *how,
        "--report-dir", str(folder),
        "--no-probe", "-t", "4s", "--synthetic-input-tokens-mean", "60", "--output-tokens-mean",
        "5",
    ]  # fmt: skip
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    said = done.stdout + done.stderr
    assert "Traceback" not in said, said[-4000:]
    got = records(folder)
    assert len(got) > 5, said[-4000:]
    assert {record.outcome for record in got} <= {"ok", "cut"}
    assert json.loads((folder / "run.json").read_text())["run"]["health"][0]["reader"] == "python"
