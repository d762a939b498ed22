"""Latency breakdown, as found: what a run's slow requests spent their time on, beside its typical ones and
all of them."""

from collections.abc import Collection
from typing import Final

import msgspec

from locust_llm.slo.metrics import BY_WORD

TO_DUE: Final = "ttft_from_due"

LATE: Final = "late"
RETRIES: Final = "retries"
GATE: Final = "gate"
PERMIT: Final = "permit"
CONNECT: Final = "connect"
SEND: Final = "send"
NETWORK: Final = "network"
HANDOVER: Final = "handover"
QUEUE: Final = "queue"
PREFILL: Final = "prefill"
SERVER: Final = "server"
CLIENT: Final = "client"
UNATTRIBUTED: Final = "unattributed"
TO_FIRST: Final = (
    LATE, RETRIES, GATE, PERMIT, CONNECT, SEND, NETWORK, HANDOVER, QUEUE, PREFILL, SERVER, CLIENT,
    UNATTRIBUTED
)  # fmt: skip
"""Parts from due to the first token, in the order in which they come."""
DECODE: Final = "decode"
DELIVERY: Final = "delivery"
AFTER_FIRST: Final = (DECODE, DELIVERY)
"""Parts from the first token to the last."""
TTFT: Final = "ttft"
"""From the send to the first token."""

MEASURED: Final = "measured"
REPORTED: Final = "reported"
BETWEEN: Final = "measured less reported"
AT_MOST: Final = "at most"
"""A first chunk that was read with later ones came at some time before."""
"""Where the figure of a part is from: UNATTRIBUTED is a source, too."""

NAMES: Final = {
    LATE: "late send (load generator)",
    RETRIES: "earlier attempts",
    GATE: "the gate",
    PERMIT: "permit on its way (load generator)",
    CONNECT: "connecting",
    SEND: "sending",
    NETWORK: "network and front end",
    HANDOVER: "between front end and engine",
    QUEUE: "the server's queue",
    PREFILL: "prefill",
    SERVER: "in the server",
    CLIENT: "possibly read late",
    UNATTRIBUTED: "unattributed",
    DECODE: "decode",
    DELIVERY: "delivery of the tokens",
}
"""Of the parts, in the order in which they come."""
BESIDE_PREFILL: Final = "the server's queue and front end"
BESIDE_QUEUE: Final = "prefill and the server's front end"
NOT_REPORTED: Final = "in the server, not reported"
ROUND_TRIP: Final = "network (round trip)"
"""What SERVER and NETWORK are called where the server reports a part of its time, or less than both
of queue and prefill."""

REQUESTS: Final = "requests"
HISTOGRAMS: Final = "histograms"
NEITHER: Final = ""
"""From what the server's time to a first token is divided."""


def name_latency_part(part: str, others: Collection[str]) -> str:
    """``others``: all parts that are known of the requests; of a run ``find_reported_parts`` has
    those that matter."""
    reported = {QUEUE, PREFILL}.intersection(others)
    if part == SERVER and reported:
        rest = {frozenset({PREFILL}): BESIDE_PREFILL, frozenset({QUEUE}): BESIDE_QUEUE}
        return rest.get(frozenset(reported), NOT_REPORTED)
    return ROUND_TRIP if part == NETWORK and len(reported) < 2 else NAMES[part]


class LatencyPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a request's time, as means over requests, in ms."""

    name: str
    slow_ms: float
    typical_ms: float
    all_ms: float
    source: str
    """``measured``, ``reported``, ``measured less reported`` or ``unattributed``: of most of the
    slow ones."""


class SlowGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The slow requests of one group: of a length, a model, a tenant or a stretch of time."""

    by: str
    label: str
    count: int
    percentile: float
    """The highest one, up to that of the breakdown, above which each group of this kind has some
    requests."""
    value_ms: float
    """At it, of this group alone."""
    parts: tuple[tuple[str, float, str], ...]
    """(name, ms, source) of its slow requests, as means, in their order."""

    @property
    def longest(self) -> tuple[str, float]:
        """(name, ms) of a part."""
        return max(((name, ms) for name, ms, _ in self.parts), key=lambda part: part[1])


class LatencyBreakdown(msgspec.Struct, frozen=True, kw_only=True):
    """Where the requests at or above a percentile spent their time, beside those around the median,
    and all."""

    metric: str
    """The word of a measure: ``ttft_from_due``."""
    where: str = ""
    """Its selectors, as in a rule: ``{model=a}``."""
    percentile: float
    value_ms: float
    typical_ms: float
    """The median."""
    slow: int
    typical: int
    """So many requests at or above the percentile, and from the 40th to the 60th."""
    count: int
    parts: tuple[LatencyPart, ...]
    """In the order in which they come; those of no time are left out. Their means add up to the
    mean of the slow requests."""
    groups: tuple[SlowGroup, ...] = ()
    round_trip_ms: float | None = None
    """The longest that the kernel measured of a slow request's connection; None: not known of each,
    or segments were lost."""


class OverlappingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Another request that waited for its first token while a slow one did."""

    id: str
    input_tokens: int | None
    from_ms: float
    to_ms: float
    """From its send to its first token, on the axis of the slow one, whose due is 0."""


class SlowRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A slow request by itself."""

    id: str
    due_s: float
    """After the start of the run."""
    total_ms: float
    """From due to the first token."""
    input_tokens: int | None
    model: str
    parts: tuple[tuple[str, float, str], ...]
    """(name, ms, source), in their order."""
    overlapping: tuple[OverlappingRequest, ...]
    """The longest ones first."""
    others: int
    """How many there were in all."""


class ServerClock(msgspec.Struct, frozen=True, kw_only=True):
    """The server's clock beside this side's, by spans. No part depends on it."""

    ahead_s: float
    """Below 0: behind."""
    within_s: float
    """The offset lies within so much of ``ahead_s``, to both sides."""


class ServerHistogramMean(msgspec.Struct, frozen=True, kw_only=True):
    """Of one of the server's own histograms."""

    name: str
    """``ttft``, ``queue``, ``prefill``, ``decode`` or ``inference``."""
    server_ms: float
    count: int
    """Requests that it is the mean of: those that ended in this time, whoever sent them."""
    here_ms: float | None
    """The mean of the same over the requests of the run, measured here or reported for single
    requests; None: neither."""


class ServerHistogramMeans(msgspec.Struct, frozen=True, kw_only=True):
    """Of one server."""

    engine: str
    source: str
    """The address of its metrics; empty: the server's own."""
    means: tuple[ServerHistogramMean, ...]


class ServerTime(msgspec.Struct, frozen=True, kw_only=True):
    """How the time in the server up to the first token is divided: the one answer that every text
    prints."""

    basis: str = NEITHER
    """``requests``: by what the server reported of single ones, as the parts have it;
    ``histograms``: by its own ones, as means over all that it served; empty: the server reports
    neither, and its time is one part."""
    server_ms: float
    """Mean from the send to the first token, less the round trip, measured here."""
    engine: str = ""
    count: int = 0
    ttft_ms: float = 0.0
    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    """Of the histograms: whose they are, of how many requests at most, and the means."""
    least: int = 0
    """Requests of the histogram that counted fewest: a server counts some of these times only
    when a request has ended."""
    unsplit_of: int = 0
    unsplit_ms: float = 0.0
    """First tokens that the server counted, where these are of other requests than its queue and
    prefill, and their mean; ``ttft_ms`` is then queue and prefill alone."""

    @property
    def rest_ms(self) -> float:
        """Neither queue nor prefill."""
        return max(0.0, self.ttft_ms - self.queue_ms - self.prefill_ms)

    @property
    def largest(self) -> tuple[str, float]:
        """(queue, prefill or neither; its share of the time to a first token), of the
        histograms."""
        parts = {"neither": self.rest_ms, "prefill": self.prefill_ms, "queue": self.queue_ms}
        name = max(parts, key=parts.__getitem__)
        return name, parts[name] / max(self.ttft_ms, 1e-9)


class LatencyAttribution(msgspec.Struct, frozen=True, kw_only=True):
    """Of the requests of the profiling phase that had a first token."""

    requests: int
    reported: dict[str, int]
    """By source (spans, timings, headers, metrics): of so many requests the server reported its own
    times."""
    impossible: int
    """Requests of which it reported more time than there was: left out of ``reported``."""
    server: ServerTime
    choices: int = 0
    """Of these requests together: a server counts each choice (the field n) as a request of its
    own. 0: of an older version."""
    means_ms: dict[str, float] = {}
    """Of the parts and of TTFT, over all these requests."""
    own_means: tuple[ServerHistogramMeans, ...] = ()
    breakdowns: tuple[LatencyBreakdown, ...]
    slowest: tuple[SlowRequest, ...]
    server_clock: ServerClock | None = None
    """None: no span said when its request arrived."""
    proxy: str = ""
    """As in Run: the way to the server and back is known of ``reported`` requests alone."""
    left_out: tuple[str, ...] = ()
    """Breakdowns that were asked for and cannot be made, and why."""


def find_reported_parts(attribution: LatencyAttribution) -> set[str]:
    """Which of queue and prefill the server reports, for ``name_latency_part``: all texts and
    drawings of a run have the same names, whichever parts they show. A queue of no time is no part,
    but was reported where the network is a rest."""
    parts = set[tuple[str, str]]()
    for breakdown in attribution.breakdowns:
        parts.update((part.name, part.source) for part in breakdown.parts)
    for request in attribution.slowest:
        parts.update((name, source) for name, _, source in request.parts)
    if (NETWORK, BETWEEN) in parts:
        return {QUEUE, PREFILL}
    return {QUEUE, PREFILL}.intersection(name for name, _ in parts)


def name_breakdown_metric(breakdown: LatencyBreakdown) -> str:
    """``TTFT from Due``"""
    metric = BY_WORD[breakdown.metric].metric
    return f"{breakdown.metric if metric is None else metric.label}{breakdown.where}"


def name_breakdown(breakdown: LatencyBreakdown) -> str:
    """``TTFT from Due p99``"""
    return f"{name_breakdown_metric(breakdown)} p{breakdown.percentile:g}"
