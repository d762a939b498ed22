"""AIPerf: ``profile_export_aiperf.json``. locust-llm writes the same, with a word on itself."""

from datetime import UTC, datetime
from typing import Final

from locust_llm.results.figures import Distribution, Figures

from .fields import S_PER, Document, at, distribution, number, text, whole

TTFT: Final = "time_to_first_token"
LATENCY: Final = "request_latency"


def is_one(document: Document) -> bool:
    return isinstance(at(document, LATENCY), dict) and at(document, LATENCY, "unit") is not None


def read(document: Document) -> list[Figures]:
    config = at(document, "input_config")
    load = at(config, "loadgen") or at(config, "phases", -1) or {}
    ours = at(document, "locust_llm")
    imported = text(at(ours, "imported"))
    conditions = at(ours, "conditions") or {}
    counted = whole(at(document, "request_count", "avg"))
    failed = whole(at(document, "error_request_count", "avg")) or 0
    rate = number(at(load, "request_rate")) or number(at(load, "rate")) or number(at(conditions, "rate_per_s"))
    return [
        Figures(
            tool=imported or ("locust-llm" if ours else "AIPerf"),
            version=text(at(document, "aiperf_version")) or text(at(conditions, "versions", "locust-llm")),
            model=text(at(config, "endpoint", "model_names", 0)) or text(at(config, "models", "items", 0, "name")),
            started_at=_unix(text(at(document, "start_time"))),
            requests=counted,
            failed=failed,
            asked_requests=whole(at(load, "request_count")) or whole(at(load, "requests")),
            duration_s=number(at(document, "benchmark_duration", "avg")),
            concurrency=whole(at(load, "concurrency")) or whole(at(conditions, "users")),
            prefill_concurrency=whole(at(load, "prefill_concurrency")),
            rate_per_s=rate,
            requests_per_s=number(at(document, "request_throughput", "avg")),
            goodput_per_s=number(at(document, "goodput", "avg")),
            output_tokens_per_s=number(at(document, "output_token_throughput", "avg")),
            total_tokens_per_s=number(at(document, "total_token_throughput", "avg")),
            ttft=_of(document, TTFT),
            tpot=_of(document, "inter_token_latency"),
            itl=_of(document, "inter_chunk_latency"),
            latency=_of(document, LATENCY),
            input_tokens=_of(document, "input_sequence_length"),
            output_tokens=_of(document, "output_sequence_length"),
            server_output_tokens=None if ours else number(at(document, "usage_completion_tokens", "avg")),
            asked_output_tokens=_asked(config),
            client=text(at(conditions, "client_verdict")),
        )
    ]


def _of(document: Document, name: str) -> Distribution:
    """AIPerf's inter-chunk latency is a mean of each request's; its count is then of requests, as of all others."""
    values = at(document, name)
    if not isinstance(values, dict):
        return Distribution()
    return distribution(values.items(), S_PER.get(text(values.get("unit")), 1.0))


def _unix(written: str) -> float | None:
    """Of a time as ISO 8601 has it, UTC where it names no zone; None: it is none."""
    try:
        time = datetime.fromisoformat(written)
    except ValueError:
        return None
    at = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
    return at if at >= 0 else None


def _asked(config: object) -> float | None:
    return number(at(config, "input", "prompt", "output_tokens", "mean")) or number(
        at(config, "datasets", 0, "prompts", "osl", "mean")
    )
