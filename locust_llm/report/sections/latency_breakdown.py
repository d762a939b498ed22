"""Latency breakdown: the time of each request part by part, and where slow requests spend theirs.

The parts of a request add up exactly to its time from when it was due to its first token. All are
whole microseconds. A part is measured here, or reported by the server for this very request;
nothing is estimated. What the server does not report of the time between the send and the first
token stays one part, ``server``. Where chunks were gathered on the way, this time has decode, too:
``held`` where the server reports it, else ``with_decode`` is the part that stays one.
latency_breakdown_display.py shows what is found here.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Final, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from locust_llm.records.breakdown_labels import (
    AFTER_FIRST,
    AT_MOST,
    BETWEEN,
    CLIENT,
    CONNECT,
    DECODE,
    DELIVERY,
    GATE,
    HANDOVER,
    HELD,
    IN_SERVER,
    LATE,
    LESS_MEASURED,
    MEASURED,
    NETWORK,
    PERMIT,
    PREFILL,
    PROXY,
    QUEUE,
    REPORTED,
    RETRIES,
    SEND,
    SERVER,
    TO_DUE,
    TO_FIRST,
    TTFT,
    UNATTRIBUTED,
    USER,
    WITH_DECODE,
)
from locust_llm.records.buffering import AT_ONCE_US, MIN_TOKENS, WAITED_US
from locust_llm.records.outcomes import OK
from locust_llm.records.record import Record
from locust_llm.records.run_facts import LimitChange, Run
from locust_llm.records.server_metrics_history import EngineHistory, histogram_mean
from locust_llm.records.server_metrics_parser import EngineSample
from locust_llm.records.server_times import SLACK_US, ServerTimes
from locust_llm.report.array_types import Bools, Floats, Ints
from locust_llm.report.gate_occupancy import permit_lag_s
from locust_llm.report.load_records import PROMPT_US, RequestColumns
from locust_llm.report.metrics_by_group import (
    choose_bucket_edges,
    estimate_input_lengths,
    label_bucket,
)
from locust_llm.report.outages import measure_standstill_s
from locust_llm.report.request_selection import RequestSelection
from locust_llm.report.request_table import Column, RequestTable, TextColumn
from locust_llm.report.server_time_columns import SOURCES, ReportedColumns
from locust_llm.report.slo_evidence.observed_rule_values import select_requests
from locust_llm.report.stored_columns import (
    GrowingColumn,
    NumberColumn,
    read_column,
    store_column,
)
from locust_llm.report.waits_for_user import measure_waits_for_user_s
from locust_llm.slo.metric_definitions import BY_WORD
from locust_llm.slo.percentile import has_too_few_values
from locust_llm.slo.rules import Rule, parse_rule

REQUESTS: Final = "requests"
HISTOGRAMS: Final = "histograms"
NEITHER: Final = ""
"""Where the division of the server's time to a first token comes from."""


# -- what is found ---------------------------------------------------------------------------------


class LatencyPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a request's time in ms, as means over requests."""

    name: str
    slow_ms: float
    typical_ms: float
    all_ms: float
    source: str
    """``measured``, ``reported``, ``measured less reported``, ``reported less measured`` or
    ``unattributed``, for most of the slow requests."""


class SlowGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The slow requests of one group: of a length, a model, a tenant or a stretch of time."""

    by: str
    label: str
    count: int
    percentile: float
    """The highest percentile, up to the breakdown's, above which each group of this kind has some
    requests."""
    value_ms: float
    """The value of this group at the percentile."""
    parts: tuple[tuple[str, float, str], ...]
    """(name, mean ms, source) of its slow requests, in the order of the parts."""
    stood_still_ms: float | msgspec.UnsetType = msgspec.UNSET
    """For how long the server stood still in these parts: their mean. Unset: it did not."""

    @property
    def longest(self) -> tuple[str, float]:
        """(name, ms) of a part."""
        return max(((name, ms) for name, ms, _ in self.parts), key=lambda part: part[1])


class LatencyBreakdown(msgspec.Struct, frozen=True, kw_only=True):
    """Where the requests at or above a percentile spent their time, beside the requests around the
    median, and all."""

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
    """The requests at or above the percentile, and the ones from the 40th to the 60th."""
    count: int
    parts: tuple[LatencyPart, ...]
    """The parts in their order, without empty ones. Their means add up to the mean of the slow
    requests."""
    groups: tuple[SlowGroup, ...] = ()
    round_trip_ms: float | None = None
    """The longest round trip that the kernel measured of a slow request's connection. None: not all
    are known, or segments were lost."""
    stood_still_ms: float | msgspec.UnsetType = msgspec.UNSET
    """For how long the server stood still in the time of the slow requests: their mean. Unset: it
    did not."""
    stood_still_of: int | msgspec.UnsetType = msgspec.UNSET
    """The number of slow requests that met a standstill."""
    no_other_prefill: bool | msgspec.UnsetType = msgspec.UNSET
    """True: no slow request awaited its first token together with another request. Unset: one
    did."""


class OverlappingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Another request that waited for its first token while a slow one did."""

    id: str
    input_tokens: int | None
    from_ms: float
    to_ms: float
    """The time from its send to its first token, on the axis of the slow request, whose due is
    0."""


class SlowRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A single slow request."""

    id: str
    due_s: float
    """Seconds after the start of the run."""
    total_ms: float
    """The time from due to the first token."""
    input_tokens: int | None
    model: str
    parts: tuple[tuple[str, float, str], ...]
    """(name, ms, source), in the order of the parts."""
    overlapping: tuple[OverlappingRequest, ...]
    """The longest ones first."""
    others: int
    """The number of all overlapping requests."""


class ServerClock(msgspec.Struct, frozen=True, kw_only=True):
    """The server's clock beside this machine's, by spans. No part depends on it."""

    ahead_s: float
    """Negative: the server's clock is behind."""
    within_s: float
    """The offset lies within so much of ``ahead_s``, to both sides."""


class ServerHistogramMean(msgspec.Struct, frozen=True, kw_only=True):
    """The mean of one of the server's own histograms."""

    name: str
    """``ttft``, ``queue``, ``prefill``, ``decode`` or ``inference``."""
    server_ms: float
    count: int
    """The requests behind the mean: the ones that ended in this time, whoever sent them."""
    here_ms: float | None
    """The same mean over the requests of the run, measured here or reported for single requests.
    None: neither."""


