"""Metric tables: a run's metrics as tables, how far they may be off, and the same requests
divided."""

import math
from collections.abc import Iterator, Sequence
from typing import Final

from locust_llm.records.run_facts import Run
from locust_llm.report.document_blocks import (
    CORRELATED,
    INEXACT_NOTE,
    LABEL,
    SCARCE_NOTE,
    Block,
    Heading,
    TableBlock,
    TextBlock,
    choose_row_decimals,
    format_effective_size,
    format_percentile,
    has_inexact,
    label_row,
    mark_inexact,
)
from locust_llm.report.measurement_window import find_measured_span
from locust_llm.report.metrics_by_group import BACKEND, KINDS, LENGTH
from locust_llm.report.sections.conditions import Conditions
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.summary_rows import RequestBreakdown, RequestGroup, Row
from locust_llm.slo.load_generator_health import (
    FINE_MS,
    FINE_SHARE,
    OK,
    SENT_TOGETHER,
    FigureError,
    describe_other_programs,
)
from locust_llm.slo.metric_definitions import (
    GATE_WAIT,
    ITL,
    LATENCY,
    LONGEST_STALL,
    METRICS,
    MIN_CUT_SHARE,
    TTFT,
    TTFT_FROM_DUE,
)
from locust_llm.slo.percentile import has_too_few_values
from locust_llm.text.format import (
    capitalise_sentence,
    format_count,
    format_duration,
    format_number,
    name_percentile,
    truncate_text,
)

WARMUP_TAGS: Final = (
    "request_latency",
    "time_to_first_token",
    "inter_token_latency",
    "request_throughput",
)
"""The rows of the warmup. profile_export_aiperf.json has all rows."""
LOW: Final = 5.0
"""For values of which more is better, this percentile shows the worst requests."""
MAIN_PERCENTILES: Final = (50.0, 95.0, 99.0)
"""The percentiles that come first in a table."""
SHORT_NAMES: Final = {
    TTFT.tag: "TTFT", ITL.tag: "ITL", GATE_WAIT.tag: "wait", TTFT_FROM_DUE.tag: "from due",
    LATENCY.tag: "latency", LONGEST_STALL.tag: "stall",
}  # fmt: skip
"""The columns of a breakdown."""
NEAREST_RANK: Final = (
    "With failures, a percentile is the nearest rank, because no value lies between a number and "
    "infinity."
)
FAILURE: Final = "a failure"
ON_A_FAILURE: Final = " fall on a failed request"
FALLS_ON_A_FAILURE: Final = " falls on a failed request"
MIN_LOST: Final = 5
"""So many failed requests of a kind without an answer are no chance."""
MAX_LOST_KINDS: Final = 2
NOTHING: Final = "No request succeeded, so there are no latencies and no rates."


def make_main_tables(summary: Summary, run: Run) -> Iterator[Block]:
    """The main tables."""
    chosen = order_percentiles(run)
    yield Heading("Metrics")
    if not summary.conditions.succeeded:
        yield TextBlock(NOTHING)
        return
    if line := format_survivors_line(summary, run):
        yield TextBlock(line, loud=True)
    if line := format_lost_kinds_line(summary):
        yield TextBlock(line, loud=True)
    yield _metrics(order_latencies(summary.rows, run), chosen)
    # a metric without values has no percentiles
    fewest = min((row.count for row in summary.rows if row.count), default=0)
    if fewest and any(has_too_few_values(fewest, p) for p in chosen):
        yield TextBlock(SCARCE_NOTE)
    if any(row.inexact for row in summary.rows):
        yield TextBlock(f"{INEXACT_NOTE} because of the load generator: see Measurement error.")
    yield from _count_failed_waits(summary)
    yield from _describe_effective_sizes(summary.rows)
    if summary.adjusted:
        yield Heading(_name_adjusted(summary.conditions))
        yield _adjusted(summary.adjusted, chosen)
        if summary.conditions.failed:
            yield TextBlock(NEAREST_RANK)


def has_lost_many(conditions: Conditions) -> bool:
    """Whether so many requests failed or were cut that the others' latencies do not represent
    all."""
    lost = conditions.cut + conditions.failed
    return lost > 0 and lost >= MIN_CUT_SHARE * (conditions.succeeded + lost)


