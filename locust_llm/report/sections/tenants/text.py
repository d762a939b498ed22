"""Tenants: their table, Jain's index and the service gap in sentences; what a tenant alone is worth beside the others."""

from collections.abc import Iterator
from typing import Final

from locust_llm.report.blocks import SCARCE_NOTE, Block, Heading, TableBlock, TextBlock, mark_scarce
from locust_llm.report.sections.tenants.analysis import TenantRow, TenantsSummary
from locust_llm.text.format import format_brief, format_duration, format_number, truncate_text

NAME: Final = 40
"""Characters of a name."""
NOTE: Final = (
    "Service: weighted tokens, an input token is 1 and an output token 2 (VTC, Sheng et al., OSDI 2024), of failed and cut "
    "requests too; demand: the same of what was asked for. Waiting: share of the time under load through which a request "
    "of the tenant had been sent and had no token."
)


def make_tenant_blocks(found: TenantsSummary) -> Iterator[Block]:
    """Of the profiling phase."""
    yield Heading("Tenants")
    weighted = len({row.weight for row in found.rows}) > 1
    times = ("TTFT p50 (ms)", "p95", "ITL p50")
    head = ("Tenant", "requests", "failed", *times, "tokens/s", "service", "share", "demand", "waiting")
    rows = tuple(tuple(_cells(row, weighted)) for row in found.rows)
    yield TableBlock(head + ("weight",) * weighted, rows)
    if any("*" in cell for row in rows for cell in row[1:]):
        yield TextBlock(SCARCE_NOTE)
    yield TextBlock(describe_fairness(found, weighted=weighted))
    if found.gap is not None and found.gap_of is not None:
        one, other = (truncate_text(name, NAME) for name in found.gap_of)
        yield TextBlock(
            f"Service gap between {one} and {other}: at most {format_brief(found.gap, digits=3)} weighted tokens"
            f"{' / weight' * weighted}, while both waited."
        )
    if found.under_load_s is not None:
        yield TextBlock(
            f"tokens/s: input and output tokens over the {format_duration(found.under_load_s)} with a request in flight. Total "
            "Token Throughput is over the whole run, and of answered requests, so these need not sum to it."
        )
    yield TextBlock(NOTE)


def describe_fairness(found: TenantsSummary, *, weighted: bool = False) -> str:
    """Jain's index in a sentence, or why there is none."""
    names = ", ".join(truncate_text(name, NAME) for name in found.backlogged)
    if found.jain is None:
        if len(found.backlogged) > 1:
            return f"No Jain's index: {names} were backlogged, but never at the same time."
        some = f"only {names} was" if names else "no tenant was"
        return f"No Jain's index: {some} backlogged (waiting through half of the time), so the server had no choice to make."
    rows = [row for row in found.rows if row.contended_share is not None]
    got = ", ".join(f"{truncate_text(row.name, NAME)} {row.contended_share:.1%}" for row in rows)
    per = " / weight" * weighted
    return (
        f"Jain's index {found.jain:.3f} of service{per} (1: equal, {1 / len(rows):.2g}: one has all): in the "
        f"{format_duration(found.contended_s)} in which all of {names} waited, they received {got}."
    )


def _cells(row: TenantRow, weighted: bool) -> Iterator[str]:
    yield truncate_text(row.name, NAME)
    yield f"{row.requests:,}"
    yield "-" if row.failure_rate is None else f"{row.failure_rate:.1%}"
    for seconds, percentile in ((row.ttft_p50_s, 50), (row.ttft_p95_s, 95), (row.itl_p50_s, 50)):
        yield (
            "-"
            if seconds is None
            else format_number(seconds * 1e3, 4) + mark_scarce(row.requests - row.failed, percentile)
        )
    yield format_number(row.tokens_per_s, 4)
    yield f"{row.service:,.0f}"
    for share in (row.share, row.demand_share, row.waiting):
        yield "-" if share is None else f"{share:.1%}"
    if weighted:
        yield f"{row.weight:.2f}"
