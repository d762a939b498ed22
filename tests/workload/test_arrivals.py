"""Arrivals: pencil numbers, the moments of the random ones, and that a rate's two functions undo
each other."""

import math
from itertools import islice, pairwise
from random import Random
from statistics import fmean, pvariance

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from locust_llm.workload.arrivals import (
    PATTERNS,
    ArrivalRate,
    RateFactor,
    draw_arrivals,
    draw_expected_counts,
    draw_user_centric_arrivals,
    limit_arrivals,
    make_steady_rate,
    parse_rate_series,
    replay_arrivals,
)


def constant(rate: ArrivalRate, many: int) -> list[float]:
    return list(islice(draw_arrivals(rate, "constant", Random(0)), many))


# -- rates -----------------------------------------------------------------------------------------


def test_a_constant_rate_begins_at_0_and_does_not_drift() -> None:
    assert constant(make_steady_rate(4), 5) == [0, 0.25, 0.5, 0.75, 1]
    last = next(islice(draw_arrivals(make_steady_rate(3), "constant", Random(0)), 300_000, None))
    assert last == 100_000  # a hundred thousand seconds of thirds, and no rounding added up


def test_k6s_square_root_ramp() -> None:
    """0 to 1 a second over 5 s: sqrt(2 n D / R) = sqrt(10 n) s, k6's own example. After it one a
    second."""
    due = constant(make_steady_rate(1, ramp_s=5), 6)
    # 2.5 were due by 5 s
    assert due == pytest.approx([0, math.sqrt(10), math.sqrt(20), 5.5, 6.5, 7.5])
    assert due[1] == pytest.approx(3.162, abs=5e-4)


def test_a_ramp_of_the_rate_costs_half_the_arrivals_of_its_time() -> None:
    assert make_steady_rate(20, ramp_s=30).count(30) == 300
    assert make_steady_rate(20, ramp_s=30).count(31) == 320


def test_a_series_up_held_down_and_held_on() -> None:
    """Up from 0 to 2 a second in 2 s (2 arrivals), 1 s at 2 (2), down to 1 in 2 s (3), then 1 a
    second."""
    rate = ArrivalRate([(0, 0), (2, 2), (3, 2), (5, 1)])
    assert [rate.count(t) for t in (0, 1, 2, 3, 4, 5, 7)] == [0, 0.5, 2, 4, 5.75, 7, 9]
    assert [rate.time_of(n) for n in (0, 0.5, 2, 4, 5.75, 7, 9)] == [0, 1, 2, 3, 4, 5, 7]


def test_the_first_rate_holds_before_the_first_point() -> None:
    assert ArrivalRate([(10, 2), (20, 0)]).count(10) == 20
    assert ArrivalRate([(10, 2), (20, 0)]).count(-1) == 0


def test_two_points_of_one_time_are_a_jump() -> None:
    rate = ArrivalRate([(0, 1), (3, 1), (3, 2)])
    assert constant(rate, 6) == [0, 1, 2, 3, 3.5, 4]


def test_nothing_arrives_while_the_rate_is_0() -> None:
    """One a second for 3 s, nothing for 7 s, one a second again: what would be due at 3 s comes
    after the pause."""
    assert constant(ArrivalRate([(0, 1), (3, 1), (3, 0), (10, 0), (10, 1)]), 5) == [0, 1, 2, 10, 11]
    assert constant(ArrivalRate([(0, 0), (4, 0), (4, 1)]), 2) == [4, 5]


def test_a_rate_that_ends_at_0_ends_the_arrivals() -> None:
    assert constant(ArrivalRate([(0, 2), (2, 2), (2, 0)]), 99) == [0, 0.5, 1, 1.5]
    assert len(constant(ArrivalRate([(0, 0), (5, 2), (10, 0)]), 99)) == 10
    assert all(
        t < 10 for t in draw_arrivals(ArrivalRate([(0, 0), (5, 2), (10, 0)]), "poisson", Random(1))
    )


PIECES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 40)), min_size=1, max_size=6)


def rate_of(pieces: list[tuple[int, int]]) -> ArrivalRate:
    """From (seconds since the last point, per second)."""
    assume(any(per_s for _, per_s in pieces))
    time_s, points = 0.0, []
    for seconds, per_s in pieces:
        time_s += seconds / 8
        points.append((time_s, per_s / 4))
    return ArrivalRate(points)


