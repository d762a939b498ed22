"""Simulated metrics: serves GET /metrics with vLLM's names, labels and buckets (0.32) in
Prometheus' text format, and GET /truth."""

from __future__ import annotations

import math
import time
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from .scheduling.sequence import Sequence
from .scheduling.time_parts import LatencyParts, measure_latency_parts

_TTFT: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
_ITL: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
_LATENCY: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0,
    7680.0,
)  # fmt: skip
_TOKENS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)

_HISTOGRAMS: Final = {
    "time_to_first_token_seconds": ("Histogram of time to first token in seconds.", _TTFT),
    "inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", _ITL),
    "request_time_per_output_token_seconds": (
        "Histogram of time_per_output_token_seconds per request.",
        _ITL,
    ),
    "e2e_request_latency_seconds": ("Histogram of e2e request latency in seconds.", _LATENCY),
    "request_queue_time_seconds": (
        "Histogram of time spent in WAITING phase for request.",
        _LATENCY,
    ),
    "request_prefill_time_seconds": (
        "Histogram of time spent in PREFILL phase for request.",
        _LATENCY,
    ),
    "request_decode_time_seconds": (
        "Histogram of time spent in DECODE phase for request.",
        _LATENCY,
    ),
    "request_inference_time_seconds": (
        "Histogram of time spent in RUNNING phase for request.",
        _LATENCY,
    ),
    "request_prompt_tokens": ("Number of prefill tokens processed.", _TOKENS),
    "request_generation_tokens": ("Number of generation tokens processed.", _TOKENS),
}
REJECTIONS: Final = ("max_num_queued_reqs", "max_num_queued_tokens")


