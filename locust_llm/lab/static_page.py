"""Static page: renders results as one HTML file that needs no network, in the style of the reports.
Every text is escaped."""

from collections.abc import Sequence
from functools import cache
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from locust_llm.report.chart_data.plot_data import Plot
from locust_llm.report.render.inline_assets import (
    CHART_SCRIPTS,
    embed_json,
    make_policy,
    read_static,
)
from locust_llm.text.format import clean_line

STYLES: Final = ("plots.css", "page.css")
PLOT_STYLES: Final = ("uPlot.min.css", *STYLES)
PLOT_SCRIPTS: Final = (*CHART_SCRIPTS, "plain_plots_page.js")


def render_page(template: str, own: str, plots: Sequence[Plot] = (), **what: object) -> str:
    """Renders the named ``template``. ``own`` is the style of this page alone. The scripts draw
    ``plots``, in the order of their boxes; a page without plots has no script. The page's policy
    contains the hashes of script and style."""
    script = read_static(PLOT_SCRIPTS) if plots else ""
    style = read_static(PLOT_STYLES if plots else STYLES) + own
    return _templates().get_template(template).render(
        style=Markup(style),
        script=Markup(script),
        data=Markup(embed_json(plots)),
        policy=Markup(make_policy(script, style)),
        **what,
    )  # fmt: skip


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("locust_llm.lab", "templates"), autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: clean_line(value) if type(value) is str else value,
    )  # fmt: skip
