"""Exports: makes span exports with vLLM's attributes in OTLP's JSON and protobuf."""

import json
from collections.abc import Iterable
from typing import Any

NAMES = {
    "queue": "gen_ai.latency.time_in_queue",
    "prefill": "gen_ai.latency.time_in_model_prefill",
    "decode": "gen_ai.latency.time_in_model_decode",
    "inference": "gen_ai.latency.time_in_model_inference",
    "ttft": "gen_ai.latency.time_to_first_token",
    "e2e": "gen_ai.latency.e2e",
}
ARRIVED_NS = 1_700_000_000_000_000_000


def span(trace_id: str, **seconds: Any) -> dict[str, Any]:
    """Makes the span of a request in OTLP/JSON. ``seconds`` has values for ``NAMES``."""
    return {
        "traceId": trace_id,
        "spanId": "00f067aa0ba902b7",
        "name": "llm_request",
        "kind": 2,
        "startTimeUnixNano": str(ARRIVED_NS),
        "endTimeUnixNano": str(ARRIVED_NS + 1_000_000_000),
        "attributes": [
            {"key": "gen_ai.request.id", "value": {"stringValue": "chatcmpl-1"}},
            {"key": "gen_ai.usage.prompt_tokens", "value": {"intValue": "800"}},
            *(
                {"key": NAMES.get(name, name), "value": _value(value)}
                for name, value in seconds.items()
            ),
        ],
    }


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    return {"intValue": str(value)} if isinstance(value, int) else {"doubleValue": value}


def export(spans: Iterable[dict[str, Any]]) -> dict[str, Any]:
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "vllm"}}]}
    return {
        "resourceSpans": [
            {"resource": resource, "scopeSpans": [{"scope": {"name": "vllm"}, "spans": [*spans]}]}
        ]
    }


def as_json(*spans: dict[str, Any]) -> bytes:
    return json.dumps(export(spans)).encode()


def as_protobuf(*spans: dict[str, Any]) -> bytes:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for one in spans:
        made = scope.spans.add()
        made.trace_id = bytes.fromhex(one["traceId"])
        made.span_id = bytes.fromhex(one["spanId"])
        made.name = one["name"]
        made.start_time_unix_nano = int(one["startTimeUnixNano"])
        made.end_time_unix_nano = int(one["endTimeUnixNano"])
        for attribute in one["attributes"]:
            added = made.attributes.add()
            value = attribute["value"]
            added.key = attribute["key"]
            if "doubleValue" in value:
                added.value.double_value = value["doubleValue"]
            elif "intValue" in value:
                added.value.int_value = int(value["intValue"])
            else:
                added.value.string_value = str(value.get("stringValue"))
    return bytes(request.SerializeToString())
