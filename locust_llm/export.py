"""Export: records and summaries in AIPerf's file formats (0.13, schema 1.4), so that its readers take ours."""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final

import msgspec

from .metrics import EXPORTED
from .record import CANCELLED, CUT, FAILURES, OK, Record
from .run import Run
from .settings import Settings
from .summary import Row, Summary

SCHEMA: Final = "1.4"
UNITS: Final = {"requests/s": "requests/sec", "tokens/s": "tokens/sec"}
STATS: Final = ("avg", "min", "max", "sum", *(f"p{p:g}" for p in EXPORTED), "std")
"""AIPerf's columns of the CSV, in its order."""

Block = dict[str, float | int | str]


class _Metadata(msgspec.Struct, omit_defaults=True):
    """The fields of aiperf.common.models.MetricRecordMetadata that we know. Times are Unix nanoseconds."""

    session_num: int
    x_request_id: str
    request_start_ns: int
    request_end_ns: int
    worker_id: str
    record_processor_id: str
    benchmark_phase: str
    conversation_id: str = ""
    turn_index: int = 0
    credit_issued_ns: int | None = None
    request_ack_ns: int | None = None
    was_cancelled: bool = False
    cancellation_time_ns: int | None = None


class _Error(msgspec.Struct):
    code: int | None
    type: str
    message: str


class _Value(msgspec.Struct):
    value: float | int | list[float]
    unit: str


class _Line(msgspec.Struct):
    metadata: _Metadata
    metrics: dict[str, _Value]
    error: _Error | None
    record: Record


class _RecordOfLine(msgspec.Struct):
    record: Record


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_RecordOfLine).decode


def line(record: Record) -> bytes:
    """One line of profile_export.jsonl, without its newline: AIPerf's ``metadata``, ``metrics``, ``error`` (its model
    is MetricRecordInfo) and, as ``record``, the whole of ours. It runs on the load generator's loop: 10 µs a request
    and 0.15 µs a chunk."""
    whole = _Line(_metadata(record), metrics(record), _error(record), record)
    try:
        return _encode(whole)
    except UnicodeEncodeError:  # a lone surrogate, say from a file name in an OSError: no reason to lose the record
        return line(_encodable(record))


def parse_line(data: bytes) -> Record:
    """The record of a line, exactly as it was; raises msgspec.DecodeError (a ValueError) if there is none."""
    return _decode(data).record


def metrics(record: Record) -> dict[str, _Value]:
    """AIPerf's metrics of one request, and ours: whatever is known of it, in ms and tokens, failed or not."""
    us = record.chunk_us
    itl_s = record.itl_s
    values: tuple[tuple[str, float | None, str], ...] = (
        ("request_latency", _ms(record.latency_s), "ms"),
        ("time_to_first_token", _ms(record.ttft_s), "ms"),
        ("time_to_first_output_token", _ms(record.ttfo_s), "ms"),
        ("inter_token_latency", _ms(itl_s), "ms"),
        ("output_token_throughput_per_user", 1 / itl_s if itl_s else None, "tokens/sec/user"),
        ("input_sequence_length", record.input_tokens, "tokens"),
        ("output_sequence_length", record.output_tokens, "tokens"),
        ("reasoning_token_count", record.reasoning_tokens, "tokens"),
        ("usage_prompt_cache_read_tokens", record.cached_tokens, "tokens"),
        ("http_req_connecting", _ms(record.connect_s), "ms"),
        ("prefill_gate_wait", _ms(record.gate_wait_s), "ms"),
        ("schedule_delay", _ms(record.late_s), "ms"),
        ("time_to_first_token_from_due", _ms(record.ttft_from_due_s), "ms"),
        ("read_lag", record.read_lag_us / 1e3, "ms"),
    )
    known = {tag: _Value(value, unit) for tag, value, unit in values if value is not None}
    if len(us) > 1:
        gaps = [(b - a) / 1e3 for a, b in pairwise(us)]
        known["inter_chunk_latency"] = _Value(gaps, "ms")
        known["longest_stall"] = _Value(max(gaps), "ms")
    return known


def summary_json(summary: Summary, run: Run) -> bytes:
    """profile_export_aiperf.json; AIPerf's model of it is JsonExportData. What is not finite is left out, as AIPerf
    does: an ``adj_`` percentile that is missing landed on a failure."""
    blocks = {row.tag: _block(row) for row in (*summary.rows, *_totals(summary), *summary.adjusted)}
    whole: dict[str, Any] = {
        "schema_version": SCHEMA,
        "benchmark_id": run.name,
        **blocks,
        "input_config": _input_config(run.settings, summary),
        "was_cancelled": run.stopping_at is None,
        "is_complete": run.stopping_at is not None and not run.records_lost,
        "error_summary": [
            {"error_details": {"code": f.status, "type": f.outcome, "message": f.message}, "count": f.count}
            for f in summary.failures
        ],
        "start_time": _iso(run.started_at),
        "end_time": _iso(run.ended_at),
        "warmup_metrics": {row.tag: _block(row) for row in summary.warmup} or None,
        "locust_llm": {"conditions": summary.conditions, "counts": summary.counts, "gate": summary.gate},
    }
    return msgspec.json.format(_encode({key: value for key, value in whole.items() if value is not None}), indent=2)