def format_survivors_line(summary: Summary, run: Run) -> str | None:
    """The line that many requests failed or were cut, or so many failed that a percentile of the
    tables falls on one of them. None: few did."""
    conditions = summary.conditions
    lost = conditions.cut + conditions.failed
    by_tag = {row.tag: row for row in summary.adjusted}
    first = TTFT_FROM_DUE if run.has_waits else TTFT
    rows = [by_tag[f"adj_{tag}"] for tag in (first.tag, LATENCY.tag) if f"adj_{tag}" in by_tag]
    many = has_lost_many(conditions)
    failing = "" if many else _describe_failing_tail(rows, order_percentiles(run))
    if not conditions.succeeded or not (many or failing):
        return None
    missing = [f"{conditions.failed:,} failed"] * bool(conditions.failed)
    missing += [
        f"{conditions.cut:,} {_was(conditions.cut)} cut before {_its(conditions.cut)} end"
    ] * bool(conditions.cut)
    missing += [f"{conditions.cancelled:,} {_was(conditions.cancelled)} cancelled"] * bool(
        conditions.cancelled
    )
    line = (
        f"These latencies are of the {format_count(conditions.succeeded, 'answered request')} alone: "
        f"{' and '.join(missing)}."
    )
    with_all = f"With {'them' if lost + conditions.cancelled > 1 else 'it'}"
    if failing:
        return f"{line} {with_all}, {failing}."
    known = [_both_percentiles(row) for row in rows if row.count and 95.0 in row.percentiles]
    if not known:
        return line
    if all(text.endswith(ON_A_FAILURE) for text in known):
        labels = [text.removesuffix(ON_A_FAILURE) for text in known]
        known = [f"{' and '.join(labels)}{ON_A_FAILURE}"]
    elif all(" are " in text for text in known):  # the verb stands once
        known = [known[0], *(text.replace(" are ", " ", 1) for text in known[1:])]
    return f"{line} {with_all}, p50 and p95 {', '.join(known)}."


def format_lost_kinds_line(summary: Summary) -> str | None:
    """The line that no request of a whole kind was answered, so no latency is of that kind: of a
    name, a model or a user class, else of an input length. None: each kind has answers."""
    words = {word for word, _ in KINDS}
    by_kind = [found for found in summary.breakdowns if words.issuperset(found.by.split(" / "))]
    by_length = [found for found in summary.breakdowns if found.by == LENGTH]
    for breakdown in (*by_kind, *by_length):
        lost = [
            group for group in breakdown.groups if group.failed >= MIN_LOST and not group.succeeded
        ]
        if lost and len(lost) < len(breakdown.groups):
            which = ", ".join(
                f"{one.label} ({one.failed:,} failed)" for one in lost[:MAX_LOST_KINDS]
            )
            more = len(lost) - MAX_LOST_KINDS
            rest = f" and {format_count(more, 'more kind')}" if more > 0 else ""
            return f"No request with {breakdown.by} {which}{rest} was answered."
    return None


def _describe_failing_tail(rows: Sequence[Row], percentiles: Sequence[float]) -> str:
    """``p99 of Time to First Token and of Request Latency fall on a failed request``, of the lowest
    percentile that does; empty: none does, or of too few values."""
    for percentile in sorted(percentiles):
        there = [row for row in rows if not has_too_few_values(row.count or 0, percentile)]
        labels = [f"of {row.label}" for row in there if _with_all(row, percentile) == FAILURE]
        if labels:
            ending = ON_A_FAILURE if len(labels) > 1 else FALLS_ON_A_FAILURE
            return f"{name_percentile(percentile)} {' and '.join(labels)}{ending}"
    return ""


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def _its(count: int) -> str:
    return "its" if count == 1 else "their"


def _both_percentiles(row: Row) -> str:
    """``of Request Latency are 432 ms and at least 14.9 s``"""
    median = _with_all(row, 50.0)
    slow = _with_all(row, 95.0)
    if median == slow == FAILURE:
        return f"of {row.label}{ON_A_FAILURE}"
    return f"of {row.label} are {f'both {median}' if median == slow else f'{median} and {slow}'}"


def _with_all(row: Row, percentile: float) -> str:
    """The text for all requests, with failed and cut ones."""
    value = row.percentiles[percentile]
    least = row.at_least.get(percentile)
    if least is not None:
        return f"at least {format_duration(least / 1e3)}"
    return FAILURE if math.isinf(value) else format_duration(value / 1e3)


