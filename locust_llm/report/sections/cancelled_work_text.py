"""Cancelled work text: what the server did for requests after they were cancelled, in a sentence."""

from collections.abc import Iterator
from typing import Final

from locust_llm.report.cancelled_work import CancelledWork, measure_cancelled_work
from locust_llm.report.document_blocks import Block, Heading, TextBlock
from locust_llm.text.format import format_brief, format_count

from .section import ReportSection


def describe_cancelled_work(found: CancelledWork) -> str:
    if found.ghost_tokens is None or found.generated is None or found.received is None:
        return f"The work for cancelled requests is unknown: {found.problem}."
    running = ""
    if found.still_running:
        ran = format_count(round(found.still_running), "request")
        running = f" It still ran {ran} at the end, so there are more."
    return (
        f"The server generated {found.generated:,.0f} tokens, and the run received "
        f"{found.received:,.0f}: {format_brief(found.ghost_tokens, digits=3)} ghost tokens for each "
        f"of {format_count(found.cancelled, 'cancelled request')}, if nobody else used the server."
        f"{running}"
    )


def make_cancelled_work_blocks(found: CancelledWork) -> Iterator[Block]:
    yield Heading("Work for cancelled requests")
    yield TextBlock(describe_cancelled_work(found))


CANCELLED_WORK: Final = ReportSection(
    name="cancelled_work",
    subject="the work for cancelled requests",
    finding=CancelledWork,
    find=lambda material: measure_cancelled_work(material.history, material.columns, material.run),
    make_blocks=make_cancelled_work_blocks,
)
