"""Looked at later: the loads have the means that theory predicts."""

import numpy as np
import pytest
from interval_loads import measure_mean
from looked_at_later import (
    bad_prompts,
    breakdowns,
    clustered_gaps,
    fork_and_join,
    shots,
    spread_after_surprises,
    trains,
)


def test_surprises_have_a_variance_in_the_long_run() -> None:
    """0.006 / (1 - 0.15 - 0.75)."""
    made = spread_after_surprises(np.random.default_rng(7), 300, 1000)
    assert float(np.log(made).var()) == pytest.approx(0.06, rel=0.05)


def test_shots_slow_all_by_a_third() -> None:
    """A Pareto height is 0.6 * 1.5, comes in one of 50, and 1 / (1 - exp(-1 / 12)) = 12.5 requests
    see it: 0.225."""
    assert measure_mean(shots, 300, 1000) == pytest.approx(1.225, rel=0.03)


def test_repairs_delay_a_queue() -> None:
    """The work of a request is 1 and, of one in 100, 2 to 18 more: 1.1 on average, at 0.45 per service
    49.5 %. Its square is 1.5 + 0.2 + (100 + 21.33) / 100 = 2.913. The wait of M/G/1 is 0.45 * 2.913 / 2 /
    0.505, and 1.1 follow."""
    assert measure_mean(breakdowns, 300, 1000) == pytest.approx(1.298 + 1.1, rel=0.06)


def test_trains_are_longer_than_single_requests() -> None:
    """A request of a queue at 50 % without trains waits for at most one more service."""
    assert measure_mean(trains, 200, 1000) > 3


def test_the_slowest_of_three_is_slower_than_each() -> None:
    """M/M/1 takes 1 / 0.4, and the slowest of three independent ones 11 / 6 of that: arrivals at once
    make it less."""
    assert 2.5 < measure_mean(fork_and_join, 200, 1000) < 2.5 * 11 / 6


def test_one_in_25_prompts_is_bad() -> None:
    assert measure_mean(bad_prompts, 2000, 400) == pytest.approx(0.04, rel=0.05)


def test_clustered_gaps_are_a_sixth_of_a_second() -> None:
    """A Weibull value of shape 0.5 is 2 on average."""
    assert measure_mean(clustered_gaps, 400, 60) == pytest.approx(6, rel=0.05)
