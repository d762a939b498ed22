"""Trace ids: the trace id of a request, by which a server's spans are joined to it (W3C Trace
Context).

A trace id has 16 hex digits of the run and 16 of the request. The request's part is a hash of its
id. So nobody has to keep a table, and readers of the traces learn no id of ours.
"""

from hashlib import blake2b
from random import Random
from typing import Final

HEADER: Final = "traceparent"
PART_BYTES: Final = 8
PART: Final = 2 * PART_BYTES
"""The hex digits of the run's part, and of the request's part."""


def make_run_trace(random: Random) -> str:
    """The run's part of a trace id, which is never all zeros."""
    return f"{random.randrange(1, 2**64):016x}"


def make_request_part(request_id: str) -> str:
    return _hash(request_id).hex()


def make_request_key(request_id: str) -> int:
    """The request's part of a trace id, as a number."""
    return int.from_bytes(_hash(request_id))


def _hash(request_id: str) -> bytes:
    return blake2b(request_id.encode(errors="replace"), digest_size=PART_BYTES).digest()


def make_trace_id(run: str, request_id: str) -> str:
    """32 hex digits. ``run`` is ``Run.trace``."""
    return run + make_request_part(request_id)


def is_sampled(request_id: str, share: float) -> bool:
    """Whether a request is in this share of all, by its part of the trace id. OpenTelemetry's
    sampler TraceIdRatioBased chooses the same requests."""
    return share >= 1 or make_request_key(request_id) < share * 2**64


def make_traceparent(run: str, request_id: str, share: float = 1.0) -> str:
    """The value of the header: version 00, the trace id, the id of the span above the server's
    spans, and whether it is sampled."""
    part = make_request_part(request_id)
    return f"00-{run}{part}-{part}-{'01' if share >= 1 or int(part, 16) < share * 2**64 else '00'}"
