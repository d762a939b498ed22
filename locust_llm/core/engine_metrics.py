"""Gauges: what a server says of itself at /metrics, read into the same few figures whichever engine it is.

Names are those of vLLM 0.32 (tests/captures), of llama.cpp, of SGLang's and of TensorRT-LLM's documents
(docs.sglang.io/references/production_metrics.html, nvidia.github.io/TensorRT-LLM). Text format of Prometheus, 0.0.4.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import Final

import msgspec

PATHS: Final = ("/metrics", "/prometheus/metrics")
"""Where to look; the second is TensorRT-LLM's."""
QUESTION: Final = "Queue or prefill?"
"""What some of the sentences answer."""
ENGINES: Final = {"vllm:": "vLLM", "sglang:": "SGLang", "llamacpp:": "llama.cpp", "trtllm_": "TensorRT-LLM"}
_MOST: Final = 1e15
"""No figure of a server is above."""
_NAMES: Final = {
    "running": ("num_requests_running", "num_running_reqs", "requests_processing"),
    "waiting": ("num_requests_waiting", "num_queue_reqs", "requests_deferred"),
    "kv_used": ("kv_cache_usage_perc", "gpu_cache_usage_perc", "token_usage", "kv_cache_utilization"),
    "preemptions": ("num_preemptions_total", "num_retracted_reqs_total"),
    "cache_queries": ("prefix_cache_queries_total",),
    "cache_hits": ("prefix_cache_hits_total",),
    "ttft_s": ("time_to_first_token_seconds_sum",),
    "ttft_count": ("time_to_first_token_seconds_count",),
    "queue_s": ("request_queue_time_seconds_sum", "queue_time_seconds_sum"),
    "queue_count": ("request_queue_time_seconds_count", "queue_time_seconds_count"),
    "prefill_s": ("request_prefill_time_seconds_sum",),
    "prefill_count": ("request_prefill_time_seconds_count",),
}
_FIELDS: Final = {name: field for field, names in _NAMES.items() for name in names}
_LINE: Final = re.compile(
    rf"^({'|'.join(ENGINES)})({'|'.join(_FIELDS)})(?:\{{[^}}\n]*+\}})? ([^ \n]{{1,40}})", re.MULTILINE
)
"""Each character is looked at a bounded number of times, whatever a server writes."""
_MOST_LINES: Final = 10_000
_HIGHEST: Final = {"kv_used"}
"""Of several engines the fullest counts; everything else adds up."""


class EngineSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one look showed; None: this server does not say. Sums and counts are since the server started."""

    at: float
    """Unix seconds, when it was asked."""
    engine: str
    running: float | None = None
    waiting: float | None = None
    kv_used: float | None = None
    """Share of the KV cache in use: 1 is full."""
    preemptions: float | None = None
    cache_queries: float | None = None
    cache_hits: float | None = None
    """Tokens looked for in the prefix cache, and found."""
    ttft_s: float | None = None
    ttft_count: float | None = None
    queue_s: float | None = None
    queue_count: float | None = None
    prefill_s: float | None = None
    prefill_count: float | None = None
    """Sums and counts of the server's own histograms."""


def read(text: str, at: float) -> EngineSample | None:
    """None where none of it is known."""
    found: dict[str, float] = {}
    engine = ""
    for prefix, name, value in (line.groups() for line in islice(_LINE.finditer(text), _MOST_LINES)):
        field, number = _FIELDS[name], _number(value)
        if number is None:
            continue
        engine = engine or ENGINES[prefix]
        before = found.get(field, 0.0)
        found[field] = max(before, number) if field in _HIGHEST else before + number
    return EngineSample(at=at, engine=engine, **found) if found else None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number <= _MOST else None


class EngineSummary(msgspec.Struct, frozen=True):
    """What the server said over a stretch of time."""

    engine: str
    samples: int
    running: tuple[float, float] | None
    waiting: tuple[float, float] | None
    kv_used: tuple[float, float] | None
    """Mean and highest of these three."""
    preemptions: int | None
    cache_share: float | None
    """Tokens found in the prefix cache, of those looked for."""
    ttft_s: float | None
    queue_s: float | None
    prefill_s: float | None
    """Means by the server's own histograms, of what ended in this time."""


def told(samples: Sequence[EngineSample]) -> EngineSummary | None:
    """The first one is only where the counters grow from. None of none."""
    if not samples:
        return None
    queries, hits = _grown(samples, "cache_queries"), _grown(samples, "cache_hits")
    preempted = _grown(samples, "preemptions")
    return EngineSummary(
        engine=samples[-1].engine,
        samples=len(samples),
        running=_level(samples, "running"),
        waiting=_level(samples, "waiting"),
        kv_used=_level(samples, "kv_used"),
        preemptions=None if preempted is None else round(preempted),
        cache_share=hits / queries if queries and hits is not None else None,
        ttft_s=_mean(samples, "ttft"),
        queue_s=_mean(samples, "queue"),
        prefill_s=_mean(samples, "prefill"),
    )


