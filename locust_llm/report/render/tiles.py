"""Tiles: the head of the page: what was measured, its verdicts as badges and its main values as
tiles."""

import time
from collections.abc import Iterator
from typing import Final

from locust_llm.records.run_facts import Run
from locust_llm.report.document_blocks import mark_scarce
from locust_llm.report.open_loop_delivery import describe_span
from locust_llm.report.sections.ab_comparison import DIFFERENT, SAME, PairedComparison
from locust_llm.report.sections.prefill_limit_comparison import WORDS, LimitComparison
from locust_llm.report.sections.summary import Summary
from locust_llm.report.sections.sweep.knee import describe_levels, format_knee
from locust_llm.report.summary_rows import Row, SweepSummary
from locust_llm.slo.client_verdict import DEGRADED, INVALID, OK
from locust_llm.slo.metric_definitions import TTFT, TTFT_FROM_DUE
from locust_llm.slo.rules import FAIL, INCONCLUSIVE, PASS
from locust_llm.text.format import format_brief, format_count, format_duration, truncate_text

RESULT_CLASSES: Final = {
    PASS: "pass",
    FAIL: "loud",
    INCONCLUSIVE: "open",
    OK: "pass",
    DEGRADED: "open",
    INVALID: "loud",
    "better": "pass",
    "worse": "loud",
}
"""The CSS classes of results."""
MAX_NAMES: Final = 3
MAX_NAME: Final = 20
"""The names of requests with a tile each, and the characters of one."""
ARM_CLASSES: Final = {DIFFERENT: "open", SAME: "pass", INCONCLUSIVE: "open"}


def describe_run_facts(summary: Summary, run: Run) -> Iterator[str]:
    """Model, server, begin, duration."""
    conditions = summary.conditions
    yield from filter(None, (conditions.model, conditions.server))
    yield time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(run.started_at))
    if conditions.duration_s is not None:
        yield f"{conditions.duration_s:.0f} s"


def make_badges(summary: Summary) -> Iterator[tuple[str, str]]:
    """(text, class)."""
    if summary.examination is not None:
        yield summary.examination.badge()
    if summary.paired is not None:
        yield summary.paired.verdict.lower(), ARM_CLASSES[summary.paired.verdict]
    if summary.slo_status is not None:
        yield f"SLO {summary.slo_status}", RESULT_CLASSES[summary.slo_status]
    if summary.validity is not None:
        yield (
            (f"valid: {summary.validity.rules}", "pass")
            if summary.validity.valid
            else ("not valid", "open")
        )
    levels = summary.sweep.levels if summary.sweep is not None and summary.swept else ()
    unsound = sum(not level.sound for level in levels)
    if unsound:
        yield f"client not OK in {unsound} of {format_count(len(levels), 'stage')}", "open"
    elif summary.client is not None and not levels:
        yield f"client {summary.client.level}", RESULT_CLASSES[summary.client.level]
    if summary.conditions.simulated:
        yield "simulated", "open"


def make_tiles(summary: Summary, run: Run) -> Iterator[tuple[str, str, str]]:
    if summary.examination is not None:
        return summary.examination.tiles()
    if summary.paired is not None:
        return _paired_tiles(summary.paired)
    if summary.limits is not None:
        return _limit_tiles(summary.limits)
    return (
        _run_tiles(summary, run)
        if summary.sweep is None or not summary.swept
        else _sweep_tiles(summary.sweep)
    )


def _sweep_tiles(sweep: SweepSummary) -> Iterator[tuple[str, str, str]]:
    """The knees and the best of the valid stages, with the ones that are left out."""
    for knee in sweep.knees:
        if knee.value is not None:
            yield f"Knee: {knee.rule}", format_knee(knee), sweep.unit
    for name, rates in (
        ("Output tokens, best", [(level.output_tokens_per_s, level) for level in sweep.levels]),
        ("Good requests, best", [(level.goodput_per_s, level) for level in sweep.levels]),
    ):
        known = [(rate, level) for rate, level in rates if rate is not None]
        sound = [(rate, level) for rate, level in known if level.sound]
        if not sound:
            continue
        best, where = max(sound, key=lambda pair: pair[0])
        without = [level for _, level in known if not level.sound]
        left_out = f"; left out: {describe_levels(sweep.axis, *without)}" if without else ""
        what, per, time = sweep.unit.partition("/")
        what = what.removesuffix("s") if where.value == 1 else what
        yield (
            name,
            format_brief(best, digits=3),
            f"per second, at {where.value:g} {what}{per}{time}{left_out}",
        )


