"""Page: report.html, the document of a run with its plots, in one file that asks nothing of the network.

Every text is escaped: model names and error messages come from outside. What may run or style the page is named by its hash
in the page's own policy, so that nothing else can.
"""

import html
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from hashlib import sha256
from importlib.resources import files
from statistics import median
from typing import Final

import msgspec

from locust_llm.core.run import Run
from locust_llm.core.text import brief, clean, duration
from locust_llm.probe.diagnosis import CANNOT_TELL
from locust_llm.probe.result import ProbeFindings
from locust_llm.report.analysis.columns import Columns
from locust_llm.report.analysis.occupancy import Occupancy
from locust_llm.report.analysis.summary import Row, Summary, SweepSummary
from locust_llm.report.document.blocks import Block, Heading, Table, Text
from locust_llm.report.document.document import document, titled
from locust_llm.report.document.probe import BESIDE, named
from locust_llm.report.plots.distributions import distributions
from locust_llm.report.plots.model import Limits, Mark, Plot
from locust_llm.report.plots.over_time import over_time
from locust_llm.report.plots.probe import by_length
from locust_llm.report.plots.sweep import ladder
from locust_llm.report.plots.timeline import Scene, Timeline, timeline
from locust_llm.slo.client_verdict import DEGRADED, INVALID, OK, Evidence, signals
from locust_llm.slo.grammar import FAIL, INCONCLUSIVE, PASS, parse
from locust_llm.slo.metrics import BY_WORD, DEFINITIONS, POOLED

RESULTS: Final = {PASS: "pass", FAIL: "loud", INCONCLUSIVE: "open", OK: "pass", DEGRADED: "open", INVALID: "loud"}
"""The classes of what holds a result."""
SCRIPTS: Final = ("uPlot.iife.min.js", "plots.js", "timeline.js")
STYLES: Final = ("uPlot.min.css", "plots.css", "page.css")
METRICS: Final = "Metrics"
STAGES: Final = ("Stages by", "Repeats")
LAST: Final = ("Failures", "Notes")
"""Headings of the document: the plots of the run stand after the first; of a sweep, before one of the last."""
START: Final = """
JSON.parse(document.getElementById("plots").textContent).forEach((plot, i) => {
  plots.add(document.querySelectorAll(".plot .canvas")[i], plot);
});
"""
NO_SCRIPT: Final = "The plots are drawn by a script, which is off. Every figure is in the tables."
ZOOM: Final = "<p class=hint>Drag across a plot to zoom, double-click to come back; its keys hide and show lines.</p>"


def page(
    summary: Summary,
    run: Run,
    columns: Columns,
    levels: Occupancy,
    shown: Scene | None,
    unmade: list[str] | None = None,
) -> str:
    """The whole page. ``shown``: in its timeline. Plots that cannot be drawn are left out, and ``unmade`` gets a line."""
    limits = slo_limits(summary)
    sections = list(_sections(document(summary, run)))
    plots: list[Plot | Timeline] = []

    def figures(
        heading: str, some: Callable[[], Iterable[Plot | Timeline]], kind: str = "", hint: str = ""
    ) -> Iterator[str]:
        first = len(plots)
        try:
            drawn = list(some())
        except Exception as error:
            if unmade is None:
                raise
            unmade.append(f"plots of the page ({heading}) could not be drawn: {type(error).__name__}: {error}")
            return
        plots.extend(drawn)
        if len(plots) > first:
            yield f'<section><h2>{_text(heading)}</h2><div class="plots{kind}">'
            yield from map(_figure, plots[first:])
            yield f"</div>{hint}</section>"

    def curves() -> Iterator[str]:
        if summary.sweep is not None:
            yield from figures("Stage by stage", partial(ladder, summary.sweep, limits))

    def course() -> Iterator[str]:
        if (probe := summary.examination) is not None:  # its load is none that anybody has: no course, no distributions
            yield from figures("By prompt length", partial(by_length, probe.symptoms))
            yield from figures("Timeline", lambda: [timeline(shown)] if shown else [], " stacked")
            return
        yield from figures("Over time", lambda: over_time(columns.requests, levels, run, limits), " stacked", ZOOM)
        yield from figures("Timeline", lambda: [timeline(shown)] if shown else [], " stacked")
        if not summary.swept:  # else what is together was sent under different loads
            yield from figures("Distributions", lambda: distributions(columns, run.settings.open_loop, limits))

    def body() -> Iterator[str]:
        yield _header(summary, run)
        yield f"<noscript><p class=callout>{NO_SCRIPT}</p></noscript>"
        headings = [heading for heading, _ in sections]
        after = 1 + _first(headings, BESIDE if summary.examination is not None else METRICS)
        places = (
            (_first(headings, *LAST) if summary.swept or not after else after, course),
            (_first(headings, *STAGES), curves),
        )
        for i, (heading, blocks) in enumerate(sections):
            for place, plotted in places:
                if i == place:
                    yield from plotted()
            yield f"<section><h2>{_text(heading)}</h2>" if i else "<section>"
            yield from map(_html, blocks)
            yield "</section>"
        yield from _health(summary.evidence)
        yield _section("Definitions", Table(("Word", "Meaning"), tuple(DEFINITIONS.items()), numbers=False))

    content = "\n".join(body())
    data = msgspec.json.encode(plots).decode().replace("<", "\\u003c")
    script, style = _static(SCRIPTS) + START, _static(STYLES)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    )
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>\n"
        f'<meta http-equiv=Content-Security-Policy content="{policy}">\n'
        '<meta name=viewport content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(run.name)}</title>\n<style>{style}</style></head>\n<body>\n{content}\n"
        f"<script type=application/json id=plots>{data}</script>\n<script>{script}</script>\n</body></html>\n"
    )