class ServerHistogramMeans(msgspec.Struct, frozen=True, kw_only=True):
    """The means of the histograms of one server."""

    engine: str
    source: str
    """The address of its metrics. Empty: the server's own."""
    means: tuple[ServerHistogramMean, ...]


class ServerTime(msgspec.Struct, frozen=True, kw_only=True):
    """How the time in the server up to the first token is divided. Every text prints this
    division."""

    basis: str = NEITHER
    """``requests``: by the server's reports on single requests, as the parts have it.
    ``histograms``: by the server's own ones, as means over all its requests. Empty: the server
    reports neither, and its time is one part."""
    server_ms: float
    """The mean from the send to the first token, less the round trip, measured here."""
    engine: str = ""
    count: int = 0
    ttft_ms: float = 0.0
    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    """The histograms' owner, their largest number of requests, and their means."""
    least: int = 0
    """The requests of the histogram with the fewest: a server counts some of these times only when
    a request has ended."""
    held_ms: float = 0.0
    """The mean decode before the first chunk, by the histograms, of answers that came whole."""
    unsplit_of: int = 0
    unsplit_ms: float = 0.0
    """The first tokens that the server counted, if they belong to other requests than its queue and
    prefill, and their mean. ``ttft_ms`` is then queue and prefill alone."""

    @property
    def rest_ms(self) -> float:
        """The time that is neither queue nor prefill."""
        return max(0.0, self.ttft_ms - self.queue_ms - self.prefill_ms)

    @property
    def largest(self) -> tuple[str, float]:
        """(queue, prefill or neither; its share of the time to a first token), by the
        histograms."""
        parts = {"neither": self.rest_ms, "prefill": self.prefill_ms, "queue": self.queue_ms}
        name = max(parts, key=parts.__getitem__)
        return name, parts[name] / max(self.ttft_ms, 1e-9)


class LatencyAttribution(msgspec.Struct, frozen=True, kw_only=True):
    """The attribution over the requests of the profiling phase that had a first token."""

    requests: int
    reported: dict[str, int]
    """How many requests the server reported its own times for, by source (spans, timings, headers,
    metrics)."""
    impossible: int
    """The requests for which it reported more time than there was. ``reported`` leaves them out."""
    server: ServerTime
    choices: int = 0
    """The choices of these requests together, as a server counts each choice (the field n) as a
    request. 0: an older version."""
    sent: int = 0
    """The choices of all requests that were sent, of a warmup, cancelled or cut ones too: a server
    may count these as well."""
    means_ms: dict[str, float] = {}
    """The means of the parts and of TTFT, over all these requests."""
    stood_still_ms: float | msgspec.UnsetType = msgspec.UNSET
    """For how long the server stood still between the send and the first token of these requests:
    their mean. Unset: it did not."""
    stood_still_of: int | msgspec.UnsetType = msgspec.UNSET
    """The number of requests that it concerned."""
    own_means: tuple[ServerHistogramMeans, ...] = ()
    breakdowns: tuple[LatencyBreakdown, ...]
    slowest: tuple[SlowRequest, ...]
    server_clock: ServerClock | None = None
    """None: no span has the arrival of its request."""
    proxy: str = ""
    """What is known to be between the load generator and the server: proxy and gateway of Run. The
    way to the server and back is known for ``reported`` requests alone."""
    left_out: tuple[str, ...] = ()
    """Requested breakdowns that cannot be made, with the reason."""


def find_reported_parts(attribution: LatencyAttribution) -> set[str]:
    """Which of queue and prefill the server reports, and whether there is a proxy, for
    ``name_latency_part``. All texts and drawings of a run have the same names, whichever parts they
    show.

    A queue of no time is no part, but it was reported where the network is a rest.
    """
    parts = set[tuple[str, str]]()
    for breakdown in attribution.breakdowns:
        parts.update((part.name, part.source) for part in breakdown.parts)
    for request in attribution.slowest:
        parts.update((name, source) for name, _, source in request.parts)
    known = {QUEUE, PREFILL}
    if (NETWORK, BETWEEN) not in parts:
        known.intersection_update(name for name, _ in parts)
    return known | {PROXY} if attribution.proxy else known


def name_breakdown_metric(breakdown: LatencyBreakdown) -> str:
    """``TTFT from Due``"""
    metric = BY_WORD[breakdown.metric].metric
    return f"{breakdown.metric if metric is None else metric.label}{breakdown.where}"


def name_breakdown(breakdown: LatencyBreakdown) -> str:
    """``TTFT from Due p99``"""
    return f"{name_breakdown_metric(breakdown)} p{breakdown.percentile:g}"


# -- each request, split ---------------------------------------------------------------------------

NOTHING: Final = 0
BOTH: Final = 1
PREFILL_ONLY: Final = 2
QUEUE_ONLY: Final = 3
"""The server's report on a request: nothing; its queue and prefill; one of them."""
BLOCK: Final = 2**17
"""So many requests are divided together."""
TOTAL: Final = "total"
FOLLOWED_S: Final = 2.0
"""All processes follow a change of the limit within this time."""


@dataclass(frozen=True)
class LatencySplit:
    """The parts of all requests, with a row for each request."""

    columns: Mapping[str, NumberColumn]
    """The total and the parts in microseconds."""
    known: NDArray[np.int8]
    """The server's report: NOTHING, BOTH, ..."""
    impossible: Bools
    """The server reported more time than there was, so its report on this request is left out."""

    @property
    def total_us(self) -> Ints:
        """The time from due to the first token, or to the end of a request without one."""
        return read_column(self.columns[TOTAL])

    @property
    def us(self) -> dict[str, Ints]:
        """The parts in the order of TO_FIRST, which add up to the total."""
        return {name: read_column(self.columns[name]) for name in TO_FIRST}


def find_part_source(name: str, known: NDArray[np.int8]) -> str:
    """The source of a part's value, for most of the requests with these reports."""
    if name in (HANDOVER, QUEUE, PREFILL):
        return REPORTED
    if name == UNATTRIBUTED:
        return UNATTRIBUTED
    if name == HELD:
        return LESS_MEASURED
    if name == CLIENT:
        return AT_MOST
    mostly = int(np.bincount(known).argmax()) if len(known) else NOTHING
    less_reported = (name == NETWORK and mostly == BOTH) or (
        name in (SERVER, WITH_DECODE) and mostly != NOTHING
    )
    return BETWEEN if less_reported else MEASURED


