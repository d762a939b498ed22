"""Quick answer: the sentences for each kind of result."""

from typing import Any

import msgspec
import pytest

from locust_llm.lab.quick.quick_answer import (
    LIMITS,
    QuickRun,
    QuickStage,
    describe_fit,
    describe_next_run,
    describe_speed,
    list_quick_sentences,
)
from locust_llm.slo.capacity_search import CapacityEstimate, list_levels
from locust_llm.slo.rules import PRESETS

LEVELS = list_levels(1, 16, whole=True)
WITHIN = "within 3 s (p95 of TTFT) and 300 ms (p95 of ITL)"
RULES = '--slo "ttft p95 <= 3s" --slo "itl p95 <= 300ms"'


def estimate(certain: int, likely: int, possible: int, **more: Any) -> CapacityEstimate:
    """The rules certainly hold up to ``certain`` users, probably up to ``likely``, and perhaps up
    to ``possible``."""

    def chance(level: float) -> float:
        if level <= certain:
            return 1.0
        if level <= likely:
            return 0.6
        return 0.1 if level <= possible else 0.0

    return CapacityEstimate(
        levels=LEVELS, chances=tuple(map(chance, LEVELS)), **({"measured_to": 16.0} | more)
    )


def stage(value: float, requests: int, ttft_ms: float | None = 20.0, **more: Any) -> QuickStage:
    latencies = {
        "time_to_first_token": {"percentiles": {"50.0": ttft_ms}},
        "output_token_throughput_per_user": {"percentiles": {"50.0": 500.0}},
    }
    return msgspec.convert(
        {"value": value, "requests": requests, "latencies": latencies, **more}, QuickStage
    )


def test_the_limits_are_those_of_the_preset_for_chats() -> None:
    assert set(LIMITS) <= set(PRESETS["chat"])


def test_the_speed_is_that_of_the_longest_stage_of_one_user() -> None:
    stages = [stage(1, 3, 25.0), stage(1, 40), stage(2, 90, 30.0)]
    assert describe_speed(stages) == (
        "A single user gets the first token after 20 ms, then 500 tokens/s (median of 40 requests)."
    )


def test_a_busy_load_generator_is_named() -> None:
    assert "(1 request, client verdict DEGRADED)" in describe_speed(
        [stage(1, 1, client="DEGRADED")]
    )


def test_an_unknown_speed_is_no_number() -> None:
    for stages in ([], [stage(1, 0)], [stage(2, 5)], [stage(1, 4, None)]):
        assert "the speed of the server is unknown" in describe_speed(stages)


@pytest.mark.parametrize(
    ("capacity", "sentence"),
    [
        (None, f"A minute was too short to find how many users fit {WITHIN}."),
        (estimate(0, 0, 0), f"Not even one user fits {WITHIN}."),
        (estimate(0, 0, 2), f"At most 2 users fit {WITHIN}."),
        (estimate(16, 16, 16), f"At least 16 users fit {WITHIN}; more were not tried."),
        (estimate(4, 6, 8), f"About 6 users fit {WITHIN}; the 95% interval is 4 to 8 users."),
        (estimate(0, 1, 3), f"About 1 user fits {WITHIN}; the 95% interval is at most 3 users."),
    ],
)
def test_how_many_users_fit(capacity: CapacityEstimate | None, sentence: str) -> None:
    assert describe_fit(capacity) == sentence


@pytest.mark.parametrize(
    ("capacity", "sentence"),
    [
        (None, "For an answer, run: {run} --sweep concurrency=1..16 --find-max -t 10m {rules}"),
        (estimate(0, 0, 0), "To see where the time goes, run: {run} -u 1 -t 60"),
        (
            estimate(16, 16, 16),
            "To find the limit, run: {run} --sweep concurrency=16..128 --find-max -t 10m {rules}",
        ),
        (
            estimate(4, 6, 8),
            "For a narrower interval, run: {run} --sweep concurrency=2..16 --find-max -t 10m {rules}",
        ),
    ],
)
def test_what_to_run_next(capacity: CapacityEstimate | None, sentence: str) -> None:
    run = "locust-llm run --headless --host=h:1"
    assert describe_next_run(capacity, ["--host=h:1"], 16) == sentence.format(run=run, rules=RULES)


def test_a_run_that_made_no_search_says_so() -> None:
    run = msgspec.json.decode(b'{"run": {}, "sweep": null}', type=QuickRun)
    assert run.sweep is None
    found = msgspec.json.decode(b'{"run": {}, "sweep": {}}', type=QuickRun).sweep
    assert found is not None
    speed, fit, following = list_quick_sentences(found, ["--host=h:1"], 8)
    assert "unknown" in speed
    assert "too short" in fit
    assert "concurrency=1..8" in following
