"""Gate occupancy: how many requests waited at the gate, held a slot or were decoding, at every
moment of a run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from locust_llm.records.run_facts import LimitChange
from locust_llm.report.array_types import Floats
from locust_llm.report.request_table import RequestTable
from locust_llm.report.stored_columns import (
    GrowingColumn,
    NumberColumn,
    read_column,
    store_column,
)

from .summary_rows import GateUse

Interval = tuple[Floats, Floats]

INSTANT_S: Final = 1e-5
"""A level that holds no longer is none. Unix time in a double resolves 0.2 µs, and the clocks of
two processes agree to some µs. So the end of one request may seem to come just after the begin of
the next one that it made room for."""


BLOCK: Final = 2**18
"""So many moments are computed together: a run of a million requests has six million."""
KINDS: Final = {"at": "d", "limit": "f", "used": "i", "waiting": "i", "decoding": "i"}


@dataclass(frozen=True)
class Occupancy:
    """The levels over time: the ``i``-th ones hold from ``at[i]`` to ``at[i + 1]`` (Unix
    seconds)."""

    columns: Mapping[str, NumberColumn]

    @property
    def at(self) -> Floats:
        return self.values("at")

    @property
    def limit(self) -> NDArray[np.float32]:
        """The prefill limit in force; NaN without a gate."""
        return self.values("limit")

    @property
    def used(self) -> NDArray[np.int32]:
        """The requests sent whose first chunk, error or end has not come: the server's prefills as
        seen from here."""
        return self.values("used")

    @property
    def waiting(self) -> NDArray[np.int32]:
        return self.values("waiting")

    @property
    def decoding(self) -> NDArray[np.int32]:
        return self.values("decoding")

    def values(self, name: str) -> NDArray[Any]:
        return read_column(self.columns[name])


def compute_occupancy(requests: RequestTable, limits: Sequence[LimitChange]) -> Occupancy:
    """The levels from the requests' intervals, each half open: [asked, admitted) waiting, [sent,
    first chunk) using a slot, [first chunk, closed) decoding.

    ``requests`` has the stamp columns of ``columns.collect_columns``. ``used`` counts what reached
    the server, independently of the gate's own count. It begins with the send (the admission, if
    nothing was sent). It ends with the first of: first chunk, slot given back, close. So it can
    prove the gate wrong.
    """
    asked, admitted, sent, freed, first, closed = (
        requests.floats(name)
        for name in (
            "asked_at",
            "admitted_at",
            "sent_at",
            "freed_at",
            "first_chunk_at",
            "closed_at",
        )
    )
    gated = any(change.limit is not None for change in limits)
    never = np.isnan(admitted) & np.isnan(sent)  # given up, or cut, while it waited
    waiting = (asked, np.where(never & gated, closed, admitted))
    used = (np.where(np.isnan(sent), admitted, sent), np.fmin(np.fmin(first, freed), closed))
    decoding = (first, closed)
    ordered = [*map(store_column, chain(*map(_real, *zip(used, waiting, decoding, strict=True))))]
    changes = sorted(limits, key=lambda change: change.at)
    changed_at = np.array([change.at for change in changes], np.float64)
    limit = np.array(
        [np.nan, *(np.nan if change.limit is None else change.limit for change in changes)],
        np.float32,
    )
    columns = {name: GrowingColumn(kind) for name, kind in KINDS.items()}
    levels = {"used": 0, "waiting": 0, "decoding": 0}
    for changes_here, *moments in _divide([changed_at, *map(read_column, ordered)]):
        at = _merge_moments(changes_here, *moments)
        columns["at"].extend(at)
        columns["limit"].extend(limit[np.searchsorted(changed_at, at, side="right")])
        for name, starts, ends in zip(levels, moments[::2], moments[1::2], strict=True):
            level = levels[name] + _level((starts, ends), at)
            columns[name].extend(level)
            levels[name] = int(level[-1]) if len(level) else levels[name]
    return Occupancy({name: column.result() for name, column in columns.items()})


def _divide(ordered: Sequence[Floats]) -> Iterator[list[Floats]]:
    """Arrays in order, stretch by stretch of the time, with at most BLOCK values of each."""
    edges = np.unique(np.concatenate([values[BLOCK::BLOCK] for values in ordered]))
    places = [[0, *np.searchsorted(values, edges), len(values)] for values in ordered]
    for stretch in zip(*map(pairwise, places), strict=True):
        yield [values[begin:end] for values, (begin, end) in zip(ordered, stretch, strict=True)]


def integrate_level(level: NDArray[np.int32], clock: Floats) -> Floats:
    """The request-seconds up to each moment."""
    area = GrowingColumn("d")
    area.extend(np.zeros(min(1, len(clock))))
    before = 0.0
    for begin in range(0, len(clock) - 1, BLOCK):
        steps = level[begin : begin + BLOCK][: len(clock) - 1 - begin] * np.diff(
            clock[begin : begin + BLOCK + 1]
        )
        steps[0] += before
        sums = np.cumsum(steps)
        area.extend(sums)
        before = sums[-1]
    return read_column(area.result())


def measure_gate_use(levels: Occupancy, start: float, end: float) -> GateUse | None:
    """The use of slots between two moments (Unix seconds). None: the stretch is empty."""
    if not end > start:
        return None
    took_s = used_s = waited_s = filled_s = 0.0
    most = 0
    at, every_used, every_limit, every_waiting = (
        levels.at, levels.used, levels.limit, levels.waiting,
    )  # fmt: skip
    for begin in range(0, len(at) - 1, BLOCK):
        length = np.diff(np.clip(at[begin : begin + BLOCK + 1], start, end))
        here = slice(begin, begin + len(length))
        used, limit = every_used[here], every_limit[here]
        wanted = (every_waiting[here] > 0) & (limit > 0)  # NaN > 0 is False
        took_s += float(length.sum())
        used_s += float(used @ length)
        waited_s += float(length[wanted].sum())
        filled_s += float((used[wanted] / limit[wanted]) @ length[wanted])
        most = max(most, int(used[length > INSTANT_S].max(initial=0)))
    if not took_s:
        return None
    return GateUse(
        mean_used=used_s / (end - start),
        max_used=most,
        waited_s=waited_s,
        utilisation=filled_s / waited_s if waited_s else None,
    )


def unused_permit_s(requests: RequestTable, limits: Sequence[LimitChange]) -> Floats:
    """For each request, the seconds for which it waited at the gate though a permit was free: the
    load generator had not handed it over.

    Where more requests waited than permits were free, each has its part of them. With one free
    permit of two, and three waiting requests, the next two would have shared it: each has half of
    the time.
    """
    asked, admitted, freed, first, closed = (
        requests.floats(name)
        for name in ("asked_at", "admitted_at", "freed_at", "first_chunk_at", "closed_at")
    )
    changes = [
        change
        for change in sorted(limits, key=lambda change: change.at)
        if change.limit is not None
    ]
    if (
        not changes or (requests.floats("attempt") > 1).any()
    ):  # attempts before had permits, and have no row
        return np.zeros(len(requests))
    until = np.where(np.isnan(admitted), closed, admitted)
    waiting = _real(asked, until)
    held = _real(admitted, np.fmin(np.fmin(first, freed), closed))
    changed_at = np.array([change.at for change in changes], np.float64)
    at = _merge_moments(changed_at, *waiting, *held)
    limit = np.array([0.0, *(change.limit or 0 for change in changes)])[
        np.searchsorted(changed_at, at, side="right")
    ]
    wanted = np.minimum(_level(waiting, at), limit)
    free = np.clip(limit - _level(held, at), 0.0, wanted)
    unused = np.divide(free, wanted, out=np.zeros(len(at)), where=wanted > 0)
    total = np.zeros(len(at))
    np.cumsum(unused[:-1] * np.diff(at), out=total[1:])
    meanwhile = np.interp(until, at, total) - np.interp(asked, at, total)
    return np.where(until > asked, meanwhile, 0.0)


def permit_lag_s(requests: RequestTable, limits: Sequence[LimitChange]) -> Floats:
    """The same where several processes hand permits to each other. It is 0 with one process, which
    hands them on at once."""
    if len(requests.texts("worker").count_rows()) < 2:
        return np.zeros(len(requests))
    return unused_permit_s(requests, limits)


def thin_occupancy(levels: Occupancy, points: int) -> dict[str, Floats]:
    """At most ``points`` values for a plot, each over an equal share of the time: ``at`` (the middle,
    Unix seconds) and the time-weighted mean of each level. ``limit`` is the one at the middle."""
    if len(levels.at) < 2:
        return {name: np.empty(0) for name in ("at", "limit", "used", "waiting", "decoding")}
    edges = np.linspace(levels.at[0], levels.at[-1], points + 1)
    middle = (edges[1:] + edges[:-1]) / 2
    limit = levels.limit[np.searchsorted(levels.at, middle, side="right") - 1]
    columns: dict[str, Floats] = {"at": middle, "limit": limit.astype(np.float64)}
    for name in ("used", "waiting", "decoding"):
        area = integrate_level(levels.values(name), levels.at)
        columns[name] = np.diff(np.interp(edges, levels.at, area)) / np.diff(edges)
    return columns


def _real(starts: Floats, ends: Floats) -> Interval:
    """The intervals that have both ends and some length, each side sorted by itself, as a level
    needs no more."""
    there = ends > starts  # False where either is NaN
    # they are nearly in order
    return np.sort(starts[there], kind="stable"), np.sort(ends[there], kind="stable")


def _merge_moments(*ordered: Floats) -> Floats:
    """Each moment once, in order. A stable sort merges what is in order already."""
    at = np.sort(np.concatenate(ordered), kind="stable")
    return at[np.append(True, at[1:] != at[:-1])] if len(at) else at


def _level(interval: Interval, at: Floats) -> NDArray[np.int32]:
    """How many of the intervals hold at each moment: the ones that have begun, less the ones that
    have ended. Each begin and each end is one of the moments."""
    starts, ends = (np.searchsorted(at, side) for side in interval)
    change = np.bincount(starts, minlength=len(at)) - np.bincount(ends, minlength=len(at))
    return np.cumsum(change).astype(np.int32)