class _WholeRun(NamedTuple):
    """What all requests show of each of these."""

    arrivals: "_GateArrivals"
    permit_s: Floats
    user_s: Floats
    round_trips_us: Ints
    """The shortest one of each worker; the last one of no worker."""

    def rows(self, rows: slice) -> "_WholeRun":
        return self._replace(permit_s=self.permit_s[rows], user_s=self.user_s[rows])


class _GateArrivals(NamedTuple):
    """When requests came to the gate, and when they left its slots, each in order. Columns without
    values: attempts that were tried again held slots too, and have no row, so that any gate may
    have been full."""

    limits: Sequence[LimitChange]
    asked: NumberColumn
    over: NumberColumn
    workers: int


def split_latencies(
    requests: RequestTable,
    reported: ReportedColumns,
    limits: Sequence[LimitChange] = (),
    users: int | None = None,
) -> LatencySplit:
    """``requests`` are as in ``collect_columns``. ``limits`` are the gate's; with a gate, a request
    that was never admitted waited at it. ``users`` are of an open loop that may have too few; None:
    there was always a free one."""
    whole = _WholeRun(
        _find_arrivals(requests, limits),
        permit_lag_s(requests, limits),
        measure_waits_for_user_s(requests, users),
        _find_shortest_round_trips(requests),
    )
    columns = {name: GrowingColumn("q") for name in (TOTAL, *TO_FIRST)}
    known = GrowingColumn("b")
    impossible = GrowingColumn("?")
    for begin in range(0, len(requests), BLOCK):
        rows = slice(begin, begin + BLOCK)
        us, *report = _split_block(requests.stretch(rows), reported.rows(rows), whole.rows(rows))
        columns[TOTAL].extend(np.sum([*us.values()], axis=0))
        for name, part in us.items():
            columns[name].extend(part)
        known.extend(report[0])
        impossible.extend(report[1])
    return LatencySplit(
        {name: column.result() for name, column in columns.items()},
        read_column(known.result()),
        read_column(impossible.result()),
    )


def _split_block(
    requests: RequestTable, reported: ReportedColumns, whole: _WholeRun
) -> tuple[dict[str, Ints], NDArray[np.int8], Bools]:
    """(the parts, the server's report, where it is impossible) of some of the requests."""
    ours, first, inside = _measure_client_parts(requests, whole)
    ttft_us = requests.floats("ttft_s") * 1e6
    whole_us = (requests.floats("closed_at") - requests.floats("sent_at")) * 1e6
    impossible = reported.impossible(ttft_us, whole_us)
    unusable = impossible | ~first
    q, p, ttft, decode = (
        np.where(unusable, np.nan, us)
        for us in (reported.queue_us, reported.prefill_us, reported.ttft_us, reported.decode_us)
    )
    sooner = np.clip(
        _round_us(np.fmax(np.nan_to_num(q) + np.nan_to_num(p), ttft)) - inside, 0, ours[CLIENT]
    )
    # the first chunk cannot have come before it was sent
    ours[CLIENT] = ours[CLIENT] - sooner
    inside = inside + sooner
    rtt = whole.round_trips_us[requests.texts("worker").codes]
    parts, known = _split_server_time(
        q, p, ttft, inside, np.minimum(rtt, inside), first,
        _measure_early_decode(requests, decode, ours[CLIENT]),
        _came_whole(requests) & np.isnan(decode),
    )  # fmt: skip
    return {name: (ours | parts)[name] for name in TO_FIRST}, known, impossible


def _measure_client_parts(
    requests: RequestTable, whole: _WholeRun
) -> tuple[dict[str, Ints], Bools, Ints]:
    """(the parts that are measured here, whether there was a first token, the time between send and
    arrival)."""

    def us(name: str) -> Ints:
        return _round_us(requests.floats(name) * 1e6)

    def at(name: str) -> Floats:
        return requests.floats(name)

    sent = ~np.isnan(at("sent_at"))
    ttft_s = at("ttft_s")
    first = ~np.isnan(ttft_s)
    after = np.where(
        first, us("ttft_s"), np.where(sent, _round_us((at("closed_at") - at("sent_at")) * 1e6), 0)
    )
    before = np.where(sent, us("late_s"), _round_us((at("closed_at") - at("due_at")) * 1e6))
    given_up = ~sent & np.isnan(at("admitted_at"))
    waited = np.where(
        given_up, _round_us((at("closed_at") - at("asked_at")) * 1e6), us("gate_wait_s")
    )
    gated = any(change.limit is not None for change in whole.arrivals.limits)
    gate = np.where(
        (gated & given_up) | _gate_was_full(requests, whole.arrivals),
        np.minimum(waited, before),
        0,
    )
    permit = np.minimum(_round_us(whole.permit_s * 1e6), gate)
    connect = np.where(sent, np.minimum(us("connect_s"), before - gate), before - gate)
    left = before - gate - connect
    again = (at("attempt") > 1) | (at("resent") > 0)
    late = np.where(again, 0, left)
    user = np.minimum(_round_us(whole.user_s * 1e6), late)
    send = np.minimum(_round_us(at("written_us")), after)
    prompt = (at("read_lag_us") < PROMPT_US) & requests.has("clock", "kernel")
    later = np.where(first & ~prompt, _round_us((ttft_s - at("ttft_soonest_s")) * 1e6), 0)
    client = np.minimum(later, after - send)
    parts = {
        USER: user,
        LATE: late - user,
        RETRIES: np.where(again, left, 0),
        GATE: gate - permit,
        PERMIT: permit,
        CONNECT: connect,
        SEND: send,
        CLIENT: client,
    }
    return parts, first, after - send - client


def _find_arrivals(requests: RequestTable, limits: Sequence[LimitChange]) -> _GateArrivals:
    workers = max(1, len(requests.texts("worker").count_rows()))
    if (requests.floats("attempt") > 1).any():
        return _GateArrivals(limits, np.empty(0), np.empty(0), workers)
    freed, first, closed = (
        requests.floats(name) for name in ("freed_at", "first_chunk_at", "closed_at")
    )
    asked = np.sort(requests.floats("asked_at"), kind="stable")
    over = np.sort(np.fmin(np.fmin(first, freed), closed), kind="stable")
    return _GateArrivals(limits, store_column(asked), store_column(over), workers)


