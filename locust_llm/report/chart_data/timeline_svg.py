"""Timeline SVG: a line for each request, its gate wait and prefill as bars, a dot for each chunk.
Figures, reports and the live page use it.

A figure has a fixed size. In a page the plot is as wide as its box: only the x axis is stretched,
so text, dots and strokes keep their size. It is pure Python, see timeline_lines.py. Every text is
escaped.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise, product
from statistics import median
from typing import Final, NamedTuple

from locust_llm.text.format import format_duration, truncate_text

from .svg_text import escape_text, wrap_group
from .timeline_lines import TimelineRow, TimelineRows

LEGEND_LETTERS: Final = 30


class PlotFrame(NamedTuple):
    """The place of the plot in its drawing, and the sizes of its parts, in pixels."""

    left: float
    top: float
    width: float
    """The width of the time axis. In a page these units become as wide as the box."""
    pitch: float
    """The distance from one line to the next."""
    largest_bar: float
    dots: tuple[float, float]
    """The smallest and the largest dot."""
    hues: Mapping[str, str]
    fluid: bool = False


FIGURE_TICK: Final = 110
"""The least pixels between two ticks of a figure."""
COLOURS: Final = ("ink", "muted", "line", "wait", "prefill", "decode", "stall", "fail")
PAGE: Final = {name: f"var(--{name})" for name in COLOURS}
"""The colours of static/plots.css, which follow the theme."""
MARGIN: Final = 62
"""The space left of the plot in a page, for the labels. static/plots.css repeats it."""
WIDTH: Final = 1000
PAGE_TOP, PAGE_BOTTOM = 22, 40
PAGE_TICK, PHONE_TICK, PHONE = 90, 70, 280
"""The least pixels between two ticks of a wide plot, and of one as wide as a phone."""


def make_timeline_fragment(lines: TimelineRows, label: str) -> str:
    """The HTML of the plot and its keys, with the colours and sizes of static/plots.css.
    timeline.js adds which request a line is."""
    pitch = min(max(560 / max(len(lines.rows), 1), 11.0), 17.0)
    hue = PAGE
    plot = TimelinePlot(
        lines, PlotFrame(0, PAGE_TOP, WIDTH, pitch, 12.0, (1.8, 4.0), hue, fluid=True)
    )
    height = round(plot.bottom + PAGE_BOTTOM, 1)
    keys = "".join(
        f'<span class=key><svg viewBox="0 -8 34 16" aria-hidden=true '
        f"stroke-width=3>{swatch}</svg>{escape_text(text)}</span>"
        for swatch, text in plot.legend()
    )
    size = f'width="100%" height="{height:g}"'
    parts = [
        f'<div class="canvas lines" role=img tabindex=0 aria-label="{escape_text(label)}">',
        f"<svg {size} overflow=visible font-size=11>",
        *plot.page_rows(),
        f'<text x=-{MARGIN} y=12 fill="{hue["muted"]}">input tokens</text>',
        f'<svg class=stretched {size} viewBox="0 0 {WIDTH} {height:g}" preserveAspectRatio=none '
        f"overflow=visible>",
        *plot.marks(),
        "</svg>",
        *plot.page_texts(),
        f"</svg></div><div class=keys>{keys}</div><output class=chosen-line></output>",
    ]
    return "\n".join(parts)


class TimelinePlot:
    """The places of all elements. Each kind has a group of elements, the later ones on top."""

    def __init__(self, shown: TimelineRows, frame: PlotFrame) -> None:
        self.shown, self.rows, self.frame = shown, shown.rows, frame
        self.pitch = frame.pitch
        self.bar = min(self.pitch * 0.74, frame.largest_bar)
        smallest, largest = frame.dots
        self.dot = round(
            min(max(min(self.pitch * 0.4, self._usual_gap() * 0.7), smallest), largest), 1
        )
        self.bottom = frame.top + len(shown.rows) * self.pitch

    def _usual_gap(self) -> float:
        """The pixels between two chunks. Infinite: there are no two."""
        gaps = list[float]()
        for line in self.rows:
            gaps += [after - before for before, after in pairwise(line.chunks)]
        return median(gaps) / self.shown.length * self.frame.width if gaps else math.inf

    def x(self, ms: float) -> float:
        """Tenths of a pixel. A time outside the window is at its edge."""
        clipped = min(max(ms, 0.0), self.shown.length)
        return round(self.frame.left + clipped / self.shown.length * self.frame.width, 1)

    def y(self, row: int) -> float:
        return round(self.frame.top + (row + 0.5) * self.pitch, 1)

    def within(self, ms: float) -> bool:
        return 0 <= ms <= self.shown.length

    # -- bars, strokes and dots --------------------------------------------------------------------

    def marks(self) -> Iterator[str]:
        rows = list(enumerate(self.rows))
        hue = self.frame.hues
        yield from wrap_group(f'stroke="{hue["line"]}"', self.grid())
        yield from self.stall()
        yield from wrap_group(f'id="wait" fill="{hue["wait"]}"', (self.wait(i, r) for i, r in rows))
        yield from wrap_group(
            f'id="prefill" fill="{hue["prefill"]}"', (self.prefill(i, r) for i, r in rows)
        )
        stream = f'id="decode" stroke="{hue["decode"]}" stroke-opacity="0.45"'
        yield from wrap_group(stream, (self.stream(i, r) for i, r in rows))
        stalls = f'id="stalls" stroke="{hue["stall"]}" stroke-width="2"'
        yield from wrap_group(stalls, (self.stalls(i, r) for i, r in rows))
        dots = (
            f'fill="none" stroke="{hue["decode"]}" stroke-width="{self.dot:.1f}" '
            f'stroke-linecap="round"'
        )
        yield from wrap_group(f'id="chunks" {dots}', (self.chunks(i, r) for i, r in rows))
        if not self.frame.fluid:
            yield from self.ends()

    def wait(self, row: int, line: TimelineRow) -> str:
        """The wait at the gate, if it can be seen."""
        over = line.sent if line.admitted is None else line.admitted
        end = line.closed if over is None else over
        return (
            self.block(row, line.asked, end, self.bar * 0.4)
            if self.x(end) - self.x(line.asked) >= 1
            else ""
        )

    def prefill(self, row: int, line: TimelineRow) -> str:
        """The prefill from the send to the first chunk, or to the end without one."""
        end = line.closed if line.first is None else line.first
        if line.sent is None or end < 0 or line.sent > self.shown.length:
            return ""
        return self.block(row, line.sent, end, self.bar)

    def block(self, row: int, start: float, end: float, height: float) -> str:
        left = self.x(start)
        right = self.x(end)
        size = f'width="{max(right - left, 1):.1f}" height="{height:.1f}"'
        return f'<rect x="{left:g}" y="{self.y(row) - height / 2:.1f}" {size}/>'

    def stream(self, row: int, line: TimelineRow) -> str:
        if len(line.chunks) < 2:
            return ""
        return (
            f'<path d="M{self.x(line.chunks[0]):g} {self.y(row):g}H{self.x(line.chunks[-1]):g}"/>'
        )

    def stalls(self, row: int, line: TimelineRow) -> str:
        """The stretches without any chunk."""
        slow = self.shown.slow or math.inf
        gaps = zip(line.chunks, line.chunks[1:], strict=False)
        lines = [
            f"M{self.x(a):g} {self.y(row):g}H{self.x(b):g}"
            for a, b in gaps
            if b - a > slow and self.x(a) < self.x(b)
        ]
        return f'<path d="{"".join(lines)}"/>' if lines else ""

    def chunks(self, row: int, line: TimelineRow) -> str:
        """A dot for each chunk, a stroke for chunks that touch. Tenths of a pixel keep errors from
        adding up."""
        length = self.shown.length
        left = self.frame.left * 10
        scale = self.frame.width / self.shown.length * 10
        # x(), where it is called most
        at = [round(left + ms * scale) for ms in line.chunks if 0 <= ms <= length]
        if not at:
            return ""
        touching = self.dot * 10
        strokes = [[at[0], at[0]]]
        for x in at[1:]:
            if x - strokes[-1][1] < touching:
                strokes[-1][1] = x
            else:
                strokes.append([x, x])
        pen = at[0]
        moves = [f"M{pen / 10:g} {self.y(row):g}"]
        for start, end in strokes:
            if start != pen:
                moves.append(f"m{(start - pen) / 10:g} 0")
            moves.append(f"h{(end - start) / 10:g}")
            pen = end
        return f'<path d="{"".join(moves)}"/>'

    def stall(self) -> Iterator[str]:
        """The longest stall, a band through all lines."""
        if (at := self.stall_at()) is None:
            return
        left, right = at
        # six pixels above the first line and below the last
        height = self.bottom - self.frame.top + 12
        yield (
            f'<rect id="stall" x="{left:g}" y="{self.frame.top - 6}" width="{right - left:.1f}" '
            f'height="{height:.1f}" '
            f'fill="{self.frame.hues["stall"]}" fill-opacity="0.13"/>'
        )

    def stall_at(self) -> tuple[float, float] | None:
        """The visible part of it, in pixels."""
        if (
            self.shown.stall is None
            or self.shown.stall[1] < 0
            or self.shown.stall[0] > self.shown.length
        ):
            return None
        left, right = map(self.x, self.shown.stall)
        return left, right

    def ends(self) -> Iterator[str]:
        """A mark for each kind of end. In a page its place is a share of the width, so it is not
        stretched."""
        size = min(max(self.pitch * 0.36, 3.0), 9.0)
        marks = []
        for row, line in enumerate(self.rows):
            if not self.within(line.closed):
                continue
            if self.frame.fluid:
                mark = self._end(line.outcome, 0, 0, size)
                marks.append(
                    f'<svg x="{self.share(line.closed):g}%" y="{self.y(row):g}" '
                    f"overflow=visible>{mark}</svg>"
                )
            else:
                marks.append(self._end(line.outcome, self.x(line.closed), self.y(row), size))
        hue = self.frame.hues
        back = "var(--back)" if self.frame.fluid else "#fff"
        yield from wrap_group(
            f'id="ends" fill="{back}" stroke="{hue["fail"]}" stroke-width="2"', marks
        )

    def _end(self, outcome: str, x: float, y: float, size: float) -> str:
        """A tick for success, a cross for a failure, a diamond for a cut or cancelled request."""
        wide = 2 * size
        hue = self.frame.hues
        if not outcome:
            return f'<path d="M{x:g} {y - size:.1f}v{wide:.1f}" stroke="{hue["decode"]}"/>'
        if outcome == "failed":
            cross = (
                f"M{x - size:.1f} {y - size:.1f}l{wide:.1f} {wide:.1f}m0 "
                f"{-wide:.1f}l{-wide:.1f} {wide:.1f}"
            )
            return f'<path d="{cross}" stroke-width="3"/>'
        diamond = (
            f"M{x - size:.1f} {y:g}l{size:.1f} {-size:.1f} {size:.1f} {size:.1f} {-size:.1f} "
            f"{size:.1f}z"
        )
        return f'<path d="{diamond}" stroke="{hue["ink"]}"/>'

    # -- the axis ----------------------------------------------------------------------------------

    def ticks(self, distance_px: float) -> tuple[list[float], float]:
        """(milliseconds after the start of the run, the distance of two), with at least
        ``distance_px`` pixels between two ticks."""
        start = self.shown.start * 1e3
        length = self.shown.length
        steps = (digit * 10.0**power for power, digit in product(range(-3, 16), (1, 2, 5)))
        step = next(
            (step for step in steps if step / length * self.frame.width >= distance_px), length
        )
        first = math.ceil(start / step - 1e-9)
        return [i * step for i in range(first, int((start + length) / step + 1e-9) + 1)], step

    def tick_texts(self, distance_px: float) -> Iterator[tuple[float, str]]:
        """(ms after the start of the window, its label)."""
        ticks, step = self.ticks(distance_px)
        decimals = max(0, 3 - math.floor(math.log10(step) + 1e-9))
        for at in ticks:
            yield at - self.shown.start * 1e3, f"{at / 1e3:.{min(decimals, 6)}f}"

    def grid(self) -> Iterator[str]:
        for at, _ in self.tick_texts(PAGE_TICK if self.frame.fluid else FIGURE_TICK):
            yield f'<path d="M{self.x(at):g} {self.frame.top - 6}V{self.bottom + 6:.1f}"/>'

    # -- texts of a page ---------------------------------------------------------------------------

    def share(self, ms: float) -> float:
        """The share of the width in percent."""
        return round(self.x(ms) / self.frame.width * 100, 2)

    def page_rows(self) -> Iterator[str]:
        """A line's label, and the place to point at, behind everything else."""
        for row, line in enumerate(self.rows):
            y = self.y(row)
            tokens = "" if line.tokens is None else truncate_text(f"{line.tokens:,}", 9)
            high = f'y="{y - self.pitch / 2:.1f}" height="{self.pitch:.1f}"'
            yield (
                f'<g class=row><rect width="100%" {high}/><rect x=-{MARGIN} width={MARGIN} {high}/>'
                f'<text x=-8 y="{y + 3.4:.1f}" '
                f"text-anchor=end>{tokens}</text><title>{escape_text(line.text)}</title></g>"
            )

    def page_texts(self) -> Iterator[str]:
        """What is not stretched: ends, ticks and the length of the stall."""
        yield from self.ends()
        hue = self.frame.hues
        _, fine = self.ticks(PAGE_TICK)
        # on a phone only every so many ticks has room
        fine_on_phone = fine / self.shown.length * PHONE
        times = next(
            (times for times in (1, 2, 5, 10, 20) if times * fine_on_phone >= PHONE_TICK), 1
        )
        start = self.shown.start * 1e3
        ticks = (
            f"<text{'' if round((at + start) / fine) % times == 0 else ' class=fine'} "
            f'x="{self.share(at):g}%" '
            f'y="{self.bottom + 18:.1f}">{text} s</text>'
            for at, text in self.tick_texts(PAGE_TICK)
        )
        axis = f'<text x="50%" y="{self.bottom + 34:.1f}">time since the start of the run</text>'
        yield from wrap_group(
            f'class=axis fill="{hue["muted"]}" text-anchor=middle', [*ticks, axis]
        )
        if (at := self.stall_at()) is not None:
            anchor = "middle"
            x = sum(at) / 2
            percent = round(x / self.frame.width * 100, 2)
            # near an edge the text goes on inwards
            if percent < 25:
                anchor, x = "start", at[0]
            elif percent > 75:
                anchor, x = "end", at[1]
            place = f'x="{x / self.frame.width * 100:.2f}%" y=12 text-anchor={anchor}'
            yield (
                f'<text {place} fill="{hue["stall"]}" '
                f"font-weight=600>{escape_text(self.shown.stall_text)}</text>"
            )

    # -- the legend --------------------------------------------------------------------------------

    def legend(self) -> Iterator[tuple[str, str]]:
        """(mark, 34 wide and 14 high around y = 0; its meaning) for what is shown."""
        hue, bar = self.frame.hues, 'height="14" width="34" y="-7"'
        ends = {line.outcome for line in self.rows if self.within(line.closed)}
        cut_off = sorted(ends - {"", "failed"})
        dots = f'stroke="{hue["decode"]}" stroke-width="7" stroke-linecap="round"'
        if any(self.wait(row, line) for row, line in enumerate(self.rows)):
            yield f'<rect {bar} x="0" fill="{hue["wait"]}"/>', "waiting for a prefill slot"
        streams = any(line.first is not None for line in self.rows)
        yield (
            f'<rect {bar} x="0" fill="{hue["prefill"]}"/>',
            "awaiting first token" if streams else "in flight",
        )
        if any(len(line.chunks) > 1 for line in self.rows):
            yield f'<path d="M3 0h0m14 0h0m14 0h0" {dots}/>', "decoding, each chunk a dot"
        if any(self.stalls(row, line) for row, line in enumerate(self.rows)):
            stroke = f'<path d="M0 0h34" stroke="{hue["stall"]}" stroke-width="3"/>'
            yield stroke, f"no chunk for over {format_duration(self.shown.slow / 1e3)}"
        if "" in ends:
            yield self._end("", 17, 0, 9), "end"
        if "failed" in ends:
            yield f'<g stroke="{hue["fail"]}">{self._end("failed", 17, 0, 8)}</g>', "failed"
        if cut_off:
            back = "var(--back)" if self.frame.fluid else "#fff"
            yield (
                f'<g fill="{back}">{self._end("cut", 17, 0, 8)}</g>',
                truncate_text(", ".join(cut_off), LEGEND_LETTERS),
            )
