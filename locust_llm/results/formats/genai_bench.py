"""genai-bench: the JSON that it writes for each load, ``D128_64_..._num_concurrency_8_....json``."""

from locust_llm.results.figures import Distribution, Figures

from .fields import S_PER, Document, at, distribution, number, text, whole


def is_one(document: Document) -> bool:
    return at(document, "aggregated_metrics", "stats", "ttft") is not None


def read(document: Document) -> list[Figures]:
    found = at(document, "aggregated_metrics")
    scale = S_PER.get(text(document.get("_time_unit")), 1.0)

    def of(name: str, scale: float = scale) -> Distribution:
        values = at(found, "stats", name)
        return distribution(values.items(), scale) if isinstance(values, dict) else Distribution()

    return [
        Figures(
            tool="genai-bench",
            label=text(at(found, "scenario")),
            requests=whole(at(found, "num_completed_requests")),
            failed=whole(at(found, "num_error_requests")) or 0,
            asked_requests=whole(at(found, "num_requests")),
            duration_s=number(at(found, "run_duration")),
            concurrency=whole(at(found, "num_concurrency")),
            requests_per_s=number(at(found, "requests_per_second")),
            output_tokens_per_s=number(at(found, "mean_output_throughput_tokens_per_s")),
            total_tokens_per_s=number(at(found, "mean_total_tokens_throughput_tokens_per_s")),
            ttft=of("ttft"),
            tpot=of("tpot"),
            latency=of("e2e_latency"),
            input_tokens=of("num_input_tokens", 1.0),
            output_tokens=of("num_output_tokens", 1.0),
        )
    ]