def _gate_was_full(requests: RequestTable, arrivals: _GateArrivals) -> Bools:
    """Which requests came to a gate that had no slot for them. Otherwise the wait for the admission
    is a wait for this machine's event loop.

    The limit is the lowest one from just before the request came, as processes follow changes
    within FOLLOWED_S, to its admission. Slots are divided among the processes, and a process has at
    least its share.
    """
    limit = requests.floats("limit")
    gated = ~np.isnan(limit)
    if not len(arrivals.asked):
        return np.asarray(gated)
    asked = requests.floats("asked_at")
    before = (
        np.searchsorted(read_column(arrivals.asked), asked, side="right")
        - np.searchsorted(read_column(arrivals.over), asked, side="right")
        - 1
    )
    lowest = np.fmin(
        limit,
        np.fmin(
            _find_limits_at(asked, arrivals.limits),
            _find_limits_at(asked - FOLLOWED_S, arrivals.limits),
        ),
    )
    share = np.nan_to_num(lowest) // arrivals.workers
    return np.asarray(gated & (before >= share))


def _find_limits_at(at: Floats, limits: Sequence[LimitChange]) -> Floats:
    """The limit in force at each moment. NaN: there was none."""
    changes = sorted(limits, key=lambda change: change.at)
    levels = np.array(
        [np.nan, *(np.nan if change.limit is None else change.limit for change in changes)],
        np.float64,
    )
    return levels[np.searchsorted([change.at for change in changes], at, side="right")]


def _find_shortest_round_trips(requests: RequestTable) -> Ints:
    """The shortest round trip to the server that each process saw, in µs; the last one of no
    process. The kernel's value of a single request may hold delays of either side, as an
    acknowledgement can wait."""
    workers = requests.texts("worker")
    shortest = np.full(len(workers.labels) + 1, np.nan)  # the last one: of no process
    np.fmin.at(shortest, workers.codes, requests.floats("rtt_us"))
    shortest[-1] = np.nan
    return _round_us(shortest)


def _measure_early_decode(requests: RequestTable, decode: Floats, read_late: Ints) -> Ints:
    """As ``measure_early_decode`` of records/early_decode.py, of all requests."""
    before = decode - _measure_after_first_us(requests)
    gathered = (requests.floats("ttft_is_upper_bound") > 0) | (before >= decode / 2)
    early = before - read_late
    return _round_us(np.where(gathered & (early > SLACK_US), early, 0.0))


def _came_whole(requests: RequestTable) -> Bools:
    """As ``arrived_whole`` of records/early_decode.py, of all requests."""
    tokens = np.fmax(requests.floats("output_tokens"), requests.floats("chunks"))
    return np.asarray(
        (_measure_after_first_us(requests) <= AT_ONCE_US)
        & (tokens >= MIN_TOKENS)
        & (requests.floats("ttft_s") * 1e6 >= WAITED_US)
    )


def _measure_after_first_us(requests: RequestTable) -> Floats:
    """From the first chunk to the last. NaN: there was none."""
    latency_s, ttft_s = (requests.floats(name) for name in ("latency_s", "ttft_s"))
    return np.asarray(np.maximum(latency_s - ttft_s, 0.0) * 1e6)


def _split_server_time(
    q: Floats,
    p: Floats,
    ttft: Floats,
    inside: Ints,
    rtt: Ints,
    first: Bools,
    early_decode: Ints,
    whole: Bools,
) -> tuple[dict[str, Ints], NDArray[np.int8]]:
    """(the parts between send and arrival, which add up to ``inside``; the server's report).
    ``whole``: the rest has a decode of unknown length."""
    has_q, has_p = ~np.isnan(q), ~np.isnan(p)
    known = np.select([has_q & has_p, has_p, has_q], [BOTH, PREFILL_ONLY, QUEUE_ONLY], NOTHING)
    queue = _round_us(q)
    prefill = _round_us(p)
    over = np.maximum(queue + prefill - inside, 0)  # by a few milliseconds at most: two clocks
    prefill -= (cut := np.minimum(over, prefill))
    queue -= over - cut
    rest = inside - queue - prefill
    handover = np.where(known == BOTH, np.minimum(_round_us(ttft - q - p), rest), 0)
    rest = rest - handover
    held = np.minimum(early_decode, rest)
    rest = rest - held
    network = np.where((known == BOTH) & ~whole, rest, np.minimum(rtt, rest))
    unreported = np.where(first, rest - network, 0)
    parts = {
        NETWORK: np.where(first, network, 0),
        HANDOVER: handover,
        QUEUE: queue,
        PREFILL: prefill,
        SERVER: np.where(whole, 0, unreported),
        HELD: held,
        WITH_DECODE: np.where(whole, unreported, 0),
        UNATTRIBUTED: np.where(first, 0, inside),
    }
    return parts, known.astype(np.int8)


def _round_us(us: Floats) -> Ints:
    """Whole microseconds. Unknown times are 0, and so are times that two clocks made negative."""
    return np.rint(np.maximum(np.nan_to_num(us), 0.0)).astype(np.int64)


# -- slow requests beside typical ones -------------------------------------------------------------

FROM_SEND: Final = tuple(name for name in TO_FIRST[TO_FIRST.index(SEND) :] if name != UNATTRIBUTED)
TYPICAL: Final = (40.0, 60.0)
"""A request is typical between these percentiles."""
MIN_GROUP: Final = 20
MIN_SLOW: Final = 3
"""The fewest slow requests of a group."""
LOWER: Final = (95.0, 90.0, 75.0)
"""The percentiles for small groups. Above the last one MIN_GROUP requests have MIN_SLOW."""
MAX_GROUPS: Final = 8
MIN_NAMED: Final = 0.05
"""Parts below this share of the whole are not in the sentence."""
STRETCHES: Final = 4
"""The stretches of the run, for the groups over time."""
PARTS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "ttft_from_due": TO_FIRST,
    "ttft": FROM_SEND,
    "request_latency": (*FROM_SEND, *AFTER_FIRST),
}
"""The metrics and their parts."""
COLUMN: Final = {
    "ttft_from_due": "ttft_from_due_s",
    "ttft": "ttft_s",
    "request_latency": "latency_s",
}


@dataclass(frozen=True)
class LatencyTable:
    """A row for each request."""

    requests: RequestTable
    split: LatencySplit
    after_ms: Mapping[str, NumberColumn]
    """The parts of AFTER_FIRST in ms. NaN: the request has no first token."""
    decode_reported: Bools
    """The server reported the decode."""
    counted: Bools
    """The request is in the profiling phase, was answered, and has a first token."""

    def part_ms(self, name: str, rows: Bools | slice) -> Floats:
        if name in self.after_ms:
            return read_column(self.after_ms[name])[rows]
        return np.asarray(self.split.us[name][rows] / 1e3)

    def source(self, name: str, selected: Bools) -> str:
        """The source of a part for most of these requests."""
        if name not in AFTER_FIRST:
            return find_part_source(name, self.split.known[selected])
        mostly = self.decode_reported[selected].mean() > 0.5
        return {(DECODE, True): REPORTED, (DELIVERY, True): BETWEEN}.get(
            (name, bool(mostly)), MEASURED
        )