def slo_limits(summary: Summary) -> Limits:
    """The limits of rules and of their conditions, in ms, by the column they are about (pooled gaps: ``icl``)."""
    found: dict[str, list[Mark]] = {}
    for result in summary.slos:
        try:
            rule = parse(result.rule)
        except ValueError:
            continue  # it says so itself
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


def _sections(blocks: Iterable[Block]) -> Iterator[tuple[str, list[Block]]]:
    """(heading, what stands under it)."""
    heading, under = "", list[Block]()
    for block in blocks:
        if isinstance(block, Heading):
            if heading:
                yield heading, under
            heading, under = block.text, []
        else:
            under.append(block)
    yield heading, under


def _header(summary: Summary, run: Run) -> str:
    c = summary.conditions
    began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(run.started_at))
    about = [c.model, c.server, began, *([] if c.duration_s is None else [f"{c.duration_s:.0f} s"])]
    badges = []
    if (probe := summary.examination) is not None:
        badges.append((probe.diagnosis.name, "open" if probe.diagnosis.name == CANNOT_TELL else "pass"))
    if summary.slo_status is not None:
        badges.append((f"SLO {summary.slo_status}", RESULTS[summary.slo_status]))
    levels = summary.sweep.levels if summary.sweep is not None and summary.swept else ()
    unsound = sum(not level.sound for level in levels)
    if unsound:
        badges.append((f"client not OK in {unsound} of {len(levels)} stages", "open"))
    elif summary.client is not None and not levels:
        badges.append((f"client {summary.client.level}", RESULTS[summary.client.level]))
    if c.simulated:
        badges.append(("simulated", "open"))
    shown = "".join(f"<li class={kind}>{_text(text)}</li>" for text, kind in badges)
    tiles = "".join(
        f"<li><span>{_text(name)}</span><strong>{_text(value)}</strong><small>{_text(more)}</small></li>"
        for name, value, more in _tiles_of(summary)
    )
    return (
        f"<header><h1>{_text(titled(summary, run))}</h1><p>{_text(' · '.join(filter(None, about)))}</p>"
        f"<ul class=badges>{shown}</ul><ul class=tiles>{tiles}</ul></header>"
    )


def _tiles_of(summary: Summary) -> Iterator[tuple[str, str, str]]:
    if summary.examination is not None:
        return _probe_tiles(summary.examination)
    return _tiles(summary) if summary.sweep is None or not summary.swept else _sweep_tiles(summary.sweep)


def _probe_tiles(probe: ProbeFindings) -> Iterator[tuple[str, str, str]]:
    """The scheduler, and what it does to whom."""
    found = probe.symptoms
    name, _, more = named(probe.diagnosis, found).partition(", ")
    yield "Scheduler", name, more
    if stalls := found.of("stall", found.longest):
        longest = median(stall.longest_s for stall in stalls)
        yield "Longest gap, median", duration(longest), f"beside a prompt of {found.longest:,} tokens"
    if found.quiet_s is not None:
        yield "Gap without prompts", duration(found.quiet_s), "mean"
    if found.token_s is not None and found.token_s > 0:
        yield "Prefill", brief(1 / found.token_s, digits=3), "prompt tokens a second, alone"


