"""What keeps growing is told from what fills, warms up, steps or varies."""

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from locust_llm.trends.steady_growth import (
    GrowthVerdict,
    OpenReason,
    judge_growth,
    reduce_to_blocks,
)

COUNT = 240
AT = [place / COUNT for place in range(COUNT)]
"""One hour."""


def judge(
    shape: Callable[[float], float], noise: float = 0.0, *, minima: bool = True
) -> GrowthVerdict:
    random = np.random.default_rng(5)
    values = [shape(at) + noise * float(random.standard_normal()) for at in AT]
    return judge_growth(AT, values, 0.05, minima=minima).verdict


def saw(period: float, phase: float = 0.0) -> Callable[[float], float]:
    return lambda at: (at / period + phase) % 1.0


def test_blocks() -> None:
    at, level = reduce_to_blocks([0.0, 2.0, 4.0, 6.0], [1.0, 3.0, 9.0, 5.0], 2)
    assert (at, level) == ([1.0, 5.0], [2.0, 7.0])
    lowest = reduce_to_blocks([0.0, 2.0, 4.0, 6.0], [1.0, 3.0, 9.0, 5.0], 2, minima=True)
    assert lowest == ([0.0, 6.0], [1.0, 5.0])


@pytest.mark.parametrize("minima", [True, False])
def test_a_line_grows_and_a_constant_is_stable(minima: bool) -> None:
    assert judge(lambda at: 100 + 0.01 * at, minima=minima) == GrowthVerdict.GROWS
    assert judge(lambda at: 100.0, minima=minima) == GrowthVerdict.STABLE
    assert judge(lambda at: 100 - at, minima=minima) == GrowthVerdict.STABLE


def test_noise_is_stable_and_a_slope_above_it_grows() -> None:
    assert judge(lambda at: 5.0, 0.01, minima=False) == GrowthVerdict.STABLE
    assert judge(lambda at: 5.0 + 0.1 * at, 0.01, minima=False) == GrowthVerdict.GROWS


@pytest.mark.parametrize(
    "period", [1 / 200, 1 / 30, 1 / 24.5, 1 / 13, 0.1, 1 / 8.2, 0.2, 0.34, 0.5]
)
def test_a_sawtooth_of_any_phase_does_not_grow(period: float) -> None:
    for phase, minima in product((0.0, 0.2, 0.5, 0.9), (True, False)):
        assert judge(saw(period, phase), minima=minima) != GrowthVerdict.GROWS


def test_a_leak_below_a_sawtooth_grows() -> None:
    assert judge(lambda at: saw(1 / 30)(at) + 0.2 * at) == GrowthVerdict.GROWS


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2, 0.3, 0.5])
def test_a_warm_up_does_not_grow(share: float) -> None:
    verdict = judge(lambda at: 1 - math.exp(-at / share), 1e-4)
    assert verdict == (GrowthVerdict.STABLE if share <= 0.05 else GrowthVerdict.OPEN)


def test_a_warm_up_is_named() -> None:
    growth = judge_growth(AT, [1 - math.exp(-at / 0.4) for at in AT], 0.05, minima=True)
    assert growth.reason is OpenReason.SLOWS
    assert growth.longer == 2.0


@pytest.mark.parametrize("at_step", [0.05, 0.3, 0.5, 0.51, 0.7, 0.95])
def test_a_step_does_not_grow(at_step: float) -> None:
    for noise in (0.0, 0.01, 0.1):
        assert judge(lambda at: float(at > at_step), noise) != GrowthVerdict.GROWS


def test_two_steps_do_not_grow() -> None:
    assert judge(lambda at: (at > 0.25) + (at > 0.75) + 0.0, 0.001) != GrowthVerdict.GROWS


def test_a_leak_after_a_warm_up_grows() -> None:
    assert judge(lambda at: 0.3 * (1 - math.exp(-at / 0.05)) + 0.5 * at) == GrowthVerdict.GROWS


def test_few_points_are_too_short() -> None:
    growth = judge_growth(AT[:10], AT[:10], 0.05)
    assert (growth.verdict, growth.reason) == (GrowthVerdict.OPEN, OpenReason.SHORT)
    assert growth.longer == pytest.approx(4.8)
    assert judge_growth([], [], 0.05).longer is None


def test_wide_noise_names_the_length_that_may_tell() -> None:
    random = np.random.default_rng(6)
    growth = judge_growth(AT, random.standard_normal(COUNT).tolist(), 0.05)
    assert (growth.verdict, growth.reason) == (GrowthVerdict.OPEN, OpenReason.WIDE)
    assert growth.longer is not None
    assert growth.longer > 2
