"""Console summary: what a run leaves on the console, the verdict first, in at most 25 lines, or as
many as name each failed rule, each difference and what was not delivered; the files have
everything."""

import math
import re
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate, chain, groupby
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from locust_llm.records.failure_kinds import generalise_failure_message
from locust_llm.records.run_facts import SIMULATED, Run
from locust_llm.report.compare.metric_differences import FEW
from locust_llm.report.document_blocks import (
    INEXACT,
    INEXACT_NOTE,
    SCARCE_NOTE,
    TextBlock,
    choose_row_decimals,
    format_interval,
    format_interval_around,
    format_observed,
    format_percentile,
    label_row,
    mark_inexact,
)
from locust_llm.report.judge_slo import ASSUMED_END, INTERVAL_CROSSES
from locust_llm.report.metrics_by_group import WHOLE
from locust_llm.report.open_loop_delivery import (
    format_backlog_line,
    format_delivery_line,
    format_outage_line,
    has_rates_to_the_stop,
)
from locust_llm.report.sections.ab_comparison import (
    FROM_DUE_KEYS,
    MAIN_KEYS,
    PairedComparison,
    PairedFigure,
    describe_gaps_of_figures,
    make_paired_head,
    select_main_figures,
)
from locust_llm.report.sections.ab_comparison import format_paired_cells as cells_of_arms
from locust_llm.report.sections.answers_under_load import ANSWERS, format_answers_line
from locust_llm.report.sections.disruptions import DISRUPTIONS, format_disruptions_line
from locust_llm.report.sections.headline import OF_TAGS, make_headline
from locust_llm.report.sections.latency_breakdown_display import summarise_latency_parts
from locust_llm.report.sections.metric_tables import (
    MAIN_PERCENTILES,
    SHORT_NAMES,
    format_lost_kinds_line,
    format_survivors_line,
    order_percentiles,
)
from locust_llm.report.sections.notes import (
    FIRST_FAILED,
    format_incomplete_line,
    format_policy_lines,
    format_stopped_line,
    format_verdict_line,
    select_top_remarks,
)
from locust_llm.report.sections.prefill_limit_comparison import make_limit_cells, make_limit_head
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.sections.soak_section import format_soak_line
from locust_llm.report.sections.sweep.knee import SLO, describe_repeat_verdicts
from locust_llm.report.sections.sweep.knee import select_top_knees as foremost_knees
from locust_llm.report.sections.sweep.sweep_text import (
    FIRST_COLUMN,
    format_request_rate,
    format_stage_status,
    format_token_rate,
    make_sweep_warnings,
    name_request_rate,
)
from locust_llm.report.slo_evidence.observed_rule_values import count_unsent_arrivals
from locust_llm.report.summary_rows import (
    IN_NO_AVERAGE,
    FailureGroup,
    LoadLevel,
    RequestGroup,
    Row,
    SweepSummary,
)
from locust_llm.settings.sweep_option import PREFILL, RATE
from locust_llm.slo.binomial_intervals import Ends
from locust_llm.slo.load_generator_health import OK, SATURATED
from locust_llm.slo.metric_definitions import BY_WORD, ITL, TTFT, TTFT_FROM_DUE
from locust_llm.slo.rules import FAIL, PASS, SloResult
from locust_llm.text.format import (
    clean_line,
    format_brief,
    format_count,
    format_number,
    format_plain_number,
    name_percentile,
    truncate_text,
)

from .run_comparison import HEAD as HEAD_OF_RUNS
from .run_comparison import (
    SHORT_TITLES,
    Comparison,
    ComparisonLine,
    RunPair,
    format_line_cells,
    format_stage_value,
    get_bound_mark,
    make_column_titles,
    may_have_failures,
    name_folders,
)

WIDTH: Final = 120
LEAST: Final = 40
"""The least characters of a line. A narrower terminal wraps them itself."""
LINES: Final = 25
CHANCE: Final = 2.0
"""So many standard deviations below the cancellations that were asked for may be chance."""
MAX_MISSING: Final = 4
MAX_HEADLINE: Final = 5
MAX_REASON: Final = 12
"""The lines of what is missing and of the headline. There are more where nothing succeeded, as the
headline has the reason in full. All other texts are whole, or left out and counted."""
MAX_MESSAGE: Final = 200
"""The characters of a failure's message."""
MAX_REMARKS: Final = 3
MAX_FAILURES: Final = 2
"""The kinds of failures that are shown in full."""
MAX_COUNTED: Final = 3
"""The kinds of other failures that are counted by name."""
MAX_RULES: Final = 4
"""The kinds of rules that are shown, and every kind that failed."""
MAX_STAGES: Final = 8
MAX_GROUPS: Final = 6
"""The names of requests, or limits of a ramp, that are shown."""
OF_INPUTS: Final = ("input_throughput",)
"""The metrics of embeddings and rerank."""
ROWS: Final = (
    TTFT_FROM_DUE.tag,
    TTFT.tag,
    ITL.tag,
    "request_latency",
    "output_token_throughput",
    *OF_INPUTS,
)
CLOSED_ROWS: Final = (
    TTFT.tag,
    ITL.tag,
    "longest_stall",
    "request_latency",
    "output_token_throughput",
    *OF_INPUTS,
)
"""The five metrics. Where requests had no schedule and no gate, TTFT from Due is TTFT."""
LABELS: Final = {
    TTFT.tag: "TTFT (ms)",
    ITL.tag: "ITL (ms)",
}
MORE_RULES: Final = "  and more on rules in the report"
OF_FAILURES: Final = "Percentiles count each failure as +infinity."
"""The note on tables that compare. The tables of one run leave failures out."""