def _level(samples: Sequence[EngineSample], field: str) -> tuple[float, float] | None:
    values = [value for sample in samples[1:] or samples if (value := getattr(sample, field)) is not None]
    return (sum(values) / len(values), max(values)) if values else None


def _grown(samples: Sequence[EngineSample], field: str) -> float | None:
    """By how much a counter grew; one that falls began anew, with the server."""
    values = [value for sample in samples if (value := getattr(sample, field)) is not None]
    if len(values) < 2:
        return None
    return float(sum(after - before if after >= before else after for before, after in pairwise(values)))


def _mean(samples: Sequence[EngineSample], what: str) -> float | None:
    seconds, count = _grown(samples, f"{what}_s"), _grown(samples, f"{what}_count")
    return seconds / count if count and seconds is not None else None


# -- what it means -----------------------------------------------------------------------------------------------------

FULL: Final = 0.95
QUEUED: Final = 0.5
"""From this share of prefill and queue together on, the queue is what a first token waits for."""
WAITS: Final = 1.0
"""So many waiting requests, on average, are a queue."""
_MEMORY: Final = re.compile(
    r"out of memory|\bOOM\b|OutOfMemory|failed to allocate|no available memory for the cache", re.I
)


def diagnosis(said: EngineSummary | None, prefill_limit: int | None = None) -> Iterator[str]:
    """The server's own figures, and what follows from them; one sentence or two each."""
    if said is None:
        return
    yield _figures(said)
    yield from _queue_or_prefill(said)
    full = f"up to {said.kv_used[1]:.0%} full" if said.kv_used is not None else "full"
    if said.preemptions:
        limit = (
            f" The prefill limit of {prefill_limit} bounds prompts, not what decodes: lower it, and the number of users too."
            if prefill_limit
            else " Fewer users (-u), a --prefill-concurrency, shorter outputs or more memory for the cache would help."
        )
        yield (
            f"WARNING: the server preempted {said.preemptions} times: its KV cache was {full}, and it computed those "
            f"requests again, which shows as stalls.{limit}"
        )
    elif said.kv_used is not None and said.kv_used[1] >= FULL:
        yield f"The server's KV cache was {full}: a little more load and it preempts, or lets requests wait."


def out_of_memory(message: str, prefill_limit: int | None) -> str:
    """What a failure says of the server's memory, and what to do; empty where it is about something else."""
    if not _MEMORY.search(message):
        return ""
    limit = f" despite the prefill limit of {prefill_limit}" if prefill_limit else ""
    return (
        f"WARNING: the server ran out of memory{limit}. The limit may be too high, or it is not the prompts but what "
        "decodes: lower --prefill-concurrency, and limit the number of users (-u) too."
    )


def _figures(said: EngineSummary) -> str:
    parts = []
    for name, level, form in (
        ("running", said.running, "{:.1f}"), ("waiting", said.waiting, "{:.1f}"), ("KV cache", said.kv_used, "{:.0%}"),
    ):  # fmt: skip
        if level is not None:
            parts.append(f"{name} {form.format(level[0])} (at most {form.format(level[1])})")
    if said.preemptions is not None:
        parts.append(f"preemptions {said.preemptions}")
    if said.cache_share is not None:
        parts.append(f"prefix cache {said.cache_share:.0%} of prompt tokens")
    for name, seconds in (("TTFT", said.ttft_s), ("queue", said.queue_s), ("prefill", said.prefill_s)):
        if seconds is not None:
            parts.append(f"{name} {seconds * 1e3:.1f} ms")
    return f"The server's own figures ({said.engine}, {said.samples} looks, means): {', '.join(parts)}."


def _queue_or_prefill(said: EngineSummary) -> Iterator[str]:
    if said.queue_s is not None and said.prefill_s is not None and said.queue_s + said.prefill_s > 0:
        share = said.queue_s / (said.queue_s + said.prefill_s)
        if share >= QUEUED:
            yield (
                f"{QUESTION} The queue: {share:.0%} of the time before a first token was spent waiting in the "
                "server. More load only lengthens it; a prefill limit moves that wait to the gate."
            )
        else:
            yield (
                f"{QUESTION} Prefill: {1 - share:.0%} of the time before a first token the server was computing the "
                "prompt. Shorter prompts, a prefix cache or a faster prefill would shorten it."
            )
    elif said.waiting is not None and said.waiting[0] >= WAITS:
        yield (
            f"{QUESTION} The queue: on average {said.waiting[0]:.1f} requests waited in the server, and it does not "
            "say for how long."
        )
