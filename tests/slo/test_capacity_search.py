"""The capacity of a sweep, its interval, and the stages of a search: by pencil and in virtual
time."""

import math
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from locust_llm.records.report_result import ReportResult
from locust_llm.report.slo_evidence.capacity_evidence import estimate_capacity, find_capacity
from locust_llm.report.slo_evidence.rule_evidence import FAR, find_settled, make_share_evidence
from locust_llm.slo.capacity_search import (
    CapacityEstimate,
    CapacitySearch,
    RuleEvidence,
    SearchStage,
    StageEvidence,
    StageTime,
    choose_level,
    fails_at_lowest,
    list_levels,
    plan_stage,
    plan_unbounded_stage,
)
from locust_llm.slo.rules import Rule

LEVELS = list_levels(1, 32, whole=True)


def stage(level: float, beyond: float, count: float = 200.0, rule: str = "r") -> StageEvidence:
    """5 % may be beyond the limit."""
    return StageEvidence(
        level=level, rules=(RuleEvidence(rule=rule, beyond=beyond, allowed=0.05, count=count),)
    )


def capacity(*stages: StageEvidence) -> CapacityEstimate:
    found = estimate_capacity(LEVELS, stages)
    assert found is not None
    return found


def test_levels_are_whole_numbers_or_a_fiftieth_apart() -> None:
    assert list_levels(1, 4, whole=True) == (1, 2, 3, 4)
    assert list_levels(3, 3, whole=True) == (3,)
    assert list_levels(100, 105, whole=True) == (100, 102, 104, 105)
    assert list_levels(2, 2.1, whole=False) == (2, 2.04, 2.081, 2.1)


def test_stages_on_either_side_of_the_limit_settle_it() -> None:
    found = capacity(stage(4, 0.0), stage(8, 0.0), stage(9, 1.0), stage(16, 1.0))
    assert (found.low, found.value, found.high, found.safe) == (8, 8, 8, 7)
    assert found.is_narrow
    assert found.format_interval("users") == "8 users"


def test_a_search_needs_two_failing_visits_to_its_lowest_level() -> None:
    none = CapacityEstimate(levels=LEVELS, chances=(0.0,) * len(LEVELS))
    some = replace(none, chances=(0.1,) + (0.0,) * (len(LEVELS) - 1))
    fails = StageEvidence(level=1.0, rules=(RuleEvidence(rule="r", fails=True),))
    silent, open_ = replace(fails, silent=True), StageEvidence(level=1.0)
    above = replace(fails, level=2.0)
    assert fails_at_lowest(none, [fails, above, open_, fails], 1.0)
    assert not fails_at_lowest(some, [fails, fails], 1.0)
    assert not fails_at_lowest(None, [fails, fails], 1.0)
    assert not fails_at_lowest(none, [fails, above, open_], 1.0)
    assert not fails_at_lowest(none, [fails, silent], 1.0)


def test_a_stage_says_something_about_its_neighbours() -> None:
    """Of what was only seen at 8 and 16 the capacity is between them; a stage at 12 narrows it."""
    wide = capacity(stage(8, 0.01), stage(16, 0.3))
    narrower = capacity(stage(8, 0.01), stage(16, 0.3), stage(12, 0.05, 2000))
    assert wide.low is not None
    assert wide.high is not None
    assert 7 <= wide.low <= 9
    assert 13 <= wide.high <= 15
    assert narrower.value in (11, 12)
    assert narrower.low is not None
    assert narrower.high is not None
    assert narrower.high - narrower.low < wide.high - wide.low


def test_all_stages_hold_and_nothing_above_was_asked() -> None:
    found = capacity(*(stage(level, 0.0) for level in (1, 2, 4, 8, 16, 32)))
    assert (found.low, found.value, found.reaches_top) == (32, 32, True)
    assert found.format_interval("users") == "at least 32 users"
    assert found.predict_interval(2) is None


def test_the_lowest_stage_breaks_it() -> None:
    found = capacity(stage(1, 1.0))
    assert (found.low, found.value, found.high, found.safe) == (None, None, None, None)
    assert found.format_interval("users") == "below 1 user"


def test_all_rules_hold_and_the_first_to_break_is_named() -> None:
    def both(level: float, one: float, other: float) -> StageEvidence:
        rules = stage(level, one, rule="one").rules + stage(level, other, rule="other").rules
        return StageEvidence(level=level, rules=rules)

    found = capacity(both(4, 0, 0), both(8, 0, 1), both(16, 1, 1), both(6, 0, 0), both(7, 0, 1))
    assert (found.low, found.high, found.rule) == (6, 6, "other")


