"""What a search for the highest load says, from stages by hand."""

import math

import pytest
from msgspec.structs import replace
from support.records import a_run
from support.stages import a_level

from locust_llm.records.run_facts import Run
from locust_llm.report.judge_slo import judge_sweep
from locust_llm.report.sections.sweep.knee import (
    describe_capacity,
    describe_levels,
    find_knees,
    find_saturation_knee,
)
from locust_llm.report.sections.sweep.sweep_findings import (
    describe_doubts,
    describe_sweep_findings,
    summarise_levels,
    summarise_sweep,
)
from locust_llm.report.slo_evidence.capacity_evidence import estimate_capacity
from locust_llm.report.slo_evidence.server_disturbance import find_disturbance, weigh_disturbances
from locust_llm.report.slo_evidence.stage_settling import (
    UNSETTLED,
    find_rise,
    select_shares,
    weigh_queues,
    weigh_rises,
)
from locust_llm.report.summary_rows import LoadLevel
from locust_llm.slo.capacity_search import CapacityEstimate, RuleEvidence, StageEvidence
from locust_llm.slo.rules import FAIL, INCONCLUSIVE, PASS, SloResult

LEVELS = tuple(map(float, range(1, 33)))


def estimate(*chances: float, rule: str = "ttft p95 < 1s") -> CapacityEstimate:
    """The last chance is that of all higher levels."""
    rest = (chances[-1],) * (len(LEVELS) - len(chances))
    return CapacityEstimate(levels=LEVELS, chances=chances + rest, rule=rule)


@pytest.mark.parametrize(
    ("chances", "text", "ends"),
    [
        ((1, 1, 1, 0.4, 0),
            "Capacity: 3 users (95% interval 3 to 4). Safe: 2 users. The rule ttft p95 < 1s "
            "determines it.", (3, 3, 4)),
        ((1, 0),
            "Capacity: 1 user (no other level is in the 95% interval). The rule ttft p95 < 1s "
            "determines it.",
            (1, 1, 1)),
        ((0.9, 0.6, 0),
            "Capacity: 2 users (95% interval: at most 2). The rule ttft p95 < 1s determines it.", (2, None, 2)),
        ((1,), "Capacity: at least 32 users; no higher load was requested.", (32, 32, None)),
        ((1, 1, 1, 0.3),
            "Capacity: 3 users (95% interval 3 to 32 or more). Safe: 2 users. The rule ttft p95 < "
            "1s determines it.", (3, 3, 32)),
        ((0.3, 0),
            "Capacity: below 1 user, the lowest requested (95% interval: at most 1). The rule "
            "ttft p95 < 1s determines it.", (None, None, 1)),
        ((0,),
            "Capacity: below 1 user, the lowest requested. The rule ttft p95 < 1s determines it.", (None, None, 1)),
    ],
)  # fmt: skip
def test_a_capacity_in_words(
    chances: tuple[float, ...],
    text: str,
    ends: tuple[float | None, float | None, float | None],
) -> None:
    knee = describe_capacity("concurrency", estimate(*chances))
    assert knee.text == text
    assert (knee.value, knee.low, knee.high) == ends


def test_a_rate_has_its_unit_and_what_more_time_would_give() -> None:
    levels = tuple(round(1.02**i, 4) for i in range(60))
    chances = tuple(1.0 if i < 30 else 0.5 if i < 36 else 0.1 if i < 45 else 0 for i in range(60))
    knee = describe_capacity("request-rate", CapacityEstimate(levels=levels, chances=chances))
    assert knee.text.startswith("Capacity: 2 requests/s (95% interval 1.78 to 2.39). Safe: 1.78 re")
    assert knee.text.endswith("Twice the time narrows the interval to about 1.85 to 2.25.")


