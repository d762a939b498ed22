"""A rule has one name, on every page."""

import pytest

from locust_llm.slo.rule_name import format_rule_name, format_rule_subject
from locust_llm.slo.rules import parse_rule


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("itl p95 < 60ms", "ITL p95 < 60 ms"),
        ("ttft{class=Chat} p99 <= 1.5s", "TTFT {class=Chat} p99 ≤ 1.5 s"),
        ("warn: error_rate < 0.5%", "warn: error rate < 0.5%"),
        ("requests_per_s >= 12/s", "request throughput ≥ 12/s"),
        ("ttft p95 within 5% of reports/base", "TTFT p95 within 5% of reports/base"),
        ("attainment >= 60% given ttft < 500ms", "share of good requests ≥ 60% given ttft < 500ms"),
    ],
)
def test_the_name_of_a_rule(text: str, name: str) -> None:
    assert format_rule_name(parse_rule(text)) == name


def test_the_conditions_of_a_good_request_may_be_left_out() -> None:
    rule = parse_rule("attainment >= 60% given ttft < 500ms")
    assert format_rule_name(rule, conditions=False) == "share of good requests ≥ 60%"


def test_the_subject_alone() -> None:
    assert (
        format_rule_subject(parse_rule("ttft{class=Chat} p99 <= 1.5s")) == "TTFT {class=Chat} p99"
    )