def find_console_width() -> int:
    """The characters of a line: the terminal's, at most ``WIDTH``; or the variable COLUMNS, where
    it is set."""
    return max(LEAST, min(WIDTH, shutil.get_terminal_size((WIDTH, LINES)).columns))


def format_ending(
    summary: Summary, run: Run, folder: Path | str, width: int = WIDTH, *, ends_run: bool = True
) -> str:
    """The ending as plain text. No line is wider than ``width`` characters, and control characters
    are harmless. ``ends_run``: a run ends with it, so it has the run's exit status. A client verdict
    has its causes beside it where its paragraph has no room."""
    verdict = None if summary.staged else format_verdict_line(summary, run)
    for causes in (False, True):
        lines = _arrange_ending(summary, run, folder, width, ends_run=ends_run, causes=causes)
        if verdict is None or "\n".join(_wrapped(verdict, width)) in lines:
            break
    return lines


def _arrange_ending(
    summary: Summary, run: Run, folder: Path | str, width: int, *, ends_run: bool, causes: bool
) -> str:
    fruitless = bool(summary.conditions.requests) and not summary.conditions.succeeded
    status = f"SLO {summary.slo_status}: " if summary.slo_status else ""
    first = _wrapped(
        f"{status}{make_headline(summary, run)}.", width, MAX_REASON if fruitless else MAX_HEADLINE
    )
    if missing := format_incomplete_line(summary, run):
        first = [*_wrapped(missing, width, MAX_MISSING), *first]
    basis = list[str]()
    if summary.conditions.requests:
        basis = _wrapped(_basis(summary, run, causes=causes), width)
    if (answers := summary.sections.get(ANSWERS)) is not None:
        place = first if answers.is_alarming else basis
        place += _wrapped(format_answers_line(answers), width)
    if (disruptions := summary.sections.get(DISRUPTIONS)) is not None:
        first += _wrapped(format_disruptions_line(disruptions), width)
    if summary.soak is not None:
        first += _wrapped(format_soak_line(summary.soak), width)
    table = _explain_marks([*_aligned(*_table(summary, run), width)], width)
    if table and summary.paired is not None and summary.conditions.failed:
        table += _wrapped(OF_FAILURES, width)
    room = (
        LINES
        - len(first)
        - len(basis)
        - len(table)
        - len(_last(folder, width))
        - (3 if table else 2)
    )
    unmet = [*_rules(summary, run, ends_run=ends_run)]
    remarks = [*_remarks(summary, run)]
    # each failed rule, and the first one of others, has its place however many warnings there are
    failed_lines = list[str]()
    others = list[str]()
    for text in unmet:
        if text.startswith(f"  {FAIL} "):
            failed_lines += _wrapped(text, width)
        else:
            others.append(text)
    kept_lines = len(_wrapped(unmet[0], width)) if unmet else 0
    undelivered = format_delivery_line(summary)
    others_left = bool(others) and len(unmet) > 1  # beside the first one: a line counts them
    failures = _fit_failures(summary, run, width, room - kept_lines - others_left)
    free = room - kept_lines - others_left - len(failures)
    headline = " ".join(line.strip() for line in first)
    above = [*_fitting(_warnings(summary, run, headline), width, free, undelivered), *failures]
    # further failed rules are lines beyond LINES: they take the place of no warning
    room -= len(above) + (kept_lines if failed_lines else 0)
    rules = [*failed_lines, *_fitting_rules(others, width, room)]
    room -= len(rules) - len(failed_lines)
    groups = list(_aligned(*_groups(summary), width))
    groups = groups if len(groups) < room else []
    below = _fitting(remarks[:MAX_REMARKS], width, room - len(groups) - bool(groups))
    last = _last(folder, width)
    parts = ([*first, *above, *rules, *basis], table, groups, [*below, *last])
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _last(folder: Path | str, width: int) -> list[str]:
    """The lines on where the rest is."""
    return _wrapped(
        f"Report: {folder}/report.html; all tables and notes: summary.md in the same folder, or "
        "--verbose",
        width,
    )


