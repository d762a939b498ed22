"""vLLM export: writes the JSON of ``vllm bench serve --save-result`` of 0.32, and its records for
PyTorch's benchmark database.

Its definitions: TPOT of a request is (latency - TTFT) / (tokens - 1), ITL is each gap between two
chunks. Percentiles are linear between ranks, and the standard deviation is of the population.
Retried, cut and cancelled requests are omitted. This file is separate from vllm_bench.py because it
needs numpy.
"""

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import product
from typing import Any, Final

import numpy as np

from locust_llm.lab.interop.imported_records import OWN_LABEL
from locust_llm.lab.interop.measured_requests import (
    MeasuredRun,
    NotExported,
    export_as_json,
    sent_s,
)
from locust_llm.lab.interop.tool_format import ToolFormat
from locust_llm.records.record import Record
from locust_llm.report.array_types import Floats

PERCENTILES: Final = (50, 90, 95, 99)
OF_PYTORCH: Final = tuple(
    f"{point}_{name}_ms"
    for name, point in product(("ttft", "tpot", "itl"), ("mean", "median", "std", "p99"))
)
"""vLLM itself writes these metrics to the database."""
BACKENDS: Final = {"chat": "openai-chat", "completions": "openai"}
PATTERNS: Final = {"poisson": 1.0}


def build_vllm_bench_result(
    measured_run: MeasuredRun, more: Mapping[str, object], *, detailed: bool = False
) -> dict[str, Any]:
    """Builds the document. ``more`` has the fields of ``--metadata``. ``detailed`` adds the lists
    of ``--save-detailed``, without the texts. Raises NotExported for an unsupported API."""
    run = measured_run.run
    settings = run.settings
    if settings.endpoint_type not in BACKENDS:
        raise NotExported(
            f"vllm bench has no metrics for the endpoint type {settings.endpoint_type}"
        )
    completed = len(measured_run.ok)
    backend = BACKENDS[settings.endpoint_type]
    rate = (settings.request_rate or settings.user_centric_rate) if settings.open_loop else None
    burstiness = (
        PATTERNS.get(settings.arrival_pattern, settings.arrival_smoothness)
        if settings.open_loop
        else None
    )
    try:
        date = datetime.fromtimestamp(run.ended_at or measured_run.ended_s, UTC).strftime(
            "%Y%m%d-%H%M%S"
        )
    except (ValueError, OverflowError) as error:
        raise NotExported(f"its date cannot be written: {error}") from None
    fields: dict[str, Any] = {
        "date": date,
        "endpoint_type": backend,
        "backend": backend,
        "label": OWN_LABEL if not run.imported or run.imported.startswith(OWN_LABEL) else None,
        "model_id": run.model or settings.model or None,
        "tokenizer_id": None,
        "num_prompts": completed + len(measured_run.failed),
        **more,
        **({"simulated": True} if run.simulated else {}),
        "request_rate": rate if settings.open_loop else "inf",
        "burstiness": burstiness,
        "max_concurrency": None if settings.open_loop else settings.users,
        "duration": measured_run.duration_s,
        "completed": completed,
        "failed": len(measured_run.failed),
        **_rates(measured_run),
        **(_list_values(measured_run) if detailed else {}),
        **dict(_latencies(measured_run)),
    }
    omitted = {"burstiness", "request_rate"} if settings.open_loop else {"burstiness"}
    return {
        name: value for name, value in fields.items() if value is not None or name not in omitted
    }


def _rates(measured_run: MeasuredRun) -> dict[str, float | None]:
    """Returns the rates, with token rates only if all requests have tokens. vLLM's goodput is None
    without a rule. Our rules may differ, so it is always None here."""
    requests = len(measured_run.ok)
    lasted_s = measured_run.duration_s
    if lasted_s <= 0:
        return {"request_goodput": None}
    rates: dict[str, float | None] = {
        "request_throughput": requests / lasted_s,
        "request_goodput": None,
    }
    if measured_run.tokens is not None:
        read, written = map(sum, measured_run.tokens)
        rates |= {
            "total_input_tokens": read,
            "total_output_tokens": written,
            "output_throughput": written / lasted_s,
            "total_token_throughput": (read + written) / lasted_s,
        }
    if measured_run.gaps_known:
        rates["max_output_tokens_per_s"] = fullest_second(measured_run)
    rates["max_concurrent_requests"] = most_at_once(measured_run)
    return rates | {"rtfx": sum(record.audio_s or 0.0 for record in measured_run.ok) / lasted_s}


