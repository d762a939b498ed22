"""Whole runs: the real locust command against the simulator, whose own rows are the truth."""

import csv
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import requests
from support.runs import ROOT, Server, command, free_port, records, run

import locust_llm
from locust_llm.__main__ import main
from locust_llm.exit_status import ExitStatus
from locust_llm.report.console_summary import LINES

FILES = {
    "run.json", "profile_export.jsonl", "profile_export_aiperf.json", "profile_export_aiperf.csv",
    "summary.md",
    "report.html", "server_metrics.jsonl", "timeline.svg",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _fresh(request: pytest.FixtureRequest) -> None:
    if "server" in request.fixturenames:
        request.getfixturevalue("server").reset()


SHORT = ("--synthetic-input-tokens-mean", "400", "--output-tokens-mean", "12")


class Ran(NamedTuple):
    folder: Path
    done: subprocess.CompletedProcess[str]
    truth: dict[str, Any]
    rows: dict[str, dict[str, Any]]
    """Of the server, by the request's id."""


@pytest.fixture(scope="module")
def ran(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run that several tests look at."""
    server.reset()
    folder = tmp_path_factory.mktemp("one") / "r"
    done = run(
        server,
        folder,
        *("-u", "12", "-r", "12"),
        *("--prefill-concurrency", "3", "--request-count", "40"),
        *SHORT,
    )
    return Ran(folder, done, server.truth(), {row["id"]: row for row in server.rows()})


@pytest.mark.xdist_group("one run")
def test_one_process_keeps_the_limit_the_count_and_the_clock(ran: Ran) -> None:
    folder, done, truth, rows = ran
    assert done.returncode == 0, done.stderr
    assert {path.name for path in folder.iterdir()} == FILES
    assert "Prefill concurrency limited to 3 (session concurrency: 12)" in done.stderr
    assert "SIMULATED" in done.stdout
    assert len(done.stdout.splitlines()) <= LINES
    assert f"Report: {folder}/report.html" in done.stdout
    assert "Aggregated" not in done.stderr  # Locust's tables, which have nothing else to show
    assert truth["max_prefilling"] == 3
    # one a user; the survey and the questions of this test beside them
    assert truth["connections"] <= 12 + 4
    got = records(folder)
    assert len(got) == len(rows) == 40
    for record in got:
        row = rows[record.id]
        assert (record.input_tokens, record.output_tokens) == (
            row["prompt_tokens"],
            row["output_tokens"],
        )
        assert len(record.chunk_us) == 12
        assert record.sent_at is not None
        assert record.simulated
        # the first token was sent between these two; the kernel had it at the latest a moment later
        before, after = row["first_at"]
        at = record.sent_at + record.chunk_us[0] / 1e6
        assert before - 1e-4 <= at, (before, at)
        if not record.ttft_is_upper_bound:
            assert at <= after + 5e-3


@pytest.mark.slow
@pytest.mark.xdist_group("one run")
def test_the_report_is_remade_from_the_records(
    ran: Ran, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ran.folder
    before = {
        name: (folder / name).read_text() for name in ("summary.md", "profile_export_aiperf.csv")
    }
    (folder / "summary.md").unlink()
    assert main(["report", str(folder)]) == 0
    assert "TTFT (ms)" in capsys.readouterr().out
    assert {name: (folder / name).read_text() for name in before} == before
    frame = locust_llm.read(folder).requests
    assert len(frame) == 40
    assert (
        (frame.request_latency_s - frame.ttft_s).min() > 0 if "request_latency_s" in frame else True
    )


@pytest.mark.slow
def test_ramp_and_warmup(server: Server, tmp_path: Path) -> None:
    done = run(
        server, tmp_path / "r", "-u", "8", "--warmup-request-count", "9",
        "--warmup-prefill-concurrency", "1",
        "--prefill-concurrency", "4", "--prefill-concurrency-ramp-duration", "0.9", "-t", "2s",
        *SHORT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Warmup prefill concurrency ramping from 1" not in done.stderr
    assert "Prefill concurrency ramping from 1 to 4 over 0.9 seconds" in done.stderr
    facts = json.loads((tmp_path / "r" / "run.json").read_text())
    limits = (facts.get("run") or facts)["limits"]
    start = next(limit["at"] for limit in limits if limit["phase"] == "profiling")
    steps = [
        (limit["at"] - start, limit["limit"]) for limit in limits if limit["phase"] == "profiling"
    ]
    assert [limit for _, limit in steps] == [1, 2, 3, 4]
    for (at, _), asked_s in zip(steps, (0, 0.3, 0.6, 0.9), strict=True):
        # never sooner; later as far as this machine is busy
        assert asked_s - 0.001 <= at < asked_s + 1
    got = records(tmp_path / "r")
    assert sum(record.phase == "warmup" for record in got) == 9
    assert all(record.limit == 1 for record in got if record.phase == "warmup")
    assert server.truth()["max_prefilling"] <= 4


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.full)])
def test_processes_share_one_limit_and_one_count(
    server: Server, tmp_path: Path, processes: int
) -> None:
    done = run(
        server, tmp_path / "r", "-u", "13", "--processes", str(processes), "--prefill-concurrency",
        "5",
        "--warmup-request-count", "7", "--request-count", "61", "--csv", str(tmp_path / "locust"),
        *SHORT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    got = records(tmp_path / "r")
    assert sorted(record.id for record in got) == sorted(row["id"] for row in server.rows())
    assert (sum(r.phase == "warmup" for r in got), sum(r.phase == "profiling" for r in got)) == (
        7,
        61,
    )
    assert len({record.worker for record in got}) == processes
    assert len({(record.worker, record.user) for record in got}) == 13  # each user had its turn
    assert server.truth()["max_prefilling"] <= 5
    with (tmp_path / "locust_stats.csv").open() as file:
        counted = {
            row["Name"]: int(row["Request Count"])
            for row in csv.DictReader(file)
            if row["Type"] in ("", "POST")
        }
    assert counted["Aggregated"] == 68  # Locust's own tables are complete too


@pytest.mark.full
@pytest.mark.parametrize("processes", [(), ("--processes", "2")])
def test_the_end_of_the_time_loses_nothing(
    server: Server, tmp_path: Path, processes: tuple[str, ...]
) -> None:
    """Requests of about 0.5 s, ended after 2 s: all that were sent are recorded, and all end by
    themselves."""
    done = run(
        server, tmp_path / "r", "-u", "6", *processes, "--prefill-concurrency", "3", "-t", "2s",
        "--synthetic-input-tokens-mean", "400", "--output-tokens-mean", "60",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    got = records(tmp_path / "r")
    assert sorted(record.id for record in got) == sorted(row["id"] for row in server.rows())
    assert {record.outcome for record in got} == {"ok"}


@pytest.mark.slow
def test_what_outlasts_the_grace_period_is_cut_and_no_failure(
    server: Server, tmp_path: Path
) -> None:
    done = run(
        server, tmp_path / "r", "-u", "3", "-t", "1s", "--stop-timeout", "1", "--verbose",
        "--synthetic-input-tokens-mean", "400", "--output-tokens-mean", "5000",
    )  # fmt: skip
    assert done.returncode == ExitStatus.INCOMPLETE, done.stderr  # as none was answered
    got = records(tmp_path / "r")
    assert [record.outcome for record in got] == ["cut"] * 3
    assert all(len(record.chunk_us) > 100 for record in got)  # what came until then is kept
    said = done.stdout + done.stderr
    assert (
        said.count("one of 3 requests succeeded: all were unfinished when the run ended"),
        said.count("INCOMPLETE"),
    ) == (
        1,
        0,
    )
    # in Locust's own table, under a name of its own
    assert "RequestCut('cut')" in done.stdout + done.stderr
    _until(lambda: all(row["aborted"] for row in server.rows()), 10)  # the server saw us hang up


@pytest.mark.slow
@pytest.mark.parametrize(
    "processes", [pytest.param((), marks=pytest.mark.full), ("--processes", "2")]
)
def test_ctrl_c_drains(server: Server, tmp_path: Path, processes: tuple[str, ...]) -> None:
    process = subprocess.Popen(
        command(server, tmp_path / "r", "-u", "6", *processes, "--prefill-concurrency", "3",
                "--synthetic-input-tokens-mean", "400", "--output-tokens-mean", "60"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    until = time.monotonic() + 30
    while time.monotonic() < until and len(server.rows()) < 12:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    out, err = process.communicate(timeout=40)
    assert process.returncode == 0, err
    assert "TTFT (ms)" in out
    got = records(tmp_path / "r")
    assert sorted(record.id for record in got) == sorted(row["id"] for row in server.rows())
    assert {record.outcome for record in got} == {"ok"}
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # no process is left


@pytest.mark.slow
def test_the_share_asked_for_comes_from_the_prefix_cache_and_nothing_of_an_earlier_run(
    server: Server, tmp_path: Path
) -> None:
    """The second run has the seed of the first: what that left in the cache is another text."""
    for name in ("first", "second"):
        done = run(
            server, tmp_path / name, "-u", "6", "--processes", "2", "--request-count", "60",
            "--prefix-cache-hit-rate", "80%", "--random-seed", "4",
            "--synthetic-input-tokens-mean", "1000", "--output-tokens-mean", "8",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        phases: dict[str, list[Any]] = {"warmup": [], "profiling": []}
        for record in records(tmp_path / name):
            phases[record.phase].append(record)
        assert sorted(record.prefix for record in phases["warmup"]) == list(range(10))
        assert {record.cached_tokens for record in phases["warmup"]} == {0}
        assert len(phases["profiling"]) == 60
        found = json.loads((tmp_path / name / "run.json").read_text())["prefix_cache"]
        assert found["asked"] == 0.8
        assert found["delivered"] == pytest.approx(0.8, abs=0.01)
        assert found["implied"] == pytest.approx(found["delivered"], abs=0.01)


@pytest.mark.slow
def test_failures_are_named_and_the_exit_status_is_1(server: Server, tmp_path: Path) -> None:
    words = ("-u", "6", "--request-count", "12", "--no-probe")
    done = run(server, tmp_path / "r", *words, "--endpoint", "/v1/nope")
    assert done.returncode == 1
    got = records(tmp_path / "r")
    assert [(record.outcome, record.status) for record in got] == [("http_status", 404)] * 12
    why = (
        "each of the first 10 requests failed: 10 x http_status: HTTP 404: Not Found (the server "
        "has no /v1/nope: "
    )
    once = "None of 12 requests succeeded: HTTP 404: Not Found (the server has no /v1/nope: "
    assert (done.stderr.count(why), " ".join(done.stdout.split()).count(once)) == (1, 1)
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_without_streaming(server: Server, tmp_path: Path) -> None:
    done = run(server, tmp_path / "r", "-u", "2", "--request-count", "6", "--no-streaming", *SHORT)
    assert done.returncode == 0, done.stderr
    for record in records(tmp_path / "r"):
        assert (record.outcome, record.streamed, record.ttft_s, record.output_tokens) == (
            "ok",
            False,
            None,
            12,
        )
        assert record.latency_s is not None


@pytest.mark.full
def test_a_mixed_locustfile(server: Server, tmp_path: Path) -> None:
    done = run(
        server, tmp_path / "r", "-u", "6", "-t", "2s", "--prefill-concurrency", "2", "--csv",
        str(tmp_path / "locust"),
        *SHORT, locustfile=str(ROOT / "locustfiles" / "mixed.py"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {record.name for record in records(tmp_path / "r")} == {"short", "long"}
    assert server.truth()["max_prefilling"] <= 2
    with (tmp_path / "locust_stats.csv").open() as file:
        rows = {
            (row["Type"], row["Name"]): int(row["Request Count"]) for row in csv.DictReader(file)
        }
    requests_counted = rows["POST", "short"] + rows["POST", "long"] + rows["GET", "/v1/models"]
    assert rows["", "Aggregated"] == requests_counted  # the rows of ours are not in it
    assert rows["TTFT", "short"] == rows["POST", "short"]
    assert rows["gate wait", "long"] == rows["ITL", "long"] == rows["POST", "long"]


LISTENER = """
from locust import events as locust_events, task
from locust_llm import LLMUser, events

seen = {"first": [], "record": [], "request": []}

@events.first_token.add_listener
def first(user, name, request_id, ttft_s, **kw): seen["first"].append((request_id, name, ttft_s))

@events.record.add_listener
def record(user, record, **kw): seen["record"].append(record)

@locust_events.request.add_listener
def request(name, response_time, exception, **kw): seen["request"].append((response_time, exception))

@locust_events.quit.add_listener
def quit(**kw):
    records = {r.id: r for r in seen["record"]}
    assert len(seen["first"]) == len(records) == len(seen["request"]) == 9, seen
    for request_id, name, ttft_s in seen["first"]:
        assert abs(records[request_id].ttft_s - ttft_s) < 1e-6 and name == "mine"
    latencies = sorted(r.latency_s * 1000 for r in records.values())
    assert all(abs(a - b) < 1e-6 for a, b in zip(latencies, sorted(t for t, _ in seen["request"])))
    print("EVENTS AGREE")

class Mine(LLMUser):
    @task
    def ask(self):
        record = self.chat("Say something, please.", max_tokens=5, name="mine", keep_text=True)
        assert record.output_tokens == 5 and self.text.count(" ") >= 3, self.text
"""


@pytest.mark.slow
def test_each_event_fires_once_a_request(server: Server, tmp_path: Path) -> None:
    (tmp_path / "listener.py").write_text(LISTENER)
    done = run(
        server,
        tmp_path / "r",
        "-u",
        "3",
        "--request-count",
        "9",
        locustfile=str(tmp_path / "listener.py"),
    )
    assert done.returncode == 0, done.stderr
    assert "EVENTS AGREE" in done.stdout


@pytest.mark.full  # make test has a second run in test_web_browser.py
@pytest.mark.parametrize("processes", [(), ("--processes", "2")])
def test_a_second_run_of_the_web_ui_does_not_wait_for_the_grace_period(
    server: Server, tmp_path: Path, processes: tuple[str, ...]
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    words = [
        word for word in command(server, tmp_path / "r", *processes, *SHORT) if word != "--headless"
    ]
    process = subprocess.Popen(
        [*words, "--web-port", str(port), "--web-host", "127.0.0.1", "--prefill-concurrency", "2"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        for number in (1, 2):
            _until(lambda: requests.get(url, timeout=2).ok, 60)
            if processes:
                _until(
                    lambda: (
                        requests.get(url + "/stats/requests", timeout=2).json()["workers"].__len__()
                        == 2
                    ),
                    20,
                )
            before = len(server.rows())
            form = {"user_count": 4, "spawn_rate": 4, "host": server.url}
            answer = requests.post(url + "/swarm", data=form, timeout=10).json()
            assert answer["success"], answer
            # Locust alone: after its 30 s more
            _until(lambda before=before: len(server.rows()) > before, 10)
            _until(lambda before=before: len(server.rows()) > before + 8, 20)
            requests.post(url + "/stop", timeout=40)
            folder = tmp_path / ("r" if number == 1 else "r-2")
            _until(lambda folder=folder: (folder / "report.html").exists(), 20)
        ids = [record.id for name in ("r", "r-2") for record in records(tmp_path / name)]
        assert sorted(ids) == sorted(row["id"] for row in server.rows())
        assert server.truth()["max_prefilling"] <= 2
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        out, _ = process.communicate(timeout=20)
    assert "Traceback" not in out, out


def _until(true: Any, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if true():
                return
        except (requests.RequestException, KeyError, msgspec.DecodeError):
            pass
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {re.sub(r'<.*?>', '', str(true))}")


@pytest.mark.slow
def test_a_run_that_cannot_start_ends_its_users_at_once_and_the_next_one_runs(
    server: Server, tmp_path: Path
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    words = [word for word in command(server, tmp_path / "r", *SHORT) if word != "--headless"]
    process = subprocess.Popen(
        [*words, "--web-port", str(port), "--web-host", "127.0.0.1"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        _until(lambda: requests.get(url, timeout=2).ok, 60)
        nobody = f"http://127.0.0.1:{free_port()}"
        requests.post(
            url + "/swarm", data={"user_count": 2, "spawn_rate": 2, "host": nobody}, timeout=10
        )
        state = lambda: requests.get(url + "/stats/requests", timeout=5).json()  # noqa: E731
        _until(lambda: state()["user_count"] == 0 and state()["state"] in ("stopped", "ready"), 10)
        requests.post(
            url + "/swarm", data={"user_count": 2, "spawn_rate": 2, "host": server.url}, timeout=10
        )
        _until(lambda: len(server.rows()) > 4, 15)
        requests.post(url + "/stop", timeout=40)
        _until(lambda: (tmp_path / "r" / "report.html").exists(), 20)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        out, _ = process.communicate(timeout=20)
    assert "The run cannot start: cannot reach" in out
    assert "Traceback" not in out, out
