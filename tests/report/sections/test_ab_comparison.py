"""Two arms in pairs, by pencil: which requests count, the interval of their difference, rules
against the base, words."""

import math
import re

import numpy as np
import pytest
from msgspec.structs import replace
from support.records import UNIX, a_run, answered, failed

from locust_llm.records.buffering import Buffering
from locust_llm.records.record import Record
from locust_llm.records.run_facts import LimitChange, ProcessHealth, Run, Stage
from locust_llm.records.timing_accuracy import ErrorBounds, MeasurementAccuracy
from locust_llm.report.console_summary import format_ending
from locust_llm.report.document_blocks import TableBlock
from locust_llm.report.load_records import collect_columns
from locust_llm.report.render.tiles import _paired_tiles, make_badges
from locust_llm.report.render.verdict_text import make_verdict
from locust_llm.report.report_document import make_opening
from locust_llm.report.sections.ab_comparison import (
    BROKEN,
    DIFFERENT,
    HOLDS,
    INCONCLUSIVE,
    SAME,
    PairedComparison,
    PairedFigure,
    compute_arm_difference,
    compute_pair_values,
    describe_paired_verdict,
    familywise_p_value,
    find_complete_pairs,
    limit_to_possible,
    list_compared_figures,
    make_paired_head,
    make_paired_table,
    select_main_figures,
)
from locust_llm.report.sections.headline import make_headline
from locust_llm.report.sections.notes import format_verdict_line
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.report.users_and_limit_over_time import describe_arm_limits
from locust_llm.settings.ab_arms import BASE, CANDIDATE
from locust_llm.settings.sweep_option import STOPPED, TIME_UP
from locust_llm.slo.load_generator_health import OK
from locust_llm.slo.rules import Rule, parse_rule

BASES = (100.0, 110.0, 90.0, 120.0, 80.0, 100.0, 105.0, 95.0, 115.0, 85.0)
"""TTFT of the requests of each block of the base, in ms: the weather."""

EXACT = ErrorBounds(count=100, p50_ms=0.01, p95_ms=0.01, p99_ms=0.01, max_ms=0.01)
CERTIFICATE = MeasurementAccuracy(streams=10, chunks=100, ttft=EXACT, gap=EXACT)


def a_block(
    number: int, pair: int, arm: str, ttft_ms: float, *, count: int = 4
) -> tuple[Stage, list[Record]]:
    """Of ten seconds, the first two of them not counted; a request each second, which ends within
    it."""
    at = 10.0 * number
    stage = Stage(
        number=number, value=number, began_at=UNIX + at,
        measured_at=UNIX + at + 2 if pair else None,
        ended_at=UNIX + at + 10, why=TIME_UP, arm=arm, pair=pair,
    )  # fmt: skip
    records = [
        answered(
            ttft_ms, ttft_ms + 20, ttft_ms + 40, sent_at=at + i, stage=number, arm=arm, pair=pair,
            phase="profiling" if pair and i >= 2 else "warmup",
        )
        for i in range(2 + count)
    ]  # fmt: skip
    return stage, records


def a_comparison(
    ratios: tuple[float, ...], weather: tuple[float, ...] = BASES, **settings: object
) -> tuple[Run, list[Record]]:
    """A pair for each: the candidate's TTFT is so many times the base's."""
    stages, records = [], []
    for pair, (base, ratio) in enumerate(zip(weather, ratios, strict=False), 1):
        for i, (arm, ms) in enumerate(((BASE, base), (CANDIDATE, base * ratio))):
            stage, some = a_block(2 * pair + i, pair, arm, round(ms, 3))
            stages.append(stage)
            records += some
    asked = {"candidate": "http://other:8000", "block_duration": 10.0, "washout": 2.0, **settings}
    return replace(a_run(**asked), stages=tuple(stages)), records


def summarised(run: Run, records: list[Record]) -> Summary:
    return summarise_run(collect_columns(records), run)


def the(summary: Summary, label: str) -> PairedFigure:
    assert summary.paired is not None
    return next(figure for figure in summary.paired.figures if figure.label == label)


def test_no_interval_of_pairs_falls_below_nothing() -> None:
    """Base 4 and 0, candidate 0 and 1: the differences are -4 and 1, -1.5 on average, with a
    standard deviation of 3.54 and t 12.71: -33.3 to 30.3. The base's mean is 2, so at most 2, or
    100 %, can be lost."""
    values = np.array([[4.0, 0.0], [0.0, 1.0]])
    arms = compute_arm_difference(values, relative=False)
    change, low, high = limit_to_possible(arms, parse_rule("gate_wait p50 < 1s")).difference
    assert (change, low) == (-1.5, -2.0)
    assert high == pytest.approx(-1.5 + 12.706 * 2.5, abs=0.01)
    ratio = limit_to_possible(arms, parse_rule("gate_wait p50 < 1s")).ratio
    assert ratio == pytest.approx((0.25, 0.0, 1 + high / 2))


