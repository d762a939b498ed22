"""Command ``locust-llm report``: makes the reports of a run again from its records. A run makes its
own report by this command, in a process of its own."""

import argparse
import math
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from locust_llm.exit_status import ExitStatus, fail
from locust_llm.records.profile_export_jsonl import RecordFile, add_records
from locust_llm.records.report_result import MetricValue, ReportResult, RuleResult
from locust_llm.records.run_facts import RECORDS, Run, read_run, write_run
from locust_llm.report.cancelled_work import CancelledWork
from locust_llm.report.disruption_results import DisruptionEffects
from locust_llm.report.document_blocks import format_observed
from locust_llm.report.outages import describe_silent_time
from locust_llm.report.sections.ab_comparison import describe_paired_verdict
from locust_llm.report.sections.benchmark_validity import format_broken_rules
from locust_llm.report.sections.cancelled_work_text import CANCELLED_WORK
from locust_llm.report.sections.disruptions import DISRUPTIONS
from locust_llm.report.sections.headline import make_headline
from locust_llm.report.sections.latency_breakdown import parse_explained_metric
from locust_llm.report.sections.notes import format_exit_status, list_missing_parts
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.summary_rows import Row
from locust_llm.slo.published_rules import FAILS
from locust_llm.slo.rules import SloResult
from locust_llm.text.ci_log import print_ci_commands
from locust_llm.text.format import capitalise_sentence, format_count, print_safely

from . import console_summary, write_report_files
from . import github_annotations as workflow
from .recover_journals import add_journaled
from .render import text_report as tables

CLOCKS_S: Final = 60.0
"""The clocks of two hosts may differ by so much."""


class ReportOutput(ReportResult, frozen=True, kw_only=True):
    """What ``locust-llm report --json`` prints."""

    disruptions: DisruptionEffects | None = None
    """What the commands of ``--disrupt`` did. null: there were none."""
    cancelled_work: CancelledWork | None = None
    """The server's work for cancelled requests. null: the run has no ``--check-cancellations``."""