def test_a_search_whose_time_is_up_claims_no_more_than_its_highest_stage() -> None:
    """Stages up to 4 of 32: the rule may hold at 5 and more by a half."""
    found = replace(estimate(1, 1, 1, 1, 0.5), measured_to=4.0)
    knee = describe_capacity("request-rate", found, 100.0)
    assert knee.text == (
        "Capacity: at least 4 requests/s; no higher rate was decided in 100 s: use a longer -t, "
        "or a sweep that starts higher."
    )
    assert (knee.value, knee.low, knee.high) == (4, 4, None)
    unsure = replace(estimate(1, 1, 0.9, 0.6, 0.5), measured_to=4.0)
    assert describe_capacity("concurrency", unsure).text == (
        "Capacity: 4 users (95% interval 2 to 4 or more). Safe: 2 users. The rule ttft p95 < 1s "
        "determines it. No higher load was decided."
    )
    doubtful = replace(estimate(1, 0.9, 0.6, 0.1), measured_to=4.0)
    assert describe_capacity("concurrency", doubtful, 100.0).text == (
        "Capacity: 3 users (95% interval 1 to 4 or more). Safe: 1 user. The rule ttft p95 < 1s "
        "determines it. At 4 users the SLO probably fails: use a longer -t."
    )


def searched(rules: tuple[str, ...], **beyond: tuple[float, ...]) -> list[SloResult]:
    """Stages of 1, 2, 4, 8 users with 400 requests each, and shares of them beyond the limit of
    each rule."""
    run = a_run(sweep="concurrency=1..8", slo=rules, users=None, find_max=True)
    levels = list[LoadLevel]()
    for i, value in enumerate((1.0, 2.0, 4.0, 8.0)):
        evidence = tuple(
            RuleEvidence(rule=rule, beyond=shares[i], allowed=0.05, count=400, passes=not shares[i])
            for rule, shares in zip(rules, beyond.values(), strict=True)
        )
        results = tuple(
            SloResult(rule=rule, status=INCONCLUSIVE, observed=value, unit="ms") for rule in rules
        )
        levels.append(
            a_level(value, slos=results, evidence=StageEvidence(level=value, rules=evidence))
        )
    sweep = summarise_sweep(replace(run, sweep_end="its time was used"), [])

    found = estimate_capacity(
        tuple(map(float, range(1, 9))), [level.evidence for level in levels if level.evidence]
    )
    return list(judge_sweep(replace(sweep, levels=tuple(levels), capacity=found), run))


def test_a_rule_passes_where_it_holds_at_the_lowest_level_for_certain() -> None:
    (found,) = searched(("ttft p95 < 1s",), one=(0, 0, 0, 1))
    assert (found.status, found.observed) == (PASS, 4)
    assert found.reason.startswith("capacity 4 to ")
    assert found.reason.endswith(
        "users (95% interval); the value is at concurrency 4, INCONCLUSIVE by itself: all stages "
        "together decide"
    )


def test_a_rule_fails_where_the_lowest_level_breaks_it() -> None:
    (found,) = searched(("ttft p95 < 1s",), one=(1, 1, 1, 1))
    assert (found.status, found.reason) == (FAIL, "no level within the rule: 1 user breaks it")


def test_each_rule_has_its_own_capacity() -> None:
    one, other = searched(("ttft p95 < 1s", "itl p95 < 1s"), one=(0, 0, 0, 0), other=(0, 0, 1, 1))
    assert (one.status, other.status) == (PASS, PASS)
    assert one.reason.startswith("capacity at least 8 users by this rule alone; the value is at ")
    assert other.reason.startswith("capacity 2")
    assert math.isclose(other.observed or 0.0, 2)


def test_a_search_without_a_stage_has_no_capacity() -> None:
    run = a_run(sweep="concurrency=1..8", slo=("ttft p95 < 1s",), users=None, find_max=True)
    sweep = summarise_sweep(run, [])
    assert (sweep.searched, sweep.capacity) == (True, None)


