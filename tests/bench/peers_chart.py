"""Peers chart: draws what ``make peers`` measured as an SVG with bars on logarithmic scales."""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

WIDTH: Final = 760
NAMES_END: Final = 190
PANEL: Final = 225
"""A panel's longest bar has this length."""
PANELS_APART: Final = 285
ROW: Final = 26
TOP: Final = 64
STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.small{font-size:12px;fill:#57606a}"
    ".ours{fill:#0a7d6c}.other{fill:#9aa4ae}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9da7b1}"
    ".ours{fill:#2bb5a0}.other{fill:#6e7781}}"
)


class Bar(NamedTuple):
    tool: str
    ttft_p99_off_ms: float
    cpu_us: float
    """CPU per token without the tool's start."""


def measure_bar(value: float, least: float, most: float) -> float:
    """Returns the length of a bar in pixels: 4 at ``least`` or below, PANEL at ``most``."""
    share = math.log(max(value, least) / least) / math.log(most / least)
    return 4 + (PANEL - 4) * min(1.0, share)


def draw_chart(bars: Sequence[Bar], title: str, ours: str = "locust-llm") -> str:
    """Draws two panels, in the order of the error of TTFT p99."""
    ordered = sorted(bars, key=lambda bar: bar.ttft_p99_off_ms)
    errors = [max(bar.ttft_p99_off_ms, 0.01) for bar in ordered]
    costs = [bar.cpu_us for bar in ordered]
    height = TOP + ROW * len(ordered) + 14
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">',
        f"<style>{STYLE}</style>",
        f'<text x="0" y="16" font-weight="600">{title}</text>',
        f'<text class="small" x="{NAMES_END}" y="48">TTFT p99 too high by (ms, log scale)</text>',
        f'<text class="small" x="{NAMES_END + PANELS_APART}" y="48">'
        "CPU per token, start apart (µs, log scale)</text>",
    ]
    for place, bar in enumerate(ordered):
        middle = TOP + ROW * place + 10
        kind = "ours" if bar.tool == ours else "other"
        lines.append(f'<text x="0" y="{middle + 5}">{bar.tool}</text>')
        error = measure_bar(errors[place], 0.01, max(errors))
        cost = measure_bar(bar.cpu_us, min(costs) / 2, max(costs))
        error_label = f"{errors[place]:.2f}" if errors[place] < 1 else f"{errors[place]:,.0f}"
        lines += [
            _draw_bar(NAMES_END, middle, error, kind, error_label),
            _draw_bar(NAMES_END + PANELS_APART, middle, cost, kind, f"{bar.cpu_us:,.0f}"),
        ]
    return "\n".join([*lines, "</svg>", ""])


def _draw_bar(left: int, middle: int, length: float, kind: str, label: str) -> str:
    return (
        f'<rect class="{kind}" x="{left}" y="{middle - 7}" width="{length:.1f}" height="14" '
        f'rx="2"/><text x="{left + length + 6:.1f}" y="{middle + 5}">{label}</text>'
    )
