"""Arrivals: the requests a second over a day, from a trace with times, a rate, or requests a day
and a shape."""

import math
import re
from array import array
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

from locust_llm.lab.twin.replay import Lengths
from locust_llm.workload.dataset import Dataset

SECONDS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0, "day": 86_400.0}
HOUR_S: Final = 3600.0
DAY: Final = 24
WINDOW_S: Final = 300.0
"""Of a trace the busiest such window is its peak."""
SWING, PEAK_HOUR = 0.8, 15
FLAT, DIURNAL = "flat", "diurnal"
SHAPES: Final = f"{FLAT}, {DIURNAL}, or 24 numbers with commas, one for each hour"
KEPT: Final = 400
"""Lengths of a trace, evenly over it."""
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?(?:[eE][+-]?\d{1,2})?)\s*/\s*(s|min|h|day)")


class PlannedArrivals(NamedTuple):
    hours: tuple[float, ...]
    """Requests a second of each hour."""
    peak: float
    """Requests a second that the replicas must hold."""
    mean: float
    what: str
    lengths: Lengths = ()
    """Of a trace: (prompt, output) tokens, where each row has them."""


def parse_planned_arrivals(text: str, shape: str = FLAT) -> PlannedArrivals:
    """``text``: ``1.4/s``, ``5000/h``, ``120000/day``, or the file of a trace. Raises ValueError of
    one sentence."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        if shape != FLAT:
            raise ValueError("--day is for a rate: a trace has a day of its own")
        return of_trace(text)
    mean = float(match[1]) / SECONDS[match[2]]
    if not 0 < mean < math.inf:
        raise ValueError(f"--arrivals {text!r}: no request ever comes")
    factors = factors_of(shape)
    hours = tuple(mean * one for one in factors)
    said = {
        FLAT: "spread evenly over the day",
        DIURNAL: f"over the day 1 + {SWING} cos(2 pi (hour - {PEAK_HOUR}) / 24) times the mean, an "
        f"assumption",
    }.get(shape, "over the day as given by --day")
    return PlannedArrivals(hours, max(hours), mean, f"{text.strip()}, {said}")


def factors_of(shape: str) -> list[float]:
    """Of each hour, of mean 1. Raises ValueError of one sentence."""
    if shape == FLAT:
        return [1.0] * DAY
    if shape == DIURNAL:
        return [
            1 + SWING * math.cos(2 * math.pi * (hour + 0.5 - PEAK_HOUR) / DAY)
            for hour in range(DAY)
        ]
    try:
        found = [float(one) for one in shape.split(",")]
    except ValueError:
        found = []
    if len(found) != DAY or not all(0 <= one < math.inf for one in found) or not any(found):
        raise ValueError(f"--day {shape[:100]!r}: write {SHAPES}")
    return [one / fmean(found) for one in found]


def of_trace(path: str) -> PlannedArrivals:
    """Raises ValueError of one sentence."""
    if not Path(path).is_file():
        raise ValueError(
            f"--arrivals {path[:200]}: there is no such file; for a rate write 1.4/s, 5000/h or "
            f"120000/day"
        )
    times = array("d")
    lengths = list[tuple[int, int]]()
    for item in Dataset(path):
        for turn in item.turns:
            if turn.at_s is None:
                raise ValueError(
                    f"{path}: row {turn.row or item.row} has no time, so it says nothing of "
                    f"arrivals"
                )
            times.append(turn.at_s)
            if turn.input_tokens and turn.output_tokens:
                lengths.append((turn.input_tokens, turn.output_tokens))
    every = lengths if len(lengths) == len(times) else []
    return of_times(sorted(times), path)._replace(
        lengths=tuple(every[:: max(1, -(-len(every) // KEPT))])
    )


def of_times(times: Sequence[float], name: str) -> PlannedArrivals:
    """``times``: in order. Hours from the first one on, days above each other. Raises ValueError of
    one sentence."""
    if len(times) < 2 or times[-1] <= times[0]:
        raise ValueError(f"{name}: a trace needs requests at two times or more")
    span = times[-1] - times[0]
    counts, covered = [0] * DAY, [0.0] * DAY
    for at in times:
        counts[int((at - times[0]) // HOUR_S) % DAY] += 1
    for hour in range(math.ceil(span / HOUR_S)):
        covered[hour % DAY] += min(HOUR_S, span - hour * HOUR_S)
    hours = tuple(
        count / seconds for count, seconds in zip(counts, covered, strict=True) if seconds > 0
    )
    mean = len(times) / span
    window = min(WINDOW_S, span)
    peak, first = 0, 0
    for last, at in enumerate(times):
        while times[first] <= at - window:
            first += 1
        peak = max(peak, last - first + 1)
    what = (
        f"{name}, {len(times):,} requests in {span / HOUR_S:.3g} h, its busiest "
        f"{window / 60:.3g} minutes as the peak"
    )
    return PlannedArrivals(hours, max(peak / window, mean), mean, what)
