"""Distribution rows: the row of a metric, made from its values: mean, percentiles, and those with
failures counted in."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from locust_llm.report.array_types import Floats
from locust_llm.report.request_selection import RequestSelection
from locust_llm.slo.metric_definitions import FELT, ITL, POOLED, Metric
from locust_llm.slo.percentile import find_percentile

from .summary_rows import MIN_TOKENS_PER_MERGED_CHUNK, Row


def make_distribution_row(metric: Metric, values: Floats, percentiles: Sequence[float]) -> Row:
    """The row of one metric. NaN is no value."""
    values = values[~np.isnan(values)] * metric.scale
    row = Row(label=metric.label, tag=metric.tag, unit=metric.unit, count=len(values))
    if not len(values):
        return row
    ordered = order_around(values, percentiles)
    return msgspec.structs.replace(
        row,
        avg=float(values.mean()),
        min=float(values.min()),
        max=float(values.max()),
        std=float(values.std(ddof=1)) if len(values) > 1 else None,
        sum=float(values.sum()),
        percentiles={p: find_percentile(ordered, p) for p in percentiles},
    )


def order_around(values: Floats, percentiles: Sequence[float]) -> Floats:
    """The values, in order as far as these percentiles need it, linear or by rank: in a third of the
    time of a sort."""
    last = len(values) - 1
    below = {int(percentile / 100 * last) for percentile in percentiles}
    above = {min(place + 1, last) for place in below}
    return np.partition(values, sorted(below | above) or [0])


def make_readability_rows(ok: RequestSelection, percentiles: Sequence[float]) -> tuple[Row, ...]:
    """The readability rows. Rows without values are left out."""
    rows = (make_distribution_row(metric, ok[metric.column], percentiles) for metric in FELT)
    return tuple(row for row in rows if row.count)


def adjust_for_failures(
    metric: Metric, low: Floats, high: Floats, failures: int, percentiles: Sequence[float]
) -> Row:
    """The row of all requests, ``failures`` of them as +infinity: AIPerf's ``adj_<tag>``.

    With failures by nearest rank: the smallest value that at least p % of all are not above, so
    that nothing is interpolated towards infinity. Without any linear, as every other percentile.
    ``low``, ``high``: the least and the most of each request, in seconds. Where those that were cut
    are as low as they may be, a percentile is at least so much."""
    count = len(low)

    def each(values: Floats) -> dict[float, float]:
        if not count:
            return {}
        ordered = order_around(values, percentiles) * 1e3
        return {p: find_percentile(ordered, p, nearest=bool(failures)) for p in percentiles}

    least = each(low)
    worst = least if np.array_equal(low, high) else each(high)
    return Row(
        label=metric.label,
        tag=f"adj_{metric.tag}",
        unit=metric.unit,
        count=count,
        avg=math.inf,
        min=float(low.min()) * 1e3 if count else math.inf,
        max=math.inf,
        sum=math.inf,
        percentiles=worst,
        at_least={p: value for p, value in least.items() if value < worst[p]},
    )


def relabel_chunk_rows(rows: Sequence[Row], tokens: float | None) -> tuple[Row, ...]:
    """The rows with the base of their latencies, where chunks hold several ``tokens`` on
    average."""
    if tokens is None or tokens <= MIN_TOKENS_PER_MERGED_CHUNK:
        return tuple(row for row in rows if row.tag != "tokens_per_chunk")
    per = {ITL.tag: "per token", POOLED: f"per chunk of {tokens:.1f}"}
    return tuple(msgspec.structs.replace(row, per=per.get(row.tag, "")) for row in rows)