def _warnings(summary: Summary, run: Run, headline: str) -> Iterator[str]:
    """The warnings before any value. What the ``headline`` has stands there alone."""
    yield from filter(None, [format_stopped_line(summary, run)])
    if summary.paired is not None and summary.paired.uncounted:
        yield f"{summary.paired.uncounted}."
    if summary.conditions.simulated:
        yield SIMULATED
    if not summary.staged:
        yield from filter(None, [format_verdict_line(summary, run)])
    of_load = (
        format_outage_line(summary, headline), format_backlog_line(summary, run),
        format_delivery_line(summary),
    )  # fmt: skip
    yield from filter(None, of_load)
    if summary.sweep is not None:
        yield from (
            block.text
            for block in make_sweep_warnings(summary.sweep, summary.conditions.client_verdict)
            if isinstance(block, TextBlock)
        )
    if summary.paired is not None and summary.paired.warning:
        yield f"WARNING: {summary.paired.warning}."
    if summary.examination is not None:
        yield from (reason.text for reason in summary.examination.reasons())


def _fit_failures(summary: Summary, run: Run, width: int, room: int) -> list[str]:
    """The most frequent kinds of failures in full as far as there is room, and how many requests
    failed otherwise, which is there without room, too. No kind is left out."""
    failures = _merge_names(summary.failures)
    if not (failures and summary.conditions.succeeded):  # else the headline has them
        return []
    # in full, with what to do about it; other failures may have come later
    if first := [note for note in run.notes if note.startswith(FIRST_FAILED)]:
        lines = list(chain.from_iterable(_wrapped(note, width) for note in first))
        several = len({failure.outcome for failure in failures}) > 1
        return [*lines, *_wrapped(_count_failures(failures), width)] if several else lines
    lines = list[str]()
    shown = 0
    for failure in failures[:MAX_FAILURES]:
        more = _wrapped(_describe_failure(failure), width)
        others = failures[shown + 1 :]
        counted = _wrapped(_count_failures(others, shown + 1), width) if others else []
        if len(lines) + len(more) + len(counted) > room:
            break
        lines += more
        shown += 1
    if others := failures[shown:]:
        lines += _wrapped(_count_failures(others, shown), width)
    return lines


def _merge_names(failures: Sequence[FailureGroup]) -> list[FailureGroup]:
    """The kinds over all request names, the most frequent first. The table of names has the
    failures of each name, and the report the kinds of each."""
    merged: dict[tuple[str, int | None, str], FailureGroup] = {}
    for failure in failures:
        kind = failure.outcome, failure.status, generalise_failure_message(failure.message)
        known = merged.get(kind)
        if known is None:
            merged[kind] = failure
            continue
        merged[kind] = replace(
            known,
            count=known.count + failure.count,
            arms=dict(Counter(known.arms) + Counter(failure.arms)),
        )
    return sorted(merged.values(), key=lambda failure: -failure.count)


def _describe_failure(failure: FailureGroup) -> str:
    status = "" if failure.status is None else f" (HTTP {failure.status})"
    message = f", {truncate_text(failure.message, MAX_MESSAGE)}" if failure.message else ""
    return f"{failure.count} failed{failure.describe_arms()}: {failure.outcome}{status}{message}"


def _count_failures(failures: Sequence[FailureGroup], shown: int = 0) -> str:
    """``3 more failed, with other messages: 2 closed, 1 empty``. ``shown``: so many kinds stand
    above."""
    outcomes = Counter[str]()
    for failure in failures:
        outcomes[failure.outcome] += failure.count
    kinds = outcomes.most_common()
    listed = ", ".join(f"{count} {outcome}" for outcome, count in kinds[:MAX_COUNTED])
    if rest := kinds[MAX_COUNTED:]:
        requests = format_count(sum(count for _, count in rest), "request")
        listed = f"{listed} and {format_count(len(rest), 'other kind')}, {requests}"
    if not shown:
        return f"{outcomes.total()} failed: {listed}"
    return f"{outcomes.total()} more failed, with other messages: {listed}"


def _rules(summary: Summary, run: Run, *, ends_run: bool) -> Iterator[str]:
    """The rules that did not pass, and those that passed without the failed requests, with one line
    for all that share a reason."""

    def kind(result: SloResult) -> tuple[str, str]:
        return result.status, result.reason

    told = (
        result for result in summary.slos if result.status != PASS or IN_NO_AVERAGE in result.reason
    )
    open_ = sorted(told, key=kind)
    groups = [(key, list(rules_of_kind)) for key, rules_of_kind in groupby(open_, kind)]
    shown = max(MAX_RULES, sum(status == FAIL for (status, _), _ in groups))
    for (status, reason), rules_of_kind in groups[:shown]:
        if len(rules_of_kind) > 1 and not reason:  # each has its own figure
            yield f"  {status} {', '.join(map(_rule_with_value, rules_of_kind))}"
        elif len(rules_of_kind) > 1:
            yield f"  {status} {', '.join(map(_rule_with_interval, rules_of_kind))}: {reason}"
        else:
            known = format_interval(rules_of_kind[0])
            figure = format_observed(rules_of_kind[0]) if known == "-" else f"95% interval {known}"
            if math.isinf(rules_of_kind[0].observed or 0.0) and reason:
                figure = ""  # the reason says that it is a failure
            texts = [text for text in (figure, reason) if text not in ("", "-")]
            known_of_rule = "; ".join(texts)
            if known != "-" and reason.startswith(INTERVAL_CROSSES):
                known_of_rule = known_of_rule.replace(
                    f"; {INTERVAL_CROSSES}", " crosses the limit", 1
                )
            yield f"  {status} {rules_of_kind[0].rule}: {known_of_rule}"
    if rest := sum(len(rules_of_kind) for _, rules_of_kind in groups[shown:]):
        yield f"  and {format_count(rest, 'more rule')}"
    yield from format_policy_lines(summary, run, ends_run=ends_run)


