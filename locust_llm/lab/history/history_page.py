"""History page: history.html shows the workloads of a folder of runs with their charts, in one file
that needs no network."""

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from locust_llm.lab.history.history_entry import KEY_FIGURES, KeyFigure
from locust_llm.lab.static_page import render_page as rendered
from locust_llm.report.chart_data.plot_data import Plot
from locust_llm.text.format import format_count, format_date
from locust_llm.trends.change_points import LEAST

from .history_chart import plot_history, trace_sparkline
from .history_entry import HistoryEntry
from .history_text import format_commit, format_start
from .run_series import ENOUGH, FigureChange, RunSeries, explain_doubts, find_figure_changes

OWN: Final = """
body { display: block; max-width: 76rem; }
.plot figcaption p { margin: .15rem 0; }
.workload { border-top: 1px solid var(--line); } .workload:last-of-type { border-bottom: 1px solid var(--line); }
.workload > summary { list-style: none; cursor: pointer; display: grid; align-items: center; gap: .2rem 1.2rem; padding: .6rem .3rem;
  grid-template-columns: minmax(0, 1fr) 7.5rem 8rem 9rem 12rem; font-variant-numeric: tabular-nums; }
.workload > summary::-webkit-details-marker { display: none; }
.workload > summary:hover { background: var(--soft); }
.workload h2 { font-size: 1rem; line-height: 1.35; margin: 0; padding-left: 1.1rem; position: relative; }
.workload h2::before { content: "\\25b8"; position: absolute; left: 0; color: var(--muted); }
.workload[open] > summary h2::before { content: "\\25be"; }
.workload > summary small { display: block; color: var(--muted); font-size: .8rem; font-weight: 400; line-height: 1.35; }
.workload > summary strong { font-size: 1.1rem; font-weight: 650; }
.line { display: block; width: 100%; height: 1.75rem; overflow: visible; }
.line polyline { fill: none; stroke: var(--p50); stroke-width: 1.5; vector-effect: non-scaling-stroke; }
.details { padding: .4rem 0 1.4rem; } .details h3 { font-size: 1rem; }
.details > details > summary { cursor: pointer; padding: .55rem 0; } .details > details h3 { display: inline; }
@media (max-width: 56rem) {
  .workload > summary { grid-template-columns: 7.5rem 1fr 1fr; } .workload h2 { grid-column: 1 / -1; }
  .workload > summary > :last-child { grid-column: 2 / -1; }
}
"""
CLASSES: Final = {
    "PASS": "pass",
    "FAIL": "loud",
    "INCONCLUSIVE": "open",
    "INVALID": "loud",
    "DEGRADED": "open",
}
RECENT: Final = 20
"""Changes within the last runs of a workload, this many, count as new."""


class HistoryPlot(NamedTuple):
    figure: KeyFigure
    drawn: Plot
    changes: list[FigureChange]
    doubts: list[str]


class WorkloadSection(NamedTuple):
    id: str
    title: str
    series: RunSeries
    head: list[str]
    rows: list[list[str]]
    links: list[str]
    """Each row has a link to its report. Empty: the run has none."""
    plots: list[HistoryPlot]

    @property
    def last(self) -> HistoryEntry:
        return self.series.entries[-1]

    @property
    def last_start(self) -> str:
        return format_start(self.last)

    @property
    def run_count(self) -> str:
        return format_count(len(self.series.entries), "run")

    @property
    def leading(self) -> "LeadingFigure | None":
        """The metric of the row: the one that changed last, else the first. None: no run that
        counts has a metric."""
        counted = [plot for plot in self.plots if self.series.of(plot.figure)]
        if not counted:
            return None
        changed = [plot for plot in counted if plot.changes]
        chosen = max(changed, key=_find_last_change, default=counted[0])
        return LeadingFigure(self.series, chosen)

    @property
    def no_figure(self) -> str:
        """What stands in place of it."""
        return "no run counts" if self.plots else "no values"

    @property
    def simulated(self) -> bool:
        return any(entry.simulated for entry in self.series.entries)


