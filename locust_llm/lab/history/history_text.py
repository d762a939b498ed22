"""History text: formats the history for a console, as a list of runs and as plots."""

from collections.abc import Collection, Iterator, Sequence
from itertools import chain, pairwise
from typing import Final

from locust_llm.lab.history.history_entry import KEY_FIGURES, KeyFigure
from locust_llm.text.format import clean_line, format_count, format_date, truncate_text
from locust_llm.trends.change_points import LEAST, median_interval

from .history_entry import DID_NOT_END, STILL_RUNNING, HistoryEntry
from .history_index import IndexedRuns
from .run_series import (
    ENOUGH,
    FigureChange,
    RunSeries,
    all_turns,
    explain_doubts,
    find_figure_changes,
)

NAME: Final = 34
"""A folder's name is cut after this many characters."""
PLOT: Final = 44
"""A plot is this many characters wide."""
LIST_LEFT_OUT: Final = ("ttft_p95", "icl_p99", "requests_per_s")
"""The list omits these metrics, as it must fit on a screen, unless a change of them is below it."""


def format_history(series: Sequence[RunSeries], last: int, least: float = LEAST) -> str:
    """Lists the last runs of each workload, then its changes."""
    return "\n".join(
        chain.from_iterable(_list_runs(one_series, last, least) for one_series in series)
    )


def _list_runs(series: RunSeries, last: int, least: float) -> Iterator[str]:
    yield from _head(series)
    measured = set[str]().union(*(entry.figures for entry in series.entries))
    changes = all_turns(series, least)
    changed = {turn.figure.name for turn in changes}
    listed = measured.difference(LIST_LEFT_OUT) | changed
    figures = [figure for figure in KEY_FIGURES if figure.name in listed]
    judged = any(entry.slo for entry in series.entries)
    where = series.has_several_hosts
    head = [
        "started",
        "run",
        *(["address"] if where else []),
        "commit",
        *(figure.label for figure in figures),
        *(["SLO"] if judged else []),
        "client",
        "ended",
    ]
    rows = []
    for entry in series.entries[-last:]:
        row = [format_start(entry), truncate_text(clean_line(entry.folder), NAME)]
        if where:
            row.append(clean_line(entry.host) or "-")
        row.append(format_commit(entry))
        row += [figure.format_value(entry.figures.get(figure.name), 3) for figure in figures]
        if judged:
            row.append(entry.slo or "-")
        row.append(entry.client or "-")
        row.append(clean_line(entry.ended))
        rows.append(row)
    if not any(row[-1] for row in rows):
        head[-1] = ""
    left = (0, 1, 2, 3) if where else (0, 1, 2)
    yield from _aligned([head, *rows], left=(*left, len(head) - 1))
    for first in dict.fromkeys(turn.first.folder for turn in changes):
        together = [turn for turn in changes if turn.first.folder == first]
        yield f"  {clean_line(_describe_changes_together(together))}"
    yield ""


def _describe_changes_together(turns: Sequence[FigureChange]) -> str:
    """Describes the changes of several metrics that begin with the same run."""
    sides = []
    for word, better in (("worse", False), ("better", True)):
        changes = [f"{turn.figure.label} {turn.size}" for turn in turns if turn.better is better]
        if changes:
            sides.append(f"{word}: {', '.join(changes)}")
    return f"from {turns[0].first.folder} on {'; '.join(sides)}; {turns[0].other_changes}"


def format_history_plots(
    series: Sequence[RunSeries], figure: KeyFigure, last: int, least: float = LEAST
) -> str:
    """Plots one metric of each workload with one line per run, and its changes between them."""
    return "\n".join(
        chain.from_iterable(_plot_runs(one_series, figure, last, least) for one_series in series)
    )


