"""inference-perf: ``stage_0_lifecycle_metrics.json``, and the summary of all stages.

Its ``output_len`` are the tokens of its own tokenizer, from which it has rates and times a token; ``output_tokens`` are the
server's.
"""

from locust_llm.results.figures import Distribution, Figures

from .fields import Document, at, distribution, number, whole


def is_one(document: Document) -> bool:
    return at(document, "successes", "latency", "time_to_first_token") is not None


def read(document: Document) -> list[Figures]:
    load, found = document.get("load_summary"), document.get("successes")
    places = whole(at(load, "concurrency"))

    def of(*path: str) -> Distribution:
        values = at(found, *path)
        return distribution(values.items()) if isinstance(values, dict) else Distribution()

    return [
        Figures(
            tool="inference-perf",
            requests=whole(at(found, "count")),
            failed=whole(at(document, "failures", "count")) or 0,
            asked_requests=whole(at(load, "count")),
            duration_s=number(document.get("benchmark_time_seconds")),
            concurrency=places,
            rate_per_s=None if places else number(at(load, "requested_rate")),
            requests_per_s=number(at(found, "throughput", "requests_per_sec")),
            output_tokens_per_s=number(at(found, "throughput", "output_tokens_per_sec")),
            total_tokens_per_s=number(at(found, "throughput", "total_tokens_per_sec")),
            ttft=of("latency", "time_to_first_token"),
            tpot=of("latency", "time_per_output_token"),
            itl=of("latency", "inter_token_latency"),
            latency=of("latency", "request_latency"),
            input_tokens=of("prompt_tokens"),
            output_tokens=of("output_len"),
            server_output_tokens=number(at(found, "output_tokens", "mean")),
        )
    ]