def make_latency_breakdown(
    table: LatencyTable,
    metric: str,
    percentile: float,
    where: str,
    chosen: Bools,
    standstills: Sequence[tuple[float, float]] = (),
) -> LatencyBreakdown | None:
    """``where`` has the selectors as text, ``chosen`` the requests that they select;
    ``standstills`` of the server: (from, to). None: there are fewer than MIN_GROUP requests."""
    values = table.requests.floats(COLUMN[metric]) * 1e3
    here = table.counted & chosen & ~np.isnan(values)
    count = int(here.sum())
    if count < MIN_GROUP:
        return None
    value = float(np.percentile(values[here], percentile))
    typical = _select_typical(values, here)
    slow = here & (values >= value)
    parts = PARTS_OF[metric]
    stood_still_s = _measure_stood_still_s(table.requests.rows(slow), parts, standstills)
    return LatencyBreakdown(
        metric=metric,
        where=where,
        percentile=percentile,
        value_ms=value,
        typical_ms=float(np.median(values[here])),
        slow=int(slow.sum()),
        typical=int(typical.sum()),
        count=count,
        parts=tuple(
            LatencyPart(
                name=name,
                slow_ms=float(table.part_ms(name, slow).mean()),
                typical_ms=float(table.part_ms(name, typical).mean()) if typical.any() else 0.0,
                all_ms=float(table.part_ms(name, here).mean()),
                source=table.source(name, slow),
            )
            for name in parts
            if table.part_ms(name, here).any()
        ),
        groups=tuple(_make_slow_groups(table, parts, values, here, percentile, standstills)),
        round_trip_ms=_longest_round_trip_ms(table.requests.rows(slow)),
        stood_still_ms=float(stood_still_s.mean()) * 1e3 or msgspec.UNSET,
        stood_still_of=int((stood_still_s > 0).sum()) or msgspec.UNSET,
        no_other_prefill=not _has_met_prefills(table.requests, slow) or msgspec.UNSET,
    )


def _has_met_prefills(requests: RequestTable, slow: Bools) -> bool:
    """Whether one of the slow requests awaited its first token together with another request, for
    more than a millisecond. What never had a first token awaited it to its end."""
    sent = requests.floats("sent_at")
    first = requests.floats("first_chunk_at")
    until = np.where(np.isnan(first), requests.floats("closed_at"), first)
    was_sent = ~np.isnan(sent)
    begun = np.searchsorted(np.sort(sent[was_sent]), until[slow] - 1e-3)
    over = np.searchsorted(np.sort(until[was_sent]), sent[slow] + 1e-3, side="right")
    return bool((begun - over > 1).any())  # each is in both counts itself


def _measure_stood_still_s(
    slow: RequestTable, parts: Iterable[str], standstills: Sequence[tuple[float, float]]
) -> Floats:
    """For how long the server stood still in these parts of each request."""
    began = slow.floats("sent_at" if SERVER in parts else "first_chunk_at")
    ended = slow.floats("closed_at" if DECODE in parts else "first_chunk_at")
    return measure_standstill_s(began, ended, standstills)


def _longest_round_trip_ms(slow: RequestTable) -> float | None:
    longest_us = float(slow.floats("rtt_us").max(initial=0.0))
    lost = bool((slow.floats("retransmits") > 0).any())
    return None if lost or np.isnan(longest_us) else longest_us / 1e3


def _select_typical(values: Floats, here: Bools) -> Bools:
    low, high = np.percentile(values[here], TYPICAL)
    return np.asarray(here & (values >= low) & (values <= high))


def _make_slow_groups(
    table: LatencyTable,
    parts: Sequence[str],
    values: Floats,
    here: Bools,
    percentile: float,
    standstills: Sequence[tuple[float, float]],
) -> Iterator[SlowGroup]:
    for by, groups in _divide_requests(table.requests, here):
        fewest = min(int(chosen.sum()) for chosen in groups.values())
        at = next(
            p
            for p in (percentile, *LOWER)
            if p <= percentile and (fewest - 1) * (100 - p) / 100 >= MIN_SLOW
        )
        for label, chosen in groups.items():
            value = float(np.percentile(values[chosen], at))
            slow = chosen & (values >= value)
            means = ((name, float(table.part_ms(name, slow).mean())) for name in parts)
            split = tuple((name, ms, table.source(name, slow)) for name, ms in means if ms > 0)
            stood_still_s = _measure_stood_still_s(table.requests.rows(slow), parts, standstills)
            if split:
                yield SlowGroup(
                    by=by, label=label, count=int(chosen.sum()), percentile=at, value_ms=value,
                    parts=split,
                    stood_still_ms=float(stood_still_s.mean()) * 1e3 or msgspec.UNSET,
                )  # fmt: skip


def _divide_requests(requests: RequestTable, here: Bools) -> Iterator[tuple[str, dict[str, Bools]]]:
    """(by what, the requests of each label), only with several labels, and only groups of
    MIN_GROUP."""
    length = estimate_input_lengths(RequestSelection(requests, np.ones(len(requests), np.bool_)))
    known = here & (length >= 1)
    yield from _keep_large_groups("input tokens", _group_by_length(length, known))
    for by in ("model", "tenant"):
        if by in requests:
            codes = requests.texts(by).codes
            names = requests.texts(by).labels
            there = np.flatnonzero(np.bincount(codes[here & (codes >= 0)], minlength=len(names)))
            yield from _keep_large_groups(
                by, {names[code]: here & (codes == code) for code in there[:MAX_GROUPS]}
            )
    due = requests.floats("due_at")
    first = float(due[here].min())
    last = float(due[here].max())
    edges = np.linspace(first, last, STRETCHES + 1)
    stretch = np.clip(np.searchsorted(edges, due, side="right") - 1, 0, STRETCHES - 1)
    labels = [f"{a - first:.0f} to {b - first:.0f} s" for a, b in pairwise(edges)]
    yield from _keep_large_groups(
        "time", {label: here & (stretch == i) for i, label in enumerate(labels)}
    )


