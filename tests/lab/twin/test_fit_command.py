"""``twin fit``: folders to a twin and its report, what is told meanwhile, and what is refused."""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import jsonschema
import msgspec
import pytest
from support.probing import Noise, Server, probed
from support.twin_folders import probed_folder, swept_folder

from locust_llm.exit_status import ExitStatus
from locust_llm.lab.probe.scheduler_diagnosis import CHUNKED, Diagnosis
from locust_llm.lab.twin import child_runs as runs
from locust_llm.lab.twin import twin_command as module
from locust_llm.lab.twin import twin_file
from locust_llm.lab.twin.child_runs import (
    HEADERS,
    RunStopped,
    make_environment,
    read_log_line,
    server_words,
)
from locust_llm.lab.twin.twin_command import run_twin as command
from locust_llm.lab.twin.twin_fit import (
    format_fit_report,
    format_scheduler_settings,
    format_time,
    predict_step_s,
)
from locust_llm.lab.twin.twin_model import (
    SHAPE,
    HeldOutCheck,
    Ranges,
    SchedulerSettings,
    ServerModel,
    StepCosts,
    Trust,
    Twin,
)

from .models import plain, sweep

SCHEMA = Path(__file__).parents[3] / "docs" / "schemas" / "twin-fit-output.schema.json"
QUIET = Noise(steps=0.02)


def options(*words: str) -> argparse.Namespace:
    return module._fit_parser().parse_args(words)


@pytest.mark.slow
def test_folders_become_a_twin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(budget=1024, num_seqs=16)
    probe = probed_folder(tmp_path / "a", probed(server, QUIET, 5))
    loads = swept_folder(tmp_path / "b", sweep(server, (1, 2, 4, 8, 16, 32), QUIET))
    assert command(["fit", str(probe), str(loads)]) == ExitStatus.OK
    out = capsys.readouterr().out
    assert out.startswith("Twin of m on http://server:8000 (simulated 1): good for")
    assert "A step of one stream takes: " in out
    assert "Not known: kv-tokens" in out
    twin = twin_file.read_twin(loads / "twin.toml")
    assert twin.model.settings.max_num_batched_tokens == pytest.approx(1024, rel=0.05)
    assert twin.origin.folders == (str(probe), str(loads))
    assert {one.users for one in twin.reference} == {1, 2, 4, 8, 16, 32}


def test_a_probe_that_cannot_tell_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = probed(Server(budget=1024), QUIET, 5)[:20]
    probe = probed_folder(tmp_path / "a", few)
    loads = swept_folder(tmp_path / "b", sweep(Server(budget=1024), (1, 2), QUIET))
    assert command(["fit", str(probe), str(loads)]) == ExitStatus.INCONCLUSIVE
    out = capsys.readouterr().out
    assert "The probe cannot identify the scheduler of the server, so there is no twin: " in out
    assert "locust-llm twin fit --host URL" in out
    assert command(["fit", str(probe), str(loads), "--json"]) == ExitStatus.INCONCLUSIVE
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, json.loads(SCHEMA.read_text("utf-8")))
    assert found["file"] is None
    assert found["why_no_twin"] == out.strip()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "twin fit needs --host URL, or the folders"),
        (["/nowhere"], "/nowhere is not a run folder"),
        (["--most-users", "1"], "takes a whole number from 2"),
        (["--time", "5s"], "takes a time such as 90s or 6m"),
        (["--output-tokens-mean", "-3"], "takes a number of tokens"),
        (["--sweep", "concurrency=1..2"], "unrecognized arguments"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["fit", *words]) == ExitStatus.REFUSED
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1


def test_unknown_commands_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["feed"]) == ExitStatus.REFUSED
    assert command(["--help"]) == ExitStatus.OK
    assert "drift" in capsys.readouterr().out


def test_the_server_options_reach_both_runs() -> None:
    given = options(
        "--host", "h:1", "--model", "m", "--no-streaming", "--header", "A: b", "--ca-cert=c.pem"
    )
    words = server_words(given)
    assert words[:2] == ["--host", "h:1"]
    assert {"--model=m", "--no-streaming", "--ca-cert=c.pem"} <= {*words}
    # a header may be a key, and is in no list of processes
    assert not any("A: b" in word for word in words)
    assert make_environment(given, {HEADERS: "C: d"})[HEADERS] == "C: d\nA: b"
    assert HEADERS not in make_environment(options("--host", "h"), {})


