"""Page: what-ifs as one HTML file without a script: the best, the frontier as a plot, the table,
the run to do next."""

from typing import Final

from markupsafe import Markup

from locust_llm.lab.page import render_page as rendered
from locust_llm.report.blocks import TextBlock

from . import text
from .chart import draw_whatif_chart
from .data import axis
from .text import WhatIfReport

OWN: Final = """
body { display: block; max-width: 76rem; }
.lines text { font-size: 12px; } .lines .axis { fill: var(--muted); } .lines text:not(.axis, [fill]) { fill: var(--ink); }
code { font-size: .86rem; overflow-wrap: anywhere; }
@media (max-width: 40rem) { .lines text { font-size: 11px !important; } .plot .lines { padding-left: 58px; } }
"""
KEY: Final = (
    "A dot is a what-if: green within the SLO, red not, blue open or not judged; hollow where it "
    "is an extrapolation. The "
    "line joins those of which no other has more throughput and less of the wait, with their 95% "
    "intervals."
)


def render_whatif_page(asked: WhatIfReport) -> str:
    shown = text.select_shown_rows(asked)
    drawn = "" if asked.shape else draw_whatif_chart(asked.rows, axis(asked), asked.rules)
    runs = [block.text for block in text.decision(asked) if isinstance(block, TextBlock)]
    return rendered(
        "whatif.html", OWN, title=f"What if: {asked.name}", headline=text.whatif_headline(asked),
        about=text.whatif_subtitle(asked),
        drawn=Markup(drawn), key=KEY, table=text.whatif_table(asked, shown),
        statuses=[text.STATUS_CLASSES.get(row.status, "") for row in shown],
        notes=list(text.whatif_notes(asked)), runs=runs,
    )  # fmt: skip
