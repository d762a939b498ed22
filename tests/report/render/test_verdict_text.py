"""The first line of the report page has at most twelve words; a rule's bullet shows how far its
value is from its limit."""

import math
from typing import Any

import pytest
from msgspec.structs import replace
from support.levels import level
from support.records import UNIX, a_run, answered, failed, mixed

from locust_llm.records.record import Record
from locust_llm.records.run_facts import OpenLoopSchedule
from locust_llm.report.load_records import collect_columns
from locust_llm.report.render.verdict_text import (
    MAX_WORDS,
    RuleBullet,
    Verdict,
    format_value,
    make_rule_bullets,
    make_verdict,
)
from locust_llm.report.sections.ab_comparison import PairedComparison, PairedFigure
from locust_llm.report.sections.sweep.knee import describe_capacity
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.report.summary_rows import Knee, SweepSummary
from locust_llm.slo.capacity_search import CapacityEstimate
from locust_llm.slo.rules import FAIL, INCONCLUSIVE, PASS, SloResult

GOOD = [answered(ms, ms + 10, ms + 30, sent_at=10 + 0.1 * i) for i, ms in enumerate(mixed(300))]


def verdict_of(records: list[Record], *slo: str, **more: Any) -> Verdict:
    run = replace(a_run(slo=slo), **more)
    return make_verdict(summarise_run(collect_columns(records), run, 0, records), run)


def test_the_verdict_of_rules() -> None:
    assert verdict_of(GOOD, "ttft p95 < 900ms") == Verdict("Passed:", "the rule holds.", "pass")
    held = verdict_of(GOOD, "ttft p95 < 900ms", "error_rate < 5%")
    assert held == Verdict("Passed:", "all 2 rules hold.", "pass")
    beside = verdict_of(GOOD, "ttft p95 < 900ms", "error_rate < 5%", "warn: ttft p50 < 900ms")
    assert beside.text == "all 2 rules hold, and 1 warn: rule."
    warned = verdict_of(GOOD, "ttft p95 < 900ms", "error_rate < 5%", "warn: ttft p50 < 50ms")
    assert warned.text == "all 2 rules hold; 1 warn: rule broken."
    broken = verdict_of(GOOD, "ttft p50 < 50ms", "error_rate < 5%")
    assert broken == Verdict("Failed:", "TTFT p50 is 150 ms, limit 50 ms.", "loud")
    failing = [*GOOD, *(failed(sent_at=11.0 + i) for i in range(len(GOOD)))]
    lands = verdict_of(failing, "ttft p95 < 1s")
    assert lands.text == "TTFT p95 falls on a failed request, limit 1 s."
    both = verdict_of(GOOD, "ttft p50 < 50ms", "ttft p95 < 60ms")
    assert both.text == "TTFT p50 is 150 ms, limit 50 ms; 1 more failed."


def test_a_broken_rule_against_a_base_names_the_difference() -> None:
    """63.8 % worse, where 5 % are tolerated."""
    rule = "itl p95 within 5% of reports/s7"
    result = SloResult(rule=rule, status=FAIL, observed=63.8, limit=5.0, unit="%")
    run = a_run(slo=(rule,))
    summary = replace(
        summarise_run(collect_columns(GOOD), a_run()), slos=(result,), slo_status=FAIL
    )
    found = make_verdict(summary, run)
    assert found.text == "ITL p95 is 63.8% worse than reports/s7, tolerance 5%."
    worse = replace(result, observed=math.inf)
    found = make_verdict(replace(summary, slos=(worse,)), run)
    assert found.text == "ITL p95 falls on a failed request, tolerance 5%."


def test_an_open_rule_names_what_it_needs() -> None:
    found = verdict_of(GOOD[:100], "ttft p50 < 150ms")
    assert (found.word, found.kind) == ("Not decided:", "open")
    assert found.text in (
        "TTFT p50 is open.",
        "TTFT p50 probably passes.",
        "TTFT p50 probably fails.",
    )
    two = [
        SloResult(rule="itl p95 < 100ms", status=INCONCLUSIVE, longer_s=200.0),
        SloResult(rule="ttft p95 < 1s", status=INCONCLUSIVE),
    ]
    run = a_run(slo=tuple(result.rule for result in two))
    summary = replace(
        summarise_run(collect_columns(GOOD), run), slos=tuple(two), slo_status=INCONCLUSIVE
    )
    verdict = make_verdict(summary, run)
    assert verdict.text == "1 of 2 open rules needs about 4 min more."
    assert len(f"{verdict.word} {verdict.text}".split()) <= MAX_WORDS


