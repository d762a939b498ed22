"""Rows of virtual time as the records that a client would have made of them: for the arithmetic and
the drawings."""

from collections.abc import Iterable

from locust_llm.records.record import Record
from locust_llm.simulator.scheduling.virtual_time import VirtualResult


def recorded(rows: Iterable[VirtualResult]) -> list[Record]:
    """In the order of their ends, as a run writes them. Of a run that kept its tokens: each is a
    chunk of its own that arrives the moment it is there. Second 0 of the run is second 0 of Unix
    time."""
    return [
        Record(
            id=f"{row.request.kind or 'request'}-{number}",
            name=row.request.kind,
            tenant=row.request.tenant,
            clock_offset_s=0.0,
            due_at=row.asked_at,
            asked_at=row.asked_at,
            admitted_at=row.sent_at,
            sent_at=row.sent_at,
            closed_at=row.done_at,
            chunk_us=tuple(round((at - row.sent_at) * 1e6) for at in row.token_at),
            first_output=0,
            input_tokens=row.request.prompt_tokens,
            output_tokens=row.request.output_tokens,
            cached_tokens=row.cached_tokens,
            tokens_from="usage",
            simulated=True,
        )
        for number, row in enumerate(sorted(rows, key=lambda row: row.done_at), 1)
    ]
