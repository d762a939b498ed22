"""Server times: how long one request waited and was computed, as the server itself reports it."""

from typing import Annotated, Final

import msgspec

Micros = Annotated[int, msgspec.Meta(ge=0, le=10**13)]
Unix = Annotated[float, msgspec.Meta(ge=0, le=1e11)]

SPANS: Final = "spans"
TIMINGS: Final = "timings"
HEADERS: Final = "headers"


class ServerTimes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Durations in whole microseconds, by the server's clock; None: it did not report this one. They are only ever added to
    and taken from each other, so that the offset of its clock enters no sum."""

    source: str
    """``spans`` (OpenTelemetry), ``timings`` (the last event of llama.cpp), ``headers`` (of the response)."""
    queue_us: Micros | None = None
    """From its arrival to the start of its first step."""
    prefill_us: Micros | None = None
    """From there to its first token, with whatever else was computed in the same steps and between them."""
    decode_us: Micros | None = None
    """From the first token to the last."""
    ttft_us: Micros | None = None
    """From its arrival at the server's front end to its first token."""
    e2e_us: Micros | None = None
    """From its arrival to its last token."""
    arrived_at: Unix | None = None
    """Unix seconds of the server's clock; only to place it beside others of the same server."""
