"""Limits compared by hand: ratios, their errors, and what follows from them."""

import math
from random import Random

import pytest

from locust_llm.slo.best_prefill_limit import (
    OBJECTIVES,
    SHORT_TTFT,
    TOKENS,
    BlockSample,
    Limit,
    compare_two,
    compare_with_best,
    format_limit,
    is_look,
)
from locust_llm.slo.percentile import find_percentile

TTFT = OBJECTIVES[SHORT_TTFT]
RATE = OBJECTIVES[TOKENS]


def samples_of(
    figures: dict[Limit, list[float]], count: int = 20
) -> dict[Limit, dict[int, BlockSample]]:
    """Of each limit a block in each round, all of whose values are that figure."""
    return {
        limit: {
            number: BlockSample([figure] * count, 10.0) for number, figure in enumerate(each, 1)
        }
        for limit, each in figures.items()
    }


def test_what_is_the_same_in_all_rounds_has_no_error() -> None:
    found = {
        one.limit: one
        for one in compare_with_best(samples_of({None: [2.0] * 5, 1: [1.0] * 5}), TTFT)
    }
    assert (found[1].regret, found[1].low, found[1].high) == (0.0, 0.0, 0.0)
    assert found[None].regret == pytest.approx(1.0)
    assert found[None].low == pytest.approx(1.0)
    assert found[1].is_as_good
    assert found[None].is_worse


def test_regrets_are_ratios_of_the_figures() -> None:
    """p95 of 11 values lies halfway between the two highest: 15 and 30, twice as long."""
    once = {1: BlockSample([1.0] * 9 + [10.0, 20.0], 10.0)}
    twice = {1: BlockSample([1.0] * 9 + [20.0, 40.0], 10.0)}
    found = compare_with_best({None: twice, 1: once}, TTFT)
    assert [(each.figure, each.regret) for each in found] == [
        (pytest.approx(30.0), pytest.approx(1.0)),
        (pytest.approx(15.0), 0.0),
    ]


def test_a_rate_is_better_when_it_is_higher() -> None:
    found = compare_with_best(samples_of({None: [1.0] * 5, 4: [1.25] * 5}), RATE)
    assert [one.regret for one in found] == [pytest.approx(0.25), 0.0]
    assert [one.figure for one in found] == [2.0, 2.5]  # 20 values of 1 in 10 s


def test_few_rounds_say_nothing() -> None:
    found = compare_with_best(samples_of({None: [1.0] * 2, 4: [9.0] * 2}), TTFT)
    assert not any(one.is_worse or one.is_as_good for one in found)
    assert all(math.isinf(one.high) for one in found)


def test_few_values_make_no_percentile() -> None:
    found = compare_with_best(samples_of({None: [1.0] * 4, 4: [9.0] * 4}, count=4), TTFT)
    assert not any(one.is_worse or one.is_as_good for one in found)


def test_limits_alike_are_all_as_good() -> None:
    found = compare_with_best(samples_of({None: [3.0] * 4, 1: [3.0] * 4, 2: [3.05] * 4}), TTFT)
    assert all(one.is_as_good for one in found)


def test_a_limit_with_failures_in_each_round_is_worse_whatever_the_others_are() -> None:
    found = compare_with_best(samples_of({None: [1.0] * 4, 1: [math.inf] * 4}), TTFT)
    assert [one.is_worse for one in found] == [False, True]
    assert found[0].is_as_good


def test_failures_of_one_round_are_not_certain() -> None:
    values: dict[Limit, list[float]] = {None: [1.0] * 4, 1: [1.0, 1.0, 1.0, math.inf]}
    found = compare_with_best(samples_of(values), TTFT)
    assert not any(one.is_worse or one.is_as_good for one in found)


def test_only_rounds_that_both_have_are_compared() -> None:
    """The third limit was left out after three rounds, and the server became slower then."""
    values: dict[Limit, list[float]] = {
        None: [1.0] * 3 + [4.0] * 3,
        1: [2.0] * 3 + [8.0] * 3,
        2: [3.0] * 3,
    }
    found = {one.limit: one for one in compare_with_best(samples_of(values), TTFT)}
    assert found[2].regret == pytest.approx(2.0)
    assert found[2].is_worse
    assert found[None].is_as_good
    assert compare_two(samples_of(values), TTFT, 1, None) == (
        pytest.approx(2.0), pytest.approx(2.0), pytest.approx(2.0),
    )  # fmt: skip


def test_intervals_hold_the_truth() -> None:
    """Rounds differ, and limits in a round by chance: 1 is the best, 2 is worse by 10 %."""
    random = Random(3)
    held = surely = 0
    for _ in range(200):
        figures: dict[Limit, list[float]] = {None: [], 1: [], 2: []}
        for _ in range(8):
            of_round = random.gauss(0, 0.5)
            for limit, more in ((None, 0.3), (1, 0.0), (2, math.log(1.1))):
                figures[limit].append(math.exp(of_round + more + random.gauss(0, 0.1)))
        two = {
            one.limit: one
            for one in compare_with_best(samples_of(figures, 1), RATE._replace(less_is_better=True))
        }[2]
        # of sums over rounds the ratio is not that of the logarithms, but near
        held += two.low <= 0.1 <= two.high
        surely += two.surely_low <= 0.1 <= two.surely_high
    assert held >= 180
    assert surely >= 196


def test_percentiles_are_linear_between_values_and_land_on_failures() -> None:
    assert find_percentile([1.0, 2.0], 50) == 1.5
    assert find_percentile([1.0, math.inf], 50) == math.inf
    assert find_percentile([1.0, math.inf], 0) == 1.0


def test_looks() -> None:
    assert [rounds for rounds in range(25) if is_look(rounds)] == [4, 7, 12, 20]


def test_names() -> None:
    assert [format_limit(limit) for limit in (None, 4)] == ["none", "4"]


def test_a_limit_that_was_left_out_early_leaves_the_others_known() -> None:
    """The server did not keep up at limit 1, which was tried twice."""
    values: dict[Limit, list[float]] = {None: [1.0] * 6, 1: [math.inf] * 2, 2: [2.0] * 6}
    found = {one.limit: one for one in compare_with_best(samples_of(values), TTFT)}
    assert (found[None].is_as_good, found[1].is_worse, found[2].is_worse) == (True, True, True)
    assert found[None].high == 0.0