def test_the_interval_of_a_mean_difference() -> None:
    # differences 1, 2, 3: mean 2, s 1, t of 2 degrees of freedom 4.303, 4.303 / sqrt(3) = 2.484
    found = compute_arm_difference(
        np.array([[10.0, 11.0], [10.0, 12.0], [10.0, 13.0]]), relative=False
    )
    assert (found.base, found.candidate) == (10.0, 12.0)
    # a series: less exact at 2
    assert found.difference == pytest.approx((2.0, 2 - 2.484, 2 + 2.484), abs=0.15)


def test_ratios_do_not_see_the_weather() -> None:
    found = compute_arm_difference(
        np.array([[1.0, 1.1], [10.0, 11.0], [100.0, 110.0]]), relative=True
    )
    assert (found.base, found.candidate) == pytest.approx((10.0, 11.0))
    assert found.ratio == pytest.approx((1.1, 1.1, 1.1))
    assert found.difference == pytest.approx((1.0, 1.0, 1.0))


def test_the_chance_of_signs() -> None:
    assert (
        familywise_p_value(np.array([[1.0], [1.1], [0.9], [1.0]])) == 2 / 16
    )  # all alike: one of eight, as one sign is free
    assert familywise_p_value(np.array([[1.0], [-1.0], [1.0], [-1.0]])) == 1.0


def test_a_request_in_the_washout_and_one_of_the_first_pair_count_nowhere() -> None:
    run, records = a_comparison((1.0,) * 10)
    stage, first = a_block(40, 0, BASE, 5000.0)
    late = [
        replace(record, chunk_us=(9_000_000,)) for record in records if record.phase == "warmup"
    ]
    slow = [record for record in records if record.phase != "warmup"] + late + first
    run = replace(run, stages=(*run.stages, stage))
    figure = the(summarised(run, slow), "TTFT p50 (ms)")
    assert figure.pairs == tuple((base, base) for base in BASES)


def test_a_pair_of_which_one_block_was_broken_off_is_left_out() -> None:
    run, records = a_comparison((1.0,) * 10)
    last = replace(run.stages[-1], why=STOPPED)
    found = find_complete_pairs(
        collect_columns(records).requests, replace(run, stages=(*run.stages[:-1], last))
    )
    assert len(found) == 9


def test_rates_are_of_what_ended_behind_the_washout() -> None:
    run, records = a_comparison((1.0,) * 10)
    found = find_complete_pairs(collect_columns(records).requests, run)
    rates = compute_pair_values(Rule("requests_per_s", ">=", 0.0, "/s"), found)
    assert rates.tolist() == [[4 / 8, 4 / 8]] * 10  # four of six, in eight seconds
    assert (
        compute_pair_values(parse_rule("output_tokens_per_s within 5% of base"), found).tolist()
        == [[12 / 8, 12 / 8]] * 10
    )


def test_rates_count_the_part_of_a_request_behind_the_washout() -> None:
    """A user whose requests take 3 s does a third of one a second. In seconds 2 to 10 there are a
    third of the first, two whole ones and a third of the fourth: 8/3 in 8 s. Of whole requests that
    end there are three, which is too many, in each block alike."""
    run, _ = a_comparison((1.0,) * 10)
    records = [
        answered(1000, 2000, 3000, sent_at=stage.began_at - UNIX + at, stage=stage.number,
            arm=stage.arm, pair=stage.pair, phase="profiling" if at else "warmup")
        for stage in run.stages
        for at in (0, 3, 6, 9)
    ]  # fmt: skip
    found = find_complete_pairs(collect_columns(records).requests, run)
    rates = compute_pair_values(Rule("requests_per_s", ">=", 0.0, "/s"), found)
    assert rates.ravel().tolist() == pytest.approx([1 / 3] * 20)
    tokens = compute_pair_values(parse_rule("output_tokens_per_s within 5% of base"), found)
    assert tokens.ravel().tolist() == pytest.approx([1.0] * 20)
    rule = replace(run, settings=replace(run.settings, slo=("requests_per_s > 0.34",)))
    assert summarised(rule, records).slos[0].observed == pytest.approx(1 / 3)  # of the candidate


def test_no_failure_in_any_block_bounds_no_difference() -> None:
    summary = summarised(*a_comparison((1.05, 1.06) * 5))
    failures = the(summary, "Failures (%)")
    assert (failures.base, failures.difference, failures.word) == (
        0.0,
        0.0,
        "no significant difference",
    )
    assert (failures.low, failures.high) == (None, None)
    table = blocks_text(summary)
    assert "Failures (%)" in table
    assert "without an interval, because both blocks of each pair have the same value" in table


