"""OTLP encoder: encodes spans as protobuf or JSON with the package opentelemetry-proto (the extra
``otlp``)."""

import json
from collections.abc import Sequence
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtobufSpan

from .span_sender import PROTOCOLS, SimulatedSpan, Value


class Encoder:
    """Encodes a span when it ends, so that a batch does not delay the answers of other requests."""

    def __init__(self, protocol: str, service: str) -> None:
        self.content_type = PROTOCOLS[protocol]
        self.service = service
        self._as_json = protocol == "http/json"

    def encode_span(self, span: SimulatedSpan) -> Any:
        """Encodes a span in the form in which it waits for its batch."""
        message = ProtobufSpan(
            trace_id=span.trace_id,
            span_id=span.span_id,
            parent_span_id=span.parent_id,
            name=span.name,
            kind=ProtobufSpan.SPAN_KIND_SERVER,
            start_time_unix_nano=span.start_ns,
            end_time_unix_nano=span.end_ns,
        )
        for key, value in span.attributes.items():
            _set_value(message.attributes.add(key=key).value, value)
        return _convert_span_to_json(message) if self._as_json else message

    def encode_request(self, spans: Sequence[Any]) -> bytes:
        """Encodes an ExportTraceServiceRequest with ``spans`` from ``encode_span``."""
        request = ExportTraceServiceRequest()
        resource_spans = request.resource_spans.add()
        _set_value(resource_spans.resource.attributes.add(key="service.name").value, self.service)
        scope_spans = resource_spans.scope_spans.add()
        scope_spans.scope.name = self.service
        if self._as_json:
            content = MessageToDict(request)
            content["resourceSpans"][0]["scopeSpans"][0]["spans"] = list(spans)
            return json.dumps(content, separators=(",", ":")).encode()
        # the only copy: an outer message made from an inner one copies it once more
        scope_spans.spans.extend(spans)
        encoded: bytes = request.SerializeToString()
        return encoded


def _convert_span_to_json(message: ProtobufSpan) -> dict[str, Any]:
    """OTLP's JSON differs from protobuf's: ids are hexadecimal, and enums are numbers."""
    content: dict[str, Any] = MessageToDict(message, use_integers_for_enums=True)
    content["traceId"] = message.trace_id.hex()
    content["spanId"] = message.span_id.hex()
    if message.parent_span_id:
        content["parentSpanId"] = message.parent_span_id.hex()
    return content


def _set_value(place: AnyValue, value: Value) -> None:
    match value:
        case str():
            place.string_value = value
        case float():
            place.double_value = value
        case int():
            place.int_value = value
