"""Runs side by side: which figures stand there, what is warned of, stage by stage, and the
command."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from support.records import UNIX, a_run, answered, failed

from locust_llm.__main__ import main
from locust_llm.lab.compare_command import WEATHER
from locust_llm.lab.history.between_runs import add_run_spread
from locust_llm.records.limit_blocks import LimitBlock
from locust_llm.records.profile_export_jsonl import format_record_line
from locust_llm.records.record import Record
from locust_llm.records.run_facts import SIMULATED, Run, Stage, write_run
from locust_llm.report.console_summary import LINES, _name_runs, format_comparison_ending
from locust_llm.report.load_records import collect_columns
from locust_llm.report.run_comparison import (
    Comparison,
    ComparisonLine,
    build_comparison_document,
    compare_folders,
    format_line_cells,
    list_differences,
    name_folders,
    render_comparison_console,
    render_comparison_markdown,
)
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.slo.best_prefill_limit import format_limit
from locust_llm.slo.load_generator_health import ClientVerdict


def a_folder(path: Path, records: Sequence[Record], run: Run | None = None) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "profile_export.jsonl").write_bytes(
        b"".join(format_record_line(record) + b"\n" for record in records)
    )
    write_run(path, run or a_run(), client=ClientVerdict("OK"))
    return path


def drawn(seed: int, slower: float = 1.0, count: int = 800) -> list[Record]:
    """A second apart, TTFT lognormal around 100 ms, then two chunks around 20 ms apart."""
    random = np.random.default_rng(seed)
    first = random.lognormal(np.log(100), 0.3, count) * slower
    gaps = random.normal(20, 2, (count, 2)) * slower
    times = np.round(np.cumsum(np.column_stack([first, gaps]), axis=1), 3).tolist()
    return [answered(*ms, sent_at=10.0 + i) for i, ms in enumerate(times)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Here lie a base, another run of the same, a slower one with a gate."""
    place = tmp_path_factory.mktemp("runs")
    gated = [
        replace(record, asked_at=(record.sent_at or 0) - 0.2, admitted_at=record.sent_at)
        for record in drawn(3, 1.3)
    ]
    a_folder(place / "base", drawn(1))
    a_folder(place / "same", drawn(4))
    a_folder(place / "slow", gated, a_run(((0.0, 1),), prefill_concurrency=1))
    return place