def test_a_figure_is_of_the_pairs_that_have_it_in_both_blocks() -> None:
    """Of twelve pairs two lack a block: the candidate is twice as slow in the ten others, and the
    geometric mean of the base is that of these ten."""
    weather = (*BASES, 70.0, 130.0)
    run, records = a_comparison((2.0,) * 12, weather=weather, slo=("ttft p50 within 5% of base",))
    gone = ((11, CANDIDATE), (12, BASE))
    lacking = [one for one in records if (one.pair, one.arm) not in gone or one.phase == "warmup"]
    summary = summarised(run, lacking)
    figure = the(summary, "TTFT p50 (ms)")
    assert figure.base == pytest.approx(math.exp(np.log(BASES).mean()))
    assert (figure.percent, figure.word) == (pytest.approx(100.0), "worse")
    assert len(figure.pairs) == 10
    why = "from 10 of 12 pairs: in 2 pairs a block has no counted request with a value"
    assert figure.left_out.startswith(why)
    assert summary.paired is not None
    assert summary.paired.verdict == DIFFERENT
    assert [(rule.status, rule.count, rule.reason) for rule in summary.slos] == [("FAIL", 10, why)]


@pytest.mark.parametrize("gone", [1, 2])
def test_a_block_without_a_value_leaves_its_pair_out_of_ten(gone: int) -> None:
    """The candidate is 50% slower in the eight or nine others. A column has their number."""
    run, records = a_comparison((1.5,) * 10, slo=("ttft p50 within 5% of base",))
    lacking = [
        one
        for one in records
        if one.pair > gone or one.arm != CANDIDATE or one.phase != "profiling"
    ]
    summary = summarised(run, lacking)
    assert summary.paired is not None
    figure = the(summary, "TTFT p50 (ms)")
    assert (len(figure.pairs), figure.percent, figure.word) == (
        10 - gone,
        pytest.approx(50),
        "worse",
    )
    assert summary.paired.verdict == DIFFERENT
    assert make_paired_head(summary.paired)[-2:] == ("pairs", "")
    (table,) = (one for one in make_paired_table(summary.paired) if isinstance(one, TableBlock))
    assert {row[0]: row[-2] for row in table.rows}["TTFT p50 (ms)"] == str(10 - gone)
    assert {row[0]: row[-2] for row in table.rows}["Failures (%)"] == str(10 - gone)
    console = format_ending(summary, run, "reports/x", 400)
    assert re.search(rf"(?m)^TTFT p50 \(ms\) .* {10 - gone}  +worse$", console)
    assert f"from {10 - gone} of 10 pairs: in " in console
    assert [(rule.status, rule.count) for rule in summary.slos] == [("FAIL", 10 - gone)]


def test_figures_that_too_few_pairs_have_are_a_line_and_no_rows() -> None:
    run, records = a_comparison((1.0,) * 10)
    lacking = [
        one for one in records if one.pair > 3 or one.arm != CANDIDATE or one.phase != "profiling"
    ]
    summary = summarised(run, lacking)
    assert summary.paired is not None
    rows = [
        block.rows for block in make_paired_table(summary.paired) if isinstance(block, TableBlock)
    ]
    assert all("TTFT" not in row[0] for table in rows for row in table)
    assert "TTFT p50 (ms)" in blocks_text(summary)
    why = "in 3 pairs a block has no counted request with a value, and 8 pairs need one in both"
    assert why in blocks_text(summary)
    assert summary.paired.verdict == "INCONCLUSIVE", "two rates alone do not show equal arms"
    assert summary.paired.reason == "17 of 19 metrics have no result"
    assert why in " ".join(format_ending(summary, run, "reports/x", 400).split())


def test_an_arm_without_a_counted_request_comes_first() -> None:
    """Each request of the candidate takes 30 s and begins in the washout; a block of 10 s counts
    for 8: 2 x 30 x 10 / 8 = 75 s are long enough. Two rates of 19 metrics are known."""
    run, records = a_comparison((1.0,) * 10)
    silent = []
    for one in records:
        if one.arm == BASE:
            silent.append(one)
        elif one.phase != "profiling":
            silent.append(replace(one, closed_at=(one.sent_at or 0.0) + 30))
    summary = summarised(run, silent)
    why = (
        "No request of the candidate counts: a request takes 30 s, but only 8 s of a block count. "
        "Use --block-duration 75"
    )
    assert summary.paired is not None
    assert (summary.paired.verdict, summary.paired.uncounted) == (DIFFERENT, why)
    assert "(17 of 19 metrics have no result)" in describe_paired_verdict(summary.paired)
    headline = make_headline(summary, run)
    assert headline.startswith(
        "No request of the candidate counts: its blocks are too short; the candidate differs: "
    )
    assert headline.endswith("17 of 19 metrics have no result")
    text = " ".join(format_ending(summary, run, "reports/x", 120).split())
    assert text.startswith(f"{headline}. {why}.")
    opening = list(make_opening(summary, run))
    assert [getattr(block, "text", "") for block in opening][:2] == [f"{headline}.", f"{why}."]
    verdict = make_verdict(summary, run)
    assert (verdict.word, verdict.text) == (
        "No request of the candidate counts:",
        "its blocks are too short.",
    )
    whole = summarised(*a_comparison((1.0,) * 10)).paired
    assert whole is not None
    assert (whole.uncounted, whole.describe_unknown()) == ("", "")


