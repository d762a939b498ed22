"""Looked at once: the loads have the means that theory predicts."""

import math

import numpy as np
import pytest
from interval_loads import Cell, measure_mean
from looked_at_later import LOOKED_AT_LATER
from looked_at_once import (
    LOOKED_AT_ONCE,
    contagious_errors,
    contagious_rate,
    noisy_neighbours,
    one_bad_user,
    quota_per_minute,
    rare_stalls,
    rate_with_pauses,
    run_each,
    semi_markov_rate,
    sharing_open,
    tandem,
    three_speeds,
    two_priorities,
)


@pytest.mark.parametrize(
    "cell", [*LOOKED_AT_ONCE, *LOOKED_AT_LATER], ids=lambda cell: f"{cell.name}, {cell.count}"
)
def test_each_load_makes_values(cell: Cell) -> None:
    made = cell.process(np.random.default_rng(7), 2, cell.count)
    assert made.shape == (2, cell.count)
    assert np.isfinite(made).all()
    assert (made >= 0).all()
    assert len(cell.figures) == 1 or made.min() > 0


def test_a_server_that_shares_itself_takes_as_long_as_its_load_says() -> None:
    """The mean is 1 / (1 - 0.7), however the work is distributed."""
    mean = measure_mean(lambda *of: run_each(sharing_open, *of), 60, 4000)
    assert mean == pytest.approx(10 / 3, rel=0.06)


def test_short_requests_go_first() -> None:
    """Cobham's formula. What is left of the request in service is 0.75 * (0.4 * 2 * 0.25 + 0.6 * 2 *
    16 / 9) / 2 = 0.875 on average. Short ones wait 0.875 / 0.85, the others 0.875 / 0.85 / 0.25."""
    mean = measure_mean(lambda *of: run_each(two_priorities, *of), 60, 4000)
    short = 0.875 / 0.85 + 0.5
    long = 0.875 / 0.85 / 0.25 + 4 / 3
    assert mean == pytest.approx(0.4 * short + 0.6 * long, rel=0.06)


def test_a_gateway_sends_on_what_arrives_at_random() -> None:
    """M/M/1 takes 0.6 / 0.4 and sends on a Poisson process, of which M/D/1 takes 0.75 + 0.75 ** 2 / 2
    / 0.25."""
    assert measure_mean(tandem, 200, 2000) == pytest.approx(1.5 + 1.875, rel=0.06)


def test_three_speeds_wait_at_least_for_their_own_service() -> None:
    assert measure_mean(three_speeds, 100, 400) > 1.03


def test_neighbours_slow_the_server_by_two_tenths_on_average() -> None:
    """Those that began more than 20 runs ago and still are here are left out."""
    assert measure_mean(noisy_neighbours, 300, 500) == pytest.approx(1.2, rel=0.02)


def test_one_in_300_stalls() -> None:
    made = rare_stalls(np.random.default_rng(7), 300, 1000)
    assert (made > 3).mean() == pytest.approx(1 / 300, rel=0.1)


def test_errors_that_make_errors() -> None:
    """0.9 % come of themselves, and each makes 0.7 others: 0.009 / 0.3."""
    assert measure_mean(contagious_errors, 400, 2000) == pytest.approx(0.03, rel=0.05)


def test_what_exceeds_the_quota_is_refused() -> None:
    """Of a Poisson number with mean 300, what exceeds 290."""
    refused = 0.0
    for number in range(291, 500):
        refused += (number - 290) * math.exp(number * math.log(300) - 300 - math.lgamma(number + 1))
    assert measure_mean(quota_per_minute, 300, 3000) == pytest.approx(refused / 300, rel=0.05)


def test_half_of_the_requests_of_one_user_fail() -> None:
    assert measure_mean(one_bad_user, 200, 1600) == pytest.approx(0.025, rel=0.05)


def test_rates() -> None:
    """Each of 3 per s brings 0.6 others: 3 / 0.4. A full server of 10 per s works 12 of 13.5 s."""
    assert measure_mean(semi_markov_rate, 400, 180) == pytest.approx(25 / 3, rel=0.05)
    assert measure_mean(contagious_rate, 400, 180) == pytest.approx(7.5, rel=0.05)
    assert measure_mean(rate_with_pauses, 200, 180) == pytest.approx(10 * 12 / 13.5, rel=0.02)
