"""Server times: how long one request waited and was computed, as the server itself reports it."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Final, NamedTuple

import msgspec

Micros = Annotated[int, msgspec.Meta(ge=0, le=10**13)]
Unix = Annotated[float, msgspec.Meta(ge=0, le=1e11)]

SPANS: Final = "spans"
TIMINGS: Final = "timings"
METRICS: Final = "metrics"
HEADERS: Final = "headers"
SLACK_US: Final = 5_000
"""A time of the server may be longer than the client's view of it by so much, as its clock is read
beside its writes."""


class ServerTimes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Durations in whole microseconds, by the server's clock; None: it did not report this one.

    They are only added to and subtracted from each other, so that the offset of the server's clock
    enters no sum.
    """

    source: str
    """``spans`` (OpenTelemetry), ``timings`` (llama.cpp's last event), ``metrics`` (vLLM's last
    event), ``headers`` (of the response)."""
    queue_us: Micros | None = None
    """The time from its arrival to the start of its first step."""
    prefill_us: Micros | None = None
    """The time from there to its first token, with whatever else was computed in and between the
    same steps."""
    decode_us: Micros | None = None
    """The time from the first token to the last."""
    inference_us: Micros | None = None
    """The time from the start of its first step to its last token: prefill and decode. Some servers
    report only their sum."""
    ttft_us: Micros | None = None
    """The time from its arrival at the server's front end to its first token."""
    e2e_us: Micros | None = None
    """The time from its arrival to its last token."""
    arrived_at: Unix | None = None
    """Unix seconds of the server's clock. They only place the request beside others of the same
    server."""


# -- of the answer itself --------------------------------------------------------------------------

OF_HEADERS: Final[Mapping[str, str]] = MappingProxyType({
    "x-queue-time": "queue_us",
    "x-inference-time": "inference_us",
    "x-total-time": "e2e_us",
})  # fmt: skip
"""The headers in milliseconds and the fields here: Text Generation Inference,
``router/src/server.rs``, and LoRAX after it."""
OF_WHOLE: Final = (
    "openai-processing-ms",
    "x-envoy-upstream-service-time",
    "x-litellm-response-duration-ms",
)
"""The headers in milliseconds of the time to the answer's own headers (OpenAI's API, Envoy,
LiteLLM's proxy). For an answer that is not streamed this is the whole time; for a stream it is no
meaningful time."""
OF_SERVER_TIMING: Final[Mapping[str, str]] = MappingProxyType({
    "queue": "queue_us", "prefill": "prefill_us", "decode": "decode_us",
    "inference": "inference_us", "ttft": "ttft_us",
    "total": "e2e_us",
})  # fmt: skip
"""The metric names in ``Server-Timing`` (W3C), whose ``dur`` is in milliseconds. The standard
defines no names."""
HEADER_NAMES: Final = frozenset({*OF_HEADERS, *OF_WHOLE, "server-timing"})
MOST_US: Final = 10**13
MOST_DRAFTED: Final = 10**9
"""The most draft tokens of a request."""
MOST_BYTES: Final = 4096
"""A longer Server-Timing is not read."""


class _Timings(msgspec.Struct):
    prompt_ms: float | None = None
    predicted_ms: float | None = None


_timings: Final = msgspec.json.Decoder(_Timings).decode


def parse_llama_timings(data: msgspec.Raw) -> ServerTimes | None:
    """Reads llama.cpp's ``timings`` (``tools/server``): prefill and decode. None: they are another
    server's, or impossible."""
    try:
        timings = _timings(data)
    except (ValueError, RecursionError):
        return None
    prefill = _micros(timings.prompt_ms)
    decode = _micros(timings.predicted_ms)
    return (
        None
        if prefill is None and decode is None
        else ServerTimes(source=TIMINGS, prefill_us=prefill, decode_us=decode)
    )


class _Metrics(msgspec.Struct):
    queue_time_ms: float | None = None
    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None


_metrics: Final = msgspec.json.Decoder(_Metrics).decode


def parse_vllm_metrics(data: msgspec.Raw) -> ServerTimes | None:
    """Reads vLLM's ``metrics`` (``--enable-per-request-metrics``, ``entrypoints/generate/base``).
    None: they are another server's, or impossible.

    Its ``time_to_first_token_ms`` begins with the first step of the request and not with its
    arrival: it is the prefill.
    """
    try:
        metrics = _metrics(data)
    except (ValueError, RecursionError):
        return None
    queue = _micros(metrics.queue_time_ms)
    prefill = _micros(metrics.time_to_first_token_ms)
    decode = _micros(metrics.generation_time_ms)
    if queue is None and prefill is None and decode is None:
        return None
    return ServerTimes(source=METRICS, queue_us=queue, prefill_us=prefill, decode_us=decode)


class _Speculation(msgspec.Struct):
    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int


class _Speculating(msgspec.Struct):
    speculative_decoding: _Speculation


_speculating: Final = msgspec.json.Decoder(_Speculating).decode


class DraftCounts(NamedTuple):
    steps: int
    """The steps with a draft."""
    drafted: int
    accepted: int
    """Accepted tokens."""


def parse_vllm_drafts(data: msgspec.Raw) -> DraftCounts | None:
    """Reads vLLM's ``metrics.speculative_decoding`` (``--per-request-spec-decode-metrics``). None:
    they are missing or impossible."""
    try:
        counts = _speculating(data).speculative_decoding
    except (ValueError, RecursionError):
        return None
    drafts = DraftCounts(
        counts.num_spec_steps, counts.num_draft_tokens, counts.num_accepted_draft_tokens
    )
    sound = (
        0 <= drafts.accepted <= drafts.drafted <= MOST_DRAFTED
        and 0 <= drafts.steps <= drafts.drafted
    )
    return drafts if sound else None


def parse_timing_headers(get: Callable[[str], object], *, streamed: bool) -> ServerTimes | None:
    """Reads the headers of an answer. None: it has none of them, or impossible values.

    ``get`` gives a header by its name in lower case, None where it is missing.
    """
    times_us: dict[str, int] = {}
    for name, field in OF_HEADERS.items():
        if (us := _micros(get(name))) is not None:
            times_us[field] = us
    if (text := get("server-timing")) is not None:
        times_us |= _server_timing(str(text)[:MOST_BYTES])
    for name in () if streamed else OF_WHOLE:
        if (us := _micros(get(name))) is not None:
            times_us.setdefault("e2e_us", us)
    return ServerTimes(source=HEADERS, **times_us) if times_us else None


def _server_timing(text: str) -> dict[str, int]:
    """``queue;dur=12.5, prefill;desc="of 800 tokens";dur=90``"""
    times_us: dict[str, int] = {}
    for metric in text.split(","):
        name, *parameters = (part.strip() for part in metric.split(";"))
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            us = _micros(value.strip().strip('"')) if key.strip().lower() == "dur" else None
            if us is not None and (field := OF_SERVER_TIMING.get(name.lower())) is not None:
                times_us[field] = us
    return times_us


def _micros(ms: object) -> int | None:
    """Converts milliseconds. None: the value is no number, or impossible."""
    if ms is None:
        return None
    try:
        us = float(str(ms)) * 1e3
    except ValueError:
        return None
    return round(us) if 0 <= us <= MOST_US else None
