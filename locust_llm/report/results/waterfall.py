"""Waterfall, as found: what a run's slow requests spent their time on, beside its typical ones."""

from typing import Final

import msgspec

from locust_llm.slo.metrics import BY_WORD

TO_DUE: Final = "ttft_from_due"
DECODE: Final = "decode"
"""From the first token to the last."""
NAMES: Final = {
    "late": "late",
    "retries": "earlier attempts",
    "gate": "the gate",
    "connect": "connecting",
    "send": "sending",
    "network": "network and front end",
    "handover": "between front end and engine",
    "queue": "the server's queue",
    "prefill": "its own prefill",
    "others": "others' work in between",
    "client": "the client",
    "unattributed": "unattributed",
    "pace": "decode at its own pace",
    "stalls": "stalls by others' prefills",
    "preemption": "preemption",
    "delivery": "network and client",
}
"""Of the parts, in the order in which they come."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a request's time, as a mean over requests, in ms."""

    name: str
    slow_ms: float
    typical_ms: float
    low_ms: float
    high_ms: float
    """Of the slow ones: between what it lies where it is estimated; else equal to ``slow_ms``."""
    source: str
    """``measured``, ``reported``, ``measured less reported``, ``estimated`` or ``unattributed``: of most of the slow
    ones."""


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The slow requests of one group: of a length, a model, a tenant or a stretch of time."""

    by: str
    label: str
    count: int
    percentile: float
    """The highest one, up to that of the blame, above which each group of this kind has some requests."""
    value_ms: float
    """At it, of this group alone."""
    parts: tuple[tuple[str, float, str], ...]
    """(name, ms, source) of its slow requests, as means, in their order."""

    @property
    def longest(self) -> tuple[str, float]:
        """(name, ms) of a part."""
        return max(((name, ms) for name, ms, _ in self.parts), key=lambda part: part[1])


class Blame(msgspec.Struct, frozen=True, kw_only=True):
    """Who owns the time of the requests at or above a percentile, beside those around the median."""

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
    parts: tuple[Part, ...]
    """In the order in which they come; those of no time are left out. Their means add up to the mean of the slow
    requests."""
    owners: tuple[Owner, ...] = ()


class InTheWay(msgspec.Struct, frozen=True, kw_only=True):
    """Another request whose prefill lay within the wait of a slow one."""

    id: str
    input_tokens: int | None
    from_ms: float
    to_ms: float
    """From its send to its first token, on the axis of the slow one, whose due is 0."""


class Slowest(msgspec.Struct, frozen=True, kw_only=True):
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
    in_the_way: tuple[InTheWay, ...]
    """The longest ones first."""
    others: int
    """How many there were in all."""


class ServerClock(msgspec.Struct, frozen=True, kw_only=True):
    """The server's clock beside this side's, by spans. No part depends on it."""

    ahead_s: float
    """Below 0: behind."""
    within_s: float
    """The offset lies within so much of ``ahead_s``, to both sides."""


class OwnMean(msgspec.Struct, frozen=True, kw_only=True):
    """Of one of the server's own histograms."""

    name: str
    """``queue``, ``prefill``, ``decode`` or ``inference``."""
    server_ms: float
    count: int
    """Requests that it is the mean of: those that ended in this time, whoever sent them."""
    here_ms: float | None
    """The mean of the same over the requests of the run, as it is split here; None: it was not."""


class OwnMeans(msgspec.Struct, frozen=True, kw_only=True):
    """Of one server."""

    engine: str
    source: str
    """The address of its metrics; empty: the server's own."""
    means: tuple[OwnMean, ...]


class Waterfall(msgspec.Struct, frozen=True, kw_only=True):
    """Of the requests of the profiling phase that had a first token."""

    requests: int
    reported: dict[str, int]
    """By source (spans, timings, headers): of so many requests the server reported its own times."""
    impossible: int
    """Requests of which it reported more time than there was: left out of ``reported``."""
    unattributed_share: float
    """Of all their time to the first token."""
    price: str
    """How the price of a prompt was found, and what it is; empty: it was not."""
    in_order: bool
    """First tokens came in the order of the sends, by and large; else the server computes prompts in another order."""
    decoded: int
    """Requests whose decode was split: all, or a sample."""
    means_ms: dict[str, float] = {}
    """Of the parts to the first token, over all these requests, and of the decode (DECODE) over those that were read."""
    own_means: tuple[OwnMeans, ...] = ()
    blames: tuple[Blame, ...]
    slowest: tuple[Slowest, ...]
    server_clock: ServerClock | None = None
    """None: no span said when its request arrived."""
    proxy: str = ""
    """As in Run: the way to the server and back is known of ``reported`` requests alone."""
    left_out: tuple[str, ...] = ()
    """Blames that were asked for and cannot be made, and why."""


def measure(blame: Blame) -> str:
    """``TTFT from Due``"""
    metric = BY_WORD[blame.metric].metric
    return f"{blame.metric if metric is None else metric.label}{blame.where}"


def title(blame: Blame) -> str:
    """``TTFT from Due p99``"""
    return f"{measure(blame)} p{blame.percentile:g}"
