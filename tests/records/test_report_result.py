"""The answer of the report process: through JSON and back, its throughput, and its line on the
console."""

import msgspec
import pytest

from locust_llm.records.report_result import MetricValue, ReportResult, RuleResult
from locust_llm.slo.load_generator_health import ClientVerdict

FULL = ReportResult(
    text="tables \N{HORIZONTAL ELLIPSIS}",
    incomplete=True,
    slo_status="PASS",
    rules=(RuleResult("ttft p95 < 1s", "PASS", "500ms"),),
    client=ClientVerdict("DEGRADED", ("late",), "use more processes"),
    probe="named",
    figures={
        "time_to_first_token": MetricValue(130.0, 9, {50.0: 120.4, 99.0: 450.0, 99.9: 451.0}),
        "inter_token_latency": MetricValue(10.0, 9, {50.0: 10.04, 99.0: 20.0}),
        "output_token_throughput": MetricValue(812.3),
        "request_throughput": MetricValue(2.0),
    },
    findings=("all stages ran",),
)


def test_it_goes_through_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(FULL), type=ReportResult) == FULL


@pytest.mark.parametrize(
    ("result", "line", "throughput"),
    [
        (
            FULL,
            "TTFT p50 120 ms, p99 450 ms, ITL p50 10 ms, p99 20 ms, 812 tokens/s, SLO PASS, "
            "client DEGRADED",
            812.3,
        ),
        (
            ReportResult(
                has_waits=True,
                figures={
                    "time_to_first_token": MetricValue(1.0, 9, {50.0: 1.0, 99.0: 2.0}),
                    "time_to_first_token_from_due": MetricValue(
                        700.0, 9, {50.0: 600.0, 99.0: 900.0}
                    ),
                },
            ),
            "TTFT from due p50 600 ms, p99 900 ms",
            None,
        ),
        (
            ReportResult(
                client=ClientVerdict("OK"), figures={"request_throughput": MetricValue(2.0)}
            ),
            "no measurement",
            2.0,
        ),
        (
            ReportResult(rates_off=True, figures={"output_token_throughput": MetricValue(71.6)}),
            "~72 tokens/s",
            71.6,
        ),
        (ReportResult(), "no measurement", None),
        (
            ReportResult(
                token_rate_unit="chunks/s", figures={"output_token_throughput": MetricValue(812.3)}
            ),
            "812 chunks/s",
            812.3,
        ),
    ],
)
def test_its_line_on_the_console(result: ReportResult, line: str, throughput: float | None) -> None:
    assert (str(result), result.throughput) == (line, throughput)
