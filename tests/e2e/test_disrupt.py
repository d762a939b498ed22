"""``--disrupt``: replicas behind a proxy, killed, drained, stopped and truncated at known times. The
proxy knows what became of each request."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest
from support.planted_replicas import Planted, planted_replicas, read_log
from support.runs import Server, command, records, run

from locust_llm.demo_command import start_simulator

pytestmark = pytest.mark.slow

LOAD: Final = (
    "--request-rate", "8", "--arrival-pattern", "constant", "-u", "200", "-t", "17",
    "--output-tokens-mean", "200", "--output-tokens-stddev", "0", "--synthetic-input-tokens-mean",
    "20",
    "--no-probe", "--no-server-metrics", "--selftest", "off",
)  # fmt: skip
"""A request each 125 ms, of a second and a half."""


def disrupt(folder: Path, planted: Planted, *more: str) -> dict[str, Any]:
    words = ("--disrupt", f"at 6s: {planted.command}", *more)
    done = run(Server(f"http://127.0.0.1:{planted.port}"), folder, *LOAD, *words)
    assert "Traceback" not in done.stderr, done.stderr
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


def of_effect(found: dict[str, Any]) -> dict[str, Any]:
    (effect,) = found["disruptions"]["effects"]
    assert effect["status"] == 0
    return effect


def list_true_fates(log: Path, began_at: float) -> dict[str, int]:
    """What became of the requests that the proxy had open when the command began."""
    requests, _ = read_log(log)
    open_then = [one for one in requests if one["opened"] < began_at < one["closed"]]
    fates = {"finished": 0, "broken": 0, "truncated": 0}
    for one in open_then:
        fates[one["end"]] += 1
    return {"total": len(open_then), **fates}


def assert_counted(found: dict[str, Any], log: Path) -> dict[str, Any]:
    """Every request in flight has its true fate, as the proxy wrote it down."""
    effect = of_effect(found)
    true = list_true_fates(log, found["run"]["disruptions"][0]["began_at"])
    counted = effect["in_flight"]
    assert true == {
        "total": counted["total"],
        "finished": counted["finished"],
        "broken": counted["failed"],
        "truncated": counted["truncated"],
    }
    assert (counted["hung"], counted["still_open"], counted["cancelled"]) == (0, 0, 0)
    assert true["total"] >= 5
    return effect


def test_a_killed_replica_of_two_loses_its_streams_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with planted_replicas(log, "kill", replicas=2) as planted:
        found = disrupt(tmp_path / "run", planted)
    effect = assert_counted(found, log)
    assert effect["in_flight"]["failed"] >= 2
    assert effect["in_flight"]["finished"] >= 2
    assert effect["recovery_s"] <= 1.0


def test_both_killed_and_back_after_four_seconds(tmp_path: Path) -> None:
    """The recovery is within a second of the planted one, and the rules decide by it."""
    log = tmp_path / "log"
    rules = ("--slo", "recovery_time < 6s", "--slo", "recovery_time < 3s")
    rules += ("--slo", "truncated_silently == 0")
    with planted_replicas(log, "kill", back_s=4.0) as planted:
        found = disrupt(tmp_path / "run", planted, *rules)
    effect = assert_counted(found, log)
    requests, commands = read_log(log)
    began_at = found["run"]["disruptions"][0]["began_at"]
    (back,) = [one["at"] for one in commands if one["command"] == "back"]
    assert effect["recovery_s"] == pytest.approx(back - began_at, abs=1.0)
    assert effect["first_success_s"] == pytest.approx(back - began_at, abs=1.0)
    lost = [one for one in requests if one["end"] in ("refused", "broken")]
    assert effect["sent"]["failed"] == sum(one["opened"] > began_at for one in lost)
    assert [slo["status"] for slo in found["slos"]] == ["PASS", "FAIL", "PASS"]
    assert found["outages"], "the headline names the same time"
    assert effect["silent_s"] == pytest.approx(back - began_at, abs=1.0)


def test_a_drained_replica_loses_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with planted_replicas(log, "drain", replicas=2) as planted:
        found = disrupt(tmp_path / "run", planted)
    effect = assert_counted(found, log)
    assert effect["in_flight"]["finished"] == effect["in_flight"]["total"]
    assert effect["sent"]["failed"] == 0
    assert "Nothing was lost." in (tmp_path / "run" / "summary.md").read_text()


def test_answers_that_only_look_complete_are_counted(tmp_path: Path) -> None:
    """Streams of one replica end with ``stop`` and a count that fits what came."""
    log = tmp_path / "log"
    with planted_replicas(log, "finish", replicas=2) as planted:
        found = disrupt(tmp_path / "run", planted, "--slo", "truncated_silently == 0")
    effect = assert_counted(found, log)
    assert effect["in_flight"]["truncated"] >= 2
    requests, _ = read_log(log)
    truncated = sum(one["end"] == "truncated" for one in requests)
    assert found["disruptions"]["truncated_silently"] == truncated
    assert found["slos"][0]["status"] == "FAIL"


def test_a_stopped_replica_is_back_when_it_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with planted_replicas(log, "stop", back_s=4.0) as planted:
        found = disrupt(tmp_path / "run", planted)
    effect = assert_counted(found, log)
    _, commands = read_log(log)
    (resumed,) = [one["at"] for one in commands if one["command"] == "back"]
    began_at = found["run"]["disruptions"][0]["began_at"]
    assert effect["recovery_s"] == pytest.approx(resumed - began_at, abs=1.0)
    assert effect["in_flight"]["finished"] == effect["in_flight"]["total"]


# -- what a command gets, and who may give one -----------------------------------------------------

QUICK: Final = (
    "-u",
    "2",
    "-t",
    "4",
    "--no-probe",
    "--output-tokens-mean",
    "5",
    "--selftest",
    "off",
)
KEY: Final = "sk-of-the-environment-0123456789abcdef"


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_command_runs_once_without_a_key_and_ends_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: str
) -> None:
    """It runs in the one process that runs the test, and not in its workers. What it started is
    killed, also in a session of its own."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    script = tmp_path / "script.sh"
    script.write_text("env >> env.txt\nsetsid sleep 300 &\necho $! > pid.txt\nwait\n")
    with start_simulator("--time-scale", "0.05") as url:
        words = ("--disrupt", f"at 1s: sh {script} --token {KEY}", "--processes", processes)
        done = subprocess.run(
            command(Server(url), tmp_path / "run", *QUICK, *words),
            capture_output=True, text=True, timeout=90, check=False, cwd=tmp_path,
        )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    environment = (tmp_path / "env.txt").read_text()
    assert environment.count("\nPATH=") + environment.startswith("PATH=") == 1
    assert KEY not in environment
    assert not lives(int((tmp_path / "pid.txt").read_text()))
    for file in (tmp_path / "run").rglob("*"):
        assert file.is_dir() or KEY.encode() not in file.read_bytes(), file
    assert KEY not in done.stderr + done.stdout
    (made,) = json.loads((tmp_path / "run" / "run.json").read_text())["run"]["disruptions"]
    assert made["command"] == f"sh {script} --token ***"
    assert (made["ended_at"], made["status"]) == (None, None)
    assert records(tmp_path / "run")