def make_detail_tables(summary: Summary, run: Run) -> Iterator[Block]:
    """Further tables."""
    chosen = order_percentiles(run)
    yield from _measurement_errors(summary)
    if summary.conditions.succeeded:
        yield from _breakdowns(summary.breakdowns)
    if summary.reading:
        settings = run.settings
        yield Heading("Streaming smoothness", folded=True)
        yield _metrics(summary.reading, [LOW, *(p for p in chosen if p != LOW)])
        yield TextBlock(
            "Higher Fluidity and Quality of Experience are better. Token deadlines: "
            f"{settings.token_deadline} (the first, then each); reading pace: "
            f"{settings.reading_pace:g} tokens/s."
        )
    if summary.cancelled:
        cancelled = format_count(summary.conditions.cancelled, "request")
        yield Heading(
            f"Cancelled on purpose ({cancelled}, in the first table only in waits)", folded=True
        )
        yield _metrics(summary.cancelled, chosen)
    if summary.warmup:
        waves = find_measured_span(run) is not None
        which = "First and last wave" if waves else "Warmup"
        count = format_count(summary.counts.warmup, "request")
        # the server's counters know of no warmup
        absent = "not in the latencies above" if waves else "only in metrics of the server"
        yield Heading(f"{which} ({count}, {absent})", folded=True)
        yield _metrics([row for row in summary.warmup if row.tag in WARMUP_TAGS], chosen)


def order_latencies(rows: Sequence[Row], run: Run) -> Sequence[Row]:
    """The rows, with the users' waits first where a schedule or a gate held requests, and then
    TTFT."""
    first = (TTFT_FROM_DUE.tag, TTFT.tag)
    if not run.has_waits:
        return rows
    return [
        *sorted((row for row in rows if row.tag in first), key=lambda row: first.index(row.tag)),
        *(row for row in rows if row.tag not in first),
    ]


def order_percentiles(run: Run) -> Sequence[float]:
    """The percentiles of the tables."""
    return sorted(run.settings.columns, key=lambda p: p not in MAIN_PERCENTILES)


def _name_adjusted(conditions: Conditions) -> str:
    """The title of the table of all requests: what it has beside the successful ones."""
    beside = ["every failure as +infinity"] * bool(conditions.failed)
    beside += ["cut requests with their age (≥: at least)"] * bool(conditions.cut)
    beside += ["cancelled requests, their missing part estimated"] * bool(conditions.cancelled)
    return f"Latencies with {'; '.join(beside)}"


def _count_failed_waits(summary: Summary) -> Iterator[Block]:
    """The rows that count other requests beside the successful ones."""
    waits = {metric.tag for metric in METRICS if metric.waits}
    names = [
        row.label
        for row in summary.rows
        if row.tag in waits and (row.count or 0) > summary.conditions.succeeded
    ]
    if names:
        yield TextBlock(
            f"Latencies are of successful requests. Failed, cut and cancelled ones with a value also "
            f"count in: {', '.join(names)}."
        )


def _describe_effective_sizes(rows: Sequence[Row]) -> Iterator[Block]:
    """How much less the requests show than independent ones would."""
    known = {SHORT_NAMES[row.tag]: row for row in rows if row.effective is not None and row.count}
    if all((row.effective or 0) >= CORRELATED * (row.count or 0) for row in known.values()):
        return
    sizes = "; ".join(
        f"{format_effective_size(row.effective or 0.0)} of {row.count:,} for the mean of {name}"
        for name, row in known.items()
    )
    yield TextBlock(
        "Requests that wait together are correlated. The effective sample size is the number of "
        f"independent requests with as much information: {sizes}. Each SLO has its own."
    )


def _metrics(rows: Sequence[Row], chosen: Sequence[float]) -> TableBlock:
    def cells(row: Row) -> tuple[str, ...]:
        most = choose_row_decimals(row)
        quantiles = (format_percentile(row, p, most=most) for p in chosen)
        count = "-" if row.count is None else str(row.count)
        single = (
            f"{row.avg:.4f}"
            if row.unit == "ratio" and row.avg is not None
            else format_number(row.avg, 4)
        )
        avg = single if row.count is None else format_number(row.avg, most=most)
        inexact = mark_inexact(row, "" if row.count is None else "avg")
        return (
            label_row(row),
            *quantiles,
            f"{inexact}{avg}",
            f"{mark_inexact(row, 'min')}{format_number(row.min, most=most)}",
            f"{mark_inexact(row, 'max')}{format_number(row.max, most=most)}",
            format_number(row.std, most=most),
            count,
        )

    return TableBlock(
        ("Metric", *map(name_percentile, chosen), "avg", "min", "max", "std", "count"),
        tuple(map(cells, rows)),
    )


TOGETHER_NOTE: Final = (
    " The part of the error that chunks sent together cause does not count: the load generator did "
    "not merge them."
)


