"""Decode: the time between the first chunk and the last, split into the request's own pace, stalls by prefills, preemption,
and what cannot be told.

Estimated, as no server reports it: at its own pace is a gap that no other prefill touched, and of one that a prefill
touched as much as such gaps take at as many decoding streams (interference.py). What it took longer is a stall; a sum over
the request, so that gaps which happen to be shorter count too. A gap of several times the usual in which the other streams
went on is a preemption: a prefill stops all of them. When it comes back, what was taken is computed again, and stalls the
others.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from locust_llm.core.record import Record
from locust_llm.core.spans.ids import request_key
from locust_llm.report.analysis.interference import MIN_COMPARED, TOLERANCE, Labelled, area, blocks, stamps, usual_s
from locust_llm.report.analysis.occupancy import Occupancy

from .price import SAME_STEP_S

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PACE: Final = "pace"
STALLS: Final = "stalls"
PREEMPTION: Final = "preemption"
DELIVERY: Final = "delivery"
UNKNOWN: Final = "unattributed"
AFTER_FIRST: Final = (PACE, STALLS, PREEMPTION, DELIVERY, UNKNOWN)

LONG: Final = 3.0
"""Times the usual gap: from here on a gap is looked at by itself."""
WENT_ON: Final = 3.0
"""Chunks that each other stream got meanwhile, on average: then it was this stream alone that stood still."""


@dataclass(frozen=True)
class Decoded:
    """A row a request that was read."""

    keys: NDArray[np.uint64]
    """``request_key`` their ids."""
    total_us: Ints
    us: dict[str, Ints]
    """By part, in the order of AFTER_FIRST: they add up to the total."""


def decoded(levels: Occupancy, records: Iterable[Record]) -> Decoded:
    """``levels``: of all requests; ``records``: all of them or a sample, read once."""
    keys, whose, gaps, means, beside, sharps, ats = list[int](), [], [], [], [], [], []
    origin = float(levels.at[0]) if len(levels.at) else 0.0
    clock = levels.at - origin
    prefills, streams = area(levels.used, clock), area(levels.decoding, clock)
    for block in blocks(records) if len(clock) else ():
        which, at, gap_s, sharp = stamps(block, origin)
        inner = which[1:] == which[:-1]
        length = np.maximum(gap_s, TOLERANCE)
        whose.append(which[1:][inner] + len(keys))
        gaps.append(gap_s[inner])
        means.append((np.diff(np.interp(at, clock, prefills)) / length)[inner])
        beside.append((np.diff(np.interp(at, clock, streams)) / length)[inner])
        sharps.append(sharp[inner])
        ats.append(np.stack([at[:-1][inner], at[1:][inner]], axis=1))
        keys += [request_key(record.id) for record in block]
    if not gaps:
        none = np.empty(0, np.int64)
        return Decoded(np.empty(0, np.uint64), none, dict.fromkeys(AFTER_FIRST, none))
    request, gap_s = np.concatenate(whose), np.concatenate(gaps)
    found = Labelled(request, gap_s, np.zeros(len(gap_s), np.int64), np.concatenate(beside), np.concatenate(means))
    us = _parts(found, np.concatenate(sharps), np.concatenate(ats), len(keys))
    return Decoded(np.array(keys, np.uint64), sum(us.values(), np.zeros(len(keys), np.int64)), us)


def _parts(found: Labelled, sharp: NDArray[np.bool_], at: Floats, requests: int) -> dict[str, Ints]:
    touched = found.mean > TOLERANCE
    calm = sharp & ~touched
    usual = _usual(found, calm)
    usual = _usual(found, calm & ~(found.gap_s > LONG * usual))
    unknown = np.isnan(usual)
    usual = np.where(unknown, found.gap_s, usual)
    long = found.gap_s > LONG * usual
    alone = long & (_others_chunks(at, long) >= WENT_ON * np.maximum(found.streams - 1, 1e-9)) & (found.streams > 1.5)
    touched |= _again(at, alone)
    odd = long & ~alone & ~touched
    more_us = np.rint((found.gap_s - usual) * 1e6)

    def of(those: NDArray[np.bool_], us: Floats) -> Ints:
        return np.rint(np.bincount(found.request[those], us[those], requests)).astype(np.int64)

    gap_us = np.rint(found.gap_s * 1e6)
    total = of(np.ones(len(gap_us), np.bool_), gap_us)
    preempted, rest = of(alone, more_us), of(odd, more_us) + of(unknown & touched, gap_us)
    stalls = np.clip(of(touched & ~alone & ~unknown, more_us), 0, total - preempted - rest)
    return {
        PACE: total - stalls - preempted - rest,
        STALLS: stalls,
        PREEMPTION: preempted,
        DELIVERY: np.zeros(requests, np.int64),
        UNKNOWN: rest,
    }


def _usual(found: Labelled, calm: NDArray[np.bool_]) -> Floats:
    usual = usual_s(found, calm)
    if np.isnan(usual).any() and calm.sum() >= MIN_COMPARED:
        usual = np.where(np.isnan(usual), _by_streams(found.streams[calm], found.gap_s[calm], found.streams), usual)
    return usual


def _by_streams(streams: Floats, gap_s: Floats, at: Floats) -> Floats:
    """The usual gap at more streams than were ever left in peace: a straight line through those that were, never below 0."""
    beside = streams - streams.mean()
    slope = float(beside @ gap_s / (beside @ beside)) if np.ptp(streams) > 0.5 else 0.0
    return np.asarray(np.maximum(gap_s.mean() + max(slope, 0.0) * (at - streams.mean()), 0.0))


def _again(at: Floats, alone: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """In which gaps a preempted request came back: what was taken from it is computed again before its next token."""
    back = np.sort(at[alone, 1])
    return np.asarray(np.searchsorted(back, at[:, 1] + SAME_STEP_S) > np.searchsorted(back, at[:, 0] + SAME_STEP_S))


def _others_chunks(at: Floats, those: NDArray[np.bool_]) -> Floats:
    """How many chunks came strictly within each of ``those`` gaps; 0 of the others."""
    ends = np.sort(at[:, 1])
    count = np.zeros(len(at))
    inside = np.searchsorted(ends, at[those, 1], side="left") - np.searchsorted(ends, at[those, 0], side="right")
    count[those] = np.maximum(inside, 0)
    return count
