"""What-if chart: draws what-ifs as SVG, as wide as its page, and the page around it.

The chart has throughput over a wait, the frontier with intervals, and the limit of a rule.
"""

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import chain, pairwise, product
from typing import Final

from markupsafe import Markup

from locust_llm.lab.pareto.pareto_chart import choose_ticks
from locust_llm.lab.static_page import render_page as rendered
from locust_llm.lab.twin.whatif import whatif_text
from locust_llm.lab.twin.whatif.whatif_rows import (
    MET,
    NOT_MET,
    THROUGHPUT,
    WhatIfRow,
    figure_of_rule,
    select_frontier,
)
from locust_llm.lab.twin.whatif.whatif_text import (
    WhatIfReport,
    choose_frontier_axis,
    figure_title,
    format_predicted,
)
from locust_llm.report.document_blocks import TextBlock
from locust_llm.slo.rules import Rule
from locust_llm.text.format import clean_line, format_brief, format_duration

HEIGHT: Final = 340
TOP, BOTTOM = 26, 300
"""The plot lies between these heights, in pixels."""
DOTS: Final = 1_500
"""At most this many dots are off the frontier."""
TICKS: Final = (1, 2, 5)
HUES: Final = {MET: "var(--ok)", NOT_MET: "var(--fail)"}


