"""The files that AIPerf's readers take, field by field; test_aiperf_loads.py asks AIPerf itself."""

import csv
import io
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.records import UNIX, a_run, answered, failed

from locust_llm.records.profile_export_jsonl import format_record_line, parse_record_line
from locust_llm.records.record import Record
from locust_llm.records.run_facts import OpenLoopSchedule, Run
from locust_llm.report.aiperf_export import STATS, export_summary_csv, export_summary_json
from locust_llm.report.load_records import collect_columns
from locust_llm.report.spreadsheet_safe_csv import make_csv_writer
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.report.summary_rows import Row
from locust_llm.text.format import format_number


def test_a_line() -> None:
    record = answered(
        200, 220, 260,
        asked_at=9.5, due_at=9.0, admitted_at=9.75, headers_at=10.0625, closed_at=10.5,
        connect_s=0.004, worker="w1",
        user=7, session="s", turn=2, read_lag_us=125,
    )  # fmt: skip
    said = json.loads(format_record_line(record))
    ns = int(UNIX) * 1_000_000_000
    assert said["metadata"] == {
        "session_num": 7,
        "x_request_id": "a",
        "credit_issued_ns": ns + 9_750_000_000,
        "request_start_ns": ns + 10_000_000_000,
        "request_ack_ns": ns + 10_062_500_000,
        "request_end_ns": ns + 10_500_000_000,
        "worker_id": "w1",
        "record_processor_id": "w1",
        "benchmark_phase": "profiling",
        "conversation_id": "s",
        "turn_index": 2,
    }
    expected = {
        "request_latency": (260.0, "ms"),
        "time_to_first_token": (200.0, "ms"),
        "time_to_first_output_token": (200.0, "ms"),
        "inter_token_latency": (30.0, "ms"),
        "inter_chunk_latency": ([20.0, 40.0], "ms"),
        "longest_stall": (40.0, "ms"),
        "output_token_throughput_per_user": (pytest.approx(1 / 0.03), "tokens/sec/user"),
        "input_sequence_length": (100, "tokens"),
        "output_sequence_length": (3, "tokens"),
        "http_req_connecting": (4.0, "ms"),
        "prefill_gate_wait": (250.0, "ms"),
        "schedule_delay": (1000.0, "ms"),
        "time_to_first_token_from_due": (1200.0, "ms"),
        "read_lag": (0.125, "ms"),
    }
    assert {
        tag: (value["value"], value["unit"]) for tag, value in said["metrics"].items()
    } == expected
    assert said["error"] is None
    assert b"\n" not in format_record_line(record)


def test_a_failure_keeps_what_was_measured() -> None:
    said = json.loads(
        format_record_line(
            failed("truncated", chunk_us=(200_000,), first_output=0, status=200, error="no end")
        )
    )
    assert said["metrics"]["time_to_first_token"]["value"] == 200.0
    assert said["error"] == {"code": 200, "type": "truncated", "message": "no end"}


def test_a_cut_request_is_no_success_to_anyone() -> None:
    said = json.loads(format_record_line(failed("cut", sent_at=None, closed_at=12.0)))
    assert said["metadata"]["was_cancelled"]
    assert said["metadata"]["cancellation_time_ns"] == said["metadata"]["request_end_ns"]
    assert said["error"]["code"] == 499


TEXT = st.text(st.characters(codec="utf-8"), max_size=20)


@given(
    st.lists(st.integers(0, 10**9), max_size=20).map(sorted).map(tuple),
    TEXT, TEXT,
    st.sampled_from(["ok", "reset", "cut"]),
    st.one_of(st.none(), st.floats(0, 1e6)),
    st.integers(0, 3),
)  # fmt: skip
def test_a_record_survives_its_line(
    chunk_us: tuple[int, ...],
    name: str,
    message: str,
    outcome: str,
    sent_at: float | None,
    merged: int,
) -> None:
    chunk_us = chunk_us if sent_at is not None else ()
    record = answered(
        sent_at=sent_at,
        chunk_us=chunk_us,
        first_output=0 if chunk_us else None,
        name=name,
        error=message,
        outcome=outcome,
        merged=tuple((i, 0) for i in range(min(merged, len(chunk_us)))),
    )
    assert parse_record_line(format_record_line(record)) == record


