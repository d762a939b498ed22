"""Disruption schedule: what ``--disrupt`` may be."""

import pytest

from locust_llm.settings.disruption_schedule import (
    DisruptionPlan,
    parse_disruption,
    validate_plans,
)
from locust_llm.settings.run_options import Settings


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("at 60s: kill -9 7", DisruptionPlan("at 60s", 60.0, None, "kill -9 7")),
        ("at 1.5m:kill 7", DisruptionPlan("at 1.5m", 90.0, None, "kill 7")),
        (" every  2m : a: b\nc ", DisruptionPlan("every 2m", 120.0, 120.0, "a: b\nc")),
        ("at 0s: true", DisruptionPlan("at 0s", 0.0, None, "true")),
        ("at 1h: true", DisruptionPlan("at 1h", 3600.0, None, "true")),
    ],
)
def test_a_disruption_has_a_time_and_a_command(text: str, plan: DisruptionPlan) -> None:
    assert parse_disruption(text) == plan


@pytest.mark.parametrize(
    "text", ["", "kill 7", "at 60: kill 7", "at 60s kill 7", "at 60s:", "in 60s: x", "at -1s: x"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be 'at 60s: COMMAND' or 'every 2m: COMMAND'"):
        parse_disruption(text)


def test_a_refusal_shows_no_command() -> None:
    with pytest.raises(ValueError, match="begins with 'in 60s'") as caught:
        parse_disruption("in 60s: restart --token sk-secret")
    assert "sk-secret" not in str(caught.value)


def test_a_period_has_a_least_length() -> None:
    with pytest.raises(ValueError, match=r"every 0.5s: the least period is 1s"):
        parse_disruption("every 0.5s: true")


def refusals(text: str, **settings: object) -> list[str]:
    asked = Settings(host="http://a", **settings)  # type: ignore[arg-type]
    return list(validate_plans([parse_disruption(text)], asked))


def test_a_disruption_needs_one_load_and_a_run_that_is_long_enough() -> None:
    assert refusals("at 59s: true", run_time_s=60.0) == []
    assert refusals("at 1h: true") == []
    assert refusals("at 60s: true", run_time_s=60.0) == [
        "--disrupt at 60s: the run ends before (-t 60)"
    ]
    assert refusals("every 2m: true", run_time_s=60.0) == [
        "--disrupt every 2m: the run ends before (-t 60)"
    ]
    one_load = "--disrupt needs a run of one load: it cannot go with"
    assert refusals("at 1s: true", sweep="concurrency=1..4") == [f"{one_load} --sweep"]
    assert refusals("at 1s: true", candidate="http://b") == [
        f"{one_load} a comparison of two servers"
    ]