def _sweep_tiles(sweep: SweepSummary) -> Iterator[tuple[str, str, str]]:
    """Its knees, and the best stages of those that may found a conclusion."""
    for knee in sweep.knees:
        if knee.value is not None:
            yield f"Knee: {knee.rule}", f"{knee.value:.4g}", sweep.unit
    sound = [level for level in sweep.levels if level.sound]
    for name, rates in (
        ("Output tokens, at most", [(level.output_tokens_per_s, level.value) for level in sound]),
        ("Good requests, at most", [(level.goodput_per_s, level.value) for level in sound]),
    ):
        best, at = max(((rate, value) for rate, value in rates if rate is not None), default=(None, 0.0))
        if best is not None:
            yield name, brief(best, digits=3), f"a second, at {at:g} {sweep.unit}"


def _tiles(summary: Summary) -> Iterator[tuple[str, str, str]]:
    """(name, figure, another one beside it) of what people ask first."""
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
            yield name, brief(row.avg, digits=3), "a second"

    yield from latency("time_to_first_token", "TTFT")
    yield from latency("inter_token_latency", "ITL")
    yield from rate(rows.get("output_token_throughput"), "Output tokens")
    yield from rate(rows.get("request_throughput"), "Requests")
    yield from rate(rows.get("goodput"), "Good requests")
    c = summary.conditions
    if c.failure_rate is not None:
        yield "Failed", f"{c.failure_rate:.2%}", f"{c.failed:,} of {c.succeeded + c.failed:,}"


def _health(evidence: Sequence[Evidence]) -> Iterator[str]:
    """What each process of the load generator knows of its own lateness, against the limits of the client verdict."""
    rows = [
        (e.worker, signal.what, brief(signal.value, signal.unit, 3), brief(signal.degraded, signal.unit, 3),
         "-" if signal.invalid == float("inf") else brief(signal.invalid, signal.unit, 3), signal.level)
        for e in evidence for signal in signals(e)
    ]  # fmt: skip
    if rows:
        head = ("Process", "Signal", "Observed", "Degraded above", "Invalid above", "Verdict")
        yield _section("Client health", Table(head, tuple(rows), numbers=False))


def _section(heading: str, *blocks: Block) -> str:
    return f"<section><h2>{_text(heading)}</h2>{''.join(map(_html, blocks))}</section>"


def _figure(plot: Plot | Timeline) -> str:
    return (
        f"<figure class=plot><h3>{_text(plot.title)}</h3>"
        f'<div class=canvas role=img aria-label="{_text(plot.label)}"></div>'
        f"<figcaption>{_text(plot.caption)}</figcaption></figure>"
    )


def _html(block: Block) -> str:
    match block:
        case Heading(text):
            return f"<h2>{_text(text)}</h2>"
        case Text(text, loud):
            return f"<p{' class=callout' if loud else ''}>{_text(text)}</p>"
        case Table(head, rows, numbers):
            names = "".join(f"<th scope=col>{_text(cell)}</th>" for cell in head)
            kind = "numbers" if numbers else "words"
            return (
                f'<div class=wide tabindex=0 role=region aria-label="{_text(head[0])}">'
                f"<table class={kind}><thead><tr>{names}</tr></thead>"
                f"<tbody>{''.join(map(_line, rows))}</tbody></table></div>"
            )


def _line(cells: Sequence[str]) -> str:
    def cell(text: str) -> str:
        return f"<td class={RESULTS[text]}>{_text(text)}</td>" if text in RESULTS else f"<td>{_text(text)}</td>"

    return f"<tr><th scope=row>{_text(cells[0])}</th>{''.join(map(cell, cells[1:]))}</tr>\n"


@cache
def _static(names: Sequence[str]) -> str:
    folder = files("locust_llm").joinpath("static")
    return "\n".join(folder.joinpath(name).read_text("utf-8") for name in names)


def _hash(text: str) -> str:
    """As a Content-Security-Policy names an inline script or style (CSP Level 3, hash-source)."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _text(text: str) -> str:
    return html.escape(clean(text))