def test_a_mean_counts_by_its_distance_from_the_limit() -> None:
    """A latency in proportion to the users reaches its limit at 10.5 of them."""

    def mean(level: float) -> StageEvidence:
        rule = RuleEvidence(rule="avg", excess=math.log(level / 10.5), error=0.01)
        return StageEvidence(level=level, rules=(rule,))

    found = capacity(*(mean(level) for level in (2, 4, 8, 16, 10, 11, 10, 11)))
    assert found.value == 10
    assert (found.low, found.high) in [(10, 10), (10, 11)]


def test_a_throughput_that_needs_load_says_nothing_below_its_best() -> None:
    def rate(level: float, excess: float) -> StageEvidence:
        rule = RuleEvidence(rule="x", excess=excess, error=0.02, needs_load=True)
        return StageEvidence(level=level, rules=(rule,))

    assert estimate_capacity(LEVELS, [rate(1, 0.5), rate(2, 0.2)]) is None  # it still rises
    found = capacity(rate(1, 0.5), rate(4, -0.5), rate(8, -0.2), rate(16, 0.5))
    assert found.low is not None
    assert found.low >= 8


def test_a_search_goes_up_by_doubling_until_a_level_is_too_high() -> None:
    assert choose_level(None, [], LEVELS) == 1
    assert choose_level(capacity(stage(1, 0.0)), [1], LEVELS) == 2
    known = [stage(level, 0.0) for level in (1, 2, 4)]
    assert choose_level(capacity(*known), [1, 2, 4], LEVELS) == 8
    known.append(stage(8, 1.0))
    assert 4 <= choose_level(capacity(*known), [1, 2, 4, 8], LEVELS) < 8


def test_a_side_without_a_long_stage_is_next() -> None:
    """The only long stage was at 13, too high. The next one is to prove a level: the highest with a
    chance of three quarters. With a long one there, it is nearer to the middle."""
    chances = dict(zip((3, 4, 5, 6, 7, 8), (0.95, 0.8, 0.6, 0.45, 0.2, 0.1), strict=True))
    found = CapacityEstimate(
        levels=LEVELS, chances=tuple(chances.get(int(level), float(level < 3)) for level in LEVELS)
    )
    done = [1, 2, 4, 8, 13]
    assert choose_level(found, done, LEVELS, [13]) == 4
    assert choose_level(found, [*done, 4, 6], LEVELS, [13, 4, 6]) == 5
    assert choose_level(found, [*done, 4], LEVELS, [13, 4]) == 6


@pytest.mark.parametrize("capacity_of_server", [1, 3, 5, 12, 23])
def test_a_search_finds_a_sharp_limit_within_its_time(capacity_of_server: int) -> None:
    done, spent_s, estimate = search(lambda level: float(level > capacity_of_server), 300.0)
    assert (estimate.low, estimate.high) == (capacity_of_server, capacity_of_server)
    assert 280 < spent_s <= 301
    assert sum(time.measured_s for time in done) > 200


def test_a_search_below_its_range_and_above_it() -> None:
    _, _, below = search(lambda level: 1.0, 60.0)
    assert below.high is None
    _, _, above = search(lambda level: 0.0, 60.0)
    assert above.low == 32


def search(
    beyond: Callable[[float], float], total_s: float
) -> tuple[list[StageTime], float, CapacityEstimate]:
    """Of a server with ten requests a second, whose waves and report take 3 s a stage."""
    done, known, spent_s = list[StageTime](), list[StageEvidence](), 0.0
    estimate: CapacityEstimate | None = None
    while (step := plan_stage(estimate, done, LEVELS, total_s - spent_s, total_s)) is not None:
        measured_s = max(step.at_least_s, min(step.at_most_s, step.requests / 10))
        done.append(StageTime(step.level, measured_s, measured_s + 3))
        known.append(stage(step.level, beyond(step.level), 10 * measured_s))
        spent_s += measured_s + 3
        estimate = estimate_capacity(LEVELS, known)
    assert estimate is not None
    return done, spent_s, estimate


def test_without_a_bound_in_time_it_ends_when_nothing_is_left_to_find_out() -> None:
    sure = capacity(stage(4, 0.0), stage(8, 0.0), stage(9, 1.0), stage(16, 1.0))
    assert plan_unbounded_stage(sure, [4, 8, 16, 9], LEVELS, (10, 120), 144) is None
    wide = capacity(stage(8, 0.01), stage(16, 0.3))
    step = plan_unbounded_stage(wide, [8, 16], LEVELS, (10, 120), 144)
    assert step is not None
    assert 8 < step.level < 16
    assert step == SearchStage(step.level, 10, 120, 144)


