"""Ghost tokens from counters and from a witness: values by hand, and planted ghosts in virtual
time."""

import random
from statistics import median

import pytest
from support.ghost_runs import simulate_ghost_rounds

from locust_llm.lab.disconnect.ghost_tokens import (
    CounterRound,
    WitnessRound,
    WitnessSlowdown,
    find_ghosts_by_witness,
    find_smallest_number,
    interval_of_mean,
    measure_ghosts_by_counters,
    measure_witness_slowdown,
)


def test_counters_less_what_others_received() -> None:
    """Four clients: 100 and 108 tokens beyond those that were received are 25 and 27 for each. The
    mean is 26; t of one degree of freedom is 12.706, and the standard error is 1."""
    rounds = [
        CounterRound(clients=4, generated=150.0, received=50.0, doubt=0.0, seconds=1.0),
        CounterRound(clients=4, generated=158.0, received=50.0, doubt=2.0, seconds=2.0),
    ]
    found = measure_ghosts_by_counters(rounds)
    assert found.tokens == 26.0
    assert found.tokens_interval == pytest.approx((26 - 12.706 - 0.5, 26 + 12.706 + 0.5), abs=0.001)
    assert found.smallest == pytest.approx(13.206, abs=0.001)
    assert found.seconds == 1.5


def test_counters_of_a_server_that_stops() -> None:
    rounds = [CounterRound(8, generated, 50.0, 0.0, 0.0) for generated in (50.0, 50.0, 50.0)]
    found = measure_ghosts_by_counters(rounds)
    assert (found.tokens, found.tokens_interval, found.seconds) == (0.0, (0.0, 0.0), 0.0)
    assert interval_of_mean([3.0]) is None


def make_witness(ghosts: int, noise: list[float], drift: float = 0.0) -> WitnessRound:
    """40 quiet gaps of 10 ms, 20 of 12 ms beside clients, ``ghosts`` more of 12 ms, and 10 ms up to
    200 gaps. ``drift`` is added to each next gap."""
    slow = [False] * 40 + [True] * (20 + ghosts) + [False] * (140 - ghosts)
    gaps = [
        0.010 + 0.002 * one + drift * at + more
        for at, (one, more) in enumerate(zip(slow, noise, strict=True))
    ]
    return WitnessRound(gaps, came=40, decoding=40, left=60, tail=160)


@pytest.mark.parametrize("drift", [0.0, 1e-5])
@pytest.mark.parametrize("ghosts", [0, 1, 30, 100])
def test_a_witness_counts_its_long_gaps(ghosts: int, drift: float) -> None:
    """The gaps of a longer context are longer by 2 ms in the end, as much as clients cost."""
    draw = random.Random(7)
    noise = [draw.gauss(0, 1e-6) for _ in range(200)]
    rounds = [make_witness(ghosts, noise, drift)]
    slowdown = measure_witness_slowdown(rounds)
    assert slowdown.shift == pytest.approx(0.002, rel=0.01)
    found = find_ghosts_by_witness(rounds, slowdown)
    assert found is not None
    assert found.tokens == ghosts
    assert found.smallest == 1
    if ghosts:
        assert found.seconds == pytest.approx(sum(rounds[0].gaps[60 : 60 + ghosts]))


def test_the_smallest_number_is_found_in_95_of_100() -> None:
    """At a distance of one spread: z of 1.645 and ln(1000): (1.645 + sqrt(1.645² + 2 * 6.908))².
    Ends of one spread raise the least sum by 3.3."""
    assert find_smallest_number(1.0, 1.0, 0.0) == 33  # (1.645 + 4.065)² = 32.6
    assert find_smallest_number(0.5, 1.0, 0.0) == 131
    assert find_smallest_number(1.0, 1.0, 1.0) == 42  # (1.645 + 4.809)² = 41.7


def test_a_witness_that_clients_do_not_slow_down_cannot_tell() -> None:
    quiet = WitnessRound([0.01 + at % 2 * 1e-5 for at in range(200)], 40, 40, 60, 160)
    slowdown = measure_witness_slowdown([quiet])
    assert not slowdown.is_known
    assert find_ghosts_by_witness([quiet], slowdown) is None


def test_ghosts_that_are_too_few_to_be_seen_are_no_zero() -> None:
    """A slow-down of a tenth of the noise needs more gaps than the round has."""
    draw = random.Random(1)
    rounds = [make_witness(0, [draw.gauss(0, 0.02) for _ in range(200)])]
    assert find_ghosts_by_witness(rounds, WitnessSlowdown(0.002, 0.0001)) is None


@pytest.mark.parametrize("ghosts", [0, 50])
def test_planted_ghosts_in_virtual_time(ghosts: int) -> None:
    """Eight clients beside a simulated H100, each step with 2% noise. All of 100 sessions are in
    `make bench-disconnect`."""
    for seed in range(2):
        rounds = simulate_ghost_rounds(seed, 8, 8, ghosts, 0.02)
        found = find_ghosts_by_witness(rounds, measure_witness_slowdown(rounds))
        assert found is not None
        assert found.smallest is not None
        assert found.smallest < 50
        assert abs(found.tokens - ghosts) <= 0.3 * ghosts


def test_the_planted_ghosts_are_in_the_gaps() -> None:
    """Without noise each round has as many long gaps as ghost tokens were planted: the gap in which
    the clients left is over first."""
    (one,) = simulate_ghost_rounds(1, 1, 8, 50, 0.0)
    excess = one.list_excess()
    middle = median(excess[one.decoding : one.left]) / 2
    long = [value > middle for value in excess[one.left : one.tail]]
    assert long.index(False) in (49, 50)
    assert not any(long[50:])