@given(PIECES, st.floats(0, 60))
def test_time_of_undoes_count(pieces: list[tuple[int, int]], time_s: float) -> None:
    rate = rate_of(pieces)
    expected = rate.count(time_s)
    back = rate.time_of(expected)
    if math.isfinite(back):
        assert rate.count(back) == pytest.approx(expected, abs=1e-9)
    # where something arrives around that time, it is that very time, else one at which the pause is
    # over
    if rate.count(time_s + 1e-3) - expected > 1e-5:
        assert back == pytest.approx(time_s, abs=1e-6)
    assert back > time_s - 1e-3


@given(PIECES, st.integers(0, 60))
def test_count_is_the_area_under_the_points(pieces: list[tuple[int, int]], time_s: int) -> None:
    """The slow twin: a sum over strips; points lie on eighths of a second, so strips of that width
    are exact."""
    times, at = [], 0.0
    for seconds, _ in pieces:
        at += seconds / 8
        times.append(at)
    values = [per_s / 4 for _, per_s in pieces]

    def value(t: float) -> float:
        for (t0, r0), (t1, r1) in pairwise([(0.0, values[0]), *zip(times, values, strict=True)]):
            if t0 <= t < t1:
                return r0 + (r1 - r0) * (t - t0) / (t1 - t0)
        return values[-1]

    strips = (value((strip + 0.5) / 8) / 8 for strip in range(time_s * 8))
    assert rate_of(pieces).count(time_s) == pytest.approx(math.fsum(strips))


@given(PIECES, st.sampled_from(PATTERNS), st.integers(0, 99))
def test_arrivals_ascend(pieces: list[tuple[int, int]], pattern: str, seed: int) -> None:
    due = list(islice(draw_arrivals(rate_of(pieces), pattern, Random(seed), 0.3), 200))
    assert due == sorted(due)
    assert all(math.isfinite(t) and t >= 0 for t in due)


@given(PIECES, st.integers(1, 20))
def test_as_many_arrive_as_the_rate_expects(pieces: list[tuple[int, int]], duration_s: int) -> None:
    rate = rate_of(pieces)
    due = list(limit_arrivals(draw_arrivals(rate, "constant", Random(0)), duration_s=duration_s))
    assert abs(len(due) - rate.count(duration_s)) <= 1


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], "the rate has no points"),
        ([(0, 0), (5, 0)], "the rate is 0 everywhere"),
        ([(0, 1), (5, 1), (4, 1)], "point 3: its time 4 s is before 5 s, the one before"),
        ([(-1, 1)], "point 1: the time must be from 0 to 1e+15 s, got -1"),
        ([(0, 1), (1, -2)], "point 2: the rate must be from 0 to 1e+15, got -2"),
        ([(0, math.nan)], "point 1: the rate must be from 0 to 1e+15, got nan"),
        ([(math.inf, 1)], "point 1: the time must be from 0 to 1e+15 s, got inf"),
    ],
)
def test_a_rate_that_cannot_be(points: list[tuple[float, float]], message: str) -> None:
    with pytest.raises(ValueError, match=r"^.*$") as error:
        ArrivalRate(points)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("per_s", "ramp_s"), [(0, None), (-1, None), (math.nan, None), (1, 0), (1, -1), (1, math.nan)]
)
def test_a_steady_rate_is_above_0_and_so_is_its_ramp(per_s: float, ramp_s: float | None) -> None:
    with pytest.raises(ValueError, match="0"):
        make_steady_rate(per_s, ramp_s)


# -- the series file -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "[[0, 1], [60, 7.5]]",
        '[{"time": 0, "rate": 1}, {"time": 60, "rate": 7.5}]',
        '{"points": [{"time_s": 0, "qps": 1}, {"time_s": 60, "qps": 7.5}]}',
        ' {"points": [[0, 1], {"qps": 7.5, "time_s": 60.0, "note": "peak"}]}\n',
    ],
)
def test_a_series_in_each_form(text: str) -> None:
    assert parse_rate_series(text).count(60) == 255  # 60 s at 4.25 a second in the mean
    assert parse_rate_series(text).count(62) == 270


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a rate series must be JSON"),
        ("[[0, 1]", "a rate series must be JSON"),
        ("[]", "the rate has no points"),
        ("7", "a rate series must be a list of points"),
        ('{"time_s": 0, "qps": 1}', "a rate series must be a list of points"),
        ("[[0, 1], [5]]", "point 2: must be two numbers"),
        ("[[0, 1, 2]]", "point 1: must be two numbers"),
        ('[[0, "1"]]', "point 1: must be two numbers"),
        ("[[0, true]]", "point 1: must be two numbers"),
        ("[[0, 1], 5]", "point 2: must be two numbers"),
        ('[{"time_s": 0}]', 'point 1: must be two numbers, .* got {"time_s":0}$'),
        ("[[0, 1], [1e300, 1]]", "point 2: must be two numbers"),
        ("[[0, 1" + "0" * 400 + "]]", "point 1: must be two numbers|must be JSON"),
        ("[[5, 1], [2, 1]]", "point 2: its time 2 s is before 5 s"),
        ("[[0, -1]]", "point 1: the rate must be from 0"),
        ("[[0, 0]]", "the rate is 0 everywhere"),
    ],
)
def test_a_broken_series_is_named_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        parse_rate_series(text)
    assert "\n" not in str(error.value)


