"""genai-bench: reads its JSON of each load, ``D128_64_..._num_concurrency_8_....json``."""

from pathlib import Path
from typing import Final

from locust_llm.lab.interop.imported_records import ImportedRun, UnusableResult
from locust_llm.lab.interop.load_metrics import Distribution, Figures
from locust_llm.lab.interop.tool_format import DocumentRequestsReader, FiguresReader, ToolFormat

from .json_fields import (
    S_PER,
    Document,
    nested_value,
    read_distribution,
    read_finite_or_nan,
    read_text,
    read_whole,
)


def _has_figures(document: Document) -> bool:
    return nested_value(document, "aggregated_metrics", "stats", "ttft") is not None


def _read_figures(document: Document, path: Path) -> list[Figures]:
    metrics = nested_value(document, "aggregated_metrics")
    scale = S_PER.get(read_text(document.get("_time_unit")), 1.0)

    def read(name: str, scale: float = scale) -> Distribution:
        values = nested_value(metrics, "stats", name)
        if not isinstance(values, dict):
            return Distribution()
        return read_distribution(values.items(), scale)

    return [
        Figures(
            tool="genai-bench",
            label=read_text(nested_value(metrics, "scenario")),
            requests=read_whole(nested_value(metrics, "num_completed_requests")),
            failed=read_whole(nested_value(metrics, "num_error_requests")) or 0,
            asked_requests=read_whole(nested_value(metrics, "num_requests")),
            duration_s=read_finite_or_nan(nested_value(metrics, "run_duration")),
            concurrency=read_whole(nested_value(metrics, "num_concurrency")),
            requests_per_s=read_finite_or_nan(nested_value(metrics, "requests_per_second")),
            output_tokens_per_s=read_finite_or_nan(
                nested_value(metrics, "mean_output_throughput_tokens_per_s")
            ),
            total_tokens_per_s=read_finite_or_nan(
                nested_value(metrics, "mean_total_tokens_throughput_tokens_per_s")
            ),
            ttft=read("ttft"),
            tpot=read("tpot"),
            latency=read("e2e_latency"),
            input_tokens=read("num_input_tokens", 1.0),
            output_tokens=read("num_output_tokens", 1.0),
        )
    ]


def _has_requests(document: object) -> bool:
    return nested_value(document, "individual_request_metrics") is not None


def _refuse_requests(document: object, path: Path) -> list[ImportedRun]:
    raise UnusableResult(
        "genai-bench keeps no start time of a request, so values over time are unknown"
    )


FORMAT: Final = ToolFormat(
    "genai-bench",
    FiguresReader(_has_figures, _read_figures),
    DocumentRequestsReader(_has_requests, _refuse_requests, importable=False),
)