def _group_by_length(length: Floats, known: Bools) -> dict[str, Bools]:
    if not known.any():
        return {}
    edges = choose_bucket_edges(np.unique(length[known]).astype(np.int64).tolist())
    place = np.where(known, np.searchsorted(edges, length, side="right"), -1)
    groups = (place == i for i in np.unique(place[known]))
    return {label_bucket(int(length[here.argmax()]), edges): here for here in groups}


def _keep_large_groups(
    by: str, groups: Mapping[str, Bools]
) -> Iterator[tuple[str, dict[str, Bools]]]:
    large = {label: chosen for label, chosen in groups.items() if chosen.sum() >= MIN_GROUP}
    if len(groups) > 1 and large:
        yield by, large


# -- the slowest requests by themselves ------------------------------------------------------------

MOST: Final = 10
MOST_OVERLAPPING: Final = 5
SAME_S: Final = 1e-5
"""Two stamps within this time mean one moment."""
LATE_S: Final = 5.0
"""The records' file is in the order of their ends, to within this time."""
MOST_READ: Final = 100_000
"""So many records are read to find ids: two seconds. In a file in good order, each id takes one or
two."""

Since = Callable[[float], Iterator[Record]]
"""The records of requests that ended at a moment (Unix seconds) or later."""


def find_slowest_requests(table: LatencyTable, run: Run, since: Since) -> tuple[SlowRequest, ...]:
    """The requests with the longest time from due to the first token, the slowest first. ``since``
    looks up their ids."""
    rows = np.flatnonzero(table.counted)
    order = rows[np.argsort(-table.split.total_us[rows], kind="stable")][:MOST].tolist()
    beside = {row: _find_overlapping_rows(table, row) for row in order}
    shown = {row: others[:MOST_OVERLAPPING].tolist() for row, others in beside.items()}
    ids = _look_up_ids(table, {*order, *chain.from_iterable(shown.values())}, since)
    return tuple(
        _make_slow_request(table, row, shown[row], len(beside[row]), ids, run) for row in order
    )


def _make_slow_request(
    table: LatencyTable, row: int, shown: list[int], others: int, ids: dict[int, str], run: Run
) -> SlowRequest:
    requests, split = table.requests, table.split
    due = float(requests.floats("due_at")[row])
    known = split.known[row : row + 1]
    parts = (
        (name, float(split.us[name][row]) / 1e3, find_part_source(name, known)) for name in TO_FIRST
    )
    return SlowRequest(
        id=ids.get(row, ""),
        due_s=due - run.started_at,
        total_ms=float(split.total_us[row]) / 1e3,
        input_tokens=_read_input_tokens(table, row),
        model=str(requests.texts("model").rows(np.array([row])).tolist()[0]),
        parts=tuple(part for part in parts if part[1] > 0),
        overlapping=tuple(_make_overlapping_request(table, other, due, ids) for other in shown),
        others=others,
    )


def _find_overlapping_rows(table: LatencyTable, row: int) -> NDArray[np.int64]:
    """The rows of the requests that waited for their first token while this one did, the longest
    overlap first."""
    sent = table.requests.floats("sent_at")
    first = table.requests.floats("first_chunk_at")
    overlap = np.minimum(first, first[row]) - np.maximum(sent, sent[row])
    overlap[row] = np.nan
    rows = np.flatnonzero(overlap > 1e-3)
    return rows[np.argsort(-overlap[rows], kind="stable")]


def _make_overlapping_request(
    table: LatencyTable, row: int, due: float, ids: dict[int, str]
) -> OverlappingRequest:
    requests = table.requests
    return OverlappingRequest(
        id=ids.get(row, ""),
        input_tokens=_read_input_tokens(table, row),
        from_ms=(float(requests.floats("sent_at")[row]) - due) * 1e3,
        to_ms=(float(requests.floats("first_chunk_at")[row]) - due) * 1e3,
    )


def _read_input_tokens(table: LatencyTable, row: int) -> int | None:
    tokens = float(table.requests.floats("input_tokens")[row])
    return None if np.isnan(tokens) else int(tokens)


def _look_up_ids(table: LatencyTable, rows: Iterable[int], since: Since) -> dict[int, str]:
    """The ids of these rows, found by the times of their sends and ends. One look also finds
    records that ended nearby. Ids that are not found are missing."""
    sent, closed = (table.requests.floats(name) for name in ("sent_at", "closed_at"))
    rows = sorted(rows, key=closed.__getitem__)
    begun, ended = sent[rows], closed[rows]
    ids: dict[int, str] = {}
    left = iter(range(MOST_READ))
    for row in rows:
        for _, record in zip(
            left, since(closed[row] - 1e-3) if row not in ids else (), strict=False
        ):
            at = (record.sent_at or 0.0) + record.clock_offset_s
            end = record.closed_unix_s
            for place in np.flatnonzero((abs(begun - at) < SAME_S) & (abs(ended - end) < SAME_S)):
                ids.setdefault(rows[place], record.id)
            if row in ids or end > closed[row] + LATE_S:
                break
    return ids


# -- the server's clock ----------------------------------------------------------------------------


def measure_server_clock(
    requests: RequestTable, reported: ReportedColumns, possible: NDArray[np.bool_]
) -> ServerClock | None:
    """``possible``: the requests whose server times are possible. None: no span has the arrival of
    its request.

    Bounds contradict each other where the clock drifts, or there are several. The offset then lies
    between them.
    """
    sent = requests.floats("sent_at")
    first = sent + requests.floats("ttft_s")
    server_s = (
        np.fmax(
            reported.ttft_us, np.nan_to_num(reported.queue_us) + np.nan_to_num(reported.prefill_us)
        )
        / 1e6
    )
    most = reported.arrived_at - sent
    least = reported.arrived_at - (first - server_s)
    known = possible & np.isfinite(most) & np.isfinite(least)
    if not known.any():
        return None
    ends = float(least[known].max()), float(most[known].min())
    return ServerClock(ahead_s=sum(ends) / 2, within_s=abs(ends[1] - ends[0]) / 2)


# -- the server's own histograms -------------------------------------------------------------------

OURS: Final = {
    "queue": (QUEUE,),
    "prefill": (PREFILL,),
    "decode": (DECODE, DELIVERY),
    "ttft": (TTFT,),
    "inference": (),
}
"""The parts for each of the server's names. An inference (prefill and decode) has none."""
REPORTED_PARTS: Final = ("queue", "prefill")
"""The parts that only the server knows."""
MIN_COUNTED: Final = 0.9
"""The share of a run's requests that a server must have counted. Otherwise it has not ended the
others, and its means are of the first ones."""
MIN_SAME: Final = 0.95
"""From this share of the larger count on, first tokens and queues belong to the same requests.
First tokens are counted when they come, queues when a request ends. Few requests end where a server
is overloaded."""

