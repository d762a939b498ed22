"""Tenants: what each had received by then, and the service gap."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from locust_llm.report.charts.model import Plot, PlotAxis, PlotSeries, round_values
from locust_llm.report.charts.over_time import GROUP, TimeAxis
from locust_llm.report.sections.tenants.analysis import TenantsSummary
from locust_llm.text.format import format_brief

HUES: Final = ("p50", "p95", "p99", "prefill", "decode", "knee", "ok", "limit")
"""Of the tenants with the most service; no more are drawn."""


def plot_tenant_service(found: TenantsSummary, time: TimeAxis) -> Iterator[Plot]:
    """Cumulative service per tenant, and the gap where two waited."""
    shown, at = found.rows[: len(HUES)], round_values(np.array(found.service.at_s), 6)
    left = (
        f" The {len(shown)} tenants with the most service of {len(found.rows)}." if len(shown) < len(found.rows) else ""
    )
    lines = [
        PlotSeries(row.name, hue, at, list(found.service.received[row.name]))
        for row, hue in zip(shown, HUES, strict=False)
    ]
    yield Plot(
        title="Service received",
        caption=f"Weighted tokens (input 1, output 2) since the start.{left} While tenants wait, lines as steep as their "
        "weights are a fair server's.",
        label="Service by tenant: " + ", ".join(f"{row.name} {format_brief(row.service, digits=3)}" for row in shown),
        x=time.axis,
        y=PlotAxis(label="weighted tokens", unit="tokens", low=0.0),
        series=tuple(lines),
        group=GROUP,
    )
    if found.gap:
        yield Plot(
            title="Service gap",
            caption="The largest difference of two tenants' service / weight, since both have been waiting; it begins anew "
            "where one of them has no request waiting.",
            label=f"Service gap over time: at most {format_brief(found.gap, digits=3)} weighted tokens",
            x=time.axis,
            y=PlotAxis(label="weighted tokens", unit="tokens", low=0.0),
            series=(PlotSeries("gap", "stall", at, list(found.service.gap), kind="area"),),
            group=GROUP,
            low=True,
        )
