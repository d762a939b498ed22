"""vLLM: the JSON of ``vllm bench serve --save-result``."""

from locust_llm.lab.interop.json_fields import (
    Document,
    read_distribution,
    read_finite_or_nan,
    read_text,
    whole,
)
from locust_llm.lab.interop.load_metrics import Distribution, Figures


def has_figures(document: Document) -> bool:
    return "mean_ttft_ms" in document and "request_throughput" in document


def read_tool_figures(document: Document) -> list[Figures]:
    completed = whole(document.get("completed"))
    out = read_finite_or_nan(document.get("total_output_tokens"))
    read_tokens = read_finite_or_nan(document.get("total_input_tokens"))
    rate = read_finite_or_nan(document.get("request_rate"))
    return [
        Figures(
            tool="vllm bench",
            model=read_text(document.get("model_id")),
            requests=completed,
            failed=whole(document.get("failed")) or 0,
            asked_requests=whole(document.get("num_prompts")),
            duration_s=read_finite_or_nan(document.get("duration")),
            concurrency=whole(document.get("max_concurrency")),
            rate_per_s=None if rate is None or rate == float("inf") else rate,
            requests_per_s=read_finite_or_nan(document.get("request_throughput")),
            goodput_per_s=read_finite_or_nan(document.get("request_goodput")),
            output_tokens_per_s=read_finite_or_nan(document.get("output_throughput")),
            total_tokens_per_s=read_finite_or_nan(document.get("total_token_throughput")),
            ttft=_of(document, "ttft"),
            tpot=_of(document, "tpot"),
            itl=_of(document, "itl"),
            latency=_of(document, "e2el"),
            output_tokens=_mean(out, completed),
            input_tokens=_mean(read_tokens, completed),
        )
    ]


def _of(document: Document, name: str) -> Distribution:
    end = f"_{name}_ms"
    found = ((key.removesuffix(end), value) for key, value in document.items() if key.endswith(end))
    return read_distribution(found, 1e-3)


def _mean(total: float | None, count: int | None) -> Distribution:
    return Distribution(avg=total / count) if total is not None and count else Distribution()