AFTER_S: Final = 5.0
"""A reading so long after the end of a run still counts as its last one."""


def add_server_histograms(
    attribution: LatencyAttribution | None, history: EngineHistory, run: Run
) -> LatencyAttribution | None:
    """Add the histograms of each server whose metrics were read. They also divide the time where
    the server reports no queue and prefill for single requests."""
    if attribution is None:
        return None
    own_means = tuple(_measure_histograms(attribution, history, run))
    server = attribution.server
    if server.basis != REQUESTS:
        server = _divide_by_histograms(own_means, attribution) or server
    return replace(attribution, own_means=own_means, server=server)


def _measure_histograms(
    attribution: LatencyAttribution, history: EngineHistory, run: Run
) -> Iterator[ServerHistogramMeans]:
    for name in sorted(history.names):
        samples = _list_run_samples(history, name, run)
        means = list[ServerHistogramMean]()
        for what, parts in OURS.items():
            # the server parts it
            if what == "inference" and any(mean.name == "decode" for mean in means):
                continue
            if samples and (grown := histogram_mean(samples, what)) is not None:
                known = parts and (
                    what not in REPORTED_PARTS or attribution.server.basis == REQUESTS
                )
                here_ms = sum(attribution.means_ms[part] for part in parts) if known else None
                means.append(
                    ServerHistogramMean(
                        name=what, server_ms=grown[0] * 1e3, count=grown[1], here_ms=here_ms
                    )
                )
        if means:
            engine = "simulator" if run.simulated else samples[-1].engine
            yield ServerHistogramMeans(engine=engine, source=samples[-1].source, means=tuple(means))


def _list_run_samples(history: EngineHistory, name: str, run: Run) -> list[EngineSample]:
    """The samples of the run, and the first one after it, whose counters have the last requests.
    After a stage they include the next stage's."""
    ended_at = run.ended_at or run.stopping_at or float("inf")
    last_at = ended_at + (AFTER_S if run.stage is None else 0.0)
    after = (
        sample
        for sample in history.by_name[name]
        if ended_at < sample.at < last_at and not sample.failure
    )
    return [*history.between(name, run.profiling_at, ended_at), *islice(after, 1)]


def _divide_by_histograms(
    servers: Sequence[ServerHistogramMeans], attribution: LatencyAttribution
) -> ServerTime | None:
    """The division over all servers together. None: they lack queue or prefill, or counted too few
    requests."""
    (queue_ms, queued), (prefill_ms, prefilled), (ttft_ms, first) = (
        _average_over_servers(servers, what) for what in ("queue", "prefill", "ttft")
    )
    split = [count for count in (queued, prefilled) if count]
    if not split or min(queued, prefilled) < MIN_COUNTED * attribution.requests:
        return None
    same = MIN_SAME * first <= min(split) and MIN_SAME * max(split) <= first
    counts = [*split, first] if same else split
    counted_ms = max(ttft_ms if same else 0.0, queue_ms + prefill_ms)
    return ServerTime(
        basis=HISTOGRAMS,
        engine=" and ".join(dict.fromkeys(server.engine for server in servers)),
        server_ms=attribution.server.server_ms,
        count=max(counts),
        least=min(counts),
        ttft_ms=counted_ms,
        queue_ms=queue_ms,
        prefill_ms=prefill_ms,
        held_ms=_measure_held_by_histograms(servers, attribution, counted_ms),
        unsplit_of=0 if same else first,
        unsplit_ms=0.0 if same else ttft_ms,
    )


def _measure_held_by_histograms(
    servers: Sequence[ServerHistogramMeans], attribution: LatencyAttribution, counted_ms: float
) -> float:
    """The mean decode that was over before the first chunk, in ms: what of it does not fit behind
    the first chunk, at most what the server's TTFT leaves. Short answers do not show that they came
    whole, so long ones show it for all. 0: the server counted other requests, or none came whole."""
    decode_ms, decoded = _average_over_servers(servers, "decode")
    means_ms = attribution.means_ms
    requests = attribution.choices or attribution.requests
    whole_ms = means_ms.get(WITH_DECODE, 0.0)
    if not whole_ms or min(decoded, requests) < MIN_SAME * max(decoded, requests):
        return 0.0
    after_ms = means_ms[DECODE] + means_ms[DELIVERY]
    return max(0.0, min(decode_ms - after_ms, whole_ms + means_ms.get(SERVER, 0.0) - counted_ms))


def _average_over_servers(servers: Sequence[ServerHistogramMeans], what: str) -> tuple[float, int]:
    """(mean in ms, number of requests); 0: there are none."""
    every = chain.from_iterable(server.means for server in servers)
    means = [mean for mean in every if mean.name == what]
    count = sum(mean.count for mean in means)
    return sum(mean.server_ms * mean.count for mean in means) / max(count, 1), count


# -- the whole run ---------------------------------------------------------------------------------

PERCENTILES: Final = (99.0, 95.0, 90.0, 75.0)
"""The highest of these percentiles with enough requests is explained."""
MIN_REPORTED: Final = 0.9
"""The share of the requests for which the server must report its times. Below it, the mean of its
queue would cover a part of them."""


