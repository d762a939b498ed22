"""One is singular: sentences that count, with a count of one, beside the same with two."""

from collections.abc import Callable

import pytest
from support.records import a_run, answered, failed
from support.stages import a_level

from locust_llm.lab.gateway.added_levels import LevelRun
from locust_llm.lab.gateway.added_series import _tell_run
from locust_llm.lab.gateway.gateway_result import AddedLevel
from locust_llm.records.run_facts import BY_RATE, UserStart
from locust_llm.report.compare.condition_differences import _load
from locust_llm.report.junit import describe_slo_result
from locust_llm.report.load_records import collect_columns
from locust_llm.report.sections.sweep.sweep_findings import _gateway, describe_slots
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.settings.run_options import Settings
from locust_llm.slo.rules import SloResult


def start_users(users: int) -> str:
    start = UserStart(phase="profiling", stage=0, users=users, over_s=2.0, by=BY_RATE, rate_per_s=1)
    return f"{start} {start.describe_plan()}"


def average_failures(count: int) -> str:
    records = [answered(20, 100, sent_at=10.0 + i) for i in range(20)]
    records += [failed(sent_at=40.0 + i) for i in range(count)]
    (result,) = summarise_run(collect_columns(records), a_run(slo=("ttft avg < 1s",))).slos
    return result.reason


def compare_few(count: int) -> str:
    records = [answered(20, 100, sent_at=10.0 + i) for i in range(count)]
    (result,) = summarise_run(collect_columns(records), a_run(slo=("ttft avg < 1s",))).slos
    return result.reason


def lose_chunks(count: int) -> str:
    level = AddedLevel(streams=4)
    return "; ".join(_tell_run(LevelRun(level, count, count), []))


def wait_for_slots(waiting: int) -> str:
    levels = [a_level(4.0 + waiting)]
    return next(describe_slots("concurrency", levels, 4))


def limit_gateway(in_flight: int) -> str:
    level = a_level(1.0, requests_per_s=1.0, in_flight=float(in_flight))
    return next(_gateway("concurrency", level, "here"))


def name_values(count: int) -> str:
    result = SloResult(rule="r", status="PASS", observed=1.0, count=count, unit="s")
    return describe_slo_result(result)


@pytest.mark.parametrize(
    ("say", "one", "two"),
    [
        (start_users, "1 user started over 2 s (-r 1). 1 user starts over 2 s (-r 1).",
            "2 users started over 2 s (-r 1). 2 users start over 2 s (-r 1)."),
        (average_failures, "1 failure is in no average: a rule on error_rate counts it",
            "2 failures are in no average: a rule on error_rate counts them"),
        (compare_few, "there is 1", "there are 2"),
        (lose_chunks, "1 chunk was lost of answers", "2 chunks were lost of answers"),
        (lose_chunks, " 1 request failed without", " 2 requests failed without"),
        (wait_for_slots, "of 5 users 1 waits for a slot", "of 6 users 2 wait for a slot"),
        (lambda users: _load(Settings(users=users), ()), "closed loop, 1 user", "2 users"),
        (limit_gateway, "minute, 1 request in flight", "minute, 2 requests in flight"),
        (name_values, "(of 1 value)", "(of 2 values)"),
    ],
)  # fmt: skip
def test_a_count_of_one_is_singular(say: Callable[[int], str], one: str, two: str) -> None:
    assert one in say(1)
    assert f"{one}s" not in say(1)
    assert two in say(2)