def test_text_that_is_no_unicode_loses_no_record() -> None:
    record = answered(200, error="file \udcff", name="n")
    assert parse_record_line(format_record_line(record)).error == "file ?"
    assert parse_record_line(format_record_line(record)).chunk_us == (200_000,)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"metadata":{"half', b'{"record":{"id":3}}', b"[]", b"\xff\xfe"]
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  msgspec has several kinds
        parse_record_line(data)


def exported(*records: Record, run: Run | None = None) -> dict[str, object]:
    run = run or a_run(request_count=5)
    return json.loads(export_summary_json(summarise_run(collect_columns(records), run), run))  # type: ignore[no-any-return]


def test_the_summary_as_json() -> None:
    error, warm = failed(status=503, error="no"), answered(9, phase="warmup")
    said = exported(answered(100, 300), answered(300, 500), error, warm)
    assert said["schema_version"] == "1.4"
    ttft = said["time_to_first_token"]
    assert isinstance(ttft, dict)
    assert ttft.pop("std") == pytest.approx(math.sqrt(2 * 100**2))  # ddof=1
    assert ttft == {
        "unit": "ms", "avg": 200.0, "min": 100.0, "max": 300.0, "count": 2, "sum": 400.0,
        "p1": 102.0, "p5": 110.0,
        "p10": 120.0, "p25": 150.0, "p50": 200.0, "p75": 250.0, "p90": 280.0, "p95": 290.0,
        "p99": 298.0,
    }  # fmt: skip
    assert said["request_throughput"] == {"unit": "requests/sec", "avg": 2.0}
    assert said["output_token_throughput"] == {"unit": "tokens/sec", "avg": 4.0}
    assert said["request_count"] == {"unit": "requests", "avg": 2}
    assert said["error_request_count"] == {"unit": "requests", "avg": 1}
    assert said["benchmark_duration"] == {"unit": "sec", "avg": 1.0}
    assert said["total_isl"] == {"unit": "tokens", "avg": 200.0}
    assert said["was_cancelled"] is False
    assert said["error_summary"] == [
        {"error_details": {"code": 503, "type": "reset", "message": "no"}, "count": 1}
    ]
    assert said["start_time"] == "2023-11-14T22:13:20+00:00"
    warmup = said["warmup_metrics"]
    assert isinstance(warmup, dict)
    assert warmup["time_to_first_token"]["avg"] == 9.0


def test_adjusted_percentiles_that_fail_are_left_out() -> None:
    said = exported(answered(100), answered(300), failed())
    assert said["adj_time_to_first_token"] == {
        "unit": "ms", "min": 100.0, "count": 3,
        **{f"p{p}": 100.0 for p in (1, 5, 10, 25)}, "p50": 300.0,
    }  # fmt: skip
    assert "adj_time_to_first_token" not in exported(answered(100))


def test_no_infinity_and_no_nan_in_the_json() -> None:
    for records in ((), (failed(),), (answered(1),)):
        run = a_run()
        text = export_summary_json(summarise_run(collect_columns(records), run), run).decode()
        assert "Infinity" not in text
        assert "NaN" not in text


def test_the_settings_as_aiperf_would_have_them() -> None:
    run = a_run(
        users=30, prefill_concurrency=3, prefill_concurrency_ramp_duration=30.0, run_time_s=60.0
    )
    config = exported(answered(1), run=run)["input_config"]
    assert isinstance(config, dict)
    assert config["models"] == {"items": [{"name": "m"}]}
    assert config["phases"] == [
        {"name": "profiling", "type": "concurrency", "concurrency": 30, "prefill_concurrency": 3,
         "prefill_ramp": {"duration": 30.0}, "duration": 60.0}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "phase"),
    [
        ({"request_rate": 10.0}, {"type": "poisson", "rate": 10.0}),
        ({"request_rate": 10.0, "request_rate_ramp_duration": 5.0, "users": None,
            "prefill_concurrency": 9},
         {"type": "poisson", "rate": 10.0, "rate_ramp": {"duration": 5.0}, "concurrency": None,
             "prefill_concurrency": 9}),
        ({"request_rate": 1.0, "arrival_pattern": "gamma", "arrival_smoothness": 2.0},
         {"type": "gamma", "rate": 1.0, "smoothness": 2.0}),
        ({"user_centric_rate": 4.0}, {"type": "user_centric", "rate": 4.0, "users": 2}),
        ({"user_centric_rate": 4.0, "users": 6},
            {"type": "constant", "rate": 4.0, "concurrency": 6}),
        ({"fixed_schedule": True, "fixed_schedule_start_offset": 500.0},
         {"type": "fixed_schedule", "auto_offset": False, "start_offset": 500}),
        ({"num_sessions": 7, "request_count": None},
            {"type": "concurrency", "sessions": 7, "requests": None}),
        ({"request_cancellation_rate": 10.0, "request_cancellation_delay": 0.5},
         {"type": "concurrency", "cancellation": {"rate": 10.0, "delay": 0.5}}),
        # AIPerf's default is 1
        ({"users": None, "prefill_concurrency": 9}, {"type": "concurrency", "concurrency": None}),
    ],
)  # fmt: skip
def test_the_load_as_a_phase_of_aiperf(
    settings: dict[str, object], phase: dict[str, object]
) -> None:
    config = exported(answered(1), run=a_run(**({"request_count": 5} | settings)))["input_config"]
    assert isinstance(config, dict)
    expected = {"name": "profiling", "concurrency": 2, "requests": 5} | phase
    assert config["phases"] == [
        {key: value for key, value in expected.items() if value is not None}
    ]