def test_twice_the_time_narrows_it_by_the_root_of_two() -> None:
    levels = list_levels(1, 64, whole=True)
    chances = tuple(float(level <= 14) if level <= 10 or level > 14 else 0.5 for level in levels)
    found = CapacityEstimate(levels=levels, chances=chances)
    assert (found.low, found.value, found.high) == (10, 14, 14)
    assert found.predict_interval(2) == (11, 14)  # 14 x (10 / 14) ** 0.71 is 11.0


def test_nothing_is_claimed_above_the_highest_level_that_was_measured() -> None:
    """Of 1 to 32 only 1, 2 and 4 were run, and hold for certain: 5 and more are not known."""
    found = capacity(*(stage(level, 0.0, 2000) for level in (1, 2, 4)))
    assert (found.low, found.value, found.high, found.reaches_top) == (4, 4, 4, True)
    assert found.format_interval("users") == "at least 4 users"
    assert not found.is_narrow
    assert choose_level(found, [1, 2, 4], LEVELS) == 8


def test_a_rate_is_doubled_until_a_level_certainly_fails() -> None:
    """Two of the first six requests late: the level stays possible, and the next one is higher."""
    levels = list_levels(1, 32, whole=False)
    beyond = np.array([0, 0, 0, 1, 0, 1.0])
    first = make_share_evidence("r", beyond, 0.05, None)
    assert (first.count, first.inflation) == (6, 2)
    found = estimate_capacity(levels, [StageEvidence(level=1, rules=(first,))])
    assert found is not None
    assert found.chance_of(1) > 0.1
    assert choose_level(found, [1], levels) == max(level for level in levels if level <= 2)


def test_values_far_within_a_limit_say_nothing_of_failures() -> None:
    """Of 100 requests none is beyond it. All are at a tenth of it, which says more where it is
    about latency alone; of failures 100 say 100."""
    beyond, margins = np.zeros(100), np.full(100, 0.1)
    latency = make_share_evidence("r", beyond, 0.05, margins)
    attainment = make_share_evidence("r", beyond, 0.05, margins, may_fail=True)
    assert latency.allowed is None
    assert latency.excess == pytest.approx(math.log(0.1))
    assert attainment.count < 110


@pytest.mark.parametrize("margins", [None, np.full(40, 0.5)])
def test_evidence_gets_to_the_control_as_it_is(margins: np.ndarray | None) -> None:
    """The report is another process, and JSON has no infinity."""
    rule = make_share_evidence("r", np.zeros(40), 0.05, margins)
    few = make_share_evidence("few", np.zeros(3), 0.05, None)
    evidence = StageEvidence(level=2, rules=(rule, few, RuleEvidence(rule="avg", excess=0.1)))
    sent = msgspec.json.encode(ReportResult(stage_evidence=evidence))
    assert msgspec.json.decode(sent, type=ReportResult).stage_evidence == evidence


def test_a_rise_from_one_half_of_a_stage_to_the_other() -> None:
    """Values of half the limit, then of the limit itself: ln 2. The highest are a tenth above."""
    margins = np.repeat([0.5, 1.0], 50) * np.tile([0.9, 1.1], 50)
    found = make_share_evidence("r", (margins >= 1).astype(float), 0.05, margins)
    assert found.rise == pytest.approx(math.log(2))
    assert 0 < found.rise_error < 0.1
    assert found.begin == pytest.approx(math.log(0.55))
    assert found.settled is not None
    assert (found.settled.excess, found.settled.count) == (pytest.approx(math.log(1.1)), 50)


@pytest.mark.filterwarnings("error")
def test_a_begin_of_failures_alone_is_far_beyond_the_limit() -> None:
    """Each request counts as infinitely long; nothing is computed of infinity less infinity."""
    found = make_share_evidence("r", np.ones(100), 0.05, np.full(100, np.inf))
    assert found.begin == FAR


def test_a_rise_that_is_over_at_once_is_none() -> None:
    """Of 100 values from 1.8 to 2.2 times the limit only the first five are lower: a cell."""
    margins = 2 * np.tile([0.9, 1.1], 50)
    margins[:5] = 0.5
    found = make_share_evidence("r", (margins >= 1).astype(float), 0.05, margins)
    assert found.rise == 0
    assert found.settled is not None
    assert found.settled.count == 95


