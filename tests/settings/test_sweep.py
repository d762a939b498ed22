"""Stages by pencil: what a sweep is, how it goes on, and when one stage has lasted long enough."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.settings.sweep import (
    MIN_GAIN,
    OVERLOADED,
    STATIONARY,
    TIME_UP,
    FinishedStage,
    RunningStage,
    Sweep,
    bracket_maximum,
    choose_next_stage,
    littles_law_residual,
    parse_duration_range,
    parse_sweep,
)
from locust_llm.slo.grammar import FAIL, INCONCLUSIVE, PASS


@pytest.mark.parametrize(
    ("text", "axis", "values"),
    [
        ("concurrency=1,2,4", "concurrency", (1, 2, 4)),
        ("concurrency=1..256", "concurrency", (1, 2, 4, 8, 16, 32, 64, 128, 256)),
        ("concurrency=3..20", "concurrency", (3, 6, 12, 20)),
        ("prefill-concurrency=2..8+2", "prefill-concurrency", (2, 4, 6, 8)),
        ("request-rate=0.5,2,1", "request-rate", (0.5, 1, 2)),
        (" input-tokens = 128..1024 , 4000 ", "input-tokens", (128, 256, 512, 1024, 4000)),
        ("concurrency=5", "concurrency", (5,)),
    ],
)
def test_what_a_sweep_says(text: str, axis: str, values: tuple[float, ...]) -> None:
    assert parse_sweep(text) == Sweep(axis, values)
    assert parse_sweep(str(parse_sweep(text))) == parse_sweep(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("users=1,2", "concurrency, request-rate, prefill-concurrency, input-tokens"),
        ("concurrency", "write AXIS=VALUES"),
        ("concurrency=", "is not a value"),
        ("concurrency=1..", "is not a value"),
        ("concurrency=8..1", "does not rise"),
        ("concurrency=0..4", "does not rise"),
        ("concurrency=1..4+0", "does not rise"),
        ("concurrency=1.5", "whole numbers"),
        ("concurrency=1..1000+1", "at most 100"),
        ("request-rate=-1", "is not a value"),
    ],
)
def test_what_is_no_sweep_says_what_to_write(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=r"^--sweep '") as caught:
        parse_sweep(text)
    assert says in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_is_a_sweep_or_a_value_error(text: str) -> None:
    try:
        values = parse_sweep(f"concurrency={text}").values
    except ValueError:
        return
    assert list(values) == sorted(set(values))
    assert all(value > 0 for value in values)


@pytest.mark.parametrize(
    ("text", "both"), [("10..120", (10, 120)), ("30", (30, 30)), ("0.5..1", (0.5, 1))]
)
def test_how_long_a_stage_lasts(text: str, both: tuple[float, float]) -> None:
    assert parse_duration_range(text) == both


@pytest.mark.parametrize("text", ["", "x", "0", "20..10", "-1..3", "1..inf", "nan", "1..2..3"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="--stage-duration"):
        parse_duration_range(text)


def done(
    value: float,
    status: str | None = None,
    throughput: float | None = None,
    *,
    client_too_slow: bool = False,
) -> FinishedStage:
    return FinishedStage(value, status, throughput, client_too_slow)


LADDER = parse_sweep("concurrency=1..32")


def test_stages_come_in_their_order_and_end() -> None:
    assert choose_next_stage(LADDER, []) == 1
    assert choose_next_stage(LADDER, [done(1), done(2)]) == 4
    assert (
        choose_next_stage(LADDER, [done(2.0**i, PASS, 2.0**i) for i in range(6)])
        == "all stages ran"
    )


def test_it_ends_when_the_rules_are_broken_twice_in_a_row() -> None:
    assert (
        choose_next_stage(LADDER, [done(1, PASS), done(2, FAIL), done(4, PASS), done(8, FAIL)])
        == 16
    )
    assert (
        choose_next_stage(LADDER, [done(1, PASS), done(2, FAIL), done(4, FAIL)])
        == "the SLO failed in two stages in a row"
    )
    assert choose_next_stage(LADDER, [done(1, FAIL), done(2, INCONCLUSIVE)]) == 4


def test_it_ends_when_throughput_gains_little_twice_in_a_row() -> None:
    flat = [done(1, None, 100), done(2, None, 100 * (1 + MIN_GAIN) - 0.1), done(4, None, 104)]
    assert str(choose_next_stage(LADDER, flat)).startswith(
        "throughput rose by less than".replace(" %", "%")
    )
    once = [done(1, None, 100), done(2, None, 104), done(4, None, 106)]
    assert choose_next_stage(LADDER, once) == 8
    assert (
        choose_next_stage(
            parse_sweep("prefill-concurrency=1..8"), [done(v, None, 100) for v in (1, 2, 4)]
        )
        == 8
    )


def test_to_find_the_maximum_it_goes_on_while_the_rules_pass() -> None:
    flat = [done(v, PASS, 100) for v in (1, 2, 4)]
    assert choose_next_stage(LADDER, flat, find_max=True) == 8
    assert choose_next_stage(LADDER, [*flat, done(8, INCONCLUSIVE, 100)], find_max=True) == 16
    assert "two stages in a row" in str(choose_next_stage(LADDER, flat))
    everything = [done(v, PASS, 100) for v in LADDER.values]
    assert str(choose_next_stage(LADDER, everything, find_max=True)).startswith(
        "all stages ran; the highest stage passed"
    )


def test_where_no_rule_decides_throughput_does_and_that_is_said() -> None:
    flat = [done(v, None, 100) for v in (1, 2, 4)]
    assert str(choose_next_stage(LADDER, flat, find_max=True)).startswith(
        "no rule decides these stages, and throughput rose by less than 5% in two stages in a row"
    )


def test_it_ends_when_the_load_generator_is_the_limit() -> None:
    tired = [done(1), done(2, client_too_slow=True), done(4, client_too_slow=True)]
    assert (
        choose_next_stage(LADDER, tired) == "the load generator was too slow in two stages in a row"
    )


def test_find_max_halves_the_way_between_pass_and_fail() -> None:
    climbed = [*(done(v, PASS, v) for v in (1, 2, 4, 8)), done(16, FAIL), done(32, FAIL)]
    seen = []
    limit = 11
    while not isinstance(step := choose_next_stage(LADDER, climbed, find_max=True), str):
        seen.append(step)
        climbed.append(done(step, PASS if step <= limit else FAIL))
    assert seen == [12, 10, 11]
    assert bracket_maximum(climbed) == (11, 12)
    assert step.endswith("the highest value that passes is found")


def test_find_max_of_a_rate_comes_within_five_percent() -> None:
    asked = parse_sweep("request-rate=1,2,4")
    climbed = [done(1, PASS), done(2, PASS), done(4, FAIL)]
    while not isinstance(step := choose_next_stage(asked, climbed, find_max=True), str):
        climbed.append(done(step, PASS if step <= 2.7 else FAIL))
    low, high = bracket_maximum(climbed)
    assert low is not None
    assert high is not None
    assert low <= 2.7 < high <= low * 1.05


def test_find_max_says_why_there_is_nothing_to_find() -> None:
    assert "no stage passed" in str(
        choose_next_stage(LADDER, [done(1, FAIL), done(2, FAIL)], find_max=True)
    )
    passed = [done(2.0**i, PASS, 2.0**i) for i in range(6)]
    assert "lies above it" in str(choose_next_stage(LADDER, passed, find_max=True))


def test_a_bracket_has_what_failed_lowest_above_it() -> None:
    assert bracket_maximum([]) == (None, None)
    assert bracket_maximum(
        [done(1, INCONCLUSIVE), done(2, PASS), done(4, INCONCLUSIVE), done(8, FAIL)]
    ) == (2, 4)
    assert bracket_maximum([done(1, PASS), done(2, FAIL), done(4, PASS)]) == (1, 2)
    assert bracket_maximum([done(1, FAIL), done(2, PASS), done(4, PASS), done(8, FAIL)]) == (
        4,
        8,
    )  # a rule on throughput
    assert bracket_maximum([done(4, INCONCLUSIVE)]) == (None, 4)
    undecided = done(8, INCONCLUSIVE, client_too_slow=True)  # below one that passed
    assert bracket_maximum(
        [done(4, PASS), undecided, done(12, PASS), done(14, FAIL), done(16, INCONCLUSIVE)]
    ) == (
        12,
        14,
    )


def test_littles_law_by_pencil() -> None:
    assert littles_law_residual(8, 40, 10, 2.0) == 0  # 4/s x 2 s = 8
    assert littles_law_residual(10, 40, 10, 2.0) == pytest.approx(0.2)
    assert littles_law_residual(0, 0, 10, 0) == math.inf


def stretch(users: int | None = 2, requests: int = 4) -> RunningStage:
    return RunningStage(100.0, users, at_least_s=10, at_most_s=60, requests=requests)


def closed_loop(
    one: RunningStage, users: int, latency_s: float, until: float
) -> list[tuple[float, bool]]:
    """Users that ask again at once, all in step, from 100 on: (sent at, measured) of each
    request."""
    found, at = [], 100.0
    while at + latency_s < until:
        for _ in range(users):
            found.append((at, one.ended(at, at, at + latency_s, ok=True)))
        at += latency_s
        if one.look(at, users):
            break
    return found


def test_the_first_wave_is_left_out_and_the_last_one_too() -> None:
    one = stretch()
    requests = closed_loop(one, 2, 2.0, 200)
    # the wave that began at 100 ends at 102; 10 s at least are measured, then one more wave
    assert (one.measured_at, one.ended_at, one.why) == (102, 112, STATIONARY)
    assert requests[-1][0] == 112
    assert [sent_at for sent_at, measured in requests if measured] == [
        102,
        102,
        104,
        104,
        106,
        106,
        108,
        108,
        110,
        110,
        112,
        112,
    ]
    assert one.residual == 0
    assert one.warmup == 2  # of the first wave


def test_several_waves_before_a_stage_is_measured() -> None:
    """Two users, 2 s a request, two requests of each: from 104 on, when four have ended."""
    one = RunningStage(100.0, 2, at_least_s=10, at_most_s=60, requests=4, waves=2)
    closed_loop(one, 2, 2.0, 200)
    assert (one.measured_at, one.warmup, one.ended_at) == (104, 4, 114)


def test_it_lasts_until_there_are_enough_requests() -> None:
    one = stretch(requests=14)
    closed_loop(one, 2, 2.0, 300)
    assert (one.measured_at, one.ended_at) == (102, 116)


def test_time_is_up_also_when_it_is_not_enough() -> None:
    one = stretch(requests=1000)
    closed_loop(one, 2, 2.0, 300)
    assert (one.ended_at, one.why) == (162, TIME_UP)


def test_a_server_that_never_answers_ends_it_with_nothing_measured() -> None:
    one = stretch()
    assert [one.look(at, 2) for at in (160.0, 219.0)] == [False, False]
    assert one.look(220.0, 2) is True
    assert (one.measured_at, one.why, one.residual) == (None, TIME_UP, None)


def test_an_open_loop_that_grows_is_overloaded() -> None:
    one = stretch(users=None)
    # 8/s come, 2/s are answered, after ever longer
    at, inside = 100.0, 0
    while not one.look(at, inside):
        at, inside = at + 1, inside + 6
        for _ in range(2):
            one.ended(at - inside / 8, at - inside / 16, at, ok=True)
        assert at < 200
    assert one.why == OVERLOADED
    assert one.measured_at == 110  # it never turns over: the first wave ends with the least time


def test_an_open_loop_that_is_steady_is_stationary() -> None:
    one = stretch(users=None, requests=40)
    at = 100.0
    while not one.look(at, 8 if at >= 102 else 4):
        at += 1
        for _ in range(4):  # 4/s, each inside for 2 s
            if at >= 102:
                one.ended(at - 2, at - 2, at, ok=True)
        assert at < 200
    assert (one.measured_at, one.why) == (103, STATIONARY)
    assert one.residual == 0


def test_failures_are_no_samples_but_move_the_waves() -> None:
    one = stretch()
    for at in range(101, 150):
        for _ in range(2):
            one.ended(at - 1, None, at, ok=False)
        assert one.look(at, 2) is False
    assert one.measured_at == 101
    assert one.ended_at is None


def test_a_sweep_that_ran_all_its_stages_was_ended_by_nothing() -> None:
    asked = parse_sweep("request-rate=2,6")
    tired = [FinishedStage(value, None, None, "DEGRADED") for value in (2.0, 6.0)]
    assert choose_next_stage(asked, tired) == "all stages ran"
