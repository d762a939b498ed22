"""Page: report.html, the document of tables.py with plots in one file that asks nothing of the network."""

import html
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .metrics import DEFINITIONS
from .occupancy import Occupancy, thinned
from .record import OK
from .run import Run
from .slo import FAIL, INCONCLUSIVE, PASS
from .summary import Summary
from .tables import Block, Heading, Table, Text, clean, document

Floats = NDArray[np.float64]

DOTS: Final = 1500
"""More requests than that are drawn as quantiles of narrow stretches of time, their extremes included."""
STRETCHES: Final = 40
POINTS: Final = 400
BINS: Final = 50
LENGTHS: Final = ["input_tokens", "output_tokens", "asked_input_tokens", "asked_output_tokens", "ttft_s"]
RESULTS: Final = {PASS: "pass", FAIL: "loud", INCONCLUSIVE: "open"}
"""The classes of cells that hold the result of a rule."""
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 250, 48, 20, 8, 44

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2329; --faint: #d5dade; --back: #fff; --soft: #f3f5f7;
  --a: #2563c9; --b: #d1690f; --c: #2b8a4b; --loud: #a8071a; }
@media (prefers-color-scheme: dark) { :root { --ink: #dfe4e8; --faint: #3a4249; --back: #14181b; --soft: #1f2529;
  --a: #74a7ff; --b: #f0a35c; --c: #6fcf8f; --loud: #ff8f85; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); max-width: 66rem;
  margin: 0 auto; padding: 0 1rem 3rem; overflow-wrap: break-word; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .87rem; }
td, th { padding: .2rem .6rem; border-bottom: 1px solid var(--faint); text-align: left; vertical-align: top; }
.numbers td, .numbers th { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.numbers td:first-child, .numbers th:first-child { text-align: left; white-space: normal; min-width: 9rem; }
.loud, .numbers .loud { color: var(--loud); font-weight: 600; }
.pass { color: var(--c); font-weight: 600; } .open { color: var(--b); font-weight: 600; }
figure { margin: 1.5rem 0; } figcaption { font-weight: 600; } svg { width: 100%; max-width: 54rem; display: block; }
svg text { fill: var(--ink); font-size: 12px; }
@media (max-width: 40rem) { svg text { font-size: 17px; } } td:first-child { min-width: 6rem; }
 .grid { stroke: var(--faint); }
th { white-space: nowrap; }
.a { --hue: var(--a); } .b { --hue: var(--b); } .c { --hue: var(--c); } .key { color: var(--hue); margin-right: 1rem; }
polyline { fill: none; stroke: var(--hue); stroke-width: 1.6; } circle { fill: var(--hue); opacity: .45; }
.limit { --hue: var(--c); } polyline.limit { stroke-width: 5; opacity: .45; }
"""


class Series(NamedTuple):
    """Something to draw: ``x`` and ``y`` as long, NaN breaks a line."""

    name: str
    hue: str
    x: Floats
    y: Floats
    dots: bool = False


def page(summary: Summary, run: Run, requests: pd.DataFrame, levels: Occupancy) -> str:
    """The whole page. Every text is escaped: model names and error messages come from outside."""
    blocks = list(document(summary, run))
    metrics = blocks.index(Heading("Metrics"))
    split = next(i for i, block in enumerate(blocks) if i > metrics and isinstance(block, Heading))
    parts = [
        *map(_html, blocks[:split]),
        *plots(requests, levels, run.started_at),
        *map(_html, blocks[split:]),
        _html(Heading("Definitions")),
        _html(Table(("Word", "Meaning"), tuple(DEFINITIONS.items()), numbers=False)),
    ]
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>\n"
        "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name=viewport content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(run.name)}</title>\n<style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def plots(requests: pd.DataFrame, levels: Occupancy, origin: float) -> Iterator[str]:
    """TTFT, ITL and the gate over the seconds since ``origin`` (Unix seconds); lengths, and TTFT over them."""
    chosen = (requests["outcome"] == OK) & (requests["phase"] == "profiling")
    ok = requests.loc[chosen, ["sent_at", "ttft_s", "itl_s"]]
    for title, column in (("Time to First Token (ms)", "ttft_s"), ("Inter Token Latency (ms)", "itl_s")):
        known = ok[ok[column].notna()]
        at = known["sent_at"].to_numpy(np.float64) - origin
        yield figure(title, "s since the start, by the time of the send", _cloud(at, known[column].to_numpy() * 1e3))
    thin = thinned(levels, POINTS)
    at = thin["at"].to_numpy(np.float64) - origin
    series = [
        Series(name, hue, at, thin[column].to_numpy(np.float64))
        for name, hue, column in (
            ("limit", "limit", "limit"),  # below "in prefill", which mostly lies on it
            ("in prefill", "a", "used"),
            ("waiting at the gate", "b", "waiting"),
        )
    ]
    yield figure("Requests in prefill and at the gate", "s since the start", series)
    yield from _lengths(requests.loc[chosen, LENGTHS])


def _lengths(ok: pd.DataFrame) -> Iterator[str]:
    """Where there is more than one length: how often each came and was asked for, and TTFT by input length."""
    for title, column in (("Input", "input_tokens"), ("Output", "output_tokens")):
        delivered, asked = (ok[name].dropna().to_numpy(np.float64) for name in (column, f"asked_{column}"))
        if len(np.unique(delivered)) < 2:
            continue
        edges = np.histogram_bin_edges(delivered, BINS, (0.0, max(delivered.max(), asked.max(initial=0)) + 1))
        series = [_steps("delivered", "a", delivered, edges)]
        if len(different := np.unique(asked)) > 1:  # else a spike that would make the rest small
            series.append(_steps("asked for", "b", asked, edges))
        each = f", {different[0]:g} asked for" if len(different) == 1 else ""
        yield figure(f"{title} length: requests{each}", "tokens", series)
    known = ok[ok["ttft_s"].notna() & ok["input_tokens"].notna()]
    length = known["input_tokens"].to_numpy(np.float64)
    if len(np.unique(length)) > 1:
        dots = _cloud(length, known["ttft_s"].to_numpy() * 1e3)[:1]
        yield figure("Time to First Token (ms) by input length", "tokens", dots)


def _steps(name: str, hue: str, values: Floats, edges: Floats) -> Series:
    """A histogram as an outline."""
    counts = np.repeat(np.histogram(values, edges)[0], 2)
    return Series(name, hue, np.repeat(edges, 2), np.array([0.0, *counts, 0.0]))


def figure(title: str, x_label: str, series: Sequence[Series]) -> str:
    """An SVG with linear axes, y from 0 on, and its key."""
    x = np.concatenate([np.empty(0), *(s.x for s in series)])
    y = np.concatenate([np.empty(0), *(s.y for s in series)])
    seen = np.isfinite(x) & np.isfinite(y)
    if not seen.any():
        return f"<figure><figcaption>{_text(title)}</figcaption>nothing to show</figure>"
    x_ends = min(0.0, float(x[seen].min())), float(x[seen].max()) or 1.0
    x_ticks = [v for v in ticks(*x_ends) if x_ends[0] <= v <= x_ends[1]]
    y_ticks = ticks(0.0, float(y[seen].max()))
    x_at = _scale(x_ends, LEFT, WIDTH - RIGHT)
    y_at = _scale(y_ticks, HEIGHT - BOTTOM, TOP)
    grid = [
        f'<path class=grid d="M{LEFT} {y_at(v):.1f}H{WIDTH - RIGHT}"/>'
        f"<text x={LEFT - 6} y={y_at(v) + 4:.1f} text-anchor=end>{v:g}</text>"
        for v in y_ticks
    ] + [f"<text x={x_at(v):.1f} y={HEIGHT - BOTTOM + 16} text-anchor=middle>{v:g}</text>" for v in x_ticks]
    drawn = [_drawn(s, x_at, y_at) for s in series]
    keys = "".join(f'<span class="key {s.hue}">\N{BLACK SQUARE} {_text(s.name)}</span>' for s in series if len(s.x))
    return (
        f'<figure><figcaption>{_text(title)}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role=img>'
        f"<title>{_text(title)}</title>{''.join(grid)}{''.join(drawn)}"
        f"<text x={WIDTH - RIGHT} y={HEIGHT - 4} text-anchor=end>{_text(x_label)}</text></svg>{keys}</figure>"
    )


def ticks(low: float, high: float) -> list[float]:
    """Round numbers, 1, 2 or 5 times a power of ten apart, from ``low`` or just below to ``high`` or just above."""
    width = high - low or 1.0
    power = 10.0 ** math.floor(math.log10(width / 4))
    step = next(power * m for m in (1, 2, 5, 10) if width / (power * m) <= 6)
    return [round(i * step, 10) for i in range(math.floor(low / step), math.ceil((low + width) / step) + 1)]


def _scale(axis: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    """From a value between the first and last tick to a place between ``start`` and ``end``."""
    return lambda value: start + (value - axis[0]) / (axis[-1] - axis[0]) * (end - start)


def _cloud(at: Floats, value: Floats) -> list[Series]:
    """Requests as dots, and the median and the 95th percentile of equal stretches of time."""
    if not len(at):
        return []
    lines = _quantiles(at, value, STRETCHES, (0.5, 0.95))
    dots = (at, value)
    if len(at) > DOTS:
        columns = _quantiles(at, value, DOTS // 5, (0.0, 0.25, 0.5, 0.75, 1.0))
        dots = (np.tile(columns["at"], 5), columns.drop(columns="at").to_numpy(np.float64).T.ravel())
    middle = lines["at"].to_numpy(np.float64)
    return [
        Series("request" if len(at) <= DOTS else "requests (0, 25, 50, 75, 100 %)", "a", *dots, dots=True),
        Series("median", "b", middle, lines[0.5].to_numpy(np.float64)),
        Series("p95", "c", middle, lines[0.95].to_numpy(np.float64)),
    ]


def _quantiles(at: Floats, value: Floats, stretches: int, quantiles: Sequence[float]) -> pd.DataFrame:
    """A row for each of the equal stretches of time that holds a value; ``at`` is its middle."""
    width = (at.max() - at.min()) / stretches or 1.0
    stretch = np.minimum((at - at.min()) // width, stretches - 1)
    table = pd.Series(value).groupby(stretch).quantile(np.array(quantiles)).unstack()
    table.insert(0, "at", at.min() + (table.index.to_numpy(np.float64) + 0.5) * width)
    return table


def _drawn(series: Series, x_at: Callable[[float], float], y_at: Callable[[float], float]) -> str:
    places = [
        (f"{x_at(x):.1f}", f"{y_at(y):.1f}") if math.isfinite(x) and math.isfinite(y) else None
        for x, y in zip(series.x.tolist(), series.y.tolist(), strict=True)
    ]
    if series.dots:
        return "".join(f"<circle class={series.hue} cx={p[0]} cy={p[1]} r=2 />" for p in places if p)
    lines = (list(group) for there, group in groupby(places, key=bool) if there)
    return "".join(
        f'<polyline class={series.hue} points="{" ".join(",".join(p) for p in line if p)}"/>' for line in lines
    )


def _html(block: Block) -> str:
    match block:
        case Heading(text):
            return f"<h2>{_text(text)}</h2>"
        case Text(text, loud):
            return f"<p{' class=loud' if loud else ''}>{_text(text)}</p>"
        case Table(head, rows, numbers):
            lines = [_line("th", head), *(_line("td", row) for row in rows)]
            return f"<div class=wide><table{' class=numbers' if numbers else ''}>{''.join(lines)}</table></div>"


def _line(kind: str, cells: Sequence[str]) -> str:
    opened = (f"<{kind} class={RESULTS[cell]}>" if cell in RESULTS else f"<{kind}>" for cell in cells)
    return f"<tr>{''.join(f'{tag}{_text(cell)}</{kind}>' for tag, cell in zip(opened, cells, strict=True))}</tr>\n"


def _text(text: str) -> str:
    return html.escape(clean(text))
