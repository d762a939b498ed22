"""Intervals against tables, pencils and a slow exact twin."""

from fractions import Fraction
from math import comb, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.slo.binomial_intervals import (
    binomial_cdf,
    binomial_shares,
    count_needed_values,
    find_interval_ranks,
)
from locust_llm.slo.percentile import has_too_few_values


def exact_cdf(k: int, n: int, p: Fraction) -> float:
    return float(sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1)))


@given(st.integers(1, 60), st.integers(1, 999), st.data())
def test_the_binomial_distribution(n: int, thousandths: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(-1, n))
    p = Fraction(thousandths, 1000)
    assert binomial_cdf(k, n, float(p)) == pytest.approx(exact_cdf(k, n, p), abs=1e-12)


def test_a_million_requests() -> None:
    """The middle of a symmetric distribution, and the normal distribution at two sigmas."""
    assert binomial_cdf(499_999, 1_000_000, 0.5) == pytest.approx(
        0.5 - 0.5 / sqrt(np.pi * 500_000), abs=1e-6
    )
    assert binomial_cdf(951_000, 1_000_000, 0.95) == pytest.approx(1.0, abs=1e-5)
    low, high = find_interval_ranks(1_000_000, 95)
    assert (low, high) == pytest.approx((950_000 - 1.96 * 217.9, 950_000 + 1.96 * 217.9), abs=2)


@given(st.integers(1, 80), st.integers(1, 99))
def test_ranks_cover_95_percent_and_not_one_rank_less_would(n: int, percentile: int) -> None:
    p = Fraction(percentile, 100)
    low, high = find_interval_ranks(n, percentile)
    assert 0 <= low < high <= n + 1
    assert exact_cdf(low - 1, n, p) <= 0.025 < exact_cdf(low, n, p)
    assert exact_cdf(high - 1, n, p) >= 0.975
    assert high == 1 or exact_cdf(high - 2, n, p) < 0.975


def test_the_median_of_twenty() -> None:
    """Table A3 of Conover: ranks 6 and 15 of 20 cover 95.86 %."""
    assert find_interval_ranks(20, 50) == (6, 15)


@pytest.mark.parametrize(("percentile", "count"), [(50, 6), (90, 36), (95, 72), (99, 368), (5, 72)])
def test_how_many_an_interval_takes(percentile: float, count: int) -> None:
    assert count_needed_values(percentile) == count
    (low, high), (lower, upper) = (
        find_interval_ranks(count, percentile),
        find_interval_ranks(count - 1, percentile),
    )
    assert low >= 1
    assert high <= count
    assert lower == 0 or upper == count
    # whatever is marked as scarce has no interval
    assert has_too_few_values(1, percentile) or percentile < 50
    assert not has_too_few_values(count, percentile)


@pytest.mark.parametrize(("some", "of"), [(10, 20), (6, 40), (34, 40), (50, 400), (200, 400)])
def test_a_share_between_none_and_all_counts_its_outcome_half(some: int, of: int) -> None:
    """Between what it has with the outcome and without lies the tail; of many it is their mean,
    mid-P."""
    low, high = binomial_shares(some, of, 0.0275, 0.02)
    assert low < some / of < high
    at_most, fewer = (exact_cdf(k, of, Fraction(high)) for k in (some, some - 1))
    assert fewer < 0.02 < at_most
    at_least, more = (1 - exact_cdf(k - 1, of, Fraction(low)) for k in (some, some + 1))
    assert more < 0.0275 < at_least
    if of == 400:
        assert (at_most + fewer) / 2 == pytest.approx(0.02, abs=0.002)
        assert (at_least + more) / 2 == pytest.approx(0.0275, abs=0.002)


@pytest.mark.parametrize(("some", "of"), [(1, 10), (3, 40), (19, 20)])
def test_of_few_of_a_kind_a_share_is_exact(some: int, of: int) -> None:
    low, high = binomial_shares(some, of, 0.0275, 0.02)
    assert exact_cdf(some, of, Fraction(high)) == pytest.approx(0.02)
    assert 1 - exact_cdf(some - 1, of, Fraction(low)) == pytest.approx(0.0275)


def test_of_none_and_of_all_a_share_is_exact() -> None:
    assert binomial_shares(0, 100, 0.0275, 0.02) == pytest.approx((0, 1 - 0.02**0.01))
    assert binomial_shares(100, 100, 0.0275, 0.02) == pytest.approx((0.0275**0.01, 1))
    assert binomial_shares(0, 12.5, 0.0275, 0.02) == pytest.approx((0, 1 - 0.02 ** (1 / 12.5)))
