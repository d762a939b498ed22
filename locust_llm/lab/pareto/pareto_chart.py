"""Pareto chart: draws curves of sweeps and runs as steps in one SVG, for light and dark screens.

The axes are tokens per second per GPU over tokens per second per user. Lines show only measured
points: up to the pace of a point the server reaches the throughput of that point. Every text is
escaped. Equal curves give equal bytes.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from math import ceil, floor, log10
from typing import Final, NamedTuple

from locust_llm.lab.pareto.pareto_curve import ParetoCurve, describe_curve_differences
from locust_llm.report.chart_data.svg_text import (
    FONTS,
    LETTER,
    TextBox,
    choose_box,
    escape_text,
    fit_text,
    read_theme_colours,
    wrap_text,
)
from locust_llm.report.sections.sweep.best_points import CurvePoint
from locust_llm.text.format import clean_line, format_brief, truncate_text

WIDTH: Final = 1200
LEFT, RIGHT, TOP, BOTTOM = 100, 36, 130, 92
PLOT: Final = 460
ROW: Final = 32
"""A line of the legend is this high."""
HUES: Final = ("p50", "p95", "decode", "p99", "prefill", "ok")
"""The colours of the curves, by their names in static/plots.css. Further curves repeat them with
other dashes."""
DASHES: Final = ("", "9 5", "3 4")
NAME: Final = 50
"""A curve's name is cut after this many letters."""
MAX_CURVES: Final = len(HUES) * len(DASHES)
SHAPES: Final = ("circle", "square", "diamond", "triangle")
COLOURS: Final = ("ink", "muted", "line", "back", "slo", "knee", *HUES)
SMALL, LARGE = 17, 27
"""The sizes of letters."""
PHONE_SMALL: Final = 28
"""The size of letters on a phone."""
LINE: Final = 32
"""The pixels from one line of a warning to the next, with the letters of a phone."""
STYLE: Final = """\
text{fill:var(--ink)}.muted{fill:var(--muted)}.grid{stroke:var(--line)}.back,.hollow{fill:var(--back)}
.slo{stroke:var(--slo)}text.slo{fill:var(--slo)}
.leader{stroke:var(--muted)}
.knee{fill:none;stroke:var(--knee);stroke-width:3}text.knee{fill:var(--knee)}
text,text.slo,text.knee{font-size:17px;paint-order:stroke;stroke:var(--back);stroke-width:4px}.title{font-size:27px}text.warning{font-size:20px}
@media (max-width:640px){text,text.slo,text.knee,text.warning{font-size:28px}.title{font-size:34px}.fine{display:none}}"""
"""Letters grow on a phone because the drawing shrinks. Texts of the class ``fine`` have no space
there."""


HOW_TO_READ: Final = (
    "Up and to the right is better. Numbers: load of each point; hollow: dominated, or client "
    "verdict not OK."
)


class LinearScale(NamedTuple):
    """Maps values from 0 upwards to pixels."""

    ticks: tuple[float, ...]
    at: float
    """The value 0 is at this pixel."""
    pixels: float
    """The whole axis has this length in pixels. It is negative upwards."""

    def __call__(self, value: float) -> float:
        return round(self.at + self.pixels * value / self.ticks[-1], 1)