@given(st.text() | st.from_regex(r"[\[\]{}0-9,.\"a-z:e-]{0,40}"))
def test_any_text_is_a_rate_or_a_value_error(text: str) -> None:
    try:
        rate = parse_rate_series(text)
    except ValueError:
        return
    assert rate.count(1) >= 0


# -- patterns --------------------------------------------------------------------------------------

MANY = 40_000


def steps(pattern: str, smoothness: float = 1.0, seed: int = 1) -> list[float]:
    at = islice(draw_expected_counts(pattern, Random(seed), smoothness), MANY)
    return [b - a for a, b in pairwise([0.0, *at])]


@pytest.mark.parametrize(
    ("pattern", "k"),
    [("poisson", 1.0), ("gamma", 0.25), ("gamma", 1.0), ("gamma", 4.0), ("gamma", 100.0)],
)
def test_steps_have_mean_1_and_variance_1_over_k(pattern: str, k: float) -> None:
    """Within four standard errors: of the mean, sqrt(v / n); of the variance v, with the gamma's
    kurtosis 3 + 6 / k, v sqrt((2 + 6 / k) / n)."""
    drawn, variance = steps(pattern, k), 1 / k
    assert fmean(drawn) == pytest.approx(1, abs=4 * math.sqrt(variance / MANY))
    assert pvariance(drawn, 1) == pytest.approx(
        variance, abs=4 * variance * math.sqrt((2 + 6 / k) / MANY)
    )


def test_exponential_steps_are_longer_than_one_as_often_as_e_says() -> None:
    """Mean and variance 1 are not poisson's alone: here the tail, within four standard errors."""
    for limit in (0.1, 1, 3):
        share, p = sum(step > limit for step in steps("poisson")) / MANY, math.exp(-limit)
        assert share == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / MANY))


def test_poisson_counts_have_their_mean_for_variance_under_a_ramp_too() -> None:
    """2,000 runs of 0 to 20 a second over 2 s: 5 are expected in the first second, 15 in the
    second."""
    first, second = [], []
    for seed in range(2_000):
        due = list(
            limit_arrivals(
                draw_arrivals(make_steady_rate(20, ramp_s=2), "poisson", Random(seed)), duration_s=2
            )
        )
        first.append(sum(t < 1 for t in due))
        second.append(sum(t >= 1 for t in due))
    for seen, mean in ((first, 5), (second, 15)):
        assert fmean(seen) == pytest.approx(mean, abs=4 * math.sqrt(mean / 2_000))
        # the standard error of Poisson's variance: sqrt((m + 2 m²) / n)
        assert pvariance(seen, mean) == pytest.approx(
            mean, abs=4 * math.sqrt((mean + 2 * mean**2) / 2_000)
        )


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_seed_gives_the_same_arrivals_again(pattern: str) -> None:
    once, again, other = (
        list(islice(draw_arrivals(make_steady_rate(5), pattern, Random(seed), 2.0), 9))
        for seed in (3, 3, 4)
    )
    assert once == again
    assert (once == other) == (pattern == "constant")


def test_what_is_no_pattern() -> None:
    with pytest.raises(ValueError, match="must be one of constant, poisson, gamma, got uniform"):
        draw_expected_counts("uniform", Random(0))
    for smoothness in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="smoothness must be above 0"):
            draw_expected_counts("gamma", Random(0), smoothness)


# -- users and traces ------------------------------------------------------------------------------


def test_user_centric_gaps() -> None:
    """AIPerf's turn gap: 3 users at 2 a second each send every 1.5 s, half a second apart."""
    sent = list(limit_arrivals(draw_user_centric_arrivals(3, 2), count=7))
    assert sent == [(0, 0), (0.5, 1), (1, 2), (1.5, 0), (2, 1), (2.5, 2), (3, 0)]


