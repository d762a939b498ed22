"""Sweep CSV: a row for each stage."""

import io
from itertools import chain, product
from typing import Any, Final

from locust_llm.report.spreadsheet_safe_csv import make_csv_writer
from locust_llm.report.summary_rows import Row, SweepSummary
from locust_llm.slo.metric_definitions import PER_USER

COLUMNS_BEFORE: Final = (
    "number", "users", "duration_s", "requests", "succeeded", "failure_rate", "requests_per_s",
    "input_tokens_per_s",
    "output_tokens_per_s", "in_flight",
)  # fmt: skip
COLUMNS_AFTER: Final = (
    "delivered", "attainment", "goodput_per_s", "goodput_low", "goodput_high", "slo_status",
    "client", "residual", "why",
    "completed", "silent_s",
)  # fmt: skip
"""The columns of a stage before and after its latencies."""
SWEEP_PERCENTILES: Final = (50.0, 90.0, 95.0, 99.0)


def export_sweep_csv(sweep: SweepSummary) -> str:
    """sweep.csv with a row for each stage; shares of 1, latencies in ms. The last columns show how
    far the true percentile of a latency may lie from the reported one, either way:
    report/slo_evidence/measurement_error.py."""
    out = io.StringIO()
    write = make_csv_writer(out)
    tags = dict.fromkeys(chain.from_iterable(level.latencies for level in sweep.levels))
    latencies = list(product(tags, SWEEP_PERCENTILES))
    titles = [f"{tag}_p{p:g}" + "_ms" * (tag != PER_USER.tag) for tag, p in latencies]

    def is_certified(tag: str) -> bool:
        return any(_plus_minus(level.latencies.get(tag)) for level in sweep.levels)

    certified = list(product(filter(is_certified, tags), SWEEP_PERCENTILES))
    more = [f"{tag}_p{p:g}_plus_minus_ms" for tag, p in certified]
    write([sweep.axis, *COLUMNS_BEFORE, *titles, *COLUMNS_AFTER, *more])
    for level in sweep.levels:
        cells: list[Any] = [level.value]
        cells += [getattr(level, name) for name in COLUMNS_BEFORE]
        for tag, p in latencies:
            row = level.latencies.get(tag)
            cells.append(None if row is None else row.percentiles.get(p))
        cells += [getattr(level, name) for name in COLUMNS_AFTER]
        for tag, p in certified:
            pair = _plus_minus(level.latencies.get(tag)).get(p)
            cells.append(None if pair is None else max(pair))
        write(map(_format_cell, cells))
    return out.getvalue()


def _format_cell(cell: Any) -> Any:
    if isinstance(cell, float):
        return f"{cell:.6g}"
    return "" if cell is None else cell


def _plus_minus(row: Row | None) -> dict[float, tuple[float, float]]:
    return {} if row is None else row.plus_minus
