"""Price of a prompt: fits to prices that are known, and tokens beside against a slow twin."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from locust_llm.report.waterfall.price import Price, fitted, holds, shortest, tokens_beside

NONE = np.zeros(60)
LENGTHS = np.array([100.0, 200, 400, 800, 1600, 3200] * 10)


def true_us(tokens: NDArray[np.float64]) -> NDArray[np.float64]:
    """3 ms, 30 us a token, 2 ns a pair: 3,200 tokens take 119.48 ms."""
    return 3000 + 30 * tokens + 0.002 * tokens**2


def of(price: Price | None) -> tuple[float, float, float]:
    assert price is not None
    return round(price.fixed_us, 3), round(price.per_token_us, 5), round(price.per_square_us, 8)


def test_fitted_to_those_that_were_alone() -> None:
    price = fitted(LENGTHS, true_us(LENGTHS), NONE, NONE)
    assert of(price) == (3000, 30, 0.002)
    assert price is not None
    assert (price.low, price.high) == (pytest.approx(1), pytest.approx(1))
    assert price.us(np.array([3200.0, np.nan])).tolist() == pytest.approx([119_480, np.nan], nan_ok=True)
    beside = np.where(np.arange(60) // 6 % 2, 5000.0, 0.0)  # every other one was not alone, and took twice as long
    slow = true_us(LENGTHS) * np.where(beside > 0, 2, 1)
    assert of(fitted(LENGTHS, slow, beside, NONE)) == (3000, 30, 0.002)
    three = slow.copy()
    three[[0, 2, 4]] *= 5  # outliers
    assert of(fitted(LENGTHS, three, beside, NONE)) == (3000, 30, 0.002)


def test_fitted_where_nobody_was_alone() -> None:
    """Tokens beside cost what own ones do, a stream 10 us; neither is of the price."""
    beside, streams = np.tile([100.0, 900, 2500], 20), np.repeat([10.0, 50], 30)
    us = 3000 + 30 * (LENGTHS + beside) + 10 * streams
    assert of(fitted(LENGTHS, us, beside, streams)) == pytest.approx((3000, 30, 0), abs=0.01)


def test_one_length_has_a_price_too_few_prefills_have_none() -> None:
    same = np.full(20, 100.0)
    assert of(fitted(same, true_us(same), NONE[:20], NONE[:20])) == (6020, 0, 0)
    for unknown in (np.nan, -1.0):
        few = np.append(same[1:], unknown)
        assert fitted(few, true_us(same), NONE[:20], NONE[:20]) is None
    assert fitted(same, np.append(true_us(same[1:]), 0.0), NONE[:20], NONE[:20]) is None


def test_a_price_holds_where_lengths_tell_the_times_apart_and_nobody_is_faster() -> None:
    good = Price(3000, 30, 0.002, 0.9, 1.1, "")
    assert holds(good, LENGTHS, true_us(LENGTHS) + 1e6)
    assert not holds(good, LENGTHS, true_us(LENGTHS) * np.where(np.arange(60) % 15 == 0, 0.5, 1))  # 4 of 60
    assert holds(good, LENGTHS, true_us(LENGTHS) * np.where(np.arange(60) % 30 == 0, 0.5, 1))  # 2 of 60
    assert not holds(Price(3000, 30, 0.002, 0.9, 3.1, ""), LENGTHS, true_us(LENGTHS))
    fixed = Price(1e6, 30, 0, 0.9, 1.1, "")  # a second, whatever the length
    assert not holds(fixed, LENGTHS, np.full(60, 2e6))
    assert holds(fixed, np.full(60, 100.0), np.full(60, 2e6))
    assert not holds(good, LENGTHS, np.full(60, np.nan))


def test_an_upper_bound_by_the_shortest_of_each_length() -> None:
    """All waited but one of each length."""
    us = true_us(LENGTHS) + np.where(np.arange(60) < 54, 1e6, 0)
    price = shortest(LENGTHS, us)
    assert of(price) == (3000, 30, 0.002)
    assert price is not None
    assert (price.low, price.high) == (0, pytest.approx(1))
    us[-5] = true_us(LENGTHS)[-5] + 1e6  # none of 200 tokens is short, but none takes longer than those of 400
    price = shortest(LENGTHS, us)
    assert price is not None
    assert price.us(np.array([200.0]))[0] < 3000 + 30 * 400 + 0.002 * 400**2 + 1
    assert shortest(LENGTHS[:19], us[:19]) is None


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(0, 9)), max_size=12))
def test_tokens_beside_against_a_slow_twin(prefills: list[tuple[int, int, int]]) -> None:
    table = np.array(prefills, np.float64).reshape(-1, 3)
    found = tokens_beside(table[:, 0], table[:, 1], table[:, 2])
    for i, (began, ended, _) in enumerate(prefills):
        if ended <= began:
            assert np.isnan(found[i])
            continue
        beside = 0.0
        for j, (other_began, other_ended, tokens) in enumerate(prefills):
            both = min(ended, other_ended) - max(began, other_began)
            if j != i and both > 0:
                beside += tokens * both / (other_ended - other_began)
        assert found[i] == pytest.approx(beside, abs=1e-9)
