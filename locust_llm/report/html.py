"""Page: report.html, the document of a run with its plots, in one file that needs no network.

templates/report.html is its form. Every text is escaped: model names and error messages come from outside. The page's
own policy names its script and style by hash, so nothing else can run.
"""

import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from hashlib import sha256
from importlib.resources import files
from statistics import median
from typing import Any, Final, NamedTuple

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from locust_llm.core.engine_metrics import History
from locust_llm.core.run import Run
from locust_llm.core.text import brief, clean, duration, many
from locust_llm.probe.diagnosis import CANNOT_TELL
from locust_llm.probe.result import ProbeFindings
from locust_llm.report.analysis.columns import Columns
from locust_llm.report.analysis.occupancy import Occupancy
from locust_llm.report.analysis.summary import Row, Summary, SweepSummary
from locust_llm.report.document.blocks import Block, Heading, Table
from locust_llm.report.document.document import document, titled
from locust_llm.report.document.probe import BESIDE_HEADING, named
from locust_llm.report.paired_result import DIFFERENT, SAME, Paired
from locust_llm.report.paired_result import INCONCLUSIVE as UNDECIDED
from locust_llm.report.plots.distributions import distributions
from locust_llm.report.plots.model import Limits, Mark, Plot
from locust_llm.report.plots.over_time import over_time, stretch
from locust_llm.report.plots.probe import by_length
from locust_llm.report.plots.server import server_plots
from locust_llm.report.plots.sweep import stage_plots
from locust_llm.report.plots.timeline import Scene, Timeline, timeline
from locust_llm.report.plots.timeline_svg import fragment
from locust_llm.slo.client_verdict import DEGRADED, INVALID, OK, Evidence, signals
from locust_llm.slo.grammar import FAIL, INCONCLUSIVE, PASS, Rule
from locust_llm.slo.metrics import BY_WORD, DEFINITIONS, POOLED

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
"""CSS classes of results."""
ARM_CLASSES: Final = {DIFFERENT: "open", SAME: "pass", UNDECIDED: "open"}
SCRIPTS: Final = ("uPlot.iife.min.js", "plots.js", "timeline.js")
STYLES: Final = ("uPlot.min.css", "plots.css", "page.css")
METRICS_HEADING: Final = "Metrics"
STAGES_HEADINGS: Final = ("Stages by", "Repeats")
LAST_HEADINGS: Final = ("Failures", "Notes")
"""The plots of a run come after the first heading; those of a sweep before one of the last."""
START_SCRIPT: Final = """
const boxes = document.querySelectorAll(".canvas:not(.lines)");
JSON.parse(document.getElementById("plots").textContent).forEach((plot, i) => plots.add(boxes[i], plot));
document.querySelectorAll(".lines").forEach(plots.timeline);
"""
ZOOM_HINT: Final = (
    "Drag across a plot to zoom in, double-click to zoom out. Click a legend entry to hide or show its line."
)


class Section(NamedTuple):
    """A heading with what is under it: blocks of the document, or plots."""

    heading: str
    blocks: Sequence[Block] = ()
    plots: Sequence[tuple[Plot | Timeline, Markup | None]] = ()
    """With its drawing, or None where plots.js draws it."""
    stacked: bool = False
    hint: str = ""


def page(
    summary: Summary,
    run: Run,
    columns: Columns,
    levels: Occupancy,
    shown: Scene | None,
    unmade: list[str] | None = None,
    history: History | None = None,
) -> str:
    """The whole page. ``shown``: in its timeline; ``history``: of the server's metrics. Plots that cannot be drawn are left
    out, and ``unmade`` gets a line."""
    limits = slo_limits(summary, run.settings.rules.by_text)

    def figures(
        heading: str, some: Callable[[], Iterable[Plot | Timeline]], *, stacked: bool = False, hint: str = ""
    ) -> Iterator[Section]:
        try:
            plots = [(one, _drawn(one)) for one in some()]
        except Exception as error:
            if unmade is None:
                raise
            unmade.append(f"the plots of {heading} could not be drawn: {type(error).__name__}: {error}")
            return
        if plots:
            yield Section(heading, plots=plots, stacked=stacked, hint=hint)

    def by_stage() -> Iterator[Section]:
        if summary.sweep is not None:
            yield from figures("Stage by stage", partial(stage_plots, summary.sweep, limits))

    def of_the_run() -> Iterator[Section]:
        lines = figures("Timeline", lambda: [timeline(shown)] if shown else [], stacked=True)
        if (probe := summary.examination) is not None:  # its load is artificial: no plots over time, no distributions
            yield from figures("By prompt length", partial(by_length, probe.symptoms))
            yield from lines
            return
        over = partial(over_time, columns.requests, levels, run, limits)
        yield from figures("Over time", over, stacked=True, hint=ZOOM_HINT)
        if history is not None:
            yield from figures("Server", lambda: server_plots(history, stretch(columns.requests, run)), stacked=True)
        yield from lines
        if not summary.swept:  # its stages have different loads
            yield from figures("Distributions", lambda: distributions(columns, run.settings.open_loop, limits))

    text = list(_sections(document(summary, run)))
    headings = [section.heading for section in text]
    text[0] = text[0]._replace(heading="")  # the header has it
    after = 1 + _first(headings, BESIDE_HEADING if summary.examination is not None else METRICS_HEADING)
    places = (
        (_first(headings, *LAST_HEADINGS) if summary.swept or not after else after, of_the_run),
        (_first(headings, *STAGES_HEADINGS), by_stage),
    )
    sections: list[Section] = []
    for i, section in enumerate(text):
        for place, plotted in places:
            if i == place:
                sections += plotted()
        sections.append(section)
    definitions = Table(("Term", "Meaning"), tuple(DEFINITIONS.items()), numbers=False)
    sections += [*_health(summary.evidence), Section("Definitions", [definitions])]
    return _written(summary, run, sections)


