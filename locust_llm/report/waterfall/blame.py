"""Blame: the parts of the slow requests beside those of the typical ones, of any metric and selection of requests."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from locust_llm.report.analysis.breakdowns import bucket, bucket_edges, lengths
from locust_llm.report.analysis.selection import Selection
from locust_llm.report.results.waterfall import Blame, Owner, Part

from .decode import AFTER_FIRST, DELIVERY, PACE, UNKNOWN
from .parts import BETWEEN, ESTIMATED, MEASURED, SOURCE, TO_FIRST, UNATTRIBUTED, Split

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

FROM_SEND: Final = TO_FIRST[TO_FIRST.index("send") :]
TYPICAL: Final = (40.0, 60.0)
"""Percentiles between which a request is typical."""
MIN_GROUP: Final = 20
MIN_SLOW: Final = 3
"""Slow requests of a group."""
LOWER: Final = (95.0, 90.0, 75.0)
"""Percentiles for small groups; above the last one MIN_GROUP requests have MIN_SLOW."""
MAX_GROUPS: Final = 8
STRETCHES: Final = 4
"""Of the run, for the owner over time."""
DECODE_SOURCE: Final = {DELIVERY: BETWEEN, UNKNOWN: UNATTRIBUTED}
"""Of parts after the first token; of the others it is ``estimated``."""
OF: Final[Mapping[str, tuple[str, ...]]] = {
    "ttft_from_due": TO_FIRST,
    "ttft": FROM_SEND,
    "itl": AFTER_FIRST,
    "request_latency": tuple(dict.fromkeys((*FROM_SEND[:-1], *AFTER_FIRST))),  # unattributed is of both: once
}
"""The metrics, and which parts each is made of."""
COLUMN: Final = {"ttft_from_due": "ttft_from_due_s", "ttft": "ttft_s", "itl": "itl_s", "request_latency": "latency_s"}


@dataclass(frozen=True)
class Table:
    """A row a request: its parts, in ms."""

    requests: pd.DataFrame
    split: Split
    after: Mapping[str, Floats]
    """By part of AFTER_FIRST; NaN where the request was not read."""
    counted: Bools
    """Profiling, answered, with a first token."""


def blame(table: Table, metric: str, percentile: float, where: str, chosen: Bools) -> Blame | None:
    """``where``: the selectors, as text; ``chosen``: the requests that they select. None below MIN_GROUP requests."""
    values = table.requests[COLUMN[metric]].to_numpy(np.float64) * 1e3
    names = OF[metric]
    here = table.counted & chosen & ~np.isnan(values)
    if PACE in names:
        here &= ~np.isnan(table.after[PACE])
    count = int(here.sum())
    if count < MIN_GROUP:
        return None
    parts = {name: _values(table, name, names) for name in names}
    if metric == "itl":  # of the whole decode, so much a token
        whole = sum(parts.values())
        parts = {name: part * (values / np.maximum(whole, 1e-9)) for name, part in parts.items()}
    value = float(np.percentile(values[here], percentile))
    typical = _around(values, here)
    slow = here & (values >= value)
    return Blame(
        metric=metric,
        where=where,
        percentile=percentile,
        value_ms=value,
        typical_ms=float(np.median(values[here])),
        slow=int(slow.sum()),
        typical=int(typical.sum()),
        count=count,
        parts=tuple(
            _part(table, name, parts[name], slow, typical) for name in names if parts[name][slow | typical].any()
        ),
        owners=tuple(_owners(table, parts, values, here, percentile)),
    )


def _values(table: Table, name: str, names: tuple[str, ...]) -> Floats:
    """In ms. Unattributed is of both, where a metric goes from the send to the last token."""
    found = np.zeros(len(table.counted))
    if names != AFTER_FIRST and name in table.split.us:
        found = found + table.split.us[name] / 1e3
    if PACE in names and name in table.after:
        found = found + np.nan_to_num(table.after[name])
    return found


def _around(values: Floats, here: Bools) -> Bools:
    low, high = np.percentile(values[here], TYPICAL)
    return np.asarray(here & (values >= low) & (values <= high))


def _part(table: Table, name: str, part: Floats, slow: Bools, typical: Bools) -> Part:
    mean = float(part[slow].mean())
    low = high = mean
    source = source_of(name, table.split.known[slow])
    if source == ESTIMATED and name in table.split.low_us:
        low = float(table.split.low_us[name][slow].mean()) / 1e3
        high = float(table.split.high_us[name][slow].mean()) / 1e3
    return Part(
        name=name, slow_ms=mean, typical_ms=float(part[typical].mean()) if typical.any() else 0.0,
        low_ms=min(low, mean), high_ms=max(high, mean), source=source,
    )  # fmt: skip


def source_of(name: str, known: NDArray[np.int8]) -> str:
    """Of most of these requests."""
    if name in SOURCE:
        return SOURCE[name].get(int(np.bincount(known).argmax()), UNATTRIBUTED) if len(known) else UNATTRIBUTED
    return MEASURED if name in TO_FIRST else DECODE_SOURCE.get(name, ESTIMATED)


def _owners(
    table: Table, parts: Mapping[str, Floats], values: Floats, here: Bools, percentile: float
) -> Iterator[Owner]:
    for by, groups in _groups(table.requests, here):
        fewest = min(int(chosen.sum()) for chosen in groups.values())
        at = next(p for p in (percentile, *LOWER) if p <= percentile and (fewest - 1) * (100 - p) / 100 >= MIN_SLOW)
        for label, chosen in groups.items():
            value = float(np.percentile(values[chosen], at))
            slow = chosen & (values >= value)
            means = ((name, float(part[slow].mean())) for name, part in parts.items())
            known = table.split.known[slow]
            split = tuple((name, ms, source_of(name, known)) for name, ms in means if ms > 0)
            if split:
                yield Owner(
                    by=by, label=label, count=int(chosen.sum()), percentile=at, value_ms=value, parts=split
                )  # fmt: skip


def _groups(requests: pd.DataFrame, here: Bools) -> Iterator[tuple[str, dict[str, Bools]]]:
    """(by what, the requests of each label): only what divides them, and only groups of MIN_GROUP."""
    length = lengths(Selection(requests, np.ones(len(requests), np.bool_)))
    known = here & (length >= 1)
    yield from _kept("input tokens", _lengths(length, known))
    for by in ("model", "tenant"):
        if by in requests:
            codes, names = requests[by].cat.codes.to_numpy(), requests[by].cat.categories
            there = np.flatnonzero(np.bincount(codes[here & (codes >= 0)], minlength=len(names)))
            yield from _kept(by, {str(names[code]): here & (codes == code) for code in there[:MAX_GROUPS]})
    due = requests["due_at"].to_numpy(np.float64)
    first, last = float(due[here].min()), float(due[here].max())
    edges = np.linspace(first, last, STRETCHES + 1)
    stretch = np.clip(np.searchsorted(edges, due, side="right") - 1, 0, STRETCHES - 1)
    labels = [f"{a - first:.0f} to {b - first:.0f} s" for a, b in pairwise(edges)]
    yield from _kept("time", {label: here & (stretch == i) for i, label in enumerate(labels)})


def _lengths(length: Floats, known: Bools) -> dict[str, Bools]:
    if not known.any():
        return {}
    edges = bucket_edges(sorted(map(int, pd.unique(length[known]))))
    place = np.where(known, np.searchsorted(edges, length, side="right"), -1)
    groups = (place == i for i in sorted(pd.unique(place[known])))
    return {bucket(int(length[here.argmax()]), edges): here for here in groups}


def _kept(by: str, groups: Mapping[str, Bools]) -> Iterator[tuple[str, dict[str, Bools]]]:
    large = {label: chosen for label, chosen in groups.items() if chosen.sum() >= MIN_GROUP}
    if len(groups) > 1 and large:
        yield by, large
