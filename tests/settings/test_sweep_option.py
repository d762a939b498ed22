"""Stages by pencil: what a sweep is, how it goes on, and when one stage has lasted long enough."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.settings.sweep_option import (
    OVERLOADED,
    STATIONARY,
    TIME_UP,
    RunningStage,
    Sweep,
    choose_next_stage,
    littles_law_residual,
    parse_duration_range,
    parse_sweep,
)


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
        ("concurrency=", "is not a valid value"),
        ("concurrency=1..", "is not a valid value"),
        ("concurrency=8..1", "must rise"),
        ("concurrency=0..4", "must rise"),
        ("concurrency=1..4+0", "must rise"),
        ("concurrency=1.5", "whole numbers"),
        ("concurrency=1..1000+1", "maximum is 100"),
        ("request-rate=-1", "is not a valid value"),
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


LADDER = parse_sweep("concurrency=1..32")


def test_each_value_that_was_asked_for_has_a_stage() -> None:
    assert [choose_next_stage(LADDER, done) for done in range(7)] == [
        1, 2, 4, 8, 16, 32, "all stages ran",
    ]  # fmt: skip


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


def test_an_open_loop_that_nothing_answers_is_measured_all_the_same() -> None:
    """From the longest time for a measurement on: what is sent then shows that it cannot keep
    up."""
    one = stretch(users=None)
    assert [one.look(at, 50) for at in (110.0, 159.75, 160.0)] == [False] * 3
    assert (one.measured_at, one.ended_at) == (160.0, None)
    assert one.ended(165.0, 165.0, 400.0, ok=True)


@pytest.mark.parametrize(
    ("users", "measured_at", "ended_at"),
    [(None, 106.0, 109.0), (2, None, 112.0)],
)
def test_a_stage_without_answers_takes_no_more_than_all_its_time(
    users: int | None, measured_at: float | None, ended_at: float
) -> None:
    """12 s: half of them for a first wave, and a quarter for the last one. Users who wait send
    nothing more that could be measured."""
    one = RunningStage(100.0, users, at_least_s=9, at_most_s=9, requests=4, whole_s=12)
    at = 100.0
    while not one.look(at, 50):
        at += 0.25
    assert (one.measured_at, one.ended_at, at) == (measured_at, ended_at, 112.0)


def test_a_stage_with_answers_takes_no_more_than_all_its_time() -> None:
    """Waves of 2 s: measured from 102 to 110, and over at 112."""
    one = RunningStage(100.0, 2, at_least_s=11, at_most_s=11, requests=4, whole_s=12)
    closed_loop(one, 2, 2.0, 200)
    assert (one.measured_at, one.ended_at, one.why) == (102, 110, TIME_UP)
    assert one.look(112.0, 2)


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
