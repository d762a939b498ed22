"""Failures: the failed requests of a run by outcome, HTTP status and message."""

from collections.abc import Iterator
from typing import Final

from locust_llm.records.outcomes import FAILURES
from locust_llm.report.document_blocks import (
    Block,
    TableBlock,
    TextBlock,
)
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.summary_rows import (
    FailureGroup,
)
from locust_llm.settings.sweep_option import parse_sweep as parse_sweep
from locust_llm.text.format import (
    format_count,
    truncate_text,
)

MESSAGE_WIDTH: Final = 200
MAX_FAILURE_ROWS: Final = 20


def make_failures_table(summary: Summary) -> Iterator[Block]:
    def cells(f: FailureGroup) -> tuple[str, ...]:
        status = "-" if f.status is None else str(f.status)
        return (
            f.outcome,
            truncate_text(f.name, 30),
            status,
            f"{f.count}{f.describe_arms()}",
            truncate_text(f.message, MESSAGE_WIDTH),
        )

    rows = tuple(map(cells, summary.failures[:MAX_FAILURE_ROWS]))
    yield TableBlock(
        ("Outcome", "Name", "Status", "Count", "Message (first of its kind)"), rows, numbers=False
    )
    rest = summary.failures[MAX_FAILURE_ROWS:]
    if rest:
        yield TextBlock(
            f"and {format_count(sum(f.count for f in rest), 'failure')} of "
            f"{format_count(len(rest), 'more kind')}"
        )
    outcomes = dict.fromkeys(f.outcome for f in summary.failures)
    yield TextBlock(
        "; ".join(f"{outcome}: {FAILURES.get(outcome, 'unknown')}" for outcome in outcomes)
    )