def _rule_with_value(result: SloResult) -> str:
    """``completed >= 90% (27.8%)``"""
    value = format_observed(result)
    return result.rule if value == "-" else f"{result.rule} ({value})"


def _rule_with_interval(result: SloResult) -> str:
    """``ttft p95 < 203ms (202.4ms to 210.4ms)``"""
    ends = format_interval(result)
    return result.rule if ends == "-" else f"{result.rule} ({ends})"


def _basis(summary: Summary, run: Run, *, causes: bool) -> str:
    """The basis of the verdict. ``causes``: with those of the client verdict."""
    c, rows = summary.conditions, {row.tag: row for row in summary.rows}
    answered = f"From {format_count(c.succeeded, 'answered request')}"
    if not c.succeeded:
        begun = c.cut > summary.counts.cut_without_chunk
        whole = "a whole answer" if begun else "an answer"
        answered = f"From {format_count(c.requests, 'request')} without {whole}"
    within = "" if c.duration_s is None else f" in {format_brief(c.duration_s, ' s', 3)}"
    if within and has_rates_to_the_stop(summary.delivery):
        within = f"{within} from the first send to the last end"
    # the client verdict of a stage is in the table
    busy = _note_saturation(summary) if summary.staged else ""
    sentences = [f"{answered}{within}{busy}"]
    sentences += [f"{c.failed} failed"] * bool(c.failed) + [f"{c.cut} cut"] * bool(c.cut)
    if summary.swept and (cut := summary.counts.cut_unmeasured):
        sentences.append(f"{cut} cut outside of the measured time")
    if c.cancelled:
        verb = "was" if c.cancelled == 1 else "were"
        sentences.append(
            f"{c.cancelled} of {format_count(c.requests, 'request')} {verb} cancelled on purpose"
            f"{_explain_fewer_cancelled(summary, run)}"
        )
    first = rows.get(TTFT_FROM_DUE.tag if run.has_waits else TTFT.tag)
    # else the load generator may move it further
    well = summary.client is None or summary.client.level == OK
    survivors = None if summary.swept else format_survivors_line(summary, run)
    # an interval of the answered requests alone says little where many others were lost
    of_most = not summary.swept and survivors is None
    if well and of_most and summary.examination is None and first is not None:
        sentences += _uncertainty(first, summary, run)
    several = len(run.settings.looks) > 1  # a plain run with -t has one, at its end
    if several and any(result.low is not None for result in summary.slos):
        times = format_count(len(run.settings.looks), "time")
        sentences.append(
            f"95% intervals are wider than without --until-decided, which judges up to {times}"
        )
    if summary.client is not None and not summary.staged:
        named = ", ".join(summary.client.signals)
        why = f" ({named})" if causes and named else ""
        level = summary.client.level
        # the headline has the repeats that are worse
        over = " over all repeats" * bool(describe_repeat_verdicts(summary.sweep, level))
        sentences.append(f"client verdict {level}{over}{why}{_note_saturation(summary)}")
    if summary.sweep is not None and summary.swept and summary.sweep.ended:
        sentences.append(f"the sweep ended: {summary.sweep.ended}")
    others = [_name_assumed_ends(summary)]
    if not summary.swept:
        others += [survivors, format_lost_kinds_line(summary)]
    return " ".join((f"{', '.join(sentences)}.", *filter(None, others)))


def _name_assumed_ends(summary: Summary) -> str | None:
    """The rules that passed by an assumed end of their interval; others have it in their lines."""
    rules = [
        result.rule
        for result in summary.slos
        if result.status == PASS and ASSUMED_END in result.reason
    ]
    if not rules:
        return None
    more = f" and {format_count(len(rules) - 1, 'more rule')}" if len(rules) > 1 else ""
    return f"For {rules[0]}{more}, an end of the 95% interval is an assumption."


def _note_saturation(summary: Summary) -> str:
    """`` on a machine that was busy for 100% of the time``. Empty: it had free cores."""
    shares = [e.machine_busy for e in summary.evidence if e.machine_busy is not None]
    busiest = max(shares, default=0.0)
    return f" on a machine that was {busiest:.0%} busy" if busiest >= SATURATED else ""


