"""Tiles: the head of the page: what was measured, its verdicts as badges and its main values as
tiles."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from locust_llm.records.outcomes import CUT, FAILURES
from locust_llm.records.outcomes import OK as ANSWERED
from locust_llm.records.run_facts import Run
from locust_llm.report.array_types import Floats
from locust_llm.report.document_blocks import OFF_BY_MORE, mark_scarce
from locust_llm.report.open_loop_delivery import describe_span
from locust_llm.report.request_selection import RequestSelection
from locust_llm.report.request_table import RequestTable
from locust_llm.report.sections.ab_comparison import (
    DIFFERENT,
    FAILURE_RATE,
    FROM_DUE,
    SAME,
    PairedComparison,
)
from locust_llm.report.sections.metric_tables import has_lost_many
from locust_llm.report.sections.notes import format_verdict_line
from locust_llm.report.sections.prefill_limit_comparison import WORDS, LimitComparison
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.sections.sweep.knee import describe_levels, format_knee
from locust_llm.report.summary_rows import Row, SweepSummary
from locust_llm.slo.load_generator_health import DEGRADED, INVALID, OK, FigureError
from locust_llm.slo.metric_definitions import (
    BY_NAME,
    ERROR_RATE,
    ITL,
    LATENCIES,
    LATENCY,
    TTFT,
    TTFT_FROM_DUE,
    Metric,
)
from locust_llm.slo.rules import FAIL, INCONCLUSIVE, PASS, SloResult
from locust_llm.text.format import (
    format_brief,
    format_comparison,
    format_count,
    format_date,
    format_duration,
    format_signed,
    name_percentile,
    truncate_text,
)

from .verdict_text import format_value

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
LONGEST_STALL: Final = next(metric for metric in LATENCIES if metric.tag == "longest_stall")
TILE_NAMES: Final = {
    TTFT.tag: "TTFT",
    TTFT_FROM_DUE.tag: "TTFT from due",
    ITL.tag: "ITL",
    LONGEST_STALL.tag: "Longest stall",
    LATENCY.tag: "Latency",
}
SAMPLE_COLUMNS: Final = {
    TTFT.tag: "ttft",
    TTFT_FROM_DUE.tag: "fromdue",
    ITL.tag: "itl",
    LONGEST_STALL.tag: "stall",
    LATENCY.tag: "latency",
}
"""The columns of the request sample."""
DEFAULT_PERCENTS: Final = {LONGEST_STALL.tag: 90.0}
"""The percentile of a tile without a rule; of the others 95."""
MAX_NAMES: Final = 3
MAX_NAME: Final = 20
"""The names of requests with a tile each, and the characters of one."""
ARM_CLASSES: Final = {DIFFERENT: "open", SAME: "pass", INCONCLUSIVE: "open"}


def describe_run_facts(summary: Summary, run: Run) -> Iterator[str]:
    """Model, server, begin, duration."""
    conditions = summary.conditions
    yield from filter(None, (conditions.model, _describe_servers(conditions.server, run)))
    yield format_date(run.started_at)
    if conditions.duration_s is not None:
        yield f"{conditions.duration_s:.0f} s"


def _describe_servers(server: str, run: Run) -> str:
    """The server; of two arms both, where they have different ones."""
    if len({arm.host for arm in run.arms}) < len(run.arms) or not run.arms:
        return server
    return " \N{MIDDLE DOT} ".join(f"{arm.name} {arm.host}" for arm in run.arms)


def make_badges(summary: Summary, run: Run) -> Iterator[tuple[str, str]]:
    """(text, class). A client verdict that has a line of its own below has no badge."""
    has_line = not summary.staged and format_verdict_line(summary, run) is not None
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
    if died := sum(level.died for level in levels):
        yield f"the server died in {died} of {format_count(len(levels), 'stage')}", "loud"
    unsound = sum(not level.sound and not level.silence for level in levels)
    if unsound:
        yield f"client distorted {unsound} of {format_count(len(levels), 'stage')}", "open"
    elif summary.client is not None and not levels and not has_line:
        yield f"client {summary.client.level}", RESULT_CLASSES[summary.client.level]
    if summary.conditions.simulated:
        yield "simulated", "open"


class Tile(NamedTuple):
    """A main figure."""

    name: str
    value: str
    more: str
    kind: str = ""
    """The result of the rule about it: pass, loud or open. Empty: no rule is about it."""
    spoiled: str = ""
    """How far it may be off, where that is more than is fine. Empty: it is not."""
    unusable: bool = False
    """It may be off so far that it must not be used."""
    spark: str = ""
    """The points of its line over time, on a canvas of SPARK_SIZE. Empty: there is none."""


class TileFigure(msgspec.Struct, frozen=True):
    """How static/page.js computes a tile's figure of the requests that a reader chose."""

    name: str
    column: str = ""
    """Its column of the request sample. Empty: ``figure`` is no percentile."""
    percent: float = 0.0
    figure: str = ""
    """A number of ``summarise`` of static/requests.js."""


