"""Records: makes them by hand with small round times, so that every metric can be computed by
hand."""

import math
from collections.abc import Mapping, Sequence

from locust_llm.records.outcomes import RETRIED
from locust_llm.records.record import Record
from locust_llm.records.run_facts import LimitChange, Run
from locust_llm.records.server_times import ServerTimes
from locust_llm.settings.run_options import Settings

GOLDEN = (math.sqrt(5) - 1) / 2
UNIX = 1_700_000_000.0
"""The clock of the records is behind Unix time by this: second 10 of a record is UNIX + 10."""


def mixed(count: int) -> list[int]:
    """Returns 1 to ``count`` in an order without trend and correlation (multiples of the golden
    ratio, modulo 1), so the values count as independent."""
    order = sorted(range(count), key=lambda i: (i + 0.5) * GOLDEN % 1)
    ranks = {i: rank for rank, i in enumerate(order, 1)}
    return [ranks[i] for i in range(count)]


def twenty() -> list[int]:
    """Returns 1 to 20, ten times each, in an order without correlation. The median is 10.5. The
    ends of its interval are the 87th and the 115th of 200, which are 9 and 12 (100.5 - 1.92 and +
    2.05 times the root of 200 / 4)."""
    return [(rank + 9) // 10 for rank in mixed(200)]


def every(count: int, part: list[Record], other: list[Record]) -> list[Record]:
    """Replaces ``count`` records of ``part`` by ``other``, scattered over the run."""
    return [
        two if rank <= count else one
        for rank, one, two in zip(mixed(len(part)), part, other, strict=True)
    ]


def answered(*chunk_ms: float, sent_at: float | None = 10.0, **other: object) -> Record:
    """Makes a request sent at second 10, with a chunk of one token after each of these
    milliseconds. It closes with the last."""
    chunk_us = tuple(round(ms * 1000) for ms in chunk_ms)
    asked_at = 10.0 if sent_at is None else sent_at
    fields: dict[str, object] = {
        "id": "a",
        "name": "chat",
        "clock_offset_s": UNIX,
        "due_at": asked_at,
        "asked_at": asked_at,
        "sent_at": sent_at,
        "closed_at": asked_at + (chunk_us[-1] / 1e6 if chunk_us else 0.0),
        "chunk_us": chunk_us,
        "first_output": 0 if chunk_us else None,
        "input_tokens": 100,
        "output_tokens": len(chunk_us),
        "tokens_from": "usage",
        "status": 200,
    }
    return Record(**{**fields, **other})  # type: ignore[arg-type]


def failed(outcome: str = "reset", sent_at: float | None = 10.0, **other: object) -> Record:
    """Makes a request that ended one second after the send, without a chunk."""
    ended: dict[str, object] = {
        "closed_at": (sent_at or 10.0) + 1,
        "outcome": outcome,
        "status": None,
    }
    counts: dict[str, object] = {"input_tokens": None, "output_tokens": None, "tokens_from": ""}
    return answered(sent_at=sent_at, **{**ended, **counts, **other})


def a_run(limits: tuple[tuple[float, int | None], ...] = (), **settings: object) -> Run:
    """Makes a run from second 0 to second 100. ``limits`` has (second, limit)."""
    asked = {"host": "http://server:8000", "model": "m", "users": 2, **settings}
    return Run(
        name="by-hand",
        settings=Settings(**asked),  # type: ignore[arg-type]
        started_at=UNIX,
        profiling_at=UNIX,
        stopping_at=UNIX + 100,
        ended_at=UNIX + 100,
        limits=tuple(LimitChange(UNIX + at, limit) for at, limit in limits),
    )


def list_span_rows(
    records: Sequence[Record], spans: Mapping[str, ServerTimes]
) -> dict[int, ServerTimes]:
    """The spans by the rows of their requests; attempts that were tried again have no row."""
    final = [record.id for record in records if record.outcome != RETRIED]
    return {row: spans[name] for row, name in enumerate(final) if name in spans}