def test_the_time_of_open_rules_is_the_one_that_decides_all_of_them() -> None:
    """TTFT needs 8 s, the share of failures 2 min; a third rule has no time."""
    two = (
        SloResult(rule="ttft p95 < 2s", status=INCONCLUSIVE, longer_s=7.9),
        SloResult(rule="error_rate < 1%", status=INCONCLUSIVE, longer_s=119.0),
    )
    run = a_run(slo=tuple(result.rule for result in two))
    summary = replace(summarise_run(collect_columns(GOOD), run), slos=two, slo_status=INCONCLUSIVE)
    assert make_verdict(summary, run).text == "2 rules open; run about 2 min longer."
    alone = replace(summary, slos=two[:1])
    assert make_verdict(alone, run).text == "TTFT p95 needs about 8 s more."
    without_time = replace(two[0], longer_s=None)
    later = make_verdict(replace(summary, slos=(without_time, two[1])), run)
    assert later.text == "1 of 2 open rules needs about 2 min more."
    three = (*two, SloResult(rule="itl p95 < 100ms", status=INCONCLUSIVE))
    run = a_run(slo=tuple(result.rule for result in three))
    some = make_verdict(replace(summary, slos=three), run).text
    assert some == "2 of 3 open rules need about 2 min more."


def test_an_overload_counts_what_had_no_answer_by_the_stop() -> None:
    """A request takes half a second, one after the other: 10 are due a second for 20 s, and 40 of
    200 are over by the stop. All others are answered while the queue drains."""
    late = [
        answered(500 * (i + 1) - 100 * i, sent_at=0.1 * i, due_at=0.1 * i, asked_at=0.1 * i)
        for i in range(200)
    ]  # fmt: skip
    offer = OpenLoopSchedule(due=200, never_started=0, duration_s=20.0, most_users=200)
    run = replace(a_run(request_rate=10.0), stopping_at=UNIX + 20.05, offer=offer)
    summary = summarise_run(collect_columns(late), run)
    assert summary.delivery is not None
    assert summary.conditions.succeeded == summary.conditions.requests == 200
    found = make_verdict(summary, run)
    assert found == Verdict("Overloaded:", "160 of 200 requests had no answer by the stop.", "loud")


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        (["cut"] * 6, Verdict("No result:",
            "all 6 requests were cut when the run ended.", "open")),
        (["cut"], Verdict("No result:", "the request was cut when the run ended.", "open")),
        (["cancelled"] * 2, Verdict("No result:", "all 2 requests were cancelled on purpose.", "open")),
        (["cut", "cancelled"], Verdict("No result:",
            "all 2 requests were cut or cancelled.", "open")),
    ],
)  # fmt: skip
def test_requests_that_were_only_cut_did_not_fail(outcomes: list[str], verdict: Verdict) -> None:
    records = [
        answered(10, sent_at=20.0 + i, outcome=outcome, closed_at=40.0)
        for i, outcome in enumerate(outcomes)
    ]
    assert verdict_of(records) == verdict
    assert len(f"{verdict.word} {verdict.text}".split()) <= MAX_WORDS


def test_cut_requests_are_no_failures_beside_others() -> None:
    cut = answered(10, sent_at=20.0, outcome="cut", closed_at=40.0)
    lost = failed("refused", error="Connection refused", sent_at=20.0)
    found = verdict_of([cut, cut, lost])
    assert found.text == "none of 3 requests succeeded: Connection refused."


def test_the_verdict_of_a_ramp_shows_what_the_limit_does() -> None:
    """TTFT is 100 ms under a limit of 1, and 300 ms under 3."""
    records = [
        answered(ms, ms + 10, sent_at=at, admitted_at=at, asked_at=at, due_at=at, limit=limit)
        for limit, ms, start in ((1, 100, 10), (3, 300, 50))
        for at in [start + 0.5 * i for i in range(20)]
    ]
    run = a_run(((0.0, 1), (45.0, 3)), prefill_concurrency=3)
    found = make_verdict(summarise_run(collect_columns(records), run, 0, records), run)
    assert found.text == "TTFT p50 100 ms at limit 1, 300 ms at limit 3."


