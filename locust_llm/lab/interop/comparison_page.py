"""Runs page: compares run folders with the first of them, with intervals of the differences and an
audit of each. Imported runs are such folders too."""

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from locust_llm.lab.static_page import render_page as rendered
from locust_llm.records.run_facts import SIMULATED
from locust_llm.report.chart_data.overlaid_runs import HUES, RunOverlay
from locust_llm.report.chart_data.plot_data import Plot, PlotAxis, PlotSeries
from locust_llm.report.compare.condition_differences import LoadedRun
from locust_llm.report.compare.forest_plot import describe_differences, describe_forest, draw_forest
from locust_llm.report.document_blocks import TextBlock
from locust_llm.report.run_comparison import (
    NOTES,
    Comparison,
    ComparisonLine,
    RunPair,
    format_line_cells,
    format_stage_value,
    has_different_loads,
    has_waits,
    list_differences,
    make_pair_blocks,
)
from locust_llm.text.format import clean_line

from . import read_foreign_results
from .load_metrics import Figures
from .side_by_side import audit_columns, clean_rows, list_conditions, number_equal_titles

OWN: Final = """
body { display: block; max-width: 90rem; }
.plots { grid-template-columns: repeat(auto-fit, minmax(min(100%, 34rem), 1fr)); }
tbody th { position: sticky; left: 0; background: var(--back); }
td small { display: block; color: var(--muted); } td small.pass { color: var(--ok); } td small.loud { color: var(--fail); }
@media (max-width: 40rem) { .numbers tbody th { min-width: 5.5rem; } td small { white-space: normal; min-width: 6.5rem; } }
"""
TESTERS: Final = (
    "Several load testers measured these runs. All metrics have the same definitions here. But "
    "each tool takes its own timestamps and uses the machine differently, so a difference may "
    "come from the tool instead of the server."
)
DIFFERENT: Final = "different "
"""So begins a warning about a condition in which two runs differ."""
CLASSES: Final = {"better": "pass", "worse": "loud"}


class Cell(NamedTuple):
    value: str
    difference: str = ""
    """The difference from the base has its interval, in the unit of the row."""
    percent: str = ""
    word: str = ""


