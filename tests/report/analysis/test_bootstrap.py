"""The block bootstrap: against slow twins, with a pencil, and how often its intervals hold the truth."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.report.analysis.bootstrap import (
    CELLS,
    DRAWS,
    blocks,
    cells,
    ends,
    of_means,
    of_percentile,
    of_sums,
    resamples,
    widened,
)
from locust_llm.slo.intervals import STUDENT


@pytest.mark.parametrize(
    ("seconds", "turnaround_s", "count"),
    [(100, 1, 25), (100, 2, 12), (100, 30, 10), (100, 0.1, 30), (100, 0, 30), (0, 1, 10)],
)
def test_a_block_is_four_turnarounds_long_but_there_are_ten_to_thirty(
    seconds: float, turnaround_s: float, count: int
) -> None:
    assert blocks(seconds, turnaround_s) == count


def test_resamples_are_whole_blocks_put_together() -> None:
    """The twin lays each block down cell by cell, from where the same generator says that it begins."""
    times = resamples(3, seed=7, draws=50)
    begin = np.random.default_rng(7).integers(0, 3 * CELLS, (50, 3))
    twin = np.zeros((50, 3 * CELLS))
    for draw, begins in enumerate(begin):
        for first in begins:
            for i in range(CELLS):
                twin[draw, (first + i) % (3 * CELLS)] += 1
    assert (times == twin).all()
    assert (times.sum(axis=1) == 3 * CELLS).all()


def test_the_same_seed_gives_the_same_resamples() -> None:
    assert (resamples(10, seed=1) == resamples(10, seed=1)).all()
    assert (resamples(10, seed=1) != resamples(10, seed=2)).any()
    assert resamples(10, seed=1).shape == (DRAWS, 10 * CELLS)


def test_cells_of_moments() -> None:
    """Ten blocks of ten cells over 100 seconds: a cell a second; the end belongs to the last."""
    assert cells(np.array([0.0, 0.5, 99.9, 100.0, 200.0, -1.0]), 0.0, 100.0, 10).tolist() == [0, 0, 99, 99, 99, 0]
    assert cells(np.array([5.0, 5.0]), 5.0, 5.0, 10).tolist() == [0, 0]


TIMES = np.array([[1, 1, 1], [3, 0, 0], [0, 2, 1], [0, 0, 0]], np.float32)
"""Four resamples of three cells: as it was, three times the first, twice the second and once the third, nothing."""


def test_sums_means_and_percentiles_with_a_pencil() -> None:
    values, cell = np.array([10.0, 20.0, 30.0, 60.0]), np.array([0, 0, 1, 2])
    assert of_sums(values, cell, TIMES).tolist() == [120, 90, 120, 0]
    assert of_means(values, cell, TIMES).tolist()[:3] == [30, 15, 40]
    assert math.isnan(of_means(values, cell, TIMES)[3])
    median, most = (of_percentile(values, cell, TIMES, p) for p in (50, 100))
    assert median.tolist()[:3] == [25, 15, 30]  # 10 20 30 60; 10 10 10 20 20 20; 30 30 60
    assert most.tolist()[:3] == [60, 20, 60]
    assert np.isnan([median[3], most[3]]).all()
    nearest = of_percentile(values, cell, TIMES, 50, nearest=True)
    assert nearest.tolist()[:3] == [20, 10, 30]


def test_a_failure_is_a_value_like_any_other() -> None:
    values, cell = np.array([1.0, 2.0, math.inf]), np.array([0, 1, 2])
    highest = of_percentile(values, cell, TIMES, 90, nearest=True)
    assert highest.tolist()[:3] == [math.inf, 1, math.inf]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=60),
    st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5), min_size=1, max_size=4),
    st.sampled_from([1.0, 33.3, 50.0, 95.0, 99.0]),
)
def test_percentiles_are_those_of_the_resamples_written_out(
    points: list[tuple[int, int]], rows: list[list[int]], percentile: float
) -> None:
    values, cell = (np.array(column) for column in zip(*points, strict=True))
    times = np.array(rows, np.float32)
    linear = of_percentile(values.astype(float), cell, times, percentile)
    nearest = of_percentile(values.astype(float), cell, times, percentile, nearest=True)
    for row, between, at in zip(times, linear, nearest, strict=True):
        out = np.sort(np.repeat(values, row[cell].astype(int)))
        if not len(out):
            assert math.isnan(between)
            assert math.isnan(at)
            continue
        assert between == pytest.approx(np.percentile(out, percentile))
        assert at == out[max(math.ceil(round(percentile / 100 * len(out), 6)), 1) - 1]


def test_percentiles_of_many_values() -> None:
    values = np.random.default_rng(0).permutation(5000).astype(float)
    cell, times = cells(np.arange(5000.0), 0, 5000, 10), resamples(10, seed=3, draws=20)
    found = of_percentile(values, cell, times, 99)
    twin = [np.percentile(np.repeat(values, row[cell].astype(int)), 99) for row in times]
    assert found.tolist() == pytest.approx(twin)


def test_blocks_of_equal_values_have_few_means() -> None:
    """One block of ten at 20, the others at 10: with n cells of it the mean is 10 + n / 10, whatever else."""
    values, cell = np.repeat([10.0, 20.0], [90, 10]), np.arange(100)
    times = resamples(10, seed=5)
    means = of_means(values, cell, times)
    assert means.tolist() == pytest.approx((10 + times[:, 90:].sum(axis=1) / 10).tolist())
    assert means.mean() == pytest.approx(11, abs=0.1)
    assert (of_means(np.full(100, 3.0), cell, times) == 3).all()


def test_draws_of_few_blocks_are_spread_out() -> None:
    """By Student's t with 9 degrees of freedom over the normal distribution, and by the root of 10 / 9."""
    factor = STUDENT / 1.959964 * math.sqrt(10 / 9)
    assert widened(5.0, np.array([4.0, 5.0, 7.0]), 10).tolist() == pytest.approx(
        [5 - factor, 5, 5 + 2 * factor], rel=1e-4
    )
    assert widened(math.inf, np.array([1.0, math.inf]), 10).tolist() == [1, math.inf]


