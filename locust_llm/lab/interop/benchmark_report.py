"""Benchmark Report of llm-d, 0.2.1: writes it as JSON, which is YAML too. Its schema forbids
unknown fields."""

import hashlib
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import numpy as np

from locust_llm.lab.interop.tool_format import ToolFormat
from locust_llm.report.array_types import Floats
from locust_llm.report.summary_rows import MIN_TOKENS_PER_MERGED_CHUNK

from .measured_requests import MeasuredRun, NotExported, export_as_json

VERSION: Final = "0.2.1"
POINTS: Final = {
    "p0p1": 0.1, "p1": 1, "p5": 5, "p10": 10, "p25": 25, "p50": 50, "p75": 75, "p90": 90, "p95": 95,
    "p99": 99,
    "p99p9": 99.9,
}  # fmt: skip


def build_benchmark_report(measured_run: MeasuredRun) -> dict[str, Any]:
    """Builds the document. Percentiles are linear between ranks, standard deviations are of a
    sample. Raises NotExported."""
    run = measured_run.run
    try:
        began = datetime.fromtimestamp(measured_run.began_s, UTC).isoformat()
        ended = datetime.fromtimestamp(measured_run.ended_s, UTC).isoformat()
    except (ValueError, OverflowError) as error:
        raise NotExported(f"its dates cannot be written: {error}") from None
    return {
        "version": VERSION,
        "run": {
            "uid": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{run.name} {run.started_at}")),
            "time": {"start": began, "end": ended, "duration": f"PT{measured_run.duration_s:.6f}S"},
        },
        **({} if (load := _describe_load(measured_run)) is None else {"scenario": {"load": load}}),
        "results": {
            "request_performance": {
                "aggregate": {
                    "requests": {
                        "total": len(measured_run.ok) + len(measured_run.failed) + measured_run.cut,
                        "failures": len(measured_run.failed),
                        "incomplete": measured_run.cut,
                        **_length_statistics(measured_run),
                    },
                    "latency": dict(_latencies(measured_run)),
                    "throughput": dict(_throughputs(measured_run)),
                }
            }
        },
    }


def _describe_load(measured_run: MeasuredRun) -> dict[str, Any] | None:
    """Describes the load. Returns None if input lengths are unknown, which the schema requires."""
    run = measured_run.run
    settings = run.settings
    if measured_run.tokens is None:
        return None
    input_tokens, output_tokens = measured_run.tokens
    read = np.array(input_tokens, np.float64)
    written = np.array(output_tokens, np.float64)
    ours = {"locust-llm": run.versions.get("locust-llm", "unknown")}
    versions = (run.versions or {run.imported: "unknown"}) if run.imported else ours
    tool, version = next(iter(versions.items()))
    config = msgspec.to_builtins(
        {"settings": {**msgspec.structs.asdict(settings), "host": "", "hosts": ()}}
    )
    wanted: dict[str, Any] = {
        "tool": tool,
        "tool_version": version,
        "source": "unknown" if run.imported else "sampled",
        "input_seq_len": _describe_lengths(read),
    }
    if any(record.asked_output_tokens is not None for record in measured_run.ok):
        wanted["output_seq_len"] = _describe_lengths(written)
    if settings.open_loop and (rate := settings.request_rate or settings.user_centric_rate):
        wanted["rate_qps"] = rate
    elif not settings.open_loop and settings.users:
        wanted["concurrency"] = settings.users
    identity = hashlib.sha256(msgspec.json.encode(config, order="deterministic")).hexdigest()
    return {"metadata": {"cfg_id": identity}, "standardized": wanted, "native": {}}


def _describe_lengths(lengths: Floats) -> dict[str, Any]:
    """Describes the observed lengths."""
    fixed = bool(lengths.min() == lengths.max())
    ends = {"min": int(lengths.min()), "max": max(1, int(lengths.max()))}
    return {"distribution": "fixed" if fixed else "other", "value": float(lengths.mean()), **ends}


def _length_statistics(measured_run: MeasuredRun) -> dict[str, Any]:
    if measured_run.tokens is None:
        return {}
    input_tokens, output_tokens = measured_run.tokens
    read = np.array(input_tokens, np.float64)
    written = np.array(output_tokens, np.float64)
    return {
        "input_length": _statistics(read, "count"),
        "output_length": _statistics(written, "count"),
    }


def _latencies(measured_run: MeasuredRun) -> Iterator[tuple[str, Any]]:
    """Yields the latencies. ITL is a time between tokens there, so it is omitted if chunks hold
    several tokens."""
    single = all(
        (record.tokens_per_chunk or 1.0) <= MIN_TOKENS_PER_MERGED_CHUNK
        for record in measured_run.ok
    )
    per_token = [
        record.latency_s / record.output_tokens
        for record in measured_run.ok
        if record.latency_s is not None and record.output_tokens
    ]
    for name, values, unit in (
        ("time_to_first_token", measured_run.ttft_s, "s"),
        ("normalized_time_per_output_token", np.array(per_token), "s/token"),
        ("time_per_output_token", measured_run.tpot_s, "s/token"),
        (
            "inter_token_latency",
            measured_run.gaps_s if measured_run.gaps_known and single else np.empty(0),
            "s/token",
        ),
        ("request_latency", measured_run.latency_s, "s"),
    ):
        if len(values):
            yield name, _statistics(values, unit)


def _throughputs(measured_run: MeasuredRun) -> Iterator[tuple[str, Any]]:
    """Yields rates of the whole run, so each has a mean only."""
    lasted_s = measured_run.duration_s
    if lasted_s <= 0:
        return
    if measured_run.tokens is not None:
        read, written = map(sum, measured_run.tokens)
        yield "input_token_rate", {"units": "tokens/s", "mean": read / lasted_s}
        yield "output_token_rate", {"units": "tokens/s", "mean": written / lasted_s}
        yield "total_token_rate", {"units": "tokens/s", "mean": (read + written) / lasted_s}
    yield "request_rate", {"units": "queries/s", "mean": len(measured_run.ok) / lasted_s}


def _statistics(values: Floats, units: str) -> dict[str, Any]:
    statistics: dict[str, Any] = {"units": units, "mean": float(values.mean())}
    if len(values) > 1:
        statistics["stddev"] = float(values.std(ddof=1))
    statistics |= {"min": float(values.min())}
    statistics |= {name: float(np.percentile(values, p)) for name, p in POINTS.items()}
    return statistics | {"max": float(values.max())}


FORMAT: Final = ToolFormat(
    "Benchmark Report",
    exports={
        "benchmark-report": export_as_json(
            "benchmark_report.json", lambda run, options: build_benchmark_report(run)
        )._replace(marks_simulated=False)
    },
)
