"""Reference answers in whole runs: one process, workers, stages, two arms, and runs of the web page
one after another."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from support.runs import CHAT, free_port, records

from locust_llm.answers.reference_answer import AFTER_LOAD, IDLE, UNDER_LOAD, ReferenceAnswer
from locust_llm.answers.reference_prompts import BUILT_IN_PROMPTS
from locust_llm.demo_command import start_simulator
from locust_llm.records.reference_answers_file import read_reference_answers
from locust_llm.records.run_facts import read_run

PROMPTS = len(BUILT_IN_PROMPTS)
LOAD = (
    "--check-answers", "--synthetic-input-tokens-mean", "60", "--output-tokens-mean", "10",
    "--no-server-metrics",
)  # fmt: skip
FAST = ("--ttft-ms", "10", "--itl-ms", "1")
"""An answer of 64 tokens takes 0.07 s, and all idle ones take three seconds."""


def load_test(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable, "-m", "locust_llm", *words, "--headless", "--report-dir", str(folder), *LOAD,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def asked(folder: Path) -> dict[str, list[ReferenceAnswer]]:
    """The answers by when they were asked. None failed."""
    answers, unread = read_reference_answers(folder)
    assert (unread, [answer.error for answer in answers if answer.error]) == (0, [])
    found: dict[str, list[ReferenceAnswer]] = {IDLE: [], UNDER_LOAD: [], AFTER_LOAD: []}
    for answer in answers:
        found[answer.asked].append(answer)
    return found


def assert_whole(folder: Path) -> None:
    """Idle before all of the load, some under it, and one of each prompt after it."""
    found = asked(folder)
    assert (len(found[IDLE]), len(found[AFTER_LOAD])) == (4 * PROMPTS, PROMPTS)
    assert found[UNDER_LOAD]
    sent = [record.asked_at + record.clock_offset_s for record in records(folder)]
    closed = [record.closed_unix_s for record in records(folder)]
    run = read_run(folder)
    assert max(answer.ended_at for answer in found[IDLE]) <= min(sent)
    assert run.profiling_at >= max(answer.ended_at for answer in found[IDLE])
    assert min(answer.sent_at for answer in found[AFTER_LOAD]) >= max(closed) - 0.05
    assert max(answer.in_flight for answer in found[UNDER_LOAD]) >= 1


@pytest.mark.parametrize(
    "processes", [(), pytest.param(("--processes", "2"), marks=pytest.mark.full)]
)
def test_a_run_asks_idle_beside_and_after(processes: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "r"
    with start_simulator(*FAST) as url:
        done = load_test(folder, "run", "--host", url, "-u", "4", "-t", "6s", *processes)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_whole(folder)
    facts = json.loads((folder / "run.json").read_bytes())
    assert facts["answers"]["references"]["prompts"] == PROMPTS
    page = (folder / "report.html").read_text()
    assert "Answers under load" in page
    assert "reference answers under load" in " ".join(done.stdout.split())
    # they are no requests of the load
    assert len(records(folder)) == facts["conditions"]["requests"] + facts["conditions"]["cut"]


@pytest.mark.full
def test_each_stage_of_a_sweep_has_the_answers_of_its_time(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    with start_simulator(*FAST) as url:
        done = load_test(folder, "run", "--host", url, "--sweep", "concurrency=1,4", "-t", "12s")
    assert done.returncode == 0, done.stdout + done.stderr
    assert_whole(folder)
    rates = [
        json.loads((folder / part / "run.json").read_bytes())["answers"]["references"]["rates"]
        for part in (".", "stages/1", "stages/2")
    ]
    whole, first, second = ({rate["situation"]: rate["answers"] for rate in part} for part in rates)
    assert whole["idle"] == first["idle"] == second["idle"] == 3 * PROMPTS
    assert first["under load"] >= 2 <= second["under load"]
    assert first["under load"] + second["under load"] <= whole["under load"]
    assert "Answers under load" in (folder / "report.html").read_text()


@pytest.mark.full
def test_both_arms_are_asked_in_their_blocks(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    with start_simulator(*FAST) as base, start_simulator(*FAST) as candidate:
        done = load_test(
            folder, "ab", "--base", base, "--candidate", candidate, "-u", "2",
            "--block-duration", "0.6", "-t", "14s",
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = asked(folder)
    assert Counter(answer.server for answer in found[IDLE]) == {
        "base": 4 * PROMPTS, "candidate": 4 * PROMPTS,
    }  # fmt: skip
    stages = read_run(folder).stages
    for answer in found[UNDER_LOAD]:
        arms = {
            stage.arm
            for stage in stages
            if stage.began_at - 1 <= answer.sent_at <= stage.ended_at + 1
        }
        assert answer.server in arms
    assert {answer.server for answer in found[UNDER_LOAD]} == {"base", "candidate"}


@contextmanager
def web_page(folder: Path, host: str) -> Iterator[str]:
    """Locust's web page. It gives its address."""
    port = free_port()
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "locust", "-f", CHAT, "--host", host, "--web-host",
                "127.0.0.1", "--web-port", str(port), "--report-dir", str(folder / "run"), *LOAD,
            ],
            stdout=log, stderr=subprocess.STDOUT, env=os.environ,
        )  # fmt: skip
        base = f"http://127.0.0.1:{port}"
        try:
            until(lambda: requests.get(f"{base}/stats/requests", timeout=5).ok)
            yield base
        finally:
            process.terminate()
            process.wait(30)


def until(condition: Any, within_s: float = 90.0) -> None:
    by = time.monotonic() + within_s
    while time.monotonic() < by:
        try:
            if condition():
                return
        except requests.ConnectionError:
            pass
        time.sleep(0.1)
    raise AssertionError("it did not happen in time")


@pytest.mark.full
def test_each_run_of_the_web_page_has_its_own_answers(tmp_path: Path) -> None:
    with start_simulator(*FAST) as url, web_page(tmp_path, url) as base:
        for name in ("run", "run-2"):
            folder = tmp_path / name
            started = requests.post(
                f"{base}/swarm", {"user_count": "2", "spawn_rate": "2", "host": url}, timeout=60,
                headers={"Origin": base},
            )  # fmt: skip
            assert started.json()["success"], started.text
            until(lambda folder=folder: len(asked(folder)[UNDER_LOAD]) >= 2)
            stopped = requests.post(f"{base}/stop", timeout=90, headers={"Origin": base})
            assert stopped.ok, stopped.text
            until(lambda folder=folder: (folder / "report.html").exists())
            assert_whole(folder)
