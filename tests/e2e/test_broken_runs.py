"""Runs that break from within: a folder that is gone, an error in a greenlet, a signal during an
import; each ends."""

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from locust_llm.demo_command import start_simulator
from locust_llm.exit_status import ExitStatus


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with start_simulator("--ttft-ms", "20", "--itl-ms", "2") as url:
        yield url


def run(folder: Path, url: str, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "locust_llm", "run", "--headless", "--host", url, "--no-probe",
            "--report-dir",
         str(folder), *words],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_a_sweep_whose_folder_is_deleted_ends_with_what_there_is(url: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    remover = threading.Thread(target=_remove_in_the_first_stage, args=(folder,))
    remover.start()
    words = ("--sweep", "concurrency=1,2", "--stage-duration", "1..1.5", "--stage-requests", "5")
    done = run(folder, url, *words, "--output-tokens-mean", "10")
    remover.join()
    assert done.returncode == ExitStatus.INCOMPLETE, done.stderr
    assert "its files could not be written" in done.stderr
    assert (folder / "profile_export.jsonl").stat().st_size
    assert "INCOMPLETE" in done.stdout


def _remove_in_the_first_stage(folder: Path) -> None:
    until = time.monotonic() + 30
    while (
        not any(path.stat().st_size for path in folder.glob("stages/1/*.jsonl"))
        and time.monotonic() < until
    ):
        time.sleep(0.02)
    shutil.rmtree(folder)


LISTENER = """
from locust import events

from locust_llm.locustfiles.run import *


@events.spawning_complete.add_listener
def fails(**kw):
    raise RuntimeError("injected")
"""


@pytest.mark.slow
def test_an_error_in_a_greenlet_wins_over_a_rule_that_passes(url: str, tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text(LISTENER)
    words = ("-f", str(tmp_path / "file.py"), "-u", "4", "-t", "1", "--slo", "ttft p50 < 100s")
    done = run(tmp_path / "run", url, *words)
    assert "SLO FAIL" not in done.stdout
    assert done.returncode == ExitStatus.BROKEN


BROKEN = """
from locust import events

from locust_llm.locustfiles.run import *
from locust_llm.{module} import {kind}


def broken(self, *args, **kw):
    raise RuntimeError("injected")


{kind}.{name} = broken
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "kind", "name", "words"),
    [
        # a schedule has no other end
        ("controller.work_allocator", "Allocator", "deal_out", ("--request-rate", "5")),
        pytest.param(
            "controller.phases", "PhaseRunner", "_time_is_up", ("-u", "1"), marks=pytest.mark.full
        ),
        pytest.param(
            "controller.records_from_workers",
            "RecordsFromWorkers",
            "flush",
            ("-u", "1"),
            marks=pytest.mark.full,
        ),
    ],
)
def test_what_breaks_inside_ends_the_run_with_status_2(
    url: str, tmp_path: Path, module: str, kind: str, name: str, words: tuple[str, ...]
) -> None:
    """Whatever the rules say of what was sent before."""
    (tmp_path / "file.py").write_text(BROKEN.format(module=module, kind=kind, name=name))
    words = ("-f", str(tmp_path / "file.py"), "-t", "1", "--slo", "error_rate < 100%", *words)
    done = run(tmp_path / "run", url, *words)
    assert done.returncode == ExitStatus.BROKEN, done.stderr
    assert "RuntimeError: injected; the run ends, and its result is incomplete" in done.stderr
    assert (tmp_path / "run" / "run.json").exists()


SWALLOWS = """
import os, signal, sys, time
from pathlib import Path

def swallowing(self, name, path=None, target=None):
    if name == "locust.main":
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        except BaseException:
            pass

sys.meta_path.insert(0, type("Finder", (), {"find_spec": swallowing})())
from locust_llm.__main__ import main
sys.argv = ["locust-llm", "run", "--help"]
sys.exit(main())
"""


def test_a_signal_while_modules_are_imported_is_not_swallowed() -> None:
    """Some of them catch all exceptions of their imports, and destructors lose them."""
    done = subprocess.run(
        [sys.executable, "-c", SWALLOWS], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (143, "")
    line = "locust-llm: SIGTERM ended the run before its load, so nothing was measured\n"
    assert done.stderr == line
