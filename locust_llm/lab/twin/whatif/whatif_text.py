"""What-if text: formats what-ifs as a document and as JSON: the top rows, the best, the run that
would decide."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

import msgspec

from locust_llm.lab.twin.twin_model import VERDICTS, NamedTrust, Twin
from locust_llm.lab.twin.twin_prediction import PredictedValue
from locust_llm.lab.twin.whatif.whatif_rows import (
    MET,
    NOT_MET,
    OPEN,
    SHOWN,
    THROUGHPUT,
    WAIT,
    Rival,
    WhatIfRow,
    best_what_if,
    figure_of_rule,
    judge_answer,
    make_run_commands,
    select_frontier,
    top_rows,
)
from locust_llm.report.document_blocks import Block, Heading, Headline, TableBlock, TextBlock
from locust_llm.slo.rules import Rule
from locust_llm.text.format import decimal_places, format_count

COLUMNS: Final = 4
"""The table has these figures."""
USUAL: Final = ("ttft p50", "ttft p95", "itl p99", "stall p95")
NAMES: Final = {
    "ttft": "TTFT", "ttft_from_due": "TTFT from due", "itl": "ITL", "stall": "longest stall",
    "request_latency": "latency", THROUGHPUT: "tokens/s",
}  # fmt: skip
MARK: Final = "extrapolated"
MOST_NOTES: Final = 6


class WhatIfReport(NamedTuple):
    """Holds the questions and the results of a prediction."""

    twin: Twin
    name: str
    """This is the name of the twin's file."""
    workload: str
    rules: tuple[Rule, ...]
    rows: Sequence[WhatIfRow]
    """The list has all rows."""
    left_out: Mapping[str, Sequence[str]]
    """Each reason has the names of the impossible settings."""
    too_far: Sequence[str]
    """The twin has no prediction for these loads."""
    rival: Rival | None
    words: tuple[str, ...]
    """These options of run describe the workload."""
    shape: bool


def whatif_document(report: WhatIfReport) -> Iterator[Block]:
    yield Heading(f"What if: {report.name}")
    yield Headline(whatif_headline(report))
    yield TextBlock(whatif_subtitle(report))
    yield whatif_table(report, select_shown_rows(report))
    for note in whatif_notes(report):
        yield TextBlock(note)
    yield from decision_blocks(report)


def select_shown_rows(report: WhatIfReport) -> Sequence[WhatIfRow]:
    return report.rows[:SHOWN] if report.shape else top_rows(report.rows)[:SHOWN]


def whatif_headline(report: WhatIfReport) -> str:
    if report.shape:
        return (
            "This twin is good for relative changes only. Each value is relative to the fitted "
            "settings at the same load, and no SLO is judged."
        )
    if not report.rules:
        return (
            "No SLO was given (--slo), so no what-if is the best. The top rows have the highest "
            "throughput for their TTFT."
        )
    first = best_what_if(report.rows)
    if first is None:
        return "No what-if is within the SLO."
    sure = "" if first.status == MET else ", where it is open whether the SLO is met"
    marked = f" ({MARK}: {'; '.join(first.beyond)})" if first.beyond else ""
    return (
        f"Best within the SLO: {first.case.name} at {first.case.what_if.load.label}, "
        f"{format_predicted('throughput', first.answers[THROUGHPUT])} tokens/s{sure}{marked}."
    )


def whatif_subtitle(report: WhatIfReport) -> str:
    trust = report.twin.trust
    error = (
        ""
        if trust.error is None
        else f", off by {trust.error:.0%} (median) on loads kept out of its fit"
    )
    rules = f" SLO: {'; '.join(map(str, report.rules))}." if report.rules else ""
    keys = report.rows[0].case.keys
    settings = f" Settings: {', '.join(keys)}." if keys else ""
    return (
        f"The twin is {VERDICTS.get(trust.verdict, trust.verdict)}{error}. "
        f"{format_count(len(report.rows), 'what-if')}, "
        f"{report.workload}.{rules}{settings} In brackets: 95% intervals, of the fit and of the "
        f"model's own error."
    )


