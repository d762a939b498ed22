"""Cancelled work text: what the server did for requests after they were cancelled, in a sentence."""

from collections.abc import Iterator
from typing import Final

from locust_llm.report.cancelled_work import CancelledWork, measure_cancelled_work
from locust_llm.report.document_blocks import Block, Heading, TextBlock
from locust_llm.text.format import format_brief, format_count

from .section import ReportSection

NO_INTERVAL: Final = (
    "There is no interval, as clients left at too few moments: {needed} may have one"
)
MISSED: Final = "Prefill for clients who left makes no tokens, so it is not counted."


def describe_cancelled_work(found: CancelledWork) -> str:
    if found.ghost_tokens is None or found.generated is None or found.received is None:
        return f"The work for cancelled requests is unknown: {found.problem}."
    estimated = ""
    if found.estimated:
        estimated = f" (roughly {found.estimated:,.0f} of them in answers without a count)"
    about = "roughly " if estimated else ""
    text = (
        f"The server generated {found.generated:,.0f} tokens, and the run received "
        f"{about}{found.received:,.0f}{estimated}: {describe_ghost_tokens(found)} ghost tokens for each of "
        f"{format_count(found.cancelled, 'cancelled request')}, if nobody else used the server."
    )
    if found.interval is None:
        text += f" {NO_INTERVAL.format(needed=found.needed)}."
    if found.still_running:
        ran = format_count(round(found.still_running), "request")
        text += f" It still ran {ran} at the end, so there are more."
    return f"{text} {MISSED}"


def describe_ghost_tokens(found: CancelledWork) -> str:
    """``10 (8.2 to 11.8)``"""
    tokens = format_brief(found.ghost_tokens or 0.0, digits=3)
    if found.interval is None:
        return tokens
    low, high = (format_brief(end, digits=3) for end in found.interval)
    return f"{tokens} ({low} to {high})"


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
