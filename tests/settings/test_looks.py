"""When a run that goes on until its rules are decided is looked at."""

import msgspec
import pytest

from locust_llm.settings.run_options import Settings, interim_analysis_times
from locust_llm.settings.settings_validation import find_rules_that_cannot_pass, validate_settings


@pytest.mark.parametrize(
    ("first_s", "most_s", "times"),
    [
        (None, None, ()),
        (60, None, (60,)),
        (60, 90, (60, 90)),
        (60, 95, (60, 95)),  # 90 would be hardly before it
        (60, 200, (60, 90, 135, 200)),
        (10, 90, (10, 15, 22.5, 33.75, 50.625, 75.9375, 90)),
    ],
)
def test_by_pencil(first_s: float | None, most_s: float | None, times: tuple[float, ...]) -> None:
    assert interim_analysis_times(first_s, most_s) == times


def said(**given: object) -> list[str]:
    return [
        m
        for m in validate_settings(
            msgspec.convert({"host": "http://h", "model": "m", **given}, Settings)
        )
        if "decided" in m
    ]


def test_what_it_needs_and_what_contradicts_it() -> None:
    whole = {"run_time_s": 60, "until_decided_s": 600, "slo": ["ttft p95 < 1s"], "users": 1}
    assert said(**whole) == []
    assert len(said(**whole | {"run_time_s": None})) == 1
    assert len(said(**whole | {"until_decided_s": 60})) == 1
    assert len(said(**whole | {"slo": []})) == 1
    assert said(**whole | {"request_count": 100})[0].startswith(
        "--until-decided and --request-count exclude each other"
    )


def test_what_has_too_few_requests_for_an_interval_is_reported_before_the_run() -> None:
    def few(**given: object) -> list[str]:
        rules = ["ttft p99 < 1s", "ttft p50 < 1s", "error_rate < 1%"]
        return list(
            find_rules_that_cannot_pass(
                msgspec.convert({"host": "http://h", "slo": rules, **given}, Settings)
            )
        )

    (line,) = few(request_count=300)
    assert line.startswith("--request-count 300 may be too few for ttft p99 < 1s: ")
    assert "an interval of p99 within the measured values needs 368" in line
    assert few(request_count=368) == []
    (line,) = few(request_rate=5.0, run_time_s=60.0)
    assert line.startswith("5 requests/s for 60 s")
    assert few(request_rate=5.0, run_time_s=60.0, until_decided_s=120.0) == []
    assert few(users=3, run_time_s=10.0) == []  # nobody knows how many a closed loop sends


def test_a_rule_that_no_run_passes_is_named_before_it() -> None:
    def lines(rule: str, **given: object) -> list[str]:
        settings = msgspec.convert({"host": "http://h", "slo": [rule], **given}, Settings)
        return list(find_rules_that_cannot_pass(settings))

    for rule in ("error_rate <= 0%", "attainment >= 100% given ttft < 1s"):
        (line,) = lines(rule)
        assert line.startswith(
            f"{rule} cannot pass: no number of requests can prove exactly this limit"
        )
        assert lines(rule, slo_mode="point") == []
    assert lines("error_rate <= 0.1%") == lines("delivered >= 100%", request_rate=5.0) == []
    assert lines("fluidity p50 >= 100%") == []


@pytest.mark.parametrize("metric", ["completed", "delivered"])
def test_a_closed_loop_names_rules_on_a_schedule_before_it(metric: str) -> None:
    def lines(**given: object) -> list[str]:
        rule = f"{metric} >= 90%"
        settings = msgspec.convert({"host": "http://h", "slo": [rule], **given}, Settings)
        return list(find_rules_that_cannot_pass(settings))

    (line,) = lines(users=6)
    assert line == (
        f"{metric} >= 90% cannot be decided: {metric} needs a schedule of arrivals, which a closed loop does not have"
    )
    assert lines(sweep="concurrency=1,2") == [line]
    assert lines(request_rate=5.0) == lines(sweep="request-rate=1,2") == []