def _plot_runs(series: RunSeries, figure: KeyFigure, last: int, least: float) -> Iterator[str]:
    yield from _head(series)
    changes = find_figure_changes(series, figure, least)
    shown = [entry for entry in series.entries[-last:] if figure.name in entry.figures]
    if not shown:
        yield f"  no run has a {figure.label}"
        yield ""
        return
    counted = series.of(figure)
    levels = _levels(counted, figure, changes)
    values = [entry.figures[figure.name] for entry in shown]
    where = series.has_several_hosts
    head = ["started", "run", *(["address"] if where else []), "commit", figure.label, ""]
    rows = [
        _plot_row(entry, figure, levels.get(entry.folder), (min(values), max(values)), where=where)
        for entry in shown
    ]
    left = (0, 1, 2, 3, 5) if where else (0, 1, 2, 4)
    head_line, *lines = _aligned([head, *rows], left=left)
    places = {turn.first.folder for turn in changes} & {entry.folder for entry in shown}
    yield from (
        f"  before: {clean_line(str(turn))}" for turn in changes if turn.first.folder not in places
    )
    yield head_line
    for entry, line in zip(shown, lines, strict=True):
        yield from (f"  ---- {clean_line(str(turn))}" for turn in changes if turn.first is entry)
        yield line
    doubts = list(explain_doubts(series, figure, changes))
    yield from (f"  {doubt}" for doubt in doubts)
    if not changes and len(counted) >= ENOUGH:
        yield f"  no change of {least:.0%} and more in {format_count(len(counted), 'run')}"
    yield ""


def _plot_row(
    entry: HistoryEntry,
    figure: KeyFigure,
    middle: float | None,
    scale: tuple[float, float],
    *,
    where: bool,
) -> list[str]:
    """Builds the row of a run. ``where`` adds its address."""
    value = entry.figures[figure.name]
    marks = [clean_line(entry.ended)] if entry.ended not in ("", DID_NOT_END, STILL_RUNNING) else []
    marks += [f"not counted: {entry.left_out}"] if entry.left_out else []
    return [
        format_start(entry), truncate_text(clean_line(entry.folder), NAME),
        *([clean_line(entry.host) or "-"] if where else []), format_commit(entry), figure.format_value(value),
        "  ".join((_dot(value, middle, scale), *marks)),
    ]  # fmt: skip


def _levels(
    counted: Sequence[HistoryEntry], figure: KeyFigure, changes: Sequence[FigureChange]
) -> dict[str, float]:
    """Returns for each run the median of its stretch between two changes."""
    levels: dict[str, float] = {}
    if not counted:
        return levels
    ends = [0, *(turn.change.at for turn in changes), len(counted)]
    for begin, end in pairwise(ends):
        stretch = counted[begin:end]
        middle = median_interval([entry.figures[figure.name] for entry in stretch])[0]
        levels |= {entry.folder: middle for entry in stretch}
    return levels


def _dot(value: float, middle: float | None, scale: tuple[float, float]) -> str:
    low, high = scale
    width = high - low or 1.0
    marks = [" "] * PLOT
    if middle is not None:
        marks[round((min(max(middle, low), high) - low) / width * (PLOT - 1))] = "|"
    marks[round((value - low) / width * (PLOT - 1))] = "o"
    return "".join(marks).rstrip()


def _head(series: RunSeries) -> Iterator[str]:
    hosts = {entry.host for entry in series.entries if entry.host}
    where = "" if len(hosts) != 1 else f" at {next(iter(hosts))}"
    several = f", {len(hosts)} addresses" if len(hosts) > 1 else ""
    yield (
        f"{clean_line(series.conditions) or 'unknown conditions'}{clean_line(where)} "
        f"({format_count(len(series.entries), 'run')}{several})"
    )
    simulated = sum(entry.simulated for entry in series.entries)
    if simulated:
        yield "  SIMULATED"


def format_history_summary(runs: IndexedRuns, shown: int, folder: str) -> str:
    """Summarises the number of runs, and what could not be read."""
    lines = [
        f"{folder}: {format_count(len(runs.entries), 'run')}"
        + (f", {shown} of them selected" if shown < len(runs.entries) else "")
    ]
    lines += [f"{entry.folder}: {entry.note}" for entry in runs.entries if entry.note]
    lines += [f"{name}: not read, {why}" for name, why in runs.unread]
    if runs.note:
        lines.append(f"without an index: {runs.note}")
    return "".join(f"{clean_line(line)}\n" for line in lines)


def format_start(entry: HistoryEntry) -> str:
    """Formats the start, such as ``2026-11-25 16:24 UTC``."""
    return format_date(entry.started)


def format_commit(entry: HistoryEntry) -> str:
    """Formats commit and branch, such as ``a1b2c3d4e5 main``. A plus sign marks changed files."""
    name = f"{entry.commit[:10]}{'+' * bool(entry.dirty)} {truncate_text(entry.branch, 20)}".strip()
    return clean_line(name) or "-"


def _aligned(rows: Sequence[Sequence[str]], left: Collection[int]) -> Iterator[str]:
    """Aligns the columns in ``left`` to the left, others to the right. Empty columns are
    omitted."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            if width
        )
        yield f"  {'  '.join(cells)}".rstrip()
