"""evalscope perf: ``benchmark_summary.json``, and the percentiles in ``benchmark_percentile.json``
beside it."""

from collections.abc import Iterator
from typing import Final

from locust_llm.lab.interop.json_fields import (
    Document,
    nested_value,
    read_distribution,
    read_finite_or_nan,
    whole,
)
from locust_llm.lab.interop.load_metrics import Distribution, Figures

SUMMARY: Final = "benchmark_summary.json"
PERCENTILES: Final = "benchmark_percentile.json"


def has_figures(document: Document) -> bool:
    return "Avg TTFT (ms)" in document and "Test Duration (s)" in document


def read_tool_figures(document: Document) -> list[Figures]:
    """``document``: the summary; under PERCENTILES the other file, where it is there."""
    places = whole(document.get("Concurrency"))
    rate = read_finite_or_nan(document.get("Request Rate (req/s)"))
    return [
        Figures(
            tool="evalscope",
            requests=whole(document.get("Success Requests")),
            failed=whole(document.get("Failed Requests")) or 0,
            asked_requests=whole(document.get("Total Requests")),
            duration_s=read_finite_or_nan(document.get("Test Duration (s)")),
            concurrency=places if places and places > 0 else None,
            rate_per_s=rate if rate and rate > 0 else None,
            requests_per_s=read_finite_or_nan(document.get("Req Throughput (req/s)")),
            output_tokens_per_s=read_finite_or_nan(document.get("Output Throughput (tok/s)")),
            total_tokens_per_s=read_finite_or_nan(document.get("Total Throughput (tok/s)")),
            ttft=_of(document, "TTFT (ms)", 1e-3),
            tpot=_of(document, "TPOT (ms)", 1e-3),
            itl=_of(document, "ITL (ms)", 1e-3),
            latency=_of(document, "Latency (s)", 1.0),
            input_tokens=_of(document, "Input tokens", 1.0, "Avg Input Tokens"),
            output_tokens=_of(document, "Output tokens", 1.0, "Avg Output Tokens"),
        )
    ]


def _of(document: Document, name: str, scale: float, mean: str = "") -> Distribution:
    return read_distribution(
        [("avg", document.get(mean or f"Avg {name}")), *_points(document, name)], scale
    )


def _points(document: Document, name: str) -> Iterator[tuple[str, object]]:
    rows = document.get(PERCENTILES)
    for row in rows if isinstance(rows, list) else ():
        label = nested_value(row, "Percentiles")
        if isinstance(label, str):
            yield (
                (f"p{label.removesuffix('%')}" if label.endswith("%") else label),
                nested_value(row, name),
            )
