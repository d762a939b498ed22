"""Page: what-ifs as one HTML file without a script: the best, the frontier as a plot, the table, the run to do next."""

from typing import Final

from markupsafe import Markup

from locust_llm.report.document.blocks import Text
from locust_llm.results.page import page as rendered

from . import text
from .chart import chart
from .data import axis
from .text import Asked

OWN: Final = """
body { display: block; max-width: 76rem; }
.lines text { font-size: 12px; } .lines .axis { fill: var(--muted); } .lines text:not(.axis, [fill]) { fill: var(--ink); }
code { font-size: .86rem; overflow-wrap: anywhere; }
@media (max-width: 40rem) { .lines text { font-size: 11px !important; } .plot .lines { padding-left: 58px; } }
"""
KEY: Final = (
    "A dot is a what-if: green within the SLO, red not, blue open or not judged; hollow where it is an extrapolation. The "
    "line joins those of which no other has more throughput and less of the wait, with their 95% intervals."
)


def page(asked: Asked) -> str:
    shown = text.shown(asked)
    drawn = "" if asked.shape else chart(asked.rows, axis(asked), asked.rules)
    runs = [block.text for block in text.decision(asked) if isinstance(block, Text)]
    return rendered(
        "whatif.html", OWN, title=f"What if: {asked.name}", headline=text.headline(asked), about=text.about(asked),
        drawn=Markup(drawn), key=KEY, table=text.table(asked, shown),
        statuses=[text.STATUS_CLASSES.get(row.status, "") for row in shown], notes=list(text.notes(asked)), runs=runs,
    )  # fmt: skip