def test_the_limits_of_arms_that_differ_are_named_by_arm() -> None:
    run, _ = a_comparison((1.0,) * 10, candidate_set=("prefill-concurrency=1",))
    assert describe_arm_limits(run) == "base none, candidate 1"
    run, _ = a_comparison(
        (1.0,) * 10, candidate_set=("prefill-concurrency=1",), prefill_concurrency=4
    )
    assert describe_arm_limits(run) == "base 4, candidate 1"
    assert describe_arm_limits(a_comparison((1.0,) * 10, prefill_concurrency=4)[0]) == ""


def test_pairs_without_a_request_of_the_tenant_are_not_called_unended() -> None:
    run, records = a_comparison((1.0,) * 10, isolate="gold")
    gold = [replace(one, tenant="gold") for one in records if one.pair not in (6, 7)]
    summary = summarised(run, gold)
    assert summary.paired is not None
    assert summary.paired.reason.startswith(
        "too few pairs: 10 were completed, 2 of them with a block without a request of gold, and "
        "10 with requests are needed"
    )


def blocks_text(summary: Summary) -> str:
    assert summary.paired is not None
    return " ".join(map(str, make_paired_table(summary.paired)))


def test_a_candidate_five_percent_slower_is_called_worse() -> None:
    ratios = (1.04, 1.06, 1.05, 1.05, 1.04, 1.06, 1.05, 1.05, 1.04, 1.06)
    summary = summarised(*a_comparison(ratios))
    assert summary.paired is not None
    assert (summary.paired.verdict, summary.paired.pairs, summary.paired.reason) == (
        DIFFERENT,
        10,
        "",
    )
    assert summary.paired.chance == 2 / 1024
    figure = the(summary, "TTFT p50 (ms)")
    logs = np.log(ratios)
    reach = 2.2622 * logs.std(ddof=1) / math.sqrt(10)
    assert figure.percent == pytest.approx(100 * math.expm1(logs.mean()), abs=1e-3)
    assert figure.low_percent == pytest.approx(100 * math.expm1(logs.mean() - reach), abs=1e-2)
    assert figure.word == "worse"
    assert the(summary, "Failures (%)").word == "no significant difference"


def test_equal_arms_under_changing_weather_show_no_difference() -> None:
    summary = summarised(*a_comparison((1.1, 0.9, 1.05, 0.95, 1.0, 1.1, 0.9, 1.0, 0.98, 1.02)))
    assert summary.paired is not None
    assert summary.paired.verdict == SAME
    assert summary.paired.different == 0


def test_metrics_of_gathered_chunks_are_not_compared() -> None:
    """The candidate's TTFT is half as long again in each pair. A note has that its responses came
    whole: then TTFT, gaps and rules about them say nothing of the model; latency and rates do."""
    run, records = a_comparison(
        (1.5, 1.51) * 5, slo=("ttft p50 within 5% of base", "attainment >= 90% given ttft < 1s")
    )
    assert the(summarised(run, records), "TTFT p50 (ms)").word == "worse"
    buffering = Buffering(CANDIDATE)
    for number in range(20):
        buffering.add(answered(*[2000] * 40, sent_at=10.0 + number, arm=CANDIDATE))
    run = replace(run, notes=tuple(buffering.remarks("")))
    assert "20 of 20 responses examined of the candidate arrived complete" in run.notes[0]
    summary = summarised(run, records)
    assert summary.paired is not None
    gathered = [figure for figure in summary.paired.figures if not figure.pairs]
    assert {figure.metric for figure in gathered} == {
        "ttft", "itl", "longest_stall", "attainment", "goodput",
    }  # fmt: skip
    assert {figure.note for figure in gathered} == {"the streams were buffered on the way"}
    assert the(summary, "Request Latency p50 (ms)").pairs
    assert summary.slos[0].status == "INCONCLUSIVE"
    assert summary.slos[0].reason == "the streams were buffered on the way"
    text = " ".join(format_ending(summary, run, "reports/x").split())
    assert (
        "WARNING: the streams were buffered on the way, so TTFT, ITL, ICL and Longest Stall are not "
        "compared." in text
    )
    assert "TTFT p50" not in make_headline(summary, run)


