"""AIPerf export: a summary in AIPerf's JSON and CSV (0.13, schema 1.4), so that its readers accept
ours."""

import io
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from locust_llm.records.run_facts import Run
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.spreadsheet_safe_csv import make_csv_writer
from locust_llm.report.summary_rows import Row
from locust_llm.settings.run_options import Settings
from locust_llm.slo.metric_definitions import EXPORTED

SCHEMA: Final = "1.4"
UNITS: Final = {
    "requests/s": "requests/sec",
    "tokens/s": "tokens/sec",
    "tokens/s/gpu": "tokens/sec/gpu",
}
AIPERF_ENDPOINT_TYPES: Final = (
    "chat",
    "completions",
    "responses",
    "messages",
    "embeddings",
    "cohere_rankings",
)
"""AIPerf's names of the protocols."""
STATS: Final = ("avg", "min", "max", "sum", *(f"p{p:g}" for p in EXPORTED), "std")
"""The columns of AIPerf's CSV, in its order."""
Block = dict[str, float | int | str]


def export_summary_json(summary: Summary, run: Run) -> bytes:
    """profile_export_aiperf.json, which AIPerf models as JsonExportData. Values that are not finite
    are left out, as in AIPerf: a missing ``adj_`` percentile is a failure."""
    blocks = {
        row.tag: _block(row)
        for row in (
            *summary.rows,
            *summary.reading,
            *_totals(summary),
            *_per_gpu(summary, run),
            *summary.adjusted,
        )
    }
    whole: dict[str, Any] = {
        "schema_version": SCHEMA,
        "benchmark_id": run.name,
        **blocks,
        "input_config": _input_config(run.settings, summary),
        "was_cancelled": run.stopping_at is None,
        "is_complete": run.stopping_at is not None and not run.records_lost,
        "error_summary": [
            {
                "error_details": {"code": f.status, "type": f.outcome, "message": f.message},
                "count": f.count,
            }
            for f in summary.failures
        ],
        "start_time": _iso(run.started_at),
        "end_time": _iso(run.ended_at),
        "warmup_metrics": {row.tag: _block(row) for row in summary.warmup} or None,
        "locust_llm": {
            **({"imported": run.imported} if run.imported else {}),
            **({"in_blocks": True} if run.settings.compares else {}),
            **({"goes_on_from_warmup": True} if run.settings.warmup_goes_on else {}),
            "conditions": summary.conditions,
            "counts": summary.counts,
            "speculation": summary.speculation or None,
            "sessions": summary.sections.get("sessions"),
            "prefix_cache": summary.prefix_cache,
            "gate": summary.gate,
            "delivery": summary.delivery,
            "breakdowns": summary.breakdowns,
            "cancelled": summary.cancelled,
            "slos": summary.slos,
            "slo_status": summary.slo_status,
            "sweep": summary.sweep,
            "plus_minus": {row.tag: row.plus_minus for row in summary.rows if row.plus_minus},
        },
    }
    return msgspec.json.format(
        msgspec.json.encode({key: value for key, value in whole.items() if value is not None}),
        indent=2,
    )


def export_summary_csv(summary: Summary) -> str:
    """profile_export_aiperf.csv: a block of distributions, an empty line, a block of single
    numbers."""
    out = io.StringIO()
    write = make_csv_writer(out)
    write(["Metric", *STATS])
    for row in (*summary.rows, *summary.reading, *summary.adjusted):
        if row.count is not None:
            stats = _stats(row)
            write([_name(row), *(_cell(stats.get(stat)) for stat in STATS)])
    write([])
    write(["Metric", "Value"])
    for row in (*summary.rows, *_totals(summary)):
        if row.count is None:
            write([_name(row), _cell(_stats(row).get("avg"))])
    return out.getvalue()


def _totals(summary: Summary) -> Sequence[Row]:
    """AIPerf's counters and sums, as single numbers."""
    conditions = summary.conditions
    sums = {row.tag: row.sum for row in summary.rows}
    drafts = [engine for engine in summary.speculation if engine.drafted]
    drafted = sum(engine.drafted or 0 for engine in drafts)
    accepted = sum(engine.accepted or 0 for engine in drafts)
    totals: Iterable[tuple[str, str, str, float | None]] = (
        ("Request Count", "request_count", "requests", conditions.succeeded),
        ("Error Request Count", "error_request_count", "requests", conditions.failed or None),
        (
            "Completed Requests (Success + Error)",
            "completed_request_count",
            "requests",
            conditions.succeeded + conditions.failed,
        ),
        (
            "Request Error Rate",
            "request_error_rate",
            "%",
            None if conditions.failure_rate is None else 100 * conditions.failure_rate,
        ),
        ("Benchmark Duration", "benchmark_duration", "sec", conditions.duration_s),
        ("Total Input Sequence Length", "total_isl", "tokens", sums.get("input_sequence_length")),
        ("Total Output Sequence Length", "total_osl", "tokens", sums.get("output_sequence_length")),
        ("Total Draft Tokens", "total_draft_tokens", "tokens", drafted or None),
        (
            "Total Accepted Draft Tokens",
            "total_accepted_draft_tokens",
            "tokens",
            accepted if drafted else None,
        ),
        (
            "Overall Draft Acceptance Rate",
            "spec_decode_overall_draft_acceptance_rate",
            "%",
            100 * accepted / drafted if drafted else None,
        ),
    )
    return [
        Row(label=label, tag=tag, unit=unit, avg=value)
        for label, tag, unit, value in totals
        if value is not None
    ]


