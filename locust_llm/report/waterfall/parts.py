"""Parts: the time of a request from when it was due to its first token, split so that the parts add up to it exactly.

All in whole microseconds. What is ours is measured; what the server reports for this very request is taken as it is; what
lies between both is the network and the server's front end, or what of that the server does not report. Where it reports
nothing, its queue and the prefill are estimated, and where there is nothing to estimate from, the time is unattributed.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from locust_llm.report.server_columns import Reported

from .price import ALONE, SAME_STEP_S, Price, Prompts, fitted, holds, probed, shortest, tokens_beside

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

LATE: Final = "late"
RETRIES: Final = "retries"
GATE: Final = "gate"
CONNECT: Final = "connect"
SEND: Final = "send"
NETWORK: Final = "network"
HANDOVER: Final = "handover"
QUEUE: Final = "queue"
PREFILL: Final = "prefill"
OTHERS: Final = "others"
CLIENT: Final = "client"
REST: Final = "unattributed"
TO_FIRST: Final = (LATE, RETRIES, GATE, CONNECT, SEND, NETWORK, HANDOVER, QUEUE, PREFILL, OTHERS, CLIENT, REST)
"""In the order in which they come."""

MEASURED: Final = "measured"
REPORTED: Final = "reported"
BETWEEN: Final = "measured less reported"
ESTIMATED: Final = "estimated"
UNATTRIBUTED: Final = "unattributed"

NOTHING: Final = 0
BOTH: Final = 1
PREFILL_ONLY: Final = 2
QUEUE_ONLY: Final = 3
PRICED: Final = 4
"""What is known of the server's part of a request: nothing; its queue and prefill; one of them; nothing but the price of a
prompt."""
SOURCE: Final = {
    NETWORK: {BOTH: BETWEEN, PREFILL_ONLY: MEASURED, QUEUE_ONLY: MEASURED, PRICED: MEASURED, NOTHING: MEASURED},
    HANDOVER: {BOTH: REPORTED},
    QUEUE: {BOTH: REPORTED, PREFILL_ONLY: BETWEEN, QUEUE_ONLY: REPORTED, PRICED: ESTIMATED},
    PREFILL: dict.fromkeys((BOTH, PREFILL_ONLY, QUEUE_ONLY, PRICED), ESTIMATED),
    OTHERS: dict.fromkeys((BOTH, PREFILL_ONLY, QUEUE_ONLY, PRICED), ESTIMATED),
    REST: dict.fromkeys((NOTHING, BOTH, PREFILL_ONLY, QUEUE_ONLY, PRICED), UNATTRIBUTED),
}
"""By part and by what is known; of the other parts it is ``measured``."""

OVERTAKEN_S: Final = 0.002
MAX_OVERTAKEN: Final = 0.02
"""Share of the requests; with more the server does not compute prompts in the order of their arrival."""


@dataclass(frozen=True)
class Split:
    """A row a request."""

    total_us: Ints
    """From due to the first token; of a request without one to its end."""
    us: dict[str, Ints]
    """By part, in the order of TO_FIRST: they add up to the total."""
    low_us: dict[str, Ints]
    high_us: dict[str, Ints]
    """Between what estimated parts (queue, prefill, others) lie; equal to the part where it is not estimated."""
    known: NDArray[np.int8]
    """What is known of the server's part: NOTHING, BOTH, ..."""
    impossible: Bools
    """The server reported more time than there was: left out."""
    price: Price | None
    unlike_probe: bool
    """The price of the probe cannot be that of this run."""


