"""Sweeps, repeats and exit statuses for real: the command, a simulator whose knee is known, the
files that are left."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from support.burners import a_run_against, burners

from locust_llm.demo_command import start_simulator
from locust_llm.records.run_facts import RECORDS
from locust_llm.report.write_report_files import remake_reports
from locust_llm.settings.sweep_option import STATIONARY, TIME_UP

SLOTS = 4
"""Sequences that the server decodes at a time: whoever comes beyond them waits for a whole
answer."""


@pytest.mark.full
@pytest.mark.serial
def test_the_knee_of_a_server_with_four_slots_is_four(tmp_path: Path) -> None:
    for attempt in range(3):  # another program of this machine may have been in the way of a stage
        folder = tmp_path / f"r{attempt}"
        with start_simulator("--max-num-seqs", str(SLOTS)) as url:
            run = a_run_against(
                url, folder, "--sweep", "concurrency=2..16", "--stage-duration", "1..4",
                "--stage-requests", "16",
                "--output-tokens-mean", "25", "--slo", "ttft p50 < 100ms", "--goodput",
                "time_to_first_token:100",
                "--gpus", "1", "--gpu-hour", "2",
            )  # fmt: skip
            status = run.wait(120)
        summary, facts = remake_reports(folder)
        sweep = summary.sweep
        assert sweep is not None
        if all(level.sound for level in sweep.levels):
            break
        assert any(
            "the client verdict is" in result.reason
            for level in sweep.levels
            for result in level.slos
        )
    else:
        pytest.skip(
            "in three runs the client verdict was never OK at each stage: the machine is too busy"
        )
    assert status == 0
    assert [level.value for level in sweep.levels] == [2, 4, 8, 16]
    assert [level.slo_status for level in sweep.levels] == ["PASS", "PASS", "FAIL", "FAIL"]
    assert facts.sweep_end == "all stages ran"
    assert {stage.why for stage in facts.stages} <= {STATIONARY, TIME_UP}
    knees = {knee.rule: knee for knee in sweep.knees}
    assert (knees["SLO"].value, knees["SLO"].low, knees["SLO"].high) == (SLOTS, SLOTS, 2 * SLOTS)
    knee = knees["asymptotic"].value
    assert knee is not None
    assert SLOTS / 2 < knee < 2 * SLOTS  # within one stage
    by_users = {level.value: level for level in sweep.levels}
    four, sixteen = by_users[4], by_users[16]
    assert four.goodput_per_s is not None
    assert sixteen.goodput_per_s is not None
    # beyond the knee goodput falls, and throughput stays
    assert sixteen.goodput_per_s < 0.2 * four.goodput_per_s
    assert sixteen.output_tokens_per_s == pytest.approx(four.output_tokens_per_s, rel=0.15)
    with (folder / "sweep.csv").open() as file:
        assert [float(row["concurrency"]) for row in csv.DictReader(file)] == [2, 4, 8, 16]
    for number in range(1, 5):
        stage = folder / "stages" / str(number)
        assert {"profile_export_aiperf.json", "report.html", "run.json", "summary.md"} <= {
            f.name for f in stage.iterdir()
        }
        lines = [msgspec.json.decode(line) for line in (stage / RECORDS).read_bytes().splitlines()]
        assert len(lines) == sum(
            record["record"].get("stage") == number for record in _lines(folder)
        )
    assert "concurrency 4" in (folder / "summary.md").read_text()


def _lines(folder: Path) -> list[dict[str, dict[str, object]]]:
    return [msgspec.json.decode(line) for line in (folder / RECORDS).read_bytes().splitlines()]


@pytest.mark.serial
@pytest.mark.full
def test_with_a_burnt_client_there_is_no_knee(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    with start_simulator("--max-num-seqs", str(SLOTS)) as url, burners(8 * (os.cpu_count() or 1)):
        run = a_run_against(
            url, folder, "--sweep", "concurrency=32,64,128", "--stage-duration", "3..5",
            "--stage-requests", "16",
            "--output-tokens-mean", "10", "--slo", "ttft p50 < 20s",
        )  # fmt: skip
        assert run.wait(200) == 4
    summary, _ = remake_reports(folder)
    assert summary.sweep is not None
    assert all(knee.value is None for knee in summary.sweep.knees if knee.rule == "SLO")
    assert summary.slo_status == "INCONCLUSIVE"


@pytest.mark.full
def test_repeats_tell_their_spread(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    with start_simulator() as url:
        run = a_run_against(
            url, folder, "--repeats", "3", "-u", "4", "--request-count", "20",
            "--output-tokens-mean", "5",
            "--slo", "error_rate < 50%",
        )  # fmt: skip
        assert run.wait(60) == 0
    summary, facts = remake_reports(folder)
    assert summary.sweep is not None
    assert [(level.number, level.requests) for level in summary.sweep.levels] == [
        (1, 20),
        (2, 20),
        (3, 20),
    ]
    assert summary.conditions.succeeded == 60
    assert len(facts.stages) == 3


@pytest.mark.parametrize(
    "names",
    # the others: test_run.py
    [("slo-failed", "too-few-samples"), pytest.param((), id="all", marks=pytest.mark.full)],
    ids=" ".join,
)
def test_a_build_gets_the_statuses_0_1_3_4_and_5(tmp_path: Path, names: tuple[str, ...]) -> None:
    script = Path(__file__).parents[1] / "ci.sh"
    with start_simulator() as url:
        done = subprocess.run(
            ["bash", str(script), url, str(tmp_path), *names],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHON": sys.executable},
        )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("as it should be") == (len(names) or 5)
    assert "<failure" in (tmp_path / "slo-failed" / "junit.xml").read_text()
    summary, _ = remake_reports(tmp_path / "slo-failed")
    timed, other = (result.status for result in summary.slos)
    assert other == "FAIL"
    assert timed in (
        "FAIL",
        "INCONCLUSIVE",
    )  # where the client is crowded out, or 40 alike are worth too few


@pytest.mark.full
@pytest.mark.serial
def test_a_search_finds_how_many_a_server_takes_at_a_time(tmp_path: Path) -> None:
    """Of four places each is taken for 0.9 s: a fifth user waits for about 220 ms, and first tokens
    take 10 ms else."""
    folder = tmp_path / "r"
    with start_simulator("--max-num-seqs", str(SLOTS)) as url:
        run = a_run_against(
            url, folder, "--sweep", "concurrency=1..16", "--find-max", "-t", "40",
            "--synthetic-input-tokens-mean", "50", "--output-tokens-mean", "120",
            "--slo", "ttft p95 < 150ms",
        )  # fmt: skip
        assert run.wait(120) == 0
    summary, facts = remake_reports(folder)
    sweep = summary.sweep
    assert sweep is not None
    assert sweep.capacity is not None
    assert facts.sweep_end.startswith("its time was")
    low, high = sweep.capacity.low, sweep.capacity.high
    assert low is not None
    assert high is not None
    assert low <= SLOTS <= high
    assert "Capacity: " in (folder / "summary.md").read_text()
    (result,) = summary.slos
    assert result.reason.startswith("capacity ")
    assert len({level.value for level in sweep.levels}) > 2


def test_prefill_limits_are_compared_over_two_processes(tmp_path: Path) -> None:
    """Blocks of a round have the same arrivals and lengths, whichever process sends them."""
    folder = tmp_path / "r"
    with start_simulator() as url:
        run = a_run_against(
            url, folder, "--sweep", "prefill-concurrency=1,2", "--request-rate", "20", "-t", "20",
            "--processes", "2", "--output-tokens-mean", "5", "--synthetic-input-tokens-stddev", "20",
        )  # fmt: skip
        assert run.wait(90) == 0
    summary, facts = remake_reports(folder)
    assert summary.limits is not None
    assert {row.limit for row in summary.limits.rows} == {None, 1, 2}
    assert summary.limits.rounds >= 2
    assert summary.limits.answer in (folder / "summary.md").read_text()
    sent = dict[tuple[int, int | None], list[tuple[float, object]]]()
    workers = set[object]()
    for line in _lines(folder):
        record = line["record"]
        due_at = float(str(record["due_at"])) + float(str(record["clock_offset_s"]))
        workers.add(record["worker"])
        for block in facts.limit_blocks:
            if block.round and block.counts(due_at):
                key = (block.round, block.limit)
                offset_s = round(due_at - block.began_at, 2)
                sent.setdefault(key, []).append((offset_s, record["asked_input_tokens"]))
                assert record["arm"] == ("none" if block.limit is None else str(block.limit))
                assert record["pair"] == block.round
    assert len(workers) == 2
    # a block alone may be as short as a few requests
    assert len({tokens for block in sent.values() for _, tokens in block}) > 3
    for number in range(1, summary.limits.rounds):
        first, *others = (sorted(sent[number, limit]) for limit in (None, 1, 2))
        for other in others:
            assert [tokens for _, tokens in other] == [tokens for _, tokens in first]
            assert all(abs(a - b) < 0.05 for (a, _), (b, _) in zip(first, other, strict=True))