@pytest.mark.parametrize(
    ("statuses", "knee", "verdict"),
    [
        ("PPF", 2.0, Verdict("2 users:", "within the SLO; 4 fails.", "pass")),
        ("PP", 2.0, Verdict("2 users:", "within the SLO; no higher load ran.", "pass")),
        ("F", None, Verdict("Failed:", "1 user, the lowest load.", "loud")),
        ("IIF", None, Verdict("Not decided:", "2 users may be within the SLO; 4 fails.", "open")),
    ],
)
def test_the_verdict_of_a_sweep_is_its_answer(
    statuses: str, knee: float | None, verdict: Verdict
) -> None:
    names = {"P": PASS, "F": FAIL, "I": INCONCLUSIVE}
    levels = [level(2.0**i, slo_status=names[status]) for i, status in enumerate(statuses)]
    knees = (Knee(rule="SLO", value=knee, text=""),)
    sweep = SweepSummary(
        axis="concurrency", unit="users", levels=tuple(levels), ended="", knees=knees
    )
    run = a_run()
    found = make_verdict(replace(summarise_run(collect_columns(GOOD), run), sweep=sweep), run)
    assert found == verdict
    assert len(f"{found.word} {found.text}".split()) <= MAX_WORDS


def test_the_verdict_of_a_search_has_its_interval() -> None:
    """The capacity is 3 in 60 of 100 cases, 4 in 35 and 1 or 2 in the others."""
    capacity = CapacityEstimate(
        levels=(1.0, 2.0, 3.0, 4.0, 5.0), chances=(1.0, 0.99, 0.98, 0.4, 0.0), measured_to=5.0
    )
    levels = (level(1, slo_status=PASS), level(3, slo_status=PASS), level(8, slo_status=FAIL))
    knees = (Knee(rule="SLO", value=3.0, text=""),)
    sweep = SweepSummary(
        axis="concurrency",
        unit="users",
        levels=levels,
        ended="",
        knees=knees,
        searched=True,
        capacity=capacity,
    )
    run = a_run()
    found = make_verdict(replace(summarise_run(collect_columns(GOOD), run), sweep=sweep), run)
    assert found == Verdict("3 users:", "95% interval 3 to 4; 8 fails.", "pass")


def test_the_verdict_and_the_capacity_say_the_same_of_a_stage_that_probably_fails() -> None:
    """Of 1 to 8 users, 1, 3 and 4 ran: the capacity is at least 4 in 30 of 100 cases."""
    capacity = CapacityEstimate(
        levels=tuple(map(float, range(1, 9))),
        chances=(1.0, 0.98, 0.8, 0.3, 0.2, 0.1, 0.05, 0.0),
        measured_to=4.0,
        rule="ttft p95 < 1s",
    )
    levels = (
        level(1, slo_status=PASS),
        level(3, slo_status=PASS),
        level(4, slo_status=INCONCLUSIVE),
    )
    knee = describe_capacity("concurrency", capacity, 60.0)
    assert "At 4 users the SLO probably fails: use a longer -t." in knee.text
    sweep = SweepSummary(
        axis="concurrency", unit="users", levels=levels, ended="", knees=(knee,), searched=True,
        capacity=capacity,
    )  # fmt: skip
    run = a_run()
    summary = replace(summarise_run(collect_columns(GOOD), run), sweep=sweep)
    expected = Verdict("3 users:", "95% interval 2 to 4 or more; 4 probably fails.", "pass")
    assert make_verdict(summary, run) == expected
    likely = replace(capacity, chances=(1.0, 0.98, 0.8, 0.6, 0.2, 0.1, 0.05, 0.0))
    assert likely.probably_fails is None


def test_the_verdict_without_rules() -> None:
    assert verdict_of(GOOD) == Verdict("", "TTFT p95 285 ms, ITL p95 15 ms.")
    schedule = OpenLoopSchedule(due=300, never_started=0, duration_s=30.0, most_users=9)
    open_loop = verdict_of(
        GOOD, settings=a_run(users=None, request_rate=10.0).settings, offer=schedule
    )
    assert open_loop == Verdict("", "TTFT from due p95 285 ms, ITL p95 15 ms.")
    assert verdict_of([]).word == "No result:"
    lost = [failed("refused", error="Connection refused", sent_at=10.0 + i) for i in range(30)]
    found = verdict_of(lost)
    assert found == Verdict("Failed:", "all 30 requests failed: Connection refused.", "loud")