def make_tiles(summary: Summary, run: Run, requests: RequestTable | None = None) -> Iterator[Tile]:
    """``requests``: the columns of the run, for the lines over time."""
    if summary.examination is not None:
        return (Tile(*tile) for tile in summary.examination.tiles())
    if summary.paired is not None:
        return (Tile(*tile) for tile in _paired_tiles(summary.paired))
    if summary.limits is not None:
        return (Tile(*tile) for tile in _limit_tiles(summary.limits))
    if summary.sweep is not None and summary.swept:
        return (Tile(*tile) for tile in _sweep_tiles(summary.sweep))
    return _run_tiles(summary, run, requests)


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
    advice = str(limits.best) if limits.advises else "no limit advised"
    yield "Prefill limit", advice, f"by {WORDS[limits.objective].label}"
    for row in limits.rows:
        if row.limit is None and row.regret is not None and row.regret_high is not None:
            reach = f"{row.regret_low:.0%} to {row.regret_high:.0%} (95%)"
            yield "Regret without a limit", f"{row.regret:.0%}", reach


def _paired_tiles(paired: PairedComparison) -> Iterator[tuple[str, str, str]]:
    """The candidate's main differences: failures where they differ, then latencies and throughput."""
    failures = [figure for figure in paired.figures if figure.metric == FAILURE_RATE]
    for figure in failures:
        if figure.different and figure.difference is not None:
            yield figure.label, format_signed(figure.difference, 1), figure.word
    first = FROM_DUE if paired.limits_differ else "ttft"
    for figure in paired.figures:
        is_main = figure.stat in ("p50", "p99") and figure.metric in (first, "itl")
        is_main |= (figure.metric, figure.stat) == (LONGEST_STALL.word, "p95")
        if (is_main or figure.metric == "output_tokens_per_s") and figure.percent is not None:
            shown = format_comparison(figure.base, figure.candidate, figure.low, figure.high)
            values = f"{shown.base} \N{RIGHTWARDS ARROW} {shown.value}{'*' * figure.few}"
            yield figure.label, values, f"{format_signed(figure.percent, 1)}%, {figure.word}"


# -- of one load -----------------------------------------------------------------------------------


def choose_percentile(metric: Metric, summary: Summary, run: Run) -> tuple[float, SloResult | None]:
    """(the percentile of the first rule about this metric of all requests, the rule's result)."""
    rules = run.settings.rules.by_text
    for result in summary.slos:
        rule = rules.get(result.rule)
        if rule is None or rule.where or rule.base or rule.metric != metric.word:
            continue
        if rule.percentile is not None:
            return rule.percentile, result
    return DEFAULT_PERCENTS.get(metric.tag, 95.0), None


def find_rule_class(summary: Summary, run: Run, *words: str) -> str:
    """The class of the first rule about one of these measures of all requests."""
    rules = run.settings.rules.by_text
    for result in summary.slos:
        rule = rules.get(result.rule)
        if rule is not None and rule.metric in words and not rule.where and not rule.base:
            return RESULT_CLASSES.get(result.status, "")
    return ""


def choose_first_token(summary: Summary, run: Run) -> Metric:
    """TTFT from due where requests had waits, unless only TTFT has a rule."""
    with_values = {row.tag for row in summary.rows if row.count}
    if not run.has_waits or TTFT_FROM_DUE.tag not in with_values:
        return TTFT
    words = {rule.metric for rule in run.settings.rules.by_text.values() if not rule.where}
    return TTFT if TTFT.word in words and TTFT_FROM_DUE.word not in words else TTFT_FROM_DUE


def list_tile_figures(summary: Summary, run: Run) -> list[TileFigure]:
    """What the page computes where requests are chosen. Empty: it has no such tiles."""
    if summary.examination is not None:
        return []
    figures = list[TileFigure]()
    metrics = [TTFT, ITL, LONGEST_STALL] if run.settings.generates else [LATENCY]
    if run.settings.generates:
        metrics[0] = choose_first_token(summary, run)
    for metric in metrics:
        percent, _ = choose_percentile(metric, summary, run)
        name = f"{TILE_NAMES[metric.tag]} {name_percentile(percent)}"
        figures.append(TileFigure(name, SAMPLE_COLUMNS[metric.tag], percent))
    figures += (
        [TileFigure("Output tokens", figure="tokensPerS")]
        if run.settings.generates
        else [TileFigure("Input tokens", figure="inputPerS")]
    )
    return [
        *figures,
        TileFigure("Requests", figure="requestsPerS"),
        TileFigure("Failed", figure="failed"),
    ]


