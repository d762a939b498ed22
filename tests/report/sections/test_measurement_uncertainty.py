"""Measurement uncertainty of a run's percentiles, from a certificate and records by hand."""

import csv
import json
import math

import numpy as np
import pytest
from msgspec.structs import replace
from support.levels import level as a_level
from support.records import a_run, answered

from locust_llm.records.accuracy import ErrorBounds, MeasurementAccuracy
from locust_llm.records.record import Record
from locust_llm.records.run import ProcessHealth, Run
from locust_llm.report.aiperf_export import export_summary_json
from locust_llm.report.blocks import TextBlock
from locust_llm.report.columns import collect_columns
from locust_llm.report.document import build_report_document
from locust_llm.report.rows import Row, SweepSummary
from locust_llm.report.sections.measurement_uncertainty import add_measurement_errors
from locust_llm.report.sections.metrics import make_detail_tables
from locust_llm.report.summarise import summarise_run
from locust_llm.report.summary import Summary
from locust_llm.report.sweep_csv import export_sweep_csv
from locust_llm.settings.selftest_modes import REQUIRE
from locust_llm.slo.client_verdict import INVALID
from locust_llm.slo.client_verdict import OK as FINE
from locust_llm.text.format import format_error_ends


def off(ms: float) -> ErrorBounds:
    return ErrorBounds(count=100, p50_ms=ms, p95_ms=ms, p99_ms=ms, max_ms=ms)


def run_with(*certificates: MeasurementAccuracy | None, **settings: object) -> Run:
    health = tuple(
        ProcessHealth(worker=f"w{i}", cpu_share=0.1, loop_lag_p99_ms=1, certificate=one)
        for i, one in enumerate(certificates)
    )
    run = a_run(**settings)
    return type(run)(
        **{**{name: getattr(run, name) for name in run.__struct_fields__}, "health": health}
    )


def summary_of(run: Run, *records: Record) -> Summary:
    columns = collect_columns(records)
    return add_measurement_errors(summarise_run(columns, run), columns, run)


def row(summary: Summary, tag: str) -> Row:
    return next(row for row in summary.rows if row.tag == tag)


CERTIFICATE = MeasurementAccuracy(streams=10, chunks=100, ttft=off(0.5), gap=off(0.2))


def test_by_the_largest_difference() -> None:
    summary = summary_of(
        run_with(CERTIFICATE), *(answered(100 + i, 120 + i, 140 + i, worker="w0") for i in range(9))
    )
    ttft, icl, itl = (
        row(summary, tag)
        for tag in ("time_to_first_token", "inter_chunk_latency", "inter_token_latency")
    )
    assert ttft.percentiles[50] == 104
    assert ttft.plus_minus[50] == pytest.approx((0.5, 0.5))
    assert icl.plus_minus[99] == pytest.approx((0.2, 0.2))
    assert itl.plus_minus[50] == pytest.approx((0.1, 0.1))  # spread over two tokens
    assert not row(summary, "prefill_gate_wait").plus_minus
    assert (summary.sentinels, summary.uncertified) == (100, "")


def test_a_plus_minus_of_ttft_above_its_own_errors_names_where_it_comes_from() -> None:
    """Each TTFT was off by 0.4 ms at most, a gap by 4: the plus-minus of TTFT is 4 ms, that of two
    tokens 2 ms each."""
    few = replace(off(0.4), count=12)
    records = [answered(100, 120, 140, worker="w0") for _ in range(9)]
    summary = summary_of(
        run_with(replace(CERTIFICATE, ttft=few, gap=replace(off(4), count=84))), *records
    )
    assert row(summary, "time_to_first_token").plus_minus[50] == pytest.approx((4, 4))
    assert row(summary, "inter_token_latency").plus_minus[50] == pytest.approx((2, 2))
    assert origin_of(summary) == [
        "TTFT of 12 sentinel streams was off by at most 0.4 ms, their 84 gaps by at most 4 ms. Few "
        "TTFTs prove no bound, so the "
        "plus-minus of TTFT and of Request Latency rests on the gaps' errors. ITL spreads the "
        "error of a gap over the tokens of "
        "a short answer."
    ]
    assert origin_of(summary_of(run_with(replace(CERTIFICATE, gap=off(0.5))), *records)) == []


def origin_of(summary: Summary) -> list[str]:
    texts = (
        block.text for block in make_detail_tables(summary, a_run()) if isinstance(block, TextBlock)
    )
    return [text for text in texts if text.startswith("TTFT of ")]


