"""The Universal Scalability Law: known parameters come back, and nothing fits better."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.report.sections.sweep.usl import ScalabilityLaw, fit_scalability_law

DOUBLING = np.array([1, 2, 4, 8, 16, 32, 64], np.float64)


def law(n: np.ndarray, lam: float, sigma: float, kappa: float) -> np.ndarray:
    return lam * n / (1 + sigma * (n - 1) + kappa * n * (n - 1))


@pytest.mark.parametrize("n", [DOUBLING, DOUBLING[:5], DOUBLING[2:]])
@pytest.mark.parametrize(
    ("lam", "sigma", "kappa"),
    [
        (10, 0.02, 0.0005),
        (2, 0.1, 0),
        (5, 0, 0.001),
        (3, 0, 0),
        (100, 0.5, 0.01),
        (0.01, 0.05, 1e-6),
        (7, 1, 0),
    ],
)
def test_known_parameters_come_back(n: np.ndarray, lam: float, sigma: float, kappa: float) -> None:
    found = fit_scalability_law(n, law(n, lam, sigma, kappa))
    assert found[:3] == pytest.approx((lam, sigma, kappa), rel=1e-6, abs=1e-9)
    if sigma < 1:
        assert found.r2 == pytest.approx(1)


def test_the_peak() -> None:
    assert ScalabilityLaw(1, 0.19, 0.01, 1).peak == pytest.approx(9)  # (0.81 / 0.01)^0.5
    assert ScalabilityLaw(1, 0.1, 0, 1).peak == math.inf
    assert ScalabilityLaw(1, 2.0, 0.5, 1).peak == 1  # it falls from the first on


@given(
    st.floats(0.1, 100), st.floats(0, 1), st.floats(0, 0.01), st.integers(0, 1000),
    st.lists(st.floats(0.97, 1.03), min_size=3, max_size=3),
)  # fmt: skip
def test_no_parameters_nearby_fit_better(
    lam: float, sigma: float, kappa: float, seed: int, off: list[float]
) -> None:
    """With errors of 5 % in what was measured: least squares, by trying."""
    x = law(DOUBLING, lam, sigma, kappa) * (
        1 + 0.05 * np.random.default_rng(seed).standard_normal(len(DOUBLING))
    )
    found = fit_scalability_law(DOUBLING, x)
    assert min(found[:3]) >= 0

    def error(a: float, b: float, c: float) -> float:
        return float(((law(DOUBLING, a, b, c) - x) ** 2).sum())

    near = [value * factor for value, factor in zip(found[:3], off, strict=True)]
    assert error(*found[:3]) <= error(*near) * (1 + 1e-6)
    more = [value + step for value, step in zip(found[:3], (0, 1e-4, 1e-6), strict=True)]
    assert error(*found[:3]) <= error(*more) * (1 + 1e-6)


def test_what_it_does_not_describe() -> None:
    assert fit_scalability_law(DOUBLING, np.full(7, 5.0)).r2 == 0
    assert fit_scalability_law(DOUBLING, np.array([1, 9, 2, 8, 3, 9, 1.0])).r2 < 0.5