def test_ours_beside_aiperfs() -> None:
    run = replace(
        a_run(request_rate=1.0),
        offer=OpenLoopSchedule(due=4, never_started=1, duration_s=10.0, most_users=2),
    )
    said = exported(
        answered(1, input_tokens=5), answered(2, input_tokens=6), failed("cancelled"), run=run
    )["locust_llm"]
    assert isinstance(said, dict)
    assert said["delivery"]["share"] == 0.75
    assert [group["label"] for group in said["breakdowns"][0]["groups"]] == ["5", "6"]
    assert said["cancelled"][0]["count"] == 0


def test_the_summary_as_csv() -> None:
    summary = summarise_run(
        collect_columns([answered(100, 300), answered(300, 500), failed()]), a_run()
    )
    text = export_summary_csv(summary)
    first, second = text.split("\r\n\r\n")
    rows = list(csv.reader(io.StringIO(first)))
    assert rows[0] == ["Metric", *STATS]
    assert "avg,min,max,sum,p1,p5,p10,p25,p50,p75,p90,p95,p99,std" in first
    assert ["Time to First Token (ms)", "200.00", "100.00", "300.00", "400.00", "102.00"] in [
        row[:6] for row in rows
    ]
    assert {len(row) for row in rows} == {15}
    singles = dict(csv.reader(io.StringIO(second)))
    assert singles["Request Throughput (requests/sec)"] == "2.00"
    assert singles["Request Count"] == "2"


def test_the_csv_rounds_what_the_console_rounds() -> None:
    """Once: of 0.0049999996 the JSON's six digits are 0.005, and two of these would be 0.01."""
    row = Row(
        label="a",
        tag="a",
        unit="ms",
        count=1,
        avg=0.0049999996,
        percentiles={99.0: 1234.5650000001},
    )
    summary = replace(
        summarise_run(collect_columns([answered(1)]), a_run()), rows=(row,), adjusted=()
    )
    cells = next(csv.reader(io.StringIO(export_summary_csv(summary).split("\r\n")[1])))
    assert [cells[1 + STATS.index(stat)] for stat in ("avg", "p99")] == [
        format_number(0.0049999996),
        format_number(1234.5650000001),
    ]
    assert cells[1] == "0.00"


def test_tokens_a_second_of_each_gpu_where_their_number_is_known() -> None:
    """Four tokens in half a second on two GPUs."""
    records = (answered(100, 300), answered(300, 500))
    said = exported(*records, run=a_run(gpus=2))
    assert said["output_token_throughput_per_gpu"] == {"unit": "tokens/sec/gpu", "avg": 4.0}
    assert "output_token_throughput_per_gpu" not in exported(*records)


def test_goodput_by_its_tags() -> None:
    """Of two requests in half a second (200 and 400 ms to the first token) and one failure, one is
    good."""
    records = (answered(200, 300), answered(400, 500), failed(closed_at=10.25))
    said = exported(*records, run=a_run(goodput="time_to_first_token:300"))
    assert said["goodput"] == {"unit": "requests/sec", "avg": 2.0}
    assert said["good_request_count"] == {"unit": "requests", "avg": 1.0}
    assert said["good_request_fraction"] == {"unit": "ratio", "avg": 0.333333}
    assert "goodput" not in exported(*records)


def test_no_text_of_a_table_is_a_formula_and_numbers_stay_numbers() -> None:
    out = io.StringIO()
    texts = ["=1+1", "+cmd", "-x", "@sum", "\ta", "\ra", "-", "+inf", "-nan"]
    make_csv_writer(out)([*texts, "-1.5", "+2", -3, 4.5, None, "a=b", ""])
    (row,) = csv.reader(io.StringIO(out.getvalue(), newline=""))
    assert row == [*(f"'{text}" for text in texts), "-1.5", "+2", "-3", "4.5", "", "a=b", ""]
