"""History chart: draws a metric over the runs of a workload as SVG, with a dot per run, levels with
intervals, and changes."""

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from html import escape
from itertools import pairwise
from typing import Final

from locust_llm.lab.history.entry import KeyFigure
from locust_llm.text.format import clean_line, format_bound

from .change_points import median_interval
from .entry import DID_NOT_END, STILL_RUNNING, HistoryEntry
from .history_text import format_commit, format_start
from .series import FigureChange, RunSeries

HEIGHT: Final = 190
TOP, BOTTOM = 22, 160
"""The plot lies between these heights in pixels. Names of changes are above it, dates below."""
TICKS: Final = 4
"""The y axis has about this many ticks."""
DATES: Final = 4
MIN_NAME_DISTANCE: Final = 14.0
"""The names of two changes keep this distance, in percent of the width."""
OUTER: Final = 25
"""One in this many runs at either end does not stretch the y axis. Values far outside are drawn at
its edge."""


def draw_history_chart(
    series: RunSeries, figure: KeyFigure, turns: Sequence[FigureChange], last: int | None = None
) -> str:
    """Draws the runs in order, with equal distances. The text is empty if no run has the metric."""
    shown = [entry for entry in series.entries if figure.name in entry.figures][-(last or 0) :]
    if not shown:
        return ""
    scale = _Scale(shown, figure)
    label = f"{figure.label} over {len(shown)} runs, {len(turns)} changes"
    parts = [
        *scale.axis(),
        *_dots(scale),
        *_levels(scale, series.of(figure), turns),
        *_marks(scale, turns),
    ]
    inner = "\n".join(parts)
    size = f'width="100%" height="{HEIGHT}" overflow=visible'
    return (
        f'<div class=lines><svg {size} role=img aria-label="{_escape(label)}">{inner}</svg></div>'
    )


class _Scale:
    """Maps runs to a share of the width, and values to pixels from the top."""

    def __init__(self, shown: Sequence[HistoryEntry], figure: KeyFigure) -> None:
        self.shown = shown
        self.figure = figure
        ordered = sorted(entry.figures[figure.name] for entry in shown)
        few = len(ordered) // OUTER
        low = ordered[few]
        high = ordered[-1 - few]
        margin = (high - low) / 2 or abs(high) * 0.1 or 1.0
        low = max(low - margin, ordered[0])
        high = min(high + margin, ordered[-1])
        self._low = low - 0.1 * margin
        self._high = high + 0.1 * margin
        self._places = {entry.folder: i for i, entry in enumerate(shown)}

    def place(self, entry: HistoryEntry) -> int | None:
        """Returns the index of a run among the drawn runs, or None."""
        return self._places.get(entry.folder)

    def x(self, place: float) -> float:
        return round((place + 0.5) / len(self.shown) * 100, 3)

    def y(self, value: float) -> float:
        share = (value - self._low) / (self._high - self._low)
        return round(BOTTOM - min(max(share, 0.0), 1.0) * (BOTTOM - TOP), 1)

    def beyond(self, value: float) -> int:
        """Returns 1 above the plot, -1 below it, else 0."""
        return (value > self._high) - (value < self._low)

    def axis(self) -> Iterator[str]:
        range_per_tick = (self._high - self._low) / TICKS
        size = 10.0 ** math.floor(math.log10(range_per_tick))
        step = next(factor * size for factor in (1, 2, 5, 10) if factor * size >= range_per_tick)
        for i in range(math.ceil(self._low / step), math.floor(self._high / step) + 1):
            y = self.y(i * step)
            yield f'<line x1=0 x2="100%" y1="{y}" y2="{y}" stroke="var(--line)"/>'
            yield (
                f'<text class=axis x=-8 y="{y + 3.5}" '
                f"text-anchor=end>{_escape(self.figure.format_value(i * step, 4))}</text>"
            )
        count = len(self.shown)
        for i in range(min(DATES, count)):
            place = round(i * (count - 1) / max(1, min(DATES, count) - 1))
            anchor = "end" if i == min(DATES, count) - 1 else "middle"
            if i == 0:
                anchor = "start"
            date = datetime.fromtimestamp(self.shown[place].started).strftime("%Y-%m-%d")
            inner = " fine" if anchor == "middle" else ""
            yield (
                f'<text class="axis{inner}" x="{self.x(place)}%" y="{BOTTOM + 20}" '
                f"text-anchor={anchor}>{date}</text>"
            )