def visited(*figures: tuple[float, float, float]) -> tuple[list[LoadLevel], Run]:
    """8 users once, at 0.3 s, then 16 users with these figures: low, value, high, in seconds. Few
    requests of the last one are beyond the limit of 1 s, and none of the others."""
    rule = "ttft p95 < 1s"
    run = a_run(sweep="concurrency=8..16", slo=(rule,), users=None, find_max=True)
    levels = list[LoadLevel]()
    for i, (low, value, high) in enumerate(((0.2, 0.3, 0.5), *figures)):
        level = 16.0 if i else 8.0
        beyond, size = (0.03, 14.0) if i == len(figures) else (0.0, 1000.0)
        evidence = RuleEvidence(
            rule=rule, beyond=beyond, allowed=0.05, count=size, passes=high < 1,
            figure=(low, value, high),
        )  # fmt: skip
        result = SloResult(
            rule=rule, status=PASS if high < 1 else INCONCLUSIVE, observed=value, low=low,
            high=high, limit=1.0, unit="s",
        )  # fmt: skip
        stage = StageEvidence(level=level, number=i + 1, rules=(evidence,))
        levels.append(
            a_level(level, number=i + 1, slos=(result,), slo_status=result.status, evidence=stage)
        )
    return levels, run


def evidence_of(levels: list[LoadLevel]) -> list[StageEvidence]:
    return [level.evidence for level in levels if level.evidence is not None]


WORSENING = ((0.56, 0.592, 0.62), (0.7, 0.758, 0.8), (0.8, 0.882, 0.95), (0.8, 0.961, 1.32))


def test_visits_that_get_worse_each_time_widen_the_interval() -> None:
    """592 to 961 ms: only the last visit counts, and it may go on as far: 6 x ln(961 / 592)."""
    levels, run = visited(*WORSENING)
    (rule,) = run.settings.rules.readable
    stages = evidence_of(levels)
    found = find_disturbance(rule, stages)
    assert found is not None
    assert (found.level, found.worsens) == (16, True)
    assert math.isclose(found.spread, 6 * 0.4845, rel_tol=1e-3)
    evidence = weigh_disturbances([rule], stages)
    assert [(stage.level, stage.rules[0].beyond) for stage in evidence] == [(8, 0), (16, 0.03)]
    capacity = estimate_capacity(tuple(map(float, range(8, 17))), evidence)
    assert capacity is not None
    assert capacity.low is not None
    assert 8 <= capacity.low < 15
    assert describe_doubts("concurrency", levels, run.settings) == (
        " The 4 visits to 16 users differ by more than their errors (ttft p95 < 1s: 592ms to "
        "961ms), and each is worse than the one before: the server or the machine was disturbed."
    )


def test_the_row_of_a_pass_has_a_figure_that_passes() -> None:
    """An interval of 0.8 to 1.32 s crosses the limit, that of 8 users does not."""
    levels, run = visited(*WORSENING)
    sweep = summarise_sweep(run, [])
    whole = estimate_capacity(tuple(map(float, range(8, 17))), [levels[0].evidence])  # type: ignore[list-item]
    (result,) = judge_sweep(replace(sweep, levels=tuple(levels), capacity=whole), run)
    assert (result.status, result.observed, result.high) == (PASS, 0.3, 0.5)
    assert result.reason == (
        "capacity 9 to 16 users or more (95% interval); the value is at concurrency 8, the highest "
        "passing stage up to 9"
    )
    assert result.of_stage == 8.0


def test_visits_within_their_errors_are_no_disturbance() -> None:
    levels, run = visited((0.5, 0.6, 0.8), (0.6, 0.7, 0.8), (0.6, 0.75, 0.9))
    assert describe_doubts("concurrency", levels, run.settings) == ""
    evidence = weigh_disturbances(run.settings.rules.readable, evidence_of(levels))
    assert [(one.level, one.rules[0].spread) for one in evidence] == [(8, 0)] + [(16, 0)] * 3


def risen(level: float, measured_s: float, beyond: float, rise: float) -> StageEvidence:
    """Requests beyond the limit, of 5 % that may be; all of them in the settled half."""
    half = RuleEvidence(rule="r", beyond=min(2 * beyond, 1.0), allowed=0.05, count=100)
    whole = replace(
        half, beyond=beyond, count=200, rise=rise, rise_error=0.1, settled=half, passes=True
    )
    return StageEvidence(level=level, measured_s=measured_s, rules=(whole,))


