"""Mismatch rates: the counts of each situation, and the error rates of interval and test on servers
whose truth is known."""

import random
from typing import Any

import pytest

from locust_llm.answers.compare_answers import (
    NEAR_TIE,
    UNKNOWN,
    WIDE,
    AnswerDifference,
    ComparedAnswer,
)
from locust_llm.answers.mismatch_rates import (
    PromptStratum,
    RequestEnds,
    compute_mismatch_rates,
    compute_strata_p,
    find_rate,
)
from locust_llm.answers.reference_answer import AFTER_LOAD, IDLE, UNDER_LOAD, ReferenceAnswer


def compared(asked: str, size: str = "", **fields: Any) -> ComparedAnswer:
    """``size``: of its difference. Empty: it is the same."""
    usual: dict[str, Any] = {"prompt": 0, "asked": asked, "sent_at": 10.0, "ended_at": 12.0}
    one = ReferenceAnswer(**(usual | fields))
    difference = AnswerDifference(
        at_character=0, size=size, characters=(1, 1), finish_reasons=("stop", "stop")
    )
    return ComparedAnswer(answer=one, idle=one, difference=difference if size else None)


def test_fishers_lady_tasting_tea() -> None:
    """Three of four cups right of each kind: 17 of the 70 ways are as good (Fisher, 1935)."""
    assert compute_strata_p([PromptStratum(3, 4, 1, 4)]) == pytest.approx(17 / 70)
    assert compute_strata_p([PromptStratum(4, 4, 0, 4)]) == pytest.approx(1 / 70)
    assert compute_strata_p([PromptStratum(0, 4, 0, 4)]) == 1.0
    assert compute_strata_p([]) == 1.0


def test_strata_add_up_and_one_without_idle_answers_has_no_say() -> None:
    """Of two prompts, with one hit each among two loaded and two idle answers: both hits are loaded
    ones in 1/4 of the ways. What only the load was asked says nothing."""
    both = [PromptStratum(1, 2, 0, 2)] * 2
    assert compute_strata_p(both) == pytest.approx(1 / 4)
    assert compute_strata_p([*both, PromptStratum(5, 9, 0, 0)]) == pytest.approx(1 / 4)
    assert compute_strata_p(
        [PromptStratum(1, 2, 0, 2), PromptStratum(0, 2, 1, 2)]
    ) == pytest.approx(3 / 4)


def test_a_situation_counts_its_answers_and_near_ties_are_no_mismatch() -> None:
    rates = compute_mismatch_rates(
        [
            *[compared(IDLE)] * 9,
            compared(IDLE, NEAR_TIE),
            *[compared(UNDER_LOAD)] * 6,
            *[compared(UNDER_LOAD, WIDE)] * 2,
            compared(UNDER_LOAD, UNKNOWN),
            compared(UNDER_LOAD, NEAR_TIE),
            compared(AFTER_LOAD),
        ]
    )
    idle, load = find_rate(rates, "idle"), find_rate(rates, "under load")
    assert idle is not None
    assert load is not None
    assert (idle.answers, idle.mismatches, idle.near_ties, idle.p) == (10, 0, 1, None)
    assert (load.answers, load.wide, load.unknown, load.near_ties) == (10, 2, 1, 1)
    assert load.rate == 0.3
    # all three under load: 10 choose 3 of 20 choose 3
    assert load.p == pytest.approx(120 / 1140)
    # Clopper and Pearson, 3 of 10
    assert (load.low, load.high) == (
        pytest.approx(0.0667, abs=1e-4),
        pytest.approx(0.6525, abs=1e-4),
    )
    assert (idle.low, idle.high) == (0.0, pytest.approx(0.3085, abs=1e-4))
    after = find_rate(rates, "after the load")
    assert after is not None
    assert after.answers == 1