def _report_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="locust-llm report",
        description="Create the reports of a run again from its request records.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="run folder")
    parser.add_argument(
        "--stages",
        action="store_true",
        help="also recreate the reports of the stages",
    )
    parser.add_argument(
        "--spans", type=Path, metavar="FILE", help="add the server's spans from this OTLP/JSON file"
    )
    parser.add_argument(
        "--records", type=Path, action="append", default=[], metavar="FILE",
        help=(
            "add the records that a worker could not deliver, without duplicates"
        ),
    )  # fmt: skip
    parser.add_argument(
        "--blame", action="append", default=[], metavar="WHAT",
        help=(
            "also explain the slow requests of this metric, such as 'ttft{model=a} p95' "
            "(repeatable)"
        ),
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--verbose", action="store_true", help="print all tables")
    # a run whose own end this is: its exit status belongs to the text
    parser.add_argument("--ends-run", action="store_true", help=argparse.SUPPRESS)
    return parser


def run_report_command(words: list[str]) -> int:
    """Make the reports of a run again from its records."""
    folder = (options := _report_options().parse_args(words)).folder
    if not (folder / "profile_export.jsonl").is_file():
        return fail(f"{folder} is not a run folder: it has no profile_export.jsonl")
    if missing := [file for file in options.records if not file.is_file()]:
        return fail(f"there is no {missing[0]}")
    try:
        for text in options.blame:
            parse_explained_metric(text)
    except ValueError as error:
        return fail(f"--blame {error}")
    for file in options.records:
        if foreign := _describe_foreign_records(folder, file):
            return fail(foreign)
    try:
        if options.records:
            _add(folder, options.records)
        add_journaled(folder)
        summary, facts = write_report_files.remake_reports(
            folder, stages=options.stages, spans=options.spans, blames=options.blame
        )
    except Exception as error:
        status = (
            ExitStatus.REFUSED
            if isinstance(error, write_report_files.SpansRefused)
            else ExitStatus.INCOMPLETE
        )
        return fail(
            f"the report of {folder} could not be made: {write_report_files.describe_failure(error)}",
            status,
        )
    if options.spans:
        print(f"{options.spans}: {facts.spans}", file=sys.stderr)
    try:
        workflow.write_workflow_outputs(summary, facts, folder, os.environ)
    except (OSError, ValueError) as error:
        note = (
            f"WARNING: GITHUB_STEP_SUMMARY and GITHUB_OUTPUT could not be written: "
            f"{write_report_files.describe_failure(error)}."
        )
        facts = replace(facts, notes=(*facts.notes, note))
    width = console_summary.find_console_width()
    ends_run = options.ends_run
    exit_line = f"{format_exit_status(summary, facts)}\n".lstrip() if ends_run else ""
    result = make_report_result(
        summary, facts,
        console_summary.format_ending(summary, facts, folder, width, ends_run=ends_run),
        f"{tables.render_console(summary, facts, folder, width)}\n{exit_line}",
        workflow.make_announcement(summary, facts, os.environ),
    )  # fmt: skip
    if options.json:
        output = ReportOutput(
            **msgspec.structs.asdict(result),
            disruptions=summary.sections.get(DISRUPTIONS),
            cancelled_work=summary.sections.get(CANCELLED_WORK.name),
        )
        print_safely(f"{msgspec.json.encode(output).decode()}\n")
    else:
        print_safely(result.tables if options.verbose else result.text)
        print_ci_commands(result.annotations)
    return ExitStatus.INCOMPLETE if result.incomplete else ExitStatus.OK


def _describe_foreign_records(folder: Path, file: Path) -> str:
    """That a file has requests of a time in which the run was not: it is of another run. Empty: it
    has none, or the time of the run is not known."""
    try:
        run = read_run(folder)
        closed_at = [record.closed_at + record.clock_offset_s for record in RecordFile(file)]
    except (OSError, ValueError):  # the report says so
        return ""
    last_s = run.ended_at or math.inf
    if not run.ended_at and run.settings.longest_s is not None and not run.settings.warms_up:
        last_s = run.started_at + run.settings.longest_s
    last_s += run.settings.stop_timeout_s + CLOCKS_S
    if all(run.started_at - CLOCKS_S <= at <= last_s for at in closed_at):
        return ""
    return f"{file} is of another run: some of its requests ended before this run, or long after it"


def _add(folder: Path, files: Sequence[Path]) -> None:
    """Add records from other hosts that did not reach the run's master. Raises OSError."""
    added = sum(add_records(folder / RECORDS, RecordFile(file)) for file in files)
    with suppress(ValueError, FileNotFoundError):  # the report says so of a damaged one
        run = read_run(folder)
        note = (
            f"{format_count(added, 'record')} that had not reached the master were added from "
            f"other hosts"
        )
        if added:
            lost = max(0, run.records_lost - added)
            write_run(folder, replace(run, records_lost=lost, notes=(*run.notes, note)))


def make_report_result(
    summary: Summary, run: Run, text: str, tables: str = "", annotations: str = ""
) -> ReportResult:
    """The answer of the report process. ``text`` is for the console, ``tables`` for it with
    ``--verbose``."""
    sweep = summary.sweep
    findings = list[str]()
    if sweep is not None:
        end = f"{capitalise_sentence(sweep.ended)}." if sweep.ended else ""
        findings = [end, *(knee.text for knee in sweep.knees), *sweep.findings]
    if summary.paired is not None:
        findings = [describe_paired_verdict(summary.paired)]
    if summary.limits is not None:
        findings = [summary.limits.answer]
    return ReportResult(
        text=text.encode("utf-8", "replace").decode(),
        headline=f"{make_headline(summary, run)}.".encode("utf-8", "replace").decode(),
        tables=tables.encode("utf-8", "replace").decode(),
        annotations=annotations.encode("utf-8", "replace").decode(),
        incomplete=bool(list_missing_parts(summary, run)),
        slo_status=summary.slo_status,
        close_to_limit=summary.close_to_limit,
        rules=tuple(_rule(result) for result in summary.slos),
        not_valid=(format_broken_rules(summary.validity) or "")
        if run.settings.published_rules == FAILS
        else "",
        client=summary.client,
        probe="" if summary.examination is None else summary.examination.outcome,
        token_rate_unit=summary.counts.token_rate_unit,
        figures={row.tag: _figure(row) for row in summary.rows},
        has_waits=run.has_waits,
        rates_off=summary.steady is not None and not summary.steady.stationary,
        silence=describe_silent_time(summary.outages),
        swept=sweep is not None or summary.swept,
        findings=tuple(filter(None, findings)),
        stage_evidence=summary.stage_evidence,
        capacity=summary.capacity if sweep is None else sweep.capacity,
    )


def _rule(result: SloResult) -> RuleResult:
    value = "" if result.observed is None else format_observed(result)
    return RuleResult(result.rule, result.status, value, result.reason, result.voided)


def _figure(row: Row) -> MetricValue:
    percentiles = {
        p: round(value, 6) for p, value in row.percentiles.items() if math.isfinite(value)
    }
    return MetricValue(_finite(row.avg), row.count, percentiles, tuple(sorted(row.inexact)))


def _finite(value: float | None) -> float | None:
    """The value as in the export, with six decimals."""
    return round(value, 6) if value is not None and math.isfinite(value) else None