def test_nothing_is_concluded_from_nine_pairs_or_on_a_bad_machine() -> None:
    summary = summarised(*a_comparison((1.5, 1.51) * 4))
    assert summary.paired is not None
    assert (summary.paired.verdict, summary.paired.different) == (INCONCLUSIVE, 0)
    assert summary.paired.reason == "too few pairs: 8 were completed, and 10 are needed"
    assert the(summary, "TTFT p50 (ms)").word == "not concluded"
    run, records = a_comparison((1.5, 1.51) * 5, slo=("ttft p50 within 5% of base",))
    off = ErrorBounds(count=100, p50_ms=60.0, p95_ms=60.0, p99_ms=60.0, max_ms=60.0)
    one = MeasurementAccuracy(streams=10, chunks=100, ttft=off, gap=off)
    busy = ProcessHealth(worker="local", cpu_share=0.99, loop_lag_p99_ms=1, certificate=one)
    summary = summarised(replace(run, health=(busy,)), records)
    assert summary.client is not None
    assert summary.client.level != OK
    assert summary.paired is not None
    assert summary.paired.verdict == INCONCLUSIVE
    assert "the client verdict is" in summary.paired.reason
    assert summary.slo_status == "INCONCLUSIVE"


def test_a_difference_that_a_bad_machine_cannot_have_made_stands() -> None:
    """The candidate takes twice the base's 100 ms; the sentinels were off by 32 ms, and by 60
    ms."""
    for off_ms, stands in ((32.0, True), (60.0, False)):
        run, records = a_comparison(
            (2.0, 2.02) * 5, slo=("ttft p50 within 10ms of base", "ttft p50 within 5% of base")
        )
        off = ErrorBounds(count=100, p50_ms=off_ms, p95_ms=off_ms, p99_ms=off_ms, max_ms=off_ms)
        one = MeasurementAccuracy(streams=10, chunks=100, ttft=off, gap=off)
        health = ProcessHealth(worker="local", cpu_share=0.1, loop_lag_p99_ms=1.0, certificate=one)
        summary = summarised(replace(run, health=(health,)), records)
        assert summary.client is not None
        assert summary.client.level == "INVALID"
        assert summary.paired is not None
        assert summary.paired.verdict == (DIFFERENT if stands else INCONCLUSIVE)
        assert bool(summary.paired.reason) != stands
        line = format_verdict_line(summary, run) or ""
        assert ("Other differences within this error allow no conclusion." in line) == stands
        assert "client INVALID" not in [text for text, _ in make_badges(summary, run)]
        assert the(summary, "TTFT p50 (ms)").word == ("worse" if stands else "not concluded")
        assert [one.status for one in summary.slos] == (
            ["FAIL", "FAIL"] if stands else ["INCONCLUSIVE"] * 2
        )


@pytest.mark.parametrize(
    ("limit", "word", "status"),
    [("10s", "no significant difference", "PASS"), ("120ms", "not concluded", "INCONCLUSIVE")],
)
def test_an_error_that_carries_no_request_across_a_limit_leaves_goodput_as_it_is(
    limit: str, word: str, status: str
) -> None:
    """The sentinels were off by 32 ms. All TTFT are 80 to 120 ms, far below 10 s, and around 120
    ms."""
    rule = f"goodput within 1% of base given ttft < {limit}"
    run, records = a_comparison((1.0,) * 10, slo=(rule,))
    off = ErrorBounds(count=100, p50_ms=32.0, p95_ms=32.0, p99_ms=32.0, max_ms=32.0)
    one = MeasurementAccuracy(streams=10, chunks=100, ttft=off, gap=off)
    health = ProcessHealth(worker="local", cpu_share=0.1, loop_lag_p99_ms=1.0, certificate=one)
    summary = summarised(replace(run, health=(health,)), records)
    assert summary.client is not None
    assert summary.client.level == "INVALID"
    assert the(summary, "Throughput (requests/s)").word == "no significant difference"
    assert the(summary, "Goodput (requests/s)").word == the(summary, "Attainment (%)").word == word
    assert [one.status for one in summary.slos] == [status]


