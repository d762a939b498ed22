"""The search for the few requests that a random fault needs, against scripted servers."""

import math
from collections.abc import Callable, Sequence
from random import Random
from statistics import fmean
from typing import Final

import pytest

from locust_llm.lab.reproduce.reduce_requests import (
    FIRST_HITS,
    GIVE_UP_TRIES,
    MAX_TRIES,
    MIN_TRIES,
    Odds,
    RequestReducer,
    SearchEnded,
    TriedSet,
    count_needed_tries,
    find_upper_odds,
)

REQUESTS: Final = 500
SEEDS: Final = 100


def plant(needed: set[int], odds: float, random: Random) -> Callable[[Sequence[int]], bool]:
    """A server whose fault needs these requests, and appears with these odds."""
    return lambda requests: needed <= set(requests) and random.random() < odds


def search(seed: int, odds: float, count: int = REQUESTS) -> tuple[RequestReducer, set[int], Odds]:
    random = Random(seed)
    needed = set(random.sample(range(count), 3))
    reducer = RequestReducer(count, plant(needed, odds, random))
    first = reducer.try_all()
    assert first.hits
    assert reducer.leave_out()
    return reducer, needed, first


@pytest.mark.parametrize("odds", [1.0, 0.5, 0.2])
def test_three_of_500_are_found_in_at_least_95_of_100_seeds(odds: float) -> None:
    found = [search(seed, odds) for seed in range(SEEDS)]
    assert all(needed <= set(reducer.requests) for reducer, needed, _ in found)
    assert sum(len(reducer.requests) <= 5 for reducer, _, _ in found) >= 95


@pytest.mark.parametrize("odds", [1.0, 0.5, 0.2])
def test_the_number_of_tries_is_what_arithmetic_expects(odds: float) -> None:
    """Chunks of 250, 125 ... 1 requests are nine sizes. At each one up to three chunks have a needed
    request and fail, each with the tries that the odds ask for, and up to three are left out, each
    after two hits, or one at low odds. The last pass fails three times more."""
    sizes = math.ceil(math.log2(REQUESTS))
    most = (
        (3 * sizes + 3) * (count_needed_tries(odds) + 3) + 3 * sizes * 2 / odds + FIRST_HITS / odds
    )
    tries = [search(seed, odds)[0].tries for seed in range(SEEDS)]
    assert 0.3 * most < fmean(tries) < most


def test_neighbours_in_time_need_fewer_tries() -> None:
    """The last half of the last half and so on has them, so nearly each halving goes well."""
    tries = []
    for seed in range(SEEDS):
        random = Random(seed)
        needed = {480 + random.randrange(6), 486 + random.randrange(6), 492 + random.randrange(8)}
        reducer = RequestReducer(REQUESTS, plant(needed, 0.5, random))
        reducer.try_all()
        assert reducer.leave_out()
        tries.append(reducer.tries)
    assert fmean(tries) < 0.8 * fmean(search(seed, 0.5)[0].tries for seed in range(SEEDS))


@pytest.mark.parametrize(
    ("odds", "tries"),
    # 0.5 ** 4 = 0.0625 and 0.5 ** 5 = 0.031; 0.9 ** 28 = 0.052 and 0.9 ** 29 = 0.047
    [(0.5, 5), (0.1, 29), (0.05, 59), (1.0, MIN_TRIES), (0.99, MIN_TRIES), (0.001, MAX_TRIES),
     (0.0, MAX_TRIES)],
)  # fmt: skip
def test_so_many_tries_miss_a_fault_in_at_most_one_of_twenty(odds: float, tries: int) -> None:
    assert count_needed_tries(odds) == tries


def test_the_odds_of_a_fault_that_never_appeared_have_a_bound() -> None:
    """0.95 ** 59 = 0.0485 and 0.99 ** 299 = 0.0495."""
    assert find_upper_odds(59) == pytest.approx(0.05, abs=0.001)
    assert find_upper_odds(GIVE_UP_TRIES) == pytest.approx(0.01, abs=0.0001)
    assert Odds(0, 1).ends == (0.0, pytest.approx(0.95))
    assert Odds(0, 0).ends == (0.0, 1.0)
    low, high = Odds(10, 20).ends
    assert low < 0.5 < high


def test_a_fault_that_never_appears_ends_the_search() -> None:
    reducer = RequestReducer(REQUESTS, lambda requests: False)
    assert reducer.try_all() == Odds(0, GIVE_UP_TRIES)
    assert reducer.tries == GIVE_UP_TRIES
    assert RequestReducer(3, lambda requests: False).try_all(10) == Odds(0, 10)


def test_a_fault_that_always_appears_needs_three_tries_to_begin() -> None:
    reducer = RequestReducer(REQUESTS, lambda requests: True)
    assert reducer.try_all() == Odds(FIRST_HITS, FIRST_HITS)
    assert reducer.leave_out()
    assert len(reducer.requests) == 1


def test_a_fault_may_need_no_other_request() -> None:
    reducer = RequestReducer(REQUESTS, lambda requests: True, least=0)
    reducer.try_all()
    assert reducer.leave_out()
    assert reducer.requests == ()


@pytest.mark.parametrize("least", [0, 1])
def test_a_single_request_needs_no_search(least: int) -> None:
    reducer = RequestReducer(1, lambda requests: bool(requests), least=least)
    assert reducer.try_all().hits == FIRST_HITS
    assert reducer.leave_out()
    assert reducer.requests == (0,)


def test_the_time_may_end_at_any_try_and_what_was_found_stays() -> None:
    """After each number of tries, the set has all that the fault needs."""
    random = Random(1)
    needed = {7, 60, 61}
    sizes = []
    for most in range(1, 120):
        left = [most]

        def try_once(requests: Sequence[int], left: list[int] = left) -> bool:
            if not left[0]:
                raise SearchEnded
            left[0] -= 1
            return needed <= set(requests) and random.random() < 0.8

        reducer = RequestReducer(100, try_once)
        first = reducer.try_all()
        is_whole = bool(first.hits) and reducer.leave_out()
        assert reducer.tries <= most
        assert needed <= set(reducer.requests)
        assert first.tries <= reducer.tries
        sizes.append((is_whole, len(reducer.requests)))
    assert sizes[0] == (False, 100)
    assert sizes[-1] == (True, 3)


def test_a_set_that_shows_the_fault_once_by_luck_is_not_kept() -> None:
    """Requests 0 to 2 have odds of 0.5, and the other three trios of 0.02. With one hit a step, two of
    three searches ended with one of those."""
    kept = 0
    for seed in range(SEEDS):
        random = Random(seed)
        trios = [({3 * n, 3 * n + 1, 3 * n + 2}, 0.02 if n else 0.5) for n in range(4)]
        tries = [plant(needed, odds, random) for needed, odds in trios]
        reducer = RequestReducer(60, lambda requests, tries=tries: any(f(requests) for f in tries))
        reducer.try_all()
        reducer.leave_out()
        kept += {0, 1, 2} <= set(reducer.requests)
    assert kept >= 80


def test_each_step_is_reported() -> None:
    steps: list[TriedSet] = []
    reducer = RequestReducer(4, lambda requests: 3 in requests, steps.append)
    reducer.try_all()
    reducer.leave_out()
    # {2, 3} suffice; {3} suffices
    assert [(step.requests, step.hits, step.tries) for step in steps] == [(2, 2, 2), (1, 2, 2)]
    assert reducer.steps == 2
    assert [str(TriedSet(1, 1, 1)), str(TriedSet(20, 4, 0))] == [
        "1 request: the fault appeared in 1 of 1 try",
        "20 requests: no fault in 4 tries",
    ]
