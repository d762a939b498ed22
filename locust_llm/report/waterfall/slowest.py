"""The slowest requests by themselves: their parts, and whose prefills stood in their way."""

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from locust_llm.core.record import Record
from locust_llm.core.run import Run
from locust_llm.report.results.waterfall import InTheWay, Slowest

from .blame import Table, source_of
from .parts import TO_FIRST

MOST: Final = 10
MOST_IN_THE_WAY: Final = 5

Since = Callable[[float], Iterator[Record]]
"""The records of requests that ended at a moment (Unix seconds) or later."""


def slowest(table: Table, run: Run, since: Since) -> tuple[Slowest, ...]:
    """The longest from due to the first token, the slowest first. ``since``: to look up their ids."""
    rows = np.flatnonzero(table.counted)
    order = rows[np.argsort(-table.split.total_us[rows], kind="stable")][:MOST]
    return tuple(_one(table, int(row), run, since) for row in order)


def _one(table: Table, row: int, run: Run, since: Since) -> Slowest:
    requests, split = table.requests, table.split
    due = float(requests["due_at"].iloc[row])
    beside = _beside(table, row)
    known = split.known[row : row + 1]
    parts = ((name, float(split.us[name][row]) / 1e3, source_of(name, known)) for name in TO_FIRST)
    tokens = requests["input_tokens"].iloc[row]
    return Slowest(
        id=_id(table, row, since),
        due_s=due - run.started_at,
        total_ms=float(split.total_us[row]) / 1e3,
        input_tokens=None if np.isnan(tokens) else int(tokens),
        model=str(requests["model"].iloc[row]),
        parts=tuple(part for part in parts if part[1] > 0),
        in_the_way=tuple(_in_the_way(table, int(other), due, since) for other in beside[:MOST_IN_THE_WAY]),
        others=len(beside),
    )


def _beside(table: Table, row: int) -> NDArray[np.int64]:
    """Rows of the requests whose prefill, seen from here, overlaps this one's wait at the server: the longest overlap
    first."""
    sent = table.requests["sent_at"].to_numpy(np.float64)
    first = table.requests["first_chunk_at"].to_numpy(np.float64)
    overlap = np.minimum(first, first[row]) - np.maximum(sent, sent[row])
    overlap[row] = np.nan
    found = np.flatnonzero(overlap > 1e-3)
    return found[np.argsort(-overlap[found], kind="stable")]


def _in_the_way(table: Table, row: int, due: float, since: Since) -> InTheWay:
    requests = table.requests
    tokens = requests["input_tokens"].iloc[row]
    return InTheWay(
        id=_id(table, row, since),
        input_tokens=None if np.isnan(tokens) else int(tokens),
        from_ms=(float(requests["sent_at"].iloc[row]) - due) * 1e3,
        to_ms=(float(requests["first_chunk_at"].iloc[row]) - due) * 1e3,
    )


def _id(table: Table, row: int, since: Since) -> str:
    """Its record is looked up by when it was sent and ended; empty where it is not found."""
    sent, closed = (float(table.requests[name].iloc[row]) for name in ("sent_at", "closed_at"))
    for record in since(closed - 1e-3):
        offset = record.clock_offset_s
        if record.sent_at is not None and abs(record.sent_at + offset - sent) < 1e-5:
            return record.id
        if record.closed_at + offset > closed + 5.0:  # the file is in the order of the ends, by and large
            break
    return ""