def split(
    requests: pd.DataFrame,
    reported: Reported,
    streams: Floats,
    gap_us: float = 0.0,
    alone: Prompts = (),
) -> Split:
    """``requests`` as of columns.collect; ``streams``: how many decoded while each was in prefill; ``gap_us``: the usual
    one. A request that comes while others decode waits for the end of their step, half a gap on average: that is of the
    queue. ``alone``: of a probe."""
    ours, first, inside = _ours(requests)
    ttft_s, total_s = requests["ttft_s"].to_numpy(np.float64), requests["closed_at"] - requests["sent_at"]
    impossible = reported.impossible(ttft_s * 1e6, total_s.to_numpy(np.float64) * 1e6)
    unusable = impossible | ~first
    q, p, ttft = (np.where(unusable, np.nan, us) for us in (reported.queue_us, reported.prefill_us, reported.ttft_us))
    sooner = np.clip(_whole(np.fmax(np.nan_to_num(q) + np.nan_to_num(p), ttft)) - inside, 0, ours[CLIENT])
    ours[CLIENT], inside = ours[CLIENT] - sooner, inside + sooner  # the first chunk cannot have come before it was sent
    rtt = np.minimum(_whole(requests["rtt_us"].to_numpy(np.float64)), inside)
    tokens = _uncached(requests)
    pause = np.where(streams >= 0.5, round(gap_us / 2), 0)
    server_us = np.where(first, inside - rtt, np.nan)
    of_probe = probed(alone, float(np.median(rtt[first])) if first.any() else 0.0)
    unlike = of_probe is not None and not holds(of_probe, tokens, server_us)
    price = _price(requests, reported, tokens, q, p, server_us, pause, streams, None if unlike else of_probe)
    parts, low, high, known = _servers(q, p, inside, rtt, first, tokens, price, requests, pause)
    parts[HANDOVER] = _handover(ttft - q - p, parts[NETWORK], known)
    parts[NETWORK] = parts[NETWORK] - parts[HANDOVER]
    parts |= ours
    us = {name: parts[name] for name in TO_FIRST}
    total = sum(us.values(), np.zeros(len(requests), np.int64))
    return Split(total, us, {**us, **low}, {**us, **high}, known, impossible, price, unlike)


def _ours(requests: pd.DataFrame) -> tuple[dict[str, Ints], Bools, Ints]:
    """(the parts that are measured here, whether there was a first token, what lies between send and arrival)."""

    def us(name: str) -> Ints:
        return _whole(requests[name].to_numpy(np.float64) * 1e6)

    def at(name: str) -> Floats:
        return requests[name].to_numpy(np.float64)

    sent, ttft_s = ~np.isnan(at("sent_at")), at("ttft_s")
    first = ~np.isnan(ttft_s)
    after = np.where(first, us("ttft_s"), np.where(sent, _whole((at("closed_at") - at("sent_at")) * 1e6), 0))
    before = np.where(sent, us("late_s"), _whole((at("closed_at") - at("due_at")) * 1e6))
    given_up = ~sent & np.isnan(at("admitted_at"))
    gate = np.minimum(np.where(given_up, _whole((at("closed_at") - at("asked_at")) * 1e6), us("gate_wait_s")), before)
    connect = np.where(sent, np.minimum(us("connect_s"), before - gate), before - gate)
    left = before - gate - connect
    again = (at("attempt") > 1) | (at("resent") > 0)
    send = np.minimum(_whole(at("written_us")), after)
    client = np.where(first, np.minimum(_whole((ttft_s - at("ttft_soonest_s")) * 1e6), after - send), 0)
    parts = {
        LATE: np.where(again, 0, left),
        RETRIES: np.where(again, left, 0),
        GATE: gate,
        CONNECT: connect,
        SEND: send,
        CLIENT: client,
    }
    return parts, first, after - send - client


def _handover(neither: Floats, network: Ints, known: NDArray[np.int8]) -> Ints:
    """What of the way there and back is the server's own: its front end's time to first token less its engine's queue and
    prefill (``neither``). vLLM's engine takes requests between two steps: its queue begins when the step under way ends."""
    return np.where(known == BOTH, np.minimum(_whole(neither), network), 0)


