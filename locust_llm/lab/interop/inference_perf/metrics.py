"""inference-perf: ``stage_0_lifecycle_metrics.json``, and the summary of all stages.

Its ``output_len`` are the tokens of its own tokenizer, from which it has rates and times a token;
``output_tokens`` are the server's.
"""

from locust_llm.lab.interop.json_fields import (
    Document,
    nested_value,
    read_distribution,
    read_finite_or_nan,
    whole,
)
from locust_llm.lab.interop.load_metrics import Distribution, Figures


def has_figures(document: Document) -> bool:
    return nested_value(document, "successes", "latency", "time_to_first_token") is not None


def read_tool_figures(document: Document) -> list[Figures]:
    load = document.get("load_summary")
    found = document.get("successes")
    places = whole(nested_value(load, "concurrency"))

    def of(*path: str) -> Distribution:
        values = nested_value(found, *path)
        return read_distribution(values.items()) if isinstance(values, dict) else Distribution()

    return [
        Figures(
            tool="inference-perf",
            requests=whole(nested_value(found, "count")),
            failed=whole(nested_value(document, "failures", "count")) or 0,
            asked_requests=whole(nested_value(load, "count")),
            duration_s=read_finite_or_nan(document.get("benchmark_time_seconds")),
            concurrency=places,
            rate_per_s=None if places else read_finite_or_nan(nested_value(load, "requested_rate")),
            requests_per_s=read_finite_or_nan(
                nested_value(found, "throughput", "requests_per_sec")
            ),
            output_tokens_per_s=read_finite_or_nan(
                nested_value(found, "throughput", "output_tokens_per_sec")
            ),
            total_tokens_per_s=read_finite_or_nan(
                nested_value(found, "throughput", "total_tokens_per_sec")
            ),
            ttft=of("latency", "time_to_first_token"),
            tpot=of("latency", "time_per_output_token"),
            itl=of("latency", "inter_token_latency"),
            latency=of("latency", "request_latency"),
            input_tokens=of("prompt_tokens"),
            output_tokens=of("output_len"),
            server_output_tokens=read_finite_or_nan(nested_value(found, "output_tokens", "mean")),
        )
    ]
