"""Request spans: the spans of a finished request, and the log record of a failure, by the
conventions for GenAI clients.

github.com/open-telemetry/semantic-conventions-genai, docs/gen-ai/gen-ai-spans.md. Their ids are in
the ``traceparent`` of the request, so the server's spans lie below ours.
"""

from collections.abc import Iterator
from typing import Final

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from locust_llm.records.outcomes import OK
from locust_llm.records.record import Record
from locust_llm.records.spans.trace_ids import make_request_key

from .otel_metrics import common_attributes
from .telemetry_frames import RunDescription

GATE: Final = "prefill gate"
Value = str | int | float | bool | tuple[str, ...]
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


def make_span_context(trace: str, key: int, flags: TraceFlags = _SAMPLED) -> SpanContext:
    """The context of a request's span. ``key`` is ``make_request_key`` of its id."""
    return SpanContext((int(trace, 16) << 64) + key, key, is_remote=False, trace_flags=flags)


def build_request_spans(
    about: RunDescription, record: Record, resource: Resource, scope: InstrumentationScope
) -> tuple[ReadableSpan, ...]:
    """A span of the request, from the gate to the end of its answer, and a span of its wait at the
    gate."""
    own = make_span_context(about.trace, make_request_key(record.id))
    attributes = _attributes(about, record)
    span = ReadableSpan(
        name=f"{about.operation} {record.model}".rstrip(),
        context=own,
        resource=resource,
        attributes=attributes,
        events=[*_events(record)],
        kind=SpanKind.CLIENT,
        status=Status() if record.outcome == OK else Status(StatusCode.ERROR, record.error),
        start_time=_unix_ns(record, record.asked_at),
        end_time=_unix_ns(record, record.closed_at),
        instrumentation_scope=scope,
    )
    if record.limit is None or record.admitted_at is None:
        return (span,)
    gate = ReadableSpan(
        name=GATE,
        context=SpanContext(
            own.trace_id,
            make_request_key(f"{record.id} {GATE}"),
            is_remote=False,
            trace_flags=_SAMPLED,
        ),
        parent=own,
        resource=resource,
        attributes={"locust_llm.gate.limit": record.limit},
        start_time=_unix_ns(record, record.asked_at),
        end_time=_unix_ns(record, record.admitted_at),
        instrumentation_scope=scope,
    )
    return span, gate


def build_failure_log(
    about: RunDescription,
    record: Record,
    resource: Resource,
    scope: InstrumentationScope,
    *,
    sampled: bool,
) -> ReadableLogRecord:
    """The log record of a failed request."""
    own = make_span_context(
        about.trace, make_request_key(record.id), _SAMPLED if sampled else TraceFlags()
    )
    at_ns = _unix_ns(record, record.closed_at)
    line = LogRecord(
        timestamp=at_ns,
        observed_timestamp=at_ns,
        severity_text="ERROR",
        severity_number=SeverityNumber.ERROR,
        body=f"{record.outcome}: {record.error}" if record.error else record.outcome,
        attributes={**dict(common_attributes(about, record)), **_outcome(record)},
        context=set_span_in_context(NonRecordingSpan(own)),
    )
    return ReadableLogRecord(line, resource, scope)


def _attributes(about: RunDescription, record: Record) -> dict[str, Value]:
    usage = record.tokens_from == "usage"
    known: dict[str, Value | None] = {
        "gen_ai.request.stream": about.streaming or None,
        "gen_ai.request.max_tokens": record.asked_output_tokens,
        "gen_ai.request.choice.count": record.choices if record.choices > 1 else None,
        "gen_ai.conversation.id": record.session or None,
        "gen_ai.response.finish_reasons": None
        if record.finish_reason is None
        else (record.finish_reason,),
        "gen_ai.response.time_to_first_chunk": record.ttft_s if record.streamed else None,
        "gen_ai.usage.input_tokens": record.input_tokens if usage else None,
        "gen_ai.usage.output_tokens": record.output_tokens if usage else None,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "gen_ai.usage.reasoning.output_tokens": record.reasoning_tokens,
        "locust_llm.name": record.name,
        "locust_llm.user_class": record.user_class,
        "locust_llm.stage": record.stage or None,
        "locust_llm.turn": record.turn if record.session else None,
        "locust_llm.attempt": record.attempt if record.attempt > 1 else None,
        "locust_llm.chunks": len(record.chunk_us),
        "locust_llm.late_s": record.late_s,
        "locust_llm.backend": record.backend or None,
    }
    attributes = {name: value for name, value in known.items() if value is not None}
    return {**dict(common_attributes(about, record)), **attributes, **_outcome(record)}


def _outcome(record: Record) -> dict[str, Value]:
    attributes: dict[str, Value] = {"locust_llm.request_id": record.id}
    if record.status is not None:
        attributes["http.response.status_code"] = record.status
    if record.outcome != OK:
        attributes |= {"error.type": record.outcome, "locust_llm.broke_in": record.broke_in}
    return attributes


def _events(record: Record) -> Iterator[Event]:
    if record.sent_at is None:
        return
    yield Event("sent", timestamp=_unix_ns(record, record.sent_at))
    if record.chunk_us:
        yield Event("first_token", timestamp=_unix_ns(record, record.sent_at, record.chunk_us[0]))
    if record.first_output:  # 0: the first chunk is one
        yield Event(
            "first_output",
            timestamp=_unix_ns(record, record.sent_at, record.chunk_us[record.first_output]),
        )


def _unix_ns(record: Record, at: float, us: int = 0) -> int:
    """A stamp, and microseconds after it. They are rounded together, so that a child never ends
    after its parent by rounding."""
    return round((record.clock_offset_s + at) * 1e6) * 1000 + us * 1000
