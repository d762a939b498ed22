"""Two arms for real: the command, two simulators of which one is slower, the files that are
left."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from support.runs import records

from locust_llm.demo_command import start_simulator
from locust_llm.records.record import Record
from locust_llm.records.run_facts import read_run
from locust_llm.report.sections.ab_comparison import DIFFERENT, INCONCLUSIVE, PairedComparison
from locust_llm.settings.ab_arms import BASE, CANDIDATE

SHORT = (
    "--block-duration", "0.6", "-t", "14s", "--output-tokens-mean", "10",
    "--synthetic-input-tokens-mean", "200",
    "--synthetic-input-tokens-stddev", "60", "--random-seed", "5",
)  # fmt: skip


def ab(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "locust_llm", "ab", "--report-dir", str(folder), *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env=os.environ | env
    )


def by_block(folder: Path) -> dict[tuple[int, str], list[Record]]:
    found: dict[tuple[int, str], list[Record]] = {}
    for record in sorted(records(folder), key=lambda record: record.due_at + record.clock_offset_s):
        found.setdefault((record.pair, record.arm), []).append(record)
    return found


@pytest.mark.full
@pytest.mark.parametrize("processes", [(), ("--processes", "2")])
def test_a_slower_candidate_is_found_out(processes: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "r"
    with start_simulator() as base, start_simulator("--time-scale", "1.5") as candidate:
        done = ab(
            folder, "--base", base, "--candidate", candidate, "-u", "3", *processes, *SHORT,
            "--slo", "itl p50 within 10% of base", "--slo", "error_rate < 1%",
        )  # fmt: skip
    run, found = (
        read_run(folder),
        msgspec.json.decode((folder / "ab.json").read_bytes(), type=PairedComparison),
    )
    assert [(arm.name, arm.host) for arm in run.arms] == [(BASE, base), (CANDIDATE, candidate)]
    assert any(note.startswith("The base's own metrics (simulator, ") for note in run.notes)
    assert [(stage.pair, stage.arm) for stage in run.stages] == [
        (block.pair, block.arm) for block in run.settings.blocks
    ]
    for stage, block in zip(run.stages, run.settings.blocks, strict=True):
        assert stage.ended_at - stage.began_at == pytest.approx(block.load_s)
    blocks = by_block(folder)
    # in which users are still to come
    first = [r for arm in (BASE, CANDIDATE) for r in blocks.pop((0, arm), [])]
    assert len(blocks) == 20
    assert {r.phase for r in first} <= {"warmup"}
    for pair in range(1, 11):
        one, other = (blocks[pair, arm] for arm in (BASE, CANDIDATE))
        asked = [Counter(r.asked_input_tokens for r in some) for some in (one, other)]
        # each process draws the same lengths in the same order, but may come less far in one of the
        # blocks
        assert (asked[0] & asked[1]).total() >= min(len(one), len(other)) / 2
        assert {r.phase for r in one + other if _at(r, run) > 0.2} <= {"profiling"}
        assert all(r.phase == "warmup" for r in one + other if _at(r, run) < 0.1)
    assert found.pairs == 10
    if found.verdict == INCONCLUSIVE:
        pytest.skip(f"the machine is too busy: {found.reason}")
    assert done.returncode == 3, done.stdout + done.stderr
    assert found.verdict == DIFFERENT
    itl = next(figure for figure in found.figures if figure.label == "ITL p50 (ms)")
    assert (itl.word, itl.percent) == ("worse", pytest.approx(50, abs=20))
    assert ": The candidate differs: " in done.stdout
    for text in ((folder / "summary.md").read_text(), (folder / "report.html").read_text()):
        assert "A/B: candidate against base" in text


def _at(record: Record, run: object) -> float:
    """Seconds after the begin of its block."""
    stages = run.stages  # type: ignore[attr-defined]
    return float(record.due_at + record.clock_offset_s - stages[record.stage - 1].began_at)


@pytest.mark.slow
def test_one_server_with_a_cache_and_a_secret_of_the_candidate(tmp_path: Path) -> None:
    folder, log = tmp_path / "r", tmp_path / "rows.jsonl"
    log.write_text("".join(f'{{"text": "row {i} {"word " * 60}"}}\n' for i in range(30)))
    with start_simulator("--enable-prefix-caching") as url:
        done = ab(
            folder, "--base", url, "--candidate-set", "header:X-Key=sesame-open", "-u", "2", *SHORT,
            "--input-file", str(log), "--candidate-set", "body.temperature=0.5", "--no-probe",
        )  # fmt: skip
    assert done.returncode in (0, 4), done.stdout + done.stderr
    everything = (
        done.stdout + done.stderr + "".join(p.read_text() for p in folder.rglob("*") if p.is_file())
    )
    assert "sesame-open" not in everything
    run = read_run(folder)
    assert run.arms[1].changes == ("header:X-Key=***", "body.temperature=0.5")
    cached = [r.cached_tokens or 0 for r in records(folder) if r.phase == "profiling"]
    # a block of the template at most: no row was seen before in this block
    assert max(cached) <= 32


@pytest.mark.slow
def test_what_cannot_be_is_refused_before_any_load(tmp_path: Path) -> None:
    with start_simulator() as url:
        for words, said in (
            ((), "ab needs --candidate URL"),
            (("--candidate", "localhost:1"), "the candidate: cannot reach http://localhost:1"),
            (("--aa", "-t", "20s"), "use -t 44s"),
            (("--candidate-set", "header:X Y=sesame"), "write a header as header:NAME=VALUE"),
        ):
            done = ab(tmp_path / "r", "--base", url, *words)
            assert done.returncode == 5
            assert said in done.stderr
            assert "sesame" not in done.stdout + done.stderr
