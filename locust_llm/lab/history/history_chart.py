"""History chart: plots a metric over the runs of a workload, with a dot per run, levels with
intervals, and changes."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from locust_llm.lab.history.history_entry import KeyFigure
from locust_llm.report.chart_data.plot_data import Plot, PlotAxis, PlotMark, PlotSeries, Value
from locust_llm.text.format import format_bound, format_date
from locust_llm.trends.change_points import median_interval

from .history_entry import DID_NOT_END, STILL_RUNNING, HistoryEntry
from .history_text import format_commit, format_start
from .run_series import FigureChange, RunSeries

OUTER: Final = 25
"""One in this many runs at either end does not stretch the y axis. Values far outside are drawn at
its edge."""
MIN_BAND: Final = 5
"""Fewer runs have no level with an interval: it would fill the plot."""
SPARKLINE: Final = (120, 28)
LEAST_SPAN: Final = 0.2
UNITS: Final = {"s": ("ms", 1e3), "share": ("%", 100.0), "/s": ("/s", 1.0)}
"""(the unit in the chart, the factor to it) by the unit of a metric."""
RESULTS: Final = {"PASS": ("SLO passed", "ok"), "FAIL": ("SLO failed", "fail")}
"""(name, colour) of the runs by the result of their SLO."""
RUN: Final = ("run", "dot")
LEFT_OUT: Final = ("run that does not count", "p99")


def plot_history(
    series: RunSeries,
    figure: KeyFigure,
    turns: Sequence[FigureChange],
    link: Callable[[HistoryEntry], str],
    last: int | None = None,
) -> Plot | None:
    """Plots the runs in order, with equal distances. ``link`` returns the address of a run's
    report. None: no run has the metric."""
    shown = [entry for entry in series.entries if figure.name in entry.figures][-(last or 0) :]
    if not shown:
        return None
    unit, factor = UNITS[figure.unit]
    places = {entry.folder: float(place) for place, entry in enumerate(shown)}
    low, high = _choose_range([entry.figures[figure.name] * factor for entry in shown])
    return Plot(
        title=figure.label,
        caption="",
        label=f"{figure.label} over {len(shown)} runs, {len(turns)} changes",
        x=PlotAxis(low=-0.5, high=len(shown) - 0.5, ticks=tuple(_name_dates(shown))),
        y=PlotAxis(unit=unit, low=low, high=high, free=True),
        series=(
            *_list_levels(places, series.of(figure), figure, turns),
            *_list_runs(shown, figure, link),
        ),
        marks=tuple(_list_marks(places, turns)),
        low=True,
    )


def _choose_range(values: Sequence[float]) -> tuple[float, float]:
    """The ends of the y axis. It has nothing below 0 where no value is."""
    ordered = sorted(values)
    few = len(ordered) // OUTER
    low = ordered[few]
    high = ordered[-1 - few]
    margin = (high - low) / 2 or abs(high) * 0.1 or 1.0
    lowest = max(low - margin, ordered[0])
    highest = min(high + margin, ordered[-1])
    below = lowest - 0.1 * margin
    return max(below, 0.0) if ordered[0] >= 0 else below, highest + 0.1 * margin


def _name_dates(shown: Sequence[HistoryEntry]) -> Iterator[tuple[float, str]]:
    """The first run of each day has its date. Where all are of one day, the first run of each
    minute has its time."""
    dates = [format_date(entry.started).split() for entry in shown]
    are_of_one_day = len({day for day, *_ in dates}) == 1
    names = [date[1] if are_of_one_day else date[0] for date in dates]
    for place, name in enumerate(names):
        if place == 0 or name != names[place - 1]:
            yield float(place), name


def trace_sparkline(values: Sequence[float]) -> str:
    """The points of a polyline on a canvas of SPARKLINE. Empty: one value makes no line. The
    height is of a fifth of the largest value at least, so that noise does not look like a change."""
    if len(values) < 2:
        return ""
    width, height = SPARKLINE
    low = min(values)
    high = max(values)
    span = max(high - low, abs(high) * LEAST_SPAN) or 1.0
    bottom = (low + high - span) / 2
    step = width / (len(values) - 1)
    points = []
    for place, value in enumerate(values):
        y = height - 1 - (height - 2) * (value - bottom) / span
        points.append(f"{place * step:.1f},{y:.1f}")
    return " ".join(points)


def _list_runs(
    shown: Sequence[HistoryEntry], figure: KeyFigure, link: Callable[[HistoryEntry], str]
) -> Iterator[PlotSeries]:
    """A series for each result of the SLO, and one of rings for what does not count."""
    groups: dict[tuple[str, str], list[int]] = {}
    for place, entry in enumerate(shown):
        group = LEFT_OUT if entry.left_out else RESULTS.get(entry.slo, RUN)
        groups.setdefault(group, []).append(place)
    _, factor = UNITS[figure.unit]
    for (name, hue), places in groups.items():
        entries = [shown[place] for place in places]
        values = [entry.figures[figure.name] for entry in entries]
        errors = [entry.plus_minus.get(figure.name) for entry in entries]
        ends = [_find_ends(value, error) for value, error in zip(values, errors, strict=True)]
        is_known = any(error is not None for error in errors)
        yield PlotSeries(
            name,
            hue,
            [float(place) for place in places],
            [value * factor for value in values],
            kind="rings" if name == LEFT_OUT[0] else "dots",
            low=[None if low is None else low * factor for low, _ in ends] if is_known else [],
            high=[None if high is None else high * factor for _, high in ends] if is_known else [],
            tips=tuple(describe_run(entry, figure) for entry in entries),
            links=tuple(link(entry) for entry in entries),
        )


def _find_ends(value: float, error: float | None) -> tuple[Value, Value]:
    """The ends of what the load generator's own error leaves open."""
    return (None, None) if error is None else (value - error, value + error)