def test_a_few_late_reads_do_not_void_a_difference_that_all_blocks_show() -> None:
    """The candidate takes twice the base's TTFT. In two of its ten blocks first chunks may be 90 %
    older than their stamps: the mean ratio is at least 2.01 * 0.1 ** (2 / 10) = 1.27. Were they so
    in all blocks, nothing would be known."""
    for pairs_off, word, status in (
        ({4, 9}, "worse", "FAIL"),
        (range(11), "not concluded", "INCONCLUSIVE"),
    ):
        run, records = a_comparison(
            (2.0, 2.02) * 5, slo=("ttft p50 within 20% of base", "ttft p50 within 35% of base")
        )
        records = [
            replace(record, merged=((0, record.chunk_us[0] // 10),))
            if record.arm == CANDIDATE and record.pair in pairs_off
            else record
            for record in records
        ]
        health = ProcessHealth(
            worker="local", cpu_share=0.1, loop_lag_p99_ms=1.0, certificate=CERTIFICATE
        )
        summary = summarised(replace(run, health=(health,)), records)
        assert summary.client is not None
        assert summary.client.level != OK
        assert the(summary, "TTFT p50 (ms)").word == word
        assert [one.status for one in summary.slos] == [status, "INCONCLUSIVE"]


def test_rules_against_the_base() -> None:
    expected = {
        "ttft p50 within 6% of base": "PASS",
        "ttft p50 within 4% of base": "FAIL",
        "ttft p50 within 5% of base": "INCONCLUSIVE",
        "ttft p50 within 10ms of base": "PASS",
        "ttft p50 within 1ms of base": "FAIL",
        "error_rate within 1pp of base": "PASS",
        "requests_per_s within 1% of base": "PASS",
        "goodput within 1% of base given ttft < 1s": "PASS",
        "goodput within 50% of base given ttft < 1ms": "INCONCLUSIVE",
        "ttft{class=nobody} p50 within 5% of base": "INCONCLUSIVE",
        "ttft max < 128ms": "PASS",
        # ten blocks, each of equal values, are worth about ten requests
        "ttft p50 < 120ms": "INCONCLUSIVE",
    }
    ratios = (1.048, 1.052, 1.05, 1.051, 1.049, 1.048, 1.052, 1.05, 1.051, 1.049)
    run, records = a_comparison(ratios, slo=tuple(expected))
    results = summarised(run, records * 10).slos
    assert dict(zip(expected, (result.status for result in results), strict=True)) == expected, (
        results
    )
    near = {one.rule for one in results if one.close_to_limit and one.rule.endswith("of base")}
    assert near == {"ttft p50 within 5% of base"}  # not those without a figure


def test_each_compared_figure_can_be_a_rule_of_the_same_value_and_interval() -> None:
    ratios = (1.04, 1.06, 1.05, 1.07, 1.03, 1.04, 1.06, 1.05, 1.07, 1.03)
    good, shares = "given ttft < 1s", ("error_rate", "attainment")
    run, records = a_comparison(ratios, request_rate=1.0, slo=(f"goodput >= 0/s {good}",))
    compared = list(list_compared_figures(run))
    for word in ("longest_stall", "ttft_from_due", "goodput", "attainment", "output_tokens_per_s"):
        assert word in {rule.metric for rule in compared}
    rules = {}
    for rule in compared:
        tolerance = "100pp" if rule.metric in shares else "100%"
        given = good if rule.given else ""
        text = " ".join(f"{rule.metric} {rule.stat} within {tolerance} of base {given}".split())
        rules[text] = rule
    summary = summarised(replace(run, settings=replace(run.settings, slo=tuple(rules))), records)
    assert summary.paired is not None
    figures = {(figure.metric, figure.stat): figure for figure in summary.paired.figures}
    assert len(summary.slos) == len(rules) == len(compared)
    for result in summary.slos:
        rule = rules[result.rule]
        figure = figures[rule.metric, rule.stat]
        change = figure.difference if rule.metric in shares else figure.percent
        worse = change if rule.less_is_better or change is None else -change
        assert (result.status, result.observed) == ("PASS", pytest.approx(worse)), result
        if figure.low_percent is not None and rule.less_is_better:
            assert (result.low, result.high) == pytest.approx(
                (figure.low_percent, figure.high_percent)
            )
    # the mean of the logarithms of these ratios
    assert figures["ttft_from_due", "p95"].percent == pytest.approx(4.99, abs=0.01)


def test_other_rules_are_about_the_candidate_alone() -> None:
    run, records = a_comparison((2.0,) * 10, slo=("ttft max < 150ms", "ttft min > 150ms"))
    assert [result.status for result in summarised(run, records).slos] == ["FAIL", "PASS"]


def test_a_percentile_that_lands_on_a_failure_is_compared_in_no_way() -> None:
    run, records = a_comparison((1.0,) * 10)
    gone = [
        replace(
            failed(sent_at=record.sent_at), arm=record.arm, pair=record.pair, phase=record.phase
        )
        if record.pair == 1 and record.arm == CANDIDATE
        else record
        for record in records
    ]
    summary = summarised(run, gone)
    assert the(summary, "TTFT p50 (ms)").note == "it falls on a failed request in 1 of 20 blocks"
    # an average leaves failures out, and so does the pair that has nothing else
    assert the(summary, "TTFT avg (ms)").left_out.startswith("from 9 of 10 pairs: in 1 pair a ")
    assert the(summary, "Failures (%)").pairs[0] == (0.0, 100.0)


@pytest.mark.parametrize(("dead", "status"), [(6, "FAIL"), (5, "INCONCLUSIVE")])
def test_a_candidate_that_dies_breaks_a_rule_in_most_pairs(dead: int, status: str) -> None:
    """Of ten pairs the candidate answers the first 4, or 5. Its last answer is the sixth request of
    its block, sent 5 s after the block's begin; the last chunk comes 140 ms, or 120 ms, later: 0.04
    s after the first token, which takes as long as the base's."""
    run, records = a_comparison((1.0,) * 10, slo=("ttft p50 within 50% of base",))
    last_pair = 10 - dead
    gone = [
        replace(
            failed("refused", sent_at=record.sent_at),
            arm=record.arm, pair=record.pair, phase=record.phase,
        )
        if record.arm == CANDIDATE and record.pair > last_pair
        else record
        for record in records
    ]  # fmt: skip
    summary = summarised(run, gone)
    (result,) = summary.slos
    assert result.status == status
    reasons = {
        "FAIL": "it falls on a failed request at the candidate alone in 6 of 10 pairs",
        "INCONCLUSIVE": "it falls on a failed request in 5 of 20 blocks",
    }
    assert result.reason == reasons[status]
    last_s = 10 * (2 * last_pair + 1) + 5 + (BASES[last_pair - 1] + 40) / 1000
    assert summary.paired is not None
    assert f"the candidate answered no request from {last_s:.1f} s on" in summary.paired.warning
    assert "the base" not in summary.paired.warning


def test_a_standstill_is_named_with_the_pair_that_counts_it() -> None:
    """The candidate's block of pair 4 begins at 90 s. Three requests of 93 s wait to 97 s."""
    run, records = a_comparison((1.0,) * 10)
    usual = [record for record in records if not 93.0 <= (record.sent_at or 0) < 96.0]
    held = [
        answered(4000, 4020, 4040, sent_at=93.0, stage=9, arm=CANDIDATE, pair=4) for _ in range(3)
    ]
    summary = summarised(run, [*usual, *held])
    assert summary.paired is not None
    assert summary.paired.warning == (
        "no token came from 93.0 to 97.0 s, which pair 4 counts at the candidate"
    )
    assert summarised(run, usual).paired.warning == ""  # type: ignore[union-attr]


def test_failures_of_one_arm_come_first_in_the_sentence_and_in_the_table() -> None:
    """One of the four requests of each block of the candidate fails: 25 % against 0 %."""
    run, records = a_comparison((1.5, 1.52) * 5)
    broken = {(record.pair, CANDIDATE): i for i, record in enumerate(records)
              if record.arm == CANDIDATE}  # fmt: skip
    for place in broken.values():  # the last of each block
        gone = records[place]
        records[place] = replace(
            failed(sent_at=gone.sent_at), arm=gone.arm, pair=gone.pair, phase=gone.phase
        )
    summary = summarised(run, records)
    assert make_headline(summary, run).startswith(
        "The candidate differs: Failures (%) +25 (worse), Output (tokens/s) -25.0% (worse)"
    )
    lines = format_ending(summary, run, "reports/x", 120).splitlines()
    first_row = lines[next(i for i, line in enumerate(lines) if line.startswith("Metric")) + 1]
    assert first_row.split()[:5] == ["Failures", "(%)", "0", "25", "+25"]
    assert any(line.startswith("10 failed at the candidate: ") for line in lines)
    assert not any(line.startswith("TTFT p95 (ms)  ") for line in lines), "no row of dashes"
    assert any(line.startswith("Output (tokens/s)  ") for line in lines), "it is named above"


def a_difference(metric: str, percent: float, reach: float) -> PairedFigure:
    """A p95 whose interval reaches so many percentage points to each side."""
    return PairedFigure(
        metric=metric, stat="p95", label=f"{metric} p95 (ms)", unit="ms", relative=True,
        base=100.0, candidate=100.0 + percent, difference=percent, low=percent - reach,
        high=percent + reach, percent=percent, low_percent=percent - reach,
        high_percent=percent + reach, word="worse" if percent > 0 else "better",
        pairs=((100.0, 100.0 + percent),) * 10,
    )  # fmt: skip


def test_the_table_has_what_the_sentence_names() -> None:
    """ITL p95 is in the table by a rule alone. Where no value of the table differs, others do."""
    itl, stall, wait = (
        a_difference(metric, 10, 1) for metric in ("itl", "longest_stall", "reading_stall")
    )
    rules = (parse_rule("itl p95 within 5% of base"),)
    both = PairedComparison(verdict=DIFFERENT, figures=(itl, wait, stall))
    assert select_main_figures(both, ()) == ([stall], [stall])
    assert select_main_figures(both, rules) == ([stall, itl], [itl, stall])
    alone = PairedComparison(verdict=DIFFERENT, figures=(itl, wait))
    assert select_main_figures(alone, ()) == ([itl, wait], [itl, wait])


def test_the_surest_difference_is_named_first_and_the_longest_stall_has_a_tile() -> None:
    """2 % with an interval of 2 points is a whole interval from 0, 50 % with one of 80 is less, and
    -60 % with one of 8 is many. Twice as long and half as long are as far from 0."""
    some = (
        a_difference("ttft", 50.0, 40.0), a_difference("itl", 2.0, 1.0),
        a_difference("longest_stall", -60.0, 4.0),
    )  # fmt: skip
    found = PairedComparison(verdict=DIFFERENT, pairs=10, figures=some)
    assert [figure.metric for figure in found.list_main_differences(3)] == [
        "longest_stall",
        "itl",
        "ttft",
    ]
    (tile,) = _paired_tiles(found)
    assert tile[0] == "longest_stall p95 (ms)"
    double = replace(some[0], percent=100.0, low_percent=0.0, high_percent=300.0)
    half = replace(some[0], percent=-50.0, low_percent=-75.0, high_percent=0.0)
    assert double.distance == pytest.approx(half.distance) == pytest.approx(0.5)


@pytest.mark.parametrize("off_ms", [20.0, 60.0])
def test_of_arms_with_other_prefill_limits_the_time_from_due_leads(off_ms: float) -> None:
    """The candidate waits for 150 ms at its limit, and then takes 50 ms instead of 100: its TTFT
    is halved, and users wait twice as long (200 ms). An error of 20 ms cannot turn that, one of
    60 ms can."""
    off = ErrorBounds(count=100, p50_ms=off_ms, p95_ms=off_ms, p99_ms=off_ms, max_ms=off_ms)
    one = MeasurementAccuracy(streams=10, chunks=100, ttft=off, gap=off)
    health = ProcessHealth(worker="local", cpu_share=0.1, loop_lag_p99_ms=1.0, certificate=one)
    run, records = a_comparison(
        (0.5, 0.505) * 5, weather=(100.0,) * 10, candidate_set=("prefill-concurrency=1",)
    )
    waited = [
        replace(record, due_at=record.due_at - 0.15) if record.arm == CANDIDATE else record
        for record in records
    ]
    run = replace(run, health=(health,), limits=(LimitChange(at=UNIX, limit=1, phase="profiling"),))
    summary = summarised(run, waited)
    assert summary.client is not None
    assert summary.client.level == "INVALID"
    headline, client = make_headline(summary, run), format_verdict_line(summary, run) or ""
    if off_ms == 20.0:
        assert headline.startswith("The candidate differs: TTFT from Due p50 (ms) +100")
        assert "stand: such an error cannot have changed them" in client
        rows = format_ending(summary, run, "reports/x", 120).split("Metric", 1)[1].splitlines()
        assert rows[1].startswith("TTFT from Due p50 (ms)")
    else:
        assert "TTFT from Due" not in headline
        assert "stand all the same" not in client


@pytest.mark.slow
def test_arms_that_did_not_get_the_same_arrivals_are_warned_of() -> None:
    run, records = a_comparison((1.0,) * 10, request_rate=1.0)
    assert summarised(run, records).paired.warning == ""  # type: ignore[union-attr]
    late = [r for r in records if not (r.arm == CANDIDATE and r.pair == 3)]
    fewer = [r for r in records if r.pair == 3 and r.arm == CANDIDATE][:3]
    found = summarised(run, late + fewer).paired
    assert found is not None
    assert found.warning.startswith("the candidate got 37 of the 40 requests that the base got")


@pytest.mark.parametrize(
    ("ratios", "word"),
    [
        ((1.5,) * 10, BROKEN),
        ((1.02,) * 10, HOLDS),
        ((1.05, 1.15) * 5, INCONCLUSIVE),
        ((1.0,) * 4, INCONCLUSIVE),
    ],
)
def test_a_tenant_alone_and_beside_others(ratios: tuple[float, ...], word: str) -> None:
    """The others, ten times as slow, are in no figure of it."""
    run, records = a_comparison(ratios, candidate="", isolate="gold", tenant_mix="gold=1,free=1")
    gold = [replace(record, tenant="gold") for record in records]
    slow = [10 * us for us in gold[0].chunk_us]
    free = [replace(r, tenant="free", chunk_us=tuple(slow)) for r in gold if r.arm == CANDIDATE]
    summary = summarised(run, gold + free)
    found = summary.paired
    assert found is not None
    assert (found.isolated, found.isolation) == ("gold", word)
    assert the(summary, "TTFT p95 (ms)").percent == pytest.approx(
        100 * (math.prod(ratios) ** (1 / len(ratios)) - 1), abs=0.01
    )
    assert describe_paired_verdict(found).startswith(f"Isolation of gold {word}")
    assert "alone" in make_paired_head(found)
