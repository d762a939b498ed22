"""OTLP over HTTP: a request to a receiver of OTLP/HTTP, its body, and the response.

The form: opentelemetry.io/docs/specs/otlp, "OTLP/HTTP".
"""

import zlib
from typing import Final, NamedTuple

import msgspec

from locust_llm.records.spans import otlp_json, otlp_protobuf
from locust_llm.records.spans.span import Span

MAX_BYTES: Final = 1 << 23
"""A body has at most so many bytes, also unpacked: 5,000 spans or more. Exporters send 512 at a
time."""
PATH: Final = "/v1/traces"
PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
_GZIP: Final = 31
"""zlib's wbits for a gzip header and the largest window."""


class ExportRefused(Exception):
    """The request exports no spans. ``args`` are the HTTP status and the reason."""

    @property
    def status(self) -> int:
        return int(self.args[0])

    @property
    def why(self) -> str:
        return str(self.args[1])


class ExportResponse(NamedTuple):
    status: int
    kind: str
    body: bytes


def parse_content_type(content_type: str) -> str:
    """Raises ExportRefused."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in (PROTOBUF, JSON):
        raise ExportRefused(415, f"Content-Type must be {PROTOBUF} or {JSON}")
    if kind == PROTOBUF and not otlp_protobuf.is_protobuf_available():
        raise ExportRefused(415, otlp_protobuf.MISSING)
    return kind


def parse_content_length(text: str | None) -> int:
    """The length of the body. Raises ExportRefused."""
    if text is None:
        raise ExportRefused(411, "Content-Length is missing")
    if not (text.isascii() and text.isdigit()):
        raise ExportRefused(400, "Content-Length is not a number")
    if len(text) > 12 or int(text) > MAX_BYTES:
        raise ExportRefused(
            413, f"more than {MAX_BYTES >> 20} MB: let the exporter send fewer spans at a time"
        )
    return int(text)


def decode_exported_spans(kind: str, coding: str, body: bytes) -> list[Span]:
    """Raises ExportRefused."""
    coding = coding.strip().lower()
    if coding == "gzip":
        body = _unpacked(body)
    elif coding not in ("", "identity"):
        raise ExportRefused(415, "Content-Encoding must be gzip, or none")
    try:
        return (
            otlp_protobuf.decode_otlp_protobuf(body)
            if kind == PROTOBUF
            else otlp_json.decode_otlp_json(body)
        )
    except ValueError as error:
        raise ExportRefused(400, f"not OTLP spans: {str(error)[:200]}") from None


def _unpacked(body: bytes) -> bytes:
    unpack = zlib.decompressobj(_GZIP)
    try:
        data = unpack.decompress(body, MAX_BYTES + 1)
    except zlib.error as error:
        raise ExportRefused(400, f"not valid gzip: {error}") from None
    if len(data) > MAX_BYTES:
        raise ExportRefused(413, f"more than {MAX_BYTES >> 20} MB when unpacked")
    if not unpack.eof:
        raise ExportRefused(400, "not valid gzip: it is incomplete")
    return data


def accept_export(kind: str) -> ExportResponse:
    """The response that all spans were accepted: an empty ExportTraceServiceResponse."""
    return ExportResponse(200, kind, b"{}" if kind == JSON else b"")


def refuse_export(status: int, why: str, kind: str) -> ExportResponse:
    """A google.rpc.Status with the message ``why``. ``kind`` is the request's."""
    if kind != PROTOBUF:
        return ExportResponse(status, JSON, msgspec.json.encode({"message": why}))
    text = why.encode()[:16_000]
    length = (
        bytes([len(text)]) if len(text) < 128 else bytes([len(text) & 127 | 128, len(text) >> 7])
    )
    return ExportResponse(status, PROTOBUF, b"\x12" + length + text)  # field 2, with its length
