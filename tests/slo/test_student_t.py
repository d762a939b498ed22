"""Student's t against its table, its formulas, and the normal distribution."""

import math
from statistics import NormalDist

import pytest

from locust_llm.slo.student_t import find_student_t


@pytest.mark.parametrize(
    ("freedom", "tail", "table"),
    [
        (1, 0.025, 12.706), (2, 0.025, 4.3027), (3, 0.0005, 12.924), (4, 0.025, 2.7764),
        (4, 0.01, 3.7469), (6, 0.01, 3.1427), (9, 0.025, 2.2622), (9, 0.01, 2.8214),
        (10, 0.05, 1.8125), (11, 0.025, 2.2010), (30, 0.025, 2.0423), (30, 0.005, 2.7500),
        (120, 0.01, 2.3578),
    ],
)  # fmt: skip
def test_quantiles_are_those_of_the_table(freedom: int, tail: float, table: float) -> None:
    assert find_student_t(freedom, tail) == pytest.approx(table, abs=0.0005)


@pytest.mark.parametrize("tail", [0.3, 0.025, 0.0005, 1e-7])
def test_one_and_two_degrees_have_a_formula(tail: float) -> None:
    assert find_student_t(1, tail) == pytest.approx(1 / math.tan(math.pi * tail))
    within = 1 - 2 * tail
    assert find_student_t(2, tail) == pytest.approx(within * math.sqrt(2 / (1 - within**2)))


def test_of_many_degrees_it_is_the_normal_one() -> None:
    assert find_student_t(1e6, 0.025) == pytest.approx(NormalDist().inv_cdf(0.975), rel=1e-5)


def test_between_whole_numbers_it_lies_between_theirs() -> None:
    assert find_student_t(5, 0.025) < find_student_t(4.5, 0.025) < find_student_t(4, 0.025)
    assert find_student_t(0.5, 0.025) > find_student_t(1, 0.025)