class OverlaidRuns:
    """The compared runs in common plots."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._names = number_equal_titles([folder.name for folder in folders])
        self._overlay = RunOverlay()
        self._count = 0

    def add(self, run: LoadedRun) -> None:
        """Adds the next run. A percentile of all stages of a sweep means nothing."""
        if not has_different_loads(run):
            self._overlay.add(self._names[self._count], run.seen)
        self._count += 1

    def plots(self, comparison: Comparison) -> tuple[Plot, ...]:
        """Runs by percentile and over time; equal sweeps stage by stage."""
        return (*_plot_stages(comparison, self._names), *self._overlay.plots())


def _plot_stages(comparison: Comparison, names: Sequence[str]) -> Iterator[Plot]:
    """Yields a plot for each figure of the stages, with a line for each sweep."""
    lines = dict[str, list[PlotSeries]]()
    for pair, name in zip(comparison.runs, names[1:], strict=True):
        rows_by_label = dict[str, list[tuple[float, ComparisonLine]]]()
        for stage in pair.stages:
            for line in stage.lines:
                rows = rows_by_label.setdefault(line.label, [])
                if stage.value is not None:
                    rows.append((stage.value, line))
        for label, rows in rows_by_label.items():
            known = lines.setdefault(label, [])
            x = [value for value, _ in rows]
            if not known:
                known.append(PlotSeries(names[0], HUES[0], [*x], [line.base for _, line in rows]))
            hue = HUES[len(known) % len(HUES)]
            known.append(PlotSeries(name, hue, [*x], [line.value for _, line in rows]))
    axis = next((pair.axis for pair in comparison.runs if pair.axis), "")
    for label, series in lines.items():
        title = label.replace(" (ms)", "")
        yield Plot(
            title=f"{title} by {axis}",
            caption="A line for each sweep, over the stages that both have.",
            label=f"{title} by {axis} of {', '.join(line.name for line in series)}",
            x=PlotAxis(label=axis),
            y=PlotAxis(label=title, unit="ms" if "(ms)" in label else "/s"),
            series=tuple(series),
        )


def render_comparison_page(comparison: Comparison, plots: Sequence[Plot] = ()) -> str:
    """Renders the whole page. A folder with unreadable metrics has neither conditions nor an audit,
    and the page reports that."""
    folders = [comparison.base, *(pair.folder for pair in comparison.runs)]
    names = number_equal_titles([Path(folder).name for folder in folders])
    figures, unread = _read_figures_of_runs(folders, names)
    doubts, held = audit_columns(
        [
            (name, figures_of_run)
            for name, figures_of_run in zip(names, figures, strict=True)
            if figures_of_run is not None
        ]
    )
    differences = [list_differences(pair) for pair in comparison.runs]
    sentences = [
        describe_differences(name, those, has_waits(pair))
        for name, those, pair in zip(names[1:], differences, comparison.runs, strict=True)
    ]
    warnings = _remarks(comparison, names, loud=True)
    return rendered(
        "comparison.html",
        OWN,
        plots,
        title=f"Compared with {names[0]}",
        headline=list(filter(None, sentences)),
        drawings=plots,
        forests=[
            (name, draw_forest(those), describe_forest(those))
            for name, those in zip(names[1:], differences, strict=True)
            if those
        ],
        names=names,
        simulated=SIMULATED if comparison.simulated else "",
        testers=TESTERS
        if len({figure.title for figure in figures if figure is not None}) > 1
        else "",
        differing_loads=[
            f"{name} had another workload than {names[0]}: {pair.other_work}. So no differences "
            f"are shown."
            for name, pair in zip(names[1:], comparison.runs, strict=True)
            if pair.other_work
        ],
        conditions=clean_rows(
            [
                ["load tester", *("-" if figure is None else figure.title for figure in figures)],
                *list_conditions(figures),
            ]
        ),
        measures=[*_rows(comparison.runs)],
        classes=CLASSES,
        callouts=[group for group in warnings if not group[1].startswith(DIFFERENT)],
        warnings=[group for group in warnings if group[1].startswith(DIFFERENT)],
        remarks=_remarks(comparison, names, loud=False),
        notes=NOTES,
        doubts=[*unread, *doubts],
        held=held,
    )


def _read_figures_of_runs(
    folders: Sequence[str], names: Sequence[str]
) -> tuple[list[Figures | None], list[str]]:
    """Returns the metrics of each folder, and the reasons why some are missing."""
    figures_of_runs = list[Figures | None]()
    unread = list[str]()
    for folder, name in zip(folders, names, strict=True):
        try:
            figures_of_runs.append(read_foreign_results.read_figures(Path(folder))[0])
        except (OSError, read_foreign_results.UnknownFormat) as error:
            figures_of_runs.append(None)
            unread.append(f"{name}: not audited: {getattr(error, 'strerror', None) or error}")
    return figures_of_runs, unread


def _rows(pairs: Sequence[RunPair]) -> Iterator[tuple[str, list[Cell]]]:
    """Yields a row for each metric that a pair has, with the base's value first."""
    columns = [dict(_list_lines(pair)) for pair in pairs]
    for label in dict.fromkeys(chain.from_iterable(columns)):
        finest = min((lines[label] for lines in columns if label in lines), key=_interval_width)
        base = Cell(format_line_cells(finest)[0])
        yield label, [base, *(_cell(lines.get(label)) for lines in columns)]


def _interval_width(line: ComparisonLine) -> float:
    """Returns the width of the interval. The narrowest interval allows the most digits."""
    return math.inf if line.low is None or line.high is None else line.high - line.low


def _list_lines(pair: RunPair) -> Iterator[tuple[str, ComparisonLine]]:
    """Yields the lines of a run, then of a sweep's stages."""
    yield from ((line.label, line) for line in pair.lines)
    for stage in pair.stages:
        for line in stage.lines:
            yield f"{line.label}, {pair.axis} {format_stage_value(stage.value)}", line


def _cell(line: ComparisonLine | None) -> Cell:
    if line is None:
        return Cell("-")
    _, value, difference, percent, interval, word = format_line_cells(line)
    known = difference if interval == "-" else f"{difference} ({interval})"
    return Cell(value, *("" if text == "-" else text for text in (known, percent, word)))


def _remarks(comparison: Comparison, names: Sequence[str], loud: bool) -> list[tuple[str, str]]:
    """Returns groups of runs with a text about all of them: ``loud`` warnings, or notes. Texts that
    the page contains anyway are omitted."""
    texts: dict[str, list[str]] = {
        f"WARNING: {warning}": [names[0]] for warning in comparison.warnings if loud
    }
    for name, pair in zip(names[1:], comparison.runs, strict=True):
        blocks = (
            block
            for block in make_pair_blocks(pair, (names[0], name))
            if isinstance(block, TextBlock)
        )
        for text in dict.fromkeys(block.text for block in blocks if block.loud == loud):
            if not text.startswith("Not compared, as") and not text.endswith(
                ("stage by stage:", "limit by limit:")
            ):
                texts.setdefault(text, []).append(name)
    return [
        (", ".join(runs), clean_line(text.removeprefix("WARNING: ")))
        for text, runs in texts.items()
    ]
