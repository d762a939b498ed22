"""Charts by prefill limit: what each prefill limit of a ramp did to the time to the first token and
to the wait for a place."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from locust_llm.report.metrics_by_group import WHOLE
from locust_llm.report.summary_rows import RequestBreakdown
from locust_llm.slo.metric_definitions import TTFT, TTFT_FROM_DUE
from locust_llm.text.format import format_duration

from .plot_data import Plot, PlotAxis, PlotSeries, round_values

MEDIAN: Final = 50.0
LINES: Final = (
    ("TTFT from due p50, including the wait for a prefill slot", TTFT_FROM_DUE.tag, "wait"),
    ("TTFT p50, from the send", TTFT.tag, "p50"),
)
"""(name, metric, colour): what lies between the two is the wait at the gate."""


def plot_ramp_by_limit(breakdowns: Sequence[RequestBreakdown]) -> Iterator[Plot]:
    """Nothing of a run without a ramp, or with one limit."""
    ramp = next((found for found in breakdowns if found.of_limit), None)
    if ramp is None:
        return
    series = list[PlotSeries]()
    for name, tag, hue in LINES:
        points = list[tuple[float, float]]()
        for group in ramp.groups:
            if group.label == WHOLE:
                continue
            limit = group.label.partition(" ")[0]
            points += [
                (float(limit), row.percentiles[MEDIAN])
                for row in group.rows
                if row.tag == tag and MEDIAN in row.percentiles
            ]
        if len(points) > 1:
            x, y = (np.array(values, np.float64) for values in zip(*sorted(points), strict=True))
            series.append(PlotSeries(name, hue, round_values(x), round_values(y)))
    if not series:
        return
    places = [x for x in series[-1].x if x is not None]
    span = (places[-1] - places[0]) * 0.05
    each = ", ".join(
        f"{format_duration(y / 1e3)} at {x:g}"
        for x, y in zip(places, series[-1].y, strict=True)
        if y is not None
    )
    yield Plot(
        title="Time to first token by prefill limit",
        caption=(
            "Medians of the requests admitted under each limit. A server that computes one prompt "
            "at a time does not answer sooner with a higher limit. Requests then wait in the "
            "server instead of before it."
        ),
        label=f"{series[-1].name}: {each}",
        x=PlotAxis(
            label="prefill limit",
            low=places[0] - span,
            high=places[-1] + span,
            ticks=tuple((x, f"{x:g}") for x in places),
        ),
        y=PlotAxis(label="TTFT", unit="ms", low=0.0),
        series=tuple(series),
        low=True,
    )
