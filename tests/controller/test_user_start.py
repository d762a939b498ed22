"""User start: how fast users start, and what the report says of it."""

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from support.records import answered

from locust_llm.controller.phases import PhaseRunner
from locust_llm.controller.user_start import (
    FirstRequestTimes,
    ResponseTimes,
    find_longest_start_s,
    plan_user_start,
)
from locust_llm.records.phase_plan import PROFILING
from locust_llm.records.record import Record
from locust_llm.records.run_facts import ResponseTime, UserStart
from locust_llm.settings.run_options import Settings


def plan(
    seconds: float | None = 2.0,
    *,
    cut: bool = False,
    phase: str = "profiling",
    earlier_s: float | None = None,
    users: int = 32,
    **settings: Any,
) -> UserStart:
    before = None if seconds is None else ResponseTime(seconds=seconds, cut=cut)
    return plan_user_start(Settings(users=users, **settings), phase, users, before, earlier_s)


def took(seconds: float, **other: Any) -> Record:
    return answered(sent_at=10.0, **{"closed_at": 10.0 + seconds, **other})


def test_users_start_over_one_response_time() -> None:
    start = plan(2.125, run_time_s=60)
    assert start == UserStart(users=32, over_s=2.125, by="response_time")
    assert str(start) == (
        "32 users started over 2.12 s, the response time of a single request, measured before "
        "the load."
    )


def test_over_at_most_a_tenth_of_the_run() -> None:
    start = plan(9.0, run_time_s=60)
    assert start == UserStart(users=32, over_s=6.0, by="run_time")
    assert (
        str(start)
        == "32 users started over 6 s, a tenth of the planned time, because an earlier response took "
        "longer than that."
    )
    assert plan(6.0, cut=True, run_time_s=60) == start
    assert plan(9.0).over_s == 9.0  # without -t nothing bounds it


def test_over_at_most_a_tenth_of_a_stage_of_a_block_and_of_a_warmup() -> None:
    of_stage = plan(9.0, phase="profiling 2", sweep="concurrency=1..4", stage_duration="20..60")
    assert of_stage.over_s == 2.0
    assert plan(9.0, aa=True, block_duration=15.0).over_s == 1.5
    own = {"warmup_duration": 30.0, "run_time_s": 600}
    assert plan(9.0, phase="warmup", warmup_concurrency=4, **own).over_s == 3.0


def test_over_at_most_half_of_a_warmup_whose_load_goes_on() -> None:
    own = {"phase": "warmup", "warmup_duration": 30.0, "run_time_s": 60}
    assert plan(9.0, **own).over_s == 9.0
    start = plan(20.0, **own)
    assert (start.over_s, start.by) == (15.0, "warmup")
    assert str(start).endswith(
        "over 15 s, half of the warmup, because an earlier response took longer than that."
    )
    assert plan(15.0, cut=True, **own) == start


def test_without_a_measurement_over_a_second() -> None:
    start = plan(None, run_time_s=60)
    assert start == UserStart(users=32, over_s=1.0, by="unmeasured")
    assert "because no response time was measured before the load" in str(start)
    assert plan(None, run_time_s=5) == UserStart(users=32, over_s=0.5, by="unmeasured")


def test_later_phases_have_the_response_time_of_the_one_before() -> None:
    start = plan(2.0, earlier_s=4.5, run_time_s=60)
    assert start == UserStart(users=32, over_s=4.5, by="earlier_phase")


@pytest.mark.parametrize(
    ("users", "rate", "over_s"),
    [
        (32, 32.0, 0.0),
        (32, 1000.0, 0.0),
        (32, 4.0, 7.0),  # four a second: at 0, 1, ..., 7 s
        (3, 0.5, 4.0),  # one each two seconds: at 0, 2, 4 s
        (5, 2.5, 1.6),  # two each 0.8 s: at 0, 0.8, 1.6 s
    ],
)
def test_a_rate_that_was_asked_for_is_locusts(users: int, rate: float, over_s: float) -> None:
    start = plan(2.0, users=users, spawn_rate=rate)
    assert (start.over_s, start.by) == (pytest.approx(over_s), "rate")


def test_the_report_names_a_start_at_once() -> None:
    assert str(plan(spawn_rate=32.0)) == "All 32 users started at once (-r 32)."
    assert str(plan(spawn_rate=4.0)) == "32 users started over 7 s (-r 4)."


def test_after_a_warmup_users_that_are_there_start_at_once_only_if_that_was_asked_for() -> None:
    assert plan(spawn_rate=32.0, earlier_s=3.0).over_s == 0.0
    assert plan(spawn_rate=4.0, earlier_s=3.0) == UserStart(
        users=32, over_s=3.0, by="earlier_phase"
    )


def test_the_mean_response_time_of_a_phase() -> None:
    times = ResponseTimes()
    assert times.end_phase() is None
    for seconds in (1.0, 3.0):
        times.add(took(seconds))
    times.add(took(50.0, outcome="timeout"))
    assert times.end_phase() == 2.0
    assert times.end_phase() is None


def test_the_start_as_it_was() -> None:
    times = FirstRequestTimes(2)
    assert times.add(took(1.0, user=1)) is None
    assert times.add(took(9.0, user=1, asked_at=12.0)) is None  # its second request
    assert times.add(took(1.0, user=2, asked_at=13.5)) == 3.5
    assert times.add(took(1.0, user=3, asked_at=99.0)) is None


def test_a_start_that_took_longer_is_described_as_it_was() -> None:
    planned = plan(2.0, run_time_s=60)
    assert planned.describe_plan().startswith("32 users start over at least 2 s, ")
    assert str(replace(planned, took_s=2.4)) == str(planned)
    assert str(replace(planned, took_s=5.5)) == (
        "32 users started over 5.5 s, each when no request awaited its first token. 2 s were "
        "planned, the response time of a single request, measured before the load."
    )


@pytest.mark.parametrize(
    ("seconds", "settings", "longest_s"),
    [
        (1.0, {"run_time_s": 60}, 4.0),
        (2.0, {"run_time_s": 60}, 6.0),
        (9.0, {"run_time_s": 60}, 6.0),
        (2.0, {}, 8.0),
        (2.0, {"streaming": False}, 2.0),
    ],
)
def test_a_start_takes_at_most_four_times_as_long_and_a_tenth_of_the_run(
    seconds: float, settings: dict[str, Any], longest_s: float
) -> None:
    start = plan(seconds, **settings)
    assert find_longest_start_s(Settings(users=32, **settings), start) == pytest.approx(longest_s)


@pytest.mark.parametrize(("compares", "lines"), [(True, 1), (False, 3)])
def test_the_blocks_of_a_comparison_name_their_start_once(
    compares: bool, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    runner: Any = object.__new__(PhaseRunner)
    runner._settings = SimpleNamespace(compares=compares, spawn_rate=2.0)
    runner.asked = SimpleNamespace(users=2, warmup_concurrency=None)
    runner.stages = None
    runner._users = SimpleNamespace(shaped=False)
    runner._responses = ResponseTimes()
    runner._context = SimpleNamespace(survey=SimpleNamespace(response_time=None))
    runner._store = SimpleNamespace(starts=[])
    with caplog.at_level("INFO", "locust_llm"):
        for _ in range(3):
            runner._spread_start(PROFILING)
    assert len([line for line in caplog.messages if "2 users start" in line]) == lines