class LeadingFigure(NamedTuple):
    """Is the metric that the row of a workload shows."""

    series: RunSeries
    plot: HistoryPlot

    @property
    def label(self) -> str:
        return self.plot.figure.label

    @property
    def values(self) -> list[float]:
        counted = self.series.of(self.plot.figure)
        return [entry.figures[self.plot.figure.name] for entry in counted]

    @property
    def value(self) -> str:
        """The latest value of a run that counts."""
        return self.plot.figure.format_value(self.values[-1], 3)

    @property
    def line(self) -> str:
        return trace_sparkline(self.values)

    @property
    def change(self) -> FigureChange | None:
        return self.plot.changes[-1] if self.plot.changes else None

    @property
    def change_start(self) -> str:
        """The day of the first run after the change."""
        return "" if self.change is None else format_date(self.change.first.started).split()[0]

    @property
    def no_change(self) -> str:
        """What stands where no change is marked."""
        return "no change" if len(self.values) >= ENOUGH else "too few runs for a change"


def _find_last_change(plot: HistoryPlot) -> float:
    return plot.changes[-1].first.started


def render_history_page(
    series: Sequence[RunSeries],
    name: str,
    link: Callable[[HistoryEntry], str],
    least: float = LEAST,
    last: int | None = None,
) -> str:
    """Renders the workloads, the one with the latest run first. ``link`` returns the address of a
    run's report, or an empty text."""
    sections = [
        _section(one_series, f"w{i}", least, last, link)
        for i, one_series in enumerate(reversed(series))
    ]
    plots = chain.from_iterable(section.plots for section in sections)
    return rendered(
        "history.html",
        OWN,
        [plot.drawn for plot in plots],
        title=f"History of {name}",
        sections=sections,
        results=CLASSES,
        headline=_headline(sections),
    )


def _headline(sections: Sequence[WorkloadSection]) -> str:
    runs = sum(len(section.series.entries) for section in sections)
    new = list(chain.from_iterable(_list_new_changes(section) for section in sections))
    better = sum(turn.better for turn in new)
    counts = f"{len(new) - better} worse, {better} better" if new else "none"
    return (
        f"{format_count(runs, 'run')} of {format_count(len(sections), 'workload')}. Changes "
        f"within the last {RECENT} runs: {counts}."
    )


def _list_new_changes(section: WorkloadSection) -> list[FigureChange]:
    since = section.series.entries[-RECENT:][0].started
    changes = chain.from_iterable(plot.changes for plot in section.plots)
    return [turn for turn in changes if turn.first.started >= since]


def _section(
    series: RunSeries,
    name: str,
    least: float,
    last: int | None,
    link: Callable[[HistoryEntry], str],
) -> WorkloadSection:
    plots = []
    for figure in KEY_FIGURES:
        changes = find_figure_changes(series, figure, least)
        drawn = plot_history(series, figure, changes, link, last)
        if drawn is not None:
            doubts = list(explain_doubts(series, figure, changes))
            plots.append(HistoryPlot(figure, drawn, changes, doubts))
    measured = set[str]().union(*(entry.figures for entry in series.entries))
    shown = [figure for figure in KEY_FIGURES if figure.name in measured]
    entries = list(reversed(series.entries[-(last or 0) :]))
    rows = []
    for entry in entries:
        values = [figure.format_value(entry.figures.get(figure.name), 3) for figure in shown]
        cells = list(_cells(entry, values, where=series.has_several_hosts))
        rows.append([*cells, entry.ended] if any(entry.ended for entry in entries) else cells)
    head = [
        "Run",
        "Started",
        *(["Address"] if series.has_several_hosts else []),
        "Commit",
        "Labels",
        *(figure.label for figure in shown),
        "SLO",
        "Client",
        *(["Ended"] if any(entry.ended for entry in entries) else []),
    ]
    conditions = series.conditions or "unknown conditions"
    return WorkloadSection(
        name, conditions, series, head, rows, [link(entry) for entry in entries], plots
    )


def _cells(entry: HistoryEntry, figures: list[str], *, where: bool) -> Iterator[str]:
    labels = ", ".join(f"{key}={value}" for key, value in entry.labels.items())
    yield from (
        entry.folder,
        format_start(entry),
        *([entry.host or "-"] if where else []),
        format_commit(entry),
        labels,
        *figures,
        entry.slo or "-",
        entry.client or "-",
    )


def link_from(page: Path, runs: Path) -> Callable[[HistoryEntry], str]:
    """Returns a function that finds the address of a run's report for a page on the disk."""

    def link(entry: HistoryEntry) -> str:
        report = runs / entry.folder / "report.html"
        return (
            quote(os.path.relpath(report.resolve(), page.resolve().parent))
            if report.is_file()
            else ""
        )

    return link
