"""Document: the report of a run in reading order, as headings, texts and tables."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from locust_llm.records.run_facts import SIMULATED, Run
from locust_llm.report.open_loop_delivery import (
    format_backlog_line,
    format_delivery_line,
    format_outage_line,
    format_overload_line,
)
from locust_llm.report.sections.ab_comparison import INCONCLUSIVE as OPEN
from locust_llm.report.sections.answers_under_load import ANSWERS, format_answers_line
from locust_llm.report.sections.latency_breakdown_display import BARS, make_latency_parts_blocks
from locust_llm.report.sections.run_summary import Summary
from locust_llm.settings.sweep_option import parse_sweep as parse_sweep
from locust_llm.slo.load_generator_health import OK, find_uncertain_metrics

from .document_blocks import (
    Block,
    Charts,
    Heading,
    Headline,
    TableBlock,
    TextBlock,
)
from .sections.ab_comparison import describe_paired_verdict, make_paired_table
from .sections.benchmark_validity import make_validity_table
from .sections.conditions_table import make_conditions_rows
from .sections.failures import make_failures_table
from .sections.headline import make_headline
from .sections.interference import make_interference_blocks
from .sections.metric_tables import make_detail_tables, make_main_tables
from .sections.notes import (
    format_incomplete_line,
    format_stopped_line,
    format_verdict_line,
    make_remarks,
)
from .sections.prefill_limit_comparison import BEST_LIMIT, make_limit_blocks
from .sections.rules_table import make_rules_table
from .sections.section_registry import REPORT_SECTIONS
from .sections.sweep.sweep_text import make_sweep_tables, make_sweep_warnings

LATENCY: Final = "TTFT and ITL over time"
STAGES: Final = "Stage by stage"
OVER_TIME: Final = "Over time"
SERVER: Final = "Server"
TIMELINE: Final = "Timeline"
DIFFERENCES: Final = "Differences"
BY_LIMIT: Final = "Prefill limits of the ramp"
DISTRIBUTIONS: Final = "Distributions"
"""Headings of charts."""
POOLED_LATENCY: Final = "Latency over time"
"""That of LATENCY where answers have no first token."""
VOIDED: Final = "the client verdict is "
"""How the reason of two arms begins that are not compared because of it."""


def build_report_document(
    summary: Summary, run: Run, folder: Path | str = ""
) -> Iterator[Block | Charts]:
    """The blocks in reading order, not escaped yet: what it came to, why, and what it rests on."""
    yield Heading(make_report_title(summary, run))
    yield from make_opening(summary, run)
    yield from map(Charts, _choose_first_charts(summary))
    yield from make_rules_table(summary, run)
    if summary.validity is not None:
        yield from make_validity_table(summary.validity)
    if summary.paired is not None:
        yield from make_paired_table(summary.paired)
    if summary.limits is not None:
        yield from make_limit_blocks(summary.limits)
    if summary.failures:
        yield Heading("Failures")
        yield from make_failures_table(summary)
    nothing = summary.conditions.succeeded == 0
    if nothing:  # then when they failed says more than tables without figures
        yield Charts(OVER_TIME)
    yield from _figures(summary, run)
    yield from _breakdowns(summary)
    if not nothing:
        yield Charts(OVER_TIME)
    for charts in (SERVER, TIMELINE, DISTRIBUTIONS):
        yield Charts(charts)
    if summary.interference is not None and not summary.swept:
        # its conclusion is about gaps alone
        gaps = "icl" in find_uncertain_metrics(summary.figure_errors)
        level = summary.client.level if gaps and summary.client is not None else OK
        yield from make_interference_blocks(summary.interference, level)
    yield Heading("Notes")
    for remark in make_remarks(summary, run):
        yield TextBlock(remark, loud=remark.startswith("WARNING"))
    yield Heading("Conditions", folded=True)
    yield TableBlock(
        ("Condition", "Value"), tuple(make_conditions_rows(summary, run)), numbers=False
    )
    if summary.examination is None and not summary.swept:
        yield from make_detail_tables(summary, run)
    if str(folder):
        yield TextBlock(f"Reports: {folder}")


def _choose_first_charts(summary: Summary) -> tuple[str, ...]:
    """The headings of the charts that show the answer."""
    if summary.examination is not None:
        return (summary.examination.chart_heading,)
    if summary.limits is not None:
        return (BEST_LIMIT.chart_heading, LATENCY)
    if summary.paired is not None:
        return (DIFFERENCES, LATENCY)
    return (BY_LIMIT, LATENCY) if summary.sweep is None or summary.sweep.repeats else (STAGES,)


def _figures(summary: Summary, run: Run) -> Iterator[Block | Charts]:
    """The tables of the figures: those of a run, of the stages of a sweep, or of a probe."""
    probe, sweep = summary.examination, summary.sweep
    if probe is not None:
        yield from probe.blocks()
    elif not summary.swept:
        yield from make_main_tables(summary, run)
    if sweep is not None:
        yield from make_sweep_tables(sweep)
    if probe is None and sweep is not None and not sweep.repeats:
        yield Charts(LATENCY)


def _breakdowns(summary: Summary) -> Iterator[Block | Charts]:
    """The figures by part of the latency, then the sections that stand by themselves."""
    probe = summary.examination
    if summary.waterfall is not None and not summary.swept and probe is None:
        yield from make_latency_parts_blocks(summary.waterfall)
        yield Charts(BARS)
    for section in REPORT_SECTIONS:
        finding = summary.sections.get(section.name)
        shown = probe is None and (section.shows_arms or not summary.swept)
        shown = shown and section is not BEST_LIMIT  # it is the first one
        if finding is not None and shown:
            yield from section.make_blocks(finding)
            yield Charts(section.chart_heading)


def make_opening(summary: Summary, run: Run) -> Iterator[Block]:
    """The headline, and what nobody may overlook."""
    if (missing := format_incomplete_line(summary, run)) is not None:
        yield TextBlock(missing, loud=True)
    yield Headline(f"{make_headline(summary, run)}.")
    if stopped := format_stopped_line(summary, run):
        yield TextBlock(stopped, loud=True)
    if summary.paired is not None and summary.paired.uncounted:
        yield TextBlock(f"{summary.paired.uncounted}.", loud=True)
    if (answers := summary.sections.get(ANSWERS)) is not None and answers.is_alarming:
        yield TextBlock(format_answers_line(answers), loud=True)
    if summary.conditions.simulated:
        yield TextBlock(SIMULATED, loud=True)
    verdict = None if summary.staged else format_verdict_line(summary, run)
    if verdict is not None:
        yield TextBlock(verdict, loud=True)
    if summary.examination is not None:
        yield from summary.examination.reasons()
    for line in filter(
        None,
        (
            format_outage_line(summary),
            format_overload_line(summary, run),
            format_backlog_line(summary, run),
            format_delivery_line(summary),
        ),
    ):
        yield TextBlock(line, loud=True)
    if summary.sweep is not None:
        yield from make_sweep_warnings(summary.sweep, summary.conditions.client_verdict)
    # said twice above
    if summary.paired is not None and not (verdict and summary.paired.reason.startswith(VOIDED)):
        yield TextBlock(
            describe_paired_verdict(summary.paired), loud=summary.paired.verdict == OPEN
        )
    if summary.paired is not None and summary.paired.warning:
        yield TextBlock(f"WARNING: {summary.paired.warning}.", loud=True)


def make_report_title(summary: Summary, run: Run) -> str:
    return f"{'Load test' if summary.examination is None else summary.examination.title} {run.name}"
