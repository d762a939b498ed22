"""Engine metrics: the server's own figures at /metrics, in the same few fields whichever engine it is.

Names are those of vLLM 0.32 (tests/captures), of llama.cpp, of SGLang's and of TensorRT-LLM's documents
(docs.sglang.io/references/production_metrics.html, nvidia.github.io/TensorRT-LLM). Text format of Prometheus, 0.0.4.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import Final

import msgspec

from .text import duration, many

PATHS: Final = ("/metrics", "/prometheus/metrics")
"""Paths of the metrics; the second is TensorRT-LLM's."""
QUESTION: Final = "Queue or prefill?"
"""How the sentences begin that answer it."""
ENGINES: Final = {"vllm:": "vLLM", "sglang:": "SGLang", "llamacpp:": "llama.cpp", "trtllm_": "TensorRT-LLM"}
_MAX_VALUE: Final = 1e15
"""A larger figure is damaged."""
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
"""Each character is matched a bounded number of times for any text."""
_MAX_LINES: Final = 10_000
_BY_MAXIMUM: Final = {"kv_used"}
"""Over several engines the maximum; all other fields add up."""


class EngineSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One scrape; None: the server does not export it. Sums and counts are since the start of the server."""

    at: float
    """Unix seconds, of the request."""
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
    """None of a text without a known metric."""
    found: dict[str, float] = {}
    engine = ""
    for prefix, name, value in (line.groups() for line in islice(_LINE.finditer(text), _MAX_LINES)):
        field, number = _FIELDS[name], _number(value)
        if number is None:
            continue
        engine = engine or ENGINES[prefix]
        before = found.get(field, 0.0)
        found[field] = max(before, number) if field in _BY_MAXIMUM else before + number
    return EngineSample(at=at, engine=engine, **found) if found else None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number <= _MAX_VALUE else None


class EngineSummary(msgspec.Struct, frozen=True):
    """The server's figures over a stretch of time."""

    engine: str
    samples: int
    running: tuple[float, float] | None
    waiting: tuple[float, float] | None
    kv_used: tuple[float, float] | None
    """(mean, maximum) of these three."""
    preemptions: int | None
    cache_share: float | None
    """Tokens found in the prefix cache, of those looked for."""
    ttft_s: float | None
    queue_s: float | None
    prefill_s: float | None
    """Means of the server's own histograms over this time."""


def summarised(samples: Sequence[EngineSample]) -> EngineSummary | None:
    """The first sample is only the base of the counters. None of no samples."""
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
    """The increase of a counter; one that falls restarted with the server."""
    values = [value for sample in samples if (value := getattr(sample, field)) is not None]
    if len(values) < 2:
        return None
    return float(sum(after - before if after >= before else after for before, after in pairwise(values)))


def _mean(samples: Sequence[EngineSample], what: str) -> float | None:
    seconds, count = _grown(samples, f"{what}_s"), _grown(samples, f"{what}_count")
    return seconds / count if count and seconds is not None else None


# -- diagnosis --------------------------------------------------------------------------------------------------------

FULL_SHARE: Final = 0.95
MIN_REST_SHARE: Final = 0.02
"""Of the time to a first token: from there on it is said that this is neither queue nor prefill."""
MIN_WAITING: Final = 1.0
"""Mean number of waiting requests that counts as a queue."""
_MEMORY: Final = re.compile(
    r"out of memory|\bOOM\b|OutOfMemory|failed to allocate|no available memory for the cache", re.I
)


def diagnosis(summary: EngineSummary | None, prefill_limit: int | None = None) -> Iterator[str]:
    """The server's own figures and what follows from them; one sentence or two each."""
    if summary is None:
        return
    yield _figures(summary)
    yield from _queue_or_prefill(summary)
    full = f"up to {summary.kv_used[1]:.0%} full" if summary.kv_used is not None else "full"
    if summary.preemptions:
        limit = (
            f" The prefill limit of {prefill_limit} does not bound decoding requests: lower it and the number of users (-u)."
            if prefill_limit
            else " Try fewer users (-u), --prefill-concurrency, shorter outputs or a larger KV cache."
        )
        yield (
            f"WARNING: the server preempted {many(summary.preemptions, 'request')}: its KV cache was {full}, and preempted "
            f"requests are computed again, which shows as stalls.{limit}"
        )
    elif summary.kv_used is not None and summary.kv_used[1] >= FULL_SHARE:
        yield f"The server's KV cache was {full}: with a little more load it preempts requests or lets them wait."


def out_of_memory(message: str, prefill_limit: int | None) -> str:
    """Advice for a failure that reports the server out of memory; empty for any other failure."""
    if not _MEMORY.search(message):
        return ""
    limit = f" despite the prefill limit of {prefill_limit}" if prefill_limit else ""
    return (
        f"WARNING: the server ran out of memory{limit}, in prefill or in decode: lower --prefill-concurrency and the number "
        "of users (-u)."
    )


def _figures(summary: EngineSummary) -> str:
    parts = []
    for name, level, form in (
        ("running", summary.running, "{:.1f}"), ("waiting", summary.waiting, "{:.1f}"), ("KV cache", summary.kv_used,
        "{:.0%}"),
    ):  # fmt: skip
        if level is not None:
            parts.append(f"{name} {form.format(level[0])} (at most {form.format(level[1])})")
    if summary.preemptions is not None:
        parts.append(f"preemptions {summary.preemptions}")
    if summary.cache_share is not None:
        parts.append(f"prefix cache {summary.cache_share:.0%} of prompt tokens")
    for name, seconds in (("TTFT", summary.ttft_s), ("queue", summary.queue_s), ("prefill", summary.prefill_s)):
        if seconds is not None:
            parts.append(f"{name} {duration(seconds)}")
    return (
        f"The server's own figures ({summary.engine}, means of {many(summary.samples, 'sample')}): {', '.join(parts)}."
    )


def _queue_or_prefill(summary: EngineSummary) -> Iterator[str]:
    """Of the server's own TTFT, where it is no shorter than both together, else of both together."""
    queue_s, prefill_s = summary.queue_s, summary.prefill_s
    if queue_s is not None and prefill_s is not None and queue_s + prefill_s > 0:
        whole_s = max(summary.ttft_s or 0.0, queue_s + prefill_s)
        rest_s = whole_s - queue_s - prefill_s
        neither = "" if rest_s < MIN_REST_SHARE * whole_s else f", {duration(rest_s)} neither"
        parts = f"of {duration(whole_s)} to a first token {duration(queue_s)} are queue, {duration(prefill_s)} prefill"
        parts += neither
        if rest_s > max(queue_s, prefill_s):
            yield f"{QUESTION} Neither: {parts}. What else the server does before a first token, its metrics do not say."
        elif queue_s >= prefill_s:
            yield (
                f"{QUESTION} The queue, {queue_s / whole_s:.0%}: {parts}. More load makes the queue longer; a prefill limit "
                "moves the wait to the gate."
            )
        else:
            yield (
                f"{QUESTION} Prefill, {prefill_s / whole_s:.0%}: {parts}. Shorter prompts, a prefix cache or a faster "
                "prefill would shorten it."
            )
    elif summary.waiting is not None and summary.waiting[0] >= MIN_WAITING:
        yield (
            f"{QUESTION} The queue: on average {summary.waiting[0]:.1f} requests waited in the server, which does not "
            "export for how long."
        )