def draw_pareto_svg(curves: Sequence[ParetoCurve], percentile: float, title: str = "") -> str:
    """Draws the curves as SVG. Raises ValueError without curves, or with more than MAX_CURVES."""
    if not 1 <= len(curves) <= MAX_CURVES:
        raise ValueError(f"a figure has 1 to {MAX_CURVES} curves, and these are {len(curves)}")
    points = list(chain.from_iterable(curve.points for curve in curves))
    x = LinearScale(
        choose_ticks(max(point.per_user for point in points)), LEFT, WIDTH - LEFT - RIGHT
    )
    y = LinearScale(choose_ticks(max(point.per_gpu for point in points)), TOP + PLOT, -PLOT)
    height = TOP + PLOT + BOTTOM + ROW * len(curves)
    warning = wrap_text(describe_curve_differences(curves), WIDTH - LEFT - RIGHT, PHONE_SMALL)
    more = LINE * max(len(warning) - 1, 0)  # further lines make room above the rest
    what = "per GPU" if all(curve.gpus for curve in curves) else "of the whole server"
    lines = [*_place_pace_lines(curves, x)]
    taken = [line.box for line in lines]
    name = title or f"Throughput {what} against throughput per user"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="100%" viewBox="0 {-more} {WIDTH} {height + more}" '
        f'font-family="{FONTS}" '
        f'role="img" style="max-width:{WIDTH}px">',
        f"<title>{escape_text(name)}</title>",
        f"<desc>{escape_text(describe_curves(curves))}</desc>",
        f"<style>{_colours(0)}\n@media "
        f"(prefers-color-scheme:dark){{{_colours(1)}}}\n{STYLE}</style>",
        f'<rect class="back" y="{-more}" width="{WIDTH}" height="{height + more}"/>',
        *_head(curves, name, warning),
        *_axes(x, y, what, percentile),
        *_limits(lines),
    ]
    for i, curve in enumerate(curves):
        parts += _curve(curve, i, x, y)
    parts += _labels(curves, x, y, taken)
    parts += _legend(curves, TOP + PLOT + BOTTOM)
    return "\n".join([*parts, "</svg>\n"])


def _colours(side: int) -> str:
    colours = read_theme_colours()[side]
    return "svg{" + ";".join(f"--{name}:{colours[name]}" for name in COLOURS) + "}"


def describe_curves(curves: Sequence[ParetoCurve]) -> str:
    """Describes the points in words, for screen readers."""
    described = []
    for curve in curves:
        points = []
        for point in curve.points:
            per_gpu = format_brief(point.per_gpu, digits=3)
            per_user = format_brief(point.per_user, digits=3)
            points.append(f"{point.value:g}: {per_gpu} at {per_user}")
        described.append(f"{curve.name}: {', '.join(points)}")
    return "; ".join(described)


def choose_ticks(most: float) -> tuple[float, ...]:
    """Returns ticks from 0 to slightly above ``most``, in 4 to 8 steps of 1, 2 or 5 times a power
    of ten."""
    if not most > 0:
        return 0.0, 1.0
    power = 10.0 ** floor(log10(most / 4))
    end = most * 1.02
    step = max(power * factor for factor in (1, 2, 5) if end / (power * factor) > 4 or factor == 1)
    return tuple(round(step * number, 10) for number in range(ceil(end / step) + 1))


def _head(curves: Sequence[ParetoCurve], name: str, warning: Sequence[str]) -> Iterator[str]:
    """The title, and how to read the chart, or the lines of a warning."""
    simulated = any(curve.simulated for curve in curves)
    title = fit_text(name, WIDTH - LEFT - RIGHT, LARGE)
    top = 76 - LINE * max(len(warning) - 1, 0)
    yield f'<text x="{LEFT}" y="{top - 30}" class="title" font-weight="700">{title}</text>'
    for number, line in enumerate(warning):
        yield f'<text class="slo warning" x="{LEFT}" y="{top + LINE * number}">{line}</text>'
    if not warning:
        yield f'<text class="muted fine" x="{LEFT}" y="{top}">{HOW_TO_READ}</text>'
    if simulated:
        at = WIDTH - RIGHT - 200
        yield (
            f'<rect x="{at}" y="{TOP - 42}" width="200" height="34" rx="6" fill="none" '
            f'style="stroke:var(--ink)"/>'
        )
        yield (
            f'<text x="{at + 100}" y="{TOP - 17}" font-weight="700" '
            f'text-anchor="middle">SIMULATED</text>'
        )


