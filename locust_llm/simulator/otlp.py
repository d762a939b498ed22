"""OTLP over HTTP, written by hand: spans as protobuf or JSON, sent in batches by a queue that holds up nobody."""

from __future__ import annotations

import asyncio
import json
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import urlsplit

PROTOCOLS: Final = {"http/protobuf": "application/x-protobuf", "http/json": "application/json"}
BATCH: Final = 512
EVERY_S: Final = 0.5
MAX_QUEUED: Final = 32_768
POST_S: Final = 5.0
"""An endpoint has so long to take a batch."""
SERVER: Final = 2
"""The kind of a span that answers a request."""

Value = str | int | float


class Span(NamedTuple):
    """Of opentelemetry/proto/trace/v1/trace.proto. ``parent_id`` is empty where there is none; Unix nanoseconds."""

    name: str
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value]


class Encoder:
    """``span``: the bytes of one, made when it ends; ``request``: of an ExportTraceServiceRequest with those of many."""

    def __init__(self, protocol: str, service: str) -> None:
        self.content_type, self._json = PROTOCOLS[protocol], protocol == "http/json"
        self.service = service

    def span(self, span: Span) -> bytes:
        return _json(_json_span(span)) if self._json else _field(2, _protobuf_span(span))

    def request(self, spans: Sequence[bytes]) -> bytes:
        if self._json:
            resource = _json({"attributes": _json_attributes({"service.name": self.service})})
            scope = _json({"name": self.service})
            head = b'{"resourceSpans":[{"resource":%b,"scopeSpans":[{"scope":%b,"spans":[' % (resource, scope)
            return head + b",".join(spans) + b"]}]}]}"
        resource = _attributes(1, {"service.name": self.service})
        scope_spans = _field(1, _field(1, self.service.encode())) + b"".join(spans)
        return _field(1, _field(1, resource) + _field(2, scope_spans))


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _json_span(span: Span) -> dict[str, object]:
    """protobuf's JSON, but for the ids, which are in hex; integers of 64 bits are texts."""
    found: dict[str, object] = {"traceId": span.trace_id.hex(), "spanId": span.span_id.hex()}
    if span.parent_id:
        found["parentSpanId"] = span.parent_id.hex()
    times = {"startTimeUnixNano": str(span.start_ns), "endTimeUnixNano": str(span.end_ns)}
    return found | {"name": span.name, "kind": SERVER, **times, "attributes": _json_attributes(span.attributes)}


def _json_attributes(attributes: Mapping[str, Value]) -> list[dict[str, object]]:
    def form(value: Value) -> dict[str, Value]:
        if isinstance(value, str):
            return {"stringValue": value}
        return {"doubleValue": value} if isinstance(value, float) else {"intValue": str(value)}

    return [{"key": key, "value": form(value)} for key, value in attributes.items()]


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def _field(number: int, data: bytes) -> bytes:
    """One with a length: text, bytes or a message."""
    return bytes((number << 3 | 2,)) + _varint(len(data)) + data


def _protobuf_span(span: Span) -> bytes:
    parent = _field(4, span.parent_id) if span.parent_id else b""
    times = struct.pack("<BQBQ", 7 << 3 | 1, span.start_ns, 8 << 3 | 1, span.end_ns)
    ids = _field(1, span.trace_id) + _field(2, span.span_id) + parent + _field(5, span.name.encode())
    return ids + bytes((6 << 3, SERVER)) + times + _attributes(9, span.attributes)


def _attributes(number: int, attributes: Mapping[str, Value]) -> bytes:
    return b"".join(
        _before_double(number, key) + _DOUBLE.pack(value) if isinstance(value, float) else _pair(number, key, value)
        for key, value in attributes.items()
    )


def _pair(number: int, key: str, value: str | int) -> bytes:
    number_or_text = _field(1, value.encode()) if isinstance(value, str) else b"\x18" + _varint(value % 2**64)
    return _field(number, _field(1, key.encode()) + _field(2, number_or_text))


_DOUBLE: Final = struct.Struct("<d")


@lru_cache(256)
def _before_double(number: int, key: str) -> bytes:
    """Most attributes are doubles, and only their last eight bytes differ."""
    form = _field(2, bytes((4 << 3 | 1, *bytes(8))))
    return _field(number, _field(1, key.encode()) + form)[:-8]


# -- on their way ------------------------------------------------------------------------------------------------------


class Sender:
    """Every EVERY_S, or as soon as there are BATCH of them, spans go to the endpoint. What does not fit in the queue is
    dropped, and so is a batch that is not taken: both are counted, nobody waits."""

    def __init__(self, url: str, encoder: Encoder) -> None:
        """``url``: where it has no path /v1/traces is meant. Raises ValueError for one that is not plain HTTP."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"--otlp-traces-endpoint must be an address such as http://127.0.0.1:4318, got {url}")
        self.host, self.port = parts.hostname, parts.port or 4318
        self.path = parts.path if parts.path.strip("/") else "/v1/traces"
        self.netloc, self.encoder = parts.netloc, encoder
        self.sent = self.dropped = 0
        self._queue: deque[bytes] = deque()
        self._full = asyncio.Event()

    def add(self, span: Span) -> None:
        if len(self._queue) >= MAX_QUEUED:
            self.dropped += 1
            return
        self._queue.append(self.encoder.span(span))
        if len(self._queue) >= BATCH:
            self._full.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._full.wait(), EVERY_S)
            self._full.clear()
            await self.flush()

    async def flush(self) -> None:
        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            if await self._taken(self.encoder.request(batch)):
                self.sent += len(batch)
            else:
                self.dropped += len(batch)

    async def _taken(self, body: bytes) -> bool:
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: {self.netloc}\r\nContent-Type: {self.encoder.content_type}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer = None
        try:
            async with asyncio.timeout(POST_S):
                reader, writer = await asyncio.open_connection(self.host, self.port)
                writer.write(head.encode() + body)
                status = (await reader.readline()).split()
                return len(status) > 1 and status[1].startswith(b"2")
        except (OSError, TimeoutError, ValueError):  # ValueError: a line without end
            return False
        finally:
            if writer:
                writer.close()