@pytest.mark.parametrize(("unsettled", "expected"), [(0, 0), (10, 10), (20, 20), (30, 30)])
def test_values_settle_where_the_rest_has_the_least_error(unsettled: int, expected: int) -> None:
    """At most three quarters of 40 values are left out, in cells of 5."""
    logs = np.concatenate([np.zeros(unsettled), np.tile([2.0, 2.1], 20)])[:40]
    assert find_settled(logs) == expected


def test_the_error_of_a_percentile() -> None:
    """400 values from 1 to e^4, whose logarithms are 0.01 apart. Beyond p95 are 20 +- 4.4 of them,
    from 24.4 to 20 / 1.22 = 16.4: 4.4 x 0.01 below and 3.6 x 0.01 above."""
    logs = np.random.default_rng(1).permutation(np.arange(400) / 100)
    margins = np.exp(logs - 3.0)
    found = make_share_evidence("r", (margins >= 1).astype(float), 0.05, margins)
    assert found.excess == pytest.approx(0.795, abs=1e-4)
    assert found.error == pytest.approx(0.044, rel=0.3)
    assert found.error_above == pytest.approx(0.036, rel=0.3)


def test_where_the_margins_do_not_tell_what_broke_the_rule_its_requests_do() -> None:
    """Three requests were cut: they are half beyond the limit."""
    beyond = np.array([0.0] * 97 + [0.5] * 3)
    margins = np.full(100, 0.5)
    found = make_share_evidence("r", beyond, 0.05, margins)
    assert (found.allowed, found.beyond) == (0.05, 0.015)


def value(level: float, excess: float, unsettled: float = 0.0) -> StageEvidence:
    rule = RuleEvidence(
        rule="r", excess=excess, error=0.05, error_above=0.05, later=0.6, unsettled=unsettled
    )
    return StageEvidence(level=level, rules=(rule,))


def test_a_value_that_may_be_higher_later_shows_less() -> None:
    """At 8 users it is 0.3 below its limit, and known to 0.05. It may rise by 0.6."""
    certain, possible, likely = (
        capacity(value(4, -0.6), value(8, -0.3, unsettled), value(16, 0.6)).chance_of(8)
        for unsettled in (0.0, 0.1, 1.0)
    )
    assert certain > 0.995
    assert 0.5 < likely < possible < certain


def test_a_value_far_beyond_its_limit_is_as_clear_as_one_near_it() -> None:
    """Values that are all about the same, 14% below the limit with 16 users and 7.6 times it with
    32, as with a queue from 17 or more users on: the middle between the two, no level next to 32."""
    within = RuleEvidence(rule="r", count=64, excess=-0.15, error=0.003, error_above=0.007)
    for excess in (0.2, 0.5, 2.0, 4.0):
        beyond = replace(within, count=92, excess=excess, error=0.003, error_above=0.003)
        found = capacity(
            StageEvidence(level=16, rules=(within,)), StageEvidence(level=32, rules=(beyond,))
        )
        assert found.chance_of(32) < 0.01
        assert found.value is not None
        assert found.high is not None
        assert 18 <= found.value <= 24
        assert found.high < 31


def test_a_level_that_certainly_fails_shares_its_chance_among_those_below() -> None:
    """Of the chances 1, 0.9, 0.7 and 0.6 at 1 to 4 users, 4 users certainly fail: 1, 0.75 and 0.25
    are left, so the middle is 2 users."""
    found = CapacityEstimate(levels=(1, 2, 3, 4), chances=(1.0, 0.9, 0.7, 0.6), measured_to=4)
    assert found.value == 4
    certain = replace(found, fails_from=4)
    assert (certain.low, certain.value, certain.high) == (1, 2, 3)


def test_two_values_show_where_their_limit_lies_between_them() -> None:
    """Values that rise with the load reach their limit at 10 of 5 and 20 users."""
    found = capacity(value(5, -math.log(2)), value(20, math.log(2)))
    assert found.value is not None
    assert 8 <= found.value <= 12


def test_values_that_are_all_about_the_same_tell_levels_apart() -> None:
    """400 requests know their percentile to 0.2 %. It rises by 2 % from 11 to 12 users, to 1 %
    over the limit, in two visits to each."""

    def alike(level: float, excess: float) -> StageEvidence:
        rule = RuleEvidence(rule="r", excess=excess, error=0.002, error_above=0.002, count=400)
        return StageEvidence(level=level, rules=(rule,))

    visits = [alike(11, -0.01), alike(12, 0.01)]
    found = capacity(alike(8, -0.04), *visits, *visits, alike(16, 0.04))
    assert (found.low, found.high) == (11, 11)


