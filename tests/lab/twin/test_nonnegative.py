"""Least squares without factors below 0: by hand, and by the conditions that the best solution
fulfils."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from locust_llm.lab.twin.step_cost_fit import least_squares


def test_an_exact_solution_is_found() -> None:
    columns = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    assert least_squares(columns, columns @ [3.0, 0.5]) == pytest.approx([3.0, 0.5])


def test_what_would_be_below_0_is_0_and_the_rest_the_best_without_it() -> None:
    columns = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    # the mean
    assert least_squares(columns, np.array([3.0, 2.0, 1.0])) == pytest.approx([2.0, 0.0])


def test_of_two_columns_that_say_the_same_one_is_enough() -> None:
    columns = np.array([[1.0, 2.0], [2.0, 4.0]])
    found = least_squares(columns, np.array([3.0, 6.0]))
    assert columns @ found == pytest.approx([3.0, 6.0])


def test_with_more_columns_than_rows_the_fewest_and_foremost_explain_it() -> None:
    columns = np.array([[1.0, 0.0, 1.0, 1.0], [1.0, 1.0, 3.0, 0.0]])
    assert least_squares(columns, np.array([2.0, 2.0])) == pytest.approx([2.0, 0, 0, 0])
    assert least_squares(columns, np.array([1.0, 2.0])) == pytest.approx(
        [1.0, 1.0, 0, 0]
    )  # or 0.5 of the third and more


def test_a_column_of_zeros_gets_0() -> None:
    assert least_squares(np.array([[0.0, 1.0], [0.0, 2.0]]), np.array([1.0, 2.0])) == pytest.approx(
        [0.0, 1.0]
    )


@given(st.integers(0, 10**6), st.integers(1, 5))
@examples(200)
def test_the_gradient_is_0_where_a_factor_is_above_0_and_not_below_elsewhere(
    seed: int, count: int
) -> None:
    """Karush, Kuhn and Tucker's conditions: with them a convex problem is solved."""
    random = np.random.default_rng(seed)
    columns, target = random.normal(size=(12, count)), random.normal(size=12)
    found = least_squares(columns, target)
    gradient = columns.T @ (columns @ found - target)
    assert (found >= 0).all()
    assert np.abs(gradient[found > 0]).max(initial=0.0) < 1e-8
    assert gradient[found == 0].min(initial=0.0) > -1e-8