def test_what_came_merged_is_as_uncertain_as_its_record_says() -> None:
    """Of 5 requests one had its first two chunks in one read: they came between 60 and 140 ms after
    the send."""
    merged = answered(140, 140, 160, merged=((0, 60_000), (1, 60_000)), worker="w0")
    summary = summary_of(
        run_with(CERTIFICATE), merged, *(answered(100, 120, 140, worker="w0") for _ in range(4))
    )
    ttft, icl = (row(summary, tag) for tag in ("time_to_first_token", "inter_chunk_latency"))
    assert ttft.percentiles[99] == pytest.approx(138.4)
    assert ttft.plus_minus[99] == pytest.approx((38.4 + 0.5, 0.5))  # all five may have had 100 ms
    assert ttft.plus_minus[50] == pytest.approx((0.5, 0.5))
    assert icl.count == 8
    # the two gaps that are left out: 0 to 80 ms, and 20 to 100 ms
    every = {end: [20.0] * 8 + gaps for end, gaps in {"least": [0, 20], "most": [80, 100]}.items()}
    low, high = np.percentile(every["least"], 99), np.percentile(every["most"], 99)
    assert icl.plus_minus[99] == pytest.approx((20 - low + 0.2, high - 20 + 0.2))


def test_the_bounds_of_merged_gaps_are_the_same_however_they_were_read() -> None:
    merged = answered(140, 140, 160, merged=((0, 60_000), (1, 60_000)))
    columns = collect_columns([merged])
    (some,) = columns.blurred.values()
    assert some.least.percentiles_ms([0, 100]) == [0, 20]
    assert some.most.percentiles_ms([0, 100]) == [80, 100]


def test_without_a_certificate_of_each_process_there_is_none() -> None:
    missing = MeasurementAccuracy(missing="the run was shorter than 5 s")
    records = [answered(100, 120, worker="w0"), answered(100, 120, worker="w1")]
    summary = summary_of(run_with(CERTIFICATE, missing), *records)
    assert not any(row.plus_minus for row in summary.rows)
    assert summary.uncertified == "the run was shorter than 5 s"
    older = summary_of(run_with(None), *records)
    assert older.uncertified == ""
    assert older.client is not None
    assert older.client.level == FINE


@pytest.mark.parametrize(
    "one",
    [
        None,
        MeasurementAccuracy(missing="no python"),
        MeasurementAccuracy(ttft=off(3), gap=off(0.2)),
    ],
)
def test_a_run_that_must_have_a_good_one_is_invalid_without(
    one: MeasurementAccuracy | None,
) -> None:
    """3 ms of 100 is worse than DEGRADED allows."""
    records = [answered(100, 120, worker="w0") for _ in range(5)]
    summary = summary_of(run_with(one, selftest=REQUIRE), *records)
    assert summary.client is not None
    assert summary.client.level == INVALID
    if one is not None and one.missing:
        assert "no python" in summary.client.reasons[0]


def test_the_report_shows_it() -> None:
    summary = summary_of(run_with(CERTIFICATE), answered(100, 120, worker="w0"))
    text = " ".join(map(str, build_report_document(summary, run_with(CERTIFICATE))))
    assert "± 0.50" in text
    without = summary_of(
        run_with(MeasurementAccuracy(missing="that was so")), answered(100, 120, worker="w0")
    )
    text = " ".join(map(str, build_report_document(without, run_with())))
    assert "that was so" in text


def test_the_exports_have_it() -> None:
    run = run_with(CERTIFICATE)
    summary = summary_of(run, answered(100, 120, worker="w0"))
    said = json.loads(export_summary_json(summary, run))
    assert said["locust_llm"]["plus_minus"]["time_to_first_token"]["50.0"] == [0.5, 0.5]
    assert "plus_minus" not in said["time_to_first_token"]
    levels = [
        a_level(
            1.0,
            latencies={row.tag: row for row in summary.rows if row.tag == "time_to_first_token"},
        ),
        a_level(2.0, latencies={}),
    ]
    sweep = SweepSummary(axis="concurrency", unit="users", levels=tuple(levels), ended="")
    head, *rows = csv.reader(export_sweep_csv(sweep).splitlines())
    at = head.index("time_to_first_token_p50_plus_minus_ms")
    assert [row[at] for row in rows] == ["0.5", ""]


def test_a_bound_is_written_rounded_up() -> None:
    assert format_error_ends((0.5, 0.5)) == "± 0.50"
    assert format_error_ends((0.0301, 0.0301)) == "± 0.031"
    assert format_error_ends((17.81, 0.02)) == "-18 +0.020"
    assert format_error_ends((0.0, 12.0)) == "-0 +12"
    assert format_error_ends((math.inf, 0.1)) == "unknown"
    assert format_error_ends((0.0, 0.0)) == "± 0"
    assert format_error_ends(None) == "-"