def _axes(x: LinearScale, y: LinearScale, what: str, percentile: float) -> Iterator[str]:
    bottom = TOP + PLOT
    for value in y.ticks:
        yield f'<path class="grid" d="M{LEFT} {y(value)}H{WIDTH - RIGHT}"/>'
        yield (
            f'<text class="muted" x="{LEFT - 12}" y="{y(value) + 6:g}" '
            f'text-anchor="end">{value:,g}</text>'
        )
    for value in x.ticks:
        yield f'<path class="grid" d="M{x(value)} {TOP}V{bottom}"/>'
        yield (
            f'<text class="muted" x="{x(value)}" y="{bottom + 26}" '
            f'text-anchor="middle">{value:,g}</text>'
        )
    which = "median TPOT" if percentile == 50 else f"p{percentile:g} of TPOT"
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield (
        f'<text x="{middle:g}" y="{bottom + 56}" text-anchor="middle">tokens/s per user (1000 / '
        f"{which} in ms)</text>"
    )
    yield f'<text x="{LEFT}" y="{TOP - 18}">output tokens/s {what}</text>'


class PaceLine(NamedTuple):
    """Is the vertical line of a pace that a rule requires, and the left end of its text."""

    at: float
    text: str
    left: float
    height: float

    @property
    def box(self) -> TextBox:
        """The place of the text."""
        return _box_of(self.left, self.height, self.text)


def _box_of(left: float, height: float, text: str) -> TextBox:
    """``height`` is where the letters stand."""
    wide = len(text) * SMALL * LETTER
    return TextBox(left, height - SMALL, left + wide, height + 4)


def _place_pace_lines(curves: Sequence[ParetoCurve], x: LinearScale) -> Iterator[PaceLine]:
    """Yields a line for each pace. A pace beyond the plot is at its edge."""
    limits = chain.from_iterable(curve.limits for curve in curves)
    paces = dict.fromkeys((limit.per_user, limit.rule) for limit in limits)
    for number, (pace, rule) in enumerate(paces):
        beyond = pace > x.ticks[-1]
        at = x(min(pace, x.ticks[-1]))
        text = f"SLO {truncate_text(clean_line(rule), 40)}{' (beyond)' if beyond else ''}"
        wide = len(text) * SMALL * LETTER
        right_of_line = at + wide + 8 <= WIDTH - RIGHT
        left = at + 8 if right_of_line else at - wide - 8
        yield PaceLine(at, text, left, TOP + 20 + 22 * number)


def _limits(lines: Sequence[PaceLine]) -> Iterator[str]:
    for line in lines:
        yield (
            f'<path class="slo" d="M{line.at} {TOP}V{TOP + PLOT}" stroke-width="2" '
            f'stroke-dasharray="6 5"/>'
        )
        yield (
            f'<text class="slo" x="{line.left:g}" y="{line.height:g}">{escape_text(line.text)}</text>'
        )