def summary_csv(summary: Summary) -> str:
    """profile_export_aiperf.csv: a block of distributions, an empty line, a block of single numbers."""
    out = io.StringIO()
    write = csv.writer(out).writerow
    write(["Metric", *STATS])
    for row in (*summary.rows, *summary.adjusted):
        if row.count is not None:
            block = _block(row)
            write([_name(row), *(_cell(block.get(stat)) for stat in STATS)])
    write([])
    write(["Metric", "Value"])
    for row in (*summary.rows, *_totals(summary)):
        if row.count is None:
            write([_name(row), _cell(_block(row).get("avg"))])
    return out.getvalue()


def _metadata(record: Record) -> _Metadata:
    offset = record.clock_offset_s
    began = record.asked_at if record.sent_at is None else record.sent_at
    given_up = record.outcome in (CUT, CANCELLED)
    end_ns = _ns(record.closed_at + offset)
    return _Metadata(
        session_num=record.user,
        x_request_id=record.id,
        request_start_ns=_ns(began + offset),
        request_end_ns=end_ns,
        worker_id=record.worker,
        record_processor_id=record.worker,
        benchmark_phase=record.phase,
        conversation_id=record.session,
        turn_index=record.turn,
        credit_issued_ns=None if record.admitted_at is None else _ns(record.admitted_at + offset),
        request_ack_ns=None if record.headers_at is None else _ns(record.headers_at + offset),
        was_cancelled=given_up,
        cancellation_time_ns=end_ns if given_up else None,
    )


def _error(record: Record) -> _Error | None:
    """Not only for failures: a reader that ignores ``was_cancelled`` must not take a cut request for a success."""
    if record.outcome == OK:
        return None
    said = record.message or FAILURES.get(record.outcome, record.outcome)
    return _Error(record.status if record.failed else 499, record.outcome, said)


def _encodable(record: Record) -> Record:
    texts = {
        name: value.encode("utf-8", "replace").decode()
        for name, value in msgspec.structs.asdict(record).items()
        if isinstance(value, str)
    }
    return msgspec.structs.replace(record, **texts)


def _totals(summary: Summary) -> Sequence[Row]:
    """AIPerf's counters and sums; single numbers."""
    c = summary.conditions
    sums = {row.tag: row.sum for row in summary.rows}
    totals: Iterable[tuple[str, str, str, float | None]] = (
        ("Request Count", "request_count", "requests", c.succeeded),
        ("Error Request Count", "error_request_count", "requests", c.failed or None),
        ("Completed Requests (Success + Error)", "completed_request_count", "requests", c.succeeded + c.failed),
        ("Request Error Rate", "request_error_rate", "%", None if c.failure_rate is None else 100 * c.failure_rate),
        ("Benchmark Duration", "benchmark_duration", "sec", c.duration_s),
        ("Total Input Sequence Length", "total_isl", "tokens", sums.get("input_sequence_length")),
        ("Total Output Sequence Length", "total_osl", "tokens", sums.get("output_sequence_length")),
    )
    return [Row(label=label, tag=tag, unit=unit, avg=value) for label, tag, unit, value in totals if value is not None]


def _block(row: Row) -> Block:
    """AIPerf's JsonMetricResult: a unit and those stats that are finite numbers."""
    unit = UNITS.get(row.unit, row.unit) + ("/user" if row.tag.endswith("_per_user") else "")
    stats = {"avg": row.avg, "min": row.min, "max": row.max, "std": row.std, "count": row.count, "sum": row.sum}
    stats |= {f"p{p:g}": value for p, value in row.percentiles.items()}
    finite = {name: round(value, 6) for name, value in stats.items() if value is not None and math.isfinite(value)}
    return {"unit": unit, **finite}


def _input_config(s: Settings, summary: Summary) -> dict[str, Any]:
    """The settings as AIPerf's BenchmarkConfig, which takes no field that it does not know."""
    limit = s.prefill_concurrency if s.users is None or (s.prefill_concurrency or 0) <= s.users else None
    ramp_s = s.prefill_concurrency_ramp_duration
    phase: dict[str, Any] = {
        "name": "profiling",
        "type": "concurrency",
        "concurrency": s.users,
        "prefill_concurrency": limit,
        "prefill_ramp": {"duration": ramp_s} if ramp_s else None,
        "requests": s.request_count,
        "duration": s.run_time_s,
    }
    if not s.request_count and not s.run_time_s:  # AIPerf demands an end; ours can be the person at the web page
        phase["requests"] = max(1, summary.conditions.requests)
    lengths = {
        "isl": {"mean": s.synthetic_input_tokens_mean, "stddev": s.synthetic_input_tokens_stddev},
        "osl": {"mean": s.output_tokens_mean, "stddev": s.output_tokens_stddev},
    }
    return {
        "models": {"items": [{"name": summary.conditions.model or "unknown"}]},
        "endpoint": {"urls": [s.host or "http://localhost"], "type": "chat", "streaming": s.streaming},
        "datasets": [{"name": "main", "type": "synthetic", "prompts": lengths}],
        "phases": [{key: value for key, value in phase.items() if value is not None}],
    }


def _name(row: Row) -> str:
    unit = str(_block(row)["unit"])
    label = row.label + " (error-adjusted)" * row.tag.startswith("adj_")
    return label if unit == "requests" else f"{label} ({unit})"


def _cell(value: float | int | str | None) -> str:
    return "" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 6)  # the rest is noise of doubles


def _ns(unix_s: float) -> int:
    """Whole microseconds, as a double holds no more of Unix time."""
    return int(unix_s * 1e6) * 1000


def _iso(unix_s: float | None) -> str | None:
    return None if unix_s is None else datetime.fromtimestamp(unix_s, UTC).isoformat()