def describe_run(entry: HistoryEntry, figure: KeyFigure) -> tuple[str, ...]:
    """The lines of the tip at its dot."""
    error_s = entry.plus_minus.get(figure.name)
    value = figure.format_value(entry.figures[figure.name])
    if error_s is not None:
        value += f" ± {format_bound(error_s * 1e3)} ms"
    lines = [entry.folder, value, f"{format_start(entry)}, {format_commit(entry)}"]
    if entry.slo:
        lines.append(f"SLO {entry.slo}")
    if entry.ended not in ("", DID_NOT_END, STILL_RUNNING):
        lines.append(entry.ended)
    if entry.left_out:
        lines.append(f"not counted: {entry.left_out}")
    return tuple(lines)


def _list_levels(
    places: dict[str, float],
    counted: Sequence[HistoryEntry],
    figure: KeyFigure,
    turns: Sequence[FigureChange],
) -> Iterator[PlotSeries]:
    """The median between two changes, and its interval as a band."""
    _, factor = UNITS[figure.unit]
    x = list[Value]()
    y = list[Value]()
    low = list[Value]()
    high = list[Value]()
    for begin, end in pairwise([0, *(turn.change.at for turn in turns), len(counted)]):
        entries = counted[begin:end]
        shown = [places[entry.folder] for entry in entries if entry.folder in places]
        if not shown or len(entries) < MIN_BAND:
            continue
        middle, least, most = median_interval([entry.figures[figure.name] for entry in entries])
        x += [shown[0] - 0.5, shown[-1] + 0.5]
        y += [middle * factor, None]
        low += [least * factor, None]
        high += [most * factor, None]
    if x:
        yield PlotSeries("median, 95% interval", "ink", x, y, kind="band", low=low, high=high)


def _list_marks(places: dict[str, float], turns: Sequence[FigureChange]) -> Iterator[PlotMark]:
    """A line before the first run after each change, with its size."""
    for turn in turns:
        if turn.first.folder in places:
            hue = "ok" if turn.better else "fail"
            yield PlotMark(turn.size, x=places[turn.first.folder] - 0.5, hue=hue)
