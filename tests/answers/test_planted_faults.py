"""Each planted fault is found as often as arithmetic predicts, and by its name alone.

n answers have a fault each with probability p. The checks can see a share s of these faults, so they
find n p s, give or take: five standard deviations of the binomial distribution, which a sound check
leaves once in a million times.
"""

import math

import pytest
from support.checked_answers import ASKED_SHARE as ASKED
from support.checked_answers import (
    CROWD,
    LOGPROBS,
    PLANTED_CASES,
    RESPONSES,
    CheckedLoad,
)

P = 0.1
CASES = pytest.mark.parametrize(("quirk", "setting", "share", "name"), PLANTED_CASES)


@CASES
def test_each_planted_fault_is_found_at_its_rate(quirk, setting, share, name):
    check_rate(1_000, quirk, setting, share, name)


@pytest.mark.full
@CASES
def test_each_planted_fault_is_found_at_its_rate_in_many_answers(quirk, setting, share, name):
    """A minute of one core in all."""
    check_rate(10_000, quirk, setting, share, name)


def check_rate(num_answers, quirk, setting, share, name):
    load = CheckedLoad(f"{quirk}={P}", seed=3, **setting).run(num_answers)
    found = load.faults
    assert set(found) == ({name} if share else set())
    probability = P * share
    spread = 5 * math.sqrt(num_answers * probability * (1 - probability))
    assert found[name] == pytest.approx(num_answers * probability, abs=spread)
    planted = 2 * P if quirk == "swap" else P
    assert load.planted[quirk] == pytest.approx(
        num_answers * planted, abs=5 * math.sqrt(num_answers * 2 * P)
    )


def test_an_answer_of_a_cancelled_request_leaks_at_its_rate():
    """Each crowd cancels one request, and the first answer with a draw below one half gets its
    text. The text shows if that request asked for its code."""
    load = CheckedLoad("slot_leak=0.5", seed=3).run(2_000, num_cancelled=1)
    crowds = 2_000 / CROWD
    assert set(load.faults) == {"foreign_marker"}
    assert load.planted["slot_leak"] == pytest.approx(crowds, abs=3)
    spread = 5 * math.sqrt(crowds * ASKED * (1 - ASKED))
    assert load.faults["foreign_marker"] == pytest.approx(crowds * ASKED, abs=spread)


@pytest.mark.parametrize("quirk", ["swap", "prefix_leak", "late_block"])
def test_an_answer_with_a_leak_was_planted_one(quirk):
    load = CheckedLoad(f"{quirk}={P}", seed=5).run(1_000)
    leaks = [answer for answer in load.answers if answer.faults]
    assert leaks
    assert all(quirk in answer.planted for answer in leaks)


def test_requests_until_a_rare_leak_is_found():
    """The first leak comes after a geometric number of answers, on average 1 / (2 p s) of them: 125
    at p = 0.02."""
    needed = []
    for seed in range(40):
        load = CheckedLoad("swap=0.02", seed=seed)
        while not load.faults:
            load.run(len(load.answers) + CROWD)
        needed.append(len(load.answers))
    mean = sum(needed) / len(needed)
    # 40 geometric numbers: their mean varies by 1 / sqrt(40), and a crowd is checked as a whole
    assert mean == pytest.approx(125, abs=4 * 125 / math.sqrt(40) + CROWD)


# -- no false alarm --------------------------------------------------------------------------------


def test_sound_answers_with_near_ties_give_no_alarm():
    check_no_alarm(4_000)


@pytest.mark.full
def test_a_million_sound_answers_give_no_alarm():
    """Seven minutes of one core."""
    check_no_alarm(1_000_000)


def check_no_alarm(num_answers):
    """Of all answers a quarter each: plain, whole, with logprobs, Responses. With rounding noise:
    one in five answers differs in one word from the idle answer."""
    repeated = asked = 0
    settings = ({}, {"stream": False}, {**LOGPROBS, "temperature": 0}, RESPONSES)
    for number, setting in enumerate(settings):
        load = CheckedLoad("near_tie=0.2", seed=number, **setting)
        for _ in range(num_answers // 4 // 1_000 or 1):
            load.answers.clear()
            load.run(min(1_000, num_answers // 4))
            assert not load.faults
            repeated += sum(answer.is_repeated for answer in load.answers)
        asked += load.num_asked
    assert repeated == asked
