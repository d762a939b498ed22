"""Drawing: a timeline as a picture of its own, for a talk or a text: SVG, and PNG made of it.

A line a request, its prefill as a bar, a dot a chunk: what timeline.js draws, at the size of a slide. The same records give
the same bytes. Every text is escaped, and what would push others aside is cut.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from importlib import import_module
from statistics import median
from typing import Final

import numpy as np

from locust_llm.core.run import Run
from locust_llm.core.text import clean, cut, duration
from locust_llm.report.analysis.delivery import arrivals

from .lines import Line
from .timeline import Scene, Timeline, timeline

WIDTH, HEIGHT = 1600, 900
LEFT, RIGHT, TOP, BOTTOM = 130, 40, 156, 128
"""Around the lines."""
DOTS: Final = 4 * (WIDTH - LEFT - RIGHT)
"""Chunks are told apart to a quarter of a pixel; those whose dots touch become one stroke, which looks the same."""
MOST: Final = 150
"""So many lines can still be told apart."""
ZOOM: Final = 2
"""Pixels of a PNG for one of the drawing."""
TICK: Final = 110
"""Pixels between two ticks, at least."""
LABEL: Final = 17
"""Of a line; where lines are nearer than that, the longest prompts have one."""
LETTER: Final = 0.54
"""How wide one is, on average, for one of font size: nothing measures text here."""
FONTS: Final = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', 'Noto Sans', sans-serif"
INK, MUTED, GRID, WAIT, PREFILL, DECODE, STALL, FAIL = (
    "#1b2026", "#5a6570", "#dde2e7", "#aab3bc", "#e08a2e", "#0b6f80", "#d1242f", "#a40e26",
)  # fmt: skip
"""Orange and blue-green differ in lightness too, for print in grey; ends differ in shape."""


def drawing(scene: Scene, run: Run, title: str = "") -> str:
    """The SVG."""
    shown = timeline(scene, DOTS)
    name = title or f"{run.name}: {scene.title}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'font-family="{FONTS}" font-size="18" role="img">',
            f"<title>{_said(name)}</title>",
            f"<desc>{_said(shown.caption)}</desc>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
            *_head(scene, run, name),
            *_Plot(shown).parts(),
            "</svg>\n",
        ]
    )


def png(svg: str) -> bytes:
    """Raises ValueError of one sentence where that cannot be."""
    try:
        # by name: it is there only with the extra
        render = import_module("resvg_py").svg_to_bytes
    except ImportError:
        raise ValueError("a PNG needs the package resvg_py: pip install 'locust-llm[figure]'") from None
    blank, text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20">'
        f'<text y="15" font-family="{FONTS}">{letter}</text></svg>'
        for letter in (" ", "M")
    )
    if render(svg_string=blank) == render(svg_string=text):
        raise ValueError(
            "a PNG needs a font, and this machine has none: install one (fonts-dejavu-core), or write an SVG"
        )
    return bytes(render(svg_string=svg, zoom=ZOOM))


def format_of(name: str) -> Callable[[str], bytes]:
    """What makes an SVG the file of this name. Raises ValueError of one sentence where nothing does."""
    if name.lower().endswith(".png"):
        return png
    if name.lower().endswith(".svg"):
        return str.encode
    raise ValueError(f"{name}: the name of a drawing ends in .svg or .png")


class _Plot:
    """Where things are. A group of elements for each kind, the later ones on top."""

    def __init__(self, shown: Timeline) -> None:
        self.shown, self.rows = shown, shown.rows
        self.pitch = (HEIGHT - TOP - BOTTOM) / max(len(shown.rows), 6)
        self.bar = min(self.pitch * 0.74, 30.0)
        self.dot = round(min(max(min(self.pitch * 0.4, self._usual_gap() * 0.7), 2.4), 7.0), 1)
        self.bottom = TOP + len(shown.rows) * self.pitch

    def _usual_gap(self) -> float:
        """Pixels between two chunks; infinite where there are no two."""
        gaps = [b - a for line in self.rows for a, b in zip(line.chunks, line.chunks[1:], strict=False)]
        return median(gaps) / self.shown.length * (WIDTH - LEFT - RIGHT) if gaps else float("inf")

    def x(self, ms: float) -> float:
        """Tenths of a pixel; what lies outside of the window is at its edge."""
        clipped = min(max(ms, 0.0), self.shown.length)
        return round(LEFT + clipped / self.shown.length * (WIDTH - LEFT - RIGHT), 1)

    def y(self, row: int) -> float:
        return round(TOP + (row + 0.5) * self.pitch, 1)

    def within(self, ms: float) -> bool:
        return 0 <= ms <= self.shown.length

    def parts(self) -> Iterator[str]:
        rows = list(enumerate(self.rows))
        yield from _group(f'stroke="{GRID}"', self.grid())
        yield from self.stall()
        yield from _group(f'id="wait" fill="{WAIT}"', (self.wait(i, r) for i, r in rows))
        yield from _group(f'id="prefill" fill="{PREFILL}"', (self.prefill(i, r) for i, r in rows))
        yield from _group(f'id="decode" stroke="{DECODE}" stroke-opacity="0.45"', (self.stream(i, r) for i, r in rows))
        yield from _group(f'id="stalls" stroke="{STALL}" stroke-width="2"', (self.stood(i, r) for i, r in rows))
        dots = f'id="chunks" fill="none" stroke="{DECODE}" stroke-width="{self.dot:.1f}" stroke-linecap="round"'
        yield from _group(dots, (self.chunks(i, r) for i, r in rows))
        yield from _group(f'id="ends" fill="#fff" stroke="{FAIL}" stroke-width="2"', (self.end(i, r) for i, r in rows))
        yield from _group(f'fill="{INK}" text-anchor="end" font-size="16"', self.labels())
        yield from _group(f'fill="{MUTED}" text-anchor="middle"', self.axis())
        yield from _group(f'id="legend" fill="{INK}"', self.legend())

    def wait(self, row: int, line: Line) -> str:
        """At the gate, if that can be seen."""
        over = line.sent if line.admitted is None else line.admitted
        end = line.closed if over is None else over
        return self.block(row, line.asked, end, self.bar * 0.4) if self.x(end) - self.x(line.asked) >= 1 else ""

    def prefill(self, row: int, line: Line) -> str:
        """From the send to the first chunk, or to the end without one."""
        end = line.closed if line.first is None else line.first
        if line.sent is None or end < 0 or line.sent > self.shown.length:
            return ""
        return self.block(row, line.sent, end, self.bar)

    def block(self, row: int, start: float, end: float, height: float) -> str:
        left, right = self.x(start), self.x(end)
        size = f'width="{max(right - left, 1):.1f}" height="{height:.1f}"'
        return f'<rect x="{left:g}" y="{self.y(row) - height / 2:.1f}" {size}/>'

    def stream(self, row: int, line: Line) -> str:
        if len(line.chunks) < 2:
            return ""
        return f'<path d="M{self.x(line.chunks[0]):g} {self.y(row):g}H{self.x(line.chunks[-1]):g}"/>'

    def stood(self, row: int, line: Line) -> str:
        """Where nothing came for long."""
        slow = self.shown.slow or float("inf")
        gaps = zip(line.chunks, line.chunks[1:], strict=False)
        found = [
            f"M{self.x(a):g} {self.y(row):g}H{self.x(b):g}" for a, b in gaps if b - a > slow and self.x(a) < self.x(b)
        ]
        return f'<path d="{"".join(found)}"/>' if found else ""

    def chunks(self, row: int, line: Line) -> str:
        """A dot each, a stroke for those that touch; in tenths of a pixel, so that nothing adds up."""
        at = [round(self.x(ms) * 10) for ms in line.chunks if self.within(ms)]
        if not at:
            return ""
        strokes = [[at[0], at[0]]]
        for x in at[1:]:
            if x - strokes[-1][1] < self.dot * 10:
                strokes[-1][1] = x
            else:
                strokes.append([x, x])
        found, pen = [f"M{strokes[0][0] / 10:g} {self.y(row):g}"], strokes[0][0]
        for start, end in strokes:
            found.append((f"m{(start - pen) / 10:g} 0" if start != pen else "") + f"h{(end - start) / 10:g}")
            pen = end
        return f'<path d="{"".join(found)}"/>'

    def end(self, row: int, line: Line) -> str:
        size = min(max(self.pitch * 0.36, 3.0), 9.0)
        return _end(line.outcome, self.x(line.closed), self.y(row), size) if self.within(line.closed) else ""

    def ticks(self) -> tuple[list[float], float]:
        """(milliseconds after the start of the run, the distance of two)."""
        start, length = self.shown.start * 1e3, self.shown.length
        steps = (m * 10.0**e for e in range(-3, 16) for m in (1, 2, 5))
        step = next((s for s in steps if s / length * (WIDTH - LEFT - RIGHT) >= TICK), length)
        first = int(np.ceil(start / step - 1e-9))
        return [i * step for i in range(first, int((start + length) / step + 1e-9) + 1)], step

    def grid(self) -> Iterator[str]:
        for at in self.ticks()[0]:
            yield f'<path d="M{self.x(at - self.shown.start * 1e3):g} {TOP - 6}V{self.bottom + 6:.1f}"/>'

    def axis(self) -> Iterator[str]:
        ticks, step = self.ticks()
        decimals = max(0, 3 - int(np.floor(np.log10(step) + 1e-9)))
        for at in ticks:
            x = self.x(at - self.shown.start * 1e3)
            yield f'<text x="{x:g}" y="{self.bottom + 28:.1f}">{at / 1e3:.{min(decimals, 6)}f}</text>'
        middle = (LEFT + WIDTH - RIGHT) / 2
        yield f'<text x="{middle:g}" y="{self.bottom + 56:.1f}">seconds since the start of the run</text>'

    def stall(self) -> Iterator[str]:
        """A band through all lines, and its length above."""
        if self.shown.stall is None or self.shown.stall[1] < 0 or self.shown.stall[0] > self.shown.length:
            return
        left, right = map(self.x, self.shown.stall)
        text, half = self.shown.stall_text, len(self.shown.stall_text) * 20 * LETTER / 2
        middle = min(max((left + right) / 2, LEFT + half + 20), WIDTH - RIGHT - half)
        height = self.bottom - TOP + 12
        yield (
            f'<rect id="stall" x="{left:g}" y="{TOP - 6}" width="{right - left:.1f}" height="{height:.1f}" fill="{STALL}" '
            'fill-opacity="0.13"/>'
        )
        yield f'<path d="M{left:g} {TOP - 10}v-6H{right:g}v6" fill="none" stroke="{STALL}" stroke-width="2"/>'
        yield (
            f'<text x="{middle:.1f}" y="{TOP - 25}" fill="{STALL}" font-size="20" font-weight="700" text-anchor="middle">'
            f"{_said(text)}</text>"
        )

    def labels(self) -> Iterator[str]:
        """Input tokens, the longest prompts first where there is no room for all."""
        yield f'<text x="{LEFT - 12}" y="{TOP - 14}" fill="{MUTED}">input tokens</text>'
        known = [(line.tokens, row) for row, line in enumerate(self.rows) if line.tokens is not None]
        taken: list[float] = []
        for tokens, row in sorted(known, key=lambda one: (-one[0], one[1])):
            y = self.y(row)
            if all(abs(y - other) >= LABEL for other in taken):
                taken.append(y)
                yield f'<text x="{LEFT - 12}" y="{y + 5.5:.1f}">{cut(f"{tokens:,}", 12)}</text>'

    def legend(self) -> Iterator[str]:
        """Only what is there."""
        y, bar = HEIGHT - 30, f'height="14" width="34" y="{HEIGHT - 37}"'
        ends = {line.outcome for line in self.rows if self.within(line.closed)}
        cut_off = sorted(ends - {"", "failed"})
        there = [
            (
                any(self.wait(row, line) for row, line in enumerate(self.rows)),
                f'<rect {bar} x="0" fill="{WAIT}"/>',
                "waiting at the gate",
            ),
            (True, f'<rect {bar} x="0" fill="{PREFILL}"/>', "in prefill"),
            (
                True,
                f'<path d="M3 {y}h0m14 0h0m14 0h0" stroke="{DECODE}" stroke-width="7" stroke-linecap="round"/>',
                "decoding, each chunk a dot",
            ),
            (
                any(self.stood(row, line) for row, line in enumerate(self.rows)),
                f'<path d="M0 {y}h34" stroke="{STALL}" stroke-width="3"/>',
                f"nothing for over {duration(self.shown.slow / 1e3)}",
            ),
            ("" in ends, _end("", 17, y, 9), "end"),
            ("failed" in ends, f'<g stroke="{FAIL}">{_end("failed", 17, y, 8)}</g>', "failed"),
            (bool(cut_off), f'<g fill="#fff">{_end("cut", 17, y, 8)}</g>', ", ".join(cut_off)),
        ]
        x = float(LEFT)
        for _, swatch, text in (one for one in there if one[0]):
            text = cut(text, 30)
            label = f'<text x="44" y="{y + 6}">{_said(text)}</text>'
            yield f'<g transform="translate({x:g})"><g stroke-width="2">{swatch}</g>{label}</g>'
            x += round(44 + len(text) * 18 * LETTER + 14)


def _head(scene: Scene, run: Run, name: str) -> Iterator[str]:
    """What it is, under which conditions, and whether of a simulator."""
    wide = WIDTH - 2 * RIGHT - (230 if scene.simulated else 0)
    yield (
        f'<text x="{RIGHT}" y="54" font-size="34" font-weight="700" fill="{INK}">'
        f"{_said(cut(clean(name), int(wide / 34 / LETTER)))}</text>"
    )
    about = cut(clean("  \N{MIDDLE DOT}  ".join(_about(scene, run))), int((WIDTH - 2 * RIGHT) / 20 / LETTER))
    yield f'<text x="{RIGHT}" y="90" font-size="20" fill="{MUTED}">{_said(about)}</text>'
    if scene.simulated:
        x = WIDTH - RIGHT - 200
        yield f'<rect x="{x}" y="20" width="200" height="44" rx="6" fill="#fff" stroke="{INK}" stroke-width="2"/>'
        yield (
            f'<text x="{x + 100}" y="51" font-size="26" font-weight="700" text-anchor="middle" fill="{INK}">SIMULATED</text>'
        )


def _about(scene: Scene, run: Run) -> Iterator[str]:
    """Of the conditions, those that are known."""
    s = run.settings
    if run.model or s.model:
        yield run.model or s.model or ""
    if run.server and not scene.simulated:
        yield run.server
    if s.open_loop:
        yield arrivals(s)
    elif s.users is not None:
        yield f"{s.users} {'user' if s.users == 1 else 'users'}"
    if s.prefill_concurrency is not None:
        yield f"prefill limit {s.prefill_concurrency}"
    if len(scene.records) < scene.under_way:
        yield f"{len(scene.records)} of {scene.under_way:,} requests under way, a sample"


def _end(outcome: str, x: float, y: float, size: float) -> str:
    """A tick where all was well, a cross on a failure, a diamond on what was cut or cancelled."""
    wide = 2 * size
    if not outcome:
        return f'<path d="M{x:g} {y - size:.1f}v{wide:.1f}" stroke="{DECODE}"/>'
    if outcome == "failed":
        cross = f"M{x - size:.1f} {y - size:.1f}l{wide:.1f} {wide:.1f}m0 {-wide:.1f}l{-wide:.1f} {wide:.1f}"
        return f'<path d="{cross}" stroke-width="3"/>'
    diamond = f"M{x - size:.1f} {y:g}l{size:.1f} {-size:.1f} {size:.1f} {size:.1f} {-size:.1f} {size:.1f}z"
    return f'<path d="{diamond}" stroke="{INK}"/>'


def _group(attributes: str, elements: Iterable[str]) -> Iterator[str]:
    """Nothing of nothing."""
    found: Sequence[str] = [element for element in elements if element]
    if found:
        yield f"<g {attributes}>"
        yield from found
        yield "</g>"


def _said(text: str) -> str:
    return escape(clean(text))