def whatif_columns(report: WhatIfReport) -> tuple[str, ...]:
    """Returns the columns with the figures of the rules first. Behind a gate, TTFT includes the
    wait at the gate."""
    gated = any(row.case.what_if.prefill_limit < float("inf") for row in report.rows)
    usual = [figure.replace("ttft ", "ttft_from_due ") if gated else figure for figure in USUAL]
    found = dict.fromkeys((*map(figure_of_rule, report.rules), *usual))
    found.pop(THROUGHPUT, None)
    return (*tuple(found)[: COLUMNS - 1], THROUGHPUT)


def whatif_table_head(report: WhatIfReport) -> tuple[str, ...]:
    return (
        "Settings",
        "Load",
        *(figure_title(figure, report.shape) for figure in whatif_columns(report)),
        "SLO",
    )


def whatif_table(report: WhatIfReport, rows: Sequence[WhatIfRow]) -> TableBlock:
    return TableBlock(whatif_table_head(report), tuple(whatif_cells(report, row) for row in rows))


def whatif_cells(report: WhatIfReport, row: WhatIfRow) -> tuple[str, ...]:
    figures = []
    for figure in whatif_columns(report):
        if row.falls_behind and figure != THROUGHPUT:
            figures.append("grows")
        elif figure in row.answers:
            figures.append(format_predicted(figure, row.answers[figure], report.shape))
        else:
            figures.append("-")
    marked = ", ".join(filter(None, (row.status, MARK if row.beyond else "")))
    return row.case.values, row.case.what_if.load.label, *figures, marked or "-"


def figure_title(figure: str, shape: bool) -> str:
    """Formats a title, such as ``TTFT p95 (ms)``."""
    metric, _, statistic = figure.partition(" ")
    unit = "" if figure == THROUGHPUT or "/s" in figure else "ms"
    if shape:
        unit = "times"
    name = f"{NAMES.get(metric, metric)} {statistic}".strip()
    return f"{name} ({unit})" if unit else name


def format_predicted(figure: str, answer: PredictedValue, shape: bool = False) -> str:
    """Formats a value, such as ``482 [450, 520]``, in ms or per second. A shape has multiples."""
    factor = 1.0 if shape or figure == THROUGHPUT or "/s" in figure else 1e3
    low = answer.low * factor
    middle = answer.about * factor
    high = answer.high * factor
    digits = 2
    if not shape:
        by_size = (high < 10) + (high < 100)
        digits = min(by_size, decimal_places((high - low) / 2) or 0)
    return f"{middle:,.{digits}f} [{low:,.{digits}f}, {high:,.{digits}f}]"


def whatif_notes(report: WhatIfReport) -> Iterator[str]:
    """Yields notes on these answers: extrapolations, unknowns, and omitted what-ifs."""
    rows = select_shown_rows(report)
    beyond = describe_extrapolations(rows, (whatif_columns(report)[0], THROUGHPUT))
    if beyond:
        more = f"; and {len(beyond) - MOST_NOTES} more" if len(beyond) > MOST_NOTES else ""
        yield (
            f"Extrapolated, outside of the fitted range (the widest 95% intervals): "
            f"{'; '.join(beyond[:MOST_NOTES])}{more}."
        )
    for what in dict.fromkeys(chain.from_iterable(row.unknown for row in rows)):
        yield f"Unknown of this server, and it matters here: {what}."
    if any(row.falls_behind for row in rows):
        yield (
            "'grows': more requests come than are completed, so waits grow as long as the load "
            "lasts."
        )
    if any(row.case.what_if.prefill_limit < float("inf") for row in rows):
        yield (
            "TTFT from due starts before the wait for a prefill slot of the load generator. TTFT "
            "starts at the send, as in run."
        )
    if len(report.rows) > len(rows):
        yield f"The top {len(rows)} of {len(report.rows):,} what-ifs; --json has all of them."
    if report.left_out:
        reasons = [f"{_named(names)}: {why}" for why, names in report.left_out.items()]
        more = f"; and {len(reasons) - MOST_NOTES} more" if len(reasons) > MOST_NOTES else ""
        yield f"Left out, because no server can run with these settings: {'; '.join(reasons[:MOST_NOTES])}{more}."
    if report.too_far:
        yield f"Left out, because they are too far outside of the fitted range: {'; '.join(report.too_far)}."


