"""Sweep CSV: a row a stage."""

import io
from typing import Final

from locust_llm.report.csv_writer import make_csv_writer
from locust_llm.report.rows import Row, SweepSummary
from locust_llm.slo.metrics import PER_USER

COLUMNS_BEFORE: Final = (
    "number", "users", "duration_s", "requests", "succeeded", "failure_rate", "requests_per_s",
    "input_tokens_per_s",
    "output_tokens_per_s", "in_flight",
)  # fmt: skip
COLUMNS_AFTER: Final = (
    "delivered", "attainment", "goodput_per_s", "goodput_low", "goodput_high", "slo_status",
    "client", "residual", "why",
    "completed",
)  # fmt: skip
"""The columns of a stage before and after its latencies."""
SWEEP_PERCENTILES: Final = (50.0, 90.0, 95.0, 99.0)


def export_sweep_csv(sweep: SweepSummary) -> str:
    """sweep.csv: a row a stage; shares of 1, latencies in ms. The last columns are how far the true
    percentile of a latency may lie from the reported one, either way:
    report/sections/measurement_uncertainty.py."""
    out = io.StringIO()
    write = make_csv_writer(out)
    tags = dict.fromkeys(tag for level in sweep.levels for tag in level.latencies)
    titles = [
        f"{tag}_p{p:g}" + "_ms" * (tag != PER_USER.tag) for tag in tags for p in SWEEP_PERCENTILES
    ]
    certified = [
        tag for tag in tags if any(_plus_minus(level.latencies.get(tag)) for level in sweep.levels)
    ]
    more = (f"{tag}_p{p:g}_plus_minus_ms" for tag in certified for p in SWEEP_PERCENTILES)
    write([sweep.axis, *COLUMNS_BEFORE, *titles, *COLUMNS_AFTER, *more])
    for level in sweep.levels:
        before, after = (
            [getattr(level, name) for name in names] for names in (COLUMNS_BEFORE, COLUMNS_AFTER)
        )
        rows = [level.latencies.get(tag) for tag in tags]
        figures = [
            None if row is None else row.percentiles.get(p)
            for row in rows
            for p in SWEEP_PERCENTILES
        ]
        pairs = [
            _plus_minus(level.latencies.get(tag)).get(p)
            for tag in certified
            for p in SWEEP_PERCENTILES
        ]
        cells = (
            level.value,
            *before,
            *figures,
            *after,
            *(None if pair is None else max(pair) for pair in pairs),
        )
        write(
            [
                f"{cell:.6g}" if isinstance(cell, float) else "" if cell is None else cell
                for cell in cells
            ]
        )
    return out.getvalue()


def _plus_minus(row: Row | None) -> dict[float, tuple[float, float]]:
    return {} if row is None else row.plus_minus
