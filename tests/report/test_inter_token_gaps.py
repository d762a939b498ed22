"""Pooled gaps: against numpy on all values, before and after rounding sets in, and in any order of
merging."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.report.inter_token_gaps import (
    BLOCK_GAPS,
    SHORT_US,
    GapCounts,
    round_array_to_three_digits,
)

PERCENTILES = [0, 1, 50, 90, 99, 99.9, 100]
VALUES = st.lists(st.integers(0, 5_000_000), max_size=80)


def counted(values: list[int], different: int = 100) -> GapCounts:
    gaps = GapCounts(different)
    gaps.add(np.array(values, np.int64))
    return gaps


@given(VALUES, VALUES)
def test_exact_ones_are_numpys(one: list[int], more: list[int]) -> None:
    gaps = counted(one, 1000)
    gaps.merge(counted(more, 1000))
    values = np.array(one + more, np.float64) / 1e3
    assert gaps.exact
    assert gaps.count == len(values)
    if len(values):
        assert gaps.percentiles_ms(PERCENTILES) == pytest.approx(
            np.percentile(values, PERCENTILES).tolist()
        )
        assert (gaps.avg_ms, gaps.min_ms, gaps.max_ms) == pytest.approx(
            (values.mean(), values.min(), values.max())
        )
    if len(values) > 1:
        assert gaps.std_ms == pytest.approx(values.std(ddof=1), abs=1e-3)


@given(st.lists(st.integers(0, 5_000_000), min_size=30, max_size=80, unique=True), VALUES)
def test_too_many_different_ones_are_within_half_a_percent(one: list[int], more: list[int]) -> None:
    gaps = counted(one, different=20)
    gaps.merge(counted(more))
    values = np.array(one + more, np.float64) / 1e3
    assert not gaps.exact
    assert gaps.percentiles_ms(PERCENTILES) == pytest.approx(
        np.percentile(values, PERCENTILES).tolist(), rel=0.0051
    )
    assert (gaps.count, gaps.avg_ms) == (len(values), pytest.approx(values.mean()))
    assert (gaps.min_ms, gaps.max_ms) == (values.min(), values.max())


def test_merging_a_rounded_one_rounds_both() -> None:
    rounded, exact = counted(list(range(1_000_001, 1_000_050)), different=10), counted([2_000_001])
    exact.merge(rounded)
    assert not exact.exact
    assert exact.percentiles_ms([0, 100]) == [1000.0, 2000.0]
    assert exact.max_ms == 2000.001


def test_blocks_are_counted_as_they_fill() -> None:
    gaps = GapCounts()
    for _ in range(3):
        gaps.add(np.full(BLOCK_GAPS - 1, 20_000, np.int64))
    gaps.add(np.array([80_000], np.int64))
    assert gaps.count == 3 * (BLOCK_GAPS - 1) + 1
    assert gaps.percentiles_ms([50, 100]) == [20.0, 80.0]


def test_blocks_have_short_gaps_and_long_ones() -> None:
    """Two blocks that are counted as they fill, and five gaps after them."""
    block = np.tile(np.array([5, SHORT_US - 1, SHORT_US, 2_000_000]), BLOCK_GAPS // 4)
    last = np.array([5, 5, 7, SHORT_US, 9_000_000])
    gaps = GapCounts()
    for some in (block, block, last):
        gaps.add(some)
    values = np.concatenate([block, block, last])
    assert gaps.percentiles_ms(PERCENTILES) == (np.percentile(values, PERCENTILES) / 1e3).tolist()
    quarter = BLOCK_GAPS // 2
    assert [gaps.within(most) for most in (4, 5, 7, SHORT_US - 1, SHORT_US, 2_000_000)] == [
        0, quarter + 2, quarter + 3, 2 * quarter + 3, 3 * quarter + 4, 4 * quarter + 4
    ]  # fmt: skip
    assert (gaps.exact, gaps.count) == (True, 4 * quarter + 5)


@given(VALUES, VALUES, st.integers(-1, 5_000_001))
def test_how_many_are_within_is_how_many_are(one: list[int], more: list[int], most: int) -> None:
    gaps = counted(one, 1000)
    gaps.merge(counted(more, 1000))
    assert gaps.within(most) == sum(value <= most for value in one + more)
    for value in one:
        assert gaps.within(value) - gaps.within(value - 1) == (one + more).count(value)


def test_nothing() -> None:
    gaps = counted([])
    assert (gaps.count, gaps.avg_ms, gaps.std_ms, gaps.min_ms, gaps.max_ms) == (
        0,
        None,
        None,
        None,
        None,
    )
    assert gaps.percentiles_ms([50, 99]) == [None, None]
    assert gaps.within(10**9) == 0


def test_three_digits() -> None:
    values = np.array([0, 7, 999, 1000, 1004, 1005, 123_456, 999_499, 999_500], np.int64)
    assert round_array_to_three_digits(values).tolist() == [
        0,
        7,
        999,
        1000,
        1000,
        1010,
        123_000,
        999_000,
        1_000_000,
    ]
