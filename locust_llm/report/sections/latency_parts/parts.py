"""Parts: the time of a request from when it was due to its first token, split so that the parts add
up to it exactly.

All in whole microseconds. A part is measured here, or reported by the server for this very request;
nothing is estimated. What the server does not report of the time between the send and the first
token stays one part, ``server``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from locust_llm.records.run import LimitChange
from locust_llm.report.columns import PROMPT_US
from locust_llm.report.occupancy import permit_lag_s
from locust_llm.report.sections.latency_parts.model import (
    AT_MOST,
    BETWEEN,
    CLIENT,
    CONNECT,
    GATE,
    HANDOVER,
    LATE,
    MEASURED,
    NETWORK,
    PERMIT,
    PREFILL,
    QUEUE,
    REPORTED,
    RETRIES,
    SEND,
    SERVER,
    TO_FIRST,
    UNATTRIBUTED,
)
from locust_llm.report.server_columns import ReportedColumns

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NOTHING: Final = 0
BOTH: Final = 1
PREFILL_ONLY: Final = 2
QUEUE_ONLY: Final = 3
"""What the server reports of a request: nothing; its queue and prefill; one of them."""
FOLLOWED_S: Final = 2.0
"""Within so much all processes follow a change of the limit."""


@dataclass(frozen=True)
class LatencySplit:
    """A row a request."""

    total_us: Ints
    """From due to the first token; of a request without one to its end."""
    us: dict[str, Ints]
    """By part, in the order of TO_FIRST: they add up to the total."""
    known: NDArray[np.int8]
    """What the server reports: NOTHING, BOTH, ..."""
    impossible: Bools
    """The server reported more time than there was: what it reports of this request is left out."""


def find_part_source(name: str, known: NDArray[np.int8]) -> str:
    """Where the figure of a part is from, for most of the requests whose reports these are."""
    if name in (HANDOVER, QUEUE, PREFILL):
        return REPORTED
    if name == UNATTRIBUTED:
        return UNATTRIBUTED
    if name == CLIENT:
        return AT_MOST
    mostly = int(np.bincount(known).argmax()) if len(known) else NOTHING
    less_reported = (name == NETWORK and mostly == BOTH) or (name == SERVER and mostly != NOTHING)
    return BETWEEN if less_reported else MEASURED


def split_latencies(
    requests: pd.DataFrame, reported: ReportedColumns, limits: Sequence[LimitChange] = ()
) -> LatencySplit:
    """``requests`` as of columns.collect; ``limits``: of the gate; where there is one, who was
    never admitted waited at it."""
    ours, first, inside = _ours(requests, limits)
    ttft_us = requests["ttft_s"].to_numpy(np.float64) * 1e6
    whole_us = (requests["closed_at"] - requests["sent_at"]).to_numpy(np.float64) * 1e6
    impossible = reported.impossible(ttft_us, whole_us)
    unusable = impossible | ~first
    q, p, ttft = (
        np.where(unusable, np.nan, us)
        for us in (reported.queue_us, reported.prefill_us, reported.ttft_us)
    )
    sooner = np.clip(
        _whole(np.fmax(np.nan_to_num(q) + np.nan_to_num(p), ttft)) - inside, 0, ours[CLIENT]
    )
    # the first chunk cannot have come before it was sent
    ours[CLIENT] = ours[CLIENT] - sooner
    inside = inside + sooner
    parts, known = _of_the_server(
        q, p, ttft, inside, np.minimum(_round_trip(requests), inside), first
    )
    us = {name: (ours | parts)[name] for name in TO_FIRST}
    return LatencySplit(sum(us.values(), np.zeros(len(requests), np.int64)), us, known, impossible)


def _ours(
    requests: pd.DataFrame, limits: Sequence[LimitChange]
) -> tuple[dict[str, Ints], Bools, Ints]:
    """(the parts that are measured here, whether there was a first token, what lies between send
    and arrival)."""

    def us(name: str) -> Ints:
        return _whole(requests[name].to_numpy(np.float64) * 1e6)

    def at(name: str) -> Floats:
        return requests[name].to_numpy(np.float64)

    sent = ~np.isnan(at("sent_at"))
    ttft_s = at("ttft_s")
    first = ~np.isnan(ttft_s)
    after = np.where(
        first, us("ttft_s"), np.where(sent, _whole((at("closed_at") - at("sent_at")) * 1e6), 0)
    )
    before = np.where(sent, us("late_s"), _whole((at("closed_at") - at("due_at")) * 1e6))
    given_up = ~sent & np.isnan(at("admitted_at"))
    waited = np.where(given_up, _whole((at("closed_at") - at("asked_at")) * 1e6), us("gate_wait_s"))
    gated = any(change.limit is not None for change in limits)
    gate = np.where(
        (gated & given_up) | _gate_was_full(requests, limits), np.minimum(waited, before), 0
    )
    permit = np.minimum(_whole(permit_lag_s(requests, limits) * 1e6), gate)
    connect = np.where(sent, np.minimum(us("connect_s"), before - gate), before - gate)
    left = before - gate - connect
    again = (at("attempt") > 1) | (at("resent") > 0)
    send = np.minimum(_whole(at("written_us")), after)
    prompt = (at("read_lag_us") < PROMPT_US) & (requests["clock"] == "kernel").to_numpy(np.bool_)
    later = np.where(first & ~prompt, _whole((ttft_s - at("ttft_soonest_s")) * 1e6), 0)
    client = np.minimum(later, after - send)
    parts = {
        LATE: np.where(again, 0, left),
        RETRIES: np.where(again, left, 0),
        GATE: gate - permit,
        PERMIT: permit,
        CONNECT: connect,
        SEND: send,
        CLIENT: client,
    }
    return parts, first, after - send - client


def _gate_was_full(requests: pd.DataFrame, limits: Sequence[LimitChange]) -> Bools:
    """Which requests came to a gate that had no slot for them. Without a gate, or with a free slot,
    the wait for the admission is one for this machine: its event loop was busy.

    The limit is the lowest one from just before it came, as processes follow changes within
    FOLLOWED_S, to its admission. Slots are divided among the processes, and a process has at least
    its share of them. Attempts that were tried again held slots too, and have no row here: with
    such any gate may have been full.
    """
    limit = requests["limit"].to_numpy(np.float64)
    gated = ~np.isnan(limit)
    if (requests["attempt"].to_numpy(np.float64) > 1).any():
        return np.asarray(gated)
    asked, freed, first, closed = (
        requests[name].to_numpy(np.float64)
        for name in ("asked_at", "freed_at", "first_chunk_at", "closed_at")
    )
    over = np.sort(np.fmin(np.fmin(first, freed), closed))
    before = (
        np.searchsorted(np.sort(asked), asked, side="right")
        - np.searchsorted(over, asked, side="right")
        - 1
    )
    lowest = np.fmin(
        limit, np.fmin(_limit_at(asked, limits), _limit_at(asked - FOLLOWED_S, limits))
    )
    share = np.nan_to_num(lowest) // max(1, requests["worker"].nunique())
    return np.asarray(gated & (before >= share))


def _limit_at(at: Floats, limits: Sequence[LimitChange]) -> Floats:
    """NaN: there was none."""
    changes = sorted(limits, key=lambda change: change.at)
    levels = np.array(
        [np.nan, *(np.nan if change.limit is None else change.limit for change in changes)],
        np.float64,
    )
    return levels[np.searchsorted([change.at for change in changes], at, side="right")]


def _round_trip(requests: pd.DataFrame) -> Ints:
    """In µs, the shortest that a process saw on the way to the server. The kernel's figure of a
    single request may hold the delays of either side, as an acknowledgement can wait."""
    return _whole(
        requests.groupby("worker", observed=True)["rtt_us"].transform("min").to_numpy(np.float64)
    )


def _of_the_server(
    q: Floats, p: Floats, ttft: Floats, inside: Ints, rtt: Ints, first: Bools
) -> tuple[dict[str, Ints], NDArray[np.int8]]:
    """(the parts of what lies between send and arrival, which add up to ``inside``; what the server
    reports)."""
    has_q, has_p = ~np.isnan(q), ~np.isnan(p)
    known = np.select([has_q & has_p, has_p, has_q], [BOTH, PREFILL_ONLY, QUEUE_ONLY], NOTHING)
    queue = _whole(q)
    prefill = _whole(p)
    over = np.maximum(queue + prefill - inside, 0)  # by a few milliseconds at most: two clocks
    prefill -= (cut := np.minimum(over, prefill))
    queue -= over - cut
    rest = inside - queue - prefill
    network = np.where(known == BOTH, rest, np.minimum(rtt, rest))
    handover = np.where(known == BOTH, np.minimum(_whole(ttft - q - p), network), 0)
    parts = {
        NETWORK: np.where(first, network - handover, 0),
        HANDOVER: handover,
        QUEUE: queue,
        PREFILL: prefill,
        SERVER: np.where(first, rest - network, 0),
        UNATTRIBUTED: np.where(first, 0, inside),
    }
    return parts, known.astype(np.int8)


def _whole(us: Floats) -> Ints:
    """Unknown is 0; so is what two clocks make negative."""
    return np.rint(np.maximum(np.nan_to_num(us), 0.0)).astype(np.int64)