def _explain_fewer_cancelled(summary: Summary, run: Run) -> str:
    """Why fewer requests were cancelled than asked. Empty: about as many were."""
    asked_percent = run.settings.request_cancellation_rate or 0.0
    c = summary.conditions
    share = asked_percent / 100
    by_chance = CHANCE * math.sqrt(c.requests * share * (1 - share))
    if c.cancelled >= c.requests * share - by_chance:
        return ""
    return (
        f" ({asked_percent:g}% were requested, and responses that end within "
        f"{run.settings.request_cancellation_delay:g} s are not cancelled)"
    )


def _uncertainty(row: Row, summary: Summary, run: Run) -> list[str]:
    """One usable interval, for the slow requests where there are enough. Empty: there is none, or a
    rule has another one, which counts failures and unsent arrivals too."""
    for percentile in (95.0, 50.0):
        value = row.percentiles.get(percentile)
        ends = row.intervals.get(percentile)
        if value is None or ends is None:
            continue
        if _has_other_interval(row, percentile, ends, summary, run):
            return []
        interval = format_interval_around(value, ends)
        return [f"{OF_TAGS[row.tag]} {name_percentile(percentile)} {interval} (95% interval)"]
    return []


def _has_other_interval(
    row: Row, percentile: float, ends_ms: Ends, summary: Summary, run: Run
) -> bool:
    """Whether a rule on this percentile has another interval than its row, or arrivals that were
    never sent are missing in the row."""
    for result in summary.slos:
        rule = run.settings.rules.by_text.get(result.rule)
        if rule is None or rule.base or rule.where or rule.percentile != percentile:
            continue
        metric = BY_WORD[rule.metric].metric
        if metric is None or metric.tag != row.tag:
            continue
        of_rule = (result.low, result.high)
        for end, end_ms in zip(of_rule, ends_ms, strict=True):
            known = None if end is None else end / rule.factor * 1e3
            if known is None or end_ms is None:
                if known is not end_ms:
                    return True
            elif not math.isclose(known, end_ms, rel_tol=1e-3):
                return True
    delivery = summary.delivery
    return row.tag == TTFT_FROM_DUE.tag and count_unsent_arrivals(TTFT_FROM_DUE, delivery) > 0


def _remarks(summary: Summary, run: Run) -> Iterator[str]:
    """The remarks, the most important first."""
    if summary.examination is not None:
        yield from summary.examination.advice_lines()
    if (sweep := summary.sweep) is not None and summary.swept:
        texts = [
            knee.text
            for knee in foremost_knees(sweep)
            if knee.value is not None or knee.rule == SLO
        ]
        first, others = texts[:1], texts[1:]  # the headline has the first, of a search its begin
        rest = [text.partition(". ")[2] for text in first if sweep.capacity is not None]
        texts = [text for text in (*rest, *others) if text and text not in first]
        yield from dict.fromkeys((*texts, *sweep.findings))
    if (paired := summary.paired) is not None:
        yield from describe_gaps_of_figures(_select_arm_figures(paired, run))
    if summary.waterfall is not None and not summary.swept:
        yield summarise_latency_parts(summary.waterfall, in_table=run.has_waits)
    yield from (
        remark for remark in select_top_remarks(summary, run) if not remark.startswith(FIRST_FAILED)
    )


# -- tables ----------------------------------------------------------------------------------------


def _table(summary: Summary, run: Run) -> tuple[Sequence[str], Iterable[Sequence[str]]]:
    """(head, rows) of the main values. Empty: there are none."""
    if summary.examination is not None:
        examined = summary.examination.main_table()
        return ((), ()) if examined is None else (examined.head, examined.rows)
    if summary.paired is not None:
        return make_paired_head(summary.paired), _arms(summary.paired, run)
    if (limits := summary.limits) is not None:
        rows = (make_limit_cells(row, limits) for row in limits.rows)
        return make_limit_head(limits), rows
    if summary.sweep is not None and summary.swept:
        return _stages(summary.sweep, summary.counts.token_rate_unit)
    return _metrics(summary, run)


def _metrics(summary: Summary, run: Run) -> tuple[Sequence[str], Iterable[Sequence[str]]]:
    rows = {row.tag: row for row in summary.rows}
    every = order_percentiles(run)
    chosen = [p for p in every if p in MAIN_PERCENTILES or p > max(MAIN_PERCENTILES)] or every
    tags = ROWS if run.settings.open_loop or run.limits else CLOSED_ROWS
    shown = [rows[tag] for tag in tags if tag in rows]
    shown = [row for row in shown if row.count or row.avg is not None]

    labels = {**LABELS, "output_token_throughput": f"Output ({summary.counts.token_rate_unit})"}

    def cells(row: Row) -> tuple[str, ...]:
        decimals = choose_row_decimals(row)
        percentiles = (format_percentile(row, p, most=decimals) for p in chosen)
        return labels.get(row.tag) or label_row(row), *percentiles, *_mean_and_greatest(row)

    return ("", *map(name_percentile, chosen), "avg", "max"), map(cells, shown)


