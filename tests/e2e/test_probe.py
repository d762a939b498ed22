"""The probe as a command: against the simulator, stopped half way, and refused where it cannot
be."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from locust_llm.demo_command import start_simulator

SMALL: Final = ("--longest", "2000", "--rounds", "2")
ROOT: Final = Path(__file__).parents[2]


def command(url: str, folder: Path, *words: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "locust_llm",
        "probe",
        "--host",
        url,
        "--report-dir",
        str(folder),
        *SMALL,
        *words,
    ]


def probe(url: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(url, folder, *words), capture_output=True, text=True, timeout=120, check=False
    )


def examination(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text())["examination"]


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with start_simulator() as url:
        yield url


@pytest.mark.full
def test_it_names_a_scheduler_or_says_what_is_missing(tmp_path: Path) -> None:
    """Prompts of 2,000 tokens on an A40 are long enough to be told. A machine that is too busy is
    another way out."""
    with start_simulator("--gpu", "a40", "--policy", "prefill-first", "--time-scale", "0.4") as url:
        done = probe(url, tmp_path / "r")
    assert "Traceback" not in done.stderr
    found = examination(tmp_path / "r")
    said = json.loads((tmp_path / "r" / "run.json").read_text())
    assert said["run"]["settings"]["command"].startswith("locust-llm probe --host")
    assert done.returncode == {"named": 0, "untold": 4}[found["outcome"]]
    assert "Scheduler: " in done.stdout
    if said["client"]["level"] == "OK":
        assert found["diagnosis"]["name"] == "prefill-first"
        assert found["advice"]


@pytest.mark.slow
def test_stopped_half_way_it_reports_what_there_is(url: str, tmp_path: Path) -> None:
    with started(*command(url, tmp_path / "r")) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "decoders without a prompt" in line:
                assert re.search(r"probe, episode \d+ of about 30: ", line)
                break
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
        out, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    assert process.returncode == 4
    assert "Scheduler: cannot tell." in out
    assert (
        "Reason: the probe was stopped early, before its first round: let it finish."
        in " ".join(out.split())
    )
    assert "Prompts alone" in (tmp_path / "r" / "summary.md").read_text()
    assert examination(tmp_path / "r")["outcome"] == "untold"


@pytest.mark.full
def test_a_server_that_fails_ends_it_with_the_status_of_failures(tmp_path: Path) -> None:
    with start_simulator("--faults", "status=500", "--fault-rate", "1") as url:
        done = probe(url, tmp_path / "r", "--no-probe")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert examination(tmp_path / "r")["outcome"] == "broken"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("--processes", "2"),
        pytest.param(("--master",), marks=pytest.mark.full),
        pytest.param(("--worker",), marks=pytest.mark.full),
        pytest.param(("-u", "3"), marks=pytest.mark.full),
        pytest.param(("--decoders", "0"), marks=pytest.mark.full),
        pytest.param(("--longest", "100"), marks=pytest.mark.full),
    ],
    ids=" ".join,
)
def test_what_cannot_be_is_refused_in_a_line(
    url: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    done = probe(url, tmp_path / "r", *words)
    assert done.returncode == 5
    assert done.stderr.startswith("locust-llm: error: ")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
def test_its_timetable_is_the_only_load() -> None:
    """In a process of its own: the probe's flags are for all parsers of the process that imports
    it."""
    code = """
import json
from argparse import Namespace
from locust_llm.settings.run_options import Settings
from locust_llm.lab.probe.probe_user import validate_probe
asked = [{}, {"prefill_concurrency": 2}, {"request_rate": 3.0}, {"streaming": False}, {"processes": 2}, {"repeats": 2},
         {"request_count": 9}, {"warmup_duration": 5.0}, {"sweep": "concurrency=1,2"}]
usual = {"longest": 32000, "decoders": 3, "rounds": 3, "master": False, "worker": False}
wrong = [{"decoders": 7}, {"master": True}, {"worker": True}, {"decoders": 0}, {"longest": 100}, {"rounds": None}]
said = [list(validate_probe(Settings(users=8, **one), Namespace(**usual))) for one in asked]
print(json.dumps(said + [list(validate_probe(Settings(users=8), Namespace(**(usual | one)))) for one in wrong]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    fine, *wrong = json.loads(done.stdout)
    assert fine == []
    assert [len(one) for one in wrong] == [1] * len(wrong)
    for flag, (said,) in zip(
        ("--prefill-concurrency", "--request-rate", "--streaming", "--processes", "--repeats",
            "--request-count",
         "--warmup-duration", "--sweep", "at least 9 users", "--master", "--worker",
         "--decoders must be at least 1, got 0",
         "--longest must be at least 2000, got 100", "--rounds must be at least 2, got nothing"),
         wrong, strict=True,
    ):  # fmt: skip
        assert flag in said


def test_both_locustfiles_are_the_same_probe() -> None:
    """That of the door lies in the package, so that an installed wheel has it."""
    classes = [
        path.read_text().partition('"""\n\n')[2].partition("class ")[0]
        for path in (
            ROOT / "locustfiles" / "interference.py",
            ROOT / "locust_llm" / "locustfiles" / "probe.py",
        )
    ]
    assert classes[0] == classes[1] == "from locust_llm import ProbeUser\n\n\n"
