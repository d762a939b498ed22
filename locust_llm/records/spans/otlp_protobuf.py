"""OTLP as protobuf, the default form of exporters. It needs opentelemetry-proto, which is
optional."""

from importlib.util import find_spec
from typing import Final

from .span import ATTRIBUTES, Span

MISSING: Final = (
    "reading OTLP protobuf requires a package: pip install 'locust-llm[otlp]' (opentelemetry-proto)"
)
NUMBERS: Final = ("double_value", "int_value")


def is_protobuf_available() -> bool:
    try:
        return find_spec("opentelemetry.proto.collector.trace.v1.trace_service_pb2") is not None
    except (ImportError, ValueError):
        return False


def decode_otlp_protobuf(data: bytes) -> list[Span]:
    """The spans of an ExportTraceServiceRequest. Raises ValueError for anything else, and
    ImportError without the package."""
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    try:
        export = ExportTraceServiceRequest.FromString(data)
    except (DecodeError, RecursionError) as error:
        raise ValueError(str(error) or "not protobuf of this kind") from None
    decoded = []
    for resource in export.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                attributes = {}
                for attribute in span.attributes:
                    if (key := attribute.key) in ATTRIBUTES:
                        kind = attribute.value.WhichOneof("value")
                        attributes[key] = (
                            float(getattr(attribute.value, kind))
                            if kind in NUMBERS
                            else float("nan")
                        )
                decoded.append(
                    Span(
                        span.trace_id.hex(),
                        span.name,
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                        attributes,
                    )
                )
    return decoded
