"""Failures through a gateway: kept, changed, retried or hidden. Each case is written out by hand."""

import pytest

from locust_llm.lab.gateway.hidden_failures import (
    CHANGED,
    HIDDEN,
    KEPT,
    RETRIED,
    WHOLE,
    Sighting,
    compare_sightings,
    count_hidden,
    describe_change,
    describe_sighting,
    judge_fault,
)

GOOD = Sighting(outcome="ok", status=200, words=8, finish_reason="stop", output_tokens=8, model="m")
BROKEN = Sighting(outcome="stream_error", status=200, words=3, error="engine died")
REFUSED = Sighting(outcome="http_status", status=500, error="engine died")


def changed(sighting: Sighting, **what: object) -> Sighting:
    return Sighting(**{name: getattr(sighting, name) for name in sighting.__struct_fields__} | what)


@pytest.mark.parametrize(
    ("direct", "through", "verdict"),
    [
        (BROKEN, BROKEN, KEPT),
        # another text of an error is the same to a program
        (BROKEN, changed(BROKEN, error="litellm.APIError: engine died"), KEPT),
        (BROKEN, changed(BROKEN, outcome="closed"), CHANGED),
        (BROKEN, changed(BROKEN, words=2), CHANGED),
        (REFUSED, changed(REFUSED, status=502), CHANGED),
        (BROKEN, changed(GOOD, words=3, output_tokens=3), HIDDEN),
        # sent again, and the answer is the upstream's
        (REFUSED, changed(GOOD, requests=2), RETRIED),
        # sent again, and the success has no word of the upstream
        (REFUSED, changed(GOOD, requests=2, words=0), HIDDEN),
        # no failure in either
        (GOOD, GOOD, KEPT),
        (GOOD, changed(GOOD, output_tokens=16), CHANGED),
        (GOOD, changed(GOOD, model="n"), CHANGED),
        (changed(GOOD, id_count=2), GOOD, CHANGED),
        (changed(GOOD, done=False), GOOD, CHANGED),
        (GOOD, REFUSED, CHANGED),
    ],
)
def test_one_answer_is_judged(direct: Sighting, through: Sighting, verdict: str) -> None:
    assert compare_sightings(direct, through) == verdict


@pytest.mark.parametrize(
    ("sighting", "words"),
    [
        (GOOD, "success: 8 tokens, stop"),
        (changed(GOOD, words=1, finish_reason=""), "success: 1 token, no finish_reason"),
        (BROKEN, "an error in the response after 3 tokens"),
        (REFUSED, "HTTP 500"),
        (changed(BROKEN, outcome="closed", status=None, words=0), "connection closed"),
        (changed(BROKEN, outcome="send_failed", words=0), "send_failed"),
    ],
)
def test_an_answer_is_described(sighting: Sighting, words: str) -> None:
    assert describe_sighting(sighting) == words


@pytest.mark.parametrize(
    ("through", "words"),
    [
        (REFUSED, "HTTP 500"),
        (changed(GOOD, output_tokens=None), "success: 8 tokens, stop, no usage"),
        (
            changed(GOOD, output_tokens=16, model="n", id_count=2),
            "success: 8 tokens, stop, usage of 16 tokens, model n, several ids",
        ),
        (changed(GOOD, done=False), "success: 8 tokens, stop, its last event missing"),
    ],
)
def test_a_difference_that_reads_the_same_is_named(through: Sighting, words: str) -> None:
    assert describe_change(GOOD, through) == words


def test_the_worst_of_several_trials_counts() -> None:
    hidden = changed(GOOD, words=3, output_tokens=3)
    found = judge_fault("error_midstream", "streamed", [BROKEN, BROKEN], [BROKEN, hidden, BROKEN])
    assert (found.verdict, found.trials, found.agreed, found.requests) == (HIDDEN, 3, 1, 1)
    assert found.direct == "an error in the response after 3 tokens"
    assert found.through == "success: 3 tokens, stop"
    assert count_hidden([found]) == 1


def test_the_most_frequent_direct_answer_is_the_measure() -> None:
    late = changed(REFUSED, outcome="timeout", status=None)
    found = judge_fault("http_500", WHOLE, [late, REFUSED, REFUSED], [REFUSED, REFUSED])
    assert (found.verdict, found.agreed, found.through) == (KEPT, 2, "")


def test_a_generation_that_was_paid_for_three_times_is_counted() -> None:
    found = judge_fault("http_500", WHOLE, [REFUSED], [changed(REFUSED, requests=3), REFUSED])
    assert (found.verdict, found.requests) == (KEPT, 3)
