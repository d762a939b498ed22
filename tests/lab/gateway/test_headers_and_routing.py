"""Headers, the spread of sessions and the death of a replica, computed with a pencil."""

import pytest

from locust_llm.lab.gateway.headers_and_routing import (
    ADDED,
    CHANGED,
    DROPPED,
    PASSED,
    TO_UPSTREAM,
    compare_headers,
    expect_largest_count,
    measure_spread,
    summarise_death,
)
from locust_llm.lab.gateway.hidden_failures import Sighting
from locust_llm.lab.gateway.upstream_log import CANARY, mask_secrets

GOOD = Sighting(outcome="ok", status=200, words=8, finish_reason="stop")
CLOSED = Sighting(outcome="closed", words=3)


def test_each_header_passes_is_changed_dropped_or_added() -> None:
    sent = [
        ("Authorization", "Bearer gwbench-canary"),
        ("X-Api-Key", "gwbench-canary-2"),
        ("User-Agent", "bench"),
        ("X-Session", "7"),
        ("Connection", "keep-alive"),
        ("Content-Length", "5"),
    ]
    came = [
        ("authorization", "Bearer gwbench-canary"),
        ("x-api-key", "none"),
        ("user-agent", "gateway"),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-for", "10.0.0.1"),
        ("content-length", "9"),
    ]
    found = compare_headers(sent, came, TO_UPSTREAM)
    assert [(one.name, one.verdict, one.value) for one in found] == [
        ("authorization", PASSED, ""),
        ("user-agent", CHANGED, "gateway"),
        ("x-api-key", CHANGED, "none"),
        ("x-forwarded-for", ADDED, "127.0.0.1, 10.0.0.1"),
        ("x-session", DROPPED, ""),
    ]


@pytest.mark.parametrize(
    ("balls", "bins", "mean"),
    [
        (1, 2, 1.0),
        (2, 2, 1.5),  # 2 of 4 ways put both into one
        (3, 2, 2.25),  # 2 of 8 ways: 3; 6 of 8: 2
        (2, 3, 4 / 3),  # 3 of 9 ways: 2
        (5, 1, 5.0),
    ],
)
def test_the_largest_count_by_chance(balls: int, bins: int, mean: float) -> None:
    assert expect_largest_count(balls, bins) == pytest.approx(mean)


def test_sessions_that_stay_and_sessions_that_wander() -> None:
    stays = measure_spread("x-session-id", {"a": [0, 0], "b": [1, 1]}, 2)
    assert (stays.replicas, stays.sessions, stays.sticky, stays.expected) == ((2, 2), 2, 1.0, 0.75)
    wanders = measure_spread("", {"a": [0, 1], "b": [0, 1]}, 3)
    assert stays is not None
    assert wanders is not None
    assert (wanders.replicas, wanders.sticky) == ((2, 2, 0), 0.5)


def test_a_replica_dies() -> None:
    later = [(0.1, CLOSED), (0.2, GOOD), (0.5, CLOSED), (0.6, GOOD)]
    again = Sighting(outcome="ok", words=8, finish_reason="stop", requests=2)
    death = summarise_death([CLOSED, CLOSED, again], later)
    assert death.seen == (("connection closed after 3 tokens", 2), ("success: 8 tokens, stop", 1))
    assert (death.open_streams, death.sent_again) == (3, 1)
    assert (death.after, death.after_failed, death.recovered_s) == (4, 2, 0.5)


def test_a_gateway_that_goes_on_failing_has_not_recovered() -> None:
    assert summarise_death([], [(0.1, GOOD), (0.2, CLOSED)]).recovered_s is None
    assert summarise_death([], [(0.1, GOOD)]).recovered_s == 0.0


def test_sessions_without_an_answer_are_left_out() -> None:
    assert measure_spread("x", {"0": [], "1": []}, 2) is None
    found = measure_spread("x", {"0": [], "1": [0, 0, 1]}, 2)
    assert found is not None
    assert (found.sessions, found.replicas, found.sticky) == (1, (2, 1), 0.6667)


def test_every_name_of_a_key_is_masked() -> None:
    names = ["Set-Cookie", "x-portkey-api-key", "apikey", "Ocp-Apim-Subscription-Key"]
    masked = mask_secrets([*((name, "k") for name in names), ("user-agent", "k")])
    assert [value.startswith("sha256:") for _, value in masked] == [True] * 4 + [False]
    assert mask_secrets([("apikey", f"{CANARY}-1")]) == [("apikey", f"{CANARY}-1")]