def _written(summary: Summary, run: Run, sections: Sequence[Section]) -> str:
    described = [plot for section in sections for plot, drawn in section.plots if drawn is None]
    data = msgspec.json.encode(described).decode().replace("<", "\\u003c")
    script, style = _static(SCRIPTS) + START_SCRIPT, _static(STYLES)
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}"
    policy += "; base-uri 'none'; form-action 'none'"
    template = _templates().get_template("report.html")
    return template.render(
        name=run.name,
        title=titled(summary, run),
        about=" \N{MIDDLE DOT} ".join(_about(summary, run)),
        badges=list(_badges(summary)),
        tiles=list(_tiles_of(summary)),
        sections=sections,
        results=RESULT_CLASSES,
        data=Markup(data),
        script=Markup(script),
        style=Markup(style),
        policy=Markup(policy),
    )


def _drawn(plot: Plot | Timeline) -> Markup | None:
    return Markup(fragment(plot, plot.label)) if isinstance(plot, Timeline) else None


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("locust_llm.report"), autoescape=True, finalize=_clean, undefined=StrictUndefined,
        keep_trailing_newline=True,
    )  # fmt: skip


def _clean(value: Any) -> Any:
    """Of what a template writes: a text without control or direction characters, before it is escaped."""
    return clean(value) if type(value) is str else value


def slo_limits(summary: Summary, rules: Mapping[str, Rule]) -> Limits:
    """The limits of the judged rules and of their conditions, in ms, by the column they are about (pooled gaps: ``icl``).
    ``rules``: by canonical form."""
    found: dict[str, list[Mark]] = {}
    for result in summary.slos:
        if (rule := rules.get(result.rule)) is None:
            continue
        about = rule.given or (() if rule.where or rule.base else (rule,))
        for limited in about:
            measure = BY_WORD[limited.metric]
            if measure.metric is not None and measure.metric.unit == "ms":
                column = "icl" if measure.tag == POOLED else measure.metric.column
                mark = Mark(str(limited), y=limited.limit * 1e3, hue="slo")
                if mark not in found.setdefault(column, []):
                    found[column].append(mark)
    return {column: tuple(marks) for column, marks in found.items()}


def _first(headings: Sequence[str], *beginnings: str) -> int:
    """The place of the first that begins so; -1: none does."""
    return next((i for i, heading in enumerate(headings) if i and heading.startswith(beginnings)), -1)


def _sections(blocks: Iterable[Block]) -> Iterator[Section]:
    heading, under = "", list[Block]()
    for block in blocks:
        if isinstance(block, Heading):
            if heading:
                yield Section(heading, under)
            heading, under = block.text, []
        else:
            under.append(block)
    yield Section(heading, under)


def _about(summary: Summary, run: Run) -> Iterator[str]:
    """Model, server, begin, duration."""
    c = summary.conditions
    yield from filter(None, (c.model, c.server))
    yield time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(run.started_at))
    if c.duration_s is not None:
        yield f"{c.duration_s:.0f} s"


def _badges(summary: Summary) -> Iterator[tuple[str, str]]:
    """(text, class)."""
    if (probe := summary.examination) is not None:
        yield probe.diagnosis.name, "open" if probe.diagnosis.name == CANNOT_TELL else "pass"
    if summary.paired is not None:
        yield summary.paired.verdict.lower(), ARM_CLASSES[summary.paired.verdict]
    if summary.slo_status is not None:
        yield f"SLO {summary.slo_status}", RESULT_CLASSES[summary.slo_status]
    levels = summary.sweep.levels if summary.sweep is not None and summary.swept else ()
    unsound = sum(not level.sound for level in levels)
    if unsound:
        yield f"client not OK in {unsound} of {many(len(levels), 'stage')}", "open"
    elif summary.client is not None and not levels:
        yield f"client {summary.client.level}", RESULT_CLASSES[summary.client.level]
    if summary.conditions.simulated:
        yield "simulated", "open"