def _groups(summary: Summary) -> tuple[Sequence[str], Iterable[Sequence[str]]]:
    """The table by the names of requests, else by the limit or the rate of a ramp, whose common
    values mean little."""
    by_name = [breakdown for breakdown in summary.breakdowns if breakdown.of_names]
    by_ramp = [found for found in summary.breakdowns if found.of_ramp or found.of_limit]
    if not (by_name or by_ramp) or summary.swept or summary.examination is not None:
        return (), ()
    breakdown = (by_name or by_ramp)[0]
    groups = [group for group in breakdown.groups if group.label != WHOLE][:MAX_GROUPS]
    titles = [breakdown.by, "ok", "failed"]
    metrics = list[int]()
    for place, row in enumerate(groups[0].rows):
        # where no group has one: a short ramp has no answer that began and ended under one limit,
        # and so no ITL
        if any(group.rows[place].count for group in groups):
            metrics.append(place)
            titles += [f"{SHORT_NAMES[row.tag]} p50 (ms)", "p95"]

    def cells(group: RequestGroup) -> list[str]:
        texts = [group.label, str(group.succeeded), str(group.failed)]
        for place in metrics:
            texts += [format_percentile(group.rows[place], p, 4) for p in (50.0, 95.0)]
        return texts

    return titles, map(cells, groups)


def _mean_and_greatest(row: Row) -> tuple[str, str]:
    if row.count is None:
        rate = f"{mark_inexact(row, '')}{format_number(row.avg, 4)}"
        return rate, format_number(row.max)
    decimals = choose_row_decimals(row)
    mean = f"{mark_inexact(row, 'avg')}{format_number(row.avg, most=decimals)}"
    return mean, f"{mark_inexact(row, 'max')}{format_number(row.max, most=decimals)}"


