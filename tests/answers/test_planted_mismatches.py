"""Faults that show only beside the idle answer: found at the rate that arithmetic predicts, named
rightly, and rounding is none."""

import math
from collections import Counter

import pytest
from support.compared_answers import ANSWERS, PROMPTS, compare_load

from locust_llm.answers.mismatch_rates import (
    IDLE_SERVER,
    LOADED_SERVER,
    compute_mismatch_rates,
    find_rate,
)

P = 0.1


def near(probability):
    spread = 5 * math.sqrt(ANSWERS * probability * (1 - probability))
    return pytest.approx(ANSWERS * probability, abs=spread)


def test_a_sound_server_has_no_difference():
    load = compare_load()
    assert not load.sizes
    assert not load.names


@pytest.mark.parametrize(
    ("quirk", "share"),
    [
        # it swaps if it draws that, or if the request beside it does, which waits for it
        ("swap", P + P * (1 - P)),
        ("prefix_leak", P),
        ("late_block", P),
        ("wide_flip", P),
    ],
)
def test_a_text_that_differs_under_load_alone(quirk, share):
    load = compare_load(f"{quirk}={P}", seed=4)
    assert set(load.sizes) == {"wide margin"}
    assert load.sizes["wide margin"] == near(share)
    assert not load.names
    idle = find_rate(compute_mismatch_rates(load.compared), IDLE_SERVER)
    assert idle.mismatches == 0


@pytest.mark.parametrize("more", [{}, {"logprobs": False, "top_logprobs": None}])
@pytest.mark.parametrize(
    ("quirk", "name"),
    [
        ("drop_delta", "lost_delta"),
        ("double_delta", "doubled_delta"),
        ("reorder_delta", "reordered_delta"),
    ],
)
def test_a_delta_is_named_beside_the_idle_answer(quirk, name, more):
    """Also without logprobs, where the stream of a chat alone shows nothing."""
    load = compare_load(f"{quirk}={P}", seed=2, **more)
    assert set(load.names) == {name}
    assert load.names[name] == near(P)
    assert sum(load.sizes.values()) == load.names[name]


def test_near_ties_never_count():
    """An answer differs if one of the two flipped and the other did not. Each prompt has its own
    idle answer, so the share of differences is p or 1 - p, by prompt."""
    load = compare_load(always=f"near_tie={P}", seed=1)
    first = {one.answer.prompt: one.idle.text for one in load.compared}
    usual = Counter((one.answer.prompt, one.answer.text) for one in load.compared)
    flipped = sum(usual[item] < ANSWERS / PROMPTS / 2 for item in first.items())
    assert set(load.sizes) == {"near tie"}
    share = (flipped * (1 - P) + (PROMPTS - flipped) * P) / PROMPTS
    assert load.sizes["near tie"] == near(share)
    assert not any(rate.mismatches for rate in compute_mismatch_rates(load.compared))


@pytest.mark.full
def test_near_ties_never_count_in_many_answers():
    """Half a minute of one core."""
    load = compare_load(always="near_tie=0.3", seed=2, answers=30_000)
    assert set(load.sizes) == {"near tie"}
    assert not load.names


def test_wide_flips_among_near_ties_are_found():
    load = compare_load(f"wide_flip={P}", always=f"near_tie={P}", seed=1)
    assert load.sizes["near tie"] > 0
    assert load.sizes["wide margin"] == near(P * (1 - P))
    under_load = find_rate(compute_mismatch_rates(load.compared), LOADED_SERVER)
    assert under_load.p < 1e-3
    assert under_load.low > 0
