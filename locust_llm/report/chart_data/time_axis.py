"""Time axis: what all charts over the time of a run share."""

from typing import Final, NamedTuple

import numpy as np

from locust_llm.report.array_types import Floats

from .plot_data import PlotAxis, PlotSeries, round_values

TIME_GROUP: Final = "time"
"""Charts of one group have one time axis: a zoom or a crosshair in one is in all."""


class TimeAxis(NamedTuple):
    """The time axis: the Unix seconds of its 0, and its ends in seconds after it."""

    origin: float
    low: float
    high: float

    @property
    def axis(self) -> PlotAxis:
        return PlotAxis(label="time since the start", unit="s", low=self.low, high=self.high)


def make_steps(
    name: str, hue: str, edges: Floats, values: Floats, kind: str = "steps"
) -> PlotSeries:
    return PlotSeries(
        name, hue, round_values(edges, 6), round_values(np.append(values, values[-1:])), kind=kind
    )