@pytest.mark.parametrize(("users", "per_s"), [(0, 1), (1, 0), (1, -1), (1, math.nan)])
def test_user_centric_needs_users_and_a_rate(users: int, per_s: float) -> None:
    with pytest.raises(ValueError, match="user-centric rate"):
        draw_user_centric_arrivals(users, per_s)


TRACE = [10, 11, 11, 14, 20]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, [(10, 0), (11, 1), (11, 2), (14, 3), (20, 4)]),
        ({"auto_offset": True}, [(0, 0), (1, 1), (1, 2), (4, 3), (10, 4)]),
        # both ends included, zero is the start
        ({"start_s": 11, "end_s": 14}, [(0, 1), (0, 2), (3, 3)]),
        ({"start_s": 10.5}, [(0.5, 1), (0.5, 2), (3.5, 3), (9.5, 4)]),
        (
            {"start_s": 10.5, "auto_offset": True, "speedup": 2},
            [(0, 1), (0, 2), (1.5, 3), (4.5, 4)],
        ),
        ({"end_s": 9}, []),
        ({"speedup": 0.5, "end_s": 10}, [(20, 0)]),
    ],
)
def test_replay(asked: dict[str, float], expected: list[tuple[float, int]]) -> None:
    assert list(replay_arrivals(TRACE, **asked)) == expected


@pytest.mark.parametrize(
    ("times_s", "message"),
    [
        ([1, 2, 1.5], "row 3: its time 1.5 s is before 2 s, the one above it"),
        (
            [1753000000.25, 1753000000],
            "row 2: its time 1753000000 s is before 1753000000.25 s, the one above it",
        ),
        ([1, None], "row 2: has no time"),
        ([math.nan], "row 1: has no time"),
        ([-1], "row 1: its time -1 s is before 0; an auto offset makes the first row 0"),
    ],
)
def test_a_broken_trace_names_its_row(times_s: list[float | None], message: str) -> None:
    with pytest.raises(ValueError, match=r"^row") as error:
        list(replay_arrivals(times_s))
    assert str(error.value) == message


def test_rows_left_out_are_looked_at_but_those_after_the_end_are_not() -> None:
    with pytest.raises(ValueError, match="row 2: its time 3 s"):
        list(replay_arrivals([4, 3, 9], start_s=8))
    assert list(replay_arrivals([-5, 1, 9, None], start_s=0, end_s=8)) == [(1, 1)]


@pytest.mark.parametrize("speedup", [0, -1, math.nan, math.inf])
def test_a_speedup_is_above_0(speedup: float) -> None:
    with pytest.raises(ValueError, match="speedup must be above 0"):
        list(replay_arrivals([0], speedup=speedup))


# -- bounds ----------------------------------------------------------------------------------------


def test_until_the_count_or_the_duration_whichever_is_first() -> None:
    assert list(limit_arrivals([0.0, 1.0, 2.0], count=2, duration_s=9)) == [0, 1]
    # an arrival at the end is too late
    assert list(limit_arrivals([0.0, 1.0, 2.0], count=9, duration_s=2)) == [0, 1]
    assert list(limit_arrivals([(0.0, 5), (2.0, 6), (1.0, 7)], duration_s=2)) == [(0, 5)]
    assert list(limit_arrivals([0.0, 1.0])) == [0, 1]


def test_until_takes_no_more_than_it_needs() -> None:
    due = iter([0.0, 1.0, 2.0, 3.0])
    assert list(limit_arrivals(due, count=2)) == [0, 1]
    assert next(due) == 2


# -- a rate that is changed by hand ----------------------------------------------------------------


def test_a_rate_is_changed_from_the_last_arrival_on() -> None:
    """Drawn at 1, 2, 3, ... s. Twice as fast after the one at 2 s: 2.5, 3. At the drawn rate again
    after the one at 3 s: 4, 5. Half as fast after 5 s: 7."""
    factor = RateFactor()
    due = factor.apply(float(second) for second in range(1, 9))
    assert [next(due), next(due)] == [1, 2]
    factor.value = 2.0
    assert [next(due), next(due)] == [2.5, 3]
    factor.value = 1.0
    assert [next(due), next(due)] == [4, 5]
    factor.value = 0.5
    assert next(due) == 7


def test_an_unchanged_rate_changes_no_instant() -> None:
    drawn = [0.1 * number for number in range(1, 1000)]
    assert list(RateFactor().apply(drawn)) == drawn
