"""Faults that show only beside the idle answer: found at the rate that arithmetic predicts, named
rightly, and rounding is none."""

import math
from collections import Counter
from typing import NamedTuple

import pytest
from support.checked_answers import received_answer
from support.direct_simulator import DirectSimulator

from locust_llm.answers.answer_integrity import find_answer_faults
from locust_llm.answers.compare_answers import compare_with_idle
from locust_llm.answers.mismatch_rates import (
    IDLE_SERVER,
    LOADED_SERVER,
    compute_mismatch_rates,
    find_rate,
)
from locust_llm.answers.received_answer import AnswerRequested, EventReader
from locust_llm.answers.reference_answer import IDLE, UNDER_LOAD, ReferenceAnswer
from locust_llm.answers.token_margins import read_token_margins

PROMPTS = 10
IDLE_ROUNDS = 20
TOKENS = 24
P = 0.1
ANSWERS = 400
"""Under load."""


class ComparedLoad(NamedTuple):
    compared: list
    sizes: Counter
    """The differences of answers under load, by near tie or wide margin."""
    names: Counter
    """The faults of answers under load."""


def run_load(faults="", *, always="", seed=0, answers=ANSWERS, **body):
    """Reference requests to an idle server, then each beside a request of the load. ``faults`` come
    with the load, ``always`` is a way of the server."""
    simulator = DirectSimulator(always, seed=seed)
    asked = {"temperature": 0, "max_tokens": TOKENS, "logprobs": True, "top_logprobs": 2, **body}

    def ask(place, when):
        number = place % PROMPTS
        quirks = faults if when == UNDER_LOAD else ""
        if when == UNDER_LOAD:
            simulator.send(f"Load {place}.", quirks=quirks, max_tokens=4)
        sent = simulator.ask(f"Reference prompt number {number}.", quirks=quirks, **asked)
        reader = EventReader()
        received = received_answer(sent.parse(reader.add), reader)
        return ReferenceAnswer(
            prompt=number,
            asked=when,
            sent_at=0.0,
            ended_at=1.0,
            in_flight=1 if when == UNDER_LOAD else 0,
            text=received.text,
            finish_reason=received.finish_reason,
            input_tokens=received.prompt_tokens,
            tokens=tuple(token for data in sent.events for token in read_token_margins(data)),
            faults=find_answer_faults(received, AnswerRequested(max_tokens=TOKENS)),
        )

    found = [ask(place, IDLE) for place in range(PROMPTS * IDLE_ROUNDS)]
    found += [ask(place, UNDER_LOAD) for place in range(answers)]
    compared = [*compare_with_idle(found)]
    under_load = [one for one in compared if one.answer.asked == UNDER_LOAD]
    assert len(under_load) == answers
    sizes = Counter(one.difference.size for one in under_load if one.difference is not None)
    names = Counter(name for one in under_load for name in one.list_faults())
    return ComparedLoad(compared, sizes, names)


def near(probability):
    spread = 5 * math.sqrt(ANSWERS * probability * (1 - probability))
    return pytest.approx(ANSWERS * probability, abs=spread)


def test_a_sound_server_has_no_difference():
    load = run_load()
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
    load = run_load(f"{quirk}={P}", seed=4)
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
    load = run_load(f"{quirk}={P}", seed=2, **more)
    assert set(load.names) == {name}
    assert load.names[name] == near(P)
    assert sum(load.sizes.values()) == load.names[name]


def test_near_ties_never_count():
    """An answer differs if one of the two flipped and the other did not. Each prompt has its own
    idle answer, so the share of differences is p or 1 - p, by prompt."""
    load = run_load(always=f"near_tie={P}", seed=1)
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
    load = run_load(always="near_tie=0.3", seed=2, answers=30_000)
    assert set(load.sizes) == {"near tie"}
    assert not load.names


def test_wide_flips_among_near_ties_are_found():
    load = run_load(f"wide_flip={P}", always=f"near_tie={P}", seed=1)
    assert load.sizes["near tie"] > 0
    assert load.sizes["wide margin"] == near(P * (1 - P))
    under_load = find_rate(compute_mismatch_rates(load.compared), LOADED_SERVER)
    assert under_load.p < 1e-3
    assert under_load.low > 0