def _servers(
    q: Floats,
    p: Floats,
    inside: Ints,
    rtt: Ints,
    first: Bools,
    tokens: Floats,
    price: Price | None,
    requests: pd.DataFrame,
    pause: Ints,
) -> tuple[dict[str, Ints], dict[str, Ints], dict[str, Ints], NDArray[np.int8]]:
    """(network, queue, prefill, others and the rest, which add up to ``inside``; their lower, their upper ends; what is
    known)."""
    has_q, has_p = ~np.isnan(q), ~np.isnan(p)
    own = np.full(len(q), np.nan) if price is None else price.us(tokens)
    priced = first & ~np.isnan(own)
    known = np.select([has_q & has_p, has_p, has_q, priced], [BOTH, PREFILL_ONLY, QUEUE_ONLY, PRICED], NOTHING)
    queue, prefill = _whole(q), _whole(p)
    over = np.maximum(queue + prefill - inside, 0)  # by a few milliseconds at most: two clocks
    prefill -= (cut := np.minimum(over, prefill))
    queue -= over - cut
    network = np.where(known == BOTH, inside - queue - prefill, np.minimum(rtt, inside - queue - prefill))
    server = inside - network
    queue = np.where(known == PREFILL_ONLY, server - prefill, queue)
    prefill = np.where(known == QUEUE_ONLY, server - queue, np.where(known == PRICED, server, prefill))
    alone = np.where(np.isnan(own), prefill, np.minimum(_whole(own), prefill))
    low_end, high_end = (0.0, 1.0) if price is None else (price.low, price.high)
    least = np.minimum(_whole(own * low_end), prefill)
    most = np.where(np.isnan(own), prefill, np.minimum(_whole(own * high_end), prefill))
    guessed = np.where(known == PRICED, pause, 0)
    least, most = np.maximum(least - guessed, 0), np.minimum(most + guessed, prefill)
    waited = prefill - alone
    estimated, low_q, high_q = _queued(requests, alone, waited, price, tokens, pause)
    is_priced = known == PRICED
    queue = np.where(is_priced, estimated, queue)
    others = np.where(is_priced, waited - queue, waited)
    parts = {
        NETWORK: network,
        QUEUE: queue,
        PREFILL: alone,
        OTHERS: others,
    }
    none = known == NOTHING
    for name in (QUEUE, PREFILL, OTHERS):
        parts[name] = np.where(none, 0, parts[name])
    parts[REST] = inside - sum(parts.values())
    low = {
        QUEUE: np.where(is_priced, np.minimum(low_q, queue), parts[QUEUE]),
        PREFILL: least,
        OTHERS: np.where(is_priced, 0, prefill - most),
    }
    high = {
        QUEUE: np.where(is_priced, np.maximum(high_q, prefill - least), parts[QUEUE]),
        PREFILL: most,
        OTHERS: prefill - least - np.where(is_priced, low[QUEUE], 0),
    }
    for name in low:  # it may have been any of them
        low[name], high[name] = np.where(none, 0, low[name]), np.where(none, parts[REST], high[name])
    return parts, low, high, known.astype(np.int8)


def _queued(
    requests: pd.DataFrame, own: Ints, waited: Ints, price: Price | None, tokens: Floats, pause_us: Ints
) -> tuple[Ints, Ints, Ints]:
    """(the queue's share of what a request waited for others, its lower and its upper end), from our stamps alone.

    A server computes prompts in the order of their arrival, unless it has another policy: one's prefill begins when the last
    of those before it is over. That is the latest first token of another request that came at least one's own prefill
    before one's own first token; the step in which it came may have been shared. Where answers overtake each other the order
    is another one, and how much of the wait was queue is anybody's guess: half of it, between nothing and all.
    """
    sent, first = requests["sent_at"].to_numpy(np.float64), requests["first_chunk_at"].to_numpy(np.float64)
    got = np.flatnonzero(~np.isnan(first))
    if not len(got):
        return np.zeros_like(waited), np.zeros_like(waited), waited
    if overtaken(sent[got], first[got]) > MAX_OVERTAKEN:
        return waited // 2, np.zeros_like(waited), waited
    order = got[np.argsort(first[got], kind="stable")]
    begin = first - own / 1e6
    place = np.searchsorted(first[order], begin, side="right") - 1
    before = first[order][np.maximum(place, 0)]
    ended = np.where((place >= 0) & (before > sent), before - sent, 0.0)
    nobody = ~(ended > 0)
    queue = np.clip(_whole(ended * 1e6), 0, waited)
    shared = _steps(first[order])
    whole = np.zeros(len(order)) if price is None else np.nan_to_num(price.us(tokens[order]))
    step: Floats = np.bincount(shared, whole)[shared][np.maximum(place, 0)].astype(np.float64)
    low = np.where(nobody, 0, np.maximum(queue - _whole(step) - 2 * pause_us, 0))
    return np.where(nobody, waited, queue), low, waited


