"""How long blocks at a prefill limit are, and how long a comparison must be, by pencil."""

import pytest

from locust_llm.settings.limit_sweep_length import explain_short_limit_sweep
from locust_llm.settings.run_options import Settings
from locust_llm.settings.settings_validation import validate_settings
from locust_llm.slo.limit_block_lengths import (
    advise_run_time,
    find_advised_run_time,
    find_block_lengths,
    find_shortest_comparison_s,
    find_usual_comparison_s,
)

FIVE = {"host": "http://server", "sweep": "prefill-concurrency=1..8", "users": 8}
"""No limit, 1, 2, 4 and 8."""


def test_the_shortest_comparison_is_three_rounds_of_the_shortest_blocks() -> None:
    """Requests of 2 s: a block settles for 1 s, its end takes 2 s, and three times 2 s less these
    3 s count on average, 1.5 s at least: 4.5 s. Three rounds of five blocks and a first block of
    2 s: 69.5 s. With the mean, 6 s: 90 s, which are 80 % of 112.5 s."""
    lengths = find_block_lengths(2.0, objective="stall")
    assert (lengths.settle_s, lengths.tail_s, lengths.least_s) == (1.0, 2.0, 3.0)
    assert find_shortest_comparison_s(5, lengths) == pytest.approx(69.5)
    assert find_usual_comparison_s(5, lengths) == pytest.approx(112.5)


def test_five_requests_a_block_need_their_time() -> None:
    """At one in 2 s a block counts for 10 s."""
    assert find_block_lengths(0.1, objective="stall", rate_per_s=0.5).least_s == 10.0


@pytest.mark.parametrize(
    ("run_time_s", "expected"),
    [
        (
            60.0,
            "-t 60 is too short to name the best of 5 prefill limits, which takes 3 rounds with "
            "requests of 2 s: use at least -t 113s, or fewer limits",
        ),
        (70.0, ""),
        (None, ""),
    ],
)
def test_a_comparison_that_is_too_short_for_the_requests_is_told(
    run_time_s: float | None, expected: str
) -> None:
    settings = Settings(**FIVE, objective="stall", run_time_s=run_time_s)
    assert explain_short_limit_sweep(settings, 2.0) == expected
    assert explain_short_limit_sweep(settings, None) == ""


def test_a_comparison_that_is_too_short_for_any_server_is_refused() -> None:
    """A block takes 1.25 s at least, 1.5 s on average: 18.75 s and 2 s, and 22.5 s / 0.8."""
    (refusal,) = validate_settings(Settings(**FIVE, run_time_s=20.0))
    assert refusal == (
        "-t 20 is too short to name the best of 5 prefill limits, which takes 3 rounds: use at "
        "least -t 29s, or fewer limits"
    )
    assert list(validate_settings(Settings(**FIVE, run_time_s=21.0))) == []


@pytest.mark.parametrize(
    ("needed_s", "run_time_s", "seconds"),
    [(112.5, 60.0, 113), (60.0, 60.0, 61), (30.0, 60.5, 61), (60.2, 60.0, 61)],
)
def test_an_advised_time_is_longer_than_the_run(
    needed_s: float, run_time_s: float, seconds: int
) -> None:
    advice = f"use at least -t {seconds}s, or fewer limits"
    assert advise_run_time(needed_s, run_time_s) == advice
    assert find_advised_run_time(["another note", f"WARNING: too short: {advice}"]) == advice
    assert find_advised_run_time(["use at least two processes"]) == ""
