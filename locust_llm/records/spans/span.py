"""Span: what is kept of one span of a server, and the server times in its attributes."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from locust_llm.records.server_times import SPANS, ServerTimes

ATTRIBUTES: Final[Mapping[str, str]] = MappingProxyType({
    "gen_ai.latency.time_in_queue": "queue_us",
    "gen_ai.latency.time_in_model_prefill": "prefill_us",
    "gen_ai.latency.time_in_model_decode": "decode_us",
    "gen_ai.latency.time_in_model_inference": "inference_us",
    "gen_ai.latency.time_to_first_token": "ttft_us",
    "gen_ai.latency.e2e": "e2e_us",
})  # fmt: skip
"""The attributes in seconds and the fields here. vLLM: ``vllm/tracing/utils.py``, the same names
since 0.4 (its V0 engine lacks the three of the model). SGLang:
``srt/observability/req_time_stats.py``. llm-d passes on vLLM's."""
MAX_S: Final = 86_400.0
"""A longer time has another unit, or is no time: some servers write nanoseconds under these
names."""
MAX_UNIX_S: Final = 1e11


class Span(msgspec.Struct, frozen=True):
    """One span. Times are Unix nanoseconds of the server's clock."""

    trace_id: str
    """32 hex digits in lower case."""
    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, float]
    """Only the attributes in ``ATTRIBUTES``, in seconds."""


def extract_server_times(span: Span) -> ServerTimes | None:
    """None: it has none of these attributes. Raises ValueError where one of them is impossible."""
    times_us: dict[str, int] = {}
    for name, seconds in span.attributes.items():
        if not 0 <= seconds <= MAX_S:  # NaN too
            raise ValueError(f"{name} = {seconds:g} s in a span {span.name[:60]!r}")
        times_us[ATTRIBUTES[name]] = round(seconds * 1e6)
    # SGLang counts both from the dispatch to its scheduler: they hold the queue
    if "queue_us" not in times_us:
        times_us.pop("prefill_us", None)
        times_us.pop("inference_us", None)
    if not times_us:
        return None
    arrived_at = span.start_ns / 1e9
    return ServerTimes(
        source=SPANS, arrived_at=arrived_at if 0 < arrived_at < MAX_UNIX_S else None, **times_us
    )