@pytest.mark.parametrize(
    "slo",
    [
        (),
        ("ttft p95 < 1ms",),
        ("ttft p95 < 1ms", "itl p99 < 1ms", "error_rate < 1%"),
        ("attainment >= 99% given ttft < 1ms and itl < 1ms",),
        ("output_tokens_per_s_per_user p50 >= 1000000/s",),
        ("ttft p95 < 283ms", "itl p95 < 15.1ms"),
    ],
)
@pytest.mark.parametrize("count", [1, 12, 300])
def test_a_verdict_has_at_most_twelve_words(slo: tuple[str, ...], count: int) -> None:
    found = verdict_of(GOOD[:count], *slo)
    assert len(f"{found.word} {found.text}".split()) <= MAX_WORDS


def test_reasons_of_any_length_are_cut() -> None:
    found = verdict_of([failed(error="one two three " * 50, sent_at=10.0 + i) for i in range(30)])
    assert len(f"{found.word} {found.text}".split()) <= MAX_WORDS


def bullet_of(rule: str, **result: Any) -> RuleBullet:
    asked = {"status": PASS, "observed": 0.5, "limit": 1.0, "unit": "s", **result}
    return next(make_rule_bullets([SloResult(rule=rule, **asked)], a_run(slo=(rule,))))


def test_a_limit_is_at_seventy_percent_of_the_scale() -> None:
    """Half of the limit is at 35, twice the limit beyond the edge."""
    half = bullet_of("ttft p95 < 1s", low=0.25, high=2.0)
    assert (half.dot, half.low, half.high, half.limit) == (35.0, 17.5, 100.0, 70.0)
    assert (half.name, half.value, half.kind) == ("TTFT p95 < 1 s", "500 ms", "pass")
    assert not half.rises


@pytest.mark.parametrize(
    ("sweep", "stage", "value"),
    [
        ("concurrency=1..64", 3.0, "500 ms at 3 users"),
        ("request-rate=1,2.5", 2.5, "500 ms at 2.5 requests/s"),
        ("concurrency=1..64", None, "500 ms"),
    ],
)
def test_a_value_of_a_sweep_has_the_load_of_its_stage(
    sweep: str, stage: float | None, value: str
) -> None:
    rule = "ttft p95 < 1s"
    result = SloResult(rule=rule, status=PASS, observed=0.5, limit=1.0, unit="s", of_stage=stage)
    run = a_run(slo=(rule,), sweep=sweep, users=None)
    assert next(make_rule_bullets([result], run)).value == value


def test_the_value_of_a_search_is_at_the_highest_certain_load() -> None:
    """It may be below the capacity, which is beside it."""
    rule = "ttft p95 < 1s"
    run = a_run(slo=(rule,), sweep="concurrency=1..64", users=None, find_max=True)
    for status, value in (
        (PASS, "500 ms at 8 users, the highest load that certainly keeps it"),
        (FAIL, "500 ms at 8 users"),
    ):
        result = SloResult(
            rule=rule, status=status, observed=0.5, limit=1.0, unit="s", of_stage=8.0
        )
        assert next(make_rule_bullets([result], run)).value == value


@pytest.mark.parametrize(
    ("results", "text"),
    [
        ({1: PASS, 4: PASS, 8: INCONCLUSIVE}, "within the SLO; 8 is INCONCLUSIVE."),
        (
            {1: PASS, 4: PASS, 8: INCONCLUSIVE, 16: INCONCLUSIVE},
            "within the SLO; 8 is INCONCLUSIVE.",
        ),
        ({1: PASS, 4: PASS, 8: INCONCLUSIVE, 16: FAIL}, "within the SLO; 16 fails."),
        ({1: PASS, 4: PASS}, "within the SLO; no higher load ran."),
    ],
)
def test_what_is_above_the_highest_passing_stage(results: dict[int, str], text: str) -> None:
    levels = tuple(level(value, slo_status=status) for value, status in results.items())
    knee = Knee(rule="SLO", value=4.0, text="Within the SLO up to concurrency 4.")
    sweep = SweepSummary(axis="concurrency", unit="users", levels=levels, ended="", knees=(knee,))
    run = a_run()
    summary = replace(summarise_run(collect_columns(GOOD), run), sweep=sweep)
    assert make_verdict(summary, run) == Verdict("4 users:", text, "pass")


