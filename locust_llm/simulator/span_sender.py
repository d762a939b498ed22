"""Span sender: sends spans in batches over HTTP, from a queue that never blocks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from .otlp_encoder import Encoder

PROTOCOLS: Final = {"http/protobuf": "application/x-protobuf", "http/json": "application/json"}
BATCH: Final = 512
EVERY_S: Final = 0.5
MAX_QUEUED: Final = 32_768
POST_S: Final = 5.0
"""An endpoint must accept a batch within this time."""

Value = str | int | float


class SimulatedSpan(NamedTuple):
    """Holds the fields of opentelemetry/proto/trace/v1/trace.proto. ``parent_id`` may be empty.
    Times are Unix nanoseconds."""

    name: str
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value]


class SpanSender:
    """Sends spans every EVERY_S, or as soon as there are BATCH of them. Spans beyond the queue are
    dropped, and so is a batch that the endpoint refuses. Both are counted, and nothing waits."""

    def __init__(self, url: str, encoder: Encoder) -> None:
        """Parses ``url``, whose path defaults to /v1/traces. Raises ValueError unless it is plain
        HTTP."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(
                f"--otlp-traces-endpoint must be an address such as http://127.0.0.1:4318, got "
                f"{url}"
            )
        self.host = parts.hostname
        self.port = parts.port or 4318
        self.path = parts.path if parts.path.strip("/") else "/v1/traces"
        self.netloc = parts.netloc
        self.encoder = encoder
        self.sent = self.dropped = 0
        self._queue: deque[Any] = deque()
        self._full = asyncio.Event()

    def add(self, span: SimulatedSpan) -> None:
        if len(self._queue) >= MAX_QUEUED:
            self.dropped += 1
            return
        self._queue.append(self.encoder.encode_span(span))
        if len(self._queue) >= BATCH:
            self._full.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._full.wait(), EVERY_S)
            self._full.clear()
            await self.flush()

    async def flush(self) -> None:
        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            if await self._post(self.encoder.encode_request(batch)):
                self.sent += len(batch)
            else:
                self.dropped += len(batch)

    async def _post(self, body: bytes) -> bool:
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: {self.netloc}\r\nContent-Type: "
            f"{self.encoder.content_type}\r\n"
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
