"""Blocks: what a document is made of, headings, texts and tables, and how figures are written in them."""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from locust_llm.core.text import brief, number
from locust_llm.report.analysis.selection import scarce
from locust_llm.report.analysis.summary import Row, SloResult

LABEL: Final = 30
"""Longer labels take two lines on the console; where the numbers are wide, shorter ones too."""


class Heading(NamedTuple):
    text: str


class Text(NamedTuple):
    text: str
    loud: bool = False


class Table(NamedTuple):
    """Rows as long as ``head``. The first column is aligned left, the others right if they hold ``numbers``."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: bool = True
    label: int = LABEL
    """How wide the first column may be on the console."""


Block = Heading | Text | Table


def label_of(row: Row) -> str:
    """``Time to First Token (ms)``; counts name their unit already."""
    return row.label if row.unit in ("tokens", "requests") else f"{row.label} ({row.unit})"


def flags_of(flags: Mapping[str, str]) -> str:
    """Of a server, in one cell: ``block_size 16, cache_dtype auto``."""
    return ", ".join(f"{name} {value}" for name, value in flags.items())


def observed(result: SloResult) -> str:
    """``612ms``; where cut requests leave it open ``590ms to 640ms``, or ``≥ 590ms`` where nothing bounds it above."""
    if result.observed is None:
        return "-"
    if result.worst is None:
        return brief(result.observed, result.unit)
    low, high = sorted((result.observed, result.worst))
    least, most = brief(low, result.unit), brief(high, result.unit)
    return f"≥ {least}" if math.isinf(high) else f"{least} to {most}"


def interval(result: SloResult) -> str:
    """``590ms to 640ms``; ``590ms and more`` where that is all that is known of requests which were cut."""
    if result.low is None and result.high is None:
        return "-"
    if result.worst is not None and result.high == math.inf:
        return f"{brief(result.low, result.unit)} and more"
    low, high = ("?" if end is None else brief(end, result.unit) for end in (result.low, result.high))
    return f"{low} to {high}"


def counted(result: SloResult) -> str:
    """``1500``; ``1500 (worth 140)`` where they are correlated."""
    count, worth = result.count or 0, result.effective
    if not count or worth is None or worth >= 0.9 * count:
        return str(count or "-")
    return f"{count} (worth {worth:.0f})"


def marked(row: Row, percentile: float, digits: int | None = None) -> str:
    """A percentile of a row, with ``*`` where there are too few values for it, and ``≥`` before what it is at
    least. ``digits``: see ``number``."""
    value, least = row.percentiles.get(percentile), row.at_least.get(percentile)
    few = value is not None and row.count is not None and scarce(row.count, percentile)
    return (number(value, digits) if least is None else f"≥ {number(least, digits)}") + ("*" if few else "")