def overtaken(sent: Floats, first: Floats) -> float:
    """Share of these requests before whose first token one came that was sent later, by more than OVERTAKEN_S."""
    order = np.argsort(sent, kind="stable")
    soonest_after = np.minimum.accumulate(first[order][::-1])[::-1]
    return float((soonest_after[1:] < first[order][:-1] - OVERTAKEN_S).sum()) / max(len(order), 1)


def _price(
    requests: pd.DataFrame,
    reported: Reported,
    tokens: Floats,
    q: Floats,
    p: Floats,
    server_us: Floats,
    pause: Ints,
    streams: Floats,
    of_probe: Price | None,
) -> Price | None:
    """Of what the server reported, where it did. Else the first that holds: a probe's; of what lies between send and first
    token of those that were alone, less a round trip; of what lies between two first tokens; an upper bound."""
    known, first = ~np.isnan(p), ~np.isnan(server_us)
    got = requests["first_chunk_at"].to_numpy(np.float64)
    if known.sum() >= max(1, first.sum() / 2):
        began = reported.arrived_at + np.nan_to_num(q) / 1e6
        if np.isnan(began[known]).any():  # by our own stamps: the first token less the prefill
            began = got - p / 1e6
        return fitted(tokens, p, tokens_beside(began, began + p / 1e6, tokens), streams)
    sent = requests["sent_at"].to_numpy(np.float64)
    ended = np.where(np.isnan(got), requests["closed_at"].to_numpy(np.float64), got)
    beside = np.where(first, tokens_beside(sent, ended, np.nan_to_num(tokens)), np.nan)
    alone = np.where(beside <= ALONE * tokens, beside, np.nan)
    if of_probe is not None:
        return of_probe
    for price in (fitted(tokens, server_us - pause, alone, streams), _between_firsts(sent, got, tokens, streams)):
        if price is not None and holds(price, tokens, server_us):
            return price
    return shortest(tokens, server_us)


def _between_firsts(sent: Floats, first: Floats, tokens: Floats, streams: Floats) -> Price | None:
    """A server that is never idle computes, between two first tokens, the prompt of the second. First tokens of one step
    come together: their prompts count as one."""
    got = np.flatnonzero(~np.isnan(first) & ~np.isnan(tokens))
    order = got[np.argsort(first[got], kind="stable")]
    if len(order) < 2:
        return None
    step = _steps(first[order])
    count = int(step[-1]) + 1
    at = np.zeros(count)
    np.maximum.at(at, step, first[order])
    soonest = np.full(count, np.inf)
    np.minimum.at(soonest, step, sent[order])
    began = np.maximum(soonest, np.append(-np.inf, at[:-1]))
    whole = np.bincount(step, tokens[order]).astype(np.float64)
    beside = np.bincount(step, np.nan_to_num(streams[order])) / np.bincount(step)
    return fitted(
        whole, np.where(began > soonest, (at - began) * 1e6, np.nan), np.zeros(count), beside.astype(np.float64)
    )


def _steps(first: Floats) -> Ints:
    """The number of the step of each first token; these in their order."""
    return np.asarray(np.cumsum(np.append(True, np.diff(first) > SAME_STEP_S)) - 1, np.int64)


def _uncached(requests: pd.DataFrame) -> Floats:
    """Input tokens that no cache held, as far as the server tells; else those that were asked for."""
    told = requests["input_tokens"].to_numpy(np.float64)
    asked = requests["asked_input_tokens"].to_numpy(np.float64)
    cached = np.nan_to_num(requests["cached_tokens"].to_numpy(np.float64))
    return np.maximum(np.where(np.isnan(told), asked, told - cached), 0.0)


def _whole(us: Floats) -> Ints:
    """Unknown is 0; so is what two clocks make negative."""
    return np.rint(np.maximum(np.nan_to_num(us), 0.0)).astype(np.int64)
