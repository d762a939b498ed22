"""Changes: planted ones found at their place, hardly any where nothing changes; scores by pencil
and by a slow twin."""

import math
from itertools import combinations, pairwise
from random import Random
from statistics import median

import numpy as np
import pytest
from changes import alarms, largest, planted
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.trends.change_points import (
    ALARMS,
    SCORES,
    _splits,
    best_split,
    change_threshold,
    correlate_neighbours,
    find_level_changes,
    median_interval,
    random_ranks,
    seeded_intervals,
)


def steps(*levels: tuple[int, float], seed: int = 1, noise: float = 0.03) -> list[float]:
    """(how many, around what) each."""
    random = Random(seed)
    return [
        value * math.exp(random.gauss(0, noise)) for count, value in levels for _ in range(count)
    ]


def test_scores_by_pencil() -> None:
    # 1 to 8 and 9 to 16: the sum of the first eight ranks is 36, chance gives 68 with the variance
    # 8 * 8 * 17 / 12
    assert best_split(list(range(1, 17))) == (pytest.approx(32 / math.sqrt(8 * 8 * 17 / 12)), 8)
    assert list(seeded_intervals(16)) == [(0, 16)]
    assert list(seeded_intervals(32)) == [
        (0, 32),
        (0, 23),
        (4, 27),
        (9, 32),
        (0, 16),
        (8, 24),
        (16, 32),
    ]
    assert random_ranks([3.0, 1.0, 2.0], Random(1)) == [3, 1, 2]
    assert sorted(random_ranks([5.0] * 9, Random(1))) == list(range(1, 10))


def test_the_table_is_of_the_same_scores() -> None:
    """It is made by many orders at once; and one in a thousand is above it."""
    random = Random(5)
    orders = [random.sample(range(1, 61), 60) for _ in range(20)]
    assert list(largest(np.array(orders, float))) == pytest.approx(
        [best_split(order)[0] for order in orders]
    )
    many = np.random.default_rng(7).permuted(np.tile(np.arange(1.0, 31), (20_000, 1)), axis=1)
    assert 5 <= (largest(many) > SCORES[30]).sum() <= 40


def test_the_shortest_series_that_can_tell() -> None:
    """Of 3,432 ways to put seven of 14 first, two have all that is small on one side: one in
    1,716."""
    assert len(list(combinations(range(14), 7))) == 3432
    shortest = min(SCORES)
    assert shortest == 14
    assert [c.at for c in find_level_changes(steps((7, 100.0), (7, 200.0)))] == [7]
    assert find_level_changes(steps((7, 100.0), (6, 200.0))) == []
    assert find_level_changes(steps((6, 100.0), (8, 200.0))) == []
    assert [c.at for c in find_level_changes(steps((10, 100.0), (6, 200.0)))] == [10]
    longer = [steps((before, 100.0), (5, 200.0)) for before in range(60)]
    assert sum(bool(find_level_changes(values)) for values in longer) <= 3  # noise moves a place
    assert find_level_changes([]) == find_level_changes([1.0]) == []
    assert (
        change_threshold(14)
        < change_threshold(15)
        <= change_threshold(25)
        == change_threshold(26)
        < change_threshold(5000)
        == SCORES[1000]
    )


def test_a_change_with_its_size() -> None:
    (found,) = find_level_changes(steps((40, 100.0), (30, 110.0)))
    assert abs(found.at - 40) <= 1
    assert found.low < 10 < found.high
    assert found.high - found.low < 5
    assert found.relative == pytest.approx(0.1, abs=0.03)
    exact = find_level_changes([100.0] * 20 + [90.0] * 20)
    assert [(c.at, c.before, c.after, c.shift, c.low, c.high) for c in exact] == [
        (20, 100, 90, -10, -10, -10)
    ]
    assert find_level_changes(steps((40, 100.0), (30, 110.0)), least=0.2) == []
    (from_nothing,) = find_level_changes([0.0] * 20 + [0.02] * 20)  # a share of failures
    assert from_nothing.relative is None


def test_up_and_down_again() -> None:
    """A hump in the middle, which splits of the whole series hide; of a long series the end
    counts."""
    found = find_level_changes(steps((70, 100.0), (20, 112.0), (70, 100.0)))
    assert len(found) == 2
    assert abs(found[0].at - 70) <= 2
    assert abs(found[1].at - 90) <= 2
    (late,) = find_level_changes(steps((500, 50.0), (700, 100.0), (300, 120.0)))
    assert abs(late.at - 1200) <= 3


def test_outliers_are_no_change() -> None:
    values = steps((100, 100.0))
    for i in (20, 21, 50, 80):
        values[i] *= 5
    assert find_level_changes(values) == []


def test_a_year_of_runs() -> None:
    """200 runs with three changes, and without one; what it comes to over many years is in
    docs/how-to/history.md."""
    found = planted(6)
    assert found["found"] >= 0.9
    assert found["alarms_a_year"] <= 0.5
    assert alarms(12, 0.0, 100)[0] <= 0.1


@pytest.mark.full
def test_fifty_years_of_runs() -> None:
    found = planted(50)
    assert found["found"] >= 0.9
    assert found["alarms_a_year"] <= 0.1
    assert found["within_3"] >= 0.9
    assert found["held"] >= 0.85
    assert alarms(1000, 0.0)[0] <= 5 * ALARMS


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), max_size=60),
    st.integers(0, 3),
)
def test_any_values(values: list[float], seed: int) -> None:
    """Places rise and leave four values on either side; the same seed gives the same; order and
    units alone count."""
    found = find_level_changes(values, least=0, seed=seed)
    edges = [0, *(c.at for c in found), len(values)]
    assert all(b - a >= 4 for a, b in pairwise(edges)) or not found
    assert found == find_level_changes(values, least=0, seed=seed)
    assert all(c.low <= c.shift <= c.high for c in found)


def test_level_and_correlation() -> None:
    assert median_interval([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)
    values = steps((50, 100.0))
    middle, low, high = median_interval(values)
    assert middle == median(values)
    # 25 -+ 1.96 * sqrt(50) / 2, outwards
    assert sum(low <= value <= high for value in values) == 16
    assert correlate_neighbours([float(i) for i in range(50)], []) > 0.9
    assert correlate_neighbours([float(i % 2) for i in range(50)], []) < -0.4
    assert abs(correlate_neighbours(steps((100, 1.0), (100, 2.0)), [100])) < 0.15
    assert correlate_neighbours([1.0], []) == 0


def test_runs_that_resemble_their_neighbours() -> None:
    """A slow week is no change: scores have to be larger, and a large change still shows."""
    random, last, values = Random(3), 0.0, list[float]()
    for _ in range(300):
        last = 0.7 * last + random.gauss(0, 0.02)
        values.append(100 * math.exp(last))
    assert find_level_changes(values) == []
    assert len(list(_splits(values, 0, 300, Random(0), 1.0))) > 0
    assert [
        abs(c.at - 150) <= 2
        for c in find_level_changes([*values[:150], *(value * 1.4 for value in values[150:])])
    ] == [True]
