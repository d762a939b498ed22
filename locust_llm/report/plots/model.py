"""Plots: what a plot shows, as data that static/plots.js draws, in a report and on a live page alike.

A plot is small however long the run was: lines are percentiles of many requests, dots are a sample. What was left out is
said in its caption.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Value = float | None

DOTS: Final = 3000
"""The most dots of a plot."""
SLOWEST: Final = 300
"""Of these, so many are the highest; the others are taken evenly."""
POINTS: Final = 300
"""The most points of a line."""
FEWEST: Final = 5
"""With less points than that there is no line."""
FAR: Final = 20
"""From a highest value of so many medians on, an axis is logarithmic."""
LOG: Final = " The scale is logarithmic."
DIGITS: Final = 5
PERCENTILES: Final = ((50, 20, "p50"), (95, 20, "p95"), (99, 100, "p99"))
"""(percentile, how many values in a row it takes, name) of the lines over time."""


class Axis(msgspec.Struct, frozen=True, omit_defaults=True):
    """``unit`` says how values are written: ``ms`` (12 ms, 1.2 s), ``s`` (time: 12 s, 1:20), ``%``, ``tokens``, ..."""

    label: str = ""
    unit: str = ""
    log: int = 0
    """2 or 10: the base of a logarithmic axis; 0: linear."""
    low: Value = None
    high: Value = None
    """None: where the values end."""
    ticks: tuple[tuple[float, str], ...] = ()
    """In place of those that plots.js finds."""


class Series(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something to draw. ``x`` and ``y`` are equally long; None and NaN break a line.

    kind: ``line``, ``steps`` (each value holds up to the next x), ``area`` (steps, filled); x rises in these three.
    ``dots``; ``path`` (dots joined in their order, with ``labels``); ``rings`` (hollow dots); ``rug`` (a tick at the top
    edge for each x).
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


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line across the plot, at an x or at a y."""

    text: str
    x: Value = None
    y: Value = None
    hue: str = "mark"


Limits = dict[str, tuple[Mark, ...]]
"""Those of the SLO, by the column of the requests that they are about; of pooled gaps by ``icl``."""


class Plot(msgspec.Struct, frozen=True, omit_defaults=True):
    title: str
    caption: str
    """How to read it; what of the data is shown, where that is not all."""
    label: str
    """Its main figures in words, for those who do not see it."""
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    marks: tuple[Mark, ...] = ()
    group: str = ""
    """Plots of a group share their x axis: cursor and zoom."""
    low: bool = False
    """It needs less height than others."""


def short(values: Floats, digits: int = DIGITS) -> list[Value]:
    """As a list, to so many significant digits: that is what a page has to hold."""
    values = np.asarray(values, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.where(values == 0, 1.0, np.floor(np.log10(np.abs(values))) + 1)
    size = np.clip(np.nan_to_num(size), -100, 100)
    factor = 10.0 ** np.abs(digits - size)
    rounded = np.where(size > digits, np.round(values / factor) * factor, np.round(values * factor) / factor)
    found: list[Value] = rounded.tolist()
    return found


def sample(values: Floats, most: int = DOTS, slowest: int = SLOWEST) -> Ints:
    """Which of the values to draw as dots: all of few, else so many taken evenly, and the highest."""
    count = len(values)
    if count <= most:
        return np.arange(count)
    even = np.linspace(0, count - 1, most - slowest).astype(np.int64)
    highest = np.argsort(values)[count - slowest :]
    return np.union1d(even, highest)


def cloud(x: Floats, y: Floats, name: str = "request", hue: str = "dot") -> tuple[Series, str]:
    """A sample of these as dots, and what the caption says of it."""
    some = sample(y)
    said = f"Each dot is a request ({len(y):,} in all)."
    if len(some) < len(y):
        said = f"Each dot is a request: {len(some):,} of {len(y):,} shown, taken evenly, and the {SLOWEST} slowest."
    return Series(name, hue, short(x[some], 6), short(y[some], 4), kind="dots"), said


def in_a_row(value: Floats, need: int) -> tuple[list[Floats], list[int]]:
    """(equally many values in a row each, at least ``need``; the place of the middle one of each); none if they are FEWEST.

    Equally many rather than equally long: every point of a line then rests on as much.
    """
    rows = min(len(value) // need, POINTS)
    if rows < FEWEST:
        return [], []
    ends = np.linspace(0, len(value), rows + 1).astype(np.int64)
    return np.split(value, ends[1:-1]), ((ends[1:] + ends[:-1]) // 2).tolist()


def percentile_lines(at: Floats, value: Floats) -> tuple[list[Series], str]:
    """The percentiles over time for which there are enough values, and what the caption says of them."""
    order = np.argsort(at, kind="stable")
    at, value = at[order], value[order]
    lines, counts = [], dict[int, list[str]]()
    for percent, need, name in PERCENTILES:
        rows, middles = in_a_row(value, need)
        if rows:
            y = np.array([np.percentile(row, percent) for row in rows])
            rising = np.diff(at[middles], prepend=-np.inf) > 0
            lines.append(Series(name, name, short(at[middles][rising], 6), short(y[rising])))
            counts.setdefault(len(rows[0]), []).append(name)
    each = "; ".join(f"{' and '.join(names)} of {count:,}" for count, names in counts.items())
    return lines, f" Each point of a line is made of requests in a row: {each}." if each else ""


def log_base(values: Floats) -> int:
    """10 where the highest would press all others flat."""
    known = values[values > 0]
    return 10 if len(known) and float(known.max()) > FAR * float(np.median(known)) else 0


def within(marks: Sequence[Mark], highest: float, base: int) -> tuple[Mark, ...]:
    """Without the limits that lie so far above all values that these would be flat beneath them."""
    reach = highest * (10 if base else 2.5)
    return tuple(mark for mark in marks if mark.y is None or mark.y <= reach)


def doubles(values: Sequence[float]) -> int:
    """2 where each value is about twice the one before, as those of a ladder by doubling; else 0."""
    steps = [b / a for a, b in pairwise(values) if a > 0]
    return 2 if len(steps) > 1 and values[0] > 0 and float(np.median(steps)) > 1.5 else 0