def _stages(
    sweep: SweepSummary, token_rate_unit: str
) -> tuple[Sequence[str], Iterable[Sequence[str]]]:
    """The stages around the knee."""
    values = [level.value for level in sweep.levels]
    knee = next(
        (knee.value for knee in sweep.knees if knee.value is not None),
        values[-1] if values else 0.0,
    )
    place = sum(value <= knee for value in values)
    begin = max(0, min(place - MAX_STAGES // 2, len(values) - MAX_STAGES))
    first = TTFT_FROM_DUE if sweep.axis in (RATE, PREFILL) else TTFT

    def cells(level: LoadLevel) -> tuple[str, ...]:
        latencies = list[str]()
        for tag in (first.tag, ITL.tag):
            row = level.latencies.get(tag)
            for percentile in (50.0, 95.0):
                latencies.append("-" if row is None else format_percentile(row, percentile, 4))
        return (
            format_plain_number(level.value), str(level.succeeded), *latencies,
            format_token_rate(level), format_request_rate(level),
            format_stage_status(level),
        )  # fmt: skip

    head = (
        FIRST_COLUMN[sweep.axis], "ok", f"{OF_TAGS[first.tag]} p50 (ms)", "p95", "ITL p50 (ms)",
        "p95", token_rate_unit,
        name_request_rate(sweep.axis), "SLO",
    )  # fmt: skip
    return head, map(cells, sweep.levels[begin : begin + MAX_STAGES])


def _arms(paired: PairedComparison, run: Run) -> Iterator[Sequence[str]]:
    figures = [figure for figure in _select_arm_figures(paired, run) if figure.pairs]
    return (cells_of_arms(figure, with_pairs=paired.lacks_pairs) for figure in figures)


def _select_arm_figures(paired: PairedComparison, run: Run) -> list[PairedFigure]:
    return select_main_figures(paired, run.settings.rules.readable).shown


def _aligned(head: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> Iterator[str]:
    """The first column is aligned left, the others right, as many as there is room for. A mark
    after a value hangs over."""
    lines = [head, *rows]
    if len(lines) < 2:
        return
    labels, *columns = [list(map(clean_line, column)) for column in zip(*lines, strict=True)]
    columns = [_hang_marks(column) for column in columns]
    first = min(max(map(len, labels)), width // 2)
    widths = [max(map(len, column)) for column in columns]
    # a column takes its width and the two spaces before it
    ends = accumulate(wide + 2 for wide in widths)
    shown = sum(first + end <= width for end in ends)
    for label, *texts in zip(labels, *columns[:shown], strict=True):
        figures = [text.rjust(wide) for text, wide in zip(texts, widths, strict=False)]
        line = "  ".join([truncate_text(label, first).ljust(first), *figures])
        yield line.rstrip()


def _hang_marks(column: list[str]) -> list[str]:
    """The column with its marks ``*`` hanging over to the right of the values."""
    if not any(text.endswith("*") for text in column):
        return column
    return [text if text.endswith("*") else f"{text} " for text in column]


def _explain_marks(table: list[str], width: int) -> list[str]:
    """The table, with a line on the marks beside its values."""
    marks = ((r"\d\*( |$)", SCARCE_NOTE), (rf"(^| ){INEXACT}\d", INEXACT_NOTE))
    text = "\n".join(table)
    notes = [note for mark, note in marks if re.search(mark, text, re.MULTILINE)]
    return [*table, *_wrapped("; ".join(notes), width)]


# -- runs side by side -----------------------------------------------------------------------------


BETWEEN_RUNS: Final = (
    "What else changed between the runs (time of day, other load, a warm cache) counts as a "
    "difference here. To decide on a build, use locust-llm ab."
)


def format_comparison_ending(compared: Comparison, width: int) -> str:
    """The differences for ``locust-llm compare``, in as many lines."""
    of_failures = OF_FAILURES if may_have_failures(compared) else ""
    # where no run is compared, nothing can count as a difference
    between = "" if all(pair.other_work for pair in compared.runs) else f"{BETWEEN_RUNS} "
    last = _wrapped(
        f"{between}{of_failures} All metrics: --verbose, --markdown FILE.".strip(), width
    )
    room = LINES - len(last) - 1
    if len(compared.runs) == 1:
        parts = [_pair(compared, compared.runs[0], width, room - 1)]
    elif any(pair.axis for pair in compared.runs):
        each = max(1, room // len(compared.runs) - 1)
        parts = [_pair(compared, pair, width, each) for pair in compared.runs]
    else:
        parts = [_list_runs(compared, width, room - 1)]
    return "\n\n".join("\n".join(part) for part in (*parts, last)) + "\n"


def _list_runs(compared: Comparison, width: int, room: int) -> list[str]:
    """A line for each of several runs, with the main values that differ from the base."""
    base, *names = name_folders([compared.base, *(pair.folder for pair in compared.runs)])
    table, keys = _fit_runs(compared, base, names, width)
    warnings = compared.list_simulated()
    warnings += [f"WARNING: {text}" for text in compared.warnings]
    warnings += _name_runs(names, compared.runs)
    others = [
        f"{name}: {'; '.join(texts)}."
        for name, pair in zip(names, compared.runs, strict=True)
        if (texts := list(_list_other_changes(pair, keys)))
    ]
    others += dict.fromkeys(pair.between_runs for pair in compared.runs if pair.between_runs)
    above = _fitting(warnings, width, room - len(table))
    return [*above, *table, *_fitting(others, width, room - len(table) - len(above))]


def _fit_runs(
    compared: Comparison, base_name: str, names: Sequence[str], width: int
) -> tuple[list[str], set[tuple[str, str]]]:
    """(a table of the base and the runs, the values that it has room for)."""
    lines = [line for line in compared.runs[0].lines if (line.metric, line.stat) in MAIN_KEYS]
    table = list[str]()
    while True:
        keys = [(line.metric, line.stat) for line in lines]
        base = [
            f"{get_bound_mark(line) * line.base_open}{format_brief(line.base)}" for line in lines
        ]
        rows = [(base_name, "base", *base)]
        for name, pair in zip(names, compared.runs, strict=True):
            rows.append((name, *_summarise_run(pair, keys)))
        table = _align_all([("", "significant", *(line.label for line in lines)), *rows])
        if not lines or max(map(len, table)) <= width:
            return [truncate_text(line, width) for line in table], set(keys)
        lines.pop()


def _summarise_run(pair: RunPair, keys: Sequence[tuple[str, str]]) -> Iterator[str]:
    """How many of its values differ, and these values with a word where they do."""
    differing = [line for line in pair.lines if _is_different(line)]
    yield "other work" if pair.other_work else f"{len(differing)} of {len(pair.lines)}"
    by_key = {(line.metric, line.stat): line for line in pair.lines}
    for key in keys:
        line = by_key.get(key)
        if line is None:
            yield "-"
        else:
            word = f"{line.word} " if _is_different(line) else ""
            bound = get_bound_mark(line) * line.value_open
            yield f"{word}{bound}{format_brief(line.value)}"


def _list_other_changes(pair: RunPair, keys: Collection[tuple[str, str]]) -> Iterator[str]:
    """The changes of values that have no column, and why there are none."""
    if pair.other_work:
        yield f"not compared, because the workload differs ({pair.other_work})"
    for end in ("better", "worse"):
        labels = [
            line.label
            for line in pair.lines
            if (line.metric, line.stat) not in keys and line.word.split()[-1] == end
        ]
        if labels:
            yield f"{', '.join(labels)} {end}"


def _is_different(line: ComparisonLine) -> bool:
    return line.word.split()[-1] in ("better", "worse")


def _name_runs(names: Sequence[str], pairs: Sequence[RunPair]) -> Iterator[str]:
    """Each warning once, with its runs."""
    runs_of = dict[str, list[str]]()
    for name, pair in zip(names, pairs, strict=True):
        for text in pair.warnings:
            runs_of.setdefault(text, []).append(name)
    for text, runs in runs_of.items():
        named = ", ".join(runs)
        prefix = "" if text.startswith(f"{named}: ") else f"{named}: "  # a folder's own problem
        yield f"WARNING: {prefix}{text}"


def _describe_unseen_changes(known: int, what: str = "metric") -> str:
    """``no significant difference in 13 metrics``: they may differ by less than their intervals."""
    if not known:
        return "no interval is known"
    return f"no significant difference in {format_count(known, what)}"


def _pair(comparison: Comparison, pair: RunPair, width: int, room: int) -> list[str]:
    titles = make_column_titles(comparison.base, pair.folder)
    if pair.axis:
        stages = [stage for stage in pair.stages if stage.lines]
        rows = [
            (f"{pair.axis} {format_stage_value(stage.value)}", stage.lines[0]) for stage in stages
        ]
        level = "limit" if pair.axis == PREFILL else "stage"
        what = f"{rows[0][1].label} by {level}" if rows else f"no {level} in common"
        compared = level
    else:
        rows = [(line.label, line) for line in pair.lines]
        what = ""
        compared = "metric"
    differing = [row for row in rows if _is_different(row[1])]
    changes = [f"{label} {line.word}" for label, line in differing]
    unknown = sum(line.low is None for _, line in rows)
    result = _describe_unseen_changes(len(rows) - unknown, compared)
    if changes:
        result = f"{len(changes)} of {format_count(len(rows), compared)} differ"
    few = sum(line.word == FEW for _, line in rows)
    if few:
        result += f", {few} {FEW}"
    if unknown > few:
        result += f", {unknown - few} cannot be compared"
    if changes:
        result += f": {', '.join(changes)}"
    if pair.other_work:
        result = f"not compared, because the workload differs ({pair.other_work})"
    result = "; ".join(filter(None, (what, result)))
    lines = _wrapped(f"{pair.folder} against {comparison.base}: {result}.", width, MAX_HEADLINE)
    warnings = comparison.list_simulated()
    warnings += [f"WARNING: {text}" for text in (*comparison.warnings, *pair.warnings)]
    if pair.between_runs:
        warnings.append(pair.between_runs)
    lines += _fitting(warnings, width, room - len(lines) - len(MAIN_KEYS) - 1)
    others = [
        (label, line)
        for label, line in rows
        if (label, line) not in differing
        and (pair.axis or (line.metric, line.stat) in (*FROM_DUE_KEYS, *MAIN_KEYS))
    ]
    # each difference that the first line names has its row, however many there are
    free = max(0, room - len(lines) - len(differing) - 1)
    main = [row for row in rows if row in differing or row in others[:free]]
    cells = [(label, *format_line_cells(line)) for label, line in main]
    table = _fit_comparison(titles, cells, width)
    return [*lines, *_explain_marks(table, width)]


def _select_cells(line: Sequence[str], places: Sequence[int]) -> list[str]:
    return [line[place] for place in places]


def _fit_comparison(
    titles: tuple[str, str], rows: Sequence[Sequence[str]], width: int
) -> list[str]:
    """A table that always keeps its last column, the word. As far as needed, the names of the runs
    get shorter. Then the difference, its interval, its percentage, the base and this run are left out."""
    lines = [("", *titles, *HEAD_OF_RUNS), *rows]
    table = _align_all(lines)
    for left_out in (set[int](), {3}, {3, 5}, {3, 4, 5}, {1, 3, 4, 5}, {1, 2, 3, 4, 5}):
        if not table or max(map(len, table)) <= width:
            break
        lines[0] = ("", *SHORT_TITLES, *HEAD_OF_RUNS)
        kept = [i for i in range(len(lines[0])) if i not in left_out]
        table = _align_all([_select_cells(line, kept) for line in lines])
    return [truncate_text(line, width) for line in table]


def _align_all(lines: Sequence[Sequence[str]]) -> list[str]:
    """All columns, however wide they are."""
    return list(_aligned(lines[0], lines[1:], sys.maxsize))


# -- lines -----------------------------------------------------------------------------------------


def _fitting(texts: Iterable[str], width: int, room: int, always: str | None = None) -> list[str]:
    """The lines of these texts as far as there is room, whole and in order. ``always``: the text
    that is there without room, too."""
    lines: list[str] = []
    for text in texts:
        wrapped = _wrapped(text, width)
        if text == always or len(lines) + len(wrapped) <= room:
            lines += wrapped
    return lines


def _fitting_rules(texts: Sequence[str], width: int, room: int) -> list[str]:
    """The lines of the rules that fit, with a last line for any that are left out."""
    lines = _fitting(texts, width, room)
    if len(lines) == sum(len(_wrapped(text, width)) for text in texts):
        return lines
    first = _wrapped(texts[0], width)
    if len(first) == room:  # a rule with its reason says more than the lines behind it
        return first
    fewer = _fitting(texts, width, room - 1)
    return [*fewer, MORE_RULES] if fewer else lines


def _wrapped(text: str, width: int, most: int | None = None) -> list[str]:
    """At most ``most`` lines, with an ellipsis where there would be more. Indented text stays
    indented."""
    text = clean_line(text)
    indent = " " * (len(text) - len(text.lstrip()))
    return textwrap.wrap(
        text, width, max_lines=most, placeholder=" \N{HORIZONTAL ELLIPSIS}",
        subsequent_indent=f"{indent}  ",
        break_on_hyphens=False,
    )  # fmt: skip
