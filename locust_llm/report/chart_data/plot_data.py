"""Plot data: plots as data that static/draw_chart.js draws, in a report and on the live page.

A plot is small however long the run was: lines are percentiles of many requests, dots are a sample.
The caption describes what was left out.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np

from locust_llm.report.array_types import Floats, Ints

Value = float | None

MAX_DOTS: Final = 3000
"""A plot has at most so many dots."""
MAX_SLOWEST: Final = 300
"""So many of the dots are the highest values. The others are taken evenly."""
MAX_POINTS: Final = 300
"""A line has at most so many points."""
MIN_POINTS: Final = 5
"""Fewer points make no line."""
LOG_RATIO: Final = 20
"""An axis is logarithmic above this ratio of highest value to median."""
HOLE: Final = 4.0
"""The ``gap`` of plots over time. Nothing is known of a hole: no request ended, or the load
generator stood still."""
LOG_NOTE: Final = " The scale is logarithmic."
DIGITS: Final = 5
PERCENTILES: Final = ((50, 20, "p50"), (95, 20, "p95"), (99, 100, "p99"))
"""(percentile, values in a row that it needs, name) of the lines over time."""


class PlotAxis(msgspec.Struct, frozen=True, omit_defaults=True):
    """``unit`` decides how values are written: ``ms`` (12 ms, 1.2 s), ``s`` (time: 12 s, 1:20),
    ``%``, ``tokens``, ..."""

    label: str = ""
    unit: str = ""
    log: int = 0
    """The base of a logarithmic axis, 2 or 10; 0: linear."""
    low: Value = None
    high: Value = None
    """None: the axis ends where the values do."""
    ticks: tuple[tuple[float, str], ...] = ()
    """These replace the ticks that draw_chart.js chooses."""
    free: bool = False
    """The y axis need not begin at zero."""
    whole: bool = False
    """All values are whole numbers, and so are the ticks."""


class PlotSeries(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something to draw. ``x`` and ``y`` are equally long; None and NaN break a line.

    kind: ``line``, ``fill`` (a line, filled), ``steps`` (each value holds up to the next x),
    ``area`` (steps, filled), ``stack`` (areas on top of each other, the first at the bottom, all
    with the same x); x rises in these five. ``dots``; ``path`` (dots joined in their order, with ``labels``); ``rings`` (hollow
    dots); ``band`` (levels, each with its interval, from each x to the next); ``strip`` (bars above
    the plot on a scale of their own, each from its x to the next: counts of failures).
    """

    name: str
    hue: str
    """A colour of static/plots.css."""
    x: list[Value]
    y: list[Value]
    kind: str = "line"
    dashed: bool = False
    labels: tuple[str, ...] = ()
    low: list[Value] = []
    high: list[Value] = []
    """The ends of an interval around each y, if there is one."""
    x_low: list[Value] = []
    x_high: list[Value] = []
    """The ends of an interval around each x, if there is one."""
    tips: tuple[tuple[str, ...], ...] = ()
    """The lines that the page shows beside each point under the pointer. Without: the name and both
    values."""
    links: tuple[str, ...] = ()
    """The address that a click on a point opens; empty: none."""


class PlotMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line across the plot, at an x or at a y. A y far above all values does not stretch the axis:
    its text is at the upper edge, with an arrow."""

    text: str
    x: Value = None
    y: Value = None
    hue: str = "mark"


Limits = dict[str, tuple[PlotMark, ...]]
"""The SLO's limits by the column of the requests that they are about; for pooled gaps ``icl``."""


class Plot(msgspec.Struct, frozen=True, omit_defaults=True):
    title: str
    caption: str
    """How to read it, and which part of the data it shows."""
    label: str
    """The main values in words, for screen readers."""
    x: PlotAxis
    y: PlotAxis
    series: tuple[PlotSeries, ...]
    marks: tuple[PlotMark, ...] = ()
    group: str = ""
    """Plots of a group share their x axis: cursor and zoom."""
    low: bool = False
    """It needs less height than others."""
    gap: float = 0.0
    """Readings further apart than so many times the usual distance have a hole between them: no line
    joins them. 0: all are joined."""
    key: str = ""
    """By it static/request_plots.js computes the plot of the requests that a reader chose. Of
    ``ttft``, ``itl``, ``latency`` and ``length`` the page adds the requests as dots. Empty: the
    plot stays as it is."""
    of: str = ""
    """The column of the request sample that a plot by length is of."""


