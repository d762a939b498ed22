"""Line charts as SVG: what the pages of the seeds need, and no more."""

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 320, 64, 150, 34, 48
HUES = ("#2563c9", "#d1690f", "#2b8a4b", "#a8071a", "#6f42c1", "#4b5563")


class Line(NamedTuple):
    name: str
    x: Sequence[float]
    y: Sequence[float]


def chart(
    title: str,
    x_label: str,
    y_label: str,
    lines: Sequence[Line],
    *,
    log_x: bool = False,
    log_y: bool = False,
) -> str:
    """y begins at 0 unless it is logarithmic; values must be above 0 on a logarithmic axis."""
    x_ticks = _ticks([value for line in lines for value in line.x], log=log_x)
    y_ticks = _ticks([0.0] * (not log_y) + [value for line in lines for value in line.y], log=log_y)

    def place(value: float, ticks: Sequence[float], log: bool) -> float:
        """0 to 1 from the first tick to the last."""
        low, high = ticks[0], ticks[-1]
        return math.log(value / low) / math.log(high / low) if log else (value - low) / (high - low)

    def at_x(value: float) -> float:
        return LEFT + place(value, x_ticks, log_x) * (WIDTH - LEFT - RIGHT)

    def at_y(value: float) -> float:
        return HEIGHT - BOTTOM - place(value, y_ticks, log_y) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="20" font-size="14" font-weight="600">{escape(title)}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" '
        f'text-anchor="middle">{escape(x_label)}</text>',
        f'<text transform="translate(14 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" '
        f'text-anchor="middle">{escape(y_label)}'
        "</text>",
    ]
    for tick in x_ticks:
        parts.append(
            f'<text x="{at_x(tick):.1f}" y="{HEIGHT - BOTTOM + 16}" '
            f'text-anchor="middle">{tick:g}</text>'
        )
    for tick in y_ticks:
        parts.append(f'<path d="M{LEFT} {at_y(tick):.1f}H{WIDTH - RIGHT}" stroke="#d5dade"/>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{at_y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
    for number, line in enumerate(lines):
        hue = HUES[number % len(HUES)]
        points = [f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in zip(line.x, line.y, strict=True)]
        parts.append(
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{hue}" stroke-width="2"/>'
        )
        parts += [
            f'<circle cx="{p.split(",")[0]}" cy="{p.split(",")[1]}" r="3" fill="{hue}"/>'
            for p in points
        ]
        y = TOP + 12 + 18 * number
        parts.append(
            f'<path d="M{WIDTH - RIGHT + 10} {y - 4}h18" stroke="{hue}" stroke-width="2"/>'
        )
        parts.append(f'<text x="{WIDTH - RIGHT + 34}" y="{y}">{escape(line.name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _ticks(values: Sequence[float], *, log: bool) -> list[float]:
    """Round numbers from below the least value to above the greatest; on a logarithmic axis 1, 2,
    5, 10, 20, ..."""
    low, high = min(values), max(values)
    if log:
        steps = [m * 10.0**e for e in range(-6, 9) for m in (1, 2, 5)]
        first = max(index for index, step in enumerate(steps) if step <= low * 1.000001)
        last = min(index for index, step in enumerate(steps) if step >= high * 0.999999)
        return steps[first : max(last, first + 1) + 1]
    size = 10.0 ** math.floor(math.log10((high - low) or 1))
    step = next(size * m for m in (0.2, 0.5, 1, 2) if (high - low) / (size * m) <= 6)
    first_tick, last_tick = (
        math.floor(low / step),
        max(math.ceil(high / step), math.floor(low / step) + 1),
    )
    return [round(index * step, 9) for index in range(first_tick, last_tick + 1)]