def test_ends_leave_a_fortieth_on_either_side() -> None:
    draws = np.arange(1000.0)
    assert ends(draws[::-1]) == (25, 974)
    draws[:25] = np.nan
    assert ends(draws) == (25 + 24, 999 - 24)
    draws[:26] = np.nan
    assert ends(draws) == (None, None)
    assert ends(np.empty(0)) == (None, None)


def waiting(phi: float, count: int, runs: int) -> np.ndarray:
    """(runs, count): values that each have ``phi`` of the one before (autoregressive of order 1), standard normal."""
    noise = np.random.default_rng(11).normal(size=(runs, count + 100))
    for i in range(1, count + 100):
        noise[:, i] = phi * noise[:, i - 1] + math.sqrt(1 - phi * phi) * noise[:, i]
    return noise[:, 100:]


@pytest.mark.parametrize(("phi", "alone"), [(0.0, (0.9, 1.0)), (0.9, (0.2, 0.6))])
def test_how_often_the_interval_of_a_mean_holds_the_truth(phi: float, alone: tuple[float, float]) -> None:
    """Of 200 runs of 500 values with mean 0, which of 95 % intervals hold it. In blocks nearly all of them, whether values
    hang together or not; with values drawn one by one (``alone``) only where they do not."""
    count, runs = 500, 200
    cell, every = cells(np.arange(float(count)), 0, count, 10), np.arange(count)
    times = resamples(10, seed=1, draws=500)
    singly = np.random.default_rng(2).multinomial(count, [1 / count] * count, 500).astype(np.float32)
    held = held_alone = 0
    for values in waiting(phi, count, runs):
        low, high = ends(widened(values.mean(), of_means(values, cell, times), 10))
        low_alone, high_alone = ends(of_means(values, every, singly))
        assert low is not None
        assert high is not None
        assert low_alone is not None
        assert high_alone is not None
        held += low <= 0 <= high
        held_alone += low_alone <= 0 <= high_alone
    assert held / runs >= 0.9
    assert alone[0] <= held_alone / runs <= alone[1]


def test_how_often_the_interval_of_a_difference_of_percentiles_holds_nothing() -> None:
    """100 pairs of runs of 1,000 skewed values each that hang together: p50 and p95 differ by chance alone."""
    both = np.exp(waiting(0.9, 1000, 200)).reshape(100, 2, 1000)
    cell, times = cells(np.arange(1000.0), 0, 1000, 10), resamples(10, seed=1, draws=500)
    held = np.zeros(2)
    for pair in both:
        for i, p in enumerate((50, 95)):
            draws = [widened(float(np.percentile(v, p)), of_percentile(v, cell, times, p), 10) for v in pair]
            low, high = ends(draws[1] - draws[0])
            assert low is not None
            assert high is not None
            held[i] += low <= 0 <= high
    assert (held >= 88).all()
