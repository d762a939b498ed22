"""The soak's own options: what it refuses, what its folder holds, and how it goes on."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from support.records import a_run

from locust_llm.exit_status import ExitStatus
from locust_llm.lab.soak import soak_command
from locust_llm.lab.soak.soak_command import (
    SoakPlan,
    finish_soak,
    make_soak_parser,
    open_session,
    run_part,
    run_soak,
)
from locust_llm.lab.soak.soak_result import read_soak_result
from locust_llm.records.run_facts import SIMULATED, write_run
from locust_llm.text.console import write_console
from locust_llm.trends.soak_readings import SoakReading

HOST = ["--host", "http://127.0.0.1:9"]
KEY = "sk-of-the-soak"


def parse(*words: str) -> tuple[argparse.Namespace, list[str]]:
    return make_soak_parser().parse_known_args(words)


def refusal(*words: str) -> str:
    options, rest = parse(*words)
    with pytest.raises(ValueError, match=r"\w") as caught:
        open_session(options, rest, print)
    return str(caught.value)


def test_options_of_the_run_keep_their_order() -> None:
    options, rest = parse("-u", "4", "-t", "4h", *HOST, "--streaming", "--pid", "7")
    assert rest == ["-u", "4", *HOST, "--streaming", "--pid", "7"]
    assert options.run_time == 14400


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (HOST, "a soak needs its length: -t 4h"),
        (["-t", "4h"], "give the server: --host localhost:8000"),
        ([*HOST, "-t", "4h", "--sweep=concurrency=1..4"], "sets --sweep by itself"),
        (["--host", "http://me:word@h", "-t", "4h"], "a login or key cannot be stored"),
        (["--continue", "/no/such"], "has no soak that could be continued"),
    ],
)
def test_what_it_refuses(words: list[str], why: str) -> None:
    assert why in refusal(*words)


def test_a_time_that_is_none_ends_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_soak([*HOST, "-t", "5s"])
    assert "from 1m on, got 5s" in capsys.readouterr().err


def test_the_folder_holds_neither_key_nor_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    folder = tmp_path / "soak"
    words = [*HOST, "-t", "4h", "--header", f"X-Api-Key: {KEY}", "--report-dir", str(folder)]
    options, rest = parse(*words, "--memory-command", f"sh -c 'echo 7; : token={KEY}'")
    session = open_session(options, rest, print)
    assert session.words == tuple(rest)
    stored = (folder / "plan.json").read_text()
    assert KEY not in stored
    assert "sh -c" not in stored
    plan = msgspec.json.decode(stored, type=SoakPlan)
    assert plan.words == HOST
    assert plan.withheld == ["--header", "--memory-command"]
    # a folder is a file of somebody: its command would run here
    why = refusal("--continue", str(folder))
    assert why == "give --header and --memory-command again: a soak's folder does not hold it"


def make_reading(number: int) -> SoakReading:
    """Of a minute."""
    return SoakReading(
        at=float(number), hours=number / 60, requests=10 * number, tokens=50 * number,
        ended=10, ttft_s=0.1, itl_s=0.01, memory_bytes=1e9 + 1e6 * number, memory_limit_bytes=2e9,
    )  # fmt: skip


def write_part(folder: Path, number: int, minutes: int, start_bytes: float = 0.0) -> None:
    """A run that was interrupted after its readings."""
    part = folder / "parts" / str(number)
    part.mkdir(parents=True)
    readings = [make_reading(minute) for minute in range(1, minutes + 1)]
    lines = [
        msgspec.json.encode(replace(one, memory_bytes=(one.memory_bytes or 0.0) + start_bytes))
        for one in readings
    ]
    (part / "soak.jsonl").write_bytes(b"\n".join(lines) + b"\n")


def test_an_interrupted_soak_goes_on_and_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "soak"
    options, rest = parse(*HOST, "-t", "2h", "-u", "3", "--report-dir", str(folder))
    open_session(options, rest, print)
    write_part(folder, 1, 60)
    write_part(folder, 2, 30, 60e6)

    options, rest = parse("--continue", str(folder), "--verbose")
    session = open_session(options, rest, write_console)
    asked = list[Sequence[str]]()

    def run(words: Sequence[str], *others: object) -> int:
        asked.append(words)
        return 0

    monkeypatch.setattr(soak_command, "run_locust_llm", run)
    assert run_part(session) == 0
    assert asked == [
        [
            "run", "--soak", *HOST, "-u", "3", "--verbose", "--headless", "--run-time=1800s",
            f"--report-dir={folder}/parts/3", "--soak-interval=30",
        ]
    ]  # fmt: skip

    result, status = finish_soak(session, ExitStatus.OK)
    assert status == ExitStatus.RULE_FAILED
    assert result is not None
    assert result == read_soak_result(folder)
    assert (result.verdict, result.parts, result.requests) == ("grows", 2, 900)
    memory = result.quantities[0]
    assert memory.per_hour is not None
    assert memory.per_hour.value == pytest.approx(60e6)
    assert memory.full_in_hours == pytest.approx((2e9 - (memory.last or 0)) / 60e6)
    page = (folder / "soak.html").read_text()
    assert "GROWS after 1.5 h and 900 requests: memory." in page
    said = capsys.readouterr().out
    assert (
        "Memory: grows by 60 MB per hour (95% interval 60 MB to 60 MB), 100 kB per request and 20 kB per token"
        in said
    )
    assert "Memory is full in 15.2 h, at the earliest in 15.2 h." in said
    assert "Error rate: stable: it grows by at most 0% per hour.\n" in said
    assert SIMULATED not in said
    write_run(folder / "parts" / "2", replace(a_run(), simulated=True))
    result, _ = finish_soak(session, ExitStatus.OK)
    assert result is not None
    assert result.notes[0] == SIMULATED
    verdict, simulated, *_ = capsys.readouterr().out.strip().splitlines()
    assert (verdict[:11], simulated) == ("GROWS after", SIMULATED)
    assert SIMULATED in (folder / "soak.html").read_text()


def test_a_signal_keeps_its_status(tmp_path: Path) -> None:
    folder = tmp_path / "soak"
    options, rest = parse(*HOST, "-t", "2h", "--report-dir", str(folder))
    session = open_session(options, rest, print)
    assert finish_soak(session, 130) == (None, 130)
    assert finish_soak(session, ExitStatus.OK) == (None, ExitStatus.INCOMPLETE)
    write_part(folder, 1, 9)
    assert finish_soak(session, 130)[1] == 130
