"""What-if chart: plots what-ifs, and renders the page around the plot.

The chart has throughput over a wait, the frontier with intervals, and the limit of a rule.
"""

from collections.abc import Iterator, Sequence
from typing import Final

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
from locust_llm.report.chart_data.plot_data import Plot, PlotAxis, PlotMark, PlotSeries
from locust_llm.report.document_blocks import TextBlock
from locust_llm.slo.rules import Rule

DOTS: Final = 1_500
"""At most this many dots are off the frontier."""
STATUSES: Final = {MET: ("within the SLO", "ok"), NOT_MET: ("not within the SLO", "fail")}
"""(name, colour) of the dots."""
OTHERS: Final = ("inconclusive, or not judged", "dot")
CAPTION: Final = (
    "A dot is a what-if, a ring one that is an extrapolation. The line joins what-ifs that no other "
    "beats in both throughput and wait, with their 95% intervals. The scale of the wait is "
    "logarithmic."
)
OWN: Final = """
body { display: block; max-width: 76rem; }
code { font-size: .86rem; overflow-wrap: anywhere; }
"""


def plot_what_ifs(rows: Sequence[WhatIfRow], figure: str, rules: Sequence[Rule]) -> Plot | None:
    """Plots throughput over ``figure``, a wait in seconds. None: no what-if has it."""
    known = [
        row
        for row in rows
        if figure in row.answers and THROUGHPUT in row.answers and not row.falls_behind
    ]
    best = select_frontier(known, figure)
    if not best:
        return None
    on_frontier = {row.case for row in best}
    rest = [row for row in known if row.case not in on_frontier]
    shown = [*rest[:: max(1, len(rest) // DOTS)], *best]
    title = figure_title(figure, False).partition(" (")[0]
    return Plot(
        title="Frontier",
        caption=CAPTION,
        label=f"Throughput over {title}: {len(known)} what-ifs, {len(best)} of them on the frontier",
        x=PlotAxis(label=title, unit="ms", log=10),
        y=PlotAxis(label="output tokens/s", unit="/s"),
        series=(_join_frontier(best, figure), *_list_dots(shown, figure)),
        marks=tuple(
            PlotMark(str(rule), x=rule.limit * 1e3, hue="slo")
            for rule in rules
            if figure_of_rule(rule) == figure and rule.limit > 0
        ),
    )


def _join_frontier(best: Sequence[WhatIfRow], figure: str) -> PlotSeries:
    waits = [row.answers[figure] for row in best]
    throughputs = [row.answers[THROUGHPUT] for row in best]
    return PlotSeries(
        "frontier",
        "ink",
        [wait.about * 1e3 for wait in waits],
        [throughput.about for throughput in throughputs],
        kind="path",
        low=[throughput.low for throughput in throughputs],
        high=[throughput.high for throughput in throughputs],
        x_low=[wait.low * 1e3 for wait in waits],
        x_high=[wait.high * 1e3 for wait in waits],
        tips=tuple(_describe_row(row, figure) for row in best),
    )


def _list_dots(rows: Sequence[WhatIfRow], figure: str) -> Iterator[PlotSeries]:
    """A series for each status, and one of rings for its extrapolations."""
    groups: dict[tuple[str, str, bool], list[WhatIfRow]] = {}
    for row in rows:
        name, hue = STATUSES.get(row.status, OTHERS)
        groups.setdefault((name, hue, bool(row.beyond)), []).append(row)
    for (name, hue, is_beyond), group in groups.items():
        yield PlotSeries(
            f"{name}, extrapolated" if is_beyond else name,
            hue,
            [row.answers[figure].about * 1e3 for row in group],
            [row.answers[THROUGHPUT].about for row in group],
            kind="rings" if is_beyond else "dots",
            tips=tuple(_describe_row(row, figure) for row in group),
        )


def _describe_row(row: WhatIfRow, figure: str) -> tuple[str, ...]:
    """The lines of the tip at its dot."""
    lines = [f"{row.case.name} at {row.case.what_if.load.label}"]
    for name in (figure, THROUGHPUT):
        lines.append(f"{figure_title(name, False)} {format_predicted(name, row.answers[name])}")
    if row.status:
        lines.append(row.status)
    if row.beyond:
        lines.append(f"extrapolated: {'; '.join(row.beyond)}")
    return tuple(lines)


def render_whatif_page(report: WhatIfReport) -> str:
    shown = whatif_text.select_shown_rows(report)
    drawn = None
    if not report.shape:
        drawn = plot_what_ifs(report.rows, choose_frontier_axis(report), report.rules)
    runs = [
        block.text for block in whatif_text.decision_blocks(report) if isinstance(block, TextBlock)
    ]
    return rendered(
        "whatif.html", OWN, [drawn] if drawn else [], title=f"What if: {report.name}", headline=whatif_text.whatif_headline(report),
        about=whatif_text.whatif_subtitle(report),
        drawn=drawn, table=whatif_text.whatif_table(report, shown),
        statuses=[whatif_text.STATUS_CLASSES.get(row.status, "") for row in shown],
        notes=list(whatif_text.whatif_notes(report)), runs=runs,
    )  # fmt: skip
