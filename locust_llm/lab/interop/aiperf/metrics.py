"""AIPerf: ``profile_export_aiperf.json``. locust-llm writes the same, with a word on itself."""

from datetime import UTC, datetime
from typing import Final

from locust_llm.lab.interop.json_fields import (
    S_PER,
    Document,
    nested_value,
    read_distribution,
    read_finite_or_nan,
    read_text,
    whole,
)
from locust_llm.lab.interop.load_metrics import Distribution, Figures

TTFT: Final = "time_to_first_token"
LATENCY: Final = "request_latency"


def has_figures(document: Document) -> bool:
    return (
        isinstance(nested_value(document, LATENCY), dict)
        and nested_value(document, LATENCY, "unit") is not None
    )


def read_tool_figures(document: Document) -> list[Figures]:
    config = nested_value(document, "input_config")
    load = nested_value(config, "loadgen") or nested_value(config, "phases", -1) or {}
    ours = nested_value(document, "locust_llm")
    imported = read_text(nested_value(ours, "imported"))
    conditions = nested_value(ours, "conditions") or {}
    counted = whole(nested_value(document, "request_count", "avg"))
    failed = whole(nested_value(document, "error_request_count", "avg")) or 0
    rate = (
        read_finite_or_nan(nested_value(load, "request_rate"))
        or read_finite_or_nan(nested_value(load, "rate"))
        or read_finite_or_nan(nested_value(conditions, "rate_per_s"))
    )
    return [
        Figures(
            tool=imported or ("locust-llm" if ours else "AIPerf"),
            version=read_text(nested_value(document, "aiperf_version"))
            or read_text(nested_value(conditions, "versions", "locust-llm")),
            model=read_text(nested_value(config, "endpoint", "model_names", 0))
            or read_text(nested_value(config, "models", "items", 0, "name")),
            started_at=_unix(read_text(nested_value(document, "start_time"))),
            requests=counted,
            failed=failed,
            asked_requests=whole(nested_value(load, "request_count"))
            or whole(nested_value(load, "requests")),
            duration_s=read_finite_or_nan(nested_value(document, "benchmark_duration", "avg")),
            concurrency=whole(nested_value(load, "concurrency"))
            or whole(nested_value(conditions, "users")),
            prefill_concurrency=whole(nested_value(load, "prefill_concurrency")),
            rate_per_s=rate,
            requests_per_s=read_finite_or_nan(nested_value(document, "request_throughput", "avg")),
            goodput_per_s=read_finite_or_nan(nested_value(document, "goodput", "avg")),
            output_tokens_per_s=read_finite_or_nan(
                nested_value(document, "output_token_throughput", "avg")
            ),
            total_tokens_per_s=read_finite_or_nan(
                nested_value(document, "total_token_throughput", "avg")
            ),
            ttft=_of(document, TTFT),
            tpot=_of(document, "inter_token_latency"),
            itl=_of(document, "inter_chunk_latency"),
            latency=_of(document, LATENCY),
            input_tokens=_of(document, "input_sequence_length"),
            output_tokens=_of(document, "output_sequence_length"),
            server_output_tokens=None
            if ours
            else read_finite_or_nan(nested_value(document, "usage_completion_tokens", "avg")),
            asked_output_tokens=_asked(config),
            client=read_text(nested_value(conditions, "client_verdict")),
        )
    ]


def _of(document: Document, name: str) -> Distribution:
    """AIPerf's inter-chunk latency is a mean of each request's; its count is then of requests, as
    of all others."""
    values = nested_value(document, name)
    if not isinstance(values, dict):
        return Distribution()
    return read_distribution(values.items(), S_PER.get(read_text(values.get("unit")), 1.0))


def _unix(written: str) -> float | None:
    """Of a time as ISO 8601 has it, UTC where it names no zone; None: it is none."""
    try:
        time = datetime.fromisoformat(written)
    except ValueError:
        return None
    at = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
    return at if at >= 0 else None


def _asked(config: object) -> float | None:
    return read_finite_or_nan(
        nested_value(config, "input", "prompt", "output_tokens", "mean")
    ) or read_finite_or_nan(nested_value(config, "datasets", 0, "prompts", "osl", "mean"))
