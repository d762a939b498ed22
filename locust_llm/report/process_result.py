"""Result: a summary as what the report process answers."""

import math

from locust_llm.records.report_result import MetricValue, ReportResult, RuleResult
from locust_llm.records.run import Run
from locust_llm.report.blocks import format_observed
from locust_llm.report.rows import Row, SloResult
from locust_llm.report.sections.ab import describe_paired_verdict
from locust_llm.report.sections.notes import list_missing_parts
from locust_llm.report.sections.published import format_broken_rules
from locust_llm.report.summary import Summary
from locust_llm.slo.published import FAILS
from locust_llm.text.format import capitalise_sentence


def make_report_result(
    summary: Summary, run: Run, text: str, tables: str = "", annotations: str = ""
) -> ReportResult:
    """``text``: for the console; ``tables``: for it with ``--verbose``."""
    sweep, findings = summary.sweep, list[str]()
    if sweep is not None:
        end = f"{capitalise_sentence(sweep.ended)}." if sweep.ended else ""
        findings = [end, *(knee.text for knee in sweep.knees), *sweep.findings]
    if summary.paired is not None:
        findings = [describe_paired_verdict(summary.paired)]
    return ReportResult(
        text=text.encode("utf-8", "replace").decode(),
        tables=tables.encode("utf-8", "replace").decode(),
        annotations=annotations.encode("utf-8", "replace").decode(),
        incomplete=bool(list_missing_parts(summary, run)),
        slo_status=summary.slo_status,
        rules=tuple(_rule(result) for result in summary.slos),
        not_valid=(format_broken_rules(summary.validity) or "")
        if run.settings.published_rules == FAILS
        else "",
        client=summary.client,
        probe="" if summary.examination is None else summary.examination.outcome,
        figures={row.tag: _figure(row) for row in summary.rows},
        has_waits=run.has_waits,
        swept=sweep is not None or summary.paired is not None,
        findings=tuple(filter(None, findings)),
    )


def _rule(result: SloResult) -> RuleResult:
    value = "" if result.observed is None else format_observed(result)
    return RuleResult(result.rule, result.status, value, result.reason)


def _figure(row: Row) -> MetricValue:
    percentiles = {
        p: round(value, 6) for p, value in row.percentiles.items() if math.isfinite(value)
    }
    return MetricValue(_finite(row.avg), row.count, percentiles)


def _finite(value: float | None) -> float | None:
    """As in the export: six decimals."""
    return round(value, 6) if value is not None and math.isfinite(value) else None