@pytest.fixture
def folders(place: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.chdir(place)
    return [Path("base"), Path("same"), Path("slow")]


@pytest.fixture(scope="module")
def found(place: Path) -> Comparison:
    """Of the three, which several tests look at."""
    with contextlib.chdir(place):
        return compare_folders([Path("base"), Path("same"), Path("slow")])


def words(lines: Sequence[ComparisonLine]) -> dict[str, str]:
    return {line.label: line.word for line in lines}


def test_the_main_figures_of_two_equal_runs(found: Comparison) -> None:
    pair = found.runs[0]
    assert list(words(pair.lines)) == [
        "TTFT p50 (ms)", "TTFT p95 (ms)", "TTFT p99 (ms)", "ITL p50 (ms)", "ITL p95 (ms)",
        "ITL p99 (ms)", "ICL p99 (ms)",
        "Longest Stall p99 (ms)", "Request Latency p50 (ms)", "Request Latency p99 (ms)",
        "Throughput (requests/s)",
        "Output (tokens/s)", "Failures (%)",
    ]  # fmt: skip
    assert set(words(pair.lines).values()) == {"no significant difference"}
    assert pair.warnings == ()


def test_a_slower_run_with_a_gate(found: Comparison) -> None:
    pair = found.runs[1]
    word = words(pair.lines)
    assert {
        word[f"{name} (ms)"]
        for name in ("TTFT p50", "TTFT p95", "ITL p50", "ITL p99", "Request Latency p50")
    } == {"worse"}
    assert word["Throughput (requests/s)"] == "no significant difference"
    assert word["Gate Wait p50 (ms)"] == "-"  # the base has none
    assert "TTFT from Due p99 (ms)" in word
    assert pair.warnings == ("different prefill limit: none in the base; 1 here.",)
    ttft = pair.lines[0]
    assert ttft.base is not None
    assert ttft.value is not None
    assert ttft.difference == pytest.approx(ttft.value - ttft.base)
    assert ttft.difference_percent == pytest.approx((ttft.value / ttft.base - 1) * 100)
    assert ttft.low is not None
    assert ttft.high is not None
    assert 0 < ttft.low < ttft.difference < ttft.high


def test_attainment_where_both_say_what_is_good(tmp_path: Path) -> None:
    asked = a_run(goodput="time_to_first_token:100")
    one, other = (
        a_folder(tmp_path / "a", drawn(1), asked),
        a_folder(tmp_path / "b", drawn(2, 1.5), asked),
    )
    word = words(compare_folders([one, other]).runs[0].lines)
    assert (word["Attainment (%)"], word["Goodput (requests/s)"]) == ("worse", "worse")
    assert "Attainment (%)" not in words(
        compare_folders([one, a_folder(tmp_path / "c", drawn(1))]).runs[0].lines
    )


def test_a_good_request_is_the_same_in_both_runs(tmp_path: Path) -> None:
    """Each TTFT of b is 90 ms: all are good by the base's 100 ms, none by b's own 80 ms."""
    quick = [answered(90, 110, sent_at=10.0 + number) for number in range(40)]
    a_folder(tmp_path / "a", quick, a_run(goodput="time_to_first_token:100"))
    a_folder(tmp_path / "b", quick, a_run(goodput="time_to_first_token:80"))
    pair = compare_folders([tmp_path / "a", tmp_path / "b"]).runs[0]
    line = next(line for line in pair.lines if line.metric == "attainment")
    assert (line.base, line.value) == (100, 100)
    assert "a good request is the base's in both runs, ttft <= 100ms" in line.note


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["x/a", "x/b"], ["a", "b"]),
        (["x/1/r", "x/2/r", "x/3/r"], ["1/r", "2/r", "3/r"]),
        (["a", "a"], ["a", "a"]),
    ],
)
def test_folders_are_named_as_far_as_they_differ(folders: list[str], names: list[str]) -> None:
    assert name_folders(folders) == names


def test_no_multiple_of_what_is_shown_as_nothing() -> None:
    line = ComparisonLine(
        metric="gate_wait", stat="p99", label="Gate Wait p99 (ms)", unit="ms", base=0.198,
        value=171.0, difference=170.8, difference_percent=86263.0, low=150.0, high=468.0,
        word="worse",
    )  # fmt: skip
    assert format_line_cells(line)[:4] == ("0", "171", "+171", "-")


def test_a_share_of_nothing_may_have_been_as_large_in_the_base(tmp_path: Path) -> None:
    """No failure in 40 requests of either: the base may have had as many as this run."""
    a_folder(tmp_path / "a", drawn(1, count=40))
    a_folder(tmp_path / "b", drawn(2, count=40))
    compared = compare_folders([tmp_path / "a", tmp_path / "b"])
    (failures,) = (one for one in compared.runs[0].lines if one.metric == "error_rate")
    assert failures.difference == 0
    assert failures.high is not None
    assert failures.low == pytest.approx(-failures.high)
    # at most 1 - 0.025^(1/40)
    assert 0 < failures.high <= 8.82 + 0.01


def test_what_is_wrong_is_warned_of(tmp_path: Path) -> None:
    one = a_folder(tmp_path / "a", [*drawn(1, count=30), failed(sent_at=12.0)])
    other = a_folder(tmp_path / "b", [answered(5, phase="warmup")])
    (other / "run.json").write_text("{")
    found = compare_folders([one, other])
    assert [warning.partition(": ")[2][:35] for warning in found.warnings] == [
        "1 of 31 requests failed."
    ]
    assert [warning.partition(": ")[2][:23] for warning in found.runs[0].warnings[:2]] == [
        "run.json cannot be read",
        "no requests.",
    ]
    assert "are unknown, so these runs may not be comparable." in found.runs[0].warnings[2]
    assert set(words(found.runs[0].lines).values()) == {"-"}
    assert "no request succeeded or failed" in render_comparison_console(found)


