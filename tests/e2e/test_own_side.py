"""Our own side failing: signals, a full disk, a reporter that dies; whatever happens, no record is
lost."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import requests

from locust_llm.controller import report_process as reporter
from locust_llm.demo_command import start_simulator
from locust_llm.exit_status import ExitStatus
from locust_llm.records.profile_export_jsonl import parse_record_line
from locust_llm.records.record import Record
from locust_llm.records.report_result import ReportResult

CHAT = str(Path(__file__).parents[2] / "locustfiles" / "chat.py")
LOAD = ("--synthetic-input-tokens-mean", "400", "--output-tokens-mean", "60", "--no-probe")
LONG = ("--synthetic-input-tokens-mean", "400", "--output-tokens-mean", "3000", "--no-probe")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with start_simulator() as url:
        yield url


def started(
    url: str, folder: Path, *words: str, before: Callable[[], object] | None = None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "locust", "-f", CHAT, "--headless", "--host", url, "--report-dir",
            str(folder), *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
        preexec_fn=before,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, err


def until(true: Callable[[], Any], patience_s: float = 30.0) -> None:
    end = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def running(url: str) -> int:
    """Requests that are being decoded, as the server says."""
    state: dict[str, int] = requests.get(f"{url}/truth", timeout=10).json()["engine"]
    return state["running"]


def lines(folder: Path) -> list[bytes]:
    path = folder / "profile_export.jsonl"
    return path.read_bytes().splitlines() if path.exists() else []


def _drop_broken_end(folder: Path) -> None:
    """Removes the line that a killed process had not written to its end."""
    path = folder / "profile_export.jsonl"
    written = path.read_bytes()
    path.write_bytes(written[: written.rfind(b"\n") + 1])


def records(folder: Path) -> list[Record]:
    return [parse_record_line(line) for line in lines(folder)]


# -- signals ---------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    "processes", [(), ("--processes", "2")], ids=["one process", "two workers"]
)
def test_sigterm_ends_a_run_in_order(url: str, tmp_path: Path, processes: tuple[str, ...]) -> None:
    process = started(url, tmp_path / "r", "-u", "4", *processes, *LOAD)
    until(lambda: len(lines(tmp_path / "r")) >= 4)
    process.send_signal(signal.SIGTERM)  # as a container's end does: to the first process alone
    status, out, err = ended(process)
    assert status == 0, err
    assert "TTFT (ms)" in out
    assert (tmp_path / "r" / "report.html").exists()
    assert {record.outcome for record in records(tmp_path / "r")} == {"ok"}
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # no process is left


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "words"),
    [
        pytest.param((), (), id="one process"),
        pytest.param((), ("-t", "4s"), id="one process that drains", marks=pytest.mark.full),
        pytest.param(("--processes", "2"), (), id="two workers", marks=pytest.mark.full),
        pytest.param(
            ("--processes", "2"), ("-t", "4s"), id="two workers that drain", marks=pytest.mark.full
        ),
    ],
)
def test_a_second_sigint_cuts_what_is_open_and_still_reports(
    url: str, tmp_path: Path, processes: tuple[str, ...], words: tuple[str, ...]
) -> None:
    process = started(
        url, tmp_path / "r", "-u", "4", *processes, *words, "--stop-timeout", "300", *LONG
    )
    until(lambda: running(url) >= 4)
    time.sleep(4.0 if words else 0.3)  # the run may end meanwhile, and wait for them
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    time.sleep(0.7)
    assert process.poll() is None  # it waits for four long answers
    os.killpg(process.pid, signal.SIGINT)
    status, out, err = ended(process)
    assert status == ExitStatus.INCOMPLETE, err  # none of them was answered
    assert "Traceback" not in err
    assert "None of 4 requests succeeded: all were unfinished when the run ended" in " ".join(
        out.split()
    )
    assert (
        "4 requests were unfinished when a second signal (Ctrl-C) came, "
        in (tmp_path / "r" / "summary.md").read_text()
    )
    got = records(tmp_path / "r")
    assert [record.outcome for record in got] == ["cut"] * 4
    assert all(len(record.chunk_us) > 10 for record in got)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # no process is left


@pytest.mark.slow
def test_a_run_that_is_killed_can_be_reported_all_the_same(url: str, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    process = started(url, folder, "-u", "4", *LOAD)
    until(lambda: len(lines(folder)) >= 8)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    _drop_broken_end(folder)
    whole = len(lines(folder))
    with (folder / "profile_export.jsonl").open("ab") as file:
        file.write(lines(folder)[0][:300])  # the line that it was writing
    done = subprocess.run(
        [sys.executable, "-m", "locust_llm", "report", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == ExitStatus.INCOMPLETE, done.stderr
    words = " ".join(done.stdout.split())  # however wide the terminal is
    assert "the run did not end cleanly" in (folder / "summary.md").read_text()
    lost = f"1 line of profile_export.jsonl could not be read (line {whole + 1}:"
    assert (
        "INCOMPLETE: the run did not finish: its load generator ended before it wrote the end, and "
        f"why is not known; {lost}" in words
    )
    assert (
        f"{whole} succeeded" in done.stdout
        or f"{whole} requests" in done.stdout
        or str(whole) in done.stdout
    )


# -- the disk --------------------------------------------------------------------------------------


def no_file_above(size: int) -> Callable[[], None]:
    """What a full disk is like: a write beyond it fails (EFBIG in place of ENOSPC)."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