class PrometheusHistogram:
    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class EngineMetrics:
    """Counts requests. Gauges come from the engine on demand. Aborted requests are in no histogram
    of whole requests, as in vLLM."""

    def __init__(self, model: str, max_model_len: int) -> None:
        self.model = model
        self.histograms: dict[str, PrometheusHistogram] = {}
        for name, (_, bounds) in _HISTOGRAMS.items():
            # vLLM's buckets of tokens end at the longest request
            longest = max_model_len if bounds is _TOKENS else math.inf
            kept_bounds = tuple(float(bound) for bound in bounds if bound <= longest)
            self.histograms[name] = PrometheusHistogram(kept_bounds)
        self.gap = self.histograms["inter_token_latency_seconds"].observe
        self.prompt_tokens = self.generation_tokens = 0
        # of speculative decoding: drafts, their tokens, those accepted
        self.drafts: tuple[int, int, int] | None = None
        self.success = dict.fromkeys(("stop", "length", "abort", "error"), 0)
        self.rejections = dict.fromkeys(REJECTIONS, 0)

    def first_token(self, prompt_tokens: int, ttft_s: float) -> None:
        self.prompt_tokens += prompt_tokens
        self.histograms["time_to_first_token_seconds"].observe(ttft_s)

    def drafted(self, num_tokens: int, num_accepted: int) -> None:
        drafts, tokens, accepted = self.drafts or (0, 0, 0)
        self.drafts = drafts + 1, tokens + num_tokens, accepted + num_accepted

    def finished(
        self,
        sequence: Sequence,
        count: int,
        reason: str,
        arrived_at: float,
        first_at: float,
        done_at: float,
    ) -> None:
        # behind the front end
        queued_at = arrived_at if sequence.arrived_at is None else sequence.arrived_at
        started_at = (
            queued_at if sequence.started_at is None else max(queued_at, sequence.started_at)
        )
        # by the engine's clock, as in vLLM, so without the lateness of the loop
        parts = measure_latency_parts(sequence)
        prefill_s = first_at - started_at if parts is None else parts.prefill
        decode_s = done_at - first_at if parts is None else parts.decode
        self.success[reason] += 1
        observed = {
            "e2e_request_latency_seconds": done_at - arrived_at,
            "request_queue_time_seconds": started_at - queued_at,
            "request_prefill_time_seconds": prefill_s,
            "request_decode_time_seconds": decode_s,
            "request_inference_time_seconds": prefill_s + decode_s,
            "request_time_per_output_token_seconds": (done_at - first_at) / (count - 1)
            if count > 1
            else 0.0,
            "request_prompt_tokens": sequence.num_prompt_tokens,
            "request_generation_tokens": count,
        }
        for name, value in observed.items():
            self.histograms[name].observe(value)

    def families(
        self, state: Mapping[str, float], number: int = 0
    ) -> Iterator[tuple[str, list[str]]]:
        """Yields the head and the samples of each metric, for the engine of this number."""
        label = f'model_name="{self.model}"'
        engine = f'engine="{number}",{label}'
        gauges = {
            "num_requests_running": (
                "Number of requests in model execution batches.",
                state["running"],
            ),
            "num_requests_waiting": (
                "Number of requests waiting to be processed.",
                state["waiting"],
            ),
            "kv_cache_usage_perc": (
                "KV-cache usage. 1 means 100 percent usage.",
                state.get("used_blocks", 0) / (state.get("num_blocks") or 1),
            ),
        }
        for name, (text, value) in gauges.items():
            yield _head(name, text, "gauge"), [f"vllm:{name}{{{engine}}} {float(value)}"]
        counters = {
            "prefix_cache_queries": (
                "Prefix cache queries, in terms of tokens.",
                state.get("cache_queries", 0),
            ),
            "prefix_cache_hits": (
                "Prefix cache hits, in terms of cached tokens.",
                state.get("cache_hits", 0),
            ),
            "num_preemptions": (
                "Cumulative number of preemption from the engine.",
                state.get("preemptions", 0),
            ),
            "prompt_tokens": ("Number of prefill tokens processed.", self.prompt_tokens),
            "generation_tokens": ("Number of generation tokens processed.", self.generation_tokens),
        }
        if self.drafts is not None:
            drafts, tokens, accepted = self.drafts
            counters |= {
                "spec_decode_num_drafts": ("Number of spec decoding drafts.", drafts),
                "spec_decode_num_draft_tokens": ("Number of draft tokens.", tokens),
                "spec_decode_num_accepted_tokens": ("Number of accepted tokens.", accepted),
            }
        for name, (text, value) in counters.items():
            yield (
                _head(f"{name}_total", text, "counter"),
                [f"vllm:{name}_total{{{engine}}} {float(value)}"],
            )
        ended = (
            f'vllm:request_success_total{{engine="{number}",finished_reason="{reason}",{label}}} '
            f"{float(count)}"
            for reason, count in self.success.items()
        )
        yield (
            _head("request_success_total", "Count of successfully processed requests.", "counter"),
            [*ended],
        )
        rejected = (
            f'vllm:admission_rejections_total{{{label},reason="{reason}"}} {float(count)}'
            for reason, count in self.rejections.items()
            if not number  # what stands before all engines counts them, with the first
        )
        yield (
            _head("admission_rejections_total", "Requests rejected by queue limits.", "counter"),
            [*rejected],
        )
        for name, histogram in self.histograms.items():
            samples = list[str]()
            total = 0
            for bound, count in zip(
                (*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True
            ):
                total += count
                samples.append(
                    f'vllm:{name}_bucket{{engine="{number}",le="{bound}",{label}}} {float(total)}'
                )
            samples += (
                f"vllm:{name}_count{{{engine}}} {float(total)}",
                f"vllm:{name}_sum{{{engine}}} {histogram.sum}",
            )
            yield _head(name, _HISTOGRAMS[name][0], "histogram"), samples


def format_metrics_page(engines: Iterable[tuple[EngineMetrics, Mapping[str, float]]]) -> str:
    """Formats the page of all engines, which vLLM's label distinguishes. Each state comes from
    `Engine.state`."""
    pages = (metrics.families(state, number) for number, (metrics, state) in enumerate(engines))
    lines: list[str] = []
    for family in zip(*pages, strict=True):
        head, _ = family[0]
        lines.append(head)
        for _, samples in family:
            lines += samples
    return "\n".join(lines) + "\n"


MEMORY_BYTES: Final = 2_000_000_000
GARBAGE_BYTES: Final = 4_000_000
COLLECTED_EACH: Final = 10
"""Each request leaves garbage, which is collected after so many of them."""


def format_process_memory(engines: Iterable[EngineMetrics], leak_bytes: int) -> str:
    """The simulated memory of a process that keeps so many bytes of each request. Below 0 there is
    nothing."""
    if leak_bytes < 0:
        return ""
    requests = sum(sum(metrics.success.values()) for metrics in engines)
    garbage = requests % COLLECTED_EACH * GARBAGE_BYTES
    memory = MEMORY_BYTES + garbage + requests * leak_bytes
    return (
        "# HELP process_resident_memory_bytes Resident memory size in bytes.\n"
        "# TYPE process_resident_memory_bytes gauge\n"
        f"process_resident_memory_bytes {float(memory)}\n"
    )


def _head(name: str, text: str, kind: str) -> str:
    return f"# HELP vllm:{name} {text}\n# TYPE vllm:{name} {kind}"


# -- what really happened, from the server's side --------------------------------------------------

MAX_ROWS = 100_000
MAX_STAMPS = 4_000_000  # over all rows, 8 bytes each; only `--truth full` keeps any
MAX_CHANGES = 200_000


@dataclass(slots=True, eq=False)
class TruthRow:
    """Holds the truth of one request. Stamps are seconds of CLOCK_MONOTONIC (`time.monotonic`),
    which all processes of a machine share.

    buffered counts the sends that the socket did not accept at once (a client that reads slowly).
    After the first of them the [before, after] intervals no longer bound the send time of bytes.
    """

    id: str
    prompt_tokens: int
    max_tokens: int  # asked
    arrived_at: float  # the request fully read
    answer_id: str = ""
    tenant: str = ""
    backend: int = 0  # the number of the replica that answered
    output_tokens: int = 0  # delivered
    started_at: float | None = None  # the start of its first step; known at the end
    first_at: tuple[float, float] | None = None  # around the write of the first content token
    token_at: array[float] | None = None  # before, after, before, after, ...: of each chunk
    done_at: float | None = None
    parts: LatencyParts | None = None  # of its time in the engine; None of one that did not finish
    cached_tokens: int = 0  # of the prompt, found in the prefix cache
    preemptions: int = 0
    aborted: bool = False  # by the client
    fault: str = ""  # by which the server ended it: error, cut, reset
    buffered: int = 0
    ghost_tokens: int = 0  # generated when the client had left
    planted: list[str] = field(default_factory=list)  # the faults it got, by their quirks

    def as_json(self) -> dict[str, Any]:
        stamps = self.token_at
        return {
            "id": self.id,
            "backend": self.backend,
            "prompt_tokens": self.prompt_tokens,
            "max_tokens": self.max_tokens,
            "output_tokens": self.output_tokens,
            "arrived_at": self.arrived_at,
            "started_at": self.started_at,
            "first_at": self.first_at,
            "token_at": None
            if stamps is None
            else list(zip(stamps[::2], stamps[1::2], strict=True)),
            "done_at": self.done_at,
            "tenant": self.tenant,
            "parts": self.parts and self.parts._asdict(),
            "cached_tokens": self.cached_tokens,
            "preemptions": self.preemptions,
            "aborted": self.aborted,
            "fault": self.fault,
            "buffered": self.buffered,
            **({"ghost_tokens": self.ghost_tokens} if self.ghost_tokens else {}),
            **({"planted": self.planted} if self.planted else {}),
        }


class ServerTruth:
    """Holds the rows of one server, running ones and the latest finished ones, and the number of
    prefills over time."""

    def __init__(self, *, full: bool = False) -> None:
        self.full = full
        self.prefilling = 0
        self.connections = 0
        self.refused = 0
        self._under_way: dict[TruthRow, None] = {}  # an ordered set
        self.reset()

    def reset(self) -> None:
        """Forgets the past. Running requests stay."""
        self.max_prefilling = self.prefilling
        self.connections = self.refused = 0
        self._num_stamps = 0
        self._rows: deque[TruthRow] = deque()
        self._changes: deque[tuple[float, int]] = deque(
            [(time.monotonic(), self.prefilling)], maxlen=MAX_CHANGES
        )

    def arrived(self, row: TruthRow) -> None:
        if self.full:
            row.token_at = array("d")
        self._under_way[row] = None
        self._prefilling(row.arrived_at, +1)
        self.max_prefilling = max(self.max_prefilling, self.prefilling)

    def prefilled(self, at: float) -> None:
        """Counts a request that got its first token, or left before."""
        self._prefilling(at, -1)

    def done(self, row: TruthRow, *, aborted: bool = False) -> None:
        row.done_at = time.monotonic()
        row.aborted = aborted
        del self._under_way[row]
        self._rows.append(row)
        self._num_stamps += len(row.token_at or ())
        while len(self._rows) > MAX_ROWS or self._num_stamps > MAX_STAMPS:
            self._num_stamps -= len(self._rows.popleft().token_at or ())

    def as_json(self) -> dict[str, Any]:
        return {
            "now": time.monotonic(),
            "prefilling": self.prefilling,
            "max_prefilling": self.max_prefilling,
            "prefilling_changes": list(self._changes),
            "connections": self.connections,
            "refused": self.refused,
            "requests": [row.as_json() for row in (*self._rows, *self._under_way)],
        }

    def _prefilling(self, at: float, change: int) -> None:
        self.prefilling += change
        self._changes.append((at, self.prefilling))
