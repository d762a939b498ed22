"""A run against published rules: runs whose figures can be counted."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.levels import level
from support.records import a_run, answered

from locust_llm.records.run_facts import Run
from locust_llm.report.load_records import collect_columns
from locust_llm.report.render import text_report
from locust_llm.report.report_command import make_report_result
from locust_llm.report.sections.benchmark_validity import (
    Validity,
    check_validity,
    divide_into_regions,
    find_uncovered_regions,
    format_broken_rules,
)
from locust_llm.report.sections.headline import make_headline
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.report.summary_rows import LoadLevel, SweepSummary
from locust_llm.settings.scenario_file import read_scenario
from locust_llm.slo.published_rules import PublishedRules, parse_published_rules

MLPERF = parse_published_rules(read_scenario("mlperf-endpoints").published or {})
INFERENCEX = parse_published_rules(read_scenario("inferencex-1k1k").published or {})
AA = parse_published_rules(read_scenario("aa-slt").published or {})
SERVER = parse_published_rules(read_scenario("mlperf-server-llama3.1-8b").published or {})


def one(rules: PublishedRules, **settings: object) -> tuple[Summary, Run]:
    """Three requests in three seconds."""
    records = [answered(100, 110, 120, sent_at=float(at)) for at in range(3)]
    run = a_run(published=rules, **settings)
    summary = summarise_run(collect_columns(records), run, 0, records)
    return replace(summary, validity=check_validity(summary, run)), run


def curve(
    rules: PublishedRules, *levels: LoadLevel, end: str = "all stages ran", **settings: object
) -> Validity:
    summary, run = one(rules, sweep="concurrency=1..256", **settings)
    sweep = SweepSummary(axis="concurrency", unit="users", levels=levels, ended=end)
    found = check_validity(replace(summary, sweep=sweep), replace(run, sweep_end=end))
    assert found is not None
    return found


def broken(found: Validity | None) -> dict[str, str]:
    assert found is not None
    return {check.rule: check.text for check in found.broken}


def test_a_run_that_is_too_short_is_not_valid_and_its_slo_stays() -> None:
    rules = replace(MLPERF, dataset_pass=False)
    summary, run = one(rules, users=64, slo=("ttft p50 < 1s",), published_rules="fail")
    assert summary.validity is not None
    c = replace(summary.conditions, duration_s=300.0)
    found = check_validity(replace(summary, conditions=c), run)
    summary = replace(summary, validity=found, conditions=c)
    assert broken(found) == {"duration": "300 s, the rules require 1,200 at 64 users"}
    sentence = (
        "not valid by MLPerf Endpoints v1.0 draft: 300 s, the rules require 1,200 at 64 users"
    )
    assert format_broken_rules(found) == sentence
    assert make_headline(summary, run).endswith(f"; {sentence}")
    before, after = (
        make_report_result(replace(summary, validity=v), run, "") for v in (None, found)
    )
    assert (before.slo_status, before.not_valid, after.not_valid) == (
        after.slo_status,
        "",
        sentence,
    )
    warned = replace(run, settings=replace(run.settings, published_rules="warn"))
    assert make_report_result(summary, warned, "").not_valid == ""
    page = text_report.render_markdown(summary, run)
    assert "## Published rules" in page
    assert "A rehearsal, no submission: MLPerf Endpoints accepts results of its own client" in page
    assert "Not checked here: accuracy at four points" in page
    long = replace(summary.conditions, duration_s=1200.0)
    assert broken(check_validity(replace(summary, conditions=long), run)) == {}
    few = replace(c, users=32, duration_s=600.0)  # enough of up to 32 users
    assert broken(check_validity(replace(summary, conditions=few), run)) == {}


def test_a_curve_has_points_in_each_region_and_each_lasts() -> None:
    """The example B of the rules, of 1,200 s each and 100 requests of a dataset of 80."""
    users = (1, 4, 16, 32, 64, 128, 256)
    levels = [level(u, duration_s=1200.0) for u in users]
    asked = {"input_file": "data.jsonl", "users": None}
    summary, run = one(MLPERF, sweep="concurrency=1..256", **asked)

    def found(*levels: LoadLevel, sessions: int | None = 80) -> Validity | None:
        sweep = SweepSummary(axis="concurrency", unit="users", levels=levels, ended="")
        return check_validity(
            replace(summary, sweep=sweep), replace(run, dataset_sessions=sessions)
        )

    whole = found(*levels)
    assert whole is not None
    assert (whole.valid, whole.curve, format_broken_rules(whole)) == (True, True, None)
    assert {check.rule: check.text for check in whole.checks} == {
        "loop": "closed loop", "streaming": "streamed", "duration": "1,200 s",
        "dataset": "100 requests of a dataset of 80", "client": "client verdict OK",
        "points": "7 points",
        "regions": "a point in each of Ultra Low, Low, Medium and High",
    }  # fmt: skip
    assert broken(found(*levels[:2], *levels[4:])) == {
        "points": "5 points, the rules require at least 7",
        "regions": "no point in Medium (8 to 41), the rules require one in each region",
    }
    short = [replace(one, duration_s=600.0) for one in levels]  # enough of the first four
    text = "600 s, the rules require 1,200 at 64 users"
    assert broken(found(*short)) == {"duration": text}
    assert [check.others for check in (found(*short) or whole).broken] == [2]
    assert broken(found(*levels, sessions=101)) == {
        "dataset": "100 requests of a dataset of 101, the rules require 101 at 1 user"
    }
    assert broken(found(*levels, sessions=None))["dataset"].startswith("a dataset of unknown size")
    assert broken(found(replace(levels[0], client="DEGRADED"), *levels[1:])) == {
        "client": "client verdict DEGRADED at 1 user"
    }
    many = [level(u, duration_s=1200.0) for u in range(1, 34)]
    assert broken(found(*many))["points"] == "33 points, the rules require 7 to 32"


def test_what_a_level_has_to_have_for_each_user() -> None:
    """InferenceX: ten requests of each user after two of warmup."""
    good = level(4, succeeded=40, warmup=8)
    assert broken(curve(INFERENCEX, good)) == {}
    assert broken(curve(INFERENCEX, good, level(64, succeeded=600, warmup=64))) == {
        "requests": "600 answered requests, the rules require 640 at 64 users",
        "warmup": "64 requests of warmup, the rules require 128 at 64 users",
    }


def test_a_load_test_goes_on_until_it_is_flat_and_leaves_no_level_out() -> None:
    rates = {1: 10.0, 2: 20.0, 4: 20.9, 8: 20.5}
    levels = [
        replace(level(u, duration_s=180.0), output_tokens_per_s=rate) for u, rate in rates.items()
    ]
    assert broken(curve(AA, *levels)) == {}
    risen = replace(levels[3], output_tokens_per_s=30.0)
    assert broken(curve(AA, levels[0], levels[2], risen)) == {
        "levels": "no point at 2, the rules require one",
        "plateau": (
            "throughput still rose by 5% or more at one of the last two points, the rules require to "
            "continue until throughput is flat"
        ),
    }
    assert broken(curve(AA, replace(levels[0], duration_s=179.0), *levels[1:]))[
        "duration"
    ].startswith("179 s, the rules require 180")


def test_the_wrong_load_and_too_few_samples() -> None:
    found = broken(one(SERVER, users=8)[0].validity)
    assert found["loop"] == "closed loop, the rules require a schedule of arrivals"
    assert (
        found["samples"] == "3 requests for p99 at 99% confidence, the rules require 662 at 8 users"
    )
    assert found["dataset"].startswith(
        "synthetic prompts, the rules require the benchmark's dataset"
    )
    found = broken(one(MLPERF, request_rate=2.0, streaming=False)[0].validity)
    assert found["loop"] == "open loop, the rules require a fixed number of requests in flight"
    assert found["streaming"] == "not streamed, the rules require streams"


def test_another_value_of_what_the_scenario_fixes_is_not_valid() -> None:
    found = one(INFERENCEX, users=4, scenario_changed=("sweep", "seq-dist"))[0].validity
    assert (
        broken(found)["options"]
        == "other values of seq-dist, the rules require the scenario's values"
    )


def test_a_run_without_published_rules_is_neither() -> None:
    summary, run = one(MLPERF)
    assert (
        check_validity(summary, replace(run, settings=replace(run.settings, published=None)))
        is None
    )


def test_rules_go_with_the_run(tmp_path: Path) -> None:
    """A report that is made next year judges by the rules of the run."""
    from locust_llm.records.run_facts import read_run, write_run

    write_run(tmp_path, a_run(published=MLPERF))
    assert read_run(tmp_path).settings.published == MLPERF


@pytest.mark.parametrize("rules", [MLPERF, INFERENCEX, AA, SERVER])
def test_each_says_what_it_is_not_and_what_is_not_checked(rules: PublishedRules) -> None:
    assert rules.note
    assert rules.unchecked


TABLE = """
64 2 3-6 7-18 19-64 65-71
128 2 3-7 8-27 28-128 129-141
256 2 3-8 9-42 43-256 257-282
256 8 9-14 15-47 48-256 257-282
512 8 9-16 17-71 72-512 513-564
1024 8 9-18 19-109 110-1024 1025-1127
512 16 17-24 25-79 80-512 513-564
1024 16 17-26 27-117 118-1024 1025-1127
2048 16 17-29 30-176 177-2048 2049-2253
1024 32 33-42 43-131 132-1024 1025-1127
2048 32 33-45 46-192 193-2048 2049-2253
4096 32 33-48 49-287 288-4096 4097-4506
8192 32 33-52 53-437 438-8192 8193-9012
16384 32 33-57 58-676 677-16384 16385-18023
"""
"""Appendix B: highest and lowest concurrency; Low, Medium, High, margin."""
EXAMPLES = [
    ("A", 32, 8192, [(33, 52), (53, 437), (438, 8192)], (32, 40, 200, 500, 1000, 2000, 4096)),
    ("B", 1, 256, [(2, 7), (8, 41), (42, 256)], (1, 4, 16, 32, 64, 128, 256)),
    ("C", 16, 1024, [(16, 26), (27, 116), (117, 1024)], (16, 24, 64, 96, 128, 256, 1000)),
]
"""Section 5.4, as printed: C is wrong."""


@pytest.mark.parametrize("row", TABLE.split("\n")[1:-1])
def test_the_table_of_appendix_b(row: str) -> None:
    highest, lowest, *printed = row.split()
    assert [
        f"{r.low}-{r.high}" for r in divide_into_regions(int(lowest), int(highest))[1:]
    ] == printed


@pytest.mark.parametrize(("highest", "margin"), [(50, 55), (100, 110), (101, 112), (1000, 1100)])
def test_the_margin_is_a_tenth_rounded_up(highest: int, margin: int) -> None:
    """1.1 times 100 is 110.00000000000001."""
    assert divide_into_regions(8, highest)[-1].high == margin


@pytest.mark.parametrize(("name", "lowest", "highest", "printed", "points"), EXAMPLES)
def test_the_worked_examples(
    name: str, lowest: int, highest: int, printed: list[tuple[int, int]], points: tuple[int, ...]
) -> None:
    found = [(r.low, r.high) for r in divide_into_regions(lowest, highest)[1:4]]
    if (
        name == "C"
    ):  # 1008 is 10.03^3: 16 + 10.03 = 26.03, 16 + 100.53 = 116.53, which rounds to 117; and Low begins at 17
        assert pytest.approx((10.0266, 100.533), rel=1e-4) == (1008 ** (1 / 3), 1008 ** (2 / 3))
        assert found == [(17, 26), (27, 117), (118, 1024)] != printed
    else:
        assert found == printed
    assert find_uncovered_regions((*points, highest)) == []
    assert len(points) == 7


def test_a_region_without_a_point_is_named() -> None:
    assert [str(region) for region in find_uncovered_regions((1, 2, 64, 128, 256))] == [
        "Medium (8 to 41)"
    ]
    assert [region.name for region in find_uncovered_regions((1, 256))] == ["Low", "Medium"]
    with pytest.raises(ValueError, match="lowest concurrency must be 1 to 32, and is 33"):
        find_uncovered_regions((33, 256))
    with pytest.raises(ValueError, match="highest concurrency must be above 32, and is 32"):
        find_uncovered_regions((1, 32))
    with pytest.raises(ValueError, match="no point"):
        find_uncovered_regions(())


@given(st.integers(1, 32), st.integers(33, 10**6))
def test_regions_follow_each_other_and_leave_nothing_out(lowest: int, highest: int) -> None:
    found = divide_into_regions(lowest, highest)
    assert (found[0].low, found[3].high, found[4].low) == (1, highest, highest + 1)
    assert all(after.low == before.high + 1 for before, after in pairwise(found))
    assert (
        find_uncovered_regions((lowest, *(min(r.low, r.high) for r in found[1:4]), highest)) == []
    )