def describe_extrapolations(rows: Sequence[WhatIfRow], figures: Sequence[str]) -> list[str]:
    """Describes where these rows exceed the fitted range, and their intervals there: ``64 users (up
    to 32 were measured), TTFT p95 ±24%, tokens/s ±9%``."""
    widest = dict[str, dict[str, float]]()
    for row in rows:
        for what in row.beyond:
            widths = widest.setdefault(what, {})
            for figure in figures:
                if figure in row.answers and not row.falls_behind:
                    width = row.answers[figure].plus_minus
                    widths[figure] = max(width, widths.get(figure, 0.0))
    found = list[str]()
    for what, widths in widest.items():
        words = [f"{_name(figure)} ±{width:.0%}" for figure, width in widths.items()]
        found.append(", ".join([what, *words]))
    return found


def _name(figure: str) -> str:
    """Names a figure without its unit."""
    return figure_title(figure, False).partition(" (")[0]


def _named(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def decision_blocks(report: WhatIfReport) -> Iterator[Block]:
    """Suggests the next run if two settings are not distinguished."""
    found = report.rival
    if found is None:
        return
    yield Heading("Suggested next run")
    yield TextBlock(explain_rival(found))
    for server, line in make_run_commands(found, report.words):
        yield TextBlock(f"server {server}: {line}")


def explain_rival(found: Rival) -> str:
    one, other = found.best, found.other
    more = "more" if found.difference > 0 else "less"
    return (
        f"{one.case.name} at {one.case.what_if.load.label} and {other.case.name} at "
        f"{other.case.what_if.load.label} are not "
        f"distinguished: {format_predicted(THROUGHPUT, one.answers[THROUGHPUT])} and "
        f"{format_predicted(THROUGHPUT, other.answers[THROUGHPUT])} tokens/s"
        f"{_open(one, other)}. They differ most against their uncertainty at {found.load.label}: "
        f"{_name(found.figure)} of {other.case.name} is "
        f"{abs(found.difference):.0%} {more}, "
        f"{found.sigmas:.1f} standard errors. Measure both there:"
    )


def _open(one: WhatIfRow, other: WhatIfRow) -> str:
    opened = [row.case.name for row in (one, other) if row.status == OPEN]
    return f", and it is open whether {' and '.join(opened)} is within the SLO" if opened else ""


STATUS_CLASSES: Final = {MET: "pass", NOT_MET: "loud", OPEN: "open"}


# -- JSON ------------------------------------------------------------------------------------------
# What-ifs for machines.

WHATIF_SCHEMA: Final = 1


class LoadOfWhatIf(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The load of a what-if: users of a closed loop, or a rate."""

    concurrency: int | None = None
    """The number of users, each with one open request. Missing: the load is a rate."""
    request_rate: float | None = msgspec.field(name="request-rate", default=None)
    """The rate in requests per second. Missing: the load has users."""


class PredictedWhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The prediction for one load with one combination of settings."""

    load: LoadOfWhatIf
    """The load that is sent."""
    chosen: dict[str, str] = msgspec.field(name="set")
    """The settings of ``--set``, each with its value."""
    answers: dict[str, tuple[float | None, float | None, float | None]]
    """The low end of the 95 % interval, the value and the high end, by figure. Times are in seconds
    and rates per second; with ``relative_to_fitted`` all are multiples. null: not finite."""
    rules: dict[str, str]
    """``met``, ``open`` or ``not met`` for each SLO rule. Empty for a twin that is good for shape
    only."""
    status: str | None
    """The worst result of the rules that decide. null: no rule was judged."""
    falls_behind: bool
    """The server completes fewer requests than arrive, so waits grow without end."""
    extrapolated: tuple[str, ...]
    """Loads and settings outside the measured ones."""
    unknown: tuple[str, ...]
    """Properties of the server that are unknown and matter here."""
    frontier: bool
    """No other what-if has more throughput and a lower latency."""
    rough: bool
    """Only some models of the twin were simulated, so the interval is rough."""


class NextRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that would decide between the best settings and the next best ones."""

    server: str
    """The settings that the server needs."""
    command: str
    """The command line of the run."""


class PredictionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The output of ``locust-llm twin predict --json``."""

    schema: int = WHATIF_SCHEMA
    """The version of this format."""
    twin: NamedTrust
    """The twin that predicts."""
    relative_to_fitted: bool
    """The twin is good for shape only: each answer is a multiple of the fitted settings' figure at
    the same load."""
    rules: tuple[str, ...]
    """The SLO rules."""
    what_ifs: tuple[PredictedWhatIf, ...]
    """Every load with every combination of settings, in the given order."""
    best: int | None
    """The number of the best what-if within the rules, counted from 0. null: there is none."""
    left_out: tuple[str, ...]
    """The what-ifs without a prediction, each with the reason."""
    next_runs: tuple[NextRun, ...]
    """Two runs that would decide between settings that are not distinguished. Empty: the best ones
    are distinguished."""


def what_ifs_as_json(report: WhatIfReport) -> PredictionResult:
    """Returns every what-if in the given order, with each answer as (low, about, high), in seconds
    or per second. A twin good for shape only gives multiples of the fitted settings' figures."""
    on_frontier = set()
    if not report.shape:
        frontier = select_frontier(report.rows, choose_frontier_axis(report))
        on_frontier = {row.case for row in frontier}
    first = None if report.shape else best_what_if(report.rows)
    cases = [row.case for row in report.rows]
    left_out: list[str] = []
    for why, names in report.left_out.items():
        left_out += [f"{name}: {why}" for name in names]
    commands = make_run_commands(report.rival, report.words) if report.rival else ()
    trust = report.twin.trust
    return PredictionResult(
        twin=NamedTrust(file=report.name, verdict=trust.verdict, error=trust.error),
        relative_to_fitted=report.shape,
        rules=tuple(str(rule) for rule in report.rules),
        what_ifs=tuple(_row(report, row, row.case in on_frontier) for row in report.rows),
        best=None if first is None else cases.index(first.case),
        left_out=(*left_out, *report.too_far),
        next_runs=tuple(NextRun(server=server, command=line) for server, line in commands),
    )


def choose_frontier_axis(report: WhatIfReport) -> str:
    """Returns the figure that the frontier compares with throughput: the one of the first rule on a
    latency."""
    figures = (figure_of_rule(rule) for rule in report.rules if rule.less_is_better)
    return next(figures, WAIT)


def _row(report: WhatIfReport, row: WhatIfRow, on_frontier: bool) -> PredictedWhatIf:
    load = row.case.what_if.load
    answers = {}
    for name, (low, about, high) in row.answers.items():
        answers[name] = (_number(low), _number(about), _number(high))
    judged = () if report.shape else report.rules
    return PredictedWhatIf(
        load=LoadOfWhatIf(concurrency=load.users)
        if load.users
        else LoadOfWhatIf(request_rate=load.rate),
        chosen=dict(row.case.chosen),
        answers=answers,
        rules={str(rule): judge_answer(rule, row.answers) for rule in judged},
        status=row.status or None,
        falls_behind=row.falls_behind,
        extrapolated=tuple(row.beyond),
        unknown=tuple(row.unknown),
        frontier=on_frontier,
        rough=row.rough,
    )


def _number(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None
