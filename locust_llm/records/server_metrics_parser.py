"""Server metrics parser: parses the page /metrics into the same few fields for every engine, and
the values of GPUs.

Names are those of vLLM 0.32 (tests/captures), of llama.cpp, and of the documents of SGLang
(docs.sglang.io/references/production_metrics.html), TensorRT-LLM (nvidia.github.io/TensorRT-LLM),
TGI (huggingface.co/docs/text-generation-inference/reference/metrics), Dynamo
(docs.nvidia.com/dynamo, metrics catalog) and NVIDIA's DCGM exporter
(docs.nvidia.com/datacenter/dcgm). The format is Prometheus text, 0.0.4.
"""

import re
from collections.abc import Iterable
from itertools import chain, islice, product
from typing import Any, Final

import msgspec

PATHS: Final = ("/metrics", "/prometheus/metrics")
"""The paths of the metrics. The second is TensorRT-LLM's."""
ENGINES: Final = {
    "vllm:": "vLLM",
    "sglang:": "SGLang",
    "llamacpp:": "llama.cpp",
    "trtllm_": "TensorRT-LLM",
    "tgi_": "TGI",
    "dynamo_frontend_": "Dynamo",
    "dynamo_component_": "Dynamo",
}
"""The engines by the prefix of their metrics. A Dynamo worker also has its engine's metrics, which
come first."""
DCGM: Final = "DCGM"
_MAX_VALUE: Final = 1e15
"""A larger value is damaged, or DCGM's mark of a missing one."""
_NAMES: Final = {
    "running": ("num_requests_running", "num_running_reqs", "requests_processing",
        "batch_current_size",
        "inflight_requests"),
    "waiting": ("num_requests_waiting", "num_queue_reqs", "requests_deferred", "queue_size",
        "queued_requests"),
    "kv_used": ("kv_cache_usage_perc", "gpu_cache_usage_perc", "token_usage",
        "kv_cache_utilization",
        "gpu_cache_usage_percent"),
    "generated": ("generation_tokens_total",),
    "decodes": ("n_decode_total",),
    "slots_per_decode": ("n_busy_slots_per_decode",),
    "preemptions": ("num_preemptions_total", "num_retracted_reqs_total",
        "num_retracted_requests_total"),
    "cache_queries": ("prefix_cache_queries_total", "gpu_prefix_cache_queries_total"),
    "cache_hits": ("prefix_cache_hits_total", "gpu_prefix_cache_hits_total", "cached_tokens_total",
        "prompt_tokens_cached_total"),
    "drafts": ("spec_decode_num_drafts_total",),
    "drafted": ("spec_decode_num_draft_tokens_total",),
    "accepted": ("spec_decode_num_accepted_tokens_total",),
    "acceptance": ("spec_accept_rate",),
    "ttft_s": ("time_to_first_token_seconds_sum",),
    "ttft_count": ("time_to_first_token_seconds_count",),
    "queue_s": ("request_queue_time_seconds_sum", "queue_time_seconds_sum",
        "request_queue_duration_sum"),
    "queue_count": ("request_queue_time_seconds_count", "queue_time_seconds_count",
        "request_queue_duration_count"),
    "prefill_s": ("request_prefill_time_seconds_sum",),
    "prefill_count": ("request_prefill_time_seconds_count",),
    "decode_s": ("request_decode_time_seconds_sum",),
    "decode_count": ("request_decode_time_seconds_count",),
    "inference_s": ("request_inference_time_seconds_sum", "request_inference_duration_sum"),
    "inference_count": ("request_inference_time_seconds_count", "request_inference_duration_count"),
}  # fmt: skip
_FIELDS: Final = dict[str, tuple[str, ...]]()
"""The fields of a reading, by the full name of a metric."""
for _field, _names in _NAMES.items():
    for _prefix, _name in product(ENGINES, _names):
        _FIELDS[_prefix + _name] = (_field,)
# llama.cpp counts the prompts without what was cached, SGLang with it
_FIELDS["sglang:prompt_tokens_total"] = ("cache_queries",)
_FIELDS["llamacpp:prompt_tokens_total"] = ("cache_queries",)
_FIELDS["llamacpp:prompt_tokens_cached_total"] = ("cache_queries", "cache_hits")
# the other counter of SGLang grows with the end of a request alone
_FIELDS["sglang:generation_tokens_total"] = ()
_FIELDS["sglang:realtime_tokens_total"] = ("generated",)
_LABELS: Final = {"sglang:realtime_tokens_total": 'mode="decode"'}
"""Only the samples with this label count."""
# vLLM counts the hits again here, the hits of connectors among them
_FIELDS["vllm:prompt_tokens_cached_total"] = ()
_GPU_FIELDS: Final = {
    "DCGM_FI_DEV_GPU_UTIL": ("gpu_use", 0.01),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("gpu_use", 1.0),
    "DCGM_FI_DEV_FB_USED": ("gpu_memory_bytes", float(1 << 20)),
    "DCGM_FI_DEV_POWER_USAGE": ("gpu_power_w", 1.0),
    "DCGM_FI_DEV_SM_CLOCK": ("gpu_clock_mhz", 1.0),
    "DCGM_FI_DEV_MEM_CLOCK": ("gpu_memory_clock_mhz", 1.0),
}
"""(field, factor): percent and MiB are DCGM's own units."""
PROCESS_FIELDS: Final = {
    "process_resident_memory_bytes": "memory_bytes",
    "process_open_fds": "open_files",
}
"""The names of Prometheus' own clients."""
_SUFFIXES: Final = {
    name.removeprefix(prefix)
    for name, prefix in product(_FIELDS, ENGINES)
    if name.startswith(prefix)
}
_LINE: Final = re.compile(
    rf"^((?:{'|'.join(ENGINES)})(?:{'|'.join(sorted(_SUFFIXES))})"
    rf"|{'|'.join((*_GPU_FIELDS, *PROCESS_FIELDS))})"
    r"(?:\{([^}\n]*+)\})? ([^ \n]{1,40})",
    re.MULTILINE,
)
"""For any text, each character is matched a bounded number of times."""
_GPU: Final = re.compile(r'\b(?:gpu|GPU_I_ID)="([A-Za-z0-9_.-]{1,20})"')
_MAX_LINES: Final = 10_000
_MAX_GPUS: Final = 64
"""A page shows at most so many GPUs."""
_BY_MAXIMUM: Final = {"kv_used", "acceptance"}
"""These fields take the maximum over several engines; all other fields add up."""


class EngineSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One reading of a page of metrics, or of one GPU on it. None: the page has no such value. Sums
    and counts are since the start of the server."""

    at: float
    """When the page was requested, in Unix seconds."""
    engine: str
    source: str = ""
    """The address of the page without its scheme. Empty: the server's own page."""
    gpu: str = ""
    """The number of the GPU. Empty: it is the engine."""
    failure: str = ""
    """Why the page could not be read. Then there are no values."""
    running: float | None = None
    waiting: float | None = None
    kv_used: float | None = None
    """The share of the KV cache in use: 1 is full."""
    generated: float | None = None
    """The output tokens, counted with each step."""
    decodes: float | None = None
    slots_per_decode: float | None = None
    """llama.cpp counts the decodes and their mean number of requests instead."""
    memory_bytes: float | None = None
    open_files: float | None = None
    """Of the process that has the page."""
    preemptions: float | None = None
    cache_queries: float | None = None
    cache_hits: float | None = None
    """The tokens that were looked up in the prefix cache, and the tokens found."""
    drafts: float | None = None
    drafted: float | None = None
    accepted: float | None = None
    """Speculative decoding: drafts, drafted tokens, accepted tokens."""
    acceptance: float | None = None
    """accepted / drafted of the last steps, where the server reports no counts."""
    ttft_s: float | None = None
    ttft_count: float | None = None
    queue_s: float | None = None
    queue_count: float | None = None
    prefill_s: float | None = None
    prefill_count: float | None = None
    decode_s: float | None = None
    decode_count: float | None = None
    inference_s: float | None = None
    """The time of prefill and decode together."""
    inference_count: float | None = None
    """The sums and counts of the server's own histograms."""
    gpu_use: float | None = None
    """The share of the time in which the GPU computed."""
    gpu_memory_bytes: float | None = None
    gpu_power_w: float | None = None
    gpu_clock_mhz: float | None = None
    """The clock of its multiprocessors in MHz."""
    gpu_memory_clock_mhz: float | None = None

    @property
    def generated_tokens(self) -> float | None:
        """The output tokens so far. None: the server counts none, or only those of whole answers."""
        if self.generated is None and self.decodes is not None:
            return self.decodes * (self.slots_per_decode or 0.0)
        return self.generated

    @property
    def name(self) -> str:
        """The name of its line in a chart."""
        return f"{self.source or 'server'}, GPU {self.gpu}" if self.gpu else self.source or "server"


def read_engine_samples(pieces: Iterable[str], at: float, source: str = "") -> list[EngineSample]:
    """The engine of a page and its GPUs. A page without a known metric gives nothing.

    A piece ends where a line does, so that a caller can pause between two pieces.
    """
    engines: set[str] = set()
    of_engine: dict[str, Any] = {}
    of_process: dict[str, Any] = {}
    gpus: dict[str, dict[str, Any]] = {}
    lines = chain.from_iterable(map(_LINE.finditer, pieces))
    for line in islice(lines, _MAX_LINES):
        name, labels, value = line.groups()
        number = _number(value)
        if number is None:
            continue
        if (gpu := _GPU_FIELDS.get(name)) is not None:
            number_of = " ".join(_GPU.findall(labels or ""))
            if number_of in gpus or len(gpus) < _MAX_GPUS:
                gpus.setdefault(number_of, {})[gpu[0]] = number * gpu[1]
            continue
        if (field_of_process := PROCESS_FIELDS.get(name)) is not None:
            of_process[field_of_process] = number
            continue
        if _LABELS.get(name, "") not in (labels or ""):
            continue
        for field in _FIELDS.get(name, ()):
            engines.add(
                next(engine for prefix, engine in ENGINES.items() if name.startswith(prefix))
            )
            before = of_engine.get(field, 0.0)
            of_engine[field] = max(before, number) if field in _BY_MAXIMUM else before + number
    samples = []
    if of_engine:
        engine = next(engine for engine in ENGINES.values() if engine in engines)
        fields = of_engine | of_process
        samples.append(EngineSample(at=at, engine=engine, source=source, **fields))
    return samples + [
        EngineSample(at=at, engine=DCGM, source=source, gpu=number_of or "0", **fields)
        for number_of, fields in gpus.items()
    ]


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number <= _MAX_VALUE else None
