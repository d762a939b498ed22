"""Arrays that are equal share their memory."""

import numpy as np

from locust_llm.report.array_types import SharedArrays


def test_equal_arrays_are_one() -> None:
    shared = SharedArrays()
    first = np.array([1.0, np.nan, 3.0])
    assert shared.share(first) is first
    assert shared.share(first.copy()) is first
    others = [np.array([1.0, np.nan, 4.0]), np.array([1.0, 2.0, 3.0]), np.array([1, 2, 3])]
    for other in others:
        assert shared.share(other) is other
        assert shared.share(other.copy()) is other


def test_zeros_of_two_signs_are_kept_apart() -> None:
    shared = SharedArrays()
    plus = np.array([0.0, 1.0])
    minus = np.array([-0.0, 1.0])
    assert shared.share(plus) is plus
    assert shared.share(minus) is minus


def test_a_constant_takes_the_memory_of_one_value() -> None:
    kept = SharedArrays().share(np.array([2.5, 2.5, 2.5]))
    assert (kept.strides, kept.tolist()) == ((0,), [2.5, 2.5, 2.5])