GATHERED = (
    "WARNING: CHUNKS CAME TOGETHER: 20 of 20 responses examined arrived complete, all chunks "
    "within a millisecond, after up to 1.5 s. Time to First Token and all gaps do not describe the "
    "model."
)


@pytest.mark.parametrize("gathered", ["base", "here"])
def test_values_of_gathered_chunks_are_not_compared(tmp_path: Path, gathered: str) -> None:
    for name, slower in (("base", 1.0), ("here", 2.0)):
        notes = (GATHERED,) if name == gathered else ()
        a_folder(tmp_path / name, drawn(1, slower, 200), replace(a_run(), notes=notes))
    found = compare_folders([tmp_path / "base", tmp_path / "here"])
    said = words(found.runs[0].lines)
    labels = ("TTFT p50 (ms)", "ITL p50 (ms)", "ICL p99 (ms)", "Longest Stall p99 (ms)")
    assert {said[label] for label in labels} == {"-"}
    (latency,) = [
        line
        for line in found.runs[0].lines
        if (line.metric, line.stat) == ("request_latency", "p50")
    ]
    assert latency.word == "worse"
    text = render_comparison_console(found)
    assert f"{gathered}: a buffer or too little CPU gathered the chunks, so TTFT" in " ".join(
        text.split()
    )


def test_a_value_on_a_failure_that_may_be_chance_has_no_empty_interval(tmp_path: Path) -> None:
    """Half of the requests fail, so the interval of p50 goes from a usual value to a failure."""
    a_folder(tmp_path / "base", drawn(1, count=40))
    half = [*drawn(2, count=19), *(failed(sent_at=30.0 + at) for at in range(21))]
    a_folder(tmp_path / "here", half)
    lines = compare_folders([tmp_path / "base", tmp_path / "here"]).runs[0].lines
    (line,) = [line for line in lines if line.label == "TTFT p50 (ms)"]
    assert format_line_cells(line)[1:] == ("fail", "fail", "-", "-", "too few to tell")
    assert line.note == "here it falls on a failed request, so there is no interval"


def test_two_values_on_failures_have_no_difference(tmp_path: Path) -> None:
    """Three of four requests of both runs fail."""
    for seed, name in enumerate(("base", "here")):
        most = [*drawn(seed, count=10), *(failed(sent_at=20.0 + at) for at in range(30))]
        a_folder(tmp_path / name, most)
    lines = compare_folders([tmp_path / "base", tmp_path / "here"]).runs[0].lines
    (line,) = [line for line in lines if line.label == "TTFT p50 (ms)"]
    assert format_line_cells(line) == ("fail", "fail", "-", "-", "-", "-")
    assert line.note == "in the base and here it falls on a failed request, so there is no interval"


def two_users(*, frozen: bool) -> list[Record]:
    """Two users who ask once a second from 10 to 39 s. Frozen: the two requests of 20 s have no
    token from 20.1 to 26.1 s, and nobody asks meanwhile."""
    usual = [at for at in range(10, 40) if not (frozen and 20 <= at <= 26)]
    records = [answered(100, 200, 300, sent_at=float(at)) for at in usual for _ in range(2)]
    if frozen:
        records += [answered(100, 6100, 6200, sent_at=20.0) for _ in range(2)]
    return records