def _run_tiles(summary: Summary, run: Run, requests: RequestTable | None) -> Iterator[Tile]:
    rows = {row.tag: row for row in summary.rows}
    lines = None if requests is None else SparkLines(requests)
    if TTFT.tag in rows:
        first = choose_first_token(summary, run)
        names = next((found.groups for found in summary.breakdowns if found.of_names), ())
        for group in names[:MAX_NAMES]:  # other work each: together their times are nobody's
            row = next((row for row in group.rows if row.tag == first.tag), None)
            label = f"{TILE_NAMES[first.tag]}, {truncate_text(group.label, MAX_NAME)}"
            yield from _latency_tile(summary, run, first, row, None, label)
        for metric in () if names else (first, ITL, LONGEST_STALL):
            yield from _latency_tile(summary, run, metric, rows.get(metric.tag), lines)
        yield from _rate_tile(summary, run, rows, "output_token_throughput", "Output tokens", lines)
    else:
        yield from _latency_tile(summary, run, LATENCY, rows.get(LATENCY.tag), lines)
        yield from _rate_tile(summary, run, rows, "input_throughput", "Inputs", None)
        yield from _rate_tile(summary, run, rows, "input_token_throughput", "Input tokens", lines)
    yield from _completed_tile(summary, run, rows, lines)
    yield from _failed_tile(summary, run, lines)


def _latency_tile(
    summary: Summary,
    run: Run,
    metric: Metric,
    row: Row | None,
    lines: "SparkLines | None",
    label: str = "",
) -> Iterator[Tile]:
    if row is None or not row.count:
        return
    percent, result = choose_percentile(metric, summary, run)
    if percent not in row.percentiles:
        percent, result = 95.0, None
    others = [p for p in (50.0, 95.0, 99.0) if p != percent and p in row.percentiles]
    more = ", ".join(f"{name_percentile(p)} {_percentile(row, p)}" for p in others)
    more = f"{_describe_other_wait(summary, run, metric, percent)}{more}"
    value = _percentile(row, percent)
    if result is not None and (math.isinf(result.observed or 0.0) or result.worst is not None):
        # the rule counts the requests without an answer
        more = f"of the answered {value}; {more}"
        value = format_value(result)
    error = _find_error(summary, row, metric.word, name_percentile(percent))
    yield Tile(
        name=f"{label or TILE_NAMES[metric.tag]}, {name_percentile(percent)}",
        value=value,
        more=more,
        kind="" if label or result is None else RESULT_CLASSES.get(result.status, ""),
        # no amount is known of a value of too few requests for the client verdict
        spoiled=_describe_error(error) or OFF_BY_MORE * (name_percentile(percent) in row.inexact),
        unusable=error is not None and error.level == INVALID,
        spark="" if lines is None else lines.of_percentile(metric.column, percent),
    )


def _describe_other_wait(summary: Summary, run: Run, metric: Metric, percent: float) -> str:
    """Where requests had waits, a time to the first token from the send beside that from due, and
    the other way round."""
    others = {TTFT.tag: (TTFT_FROM_DUE, "from due"), TTFT_FROM_DUE.tag: (TTFT, "from the send")}
    if not run.has_waits or metric.tag not in others:
        return ""
    other, words = others[metric.tag]
    row = next((row for row in summary.rows if row.tag == other.tag), None)
    if row is None or percent not in row.percentiles:
        return ""
    return f"{words} {_percentile(row, percent)}; "


def _percentile(row: Row, percent: float) -> str:
    return format_duration(row.percentiles[percent] / 1e3) + mark_scarce(row.count or 0, percent)


def _find_error(summary: Summary, row: Row, word: str, statistic: str) -> FigureError | None:
    """How far the figure may be off. None: by no more than is fine."""
    if statistic not in row.inexact:
        return None
    of_figure = (
        error for error in summary.figure_errors if (error.word, error.stat) == (word, statistic)
    )
    return next(of_figure, None)


def _describe_error(error: FigureError | None) -> str:
    """``may be off by 130 ms``."""
    if error is None:
        return ""
    return f"may be off by {format_brief(error.most, f' {error.unit}', 2)}"


def _rate_tile(
    summary: Summary,
    run: Run,
    rows: Mapping[str, Row],
    tag: str,
    name: str,
    lines: "SparkLines | None",
) -> Iterator[Tile]:
    row = rows.get(tag)
    seconds = summary.conditions.duration_s
    if row is None or row.avg is None:
        return
    over = "" if seconds is None else f" over {format_brief(seconds, ' s', 3)}"
    column = "input_tokens" if tag.startswith("input") else "output_tokens"
    yield Tile(
        name=name,
        value=format_brief(row.avg, digits=3),
        more=f"per second{over}",
        kind=find_rule_class(summary, run, BY_NAME[tag].word),
        spoiled=_describe_error(_find_error(summary, row, BY_NAME[tag].word, "")),
        spark="" if lines is None else lines.of_amount(column),
    )


