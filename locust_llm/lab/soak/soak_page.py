"""Soak page: the result of a soak as one HTML file that needs no network."""

from collections.abc import Sequence
from itertools import chain
from typing import Final

from locust_llm.lab.static_page import render_page
from locust_llm.report.chart_data.plot_data import Plot, PlotAxis, PlotMark, PlotSeries
from locust_llm.text.format import capitalise_sentence
from locust_llm.trends.steady_growth import GrowthVerdict

from .soak_readings import QUANTITIES, SoakQuantityRule, SoakReading, list_points
from .soak_result import SoakQuantity, SoakResult
from .soak_sampler import HOUR_S
from .soak_text import (
    HEADERS,
    describe_changes,
    describe_quantity,
    describe_soak,
    format_quantity,
    list_rows,
)

OWN: Final = """
body { display: block; max-width: 80rem; } .headline { font-size: 1.1rem; }
.plots { grid-template-columns: repeat(auto-fit, minmax(min(100%, 34rem), 1fr)); }
"""
SCALES: Final = {"bytes": (1e-6, "MB"), "s": (1e3, "ms"), "share": (100.0, "%")}
"""Factor and unit of a chart, by the unit of the quantity."""
STYLES: Final = {
    GrowthVerdict.GROWS.value: "loud",
    GrowthVerdict.STABLE.value: "pass",
    GrowthVerdict.OPEN.value: "open",
}


def render_soak_page(
    result: SoakResult, readings: Sequence[SoakReading], reports: Sequence[str] = ()
) -> str:
    """``reports`` are the addresses of the parts' own reports."""
    rules = {rule.name: rule for rule in QUANTITIES}
    plots = [plot_quantity(one, rules[one.name], readings) for one in result.quantities]
    rows = [(row[0], STYLES.get(row[1], ""), row[1:]) for row in list_rows(result)]
    return render_page(
        "soak.html",
        OWN,
        plots,
        title=f"Soak of {result.host}",
        headline=describe_soak(result),
        sentences=[
            f"{capitalise_sentence(one.label)}: {describe_quantity(one)}"
            for one in result.quantities
        ],
        changes=list(chain.from_iterable(map(describe_changes, result.quantities))),
        notes=result.notes,
        headers=HEADERS[1:],
        rows=rows,
        drawings=plots,
        reports=reports,
    )


def plot_quantity(
    one: SoakQuantity, rule: SoakQuantityRule, readings: Sequence[SoakReading]
) -> Plot:
    """The readings over time, with the fitted slope."""
    factor, unit = SCALES.get(one.unit, (1.0, one.unit))
    points = list_points(readings, rule)
    seconds: list[float | None] = [point.hours * HOUR_S for point in points]
    values: list[float | None] = [point.value * factor for point in points]
    series = [PlotSeries(one.label, "p50", seconds, values)]
    slope = one.per_hour
    if slope is not None and one.from_hours is not None:
        begin = one.from_hours
        fitted = [point for point in points if point.hours >= begin]
        middle_hours = sum(point.hours for point in fitted) / len(fitted)
        middle = sum(point.value for point in fitted) / len(fitted)
        ends = (begin, points[-1].hours)
        line: list[float | None] = [
            (middle + slope.value * (at - middle_hours)) * factor for at in ends
        ]
        at_s: list[float | None] = [at * HOUR_S for at in ends]
        series.append(PlotSeries("slope", "p99", at_s, line, dashed=True))
    which = "lowest" if rule.minima and not rule.falls else "mean"
    which = "highest" if rule.falls else which
    return Plot(
        title=capitalise_sentence(one.label),
        caption=f"The {which} value of each interval. Dashed: the slope that was judged.",
        label=f"{one.label}, {format_quantity(one.first, one.unit)} at first and "
        f"{format_quantity(one.last, one.unit)} at last: {one.verdict}",
        x=PlotAxis(label="time under load", unit="s"),
        y=PlotAxis(label=one.label, unit=unit, free=True),
        series=tuple(series),
        marks=tuple(PlotMark(text="changed", x=change.hours * HOUR_S) for change in one.changes),
        group="soak",
    )
