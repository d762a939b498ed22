"""GET /metrics: vLLM's names, labels and buckets (0.32), in Prometheus' text format."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Final

from locust_llm.simulator.sequence import Sequence

_TTFT: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
_ITL: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_LATENCY: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0,
    7680.0,
)  # fmt: skip
_TOKENS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)

_HISTOGRAMS: Final = {
    "time_to_first_token_seconds": ("Histogram of time to first token in seconds.", _TTFT),
    "inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", _ITL),
    "request_time_per_output_token_seconds": ("Histogram of time_per_output_token_seconds per request.", _ITL),
    "e2e_request_latency_seconds": ("Histogram of e2e request latency in seconds.", _LATENCY),
    "request_queue_time_seconds": ("Histogram of time spent in WAITING phase for request.", _LATENCY),
    "request_prefill_time_seconds": ("Histogram of time spent in PREFILL phase for request.", _LATENCY),
    "request_decode_time_seconds": ("Histogram of time spent in DECODE phase for request.", _LATENCY),
    "request_inference_time_seconds": ("Histogram of time spent in RUNNING phase for request.", _LATENCY),
    "request_prompt_tokens": ("Number of prefill tokens processed.", _TOKENS),
    "request_generation_tokens": ("Number of generation tokens processed.", _TOKENS),
}
REJECTIONS: Final = ("max_num_queued_reqs", "max_num_queued_tokens")


class Histogram:
    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Metrics:
    """What requests add to; the gauges come from the engine when asked for. Aborted requests are in no histogram of whole
    requests, as in vLLM."""

    def __init__(self, model: str, max_model_len: int) -> None:
        self.model = model
        self.histograms = {
            name: Histogram(tuple(float(bound) for bound in bounds if bound <= max_model_len or bounds is not _TOKENS))
            for name, (_, bounds) in _HISTOGRAMS.items()
        }
        self.gap = self.histograms["inter_token_latency_seconds"].observe
        self.prompt_tokens = self.generation_tokens = 0
        self.success = dict.fromkeys(("stop", "length", "abort", "error"), 0)
        self.rejections = dict.fromkeys(REJECTIONS, 0)

    def first_token(self, prompt_tokens: int, ttft_s: float) -> None:
        self.prompt_tokens += prompt_tokens
        self.histograms["time_to_first_token_seconds"].observe(ttft_s)

    def finished(self, sequence: Sequence, reason: str, arrived_at: float, first_at: float, done_at: float) -> None:
        count = sequence.num_output_tokens
        started_at = arrived_at if sequence.started_at is None else sequence.started_at
        self.success[reason] += 1
        observed = {
            "e2e_request_latency_seconds": done_at - arrived_at,
            "request_queue_time_seconds": started_at - arrived_at,
            "request_prefill_time_seconds": first_at - started_at,
            "request_decode_time_seconds": done_at - first_at,
            "request_inference_time_seconds": done_at - started_at,
            "request_time_per_output_token_seconds": (done_at - first_at) / (count - 1) if count > 1 else 0.0,
            "request_prompt_tokens": sequence.num_prompt_tokens,
            "request_generation_tokens": count,
        }
        for name, value in observed.items():
            self.histograms[name].observe(value)

    def text(self, state: Mapping[str, float]) -> str:
        return "\n".join(self._lines(state)) + "\n"

    def _lines(self, state: Mapping[str, float]) -> Iterator[str]:
        label = f'model_name="{self.model}"'
        engine = f'engine="0",{label}'
        gauges = {
            "num_requests_running": ("Number of requests in model execution batches.", state["running"]),
            "num_requests_waiting": ("Number of requests waiting to be processed.", state["waiting"]),
            "kv_cache_usage_perc": (
                "KV-cache usage. 1 means 100 percent usage.",
                state.get("used_blocks", 0) / (state.get("num_blocks") or 1),
            ),
        }
        for name, (text, value) in gauges.items():
            yield from (_head(name, text, "gauge"), f"vllm:{name}{{{engine}}} {float(value)}")
        counters = {
            "prefix_cache_queries": ("Prefix cache queries, in terms of tokens.", state.get("cache_queries", 0)),
            "prefix_cache_hits": ("Prefix cache hits, in terms of cached tokens.", state.get("cache_hits", 0)),
            "num_preemptions": ("Cumulative number of preemption from the engine.", state.get("preemptions", 0)),
            "prompt_tokens": ("Number of prefill tokens processed.", self.prompt_tokens),
            "generation_tokens": ("Number of generation tokens processed.", self.generation_tokens),
        }
        for name, (text, value) in counters.items():
            yield from (_head(f"{name}_total", text, "counter"), f"vllm:{name}_total{{{engine}}} {float(value)}")
        yield _head("request_success_total", "Count of successfully processed requests.", "counter")
        for reason, count in self.success.items():
            yield f'vllm:request_success_total{{engine="0",finished_reason="{reason}",{label}}} {float(count)}'
        yield _head("admission_rejections_total", "Requests rejected by queue limits.", "counter")
        for reason, count in self.rejections.items():
            yield f'vllm:admission_rejections_total{{{label},reason="{reason}"}} {float(count)}'
        for name, histogram in self.histograms.items():
            yield _head(name, _HISTOGRAMS[name][0], "histogram")
            total = 0
            for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
                total += count
                yield f'vllm:{name}_bucket{{engine="0",le="{bound}",{label}}} {float(total)}'
            yield f"vllm:{name}_count{{{engine}}} {float(total)}"
            yield f"vllm:{name}_sum{{{engine}}} {float(histogram.sum)}"


def _head(name: str, text: str, kind: str) -> str:
    return f"# HELP vllm:{name} {text}\n# TYPE vllm:{name} {kind}"