def _completed_tile(
    summary: Summary, run: Run, rows: Mapping[str, Row], lines: "SparkLines | None"
) -> Iterator[Tile]:
    delivery = summary.delivery
    spark = "" if lines is None else lines.of_amount("")
    kind = find_rule_class(summary, run, "completed", "delivered", "requests_per_s")
    good = rows.get("goodput")
    well = "" if good is None or good.avg is None else f"; {format_brief(good.avg, digits=3)} good"
    if delivery is not None:  # as the headline has it
        offered = format_brief(delivery.offered_per_s, digits=2)
        yield Tile(
            "Completed",
            format_brief(delivery.completed_per_s, digits=2),
            f"per second {describe_span(delivery)}, {offered} offered{well}",
            kind,
            spark=spark,
        )
        return
    row = rows.get("request_throughput")
    seconds = summary.conditions.duration_s
    if row is not None and row.avg is not None:
        over = "" if seconds is None else f" over {format_brief(seconds, ' s', 3)}"
        yield Tile(
            "Requests",
            format_brief(row.avg, digits=3),
            f"per second{over}{well}",
            kind,
            spoiled=_describe_error(_find_error(summary, row, "requests_per_s", "")),
            spark=spark,
        )


def _failed_tile(summary: Summary, run: Run, lines: "SparkLines | None") -> Iterator[Tile]:
    """Where many requests were cut, the share of those without an answer: an overloaded server may
    fail none."""
    c = summary.conditions
    spark = "" if lines is None else lines.of_failures()
    if c.cut and has_lost_many(c):
        of = c.requests - c.cancelled
        lost = c.failed + c.cut
        yield Tile(
            "Unanswered",
            f"{format_brief(100 * lost / of, digits=2)}%",
            f"{lost:,} of {of:,}: {c.failed:,} failed, {c.cut:,} cut",
            "loud",
            spark=spark,
        )
    elif c.failure_rate is not None:
        cut_too = f", {c.cut:,} cut" if c.cut else ""
        kind = find_rule_class(summary, run, ERROR_RATE)
        yield Tile(
            "Failed",
            f"{format_brief(100 * c.failure_rate, digits=2)}%",
            f"{c.failed:,} of {c.succeeded + c.failed:,}{cut_too}",
            kind or ("loud" if not c.succeeded else ""),
            spark=spark,
        )


# -- lines over time -------------------------------------------------------------------------------

SPARK_SIZE: Final = (84, 24)
SPARK_BINS: Final = 24
MIN_SPARK_POINTS: Final = 3


class SparkLines:
    """Figures of equal stretches of the profiling phase."""

    def __init__(self, requests: RequestTable) -> None:
        self._main = RequestSelection(requests, requests.has("phase", "profiling"))
        sent, asked = (self._main[name] for name in ("sent_at", "asked_at"))
        at = np.where(np.isnan(sent), asked, sent)
        length = float(np.ptp(at)) if len(at) else 0.0
        place = (at - (at.min() if len(at) else 0.0)) / (length or 1.0) * SPARK_BINS
        self._bins = np.minimum(place.astype(np.int64), SPARK_BINS - 1) if length else None
        self._ok = requests.has("outcome", ANSWERED)[self._main.chosen]

    def of_percentile(self, column: str, percent: float) -> str:
        values = self._main[column]
        usable = self._ok & ~np.isnan(values)
        return self._points(
            lambda here: (
                float(np.percentile(values[here & usable], percent))
                if (here & usable).any()
                else math.nan
            )
        )

    def of_amount(self, column: str) -> str:
        """The sum of a column over the successful requests; without a column, their number."""
        values = self._main[column] if column else self._ok.astype(np.float64)
        return self._points(lambda here: float(np.nansum(values[here & self._ok])))

    def of_failures(self) -> str:
        lost = self._main.requests.has("outcome", *FAILURES, CUT)[self._main.chosen]
        return self._points(lambda here: float((here & lost).sum()))

    def _points(self, value: Callable[[NDArray[np.bool_]], float]) -> str:
        if self._bins is None:
            return ""
        values = np.array([value(self._bins == place) for place in range(SPARK_BINS)])
        return make_spark_points(values)


def make_spark_points(values: Floats) -> str:
    """The points of a polyline; it begins at 0. What is not known is left out."""
    known = ~np.isnan(values)
    if known.sum() < MIN_SPARK_POINTS:
        return ""
    width, height = SPARK_SIZE
    most = float(values[known].max()) or 1.0
    x = np.arange(len(values)) * width / (len(values) - 1)
    y = height - 1 - (height - 2) * np.nan_to_num(values) / most
    return " ".join(f"{x[i]:.1f},{y[i]:.1f}" for i in np.flatnonzero(known))