def test_a_run_in_which_the_server_stood_still_is_named_with_its_rates(tmp_path: Path) -> None:
    """48 requests of three tokens in 29.3 s; in the other 23.3 s they are 2.06/s, as in the
    base."""
    a_folder(tmp_path / "base", two_users(frozen=False))
    a_folder(tmp_path / "froze", two_users(frozen=True))
    pair = compare_folders([tmp_path / "base", tmp_path / "froze"]).runs[0]
    assert (
        f"{tmp_path / 'froze'}: no token came from 20.1 to 26.1 s. Without these 6 s its rates are "
        "6.18 output tokens/s and 2.06 requests/s." in pair.warnings
    )
    back = compare_folders([tmp_path / "froze", tmp_path / "base"])
    assert any("no token came from 20.1 to 26.1 s" in warning for warning in back.warnings)


def test_a_rule_against_a_base_that_stood_still_names_it(tmp_path: Path) -> None:
    """The rate of the base is too low, so that the rule is too easily held."""
    base = a_folder(tmp_path / "base", two_users(frozen=True))
    run = a_run(slo=(f"requests_per_s within 5% of {base}",))
    (result,) = summarise_run(collect_columns(two_users(frozen=False)), run).slos
    assert f"in {base} no token came from 20.1 to 26.1 s" in result.reason


def test_the_document_is_120_columns_wide(folders: list[Path], found: Comparison) -> None:
    text = render_comparison_console(found)
    assert max(map(len, text.splitlines())) <= 120
    assert "slow against base" in text
    assert "!" * 120 not in text
    assert "| TTFT p50 (ms)" in render_comparison_markdown(found)
    simulated = a_folder(
        Path("sim"), [replace(record, simulated=True) for record in drawn(1, count=30)]
    )
    one_real = "SIMULATED: sim comes from a simulator, and 1 other run does not."
    assert one_real in render_comparison_console(compare_folders([folders[0], simulated]))
    assert one_real in render_comparison_markdown(compare_folders([simulated, folders[0]]))
    assert SIMULATED in " ".join(
        render_comparison_markdown(compare_folders([simulated, simulated])).split()
    )


def swept(folder: Path, slower: dict[float, float], axis: str = "concurrency") -> Path:
    stages = []
    for number, (value, times) in enumerate(slower.items(), 1):
        stage = Stage(
            number=number, value=value, began_at=UNIX, measured_at=UNIX + 9, ended_at=UNIX + 500
        )
        stages.append(stage)
        users = int(value) if axis == "concurrency" else 2
        records = drawn(number, times, 100)
        a_folder(folder / "stages" / str(number), records, replace(a_run(users=users), stage=stage))
    run = a_run(users=None, sweep=f"{axis}={','.join(f'{value:g}' for value in slower)}")
    return a_folder(folder, drawn(1, count=20), replace(run, stages=tuple(stages)))


def test_sweeps_stage_by_stage(tmp_path: Path) -> None:
    base, run = swept(tmp_path / "a", {1: 1, 2: 1, 4: 1}), swept(tmp_path / "b", {2: 1, 4: 2, 8: 1})
    (pair,) = compare_folders([base, run]).runs
    assert (pair.axis, pair.lines) == ("concurrency", ())
    assert [(stage.value, stage.lines[0].word, stage.lines[1].word) for stage in pair.stages] == [
        (2, "no significant difference", "too few to tell"),
        (4, "worse", "too few to tell"),
    ]
    assert [alone.partition(" ")[0] for alone in pair.alone] == ["1", "8"]
    text = render_comparison_console(compare_folders([base, run]))
    assert f"Not compared: 8 only in {run}." in text
    rows = [line.split()[-1] for line in text.splitlines() if line.startswith("4 ")]
    assert rows == ["worse", "tell"]
    (run / "stages" / "2" / "profile_export.jsonl").unlink()
    assert "4: " in compare_folders([base, run]).runs[0].alone[2]


