"""Two tables of docs/reference/metrics.md, made from the declared metrics and measures: `make docs`
writes them, a test says when they are old."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from locust_llm.slo.metric_definitions import (
    BY_NAME,
    LATENCIES,
    LENGTHS,
    MEASURES,
    PER_USER,
    Metric,
)
from locust_llm.slo.metric_definitions import RuleMeasure as Measure

PAGE: Final = Path(__file__).parent / "reference" / "metrics.md"
BEGIN: Final = "<!-- {}, made by docs/generate_metrics.py: do not edit -->\n"
END: Final = "<!-- end -->\n"
HEAD: Final = "| metric | definition | names |\n|---|---|---|\n"

OF_THROUGHPUT: Final = re.compile(r",? of successful requests| / duration$")
"""The part of the definition that all throughputs share, and that the page states once."""


def page() -> str:
    text = _with(PAGE.read_text("utf-8"), "latencies", map(_metric_row, LATENCIES))
    whole_run = [measure for measure in MEASURES if measure.metric is None]
    rows = [*map(_measure_row, whole_run), *map(_metric_row, (PER_USER, *LENGTHS))]
    return _with(text, "rates, counts and shares", rows)


def _with(text: str, name: str, rows: Iterable[str]) -> str:
    begin = BEGIN.format(name)
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{HEAD}{''.join(rows)}\n{END}{rest.partition(END)[2]}"


def _metric_row(metric: Metric) -> str:
    label = metric.label
    if metric.short and metric.short not in label:
        label += f" ({metric.short})"
    return _row(label, metric.means, metric.word, metric.tag)


def _measure_row(measure: Measure) -> str:
    label = measure.label or measure.spoken_name.capitalize()
    means = measure.means if measure.sums is None else OF_THROUGHPUT.sub("", measure.means)
    return _row(label, means, measure.word, measure.tag)


def _row(label: str, means: str, word: str, tag: str) -> str:
    """With every name of ``word`` that rules know, the tag last. Without one only files have it."""
    others = [name for name, one in BY_NAME.items() if one.word == word and name != tag]
    words = [name for name in dict.fromkeys((word, *others)) if name not in ("", tag)]
    names = ", ".join(f"`{name}`" for name in (*words, tag))
    return f"| {label} | {means} | {names if word else f'({names})'} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