def _limit_tiles(limits: LimitComparison) -> Iterator[tuple[str, str, str]]:
    """The limit to use, and how much worse it is without one."""
    advice = str(limits.best) if limits.advises else "none advised"
    yield "Prefill limit", advice, f"by {WORDS[limits.objective].label}"
    for row in limits.rows:
        if row.limit is None and row.regret is not None and row.regret_high is not None:
            reach = f"{row.regret_low:.0%} to {row.regret_high:.0%} (95%)"
            yield "Regret without a limit", f"{row.regret:.0%}", reach


def _paired_tiles(paired: PairedComparison) -> Iterator[tuple[str, str, str]]:
    """The candidate's main differences."""
    for figure in paired.figures:
        shown = figure.stat in ("p50", "p99") and figure.metric in ("ttft", "itl")
        if (shown or figure.metric == "output_tokens_per_s") and figure.percent is not None:
            yield figure.label, f"{figure.percent:+.1f}%{'*' * figure.few}", figure.word


def _run_tiles(summary: Summary, run: Run) -> Iterator[tuple[str, str, str]]:
    """(name, value, detail) of the main values."""
    rows = {row.tag: row for row in summary.rows}

    def latency(row: Row | None, name: str) -> Iterator[tuple[str, str, str]]:
        if row and row.count:
            p50, p95, p99 = (
                format_duration(row.percentiles[p] / 1e3) + mark_scarce(row.count, p)
                for p in (50.0, 95.0, 99.0)
            )
            yield f"{name}, p50", p50, f"p95 {p95}, p99 {p99}"

    c, delivery = summary.conditions, summary.delivery
    over = (
        "per second"
        if c.duration_s is None
        else f"per second over {format_brief(c.duration_s, ' s', 3)}"
    )

    def rate(row: Row | None, name: str) -> Iterator[tuple[str, str, str]]:
        if row and row.avg is not None:
            yield name, format_brief(row.avg, digits=3), over

    if "time_to_first_token" in rows:
        first = (TTFT_FROM_DUE.tag, "TTFT from due") if run.has_waits else (TTFT.tag, "TTFT")
        if names := next((found.groups for found in summary.breakdowns if found.of_names), ()):
            for group in names[:MAX_NAMES]:  # other work each: together their times are nobody's
                row = next((row for row in group.rows if row.tag == first[0]), None)
                yield from latency(row, f"{first[1]}, {truncate_text(group.label, MAX_NAME)}")
        else:
            for tag, name in dict.fromkeys((first, (TTFT.tag, "TTFT"))):
                yield from latency(rows.get(tag), name)
            yield from latency(rows.get("inter_token_latency"), "ITL")
        yield from rate(rows.get("output_token_throughput"), "Output tokens")
    else:
        yield from latency(rows.get("request_latency"), "Latency")
        yield from rate(rows.get("input_throughput"), "Inputs")
        yield from rate(rows.get("input_token_throughput"), "Input tokens")
    if delivery is None:
        yield from rate(rows.get("request_throughput"), "Requests")
    else:  # as the headline has it
        offered = (
            f"per second {describe_span(delivery)}, "
            f"{format_brief(delivery.offered_per_s, digits=2)} offered"
        )
        yield "Completed", format_brief(delivery.completed_per_s, digits=2), offered
    yield from rate(rows.get("goodput"), "Good requests")
    if c.failure_rate is not None:
        cut_too = f", {c.cut:,} cut" if c.cut else ""
        yield (
            "Failed",
            f"{format_brief(100 * c.failure_rate, digits=2)}%",
            f"{c.failed:,} of {c.succeeded + c.failed:,}{cut_too}",
        )
