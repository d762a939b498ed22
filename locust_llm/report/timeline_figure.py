"""Timeline figure: a timeline at the size of a slide, with its conditions, as SVG, and PNG made of
it.

The same records give the same bytes. Every text is escaped, and a text that would push others aside
is cut.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Final

from locust_llm.records.run_facts import Run
from locust_llm.report.open_loop_delivery import describe_arrivals
from locust_llm.report.users_and_limit_over_time import (
    describe_users,
    find_limit_in_force,
    find_users_in_force,
    format_limit_range,
)
from locust_llm.text.format import truncate_text

from .chart_data.svg_text import FONTS, LETTER, escape_text, fit_text, wrap_group
from .chart_data.timeline import Timeline, TimelineScene, make_timeline
from .chart_data.timeline_svg import FIGURE_TICK, PlotFrame, TimelinePlot

WIDTH, HEIGHT = 1600, 900
LEFT, RIGHT, TOP, BOTTOM = 130, 40, 156, 128
"""The margins around the lines."""
FIGURE_DOTS: Final = 4 * (WIDTH - LEFT - RIGHT)
"""Chunks are separate dots to a quarter of a pixel. Dots that touch become one stroke, which looks
the same."""
MAX_ROWS: Final = 150
"""More lines cannot be distinguished."""
PNG_SCALE: Final = 2
"""The pixels of a PNG for one of the drawing."""
LABEL_PITCH: Final = 17
"""The pixels between labels. Where lines are nearer, only the longest prompts have one."""
HUES: Final = {
    "ink": "#1b2026", "muted": "#5a6570", "line": "#dde2e7", "wait": "#aab3bc",
    "prefill": "#e08a2e", "decode": "#0b6f80",
    "stall": "#d1242f", "fail": "#a40e26",
}  # fmt: skip
"""Orange and blue-green differ in lightness too, for print in grey; ends differ in shape."""
INK, MUTED = HUES["ink"], HUES["muted"]


def draw_timeline_svg(scene: TimelineScene, run: Run, title: str = "") -> str:
    shown = make_timeline(scene, FIGURE_DOTS)
    name = title or f"{run.name}: {scene.title}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" style="max-width:100%;height:auto" '
            f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 '
            f'0 {WIDTH} {HEIGHT}" '
            f'font-family="{FONTS}" font-size="18" role="img">',
            f"<title>{escape_text(name)}</title>",
            f"<desc>{escape_text(shown.caption)}</desc>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
            *_head(scene, run, name),
            *_figure(shown),
            "</svg>\n",
        ]
    )


def convert_svg_to_png(svg: str) -> bytes:
    """Raises ValueError of one sentence where conversion is impossible."""
    try:
        # by name: it is there only with the extra
        render = import_module("resvg_py").svg_to_bytes
    except ImportError:
        raise ValueError(
            "PNG needs the package resvg_py: pip install 'locust-llm[figure]'"
        ) from None
    blank, text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20">'
        f'<text y="15" font-family="{FONTS}">{letter}</text></svg>'
        for letter in (" ", "M")
    )
    if render(svg_string=blank) == render(svg_string=text):
        raise ValueError(
            "PNG needs a font, but this machine has none: install one (fonts-dejavu-core) or "
            "write SVG"
        )
    return bytes(render(svg_string=svg, zoom=PNG_SCALE))


def choose_image_format(name: str) -> Callable[[str], bytes]:
    """The function from an SVG to the bytes of a file with this name. Raises ValueError of one
    sentence where there is none."""
    if name.lower().endswith(".png"):
        return convert_svg_to_png
    if name.lower().endswith(".svg"):
        return str.encode
    raise ValueError(f"{name}: the name must end in .svg or .png")


def _figure(shown: Timeline) -> Iterator[str]:
    """The plot, its labels, axis and legend."""
    pitch = (HEIGHT - TOP - BOTTOM) / max(len(shown.rows), 6)
    plot = TimelinePlot(
        shown, PlotFrame(LEFT, TOP, WIDTH - LEFT - RIGHT, pitch, 30.0, (2.4, 7.0), HUES)
    )
    yield from plot.marks()
    yield from _stall_text(plot)
    yield from wrap_group(f'fill="{INK}" text-anchor="end" font-size="16"', _labels(plot))
    yield from wrap_group(f'fill="{MUTED}" text-anchor="middle"', _axis(plot))
    yield from wrap_group(f'id="legend" fill="{INK}"', _legend(plot))


def _stall_text(plot: TimelinePlot) -> Iterator[str]:
    """The length of the longest stall, above its band."""
    if (at := plot.stall_at()) is None:
        return
    (left, right), text = at, plot.shown.stall_text
    half = len(text) * 20 * LETTER / 2
    middle = min(max((left + right) / 2, LEFT + half + 20), WIDTH - RIGHT - half)
    yield (
        f'<path d="M{left:g} {TOP - 10}v-6H{right:g}v6" fill="none" stroke="{HUES["stall"]}" '
        f'stroke-width="2"/>'
    )
    font = 'font-size="20" font-weight="700" text-anchor="middle"'
    yield (
        f'<text x="{middle:.1f}" y="{TOP - 25}" fill="{HUES["stall"]}" '
        f"{font}>{escape_text(text)}</text>"
    )


def _labels(plot: TimelinePlot) -> Iterator[str]:
    """The input tokens as labels, the longest prompts first where there is no room for all."""
    yield f'<text x="{LEFT - 12}" y="{TOP - 14}" fill="{MUTED}">input tokens</text>'
    known = [(line.tokens, row) for row, line in enumerate(plot.rows) if line.tokens is not None]
    taken: list[float] = []
    for tokens, row in sorted(known, key=lambda label: (-label[0], label[1])):
        y = plot.y(row)
        if all(abs(y - other) >= LABEL_PITCH for other in taken):
            taken.append(y)
            yield (
                f'<text x="{LEFT - 12}" y="{y + 5.5:.1f}">{truncate_text(f"{tokens:,}", 12)}</text>'
            )


def _axis(plot: TimelinePlot) -> Iterator[str]:
    for at, text in plot.tick_texts(FIGURE_TICK):
        yield f'<text x="{plot.x(at):g}" y="{plot.bottom + 28:.1f}">{text}</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield (
        f'<text x="{middle:g}" y="{plot.bottom + 56:.1f}">seconds since the start of the run</text>'
    )


def _legend(plot: TimelinePlot) -> Iterator[str]:
    x = float(LEFT)
    for swatch, text in plot.legend():
        label = f'<text x="44" y="6">{escape_text(text)}</text>'
        yield (
            f'<g transform="translate({x:g} {HEIGHT - 30})"><g '
            f'stroke-width="2">{swatch}</g>{label}</g>'
        )
        x += round(44 + len(text) * 18 * LETTER + 14)


def _head(scene: TimelineScene, run: Run, name: str) -> Iterator[str]:
    """The title, the conditions, and whether a simulator answered."""
    wide = WIDTH - 2 * RIGHT - (230 if scene.simulated else 0)
    yield (
        f'<text x="{RIGHT}" y="54" font-size="34" font-weight="700" fill="{INK}">'
        f"{fit_text(name, wide, 34)}</text>"
    )
    conditions = "  \N{MIDDLE DOT}  ".join(_list_known_conditions(scene, run))
    about = fit_text(conditions, WIDTH - 2 * RIGHT, 20)
    yield f'<text x="{RIGHT}" y="90" font-size="20" fill="{MUTED}">{about}</text>'
    if scene.simulated:
        x = WIDTH - RIGHT - 200
        yield (
            f'<rect x="{x}" y="20" width="200" height="44" rx="6" fill="#fff" stroke="{INK}" '
            f'stroke-width="2"/>'
        )
        yield (
            f'<text x="{x + 100}" y="51" font-size="26" font-weight="700" text-anchor="middle" '
            f'fill="{INK}">SIMULATED</text>'
        )


def _list_known_conditions(scene: TimelineScene, run: Run) -> Iterator[str]:
    settings = run.settings
    if run.model or settings.model:
        yield run.model or settings.model or ""
    if run.server and not scene.simulated:
        yield run.server
    if settings.open_loop:
        yield describe_arrivals(settings, run.rates)
    elif settings.users is not None:
        yield describe_users(settings.users, find_users_in_force(run))
    if limit := format_limit_range(find_limit_in_force(run)) or settings.prefill_concurrency:
        yield f"prefill limit {limit}"
    if len(scene.records) < scene.under_way:
        yield f"{len(scene.records)} of {scene.under_way:,} requests in flight, a sample"
