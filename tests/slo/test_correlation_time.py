"""The correlation time of values as they come, by pencil and on series of known correlation."""

import random
from collections.abc import Iterable
from itertools import accumulate

import pytest

from locust_llm.slo.correlation_time import CorrelationTime


def after(values: Iterable[float]) -> CorrelationTime:
    found = CorrelationTime()
    for value in values:
        found.add(value)
    return found


def of(values: Iterable[float]) -> float:
    return after(values).requests


def test_by_pencil() -> None:
    """Sixteen values in eight equal pairs 0, 2, 0, 2 ...: mean 1, variance 1; the eight batches of
    two are 0 or 4, their variance 4 x 8 / 7, over 2 x 1."""
    assert of([0, 0, 2, 2] * 4) == pytest.approx(4 * 8 / 7 / 2)
    # no batch is off the mean: but for single ones
    assert of([0, 2] * 8) == pytest.approx(1 * 16 / 15)
    assert of([3] * 100) == 1
    assert of([]) == 1


@pytest.mark.parametrize(("phi", "expected"), [(0.0, 1.0), (0.8, 9.0), (0.95, 39.0)])
def test_an_autoregressive_series(phi: float, expected: float) -> None:
    """(1 + phi) / (1 - phi)."""
    noise, value, values = random.Random(3), 0.0, []
    for _ in range(65536):
        value = phi * value + noise.gauss(0, 1)
        values.append(value)
    # the largest of all lengths is above the mean
    assert expected * 0.8 < of(values) < expected * 1.7


def test_it_forgets_nothing_and_grows_by_the_logarithm() -> None:
    found = CorrelationTime()
    for i in range(100_000):
        found.add(i % 7)
    assert found.count == 100_000
    assert len(found._lengths) == 17


def test_what_rises() -> None:
    """Nothing of fewer than eight batches, of equal values, or of one step; eight in a row, or
    under noise."""
    assert not after(range(7)).rises
    assert after(range(8)).rises
    assert not after([3.0] * 100).rises
    assert not after([0.0] * 64 + [1.0] * 64).rises
    draw = random.Random(1)
    noise = [draw.gauss(0, 1) for _ in range(256)]
    assert not after(noise).rises
    assert after(0.02 * i + more for i, more in enumerate(noise)).rises
    assert not after(-0.02 * i + more for i, more in enumerate(noise)).rises


def test_a_walk_seldom_looks_as_if_it_rises() -> None:
    """Of 200 walks, after 100, 200, 400 and 800 steps each."""
    draw = random.Random(2)
    rising = 0
    for _ in range(200):
        walk = list(accumulate(draw.gauss(0, 1) for _ in range(800)))
        rising += sum(after(walk[:count]).rises for count in (100, 200, 400, 800))
    assert rising <= 8
