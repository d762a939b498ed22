"""Breakdown: the parts of the slow requests beside those of the typical ones, of any metric and
selection of requests."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from locust_llm.report.breakdowns import choose_bucket_edges, estimate_input_lengths, label_bucket
from locust_llm.report.sections.latency_parts.model import (
    AFTER_FIRST,
    BETWEEN,
    DECODE,
    DELIVERY,
    MEASURED,
    REPORTED,
    SEND,
    TO_FIRST,
    UNATTRIBUTED,
    LatencyBreakdown,
    LatencyPart,
    SlowGroup,
)
from locust_llm.report.selection import RequestSelection

from .parts import LatencySplit, find_part_source

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

FROM_SEND: Final = tuple(name for name in TO_FIRST[TO_FIRST.index(SEND) :] if name != UNATTRIBUTED)
TYPICAL: Final = (40.0, 60.0)
"""Percentiles between which a request is typical."""
MIN_GROUP: Final = 20
MIN_SLOW: Final = 3
"""Slow requests of a group."""
LOWER: Final = (95.0, 90.0, 75.0)
"""Percentiles for small groups; above the last one MIN_GROUP requests have MIN_SLOW."""
MAX_GROUPS: Final = 8
STRETCHES: Final = 4
"""Of the run, for the groups over time."""
PARTS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "ttft_from_due": TO_FIRST,
    "ttft": FROM_SEND,
    "request_latency": (*FROM_SEND, *AFTER_FIRST),
}
"""The metrics, and which parts each is made of."""
COLUMN: Final = {
    "ttft_from_due": "ttft_from_due_s",
    "ttft": "ttft_s",
    "request_latency": "latency_s",
}


@dataclass(frozen=True)
class LatencyTable:
    """A row a request."""

    requests: pd.DataFrame
    split: LatencySplit
    after_ms: Mapping[str, Floats]
    """By part of AFTER_FIRST, in ms; NaN of a request without a first token."""
    decode_reported: Bools
    """The server reported the decode."""
    counted: Bools
    """Profiling, answered, with a first token."""

    def part_ms(self, name: str) -> Floats:
        return self.after_ms[name] if name in self.after_ms else self.split.us[name] / 1e3

    def source(self, name: str, those: Bools) -> str:
        """Of most of these requests."""
        if name not in AFTER_FIRST:
            return find_part_source(name, self.split.known[those])
        mostly = self.decode_reported[those].mean() > 0.5
        return {(DECODE, True): REPORTED, (DELIVERY, True): BETWEEN}.get(
            (name, bool(mostly)), MEASURED
        )


def make_latency_breakdown(
    table: LatencyTable, metric: str, percentile: float, where: str, chosen: Bools
) -> LatencyBreakdown | None:
    """``where``: the selectors, as text; ``chosen``: the requests that they select. None below
    MIN_GROUP requests."""
    values = table.requests[COLUMN[metric]].to_numpy(np.float64) * 1e3
    here = table.counted & chosen & ~np.isnan(values)
    count = int(here.sum())
    if count < MIN_GROUP:
        return None
    value = float(np.percentile(values[here], percentile))
    typical = _around_the_median(values, here)
    slow = here & (values >= value)
    parts = {name: table.part_ms(name) for name in PARTS_OF[metric]}
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
                slow_ms=float(ms[slow].mean()),
                typical_ms=float(ms[typical].mean()) if typical.any() else 0.0,
                all_ms=float(ms[here].mean()),
                source=table.source(name, slow),
            )
            for name, ms in parts.items()
            if ms[here].any()
        ),
        groups=tuple(_groups(table, parts, values, here, percentile)),
        round_trip_ms=_longest_round_trip_ms(table.requests[slow]),
    )


def _longest_round_trip_ms(slow: pd.DataFrame) -> float | None:
    longest_us = float(slow["rtt_us"].to_numpy(np.float64).max(initial=0.0))
    lost = bool((slow["retransmits"] > 0).any())
    return None if lost or np.isnan(longest_us) else longest_us / 1e3


def _around_the_median(values: Floats, here: Bools) -> Bools:
    low, high = np.percentile(values[here], TYPICAL)
    return np.asarray(here & (values >= low) & (values <= high))


def _groups(
    table: LatencyTable, parts: Mapping[str, Floats], values: Floats, here: Bools, percentile: float
) -> Iterator[SlowGroup]:
    for by, groups in _divided(table.requests, here):
        fewest = min(int(chosen.sum()) for chosen in groups.values())
        at = next(
            p
            for p in (percentile, *LOWER)
            if p <= percentile and (fewest - 1) * (100 - p) / 100 >= MIN_SLOW
        )
        for label, chosen in groups.items():
            value = float(np.percentile(values[chosen], at))
            slow = chosen & (values >= value)
            means = ((name, float(ms[slow].mean())) for name, ms in parts.items())
            split = tuple((name, ms, table.source(name, slow)) for name, ms in means if ms > 0)
            if split:
                yield SlowGroup(
                    by=by, label=label, count=int(chosen.sum()), percentile=at, value_ms=value,
                    parts=split
                )  # fmt: skip


def _divided(requests: pd.DataFrame, here: Bools) -> Iterator[tuple[str, dict[str, Bools]]]:
    """(by what, the requests of each label): only what divides them, and only groups of
    MIN_GROUP."""
    length = estimate_input_lengths(RequestSelection(requests, np.ones(len(requests), np.bool_)))
    known = here & (length >= 1)
    yield from _kept("input tokens", _lengths(length, known))
    for by in ("model", "tenant"):
        if by in requests:
            codes = requests[by].cat.codes.to_numpy()
            names = requests[by].cat.categories
            there = np.flatnonzero(np.bincount(codes[here & (codes >= 0)], minlength=len(names)))
            yield from _kept(
                by, {str(names[code]): here & (codes == code) for code in there[:MAX_GROUPS]}
            )
    due = requests["due_at"].to_numpy(np.float64)
    first = float(due[here].min())
    last = float(due[here].max())
    edges = np.linspace(first, last, STRETCHES + 1)
    stretch = np.clip(np.searchsorted(edges, due, side="right") - 1, 0, STRETCHES - 1)
    labels = [f"{a - first:.0f} to {b - first:.0f} s" for a, b in pairwise(edges)]
    yield from _kept("time", {label: here & (stretch == i) for i, label in enumerate(labels)})


def _lengths(length: Floats, known: Bools) -> dict[str, Bools]:
    if not known.any():
        return {}
    edges = choose_bucket_edges(sorted(map(int, pd.unique(length[known]))))
    place = np.where(known, np.searchsorted(edges, length, side="right"), -1)
    groups = (place == i for i in sorted(pd.unique(place[known])))
    return {label_bucket(int(length[here.argmax()]), edges): here for here in groups}


def _kept(by: str, groups: Mapping[str, Bools]) -> Iterator[tuple[str, dict[str, Bools]]]:
    large = {label: chosen for label, chosen in groups.items() if chosen.sum() >= MIN_GROUP}
    if len(groups) > 1 and large:
        yield by, large
