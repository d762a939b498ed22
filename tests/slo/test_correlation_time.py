"""The correlation time of values as they come, by pencil and on series of known correlation."""

import random

import pytest

from locust_llm.slo.correlation_time import CorrelationTime


def of(values: list[float]) -> float:
    found = CorrelationTime()
    for value in values:
        found.add(value)
    return found.requests


def test_by_pencil() -> None:
    """Sixteen values in eight equal pairs 0, 2, 0, 2 ...: mean 1, variance 1; the eight batches of two are 0 or 4, their
    variance 4 x 8 / 7, over 2 x 1."""
    assert of([0, 0, 2, 2] * 4) == pytest.approx(4 * 8 / 7 / 2)
    assert of([0, 2] * 8) == pytest.approx(1 * 16 / 15)  # no batch is off the mean: but for single ones
    assert of([3] * 100) == 1
    assert of([]) == 1


@pytest.mark.parametrize(("phi", "expected"), [(0.0, 1.0), (0.8, 9.0), (0.95, 39.0)])
def test_an_autoregressive_series(phi: float, expected: float) -> None:
    """(1 + phi) / (1 - phi)."""
    noise, value, values = random.Random(3), 0.0, []
    for _ in range(65536):
        value = phi * value + noise.gauss(0, 1)
        values.append(value)
    assert expected * 0.8 < of(values) < expected * 1.7  # the largest of all lengths is above the mean


def test_it_forgets_nothing_and_grows_by_the_logarithm() -> None:
    found = CorrelationTime()
    for i in range(100_000):
        found.add(i % 7)
    assert found.count == 100_000
    assert len(found._half) == 17
