"""What a good request is, and how many there were."""

import pytest
from support.records import a_run, answered, failed, mixed
from support.stages import a_stage

from locust_llm.report.load_records import collect_columns
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.report.summary_rows import GoodRequests
from locust_llm.slo.rules import define_good_request


def steps(count: int) -> list:
    """TTFT of 1, 2, 3 ... ms in an order of no correlation, one request a second."""
    return [answered(i, i + 10, i + 30, sent_at=10.0 + at) for at, i in enumerate(mixed(count), 1)]


def good(*records: object, **settings: object) -> GoodRequests | None:
    return summarise_run(collect_columns(records), a_run(**settings), 0, records).good  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "conditions", "said_by"),
    [
        ({}, "", ""),
        ({"slo": ("error_rate < 1%", "output_tokens_per_s > 5")}, "", ""),
        ({"slo": ("ttft p50 < 1s", "ttft avg < 1s", "itl med < 9ms", "ttft p90 > 1ms")}, "", ""),
        ({"slo": ("warn: ttft p99 < 1s", "ttft{class=a} p99 < 1s", "icl p99 < 1s",
            "ttft{stage=2} max < 1s")}, "", ""),
        ({"slo": ("output_tokens_per_s_per_user p90 < 1",)}, "", ""),
        (
            {"slo": ("ttft p90 < 1s", "ttft max < 5s", "itl p99 <= 40ms",
                "request_latency p95 < 9s")},
            "ttft < 1s, itl <= 40ms, request_latency < 9s", "the rules on latencies",
        ),
        ({"slo_preset": "chat"}, "ttft <= 3s, itl <= 300ms", "the rules on latencies"),
        (
            {"slo": ("ttft p99 < 1s", "attainment > 9% given ttft < 2s and itl < 1s",
                "goodput > 1 given itl < 9s")},
            "ttft < 2s, itl < 1s", "the first rule",
        ),
        (
            {"slo": ("attainment > 9% given ttft < 2s",), "goodput": "time_to_first_token:300"},
            "ttft <= 300ms", "--goodput",
        ),
        ({"goodput": "of:another version"}, "", ""),
        ({"slo": ("of another version",)}, "", ""),
    ],
)  # fmt: skip
def test_who_says_what_a_good_request_is(
    settings: dict[str, object], conditions: str, said_by: str
) -> None:
    found, where = define_good_request(a_run(**settings).settings.rules)
    assert ", ".join(map(str, found)) == conditions
    assert where.startswith(said_by)
    assert bool(where) == bool(conditions)


def test_shares_and_rates_of_good_requests() -> None:
    """Twenty of forty within 20 ms, and ten failures: 20 of 50; the last of 40 requests, a second
    apart, takes 30 ms more than its TTFT."""
    found = good(*steps(40), *[failed(sent_at=12.0)] * 10, slo=("ttft p99 <= 20ms",))
    assert found is not None
    assert found.conditions == "ttft <= 20ms (the rules on latencies, for each request)"
    assert found.attainment == pytest.approx(0.4)
    assert found.goodput_per_s == pytest.approx(20 / (39.03 + mixed(40)[-1] / 1e3))
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.goodput_per_s < found.high


def test_too_few_requests_have_no_interval() -> None:
    found = good(*steps(7), slo=("ttft p99 <= 10ms",))
    assert found is not None
    assert (found.attainment, found.low, found.high) == (1, None, None)


def test_what_cannot_be_told_is_not() -> None:
    assert good(*steps(20)) is None
    assert good(slo=("ttft p99 <= 10ms",)) is None
    without = [answered(streamed=False, output_tokens=None, closed_at=11.0)] * 20
    assert good(*without, slo=("ttft p99 <= 10ms",)) is None


def test_attainment_of_a_stage_is_of_the_requests_of_its_latencies() -> None:
    """Measured from second 10 to 30. Of the 10 requests that end in it 4 are good, all of the
    warmup: 0.2 a second, as all rates count. Of the 16 that the latencies are of none is good."""
    warm = [answered(600, 700, sent_at=9.5 + i / 10, phase="warmup") for i in range(4)]
    slow = [answered(5000, 6000, sent_at=12.0 + i) for i in range(6)]
    late = [answered(15000, 16000, sent_at=20.0 + i / 10) for i in range(10)]
    records = [*warm, *slow, *late]
    whole = a_run(sweep="concurrency=1,2", slo=("ttft p90 < 1s",), users=None)
    summary = summarise_run(
        collect_columns(records), a_stage(whole, 1, 1, "concurrency"), 0, records
    )
    assert summary.good is not None
    assert (summary.good.attainment, summary.good.goodput_per_s) == (0.0, pytest.approx(0.2))
    (rate,) = (row.avg for row in summary.rows if row.tag == "request_throughput")
    assert rate == pytest.approx(0.5)
