"""Server charts: the server's own metrics over the run, on the time axis of the other plots: a line
for each replica or GPU."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

import msgspec
import numpy as np

from locust_llm.records.server_metrics_history import EngineHistory
from locust_llm.records.server_metrics_parser import EngineSample
from locust_llm.report.array_types import Floats
from locust_llm.text.format import format_brief, format_count

from .charts_over_time import choose_round_edges, make_strip
from .plot_data import HOLE, MAX_POINTS, Plot, PlotAxis, PlotSeries, round_values
from .server_chart_list import CHARTS, LINES, Chart, list_line_names
from .time_axis import TIME_GROUP, TimeAxis

HUES: Final = ("p50", "prefill", "decode", "p99", "ok", "p95", "limit", "faint")
"""The colours of the lines; from the ninth on they are dashed."""


def plot_server_metrics(history: EngineHistory, time: TimeAxis) -> Iterator[Plot]:
    """The charts with any values. Above the first chart bars count the failed readings."""
    bars = list(_failed(history, time))
    plots = list(chain.from_iterable(_plot(chart, history, time) for chart in CHARTS))
    if not plots and bars:
        plots = [
            Plot(
                "Metrics of the server",
                "",
                "No metrics of the server",
                time.axis,
                PlotAxis(),
                (),
                group=TIME_GROUP,
                low=True,
            )
        ]
    more = len(history.names) - LINES
    for number, plot in enumerate(plots):
        text = plot.caption
        if more > 0:
            text += f" {format_count(more, 'more line')} not drawn."
        if number == 0:
            if bars:
                text += (
                    f" Bars above the plot: failed readings ({sum(history.failures.values()):,} in "
                    "all)."
                )
            if history.unread:
                text += f" {format_count(history.unread, 'line')} of the file could not be read."
            plot = msgspec.structs.replace(plot, series=(*plot.series, *bars))
        if number == len(plots) - 1:  # its axis is that of all
            plot = msgspec.structs.replace(
                plot, x=msgspec.structs.replace(plot.x, label="time since the start")
            )
        yield msgspec.structs.replace(plot, caption=text.strip())


def _plot(chart: Chart, history: EngineHistory, time: TimeAxis) -> Iterator[Plot]:
    series, highest, pooled = [], [], 1
    for number, name in enumerate(list_line_names(history)):
        samples = [
            s
            for s in _samples(history, name)
            if time.low - 2 <= s.at - time.origin <= time.high + 2
        ]
        line, each = (
            _level(chart, samples, time) if chart.kind == "level" else _growth(chart, samples, time)
        )
        if line is None:
            continue
        pooled = max(pooled, each)
        highest.append(max(value for value in line[1] if value is not None))
        series.append(
            PlotSeries(
                name, HUES[number % len(HUES)], line[0], line[1],
                kind="line" if chart.kind == "level" else "steps", dashed=number >= len(HUES),
            )
        )  # fmt: skip
    if series:
        mean = f" Each point is the mean of {pooled} readings." if pooled > 1 else ""
        unit = f" {chart.unit}" if chart.unit else ""
        yield Plot(
            title=chart.title,
            caption=chart.caption + mean,
            label=f"{chart.title} over time: at most {format_brief(max(highest), digits=3)}{unit}",
            x=time.axis,
            y=PlotAxis(label=chart.what, unit=chart.unit, low=0.0),
            series=tuple(series),
            group=TIME_GROUP,
            low=True,
            gap=HOLE if chart.kind == "level" else 0.0,
        )


def _samples(history: EngineHistory, name: str) -> Sequence[EngineSample]:
    """The samples of a GPU with the failures of its page."""
    own = history.by_name[name]
    if not own[0].gpu:
        return own
    return sorted(
        [*own, *(s for s in history.by_name.get(own[0].source, ()) if s.failure)],
        key=lambda s: s.at,
    )


Line = tuple[list[float | None], list[float | None]]


def _level(
    chart: Chart, samples: Sequence[EngineSample], time: TimeAxis
) -> tuple[Line | None, int]:
    """(x and y; how many readings a point averages). A failed reading breaks the line."""
    at = np.array([s.at - time.origin for s in samples])
    values = np.array([_number(s, chart.field) for s in samples]) * chart.factor
    if np.isnan(values).all():
        return None, 1
    each = -(-len(values) // MAX_POINTS)
    if each > 1:
        rows = np.array_split(np.arange(len(values)), -(-len(values) // each))
        at = np.array([at[row].mean() for row in rows])
        known = [values[row][~np.isnan(values[row])] for row in rows]
        values = np.array([row.mean() if len(row) else np.nan for row in known])
    return (round_values(at, 6), _holes(round_values(values))), each


def _growth(
    chart: Chart, samples: Sequence[EngineSample], time: TimeAxis
) -> tuple[Line | None, int]:
    """The growth of a counter in steps. It restarts when its server does. A failed reading breaks
    the line, as nobody knows when something grew between its neighbours."""
    total = _total(chart.field, samples, time)
    over = _total(chart.of, samples, time) if chart.kind == "share" else None
    if total is None or (chart.kind == "share" and over is None):
        return None, 1
    edges = choose_round_edges(
        max(time.low, float(total[0][0])), float(total[0][-1]), len(total[0])
    )
    growth = np.diff(np.interp(edges, *total))
    whole = np.diff(edges) if over is None else np.diff(np.interp(edges, *over))
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.where(whole > 0, growth / whole, np.nan) * chart.factor
    for begin, end in _find_unread_spans(total[0], samples, time):
        values[(edges[:-1] < end) & (edges[1:] > begin)] = np.nan
    if np.isnan(values).all():
        return None, 1
    return (round_values(edges, 6), _holes(round_values(np.append(values, values[-1:])))), 1


def _find_unread_spans(
    read_at: Floats, samples: Sequence[EngineSample], time: TimeAxis
) -> Iterator[tuple[float, float]]:
    """The spans between the readings on both sides of each failed one, and the holes between
    readings."""
    steps = np.diff(read_at)
    for place in np.flatnonzero(steps > HOLE * np.median(steps)):
        yield float(read_at[place]), float(read_at[place + 1])
    for sample in samples:
        at = sample.at - time.origin
        after = int(np.searchsorted(read_at, at))
        if sample.failure and 0 < after < len(read_at):
            yield float(read_at[after - 1]), float(read_at[after])


def _total(
    field: str, samples: Sequence[EngineSample], time: TimeAxis
) -> tuple[Floats, Floats] | None:
    """(moments, growth since the first). None: there are fewer than two readings."""
    at = np.array([s.at - time.origin for s in samples])
    values = np.array([_number(s, field) for s in samples])
    known = ~np.isnan(values)
    at, values = at[known], values[known]
    if len(at) < 2 or at[-1] - max(at[0], time.low) <= 0:
        return None
    steps = np.diff(values)
    return at, np.append(0.0, np.cumsum(np.where(steps >= 0, steps, values[1:])))


def _number(sample: EngineSample, field: str) -> float:
    value = getattr(sample, field)
    return np.nan if value is None else float(value)


def _holes(values: list[float | None]) -> list[float | None]:
    return [None if value is None or np.isnan(value) else value for value in values]


def _failed(history: EngineHistory, time: TimeAxis) -> Iterator[PlotSeries]:
    samples = chain.from_iterable(history.by_name.values())
    at = np.sort([sample.at - time.origin for sample in samples if sample.failure])
    at = at[(at >= time.low) & (at <= time.high)]
    if len(at):
        yield make_strip("reading failed", at, time)[0]