def _curve(curve: ParetoCurve, number: int, x: LinearScale, y: LinearScale) -> Iterator[str]:
    hue = f"var(--{HUES[number % len(HUES)]})"
    dash = DASHES[number // len(HUES)]
    if steps := curve.steps:
        path = f"M{LEFT} {y(steps[0][1])}H{x(steps[0][0])}"
        for pace, throughput in steps[1:]:
            path += f"V{y(throughput)}H{x(pace)}"
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        yield (
            f'<path d="{path}V{y(0)}" fill="none" style="stroke:{hue}" stroke-width="3" '
            f'stroke-opacity=".85"{dashed}/>'
        )
    for point in curve.points:
        yield _dot(x(point.per_user), y(point.per_gpu), number, hue, filled=point.best)
        if point.value == curve.knee:
            yield f'<circle class="knee" cx="{x(point.per_user)}" cy="{y(point.per_gpu)}" r="13"/>'


def _dot(at: float, height: float, number: int, hue: str, *, filled: bool) -> str:
    """Draws a point. Curves also differ in shape, for grey prints and for readers who cannot
    distinguish the colours."""
    size = 6.5
    style = f'style="fill:{hue};stroke:{hue}"' if filled else f'class="hollow" style="stroke:{hue}"'
    shape = SHAPES[number % len(SHAPES)]
    if shape == "circle":
        return f'<circle cx="{at}" cy="{height}" r="{size}" stroke-width="2" {style}/>'
    corners = {
        "square": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
        "diamond": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
        "triangle": ((0, -1.3), (1.2, 0.9), (-1.2, 0.9)),
    }[shape]
    path = "L".join(f"{at + dx * size:.1f} {height + dy * size:.1f}" for dx, dy in corners)
    return f'<path d="M{path}Z" stroke-width="2" {style}/>'


BESIDE: Final = ((11, -11), (11, 24), (-11, -11), (-11, 24))
"""Places of a label, from its point to its nearer end, in pixels."""
FURTHER: Final = ((30, -40), (30, 52), (-30, -40), (-30, 52), (60, -70), (60, 80), (-60, -70))
"""Places that are joined with their point by a line."""


def _labels(
    curves: Sequence[ParetoCurve], x: LinearScale, y: LinearScale, taken: list[TextBox]
) -> Iterator[str]:
    """Yields the load of each point, starting with the best points and knees. A label stands where
    it overlaps no other."""
    labelled = list[tuple[ParetoCurve, CurvePoint]]()
    for curve in curves:
        labelled += [(curve, point) for point in curve.points]
    for curve, point in sorted(labelled, key=lambda pair: not _important(*pair)):
        spot = x(point.per_user), y(point.per_gpu)
        knee = f" knee ({curve.knee_rule})" if point.value == curve.knee else ""
        number = f"{point.value:g}"
        box = choose_box(_list_places(spot, number + knee), taken)
        taken.append(box)
        ends = point in (curve.points[0], curve.points[-1])
        kind = "" if ends else ' class="fine"'
        if knee:
            kind = ' class="knee"'
        if leader := _draw_leader(spot, box):
            yield leader
        shown = f'{number}<tspan class="fine">{escape_text(knee)}</tspan>' if knee else number
        yield f'<text{kind} x="{box.left:g}" y="{box.bottom - 4:g}">{shown}</text>'


def _list_places(spot: tuple[float, float], text: str) -> list[TextBox]:
    """The places of a text beside its point that lie in the drawing."""
    wide = len(text) * SMALL * LETTER
    boxes = list[TextBox]()
    for dx, dy in (*BESIDE, *FURTHER):
        left = spot[0] + dx - (wide if dx < 0 else 0)
        boxes.append(_box_of(round(left, 1), round(spot[1] + dy, 1), text))
    inside = [box for box in boxes if box.left >= LEFT and box.right <= WIDTH - RIGHT]
    return inside or boxes


def _draw_leader(spot: tuple[float, float], box: TextBox) -> str:
    """A line from a point to its label. Empty: the label stands beside it."""
    if box.bottom > spot[1] - 30 and box.top < spot[1] + 30:
        return ""
    end = box.bottom if box.bottom < spot[1] else box.top
    return f'<path class="leader" d="M{spot[0]} {spot[1]}L{(box.left + box.right) / 2:g} {end:g}"/>'


def _important(curve: ParetoCurve, point: CurvePoint) -> bool:
    return point.best or point.value == curve.knee


def _legend(curves: Sequence[ParetoCurve], top: float) -> Iterator[str]:
    for i, curve in enumerate(curves):
        hue = f"var(--{HUES[i % len(HUES)]})"
        at = top + ROW * i
        dash = f' stroke-dasharray="{DASHES[i // len(HUES)]}"' if DASHES[i // len(HUES)] else ""
        yield (
            f'<path d="M{LEFT} {at - 6}H{LEFT + 44}" style="stroke:{hue}" stroke-width="3"{dash}/>'
        )
        yield _dot(LEFT + 22, at - 6, i, hue, filled=True)
        gpus = "" if curve.gpus is None else f", {curve.gpus} GPU{'s' * (curve.gpus > 1)}"
        flaw = f", not valid by {curve.not_valid}" if curve.not_valid else ""
        name = truncate_text(clean_line(curve.name), NAME)
        room = WIDTH - LEFT - 90 - len(name) * SMALL * LETTER
        about = fit_text(f" (by {curve.axis}{gpus}{flaw})", room, SMALL)
        yield (
            f'<text x="{LEFT + 56}" y="{at}">{escape_text(name)}<tspan '
            f'class="fine">{about}</tspan></text>'
        )