def round_values(values: Floats, digits: int = DIGITS) -> list[Value]:
    """A list, rounded to ``digits`` significant digits, which keeps the page small."""
    values = np.asarray(values, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.where(values == 0, 1.0, np.floor(np.log10(np.abs(values))) + 1)
    size = np.clip(np.nan_to_num(size), -100, 100)
    factor = 10.0 ** np.abs(digits - size)
    rounded = np.where(
        size > digits, np.round(values / factor) * factor, np.round(values * factor) / factor
    )
    rounded_values: list[Value] = rounded.tolist()
    return rounded_values


def sample_dots(values: Floats, most: int = MAX_DOTS, slowest: int = MAX_SLOWEST) -> Ints:
    """The indices of the values to draw as dots: all, or at most ``most``, taken evenly, with the
    highest."""
    count = len(values)
    if count <= most:
        return np.arange(count)
    even = np.linspace(0, count - 1, most - slowest).astype(np.int64)
    highest = np.argsort(values)[count - slowest :]
    return np.union1d(even, highest)


def make_dot_series(
    x: Floats, y: Floats, name: str = "request", hue: str = "dot"
) -> tuple[PlotSeries, str]:
    """(a sample as dots, a sentence for the caption)."""
    sampled = sample_dots(y)
    caption = f"Each dot is a request ({len(y):,} in all)."
    if len(sampled) < len(y):
        caption = (
            f"Each dot is a request: {len(sampled):,} of {len(y):,}, taken evenly, with the "
            f"{MAX_SLOWEST} slowest."
        )
    return PlotSeries(
        name, hue, round_values(x[sampled], 6), round_values(y[sampled], 4), kind="dots"
    ), caption


def group_consecutive(value: Floats, need: int) -> tuple[list[Floats], list[int]]:
    """(rows with equally many values, at least ``need``; the place of each row's middle value).
    There are none below MIN_POINTS rows.

    The rows have equal numbers rather than equal lengths, so that every point of a line rests on as
    many values.
    """
    rows = min(len(value) // need, MAX_POINTS)
    if rows < MIN_POINTS:
        return [], []
    ends = np.linspace(0, len(value), rows + 1).astype(np.int64)
    return np.split(value, ends[1:-1]), ((ends[1:] + ends[:-1]) // 2).tolist()


def make_percentile_lines(at: Floats, value: Floats) -> tuple[list[PlotSeries], str]:
    """(percentiles over time with enough values, a sentence for the caption)."""
    order = np.argsort(at, kind="stable")
    at, value = at[order], value[order]
    lines = []
    counts = dict[int, list[str]]()
    for percent, need, name in PERCENTILES:
        rows, middles = group_consecutive(value, need)
        if rows:
            y = np.array([np.percentile(row, percent) for row in rows])
            rising = np.diff(at[middles], prepend=-np.inf) > 0
            lines.append(
                PlotSeries(
                    name, name, round_values(at[middles][rising], 6), round_values(y[rising])
                )
            )
            counts.setdefault(len(rows[0]), []).append(name)
    each = "; ".join(f"{' and '.join(names)} of {count:,}" for count, names in counts.items())
    return lines, f" Each point of a line covers consecutive requests: {each}." if each else ""


def choose_log_base(values: Floats) -> int:
    """10 where a linear axis would flatten all values but the highest; else 0."""
    known = values[values > 0]
    return 10 if len(known) and float(known.max()) > LOG_RATIO * float(np.median(known)) else 0


def detect_doubling(values: Sequence[float]) -> int:
    """2 where each value is about twice the one before, as in a sweep by doubling; else 0."""
    steps = [b / a for a, b in pairwise(values) if a > 0]
    return 2 if len(steps) > 1 and values[0] > 0 and float(np.median(steps)) > 1.5 else 0