def test_a_stage_that_broke_the_rules_without_an_answer_fails() -> None:
    """As one that collapsed in its first wave."""
    levels = (level(2, slo_status=PASS), level(40, slo_status=FAIL, succeeded=0, requests=0))
    knees = (Knee(rule="SLO", value=2.0, text=""),)
    sweep = SweepSummary(
        axis="request-rate", unit="requests/s", levels=levels, ended="", knees=knees
    )
    run = a_run()
    found = make_verdict(replace(summarise_run(collect_columns(GOOD), run), sweep=sweep), run)
    assert found == Verdict("2 requests/s:", "within the SLO; 40 fails.", "pass")


@pytest.mark.parametrize(
    ("status", "reason", "advice"),
    [
        (
            INCONCLUSIVE,
            "95% interval 0% to 44% crosses the limit, a longer grace period (-s) may decide it; "
            "275 of the requests were cut",
            "a longer grace period (-s) may decide it",
        ),
        (INCONCLUSIVE, "about 40 s more may decide it", "about 40 s more may decide it"),
        (INCONCLUSIVE, "too few requests", ""),
        (FAIL, "about 40 s more may decide it", ""),
    ],
)
def test_an_open_rule_has_the_way_out_beside_it(status: str, reason: str, advice: str) -> None:
    assert bullet_of("ttft p95 < 1s", status=status, reason=reason).advice == advice


def test_the_way_out_is_in_the_reasons_of_the_judge() -> None:
    """The limit is near the median of 100 requests."""
    run = a_run(slo=("ttft p50 < 150ms",))
    (found,) = make_rule_bullets(summarise_run(collect_columns(GOOD[:100]), run).slos, run)
    assert (found.kind, found.advice.endswith("may decide it")) == ("open", True)


def test_an_end_that_is_not_known_is_that_of_the_scale() -> None:
    found = bullet_of("ttft p95 < 1s", status=INCONCLUSIVE, low=0.4)
    assert (found.low, found.high, found.kind) == (28.0, 100.0, "open")
    assert bullet_of("ttft p95 < 1s").low is None


def test_a_rule_that_a_failure_breaks_has_no_value() -> None:
    found = bullet_of("ttft p95 < 1s", status=FAIL, observed=float("inf"))
    assert (found.dot, found.value, found.kind) == (100.0, "a failure", "loud")


def test_rules_with_limits_below_and_at_zero() -> None:
    assert bullet_of("output_tokens_per_s >= 10/s", observed=20.0, limit=10.0, unit="/s").rises
    none = bullet_of("error_rate <= 0%", observed=0.0, limit=0.0, unit="%")
    assert none.dot == 70.0
    assert bullet_of("error_rate <= 0%", observed=1.0, limit=0.0, unit="%").dot == 100.0


def test_a_difference_from_another_run_has_its_zero_in_the_middle() -> None:
    same = bullet_of("ttft p95 within 5% of reports/base", observed=0.0, limit=5.0, unit="%")
    assert same.dot == 35.0
    better = bullet_of("ttft p95 within 5% of reports/base", observed=-10.0, limit=5.0, unit="%")
    assert better.dot == 0.0


def test_values_have_a_space_before_their_unit() -> None:
    result = SloResult(rule="ttft p95 < 1s", status=PASS, observed=1.25, limit=3.0, unit="s")
    assert format_value(result) == "1.25 s"


def test_the_verdict_of_two_arms_names_what_differs() -> None:
    """TTFT differs in two of its figures and is named once; ITL does not."""
    common: dict[str, Any] = {
        "label": "x (ms)",
        "unit": "ms",
        "relative": True,
        "pairs": ((1.0, 2.0),) * 10,
    }
    figures = (
        PairedFigure(metric="ttft", stat="avg", percent=150.0, word="worse", **common),
        PairedFigure(metric="ttft", stat="p50", percent=220.0, word="worse", **common),
        PairedFigure(metric="itl", stat="p50", percent=1.0, word="not concluded", **common),
    )
    paired = PairedComparison(verdict="DIFFERENT", chance=0.001, pairs=10, figures=figures)
    run = a_run()
    summary = replace(summarise_run(collect_columns(GOOD), run), paired=paired)
    expected = Verdict("Candidate:", "TTFT p50 3.2 times as long; ITL: not concluded.", "loud")
    assert make_verdict(summary, run) == expected
