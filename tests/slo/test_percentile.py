"""The one definition of a percentile."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.slo.percentile import count_beyond, find_percentile, find_share_beyond

FINITE = st.floats(min_value=-1e9, max_value=1e9)


@pytest.mark.parametrize(
    ("values", "percentile", "expected"),
    [
        ([10.0, 20.0, 30.0, 40.0], 50, 25.0),
        ([10.0, 20.0, 30.0, 40.0], 90, 37.0),  # place 2.7
        ([10.0], 99, 10.0),
        ([0.0, 1.0, math.inf], 50, 1.0),
        ([0.0, 1.0, math.inf], 51, math.inf),
    ],
)
def test_a_percentile_is_linear_between_two_values(
    values: Sequence[float], percentile: float, expected: float
) -> None:
    assert find_percentile(values, percentile) == expected


def test_the_error_of_a_product_reaches_for_no_infinite_neighbour() -> None:
    """0.07 x 100 is 7.000000000000001."""
    values = [*map(float, range(8)), *[math.inf] * 93]
    assert find_percentile(values, 7) == 7.0


@pytest.mark.parametrize("count", [10, 20, 100, 200, 1000, 10_000])
@pytest.mark.parametrize(
    ("percentile", "thousandths"), [(50, 500), (90, 100), (95, 50), (98, 20), (99, 10), (99.9, 1)]
)
def test_so_many_values_are_beyond_a_percentile(
    count: int, percentile: float, thousandths: int
) -> None:
    """Of 100 values 10 are beyond p90, and 1 - 0.9 of them would be 9.999999999999998."""
    outside = find_share_beyond(percentile / 100)
    assert outside == thousandths / 1000
    assert count_beyond(count, outside) == count * thousandths / 1000


@given(
    st.lists(FINITE, min_size=1, max_size=200),
    st.one_of(st.integers(0, 100), st.floats(min_value=0, max_value=100)),
)
def test_it_is_numpys_to_the_last_bit(values: list[float], percentile: float) -> None:
    assert find_percentile(sorted(values), percentile) == float(np.percentile(values, percentile))