def test_no_other_source_starts_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the environment, a configuration file, the file of a scenario nor a worker."""
    monkeypatch.chdir(tmp_path)
    victim = f"at 0s: touch {tmp_path / 'victim'}"
    (tmp_path / "other.conf").write_text(f"disrupt = [{victim}]\n")
    (tmp_path / "scenario.toml").write_text(
        f'description = "x"\noutput-tokens-mean = 5\ndisrupt = ["{victim}"]\n'
    )

    def refusal(*words: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "locust_llm", "run", *words],
            capture_output=True, text=True, timeout=60, check=False,
            env=os.environ | environment, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 5, done.stderr
        return done.stderr

    here = ("--headless", "--host", "localhost:1", "-t", "2")
    only = "--disrupt works on the command line only"
    assert f"{only}, not in LOCUST_LLM_DISRUPT" in refusal(*here, LOCUST_LLM_DISRUPT=victim)
    assert f"{only}, not in a configuration file" in refusal(*here, "--config", "other.conf")
    (tmp_path / "locust.conf").write_text(f"disrupt = [{victim}]\n")
    assert f"{only}, not in a configuration file" in refusal(*here)
    (tmp_path / "locust.conf").unlink()
    assert "disrupt" in refusal(*here, "--scenario", "scenario.toml")
    assert "not to a worker" in refusal("--worker", "--disrupt", victim)
    web = refusal("--host", "localhost:1", "--disrupt", victim)
    assert "--disrupt needs --headless or --autostart: a web page starts no commands" in web
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize(
    ("words", "beside"),
    [
        (("run", "--headless", "--host", "localhost:1", "--sweep", "concurrency=1..4"), "--sweep"),
        (
            ("run", "--headless", "--host", "localhost:1", "-u", "2", "--sweep",
                "prefill-concurrency=1,2"),
            "a comparison of prefill limits",
        ),
        (
            ("ab", "--base", "localhost:1", "--candidate", "localhost:2", "-u", "2"),
            "a comparison of two servers",
        ),
        (("ab", "--base", "localhost:1", "--aa", "-u", "2"), "a comparison of two servers"),
    ],
    ids=["sweep", "limits", "ab", "aa"],
)  # fmt: skip
def test_one_line_refuses_more_than_one_load(
    tmp_path: Path, words: tuple[str, ...], beside: str
) -> None:
    victim = ("--disrupt", f"at 1s: touch {tmp_path / 'victim'}", "-t", "60")
    done = subprocess.run(
        [sys.executable, "-m", "locust_llm", *words, *victim, "--report-dir", str(tmp_path / "run")],
        capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 5, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "--disrupt" in line]
    assert f"--disrupt needs a run of one load: it cannot go with {beside}" in line
    assert not (tmp_path / "victim").exists()
    assert not (tmp_path / "run").exists()


def test_ctrl_c_ends_a_command_too(tmp_path: Path) -> None:
    with start_simulator("--time-scale", "0.05") as url:
        words = ("--disrupt", f"at 1s: sh -c 'echo $$ > {tmp_path}/pid.txt; sleep 300'")
        with subprocess.Popen(
            command(Server(url), tmp_path / "run", *QUICK[:2], "-t", "60", *QUICK[4:], *words),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            until = time.monotonic() + 40
            while not (tmp_path / "pid.txt").exists() or not (tmp_path / "pid.txt").read_text():
                assert time.monotonic() < until
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            process.wait(40)
    assert not lives(int((tmp_path / "pid.txt").read_text()))
