"""Ids: the trace id of a request, by which the spans of a server find back to it (W3C Trace
Context).

A trace id is 16 hex digits of the run and 16 of the request; the latter are a hash of its id, so
that nobody has to keep a table, and no id of ours is told to whoever reads the traces.
"""

from hashlib import blake2b
from random import Random
from typing import Final

HEADER: Final = "traceparent"
PART_BYTES: Final = 8
PART: Final = 2 * PART_BYTES
"""Hex digits of the run, and of the request."""


def make_run_trace(random: Random) -> str:
    """The part of a run: all zeros would be no trace id."""
    return f"{random.randrange(1, 2**64):016x}"


def make_request_part(request_id: str) -> str:
    """The part of a request."""
    return _hash(request_id).hex()


def make_request_key(request_id: str) -> int:
    """Returns the request's part of a trace ID as a number."""
    return int.from_bytes(_hash(request_id))


def _hash(request_id: str) -> bytes:
    return blake2b(request_id.encode(errors="replace"), digest_size=PART_BYTES).digest()


def make_trace_id(run: str, request_id: str) -> str:
    """32 hex digits. ``run``: ``Run.trace``."""
    return run + make_request_part(request_id)


def is_sampled(request_id: str, share: float) -> bool:
    """Whether a request is among this share of all, by its part of the trace id: OpenTelemetry's
    sampler TraceIdRatioBased takes the same ones."""
    return share >= 1 or make_request_key(request_id) < share * 2**64


def make_traceparent(run: str, request_id: str, share: float = 1.0) -> str:
    """The value of the header: version 00, the trace, a span of ours that the server's belong
    under, and whether it is sampled."""
    part = make_request_part(request_id)
    return f"00-{run}{part}-{part}-{'01' if share >= 1 or int(part, 16) < share * 2**64 else '00'}"
