"""Benchmark Report of llm-d, 0.2.1, as JSON, which is YAML too: its schema forbids any field that
it does not know."""

import hashlib
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import numpy as np

from locust_llm.lab.interop.tool_format import ToolFormat
from locust_llm.report.percentiles import SEVERAL

from .measured import Floats, MeasuredRun, NotExported, export_as_json

VERSION: Final = "0.2.1"
POINTS: Final = {
    "p0p1": 0.1, "p1": 1, "p5": 5, "p10": 10, "p25": 25, "p50": 50, "p75": 75, "p90": 90, "p95": 95,
    "p99": 99,
    "p99p9": 99.9,
}  # fmt: skip


def build_benchmark_report(found: MeasuredRun) -> dict[str, Any]:
    """Percentiles are linear between ranks, standard deviations of a sample. Raises NotExported."""
    run = found.run
    try:
        began = datetime.fromtimestamp(found.began_s, UTC).isoformat()
        ended = datetime.fromtimestamp(found.ended_s, UTC).isoformat()
    except (ValueError, OverflowError) as error:
        raise NotExported(f"its dates cannot be written: {error}") from None
    return {
        "version": VERSION,
        "run": {
            "uid": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{run.name} {run.started_at}")),
            "time": {"start": began, "end": ended, "duration": f"PT{found.duration_s:.6f}S"},
        },
        **({} if (load := _load(found)) is None else {"scenario": {"load": load}}),
        "results": {
            "request_performance": {
                "aggregate": {
                    "requests": {
                        "total": len(found.ok) + len(found.failed) + found.cut,
                        "failures": len(found.failed),
                        "incomplete": found.cut,
                        **_lengths(found),
                    },
                    "latency": dict(_latencies(found)),
                    "throughput": dict(_throughputs(found)),
                }
            }
        },
    }


def _load(found: MeasuredRun) -> dict[str, Any] | None:
    """None where input lengths are unknown, which it must have."""
    run = found.run
    s = run.settings
    if found.tokens is None:
        return None
    input_tokens, output_tokens = found.tokens
    read = np.array(input_tokens, np.float64)
    written = np.array(output_tokens, np.float64)
    ours = {"locust-llm": run.versions.get("locust-llm", "unknown")}
    versions = (run.versions or {run.imported: "unknown"}) if run.imported else ours
    tool, version = next(iter(versions.items()))
    config = msgspec.to_builtins(
        {"settings": {**msgspec.structs.asdict(s), "host": "", "hosts": ()}}
    )
    wanted: dict[str, Any] = {
        "tool": tool,
        "tool_version": version,
        "source": "unknown" if run.imported else "sampled",
        "input_seq_len": _sequence(read),
    }
    if any(one.asked_output_tokens is not None for one in found.ok):
        wanted["output_seq_len"] = _sequence(written)
    if s.open_loop and (rate := s.request_rate or s.user_centric_rate):
        wanted["rate_qps"] = rate
    elif not s.open_loop and s.users:
        wanted["concurrency"] = s.users
    identity = hashlib.sha256(msgspec.json.encode(config, order="deterministic")).hexdigest()
    return {"metadata": {"cfg_id": identity}, "standardized": wanted, "native": {}}


def _sequence(lengths: Floats) -> dict[str, Any]:
    """As delivered."""
    fixed = bool(lengths.min() == lengths.max())
    ends = {"min": int(lengths.min()), "max": max(1, int(lengths.max()))}
    return {"distribution": "fixed" if fixed else "other", "value": float(lengths.mean()), **ends}


def _lengths(found: MeasuredRun) -> dict[str, Any]:
    if found.tokens is None:
        return {}
    input_tokens, output_tokens = found.tokens
    read = np.array(input_tokens, np.float64)
    written = np.array(output_tokens, np.float64)
    return {
        "input_length": _statistics(read, "count"),
        "output_length": _statistics(written, "count"),
    }


def _latencies(found: MeasuredRun) -> Iterator[tuple[str, Any]]:
    """ITL is a time between tokens there: it is left out where chunks hold several."""
    single = all((one.tokens_per_chunk or 1.0) <= SEVERAL for one in found.ok)
    per_token = [
        one.latency_s / one.output_tokens
        for one in found.ok
        if one.latency_s is not None and one.output_tokens
    ]
    for name, values, unit in (
        ("time_to_first_token", found.ttft_s, "s"),
        ("normalized_time_per_output_token", np.array(per_token), "s/token"),
        ("time_per_output_token", found.tpot_s, "s/token"),
        (
            "inter_token_latency",
            found.gaps_s if found.gaps_known and single else np.empty(0),
            "s/token",
        ),
        ("request_latency", found.latency_s, "s"),
    ):
        if len(values):
            yield name, _statistics(values, unit)


def _throughputs(found: MeasuredRun) -> Iterator[tuple[str, Any]]:
    """Of the whole run, so there is a mean and nothing else."""
    lasted_s = found.duration_s
    if lasted_s <= 0:
        return
    if found.tokens is not None:
        read, written = map(sum, found.tokens)
        yield "input_token_rate", {"units": "tokens/s", "mean": read / lasted_s}
        yield "output_token_rate", {"units": "tokens/s", "mean": written / lasted_s}
        yield "total_token_rate", {"units": "tokens/s", "mean": (read + written) / lasted_s}
    yield "request_rate", {"units": "queries/s", "mean": len(found.ok) / lasted_s}


def _statistics(values: Floats, units: str) -> dict[str, Any]:
    found: dict[str, Any] = {"units": units, "mean": float(values.mean())}
    if len(values) > 1:
        found["stddev"] = float(values.std(ddof=1))
    found |= {"min": float(values.min())}
    found |= {name: float(np.percentile(values, p)) for name, p in POINTS.items()}
    return found | {"max": float(values.max())}


FORMAT: Final = ToolFormat(
    "Benchmark Report",
    exports={
        "benchmark-report": export_as_json(
            "benchmark_report.json", lambda run, options: build_benchmark_report(run)
        )
    },
)