def test_a_stage_has_the_waves_of_the_nearest_level_above() -> None:
    """The stage of 16 took 4 s beside its measured part, the later one of 2 users 2 s. Of 14 users
    with 30 s left, one stage is measured for 26 s."""
    held = [stage(level, 0.0, 500) for level in (1, 2, 4, 8, 13)] + [stage(16, 1.0, 500)]
    done = [StageTime(level, 3, 5) for level in (1, 2, 4, 8)]
    done += [StageTime(16, 20, 24), StageTime(13, 20, 24), StageTime(2, 20, 22)]
    step = plan_stage(estimate_capacity(LEVELS, held), done, LEVELS, 30, 160)
    assert step is not None
    assert 13 <= step.level <= 15
    assert step.at_most_s == pytest.approx(26, abs=0.5)


@pytest.mark.parametrize(("left_s", "expected"), [(25, 4), (17, 3), (15, None)])
def test_where_the_next_level_does_not_fit_a_lower_one_uses_the_time(
    left_s: float, expected: float | None
) -> None:
    """2 users took 10 s beside their measured part. So 4 take 20 s and 3 take 15 s, and 2 % of 55 s
    are measured at least."""
    done = [StageTime(1, 5, 10), StageTime(2, 10, 20)]
    found = CapacityEstimate(
        levels=LEVELS, chances=(1.0, 1.0, 0.6, 0.5) + (0.01,) * (len(LEVELS) - 4)
    )
    step = plan_stage(found, done, LEVELS, left_s, 55)
    assert (None if step is None else step.level) == expected


def test_a_step_of_about_twice_the_rate_is_as_short_as_one_of_twice() -> None:
    """Rates are 2 % apart: below 2 x 2.038 = 4.076 the next one is 3.998."""
    levels = list_levels(1, 32, whole=False)
    held = [stage(level, 0.0, 500) for level in (1.0, 2.038)]
    done = [StageTime(1.0, 6, 9), StageTime(2.038, 6, 9)]
    step = plan_stage(estimate_capacity(levels, held), done, levels, 80, 100)
    assert step is not None
    assert (step.level, step.requests) == (3.998, 20)
    assert step.at_most_s == pytest.approx(3 * 3 * 3.998 / 2.038)  # thrice its waves


def test_a_level_that_is_not_decided_by_itself_takes_one_that_fails_above() -> None:
    """4 passes, 8 is INCONCLUSIVE: at least 4. With 16 that fails, 8 is between the two."""
    held = [stage(1, 0.0, 500), stage(4, 0.0, 500), stage(8, 0.0, 200)]
    found = capacity(*held).limit_to([1, 4])
    assert (found.low, found.value, found.is_open, found.reaches_top) == (4, 4, True, True)
    between = capacity(*held, stage(16, 1.0)).limit_to([1, 4])
    assert between.low is not None
    assert 4 < between.low < 16


def test_a_level_is_visited_again_after_one_silent_visit() -> None:
    """The server stood still in the visit to 4 users, and again in the second one: then it counts."""
    rules = (Rule("error_rate", "<=", 0.05, ""),)
    name = str(rules[0])

    def found(*silent: bool) -> CapacityEstimate | None:
        visits = [replace(stage(4, 1.0, rule=name), silent=one) for one in silent]
        stages = (stage(1, 0.0, rule=name), stage(2, 0.0, rule=name), *visits)
        search = CapacitySearch(lowest=1, highest=32, whole=True, stages=stages)
        return find_capacity(search, rules)

    assert found(False) != found()
    assert found(True) == found()
    assert found(True, True) == found(False, False)
    assert found(True, False) == found(False)

    def next_level(*visits: tuple[float, bool]) -> float:
        done = [StageTime(level, 10.0, 12.0, silent) for level, silent in visits]
        step = plan_stage(capacity(stage(1, 0.0), stage(2, 0.0)), done, LEVELS, 500.0, 1000.0)
        assert step is not None
        return step.level

    assert next_level((1, False), (2, False)) == 4
    assert next_level((1, False), (2, False), (4, True)) == 4
    assert next_level((1, False), (2, False), (4, True), (4, True)) == 8
    assert next_level((1, True)) == 1
