"""The slope of a series: exact values, and how often its 95 % interval holds the true slope."""

import numpy as np
import pytest

from locust_llm.trends.slope_interval import batch_inflation, correlation_inflation, fit_slope


def test_a_line_has_its_slope_without_an_error() -> None:
    slope = fit_slope([0.0, 1.0, 2.0, 4.0], [5.0, 7.0, 9.0, 13.0])
    assert slope.value == pytest.approx(2.0)
    assert slope.error == pytest.approx(0.0, abs=1e-9)
    assert slope.start == pytest.approx(5.0)


def test_the_slope_of_least_squares() -> None:
    # deviations of x: -1.5, -0.5, 0.5, 1.5; sum of products 4.5 + ... by hand: 0.9
    slope = fit_slope([0.0, 1.0, 2.0, 3.0], [1.0, 1.0, 3.0, 3.0])
    assert slope.value == pytest.approx((1.5 * 2 + 0.5 * 2) / 5)


@pytest.mark.parametrize("x", [[1.0, 2.0, 3.0], [2.0, 2.0, 2.0, 2.0]])
def test_too_little_gives_no_slope(x: list[float]) -> None:
    with pytest.raises(ValueError, match="4 points"):
        fit_slope(x, x)


def test_independent_values_have_no_inflation() -> None:
    values = np.random.default_rng(1).standard_normal(2000).tolist()
    assert correlation_inflation(values) < 1.3
    assert batch_inflation([1.0] * 100) == 1.0


@pytest.mark.parametrize(("kept", "least"), [(0.0, 0.93), (0.5, 0.93), (0.8, 0.90), (1.0, 0.90)])
def test_its_interval_holds_the_true_slope(kept: float, least: float) -> None:
    """Noise that keeps this share of itself from one value to the next; 1 is a random walk."""
    random = np.random.default_rng(2)
    at = np.arange(48.0)
    held = 0
    for _ in range(400):
        values = 0.1 * at
        level = 0.0
        for place, draw in enumerate(random.standard_normal(48)):
            level = kept * level + draw
            values[place] += level
        slope = fit_slope(at.tolist(), values.tolist())
        held += slope.low() <= 0.1 <= slope.high()
    assert held / 400 >= least