def fullest_second(measured_run: MeasuredRun) -> float:
    """Returns the chunks of the fullest whole second after the first send."""
    first = sent_s(measured_run.ok[0])
    at = np.concatenate(
        [
            np.array(record.known_us, np.float64) / 1e6 + (sent_s(record) - first)
            for record in measured_run.ok
        ]
    )
    _, counts = np.unique(at.astype(np.int64), return_counts=True)
    return float(counts.max(initial=0))


def most_at_once(measured_run: MeasuredRun) -> int:
    """Returns the requests that touch the fullest whole second, which exceeds the requests in
    flight."""
    first = sent_s(measured_run.ok[0])
    began = np.array([sent_s(record) - first for record in measured_run.ok])
    ended = began + np.array([record.latency_s or 0.0 for record in measured_run.ok])
    seconds = np.concatenate([began.astype(np.int64), ended.astype(np.int64) + 1])
    changes = np.repeat([1, -1], len(measured_run.ok))
    # only those in which something changes: a run may have years
    second, at = np.unique(seconds, return_inverse=True)
    return int(np.cumsum(np.bincount(at, changes, len(second))).max())


def _list_values(measured_run: MeasuredRun) -> dict[str, list[Any]]:
    """Returns lists with a value per request. Texts are not kept."""
    records = sorted((*measured_run.ok, *measured_run.failed), key=sent_s)
    lists: dict[str, list[Any]] = {
        "ttfts": [record.ttft_s or 0.0 for record in records],
        "latencies": [record.latency_s or 0.0 for record in records],
        "start_times": [sent_s(record) for record in records],
        "errors": [
            "" if not record.failed else record.error or record.outcome for record in records
        ],
    }
    if measured_run.gaps_known:
        lists["itls"] = [_gaps_s(record) for record in records]
    if measured_run.tokens is not None:
        lists["input_lens"] = [record.input_tokens or 0 for record in records]
        lists["output_lens"] = [
            0 if record.failed else record.output_tokens or 0 for record in records
        ]
    return lists


def _gaps_s(record: Record) -> list[float]:
    return [gap_us / 1e6 for gap_us in record.gaps_us]


def _latencies(measured_run: MeasuredRun) -> Iterator[tuple[str, float]]:
    yield from _list_statistics("ttft", measured_run.ttft_s)
    if measured_run.tokens is not None:
        yield from _list_statistics("tpot", measured_run.tpot_s)
    if measured_run.gaps_known:
        yield from _list_statistics("itl", measured_run.gaps_s)
    yield from _list_statistics("e2el", measured_run.latency_s)


def _list_statistics(name: str, values_s: Floats) -> Iterator[tuple[str, float]]:
    if not len(values_s):
        return
    ms = values_s * 1e3
    points = {"mean": ms.mean(), "median": np.median(ms), "std": ms.std()}
    points |= {f"p{percent}": np.percentile(ms, percent) for percent in PERCENTILES}
    yield from (
        (f"{point}_{name}_ms", float(value))
        for point, value in points.items()
        if math.isfinite(value)
    )


def build_pytorch_records(
    measured_run: MeasuredRun, more: Mapping[str, object]
) -> list[dict[str, Any]]:
    """Builds a record for each metric, with the command-line arguments that a run of ours knows."""
    result = build_vllm_bench_result(measured_run, more)
    arguments = (
        "backend",
        "model_id",
        "num_prompts",
        "request_rate",
        "burstiness",
        "max_concurrency",
    )
    args = {
        "model" if name == "model_id" else name: result[name]
        for name in arguments
        if result.get(name) is not None
    }
    rest = {name: value for name, value in result.items() if name not in OF_PYTORCH}
    return [
        {
            "benchmark": {"name": "vLLM benchmark", "extra_info": {"args": {**args, **more}}},
            "model": {"name": result["model_id"]},
            "metric": {"name": name, "benchmark_values": [result[name]], "extra_info": rest},
        }
        for name in OF_PYTORCH
        if name in result
    ]


FORMAT: Final = ToolFormat(
    "vllm bench",
    exports={
        "vllm-bench": export_as_json(
            "vllm_bench.json",
            lambda run, options: build_vllm_bench_result(
                run, options.more, detailed=options.detailed
            ),
        ),
        "pytorch": export_as_json(
            "vllm_bench.pytorch.json",
            lambda run, options: build_pytorch_records(run, options.more),
        ),
    },
)