def _per_gpu(summary: Summary, run: Run) -> Sequence[Row]:
    """The values that `aiperf plot` sets latencies against. AIPerf counts the GPUs in its
    telemetry."""
    per_s = next((row.avg for row in summary.rows if row.tag == "output_token_throughput"), None)
    if per_s is None or not run.settings.gpus:
        return ()
    label, tag = "Output Token Throughput per GPU", "output_token_throughput_per_gpu"
    return (Row(label=label, tag=tag, unit="tokens/s/gpu", avg=per_s / run.settings.gpus),)


def _block(row: Row) -> Block:
    """AIPerf's JsonMetricResult: a unit and the finite statistics."""
    return {"unit": _unit(row), **{name: round(value, 6) for name, value in _stats(row).items()}}


def _unit(row: Row) -> str:
    return UNITS.get(row.unit, row.unit) + ("/user" if row.tag.endswith("_per_user") else "")


def _stats(row: Row) -> dict[str, float]:
    stats = {
        "avg": row.avg,
        "min": row.min,
        "max": row.max,
        "std": row.std,
        "count": row.count,
        "sum": row.sum,
    }
    stats |= {f"p{p:g}": value for p, value in row.percentiles.items()}
    return {
        name: value for name, value in stats.items() if value is not None and math.isfinite(value)
    }


def _input_config(settings: Settings, summary: Summary) -> dict[str, Any]:
    """The settings as AIPerf's BenchmarkConfig, which accepts no unknown field."""
    # AIPerf refuses a limit above the users
    room = settings.users or (settings.prefill_concurrency if settings.open_loop else None)
    fits = (
        room is not None
        and settings.prefill_concurrency is not None
        and settings.prefill_concurrency <= room
    )
    ramp_s = settings.prefill_concurrency_ramp_duration
    phase: dict[str, Any] = {
        "name": "profiling",
        **_arrivals(settings, summary),
        "concurrency": settings.users,
        "prefill_concurrency": settings.prefill_concurrency if fits else None,
        "prefill_ramp": {"duration": ramp_s} if ramp_s else None,
        "requests": settings.request_count,
        "sessions": settings.num_sessions,
        "duration": settings.run_time_s,
    }
    if settings.request_cancellation_rate:
        phase["cancellation"] = {
            "rate": settings.request_cancellation_rate,
            "delay": settings.request_cancellation_delay,
        }
    if not (
        settings.request_count or settings.num_sessions or settings.run_time_s
    ):  # AIPerf demands an end; ours can be the person at the web page
        phase["requests"] = max(1, summary.conditions.requests)
    lengths = {
        "isl": {
            "mean": settings.synthetic_input_tokens_mean,
            "stddev": settings.synthetic_input_tokens_stddev,
        },
        "osl": {"mean": settings.output_tokens_mean, "stddev": settings.output_tokens_stddev},
    }
    return {
        "models": _models(summary),
        "endpoint": {
            "urls": [*filter(None, settings.addresses)] or ["http://localhost"],
            **_endpoint(settings),
        },
        "datasets": [{"name": "main", "type": "synthetic", "prompts": lengths}],
        "phases": [{key: value for key, value in phase.items() if value is not None}],
    }


def _models(summary: Summary) -> dict[str, Any]:
    mix = summary.conditions.model_mix
    if mix:
        return {
            "strategy": "weighted",
            "items": [{"name": model.model, "weight": model.asked} for model in mix],
        }
    return {"items": [{"name": summary.conditions.model or "unknown"}]}


def _endpoint(settings: Settings) -> dict[str, Any]:
    """AIPerf names rerank by the API of its body, and has no other protocols."""
    kind = {"rerank": "cohere_rankings"}.get(settings.endpoint_type, settings.endpoint_type)
    endpoint = {
        "type": kind if kind in AIPERF_ENDPOINT_TYPES else "chat",
        "path": settings.endpoint,
        "streaming": settings.streaming,
    }
    return endpoint | (
        {"per_chunk_usage": True, "use_server_token_count": True}
        if settings.per_chunk_usage and kind == "chat"
        else {}
    )


def _arrivals(settings: Settings, summary: Summary) -> dict[str, Any]:
    """The type of AIPerf's phase and its fields.

    AIPerf would open the file of a rate series. It accepts a user-centric phase only if each user
    has a request and a session. In these cases the phase has the mean rate.
    """
    rate = summary.conditions.rate_per_s
    if settings.fixed_schedule:
        start, end = settings.fixed_schedule_start_offset, settings.fixed_schedule_end_offset
        offsets = {
            "start_offset": None if start is None else round(start),
            "end_offset": None if end is None else round(end),
        }
        return {
            "type": "fixed_schedule",
            "auto_offset": settings.fixed_schedule_auto_offset and start is None,
            **offsets,
        }
    if not rate:
        return {"type": "concurrency"}
    if settings.user_centric_rate:
        enough = settings.users is not None and all(
            n is None or n >= settings.users
            for n in (settings.request_count, settings.num_sessions)
        )
        return (
            {"type": "user_centric", "users": settings.users, "rate": rate}
            if enough
            else {"type": "constant", "rate": rate}
        )
    ramp_s = settings.request_rate_ramp_duration
    return {
        "type": settings.arrival_pattern,
        "rate": rate,
        "rate_ramp": {"duration": ramp_s} if ramp_s else None,
        "smoothness": settings.arrival_smoothness if settings.arrival_pattern == "gamma" else None,
    }


def _name(row: Row) -> str:
    unit = _unit(row)
    label = row.label + " (error-adjusted)" * row.tag.startswith("adj_")
    return label if unit == "requests" else f"{label} ({unit})"


def _cell(value: float | None) -> str:
    """A cell, rounded once as on the console."""
    if value is None:
        return ""
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _iso(unix_s: float | None) -> str | None:
    return None if unix_s is None else datetime.fromtimestamp(unix_s, UTC).isoformat()