def _levels(
    scale: _Scale, counted: Sequence[HistoryEntry], turns: Sequence[FigureChange]
) -> Iterator[str]:
    """Draws the median between two changes, and its interval as a band."""
    name = scale.figure.name
    for begin, end in pairwise([0, *(turn.change.at for turn in turns), len(counted)]):
        places = [
            place for entry in counted[begin:end] if (place := scale.place(entry)) is not None
        ]
        if not places:
            continue
        middle, low, high = median_interval([entry.figures[name] for entry in counted[begin:end]])
        x = scale.x(places[0] - 0.5)
        wide = scale.x(places[-1] + 0.5) - scale.x(places[0] - 0.5)
        top = scale.y(high)
        bottom = scale.y(low)
        y = scale.y(middle)
        yield (
            f'<rect x="{x}%" width="{wide:.3f}%" y="{top}" height="{max(bottom - top, 1):.1f}" '
            f'fill="var(--ink)" '
            f'fill-opacity=".18"/>'
        )
        yield (
            f'<line x1="{x}%" x2="{x + wide:.3f}%" y1="{y}" y2="{y}" stroke="var(--ink)" '
            f"stroke-width=1.5 />"
        )


def _dots(scale: _Scale) -> Iterator[str]:
    name = scale.figure.name
    size = 3 if len(scale.shown) <= 100 else 2
    for place, entry in enumerate(scale.shown):
        value = entry.figures[name]
        error_s = entry.plus_minus.get(name)
        x = scale.x(place)
        y = scale.y(value)
        if (
            error_s is not None
            and abs(scale.y(value - error_s) - scale.y(value + error_s)) > 2 * size
        ):
            top = scale.y(value + error_s)
            bottom = scale.y(value - error_s)
            yield f'<line x1="{x}%" x2="{x}%" y1="{bottom}" y2="{top}" stroke="var(--dot)"/>'
        fill = "none" if entry.left_out else "var(--dot)"
        tooltip = f"<title>{_escape(_describe_dot(entry, scale.figure))}</title>"
        if direction := scale.beyond(value):  # an arrow at the edge
            arrow = f'<path d="M-4 0h8l-4 {-7 * direction}z" fill="{fill}" stroke="var(--dot)"/>'
            yield f'<svg x="{x}%" y="{y}" overflow=visible>{arrow}{tooltip}</svg>'
        else:
            yield (
                f'<circle cx="{x}%" cy="{y}" r={size} fill="{fill}" '
                f'stroke="var(--dot)">{tooltip}</circle>'
            )


def _describe_dot(entry: HistoryEntry, figure: KeyFigure) -> str:
    """Describes a dot for its tooltip."""
    error_s = entry.plus_minus.get(figure.name)
    about = (
        f"{format_start(entry)}  {entry.folder}  {format_commit(entry)}: "
        f"{figure.format_value(entry.figures[figure.name])}"
    )
    about += f" ± {format_bound(error_s * 1e3)} ms" if error_s is not None else ""
    about += f", {entry.ended}" if entry.ended not in ("", DID_NOT_END, STILL_RUNNING) else ""
    return about + (f", not counted: {entry.left_out}" if entry.left_out else "")


def _marks(scale: _Scale, turns: Sequence[FigureChange]) -> Iterator[str]:
    """Draws a line before the first run after each change, with its size."""
    named = -MIN_NAME_DISTANCE
    for turn in turns:
        if (place := scale.place(turn.first)) is None:
            continue
        x = scale.x(place - 0.5)
        hue = "var(--ok)" if turn.better else "var(--fail)"
        yield (
            f'<line x1="{x}%" x2="{x}%" y1={TOP - 4} y2={BOTTOM} stroke="{hue}" stroke-width=1.5 '
            f'stroke-dasharray="4 3"/>'
        )
        if x - named >= MIN_NAME_DISTANCE:  # else its name would overlap the one before
            named = x
            anchor = "end" if x > 92 else "middle"
            if x < 8:
                anchor = "start"
            yield (
                f'<text x="{x}%" y={TOP - 9} text-anchor={anchor} fill="{hue}" '
                f"font-weight=600>{_escape(turn.size)}</text>"
            )


def _escape(text: str) -> str:
    return escape(clean_line(text))