def _tiles_of(summary: Summary) -> Iterator[tuple[str, str, str]]:
    if summary.examination is not None:
        return _probe_tiles(summary.examination)
    if summary.paired is not None:
        return _paired_tiles(summary.paired)
    return _tiles(summary) if summary.sweep is None or not summary.swept else _sweep_tiles(summary.sweep)


def _probe_tiles(probe: ProbeFindings) -> Iterator[tuple[str, str, str]]:
    """The scheduler and its main figures."""
    found = probe.symptoms
    name, _, more = named(probe.diagnosis, found).partition(", ")
    yield "Scheduler", name, more
    if stalls := found.of("stall", found.longest):
        longest = median(stall.longest_s for stall in stalls)
        yield "Longest gap, median", duration(longest), f"beside a prompt of {found.longest:,} tokens"
    if found.quiet_s is not None:
        yield "Gap without prompts", duration(found.quiet_s), "mean"
    if found.token_s is not None and found.token_s > 0:
        yield "Prefill", brief(1 / found.token_s, digits=3), "prompt tokens per second, alone"


def _sweep_tiles(sweep: SweepSummary) -> Iterator[tuple[str, str, str]]:
    """Its knees and the best of the valid stages."""
    for knee in sweep.knees:
        if knee.value is not None:
            yield f"Knee: {knee.rule}", brief(knee.value, digits=3), sweep.unit
    sound = [level for level in sweep.levels if level.sound]
    for name, rates in (
        ("Output tokens, best", [(level.output_tokens_per_s, level.value) for level in sound]),
        ("Good requests, best", [(level.goodput_per_s, level.value) for level in sound]),
    ):
        best, at = max(((rate, value) for rate, value in rates if rate is not None), default=(None, 0.0))
        if best is not None:
            yield name, brief(best, digits=3), f"per second, at {at:g} {sweep.unit}"


def _paired_tiles(found: Paired) -> Iterator[tuple[str, str, str]]:
    """By how much the candidate differs in what people ask first."""
    for figure in found.figures:
        shown = figure.stat in ("p50", "p99") and figure.metric in ("ttft", "itl")
        if (shown or figure.metric == "output_tokens_per_s") and figure.percent is not None:
            yield figure.label, f"{figure.percent:+.1f}%", figure.word


def _tiles(summary: Summary) -> Iterator[tuple[str, str, str]]:
    """(name, figure, detail) of the main figures."""
    rows = {row.tag: row for row in summary.rows}

    def latency(tag: str, name: str) -> Iterator[tuple[str, str, str]]:
        row = rows.get(tag)
        if row and row.count:
            yield (
                f"{name}, median",
                duration(row.percentiles[50.0] / 1e3),
                f"p99 {duration(row.percentiles[99.0] / 1e3)}",
            )

    def rate(row: Row | None, name: str) -> Iterator[tuple[str, str, str]]:
        if row and row.avg is not None:
            yield name, brief(row.avg, digits=3), "per second"

    yield from latency("time_to_first_token", "TTFT")
    yield from latency("inter_token_latency", "ITL")
    yield from rate(rows.get("output_token_throughput"), "Output tokens")
    yield from rate(rows.get("request_throughput"), "Requests")
    yield from rate(rows.get("goodput"), "Good requests")
    c = summary.conditions
    if c.failure_rate is not None:
        yield "Failed", f"{c.failure_rate:.2%}", f"{c.failed:,} of {c.succeeded + c.failed:,}"


def _health(evidence: Sequence[Evidence]) -> Iterator[Section]:
    """The delays of each process of the load generator, against the limits of the client verdict."""
    rows = [
        (e.worker, signal.what, brief(signal.value, signal.unit, 3), brief(signal.degraded, signal.unit, 3),
         "-" if signal.invalid == float("inf") else brief(signal.invalid, signal.unit, 3), signal.level)
        for e in evidence for signal in signals(e)
    ]  # fmt: skip
    if rows:
        head = ("Process", "Signal", "Observed", "Degraded above", "Invalid above", "Verdict")
        yield Section("Client health", [Table(head, tuple(rows), numbers=False)])


@cache
def _static(names: Sequence[str]) -> str:
    folder = files("locust_llm").joinpath("static")
    return "\n".join(folder.joinpath(name).read_text("utf-8") for name in names)


def _hash(text: str) -> str:
    """As a Content-Security-Policy names an inline script or style (CSP Level 3, hash-source)."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
