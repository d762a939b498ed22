"""Rules table: each SLO rule with its result, the figure, its interval and how many values it rests
on."""

from collections.abc import Iterator, Sequence
from typing import Final

from locust_llm.records.run_facts import Run
from locust_llm.report.document_blocks import (
    Block,
    Heading,
    TableBlock,
    TextBlock,
    format_effective_size,
    format_interval,
    format_observed,
    format_sample_size,
    is_correlated,
)
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.slo_evidence.confidence_intervals import SHORT
from locust_llm.settings.sweep_option import parse_sweep as parse_sweep
from locust_llm.slo.rules import FAIL, PASS, SloResult
from locust_llm.text.format import format_duration_rounded_down

from .notes import (
    format_policy_lines,
    format_slo_line,
)

RULE_WIDTH: Final = 60
"""Characters of an SLO rule on the console."""
FEW_PHASES: Final = 10
"""Of an effective sample size that is smaller, the report says what that means."""


def make_rules_table(summary: Summary, run: Run) -> Iterator[Block]:
    if (line := format_slo_line(summary)) is None:
        return
    yield Heading("Rules")
    yield TextBlock(line, loud=summary.slo_status != PASS)
    yield from map(TextBlock, format_policy_lines(summary, run))

    def cells(result: SloResult) -> tuple[str, ...]:
        return (
            result.rule,
            result.status,
            format_observed(result),
            format_interval(result),
            format_sample_size(result),
        )

    head = ("SLO", "result", "observed", "95% interval", "count")
    yield TableBlock(head, tuple(map(cells, summary.slos)), label=RULE_WIDTH)
    if any(map(is_correlated, summary.slos)):
        yield TextBlock(
            "Effective N: the requests are correlated, so they decide this SLO like N independent "
            "ones. N differs by metric and limit."
        )
    if summary.paired is not None:
        yield TextBlock(
            "Count: pairs for an SLO that compares with the base; for other SLOs, requests of the "
            "candidate."
        )
    reasons = dict.fromkeys(
        (result.status, result.reason) for result in summary.slos if result.reason
    )
    for status, reason in reasons:  # each once
        rules = (
            result.rule
            for result in summary.slos
            if (result.status, result.reason) == (status, reason)
        )
        yield TextBlock(f"{'; '.join(rules)}: {status}, {reason}.")
    yield from map(TextBlock, _describe_unseen(summary))


def _name_missed_phase(passed: Sequence[SloResult]) -> str:
    """What a phase would do to the server that would break one of these rules."""
    failing = [result.rule.startswith("error_rate") for result in passed]
    if all(failing):
        return "failing"
    return "slow or failing" if any(failing) else "slow"


def _describe_unseen(summary: Summary) -> Iterator[str]:
    """What decided rules cannot vouch for. Of phases that come at random a run sees none in one of
    twenty cases where three are expected in it."""
    seconds = summary.conditions.duration_s
    if seconds is None or summary.sweep is not None:
        return
    decided = [result for result in summary.slos if result.status in (PASS, FAIL)]
    passed = [result for result in decided if result.status == PASS and result.high is not None]
    if passed:
        kind = _name_missed_phase(passed)
        rare = format_duration_rounded_down(seconds / 3)
        yield f"This run may have missed a {kind} phase that occurs less than once in {rare}."
    wandering = [
        result
        for result in decided
        if result.effective is not None and result.effective < FEW_PHASES
    ]
    slowest = min(wandering, key=lambda result: result.effective or 0.0, default=None)
    if slowest is not None and (slowest.count or 0) >= SHORT:
        size = format_effective_size(slowest.effective or 0.0)
        some = f"{slowest.count:,} requests have an effective sample size of {size}"
        yield (
            f"{slowest.rule}: its values vary slowly, so {some}. No run can show a phase longer "
            "than itself."
        )