def _measurement_errors(summary: Summary) -> Iterator[Block]:
    """How far each value may be off by the load generator's doing, and why."""
    if not summary.figure_errors:
        return
    yield Heading("Measurement error", folded=True)
    head = ("Metric", "Value", "May be off by up to", "", "", "Cause")
    rows = (_measurement_error(figure_error) for figure_error in summary.figure_errors)
    yield TableBlock(head, tuple(rows), numbers=False)
    together = any(SENT_TOGETHER in error.causes for error in summary.figure_errors)
    yield TextBlock(
        f"A metric is accurate enough if its error is at most {FINE_SHARE:.0%} of the value or "
        f"{FINE_MS:g} ms. The client verdict is based on TTFT, ITL, Request Latency and the rates."
        f"{TOGETHER_NOTE * together}"
    )
    if others := describe_other_programs(summary.evidence):
        yield TextBlock(f"{capitalise_sentence(others)}.")
    if summary.sentinels:
        yield TextBlock(
            f"Timestamps: checked with {summary.sentinels} chunks of reference streams with known send times."
        )
    elif summary.uncertified:
        yield TextBlock(f"They do not include the error of the timestamps: {summary.uncertified}.")


def _measurement_error(figure_error: FigureError) -> tuple[str, ...]:
    share = f"{figure_error.most / abs(figure_error.value):.1%}" if figure_error.value else "-"
    value, most = (
        f"{format_number(number, 3)} {figure_error.unit}"
        for number in (figure_error.value, figure_error.most)
    )
    fine = "" if figure_error.level == OK else "too inaccurate"
    return (
        figure_error.label,
        value,
        most,
        share,
        fine,
        ", ".join(list(figure_error.causes)[:2]) or "-",
    )


def _breakdowns(breakdowns: Sequence[RequestBreakdown]) -> Iterator[Block]:
    inexact = False
    for breakdown in breakdowns:
        yield Heading(f"By {breakdown.by} (ms)", folded=True)
        table = _breakdown(breakdown)
        yield table
        inexact = inexact or has_inexact(table.rows)
    if breakdowns:
        tags: set[str] = set()
        for breakdown in breakdowns:
            tags.update(row.tag for row in breakdown.groups[0].rows)
        wait = "; wait: Gate Wait, including failed requests" if GATE_WAIT.tag in tags else ""
        due = "; from due: TTFT from Due" if TTFT_FROM_DUE.tag in tags else ""
        by_ramp = any(breakdown.of_ramp for breakdown in breakdowns)
        by_limit = any(breakdown.of_limit for breakdown in breakdowns)
        if ITL.tag in tags and (by_ramp or by_limit):
            by = "a ramp's limit or rate" if by_ramp else "prefill limit"
            due += (
                f"; by {by}, ITL and stall (Longest Stall) are of responses that began and ended "
                "under it before the load stopped"
            )
        first = "TTFT and ITL are" if TTFT.tag in tags else "the latency is"
        yield TextBlock(
            f"ok: successful requests, of which {first}; failed: share of failures{wait}{due}; * "
            f"too few values{f'; {INEXACT_NOTE}' * inexact}"
        )


def _breakdown(breakdown: RequestBreakdown) -> TableBlock:
    groups = breakdown.groups
    with_tokens = any(group.input_tokens is not None for group in groups)
    total = (
        sum(group.succeeded + group.failed for group in groups) if breakdown.by == BACKEND else 0
    )
    titles = list[str]()
    for row in groups[0].rows:
        # the name of a metric stands over the first of its percentiles
        first, *others = map(name_percentile, MAIN_PERCENTILES)
        titles += [f"{SHORT_NAMES[row.tag]} {first}", *others]

    def cells(group: RequestGroup) -> Iterator[str]:
        yield truncate_text(group.label, 2 * LABEL)
        if total:
            yield f"{(group.succeeded + group.failed) / total:.1%}"
        yield str(group.succeeded)
        yield "-" if group.failure_rate is None else f"{group.failure_rate:.1%}"
        for row in group.rows:
            yield from (format_percentile(row, p, 4) for p in MAIN_PERCENTILES)
        if with_tokens:
            yield format_number(group.input_tokens, 4)
            yield "-" if group.cached_share is None else f"{group.cached_share:.1%}"

    share = ("share",) if total else ()
    tokens = ("input", "cached") if with_tokens else ()
    head = (breakdown.by, *share, "ok", "failed", *titles, *tokens)
    return TableBlock(head, tuple(tuple(cells(group)) for group in groups))


def _adjusted(rows: Sequence[Row], chosen: Sequence[float]) -> TableBlock:
    def cells(row: Row) -> tuple[str, ...]:
        percentiles = (format_percentile(row, p, 4) for p in chosen)
        return label_row(row), *percentiles, str(row.count)

    head = ("Metric", *map(name_percentile, chosen), "count")
    return TableBlock(head, tuple(map(cells, rows)))