def attribute_latencies(
    columns: RequestColumns,
    spans: Mapping[int, ServerTimes],
    run: Run,
    since: Since,
    asked: Sequence[str] = (),
    standstills: Sequence[tuple[float, float]] = (),
) -> LatencyAttribution | None:
    """``spans`` are by the row of their request. ``since`` looks up records. ``asked`` has further
    breakdowns, such as ``ttft{model=a} p95``; ``standstills`` of the server are (from, to). None:
    no request was answered."""
    table, reported = _make_latency_table(columns, spans, run, few=False)
    here, cut = table.counted, table.split
    if not here.any():
        return None
    breakdowns = list[LatencyBreakdown]()
    left_out = list[str]()
    for rule in _list_explained_rules(table, run, asked, left_out):
        chosen = select_requests(rule, RequestSelection(table.requests, here.copy())).chosen
        where = str(rule).partition("}")[0].partition("{")[2]
        breakdown = make_latency_breakdown(
            table,
            rule.metric,
            rule.percentile or 50.0,
            f"{{{where}}}" if rule.where else "",
            chosen,
            standstills,
        )
        if breakdown is not None:
            breakdowns.append(breakdown)
        elif rule.where:
            left_out.append(f"too few requests for {rule.metric}{{{where}}}")
    sources = np.bincount(reported.source[here & ~cut.impossible], minlength=len(SOURCES))
    means_ms = {name: float(table.part_ms(name, here).mean()) for name in (*TO_FIRST, *AFTER_FIRST)}
    means_ms[TTFT] = float(table.requests.floats("ttft_s")[here].mean()) * 1e3
    choices = table.requests.floats("choices").astype(np.int64)
    sent_at, first_at = (
        table.requests.floats(name)[here] for name in ("sent_at", "first_chunk_at")
    )
    stood_still_s = measure_standstill_s(sent_at, first_at, standstills)
    return LatencyAttribution(
        requests=int(here.sum()),
        choices=int(choices[here].sum()),
        sent=int(choices[~np.isnan(table.requests.floats("sent_at"))].sum()),
        reported={
            name: int(count) for name, count in zip(SOURCES[1:], sources[1:], strict=True) if count
        },
        impossible=int((cut.impossible & here).sum()),
        server=ServerTime(
            basis=REQUESTS if cut.known[here].any() else NEITHER,
            server_ms=sum(means_ms[name] for name in IN_SERVER),
        ),
        means_ms=means_ms,
        stood_still_ms=float(stood_still_s.mean()) * 1e3 or msgspec.UNSET,
        stood_still_of=int((stood_still_s > 0).sum()) or msgspec.UNSET,
        breakdowns=tuple(breakdowns),
        slowest=find_slowest_requests(table, run, since),
        server_clock=measure_server_clock(columns.requests, reported, here & ~cut.impossible),
        proxy=", ".join(filter(None, (run.proxy, run.gateway))),
        left_out=tuple(left_out),
    )


def make_parts_table(
    columns: RequestColumns, spans: Mapping[int, ServerTimes], run: Run
) -> RequestTable:
    """A row for each request in the order of ``columns.requests``: each part in seconds,
    ``total_s`` to the first token (or the end), the source in ``reported``, and ``impossible``.

    Parts after the first token are NaN for requests without one.
    """
    table, reported = _make_latency_table(columns, spans, run, few=True)
    parts: dict[str, Column] = {"total_s": store_column(table.split.total_us / 1e6)}
    for name in (*TO_FIRST, *AFTER_FIRST):
        parts[f"{name}_s"] = store_column(table.part_ms(name, slice(None)) / 1e3)
    parts["reported"] = TextColumn(reported.source, SOURCES)
    parts["impossible"] = table.split.impossible
    return RequestTable(parts)


def _make_latency_table(
    columns: RequestColumns,
    spans: Mapping[int, ServerTimes],
    run: Run,
    *,
    few: bool,
) -> tuple[LatencyTable, ReportedColumns]:
    """``few``: the server's report counts, however few requests it covers."""
    requests = columns.requests
    offer = run.offer
    may_lack_users = offer is not None and (run.settings.users is not None or offer.out_of_users)
    users = offer.most_users if offer is not None and may_lack_users else None
    reported = columns.server.reported(spans)
    counted = (
        requests.has("phase", "profiling")
        & requests.has("outcome", OK)
        & ~np.isnan(requests.floats("ttft_s"))
    )  # fmt: skip
    cut = split_latencies(requests, reported, run.limits, users)
    enough = few or (cut.known[counted] != NOTHING).sum() >= MIN_REPORTED * counted.sum()
    if not enough and reported.divides:
        nothing = reported.without_division()
        unknown = split_latencies(requests, nothing, run.limits, users)
        cut = dataclasses.replace(unknown, impossible=cut.impossible)
    total_ms = _measure_after_first_us(requests) / 1e3
    reported_ms = np.where(cut.impossible, np.nan, reported.decode_us) / 1e3
    decode_ms = np.fmin(total_ms, reported_ms)
    after_ms = {
        DECODE: store_column(np.where(np.isnan(total_ms), np.nan, decode_ms)),
        DELIVERY: store_column(total_ms - decode_ms),
    }
    return LatencyTable(requests, cut, after_ms, ~np.isnan(reported_ms), counted), reported


def _list_explained_rules(
    table: LatencyTable, run: Run, asked: Sequence[str], left_out: list[str]
) -> Iterator[Rule]:
    """The time to the first token at the highest percentile with enough requests, the percentiles
    of rules, and the requested ones."""
    count = int(table.counted.sum())
    highest = next((p for p in PERCENTILES if not has_too_few_values(count, p)), None)
    rules = list[Rule]()
    if highest is not None:
        metric = TO_DUE if _is_due_before_send(table, run, highest) else TTFT
        rules.append(parse_rule(f"{metric} p{highest:g} < 1s"))
    rules += [rule for rule in run.settings.rules.by_text.values() if not rule.staged]
    for text in asked:
        try:
            rules.append(parse_explained_metric(text))
        except ValueError as error:
            left_out.append(str(error))
    seen = set[tuple[str, object, object]]()
    for rule in rules:
        key = rule.metric, rule.percentile, rule.where
        if rule.metric in PARTS_OF and rule.percentile is not None and key not in seen:
            seen.add(key)
            yield rule


def _is_due_before_send(table: LatencyTable, run: Run, percentile: float) -> bool:
    """Whether TTFT from due is another figure than TTFT: a schedule or a gate held requests, or
    late sends and earlier attempts took a part of it that is named."""
    if run.has_waits:
        return True
    ttft_s, from_due_s = (
        float(np.nanpercentile(table.requests.floats(COLUMN[metric])[table.counted], percentile))
        for metric in (TTFT, TO_DUE)
    )
    return from_due_s - ttft_s >= MIN_NAMED * from_due_s


def parse_explained_metric(text: str) -> Rule:
    """The rule with the metric, selectors and percentile to explain: ``ttft{model=a} p95``. Raises
    ValueError."""
    no_parts = f"{text}: only percentiles of {', '.join(PARTS_OF)} have a breakdown"
    try:
        rule = parse_rule(f"{text} < 1s")
    except ValueError as error:
        why = str(error).partition(": ")[2]
        raise ValueError(no_parts if why.startswith("unknown unit") else f"{text}: {why}") from None
    if rule.metric not in PARTS_OF or rule.percentile is None:
        raise ValueError(no_parts)
    return rule
