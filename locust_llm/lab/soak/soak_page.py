"""Soak page: the result of a soak as one HTML file that needs no network."""

from collections.abc import Sequence
from typing import Final

from locust_llm.lab.static_page import render_page
from locust_llm.report.sections.soak_section import (
    format_soak_line,
    list_soak_sentences,
    plot_quantities,
)
from locust_llm.trends.soak_readings import SoakReading
from locust_llm.trends.soak_text import HEADERS, list_rows
from locust_llm.trends.steady_growth import GrowthVerdict

from .soak_result import SoakResult

OWN: Final = """
body { display: block; max-width: 80rem; } .headline { font-size: 1.1rem; }
.plots { grid-template-columns: repeat(auto-fit, minmax(min(100%, 34rem), 1fr)); }
"""
STYLES: Final = {
    GrowthVerdict.GROWS.value: "loud",
    GrowthVerdict.STABLE.value: "pass",
    GrowthVerdict.OPEN.value: "open",
}


def render_soak_page(
    result: SoakResult, readings: Sequence[SoakReading], reports: Sequence[str] = ()
) -> str:
    """``reports`` are the addresses of the parts' own reports."""
    plots = plot_quantities(result, readings)
    rows = [(row[0], STYLES.get(row[1], ""), row[1:]) for row in list_rows(result)]
    return render_page(
        "soak.html",
        OWN,
        plots,
        title=f"Soak of {result.host}",
        headline=format_soak_line(result),
        sentences=list(list_soak_sentences(result)),
        notes=result.notes,
        headers=HEADERS[1:],
        rows=rows,
        drawings=plots,
        reports=reports,
    )