def test_of_stages_whose_values_rise_the_settled_part_counts() -> None:
    """Short stages pass up to 8 and break at 16; those of 20 s rise by exp(0.4). They are 5 and 3
    errors."""
    stages = [
        risen(4, 3.0, 0.0, 0.0), risen(16, 3.0, 0.2, 0.0), risen(8, 20.0, 0.03, 0.5),
        risen(6, 18.0, 0.0, 0.3),
    ]  # fmt: skip
    rise = find_rise("r", stages)
    assert rise is not None
    assert math.isclose(rise.factor, math.exp(0.4))
    assert rise.long_s == 10
    kept = [(stage.level, stage.rules[0].beyond) for stage in weigh_rises(stages)]
    assert kept == [(16, 0.2), (8, 0.06), (6, 0.0)]
    assert all(stage.rules[0].passes for stage in weigh_rises(stages))


def test_values_of_a_stage_that_saw_no_rise_may_be_higher_later() -> None:
    """From their begins to their settled parts the long stages rise by 0.8 and by 0: 0.4. The one
    that must rise may have settled at once. The short one certainly did not settle."""
    settled = RuleEvidence(rule="r", excess=0.2, error=0.1, error_above=0.1, count=200)
    rising = replace(settled, begin=-0.6, rise=0.5, rise_error=0.1, settled=settled)
    steady = replace(settled, begin=0.2, rise=0.0, rise_error=0.1, settled=settled)
    short = replace(settled, excess=-0.7, count=20)
    stages = [
        StageEvidence(level=level, measured_s=measured_s, rules=(evidence,))
        for level, measured_s, evidence in ((4, 3.0, short), (8, 20.0, rising), (8, 20.0, steady))
    ]
    rise = find_rise("r", stages)
    assert rise is not None
    assert math.isclose(rise.whole, 0.4)
    kept = [stage.rules[0] for stage in weigh_rises(stages)]
    assert [(one.excess, one.unsettled) for one in kept] == [(-0.7, 1), (0.2, 0), (0.2, UNSETTLED)]
    assert [one.later for one in kept] == pytest.approx([0.4, 0, 0.4])


def test_of_rates_the_requests_beyond_the_limit_count() -> None:
    share = RuleEvidence(rule="r", beyond=0.02, allowed=0.05, count=100)
    settled = RuleEvidence(rule="r", excess=-0.2, error=0.1, share=replace(share, beyond=0.04))
    whole = replace(settled, share=share, settled=settled, rise=0.3, rise_error=0.1, passes=True)
    other = RuleEvidence(rule="avg", excess=-0.1, error=0.1)
    (stage,) = select_shares([StageEvidence(level=8, rules=(whole, other))])
    selected = replace(share, rise=0.3, rise_error=0.1, passes=True, settled=settled.share)
    assert stage.rules == (selected, other)


def test_levels_that_were_visited_twice_are_named_once() -> None:
    assert describe_levels("concurrency", a_level(1.0), a_level(1.0)) == "concurrency 1"
    assert describe_levels("concurrency", *map(a_level, (1.0, 2, 2, 4))) == (
        "concurrency 1, 2 and 4"
    )


@pytest.mark.parametrize("rises", [(0.0, 0.0), (0.05, 0.05), (0.3, -0.3), (0.2, 0.05)])
def test_a_rise_by_chance_or_of_little_matter_leaves_stages_as_they_are(
    rises: tuple[float, float],
) -> None:
    stages = [risen(4, 3.0, 0.0, 1.0), *(risen(8, 20.0, 0.03, rise) for rise in rises)]
    assert find_rise("r", stages) is None
    assert weigh_rises(stages) == stages


