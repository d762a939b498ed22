"""How figures and lines of text are written."""

import math


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


def title(percentile: float) -> str:
    """``p99.9``."""
    return f"p{percentile:g}"


def many(count: int | None, one: str, more: str = "") -> str:
    """``1 request``, ``2 requests``."""
    return f"? {more or one + 's'}" if count is None else f"{count} {one if count == 1 else more or one + 's'}"


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "\N{HORIZONTAL ELLIPSIS}"
