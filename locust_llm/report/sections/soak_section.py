"""Soak section: what grew during a run with ``--soak``, in sentences, a table and charts. The verdicts
are in trends/soak_judgement.py."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from locust_llm.report.chart_data.plot_data import Plot, PlotAxis, PlotMark, PlotSeries
from locust_llm.report.document_blocks import Block, Heading, TableBlock, TextBlock
from locust_llm.text.format import capitalise_sentence
from locust_llm.trends.soak_findings import SoakFindings, SoakQuantity
from locust_llm.trends.soak_readings import (
    SoakQuantityRule,
    SoakReading,
    list_points,
    list_rules,
)
from locust_llm.trends.soak_text import (
    HEADERS,
    describe_changes,
    describe_need_of_soak,
    describe_quantity,
    describe_soak,
    format_quantity,
    list_rows,
)

from .section import ReportSection

HEADING: Final = "What grew"
CHARTS: Final = "Growth over time"
HOUR_S: Final = 3600.0
SCALES: Final = {"bytes": (1e-6, "MB"), "s": (1e3, "ms"), "share": (100.0, "%")}
"""Factor and unit of a chart, by the unit of the quantity."""


def format_soak_line(found: SoakFindings) -> str:
    """The verdict for the console, and how long a soak must be."""
    return f"{describe_soak(found)}{describe_need_of_soak(found)}"


def make_soak_blocks(found: SoakFindings) -> Iterator[Block]:
    yield Heading(HEADING)
    yield TextBlock(format_soak_line(found))
    yield TableBlock(HEADERS, tuple(list_rows(found)))
    yield from map(TextBlock, list_soak_sentences(found))
    yield from map(TextBlock, found.notes)


def list_soak_sentences(found: SoakFindings) -> Iterator[str]:
    """What each quantity did, and its shifts."""
    for one in found.quantities:
        yield f"{capitalise_sentence(one.label)}: {describe_quantity(one)}"
    yield from chain.from_iterable(map(describe_changes, found.quantities))


def plot_quantities(found: SoakFindings, readings: Sequence[SoakReading]) -> list[Plot]:
    rules = {rule.name: rule for rule in list_rules(readings)}
    return [plot_quantity(one, rules[one.name], readings) for one in found.quantities]


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


def _draw(found: SoakFindings, readings: Sequence[SoakReading]) -> Iterable[Plot]:
    return plot_quantities(found, readings) if readings else ()


SOAK_SECTION: Final = ReportSection(
    name="soak",
    subject="what grew",
    finding=SoakFindings,
    find=lambda material: material.soak,
    make_blocks=make_soak_blocks,
    chart_heading=CHARTS,
    draw=lambda found, material: _draw(found, material.soak_readings),
)