def compared_limits(path: Path, ttft_ms: dict[int | None, float]) -> Path:
    """40 rounds of a block of 10 s at each limit, of which 6 s count, with a request each 0.5 s."""
    blocks, records = list[LimitBlock](), list[Record]()
    random = np.random.default_rng(len(path.name))
    for number in range(1, 41):
        for limit in ttft_ms:
            at = 10.0 + 10 * len(blocks)
            blocks.append(
                LimitBlock(
                    round=number, limit=limit, began_at=UNIX + at, settled_at=UNIX + at + 2,
                    counted_until=UNIX + at + 8, ended_at=UNIX + at + 10,
                )
            )  # fmt: skip
            for i in range(12):
                first_ms = round(ttft_ms[limit] * random.lognormal(0, 0.2), 3)
                record = answered(first_ms, first_ms + 10, sent_at=at + 2 + i / 2)
                records.append(replace(record, arm=format_limit(limit), pair=number))
    run = a_run(sweep="prefill-concurrency=1,2", request_rate=2.0)
    return a_folder(path, records, replace(run, limit_blocks=tuple(blocks)))


def test_prefill_limits_limit_by_limit(tmp_path: Path) -> None:
    base = compared_limits(tmp_path / "base", {None: 100, 1: 100, 2: 100})
    run = compared_limits(tmp_path / "other", {None: 100, 1: 200, 4: 100})
    (pair,) = compare_folders([base, run]).runs
    assert (pair.axis, pair.lines) == ("prefill-concurrency", ())
    assert [(stage.value, stage.lines[0].word) for stage in pair.stages] == [
        (None, "no significant difference"), (1, "worse"),
    ]  # fmt: skip
    assert pair.alone == (f"2 only in {base}", f"4 only in {run}")
    text = render_comparison_console(compare_folders([base, run]))
    assert "TTFT from Due p95 (ms), limit by limit:" in text
    ending = format_comparison_ending(compare_folders([base, run]), 120)
    assert "prefill-concurrency none" in ending


def test_a_run_that_mixes_limits_is_not_compared_with_one_that_does_not(tmp_path: Path) -> None:
    base = compared_limits(tmp_path / "base", {None: 100, 1: 100})
    (pair,) = compare_folders([base, a_folder(tmp_path / "plain", drawn(1))]).runs
    assert pair.other_work == f"{base} compares prefill limits, so its metrics mix them"
    assert {line.word for line in pair.lines} == {"-"}


def test_sweeps_of_different_things_are_not_compared_by_stage(tmp_path: Path) -> None:
    base, run = swept(tmp_path / "a", {1: 1}), swept(tmp_path / "b", {1: 1}, "prefill-concurrency")
    (pair,) = compare_folders([base, run]).runs
    assert (pair.stages, pair.lines) == ((), ())  # percentiles of all stages mean nothing
    assert pair.other_work.startswith(f"{base} and {run} swept")
    assert (
        pair.warnings[-1]
        == "stages are not compared: the sweeps have different axes (concurrency and "
        "prefill-concurrency)."
    )


