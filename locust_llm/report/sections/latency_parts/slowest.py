"""The slowest requests by themselves: their parts, and who waited for a first token at the same
time."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from locust_llm.records.record import Record
from locust_llm.records.run import Run
from locust_llm.report.sections.latency_parts.model import TO_FIRST, OverlappingRequest, SlowRequest

from .parts import find_part_source
from .slow_vs_typical import LatencyTable

MOST: Final = 10
MOST_OVERLAPPING: Final = 5
SAME_S: Final = 1e-5
"""Two stamps are of one moment."""
LATE_S: Final = 5.0
"""The file of the records is in the order of their ends, by and large."""
MOST_READ: Final = 100_000
"""Records that are read to find ids, in all: two seconds. In a file in good order it takes one or
two for each."""

Since = Callable[[float], Iterator[Record]]
"""The records of requests that ended at a moment (Unix seconds) or later."""


def find_slowest_requests(table: LatencyTable, run: Run, since: Since) -> tuple[SlowRequest, ...]:
    """The longest from due to the first token, the slowest first. ``since``: to look up their
    ids."""
    rows = np.flatnonzero(table.counted)
    order = rows[np.argsort(-table.split.total_us[rows], kind="stable")][:MOST].tolist()
    beside = {row: _beside(table, row) for row in order}
    shown = {row: others[:MOST_OVERLAPPING].tolist() for row, others in beside.items()}
    ids = _ids(table, {*order, *chain.from_iterable(shown.values())}, since)
    return tuple(_one(table, row, shown[row], len(beside[row]), ids, run) for row in order)


def _one(
    table: LatencyTable, row: int, shown: list[int], others: int, ids: dict[int, str], run: Run
) -> SlowRequest:
    requests, split = table.requests, table.split
    due = float(requests["due_at"].iloc[row])
    known = split.known[row : row + 1]
    parts = (
        (name, float(split.us[name][row]) / 1e3, find_part_source(name, known)) for name in TO_FIRST
    )
    return SlowRequest(
        id=ids.get(row, ""),
        due_s=due - run.started_at,
        total_ms=float(split.total_us[row]) / 1e3,
        input_tokens=_tokens(table, row),
        model=str(requests["model"].iloc[row]),
        parts=tuple(part for part in parts if part[1] > 0),
        overlapping=tuple(_overlapping(table, other, due, ids) for other in shown),
        others=others,
    )


def _beside(table: LatencyTable, row: int) -> NDArray[np.int64]:
    """Rows of the requests that waited for their first token while this one did: the longest
    overlap first."""
    sent = table.requests["sent_at"].to_numpy(np.float64)
    first = table.requests["first_chunk_at"].to_numpy(np.float64)
    overlap = np.minimum(first, first[row]) - np.maximum(sent, sent[row])
    overlap[row] = np.nan
    found = np.flatnonzero(overlap > 1e-3)
    return found[np.argsort(-overlap[found], kind="stable")]


def _overlapping(
    table: LatencyTable, row: int, due: float, ids: dict[int, str]
) -> OverlappingRequest:
    requests = table.requests
    return OverlappingRequest(
        id=ids.get(row, ""),
        input_tokens=_tokens(table, row),
        from_ms=(float(requests["sent_at"].iloc[row]) - due) * 1e3,
        to_ms=(float(requests["first_chunk_at"].iloc[row]) - due) * 1e3,
    )


def _tokens(table: LatencyTable, row: int) -> int | None:
    tokens = float(table.requests["input_tokens"].iloc[row])
    return None if np.isnan(tokens) else int(tokens)


def _ids(table: LatencyTable, rows: Iterable[int], since: Since) -> dict[int, str]:
    """Their records are looked up by when they were sent and ended; one look finds those that ended
    near by, too. Those that are not found are missing."""
    sent, closed = (table.requests[name].to_numpy(np.float64) for name in ("sent_at", "closed_at"))
    rows = sorted(rows, key=closed.__getitem__)
    begun, ended = sent[rows], closed[rows]
    ids: dict[int, str] = {}
    left = iter(range(MOST_READ))
    for row in rows:
        for _, record in zip(
            left, since(closed[row] - 1e-3) if row not in ids else (), strict=False
        ):
            at = (record.sent_at or 0.0) + record.clock_offset_s
            end = record.closed_at + record.clock_offset_s
            for place in np.flatnonzero((abs(begun - at) < SAME_S) & (abs(ended - end) < SAME_S)):
                ids.setdefault(rows[place], record.id)
            if row in ids or end > closed[row] + LATE_S:
                break
    return ids
