"""OTLP as JSON: an export of spans, as an exporter posts it, and as the collector's file exporter
writes it on each line.

Ids are hex (not base64, as elsewhere in JSON of protobuf). 64-bit numbers may be texts:
opentelemetry.io/docs/specs/otlp, "JSON Protobuf Encoding".
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

import msgspec

from .span import ATTRIBUTES, Span

Number = int | float | str | None


class _Value(msgspec.Struct, rename="camel", gc=False):
    double_value: Any = None
    int_value: Any = None


class _Attribute(msgspec.Struct, gc=False):
    key: str = ""
    value: _Value | None = None


class _Span(msgspec.Struct, rename="camel", gc=False):
    trace_id: str = ""
    name: str = ""
    start_time_unix_nano: Number = 0
    end_time_unix_nano: Number = 0
    attributes: list[_Attribute] | None = None


class _Scope(msgspec.Struct, gc=False):
    spans: list[_Span] | None = None


class _Resource(msgspec.Struct, rename="camel", gc=False):
    scope_spans: list[_Scope] | None = None
    instrumentation_library_spans: list[_Scope] | None = None
    """The name of ``scope_spans`` until 2022."""


class _Export(msgspec.Struct, rename="camel", gc=False):
    resource_spans: list[_Resource] | None


_decode: Final = msgspec.json.Decoder(_Export | list[_Export]).decode


def decode_otlp_json(data: bytes) -> list[Span]:
    """The spans of an export, or of a list of exports. Raises ValueError for anything else."""
    try:
        export = _decode(data)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
    exports = export if isinstance(export, list) else [export]
    return list(map(_span, chain.from_iterable(map(_spans, exports))))


def _spans(export: _Export) -> Iterator[_Span]:
    for resource in export.resource_spans or ():
        for scope in (
            *(resource.scope_spans or ()),
            *(resource.instrumentation_library_spans or ()),
        ):
            yield from scope.spans or ()


def _span(span: _Span) -> Span:
    return Span(
        span.trace_id.lower(),
        span.name,
        _read_whole_number(span.start_time_unix_nano),
        _read_whole_number(span.end_time_unix_nano),
        {
            attribute.key: _seconds(attribute.value)
            for attribute in span.attributes or ()
            if attribute.key in ATTRIBUTES and attribute.value is not None
        },
    )


def _read_whole_number(value: Number) -> int:
    """0: it is no number."""
    try:
        return int(value or 0)
    except (ValueError, OverflowError):
        return 0


def _seconds(value: _Value) -> float:
    """NaN: it is no number."""
    number = value.int_value if value.double_value is None else value.double_value
    try:
        return float(number) if isinstance(number, int | float | str) else float("nan")
    except (ValueError, OverflowError):
        return float("nan")
