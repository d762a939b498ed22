"""Blocks: what a document is made of, headings, texts and tables, and how figures are written in them."""

import math
from collections.abc import Callable
from typing import Final, NamedTuple

from .parts import scarce
from .summary import Row, SloResult

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


def number(value: float | None) -> str:
    """Two decimals; ``-`` for nothing, ``fail`` for a percentile that lands on a failure."""
    if value is None:
        return "-"
    return f"{value:.2f}" if math.isfinite(value) else "fail"


def brief(value: float | None) -> str:
    """Four significant digits and no fraction above: 12.35, 123.5, 1235, 12346."""
    if value is None:
        return "-"
    return f"{value:.{max(0, min(2, 3 - math.floor(math.log10(value)))) if value >= 1 else 2}f}"


def clean(text: str) -> str:
    """One line without control or direction characters: an error message may hold anything."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text)


def amount(value: float | None, unit: str) -> str:
    """Four significant digits: ``612.3ms``, ``0.98%``, ``12346/s``; ``?`` for nothing, ``fail`` for what lands on one."""
    if value is None:
        return "?"
    if not math.isfinite(value):
        return "fail"
    return (f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}") + unit


def observed(result: SloResult) -> str:
    """``612ms``; where cut requests leave it open ``590ms to 640ms``, or ``≥ 590ms`` where nothing bounds it above."""
    if result.observed is None:
        return "-"
    if result.worst is None:
        return amount(result.observed, result.unit)
    low, high = sorted((result.observed, result.worst))
    return (
        f"≥ {amount(low, result.unit)}"
        if math.isinf(high)
        else f"{amount(low, result.unit)} to {amount(high, result.unit)}"
    )


def interval(result: SloResult) -> str:
    """``590ms to 640ms``; ``590ms and more`` where that is all that is known of requests which were cut."""
    if result.low is None and result.high is None:
        return "-"
    if result.worst is not None and result.high == math.inf:
        return f"{amount(result.low, result.unit)} and more"
    return f"{amount(result.low, result.unit)} to {amount(result.high, result.unit)}"


def marked(row: Row, percentile: float, number: Callable[[float | None], str] = number) -> str:
    """A percentile of a row, with ``*`` where there are too few values for it, and ``≥`` before what it is at least."""
    value, least = row.percentiles.get(percentile), row.at_least.get(percentile)
    few = value is not None and row.count is not None and scarce(row.count, percentile)
    return (number(value) if least is None else f"≥ {number(least)}") + ("*" if few else "")


def title(percentile: float) -> str:
    """``p99.9``."""
    return f"p{percentile:g}"


def many(count: int | None, one: str, more: str = "") -> str:
    """``1 request``, ``2 requests``."""
    return f"? {more or one + 's'}" if count is None else f"{count} {one if count == 1 else more or one + 's'}"


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "\N{HORIZONTAL ELLIPSIS}"