def test_an_answer_is_in_every_situation_that_it_had() -> None:
    answers = [
        compared(IDLE, in_flight=9, cached_tokens=5),
        compared(UNDER_LOAD, in_flight=2, cached_tokens=0, kind="tool"),
        compared(UNDER_LOAD, in_flight=1, cached_tokens=16, streamed=False, kind="schema"),
        compared(UNDER_LOAD, in_flight=0, sent_at=100.0, ended_at=101.0),
    ]
    found = compute_mismatch_rates(answers, RequestEnds([9.0]), RequestEnds([8.99, 101.0]))
    assert {rate.situation: rate.answers for rate in found} == {
        "idle": 1,
        "under load": 3,
        "crowded": 1,
        "cold prefix cache": 1,
        "warm prefix cache": 1,
        "streamed": 2,
        "not streamed": 1,
        "tool call": 1,
        "JSON schema": 1,
        "next to a cancelled request": 2,
        "next to a retried request": 1,
    }


@pytest.mark.parametrize(
    ("ended_at", "touches"), [(8.9, False), (9.0, True), (12.0, True), (12.1, False)]
)
def test_a_cancelled_request_counts_from_a_second_before_the_answer_to_its_end(
    ended_at: float, touches: bool
) -> None:
    assert RequestEnds([ended_at]).touch(compared(UNDER_LOAD).answer) is touches


def draw_run(
    dice: random.Random, idle_rates: list[float], load_rates: list[float], repeats: int
) -> list[ComparedAnswer]:
    """A run of a server that differs so often from its first idle answer, prompt by prompt: three
    more idle answers of each, and ``repeats`` under load."""
    run = []
    for prompt, rates in enumerate(zip(idle_rates, load_rates, strict=True)):
        for asked, rate, count in zip((IDLE, UNDER_LOAD), rates, (3, repeats), strict=True):
            sizes = [WIDE if dice.random() < rate else "" for _ in range(count)]
            run += [compared(asked, size, prompt=prompt) for size in sizes]
    return run


@pytest.mark.parametrize("rate", [0.002, 0.01, 0.05, 0.3])
def test_the_interval_of_a_rate_holds_the_true_rate_in_95_of_100_runs(rate: float) -> None:
    dice = random.Random(4_711)
    runs = 300
    held = 0
    for _ in range(runs):
        found = find_rate(
            compute_mismatch_rates(draw_run(dice, [0.0] * 8, [rate] * 8, 15)), "under load"
        )
        assert found is not None
        held += found.low <= rate <= found.high
    assert held >= 0.93 * runs


@pytest.mark.parametrize(
    "rates",
    [
        [0.0] * 8,
        [0.1] * 8,
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 1.0],  # single prompts with a close choice
        [0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0],
    ],
)
def test_a_server_that_differs_as_often_when_idle_raises_no_alarm(rates: list[float]) -> None:
    """At most 5 of 100 runs have p below 0.05, also where prompts differ in how often."""
    dice = random.Random(1_935)
    runs = 300
    alarms = 0
    for _ in range(runs):
        found = find_rate(compute_mismatch_rates(draw_run(dice, rates, rates, 10)), "under load")
        assert found is not None
        assert found.p is not None
        alarms += found.p < 0.05
    assert alarms <= 0.05 * runs


def test_a_server_whose_streams_differ_from_whole_answers_raises_no_alarm() -> None:
    """One of three idle answers is whole, but half of those under load, and none is repeated of the
    last prompts."""
    dice = random.Random(34_683)
    alarms = 0
    for _ in range(200):
        run = []
        for prompt in range(8):
            idle_ways = [True, True, False] if prompt < 6 else []
            ways = [(IDLE, way) for way in idle_ways] + [(UNDER_LOAD, n % 2 == 0) for n in range(8)]
            run += [
                compared(
                    asked,
                    WIDE if not streamed or dice.random() < 0.2 else "",
                    prompt=prompt,
                    streamed=streamed,
                )
                for asked, streamed in ways
            ]
        found = find_rate(compute_mismatch_rates(run), "under load")
        assert found is not None
        assert found.p is not None
        alarms += found.p < 0.05
    assert alarms <= 0.05 * 200


def test_a_server_that_is_wrong_in_a_fifth_of_its_loaded_answers_is_found() -> None:
    dice = random.Random(20)
    runs = 300
    found_runs = 0
    for _ in range(runs):
        found = find_rate(
            compute_mismatch_rates(draw_run(dice, [0.0] * 8, [0.2] * 8, 10)), "under load"
        )
        assert found is not None
        assert found.p is not None
        found_runs += found.p < 0.05
    assert found_runs >= 0.9 * runs
