"""What plots are made of: short numbers, samples, percentiles of requests in a row."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.report.chart_data import plot_data as plots
from locust_llm.report.chart_data.plot_data import (
    choose_log_base,
    detect_doubling,
    group_consecutive,
    make_dot_series,
    make_percentile_lines,
    round_values,
    sample_dots,
)


def test_numbers_are_short() -> None:
    values = np.array([0.0, 123456.789, -0.00012345678, 1_700_000_000.123, math.nan, 1.0])
    found = round_values(values)
    assert found[:4] == [0.0, 123460.0, -0.00012346, 1_700_000_000.0]
    assert found[4] != found[4]
    assert found[5] == 1.0
    assert round_values(np.array([1234.5678]), 6) == [1234.57]


@given(st.lists(st.floats(-1e9, 1e9), max_size=20))
def test_short_numbers_are_near(values: list[float]) -> None:
    assert round_values(np.array(values)) == pytest.approx(values, rel=1e-4)


def test_a_sample_has_the_slowest_and_others_evenly() -> None:
    values = np.arange(100.0)
    values[37] = 1e6
    chosen = sample_dots(values, most=12, slowest=2)
    assert 37 in chosen.tolist()
    assert {0, 11, 22, 33, 44, 55, 66, 77, 88, 99} <= set(chosen.tolist())
    assert len(chosen) == 11  # 99 is the second highest, and the last of the even ones
    assert sample_dots(values, most=100).tolist() == list(range(100))
    assert len(sample_dots(values, most=10, slowest=0)) == 10


def test_a_cloud_says_what_it_shows() -> None:
    dots, said = make_dot_series(np.arange(5.0), np.ones(5))
    assert (len(dots.x), said) == (5, "Each dot is a request (5 in all).")
    dots, said = make_dot_series(np.arange(10_000.0), np.arange(10_000.0))
    assert len(dots.x) == len(dots.y) <= plots.MAX_DOTS
    assert (
        said
        == f"Each dot is a request: {len(dots.x):,} of 10,000, taken evenly, with the 300 slowest."
    )


def test_rows_of_equally_many() -> None:
    rows, middles = group_consecutive(np.arange(23.0), 4)
    assert [len(row) for row in rows] == [4, 5, 4, 5, 5]
    assert np.concatenate(rows).tolist() == list(range(23))
    assert middles == [2, 6, 11, 15, 20]
    assert group_consecutive(np.arange(19.0), 4) == ([], [])  # four rows are no line
    assert len(group_consecutive(np.arange(10_000.0), 4)[0]) == plots.MAX_POINTS


def test_percentiles_are_those_of_requests_in_a_row() -> None:
    """200 values from 0 to 19, over and over: of ten rows of 20 in time each has all of them."""
    at = np.arange(200.0)
    order = np.random.default_rng(1).permutation(200)
    lines, said = make_percentile_lines(at[order], (at % 20)[order])
    assert [line.name for line in lines] == ["p50", "p95"]  # p99 would take five rows of 100
    assert lines[0].x == [10.0 + 20 * i for i in range(10)]
    assert lines[0].y == [9.5] * 10
    assert lines[1].y == pytest.approx([18.05] * 10)
    assert said == " Each point of a line covers consecutive requests: p50 and p95 of 20."
    assert make_percentile_lines(at[:30], at[:30]) == ([], "")


def test_points_of_one_moment_are_one() -> None:
    lines, _ = make_percentile_lines(np.repeat([1.0, 2.0, 3.0], 100), np.arange(300.0))
    assert lines[0].x == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("values", "base"),
    [([1, 1, 1, 21], 10), ([1, 1, 1, 20], 0), ([0, 0, 0, 5], 0), ([], 0), ([3], 0)],
)
def test_an_axis_is_logarithmic_where_the_highest_is_far(values: list[float], base: int) -> None:
    assert choose_log_base(np.array(values, np.float64)) == base


@pytest.mark.parametrize(
    ("values", "base"),
    [
        ([1, 2, 4, 8, 12], 2),
        ([1, 2, 3, 4, 5], 0),
        ([8, 16], 0),
        ([0, 1, 2, 4], 0),
        ([], 0),
        ([4, 8, 16, 20, 24, 48, 96], 2),
    ],
)
def test_a_ladder_by_doubling(values: list[float], base: int) -> None:
    assert detect_doubling(values) == base