def draw_whatif_chart(rows: Sequence[WhatIfRow], figure: str, rules: Sequence[Rule]) -> str:
    """Draws the chart over ``figure``, a wait in seconds, on a logarithmic axis. Empty: no what-if
    has it."""
    known = [
        row
        for row in rows
        if figure in row.answers and THROUGHPUT in row.answers and not row.falls_behind
    ]
    best = select_frontier(known, figure)
    if not best:
        return ""
    on = {row.case for row in best}
    scale = _Scale(known, figure)
    rest = [row for row in known if row.case not in on]
    parts = [
        *scale.axis(), *_limit(scale, rules),
        *(_dot(scale, row, 2.5) for row in rest[:: max(1, len(rest) // DOTS)]),
        *_line(scale, best), *chain.from_iterable(_marked(scale, row) for row in best),
    ]  # fmt: skip
    label = (
        f"Throughput over {figure_title(figure, False)}: {len(known)} what-ifs, {len(best)} of "
        f"them on the frontier"
    )
    inner = "\n".join(parts)
    size = f'width="100%" height="{HEIGHT}" overflow=visible'
    return f'<div class=lines><svg {size} role=img aria-label="{_text(label)}">{inner}</svg></div>'


class _Scale:
    """Maps waits to a share of the width, and throughputs to pixels from the top."""

    def __init__(self, rows: Sequence[WhatIfRow], figure: str) -> None:
        self.figure = figure
        waits = [row.answers[figure] for row in rows]
        self._low = math.log(min(one.low for one in waits) * 0.9)
        self._wide = math.log(max(one.high for one in waits) * 1.1) - self._low
        self.ticks = choose_ticks(max(row.answers[THROUGHPUT].high for row in rows))

    def x(self, seconds: float) -> float:
        return round(100 * (math.log(seconds) - self._low) / self._wide, 2)

    def y(self, tokens: float) -> float:
        return round(BOTTOM - tokens / self.ticks[-1] * (BOTTOM - TOP), 1)

    def axis(self) -> Iterator[str]:
        for value in self.ticks:
            y = self.y(value)
            yield f'<line x1=0 x2="100%" y1="{y}" y2="{y}" stroke="var(--line)"/>'
            yield (
                f'<text class=axis x=-8 y="{y + 3.5}" text-anchor=end>{format_brief(value)}</text>'
            )
        yield f'<text class=axis x=-54 y="{TOP - 12}">output tokens/s</text>'
        least = math.exp(self._low)
        most = math.exp(self._low + self._wide)
        exponents = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
        steps = [tick * 10.0**exponent for exponent, tick in product(exponents, TICKS)]
        here = [value for value in steps if least <= value <= most]
        for i, value in enumerate(here):
            fine = " fine" if len(here) > 5 and i % 2 else ""
            x = self.x(value)
            yield f'<line x1="{x}%" x2="{x}%" y1={TOP} y2={BOTTOM} stroke="var(--line)"/>'
            yield (
                f'<text class="axis{fine}" x="{x}%" y="{BOTTOM + 18}" '
                f"text-anchor=middle>{format_duration(value)}</text>"
            )
        what = figure_title(self.figure, False).partition(" (")[0]
        yield (
            f'<text class=axis x="50%" y="{BOTTOM + 36}" text-anchor=middle>{_text(what)}, '
            f"logarithmic</text>"
        )


def _limit(scale: _Scale, rules: Sequence[Rule]) -> Iterator[str]:
    for rule in rules:
        if (
            figure_of_rule(rule) == scale.figure
            and rule.limit > 0
            and 0 <= (x := scale.x(rule.limit)) <= 100
        ):
            anchor = "end" if x > 50 else "start"
            yield (
                f'<line x1="{x}%" x2="{x}%" y1={TOP} y2={BOTTOM} stroke="var(--slo)" '
                f'stroke-dasharray="6 4"/>'
            )
            yield (
                f'<text x="{x}%" y="{TOP - 4}" text-anchor={anchor} '
                f'fill="var(--slo)">{_text(str(rule))}</text>'
            )


def _dot(scale: _Scale, row: WhatIfRow, size: float) -> str:
    x = scale.x(row.answers[scale.figure].about)
    y = scale.y(row.answers[THROUGHPUT].about)
    hue = HUES.get(row.status, "var(--dot)")
    fill = "var(--back)" if row.beyond else hue
    told = f"<title>{_text(_about(row, scale.figure))}</title>"
    return f'<circle cx="{x}%" cy="{y}" r={size} fill="{fill}" stroke="{hue}">{told}</circle>'


def _about(row: WhatIfRow, figure: str) -> str:
    """Describes a dot for its tooltip."""
    said = [
        f"{figure_title(name, False)} {format_predicted(name, row.answers[name])}"
        for name in (figure, THROUGHPUT)
    ]
    marked = [f"extrapolated: {'; '.join(row.beyond)}"] if row.beyond else []
    return ", ".join(
        [
            f"{row.case.name} at {row.case.what_if.load.label}",
            *said,
            *([row.status] if row.status else []),
            *marked,
        ]
    )


def _line(scale: _Scale, best: Sequence[WhatIfRow]) -> Iterator[str]:
    """Connects neighbours of the frontier, with a line each, as a path has no percents."""
    for one, other in pairwise(best):
        x1, y1 = _middle_of(scale, one)
        x2, y2 = _middle_of(scale, other)
        yield (
            f'<line x1="{x1}%" y1="{y1}" x2="{x2}%" y2="{y2}" stroke="var(--ink)" '
            f"stroke-width=1.5 />"
        )


def _middle_of(scale: _Scale, row: WhatIfRow) -> tuple[float, float]:
    x = scale.x(row.answers[scale.figure].about)
    y = scale.y(row.answers[THROUGHPUT].about)
    return x, y


def _marked(scale: _Scale, row: WhatIfRow) -> Iterator[str]:
    """Draws a dot of the frontier with its intervals."""
    wait, tokens = row.answers[scale.figure], row.answers[THROUGHPUT]
    x = scale.x(wait.about)
    y = scale.y(tokens.about)
    yield (
        f'<line x1="{scale.x(wait.low)}%" x2="{scale.x(wait.high)}%" y1="{y}" y2="{y}" '
        f'stroke="var(--muted)"/>'
    )
    yield (
        f'<line x1="{x}%" x2="{x}%" y1="{scale.y(tokens.low)}" y2="{scale.y(tokens.high)}" '
        f'stroke="var(--muted)"/>'
    )
    yield _dot(scale, row, 4.5)


def _text(text: str) -> str:
    return escape(clean_line(text))


# -- page ------------------------------------------------------------------------------------------
# What-ifs as one HTML file without a script: the best, the frontier as a plot, the table, the run
# to do next.

OWN: Final = """
body { display: block; max-width: 76rem; }
.lines text { font-size: 12px; } .lines .axis { fill: var(--muted); } .lines text:not(.axis, [fill]) { fill: var(--ink); }
code { font-size: .86rem; overflow-wrap: anywhere; }
@media (max-width: 40rem) { .lines text { font-size: 11px !important; } .plot .lines { padding-left: 58px; } }
"""
KEY: Final = (
    "A dot is a what-if: green within the SLO, red not, blue open or not judged; hollow where it "
    "is an extrapolation. The "
    "line joins what-ifs that no other beats in both throughput and wait, with their 95% "
    "intervals."
)


def render_whatif_page(report: WhatIfReport) -> str:
    shown = whatif_text.select_shown_rows(report)
    drawn = (
        ""
        if report.shape
        else draw_whatif_chart(report.rows, choose_frontier_axis(report), report.rules)
    )
    runs = [
        block.text for block in whatif_text.decision_blocks(report) if isinstance(block, TextBlock)
    ]
    return rendered(
        "whatif.html", OWN, title=f"What if: {report.name}", headline=whatif_text.whatif_headline(report),
        about=whatif_text.whatif_subtitle(report),
        drawn=Markup(drawn), key=KEY, table=whatif_text.whatif_table(report, shown),
        statuses=[whatif_text.STATUS_CLASSES.get(row.status, "") for row in shown],
        notes=list(whatif_text.whatif_notes(report)), runs=runs,
    )  # fmt: skip