def test_the_sweep_doubles_within_its_time() -> None:
    words = module._sweep(options("--host", "h", "--time", "3m", "--most-users", "32"))
    assert {"--sweep=concurrency=1..32", "--run-time=180s", "--stage-duration=10..60"} <= {*words}
    assert "--synthetic-input-tokens-stddev=500" in words


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("[2026-11-23 07:41:39,854] vm/INFO/locust_llm: probe, episode 1 of about 43: a short "
            "request",
         "probe, episode 1 of about 43: a short request"),
        ("[2026-11-23 07:41:16,632] vm/INFO/locust_llm: Stage 3 of 4, concurrency 4: TTFT p50 42 "
            "ms, 433 tokens/s (time)",
         "sweep, 4 users: TTFT p50 42 ms, 433 tokens/s (time)"),
        ("[2026-11-23 07:41:16,632] vm/INFO/locust_llm: Stage 1 of 4, concurrency 1: 9 tokens/s",
         "sweep, 1 user: 9 tokens/s"),
        ("[2026-11-23 07:41:16,633] vm/INFO/locust.runners: Ramping to 8 users at a rate of 100.00 "
            "per second", ""),
        ("[2026-11-23 07:41:16,633] vm/WARNING/locust_llm: the disk is full", "the disk is full"),
        ("locust-llm: error: there is no server", "there is no server"),
        ("stage 4 of 4 | 3 done", ""),
    ],
)  # fmt: skip
def test_what_a_line_tells(line: str, told: str) -> None:
    assert read_log_line(line) == told


def test_a_child_ends_with_its_own_status(tmp_path: Path) -> None:
    told = list[str]()
    assert (
        runs.run_locust_llm(["run", "--nonsense"], os.environ, tmp_path / "log", told.append)
        == ExitStatus.REFUSED
    )
    assert "nonsense" in told[0]
    assert "nonsense" in (tmp_path / "log").read_text()


def test_a_signal_ends_the_child_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that says when it is there, and ends on the signal."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        pytest.skip(
            "these tests run in the background of a script, whose children ignore SIGINT until "
            "they handle it"
        )
    child = tmp_path / "child"
    child.write_text("#!/bin/sh\necho 'locust-llm: error: here' >&2\nexec sleep 60\n")
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))
    began = time.monotonic()
    with pytest.raises(RunStopped) as stopped:
        runs.run_locust_llm(
            [], os.environ, tmp_path / "log", lambda line: signal.raise_signal(signal.SIGINT)
        )
    assert stopped.value.status == 130
    assert time.monotonic() - began < 50


def test_a_folder_of_runs_is_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    assert runs.make_session_folder(tmp_path / "t") == tmp_path / "t"
    (tmp_path / "t" / "probe").mkdir()
    assert runs.make_session_folder(tmp_path / "t") == tmp_path / "t-2"


def test_steps_in_words() -> None:
    """10 ms, and 0.1 ms for each of (100 + 4 - 24) tokens, and 1 ms for each of 5 sequences."""
    cost = StepCosts(fixed_s=0.01, token_s=0.0001, stream_s=0.001, free_tokens=24)
    model = ServerModel(
        settings=SchedulerSettings(policy="chunked", max_num_batched_tokens=100), cost=cost
    )
    assert predict_step_s(model, 100, 4) == pytest.approx(0.01 + 0.008 + 0.005)
    assert format_time(0.0123) == "12.3 ms"
    assert format_time(2.5e-5) == "25 µs"
    assert format_time(0.01, [0.009, 0.011]) == "10 ms (6.89 to 13.1)"  # ± 2.2 x the root of two


def test_the_report_has_the_verdict_the_settings_and_the_checks() -> None:
    check = HeldOutCheck(
        load="8 users", figure="ttft p50", said=0.2, low=0.1, high=0.3, measured=0.25, requests=40
    )
    twin = Twin(
        model=plain(budget=512, max_num_seqs=16),
        trust=Trust(verdict=SHAPE, reasons=("it was off by 20%",)),
        ranges=Ranges(users=(1, 8)), unknown={"kv_tokens": "no limit was observed"}, checks=(check,),
    )  # fmt: skip
    text = format_fit_report(twin, Diagnosis(CHUNKED, reasons=("a prompt took 4 steps",)))
    assert "good for relative changes only.\nWhy: it was off by 20%." in text
    assert "Scheduler: chunked, 512 tokens per step, at most 16 requests at a time." in text
    assert "Because: a prompt took 4 steps." in text
    assert "Not known: kv-tokens: no limit was observed." in text
    assert (
        "8 users (40 requests)  ttft p50       200 ms  100 ms to 300 ms      250 ms     -20%"
        in text
    )
    assert format_scheduler_settings(
        msgspec.structs.replace(twin.model.settings, policy="static")
    ).startswith("static, at least 512")


def test_who_is_stopped_hears_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module._go_on([tmp_path / "a", tmp_path / "b"])
    assert capsys.readouterr().err.endswith(
        f"To continue: locust-llm twin fit {tmp_path / 'a'} {tmp_path / 'b'}\n"
    )
    module._go_on([tmp_path / "a"])
    assert "start a new one" in capsys.readouterr().err
