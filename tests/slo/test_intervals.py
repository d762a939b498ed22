"""Intervals against tables, pencils and a slow exact twin."""

from fractions import Fraction
from math import comb, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.report.analysis.selection import scarce
from locust_llm.slo.intervals import STUDENT, binomial_cdf, needed, of_percentile, of_sections, of_share, ranks


def exact_cdf(k: int, n: int, p: Fraction) -> float:
    return float(sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1)))


@given(st.integers(1, 60), st.integers(1, 999), st.data())
def test_the_binomial_distribution(n: int, thousandths: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(-1, n))
    p = Fraction(thousandths, 1000)
    assert binomial_cdf(k, n, float(p)) == pytest.approx(exact_cdf(k, n, p), abs=1e-12)


def test_a_million_requests() -> None:
    """The middle of a symmetric distribution, and the normal distribution at two sigmas."""
    assert binomial_cdf(499_999, 1_000_000, 0.5) == pytest.approx(0.5 - 0.5 / sqrt(np.pi * 500_000), abs=1e-6)
    assert binomial_cdf(951_000, 1_000_000, 0.95) == pytest.approx(1.0, abs=1e-5)
    low, high = ranks(1_000_000, 95)
    assert (low, high) == pytest.approx((950_000 - 1.96 * 217.9, 950_000 + 1.96 * 217.9), abs=2)


@given(st.integers(1, 80), st.integers(1, 99))
def test_ranks_cover_95_percent_and_not_one_rank_less_would(n: int, percentile: int) -> None:
    p = Fraction(percentile, 100)
    low, high = ranks(n, percentile)
    assert 0 <= low < high <= n + 1
    assert exact_cdf(low - 1, n, p) <= 0.025 < exact_cdf(low, n, p)
    assert exact_cdf(high - 1, n, p) >= 0.975
    assert high == 1 or exact_cdf(high - 2, n, p) < 0.975


def test_the_median_of_twenty() -> None:
    """Table A3 of Conover: ranks 6 and 15 of 20 cover 95.86 %."""
    assert ranks(20, 50) == (6, 15)
    assert of_percentile(np.arange(1.0, 21.0), 50) == (6.0, 15.0)


@pytest.mark.parametrize(("percentile", "count"), [(50, 6), (90, 36), (95, 72), (99, 368), (5, 72)])
def test_how_many_an_interval_takes(percentile: float, count: int) -> None:
    assert needed(percentile) == count
    assert None not in of_percentile(np.arange(float(count)), percentile)
    assert None in of_percentile(np.arange(float(count - 1)), percentile)
    assert scarce(1, percentile) or percentile < 50  # whatever is marked as scarce has no interval
    assert not scarce(count, percentile)


def test_shares() -> None:
    """Clopper and Pearson's own chart has 10 of 20 at 27 to 73 %; 0 of n ends at 1 - 0.025^(1/n)."""
    assert of_share(10, 20) == pytest.approx((0.2720, 0.7280), abs=1e-4)
    assert of_share(0, 100) == pytest.approx((0, 1 - 0.025**0.01))
    assert of_share(100, 100) == pytest.approx((0.025**0.01, 1))


def test_sections() -> None:
    """Nine stretches at 10 and one at 20: the mean is 11, the squares add up to 9 + 81, and 90 / 9 = 10."""
    low, high = of_sections(11, [10] * 9 + [20])
    assert (low, high) == pytest.approx((11 - STUDENT, 11 + STUDENT))
    assert of_sections(5, [5] * 10) == (5, 5)
    assert of_sections(1, [0] * 9 + [10])[0] == 0
    with pytest.raises(ValueError, match="10 sections"):
        of_sections(5, [5] * 9)