def test_near_saturation_a_short_stage_of_rates_says_little() -> None:
    """16 a second is too much, 9 a second were answered. At 4 a second a queue is as long as it
    gets after 3 / (3 - 2)^2 = 3 s. At 6.25 it takes 3 / (3 - 2.5)^2 = 12 s: of 6 s the square of a
    half counts. At 9 it never is."""
    rules = (RuleEvidence(rule="r", beyond=0.0, allowed=0.05, count=100),)
    stages = [StageEvidence(level=level, measured_s=6.0, rules=rules) for level in (4.0, 6.25, 9.0)]
    overloaded = StageEvidence(level=16.0, measured_s=6.0, saturated_at=9.0, rules=rules)
    assert weigh_queues(stages) == stages
    weights = [stage.rules[0].weight for stage in weigh_queues([*stages, overloaded])]
    assert weights == pytest.approx([1, 0.25, 0, 1])


def test_nothing_is_claimed_where_no_stage_passes_and_none_fails() -> None:
    """Two stages of 6 requests at 1 a second, all of them within the limit."""
    rule = "ttft p95 < 1s"
    run = a_run(sweep="request-rate=1..8", slo=(rule,), users=None, find_max=True)
    evidence = StageEvidence(
        level=1.0, rules=(RuleEvidence(rule=rule, beyond=0.0, allowed=0.05, count=200),)
    )
    own = SloResult(rule=rule, status=INCONCLUSIVE, observed=60.0, unit="ms", count=6)
    level = a_level(1.0, slos=(own,), slo_status=INCONCLUSIVE, evidence=evidence, number=1)
    sweep = summarise_levels(run, [level, replace(level, number=2)])
    assert sweep.capacity is None
    (knee,) = (knee for knee in sweep.knees if knee.rule == "SLO")
    assert knee.value is None
    assert knee.text.startswith("INCONCLUSIVE: no stage is known to be within the SLO")
    (found,) = judge_sweep(sweep, run)
    assert found.status == INCONCLUSIVE
    nothing = SloResult(rule=rule, status=INCONCLUSIVE, observed=None, unit="ms")
    empty = a_level(1.0, succeeded=0, slos=(nothing,), slo_status=INCONCLUSIVE)
    (found,) = judge_sweep(summarise_levels(run, [empty, level]), run)
    assert found.observed == 60
    passes = replace(evidence, rules=(replace(evidence.rules[0], passes=True),))
    claimed = summarise_levels(run, [replace(level, evidence=passes)])
    assert claimed.capacity is not None
    assert claimed.knees[0].text.startswith("Capacity: at least 1 request/s; ")


def test_stages_of_one_rate_that_differ_leave_open_whether_the_server_keeps_up() -> None:
    kept = a_level(1.0, answered_share=1.0, kept_up=True, duration_s=4.0, number=2)
    cut = a_level(1.0, answered_share=0.571, kept_up=False, duration_s=6.5, number=3)
    empty = a_level(1.0, succeeded=0, number=1)
    (knee,) = (
        knee for knee in find_knees("request-rate", [empty, kept, cut]) if knee.rule == "saturation"
    )
    assert (knee.value, knee.text) == (
        None,
        "It is not decided whether the server keeps up: stages at request-rate 1 answered 57.1% "
        "to 100.0% of the due requests.",
    )
    above = [replace(kept, value=2.0), replace(cut, value=2.0)]
    knee = find_saturation_knee("request-rate", [kept, *above])
    assert (knee.value, knee.high) == (1.0, None)
    assert knee.text == (
        "The server keeps up to request-rate 1: it answered 100.0% of the due requests; at 2 57.1% "
        "to 100.0% of the due requests."
    )


def test_limits_for_a_gateway_are_of_the_visit_with_the_most_requests() -> None:
    """60 a minute from 60 requests, and 36.6 from a stage of 4."""
    longer = a_level(1.0, 1.0, slo=PASS, succeeded=60)
    short = a_level(1.0, 0.61, slo=PASS, succeeded=4, number=2)
    knees = find_knees("request-rate", [longer, short])
    (line,) = describe_sweep_findings("request-rate", [longer, short], knees, a_run().settings)
    assert line.startswith(
        "Limits for a gateway, at request-rate 1, the highest stage known to be within the SLO: 60 "
    )