@pytest.mark.usefixtures("folders")
def test_the_command(
    found: Comparison, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    files = ["--json", "c.json", "--markdown", "c.md"]
    assert main(["compare", "base", "same", "slow", "--verbose", *files]) == 0
    found = add_run_spread(found)
    assert all("is unknown: it needs 4 more" in pair.between_runs for pair in found.runs)
    assert capsys.readouterr().out == f"{render_comparison_console(found)}\n{WEATHER}\n"
    assert Path("c.md").read_text() == render_comparison_markdown(found)
    assert msgspec.json.decode(Path("c.json").read_bytes(), type=Comparison) == found
    assert main(["compare", "base", "nowhere"]) == 5
    assert "nowhere is not a run folder: it has no profile_export.jsonl" in capsys.readouterr().err
    assert main(["compare", "base", "same", "--json", "nowhere/c.json"]) == 5
    assert capsys.readouterr().out == ""
    assert main(["compare", "base", "same", "slow", "--json", "-"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out, type=Comparison) == found


@pytest.mark.parametrize("width", [60, 120])
def test_the_console_ends_with_what_differs(found: Comparison, tmp_path: Path, width: int) -> None:
    found = add_run_spread(found)
    for pair, beginning, word in (
        (
            found.runs[0],
            "same against base: no significant difference in 13 metrics. ",
            "difference",
        ),
        (found.runs[1], "slow against base: ", "  worse"),
    ):
        lines = format_comparison_ending(replace(found, runs=(pair,)), width).splitlines()
        differing = sum(line.word.endswith("worse") for line in pair.lines)
        assert len(lines) <= LINES + differing
        assert max(map(len, lines)) <= width
        text = " ".join(" ".join(lines).split())
        assert text.startswith(beginning)
        assert (
            "What else changed between the runs (time of day, other load, a warm cache) counts as a "
            "difference here. To decide on a build, use locust-llm ab. All metrics:" in text
        )  # no request failed
        other = format_comparison_ending(
            replace(found, runs=(replace(pair, other_work="other lengths"),)), width
        )
        assert "What else changed" not in other
        assert any(line.endswith(word) for line in lines), "\n".join(lines)
        assert "Run both again, or use locust-llm ab." in text
    assert "TTFT p50 (ms) worse" in text
    swept_ = compare_folders(
        [swept(tmp_path / "a", {1: 1, 2: 1}), swept(tmp_path / "b", {1: 2, 2: 2})]
    )
    assert any(
        line.startswith("concurrency 2 ")
        for line in format_comparison_ending(swept_, width).splitlines()
    )


def test_each_difference_of_the_first_line_has_its_row_beside_many_warnings(
    found: Comparison,
) -> None:
    slow = found.runs[1]
    lines = tuple(replace(line, word="worse") for line in slow.lines)
    warnings = tuple(f"{number} {'of many warnings ' * 12}" for number in range(9))
    pair = replace(slow, lines=lines, warnings=warnings)
    printed = format_comparison_ending(replace(found, runs=(pair,)), 120).splitlines()
    for line in lines:
        assert any(row.startswith(f"{line.label}  ") for row in printed), line.label


@pytest.mark.parametrize("width", [60, 80, 120])
def test_several_runs_have_a_line_each_and_all_differences_have_a_word(
    found: Comparison, width: int
) -> None:
    found = replace(add_run_spread(found), simulated=True)
    lines = format_comparison_ending(found, width).splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("SIMULATED")
    head, base, same, slow = next(
        lines[i : i + 4] for i, line in enumerate(lines) if line.split()[:1] == ["significant"]
    )
    assert base.split()[:2] == ["base", "base"]
    assert same.split()[:4] == ["same", "0", "of", "13"]
    assert slow.split()[:2] == ["slow", str(len(slower(found)))]
    assert "better" not in same
    assert "worse" not in same
    shown = [label for label in slower(found) if label in head]
    assert slow.count("worse ") == len(shown)
    text = " ".join(" ".join(lines).split())
    below = text.partition("slow: TTFT")[2].partition(" worse.")[0]
    for label in slower(found):
        assert (label in head) != (label in f"TTFT{below}"), label
    warning = "WARNING: slow: different prefill limit: none in the base; 1 here."
    assert warning in text


def slower(found: Comparison) -> list[str]:
    return [line.label for line in found.runs[1].lines if line.word.endswith("worse")]


def test_the_same_folders_give_the_same_intervals(folders: list[Path], found: Comparison) -> None:
    assert list(build_comparison_document(compare_folders(folders))) == list(
        build_comparison_document(found)
    )


def test_figures_that_cut_requests_leave_open_are_bounds(tmp_path: Path) -> None:
    """Of 800 requests 600 were cut without a token after 5 s: p50 of TTFT is that or more, their
    gaps are unknown."""
    base, open_ = drawn(1), drawn(2)
    open_[200:] = [failed("cut", sent_at=10.0 + i, closed_at=15.0 + i) for i in range(200, 800)]
    found = compare_folders([a_folder(tmp_path / "base", base), a_folder(tmp_path / "open", open_)])
    ttft, itl = (
        next(line for line in found.runs[0].lines if line.label == f"{name} p50 (ms)")
        for name in ("TTFT", "ITL")
    )
    assert (ttft.value, ttft.value_open, ttft.base_open) == (5000.0, True, False)
    assert (itl.value, itl.value_open) == (0.0, True)
    assert any(
        w.endswith("600 of 800 requests were unfinished and count with their age.")
        for w in found.runs[0].warnings
    )
    row = next(
        line
        for line in format_comparison_ending(found, 120).splitlines()
        if line.startswith("TTFT p50")
    )
    assert row.split()[4:8] == ["\N{GREATER-THAN OR EQUAL TO}", "5,000", "-", "-"]


@pytest.mark.parametrize(
    ("metric", "base", "value", "which", "word", "percent"),
    [
        ("ttft", 12_500.0, 350.0, "base", "better", -97.2),
        ("ttft", 12_500.0, 350.0, "both", "better", None),
        ("ttft", 12_500.0, 350.0, "base", "no significant difference", None),
        ("itl", 40.0, 100.0, "value", "worse", 150.0),
        ("output_tokens_per_s", 100.0, 250.0, "base", "better", 150.0),
        ("output_tokens_per_s", 100.0, 250.0, "base", "worse", None),
    ],
)
def test_a_value_that_cut_requests_leave_open_bounds_the_difference(
    found: Comparison,
    metric: str,
    base: float,
    value: float,
    which: str,
    word: str,
    percent: float | None,
) -> None:
    """TTFT p95 of at least 12,500 ms against 350 ms: at least 97.2 % less."""
    pair = found.runs[1]
    line = replace(
        pair.lines[0], metric=metric, stat="p95", base=base, value=value, word=word, difference_percent=None,
        base_open=which in ("base", "both"), value_open=which in ("value", "both"),
    )  # fmt: skip
    differences = list_differences(replace(pair, lines=(line,), stages=()))
    assert [(one.percent, one.is_bound) for one in differences] == [
        (pytest.approx(wanted), True) for wanted in [percent] if wanted is not None
    ]


def test_other_work_is_put_beside_and_no_difference_given(tmp_path: Path) -> None:
    """Another model, or other lengths: figures stand there, and why they are not compared."""
    base = [replace(record, input_tokens=100) for record in drawn(1, count=200)]
    longer = [replace(record, input_tokens=200) for record in drawn(1, 2.0, count=200)]
    folders = [
        a_folder(tmp_path / "base", base, a_run(model="a")),
        a_folder(tmp_path / "model", base, a_run(model="b")),
        a_folder(tmp_path / "longer", longer, a_run(model="a")),
    ]
    found = compare_folders(folders)
    model, lengths = found.runs
    assert model.other_work == "model b instead of a"
    assert lengths.other_work == "input tokens 200 instead of 100 on average"
    for pair in found.runs:
        assert {(line.word, line.difference, line.low) for line in pair.lines} == {
            ("-", None, None)
        }
        assert pair.lines[0].value is not None
        assert (
            f"Not compared, because the workload differs: {pair.other_work}."
            in render_comparison_console(found)
        )
    said = format_comparison_ending(found, 120)
    assert "model: not compared, because the workload differs (model b instead of a)." in " ".join(
        said.split()
    )
    assert any(line.split()[:3] == ["longer", "other", "work"] for line in said.splitlines())
    pair = replace(found, runs=found.runs[:1])
    said = format_comparison_ending(pair, 120)
    assert "not compared, because the workload differs (model b instead of a)." in " ".join(
        said.split()
    )


def test_two_runs_of_one_seed_may_have_met_a_warm_cache(tmp_path: Path) -> None:
    """The second one found 95 of 100 tokens of each prompt in the cache: it says nothing about the
    server."""
    cold, warm = (
        [replace(one, input_tokens=100, cached_tokens=cached) for one in drawn(1, count=200)]
        for cached in (0, 95)
    )
    unknown = [replace(one, input_tokens=100) for one in drawn(1, count=200)]
    seeded = a_run(random_seed=7)
    folders = [
        a_folder(tmp_path / "base", cold, seeded),
        a_folder(tmp_path / "warm", warm, seeded),
        a_folder(tmp_path / "cold", cold, seeded),
        a_folder(tmp_path / "unknown", unknown, seeded),
        a_folder(tmp_path / "fresh", warm, replace(seeded, words_seed="f00")),
        a_folder(tmp_path / "other", warm, a_run(random_seed=8)),
    ]
    warmed, same, maybe, fresh, other = compare_folders(folders).runs
    assert warmed.other_work == (
        "0% of the input tokens were cached in the base and 95% here, because both runs sent the "
        "same words"
    )
    assert {line.word for line in warmed.lines} == {"-"}
    said = "both runs sent the same words (--random-seed 7 without --fresh-words)"
    assert (
        warmed.warnings[0]
        == f"{said}: 0% of the input tokens were cached in the base and 95% here."
    )
    assert (maybe.other_work, maybe.warnings[0]) == (
        "",
        f"{said}, so the prefix cache may have been warm.",
    )
    for pair in (same, fresh, other):
        assert pair.other_work == ""
        assert not any("same words" in warning for warning in pair.warnings)


def test_a_run_that_is_invalid_is_named_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    a_folder(Path("good"), drawn(1))
    a_folder(Path("bad"), drawn(2))
    write_run(
        Path("bad"),
        a_run(),
        client=ClientVerdict("INVALID", reasons=("read lag",), signals={"read lag": "INVALID"}),
    )
    text = (
        "bad is INVALID: the load generator distorted its metrics, so a difference may be caused "
        "by it."
    )
    assert compare_folders([Path("good"), Path("bad")]).runs[0].warnings[0] == text
    assert compare_folders([Path("bad"), Path("good")]).warnings[0] == text
    assert not any(
        "INVALID:" in warning
        for warning in compare_folders([Path("good"), Path("good")]).runs[0].warnings
    )


def test_the_first_line_has_the_words_of_the_table_for_values_without_a_difference(
    found: Comparison,
) -> None:
    same = found.runs[0]
    lines = [replace(line, word="no significant difference") for line in same.lines[:3]]
    lines[1] = replace(lines[1], low=None, high=None, word="too few to tell")
    lines[2] = replace(lines[2], low=None, high=None, word="-")
    ending = format_comparison_ending(
        replace(found, runs=(replace(same, lines=tuple(lines)),)), 120
    )
    assert ending.startswith(
        "same against base: no significant difference in 1 metric, 1 too few to tell, 1 cannot be "
        "compared."
    )


@pytest.mark.parametrize(("cached", "named"), [(500, False), (520, False), (521, True)])
def test_cached_input_that_differs_by_more_than_two_points_is_named(
    tmp_path: Path, cached: int, named: bool
) -> None:
    """500 of 1,000 tokens are cached in the base. The runs have other words."""
    base, run = (
        [replace(one, input_tokens=1000, cached_tokens=tokens) for one in drawn(1, count=200)]
        for tokens in (500, cached)
    )
    folders = [
        a_folder(tmp_path / "base", base, a_run(random_seed=7)),
        a_folder(tmp_path / "run", run, a_run(random_seed=8)),
    ]
    (pair,) = compare_folders(folders).runs
    found = [text for text in pair.warnings if "cached input" in text]
    assert bool(found) == named
    assert all("50.0%" in text and "52.1%" in text for text in found)


def test_a_warning_names_its_run_once() -> None:
    """The problem of a folder begins with its name; a difference has it from both runs."""
    problem, difference = "f1: 20 of 155 requests failed.", "Other users: 4 for 8."
    pairs: Any = [
        SimpleNamespace(warnings=(problem, difference)),
        SimpleNamespace(warnings=(difference,)),
    ]
    assert list(_name_runs(["f1", "k1"], pairs)) == [
        f"WARNING: {problem}",
        f"WARNING: f1, k1: {difference}",
    ]
