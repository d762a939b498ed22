"""History page: history.html shows the workloads of a folder of runs with their charts, in one file
that needs no network."""

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from locust_llm.lab.history.history_entry import KEY_FIGURES
from locust_llm.lab.static_page import render_page as rendered
from locust_llm.report.chart_data.plot_data import Plot
from locust_llm.text.format import format_count

from .change_points import LEAST
from .history_chart import plot_history
from .history_entry import HistoryEntry
from .history_text import format_commit, format_start
from .run_series import FigureChange, RunSeries, explain_doubts, find_figure_changes

OWN: Final = """
body { display: block; max-width: 76rem; }
.plot figcaption p { margin: .15rem 0; }
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
    def changes(self) -> int:
        return sum(len(plot.changes) for plot in self.plots)

    @property
    def last(self) -> str:
        return format_start(self.series.entries[-1])

    @property
    def simulated(self) -> bool:
        return any(entry.simulated for entry in self.series.entries)


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
            plots.append(HistoryPlot(drawn, changes, doubts))
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
