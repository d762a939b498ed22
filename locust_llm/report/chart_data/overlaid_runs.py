"""Overlaid runs: several runs in one plot, a line each, never joined: their latencies by percentile
and over time."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from locust_llm.records.outcomes import OK
from locust_llm.report.array_types import Floats
from locust_llm.report.slo_evidence.observed_rule_values import Evaluation

from .distribution_charts import plot_spectrum
from .plot_data import (
    LOG_NOTE,
    Plot,
    PlotAxis,
    PlotSeries,
    choose_log_base,
    group_consecutive,
    round_values,
)

HUES: Final = ("p50", "p95", "p99", "decode", "prefill", "knee")
"""The colours of the runs; the strokes of the lines differ too."""
LATENCIES: Final = (
    ("ttft_s", "Time to first token"),
    ("itl_s", "Inter-token latency"),
)
REQUESTS_PER_POINT: Final = 20
"""A point of a line over time is the median of so many requests at least."""


class RunOverlay:
    """Collects the lines of one run after the other, so that no two runs are in memory."""

    def __init__(self) -> None:
        self._values = dict[str, list[tuple[str, str, Floats]]]()
        self._lines = dict[str, list[PlotSeries]]()

    def add(self, name: str, seen: Evaluation) -> None:
        """``name`` is that of its lines."""
        ok = seen.main.outcome(OK)
        sent_s = ok.requests.floats("sent_at")[ok.chosen]
        since_s = sent_s - seen.run.started_at
        for column, title in LATENCIES:
            values = ok.requests.floats(column)[ok.chosen] * 1e3
            known = np.isfinite(values) & np.isfinite(since_s)
            lines = self._values.setdefault(title, [])
            hue = HUES[len(lines) % len(HUES)]
            lines.append((name, hue, values[known]))
            line = _make_median_line(name, hue, since_s[known], values[known])
            self._lines.setdefault(title, []).extend([line] if line.x else [])

    def plots(self) -> Iterator[Plot]:
        """Those with two runs at least."""
        for title, values in self._values.items():
            if sum(bool(len(those)) for _, _, those in values) > 1:
                yield from plot_spectrum(f"{title} by percentile", values, ())
        for title, lines in self._lines.items():
            if len(lines) > 1:
                yield _plot_over_time(title, lines)


def _make_median_line(name: str, hue: str, at: Floats, value: Floats) -> PlotSeries:
    order = np.argsort(at, kind="stable")
    rows, middles = group_consecutive(value[order], REQUESTS_PER_POINT)
    medians = np.array([np.median(row) for row in rows], np.float64)
    return PlotSeries(name, hue, round_values(at[order][middles], 6), round_values(medians))


def _plot_over_time(title: str, lines: list[PlotSeries]) -> Plot:
    values = np.concatenate([np.array(line.y, np.float64) for line in lines])
    base = choose_log_base(values)
    return Plot(
        title=f"{title} over time",
        caption=(
            f"Medians of at least {REQUESTS_PER_POINT} requests. Each run starts at its own start "
            "time."
        )
        + (LOG_NOTE if base else ""),
        label=f"{title} over time of {', '.join(line.name for line in lines)}",
        x=PlotAxis(label="time since the start", unit="s", low=0.0),
        y=PlotAxis(unit="ms", log=base),
        series=tuple(lines),
    )
