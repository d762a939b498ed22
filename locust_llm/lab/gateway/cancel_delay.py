"""Cancel delay: the time from a client's disconnect until the upstream sees it. Pure."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

import msgspec

from .upstream_log import CLIENT_GONE, UpstreamRequest

BEFORE_FIRST: Final = "before_first_token"
MIDSTREAM: Final = "midstream"
NOT_STREAMED: Final = "not_streamed"
MOMENTS: Final = {
    BEFORE_FIRST: "before the first token",
    MIDSTREAM: "in mid-stream",
    NOT_STREAMED: "not streamed",
}
"""When the client leaves."""


class CancelDelay(msgspec.Struct, frozen=True, kw_only=True):
    """What the upstream saw of the cancellations of one moment."""

    moment: str
    sent: int
    """So many clients left."""
    delays_ms: tuple[float, ...]
    """The times until the upstream saw it, sorted."""
    never: int
    """So many the upstream did not see in time."""
    unknown: int
    """So many requests did not reach the upstream, or their end is unknown."""
    waited_s: float
    """A cancellation that was not seen within this time is never seen."""

    @property
    def median_ms(self) -> float | None:
        return median(self.delays_ms) if self.delays_ms else None

    @property
    def longest_ms(self) -> float | None:
        return self.delays_ms[-1] if self.delays_ms else None


def measure_cancel_delay(
    moment: str,
    closed_ns: Mapping[str, int],
    upstream: Sequence[UpstreamRequest],
    waited_s: float,
) -> CancelDelay:
    """``closed_ns``: when the client closed its connection, by the id of its request. The upstream's
    log was read after all answers would have been complete."""
    delays = list[float]()
    never = unknown = 0
    by_id = dict[str, list[UpstreamRequest]]()
    for request in upstream:
        by_id.setdefault(request.id, []).append(request)
    for identity, closed in closed_ns.items():
        requests = by_id.get(identity, [])
        if not requests:
            unknown += 1
        elif all(_was_seen(request, closed, waited_s) for request in requests):
            latest = max(request.gone_ns for request in requests)
            delays.append(round((latest - closed) / 1e6, 3))
        else:
            never += 1
    return CancelDelay(
        moment=moment,
        sent=len(closed_ns),
        delays_ms=tuple(sorted(delays)),
        never=never,
        unknown=unknown,
        waited_s=waited_s,
    )


def _was_seen(request: UpstreamRequest, closed_ns: int, waited_s: float) -> bool:
    """Whether it was seen in time. A gateway that sent the request twice must end both."""
    return request.end == CLIENT_GONE and 0 <= request.gone_ns - closed_ns <= waited_s * 1e9