@pytest.mark.slow
def test_a_full_disk_costs_no_record(url: str, tmp_path: Path) -> None:
    """The records that the disk did not take are elsewhere, and the command that is told makes the
    report of all."""
    folder = tmp_path / "r"
    process = started(
        url, folder, "-u", "8", "--request-count", "32", *LOAD, before=no_file_above(60_000)
    )
    _, _, err = ended(process)
    assert "File too large" in err
    assert "Traceback" not in err, err
    assert 0 < len(lines(folder)) < 32
    (told,) = [
        line.partition("After freeing disk space: ")[2]
        for line in err.splitlines()
        if "After freeing disk space" in line
    ]
    rest = Path(told.split()[1])
    assert told.endswith(f"locust-llm report {folder}")
    try:
        path = os.environ["PATH"]
        environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{path}"}
        again = subprocess.run(
            told, shell=True, env=environment, capture_output=True, text=True, check=False
        )
    finally:
        rest.unlink()
    assert again.returncode == 0, again.stderr
    got = records(folder)  # none is torn
    assert len(got) == len({record.id for record in got}) == 32
    assert "TTFT (ms)" in again.stdout


# -- the reporter ----------------------------------------------------------------------------------


TABLES = msgspec.json.encode(ReportResult(text="tables")).decode()


class Reporters:
    """In place of the process; answers in turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
        self.answers, self.sessions, self.killed = list(answers), [], 0
        self.returncode = 0
        monkeypatch.setattr(reporter.subprocess, "Popen", self)

    def __call__(self, command: list[str], start_new_session: bool, **how: Any) -> "Reporters":
        self.sessions.append(start_new_session)
        if isinstance(self.answers[0], BaseException):
            raise self.answers.pop(0)
        return self

    def communicate(self) -> tuple[str, str]:
        answer = self.answers.pop(0)
        if answer == "interrupted":
            reporter.give_up_reports()
            answer = (-9, "", "")
        self.returncode, out, err = answer
        return out, err

    def kill(self) -> None:
        self.killed += 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a record."""
    folder = tmp_path / "a b"
    folder.mkdir()
    (folder / "profile_export.jsonl").write_text("{}\n")
    return folder


def test_a_reporter_that_was_killed_gets_a_second_chance(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reporters = Reporters(monkeypatch, (-9, "", ""), (0, TABLES, ""))
    assert reporter.make_reports(folder) == (ReportResult(text="tables"), "")
    assert reporters.sessions == [True, True]  # out of reach of Ctrl-C
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((1, "", "broken"), "broken"),
        ((6, "", "no report could be made"), "no report could be made"),
        ((-9, "", ""), "exit status -9"),
        (OSError(12, "No memory"), "No memory"),
    ],
)
def test_a_reporter_that_dies_again_leaves_the_command(
    answer: Any,
    reason: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    Reporters(monkeypatch, answer, answer)
    result, missing = reporter.make_reports(folder)
    assert result is None
    assert (
        "The report failed; the records are saved: create the reports with locust-llm report "
        f"'{folder}'"
    ) in missing
    assert missing in caplog.text
    assert reason in caplog.text


def test_a_report_of_an_incomplete_run_is_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reporter itself says first what is missing."""
    result = ReportResult(text="tables", incomplete=True)
    Reporters(monkeypatch, (6, msgspec.json.encode(result).decode(), ""))
    assert reporter.make_reports(folder) == (result, "the records are incomplete")


@pytest.mark.parametrize(
    ("left", "said"), [("folder", "is empty"), ("nothing", "its records are missing")]
)
def test_records_that_are_not_there_are_not_called_safe(
    left: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if left == "folder":
        (tmp_path / "profile_export.jsonl").touch()
    reporters = Reporters(monkeypatch, (5, "", "is not a run folder"))
    missing = reporter.make_reports(tmp_path).missing
    assert "safe" not in missing
    assert said in missing
    assert len(reporters.sessions) == 1  # another would find none either


def test_who_does_not_wait_for_the_reports_is_left_the_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reporter.give_up_reports()  # nothing is being made
    reporters = Reporters(monkeypatch, "interrupted")
    assert reporter.make_reports(folder).result is None
    assert reporters.killed == 1
    assert (
        "No reports were created; the records are saved: create the reports with locust-llm "
        f"report '{folder}'" in caplog.text
    )


def test_a_reporter_that_hangs_is_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gevent
    import gevent.subprocess

    def hang(command: list[str], **how: Any) -> Any:
        return gevent.subprocess.Popen(["sleep", "60"], **how)

    monkeypatch.setattr(reporter.subprocess, "Popen", hang)
    monkeypatch.setattr(reporter, "PATIENCE_S", 0.2)
    with gevent.Timeout(20):
        missing = reporter.make_reports(folder).missing
    assert "The reports were stopped after 0 s; the records are saved" in missing
