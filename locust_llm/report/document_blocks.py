"""Document blocks: what a document consists of (headings, texts and tables), and how values are
written in them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from msgspec.structs import replace

from locust_llm.report.summary_rows import Row
from locust_llm.slo.binomial_intervals import NORMAL_REACH, Ends
from locust_llm.slo.load_generator_health import FINE_MS, FINE_SHARE
from locust_llm.slo.percentile import has_too_few_values
from locust_llm.slo.rules import SloResult
from locust_llm.text.format import (
    MOST_DIGITS,
    count_distinguishing_digits,
    decimal_places,
    format_brief,
    format_number,
    format_supported,
    name_percentile,
    parse_brief,
)

LABEL: Final = 30
"""A longer label takes two lines on the console. So does a shorter one beside wide numbers."""

CORRELATED: Final = 0.75
"""The effective sample size of independent requests is estimated above this share of their
number."""
SCARCE_NOTE: Final = (
    "* too few values for this percentile (p90 needs 10, p95 20, p99 100: 100 / (100 - p))"
)

INEXACT: Final = "~"
OFF_BY_MORE: Final = f"may be off by more than {FINE_SHARE:.0%} and {FINE_MS:g} ms"
INEXACT_NOTE: Final = f"{INEXACT} {OFF_BY_MORE}"


class Heading(NamedTuple):
    text: str
    folded: bool = False
    """The page folds its content away until somebody opens it."""


class Charts(NamedTuple):
    """The place of charts on the page, with their heading. A text has none. A heading comes
    next."""

    heading: str


class Headline(NamedTuple):
    """The result in one sentence."""

    text: str


class TextBlock(NamedTuple):
    text: str
    loud: bool = False


class TableBlock(NamedTuple):
    """Rows as long as ``head``. The first column is aligned left. The others are aligned right if
    they hold ``numbers``."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: bool = True
    label: int = LABEL
    """The greatest width of the first column on the console."""


Block = Heading | Headline | TextBlock | TableBlock


def label_row(row: Row) -> str:
    """``Time to First Token (ms)``, ``Inter Token Latency (ms per token)``; counts name their unit
    already."""
    unit = f"{row.unit} {row.per}" if row.per else row.unit
    return row.label if row.unit in ("tokens", "requests") else f"{row.label} ({unit})"


def format_flags(flags: Mapping[str, str]) -> str:
    """The flags of a server in one cell: ``block_size 16, cache_dtype auto``."""
    return ", ".join(f"{name} {value}" for name, value in flags.items())


def format_observed(result: SloResult) -> str:
    """``612ms``, in the unit of headline and tiles. Where cut requests leave it open, ``590ms to
    640ms``, or ``≥ 590ms`` where nothing bounds it above."""
    if result.observed is None:
        return "-"
    digits = choose_value_digits(_readable(result))
    result = _readable(result)
    if result.worst is None or result.observed is None:
        return format_brief(result.observed, result.unit, digits)
    low, high = sorted((result.observed, result.worst))
    least, most = (
        format_brief(end, result.unit, count_distinguishing_digits(end, result.limit, digits=4))
        for end in (low, high)
    )
    if math.isinf(high):
        return f"≥ {least}" if low else "-"  # at least 0 says nothing
    return f"{least} to {most}"


def choose_value_digits(result: SloResult) -> int:
    """How many significant digits (at least three) keep the written value on its side of the limit,
    and within its interval."""
    value = result.observed
    if value is None or not math.isfinite(value):
        return 3
    least = count_distinguishing_digits(value, result.limit)
    reach = _reach(result)
    low, high = (
        nowhere if end is None else parse_brief(_end(end, reach, result), result.unit)
        for end, nowhere in ((result.low, -math.inf), (result.high, math.inf))
    )
    for digits in range(least, MOST_DIGITS):
        inside = low <= parse_brief(format_brief(value, digits=digits)) <= high
        if inside and count_distinguishing_digits(value, result.limit, digits=digits) == digits:
            return digits
    return least


def format_interval(result: SloResult) -> str:
    """``590ms to 640ms``; ``at least 590ms``, or ``at most 640ms``, where the other end is not
    known."""
    if (result.low in (None, 0) and result.high in (None, math.inf)) or result.low == math.inf:
        return "-"  # at least 0 says nothing
    result = _readable(result)
    if result.high is None or (result.worst is not None and result.high == math.inf):
        return f"at least {_end(result.low, None, result)}"
    if result.low is None:
        return f"at most {_end(result.high, None, result)}"
    reach = _reach(result)
    low, high = (_end(end, reach, result) for end in (result.low, result.high))
    return f"{low} to {high}"


def format_interval_around(value_ms: float, ends_ms: Ends) -> str:
    """The interval of a time, written as for a rule."""
    low, high = (None if end is None else end / 1e3 for end in ends_ms)
    result = SloResult(rule="", status="", observed=value_ms / 1e3, low=low, high=high, unit="s")
    return format_interval(result)


def _readable(result: SloResult) -> SloResult:
    """The result in milliseconds where the rule is in seconds and the value is below one:
    ``5.9ms``, not ``0.0059s``. Its interval has the same unit. Without a value, the ends decide."""
    observed = (result.observed, result.worst)
    ends = (result.low, result.high)
    known = observed if result.observed is not None else ends
    measured = [abs(value) for value in known if value is not None]
    largest = max((value for value in measured if math.isfinite(value)), default=0.0)
    if result.unit != "s" or not 0 < largest < 0.9995:
        return result

    def in_ms(value: float | None) -> float | None:
        return None if value is None else value * 1e3

    return replace(
        result,
        unit="ms",
        observed=in_ms(result.observed),
        worst=in_ms(result.worst),
        low=in_ms(result.low),
        high=in_ms(result.high),
        limit=in_ms(result.limit),
    )


NOTHING: Final = 1e-6
"""An end nearer to 0 than this share of the interval's half-width is written as 0."""


def _end(end: float | None, reach: float | None, result: SloResult) -> str:
    """As many digits as the interval supports. There are more where these would put the value
    outside it, or the end on the limit or beyond it."""
    known = end is not None and reach is not None and math.isfinite(reach)
    is_nothing = known and abs(end or 0.0) < NOTHING * (reach or 0.0)
    text = format_supported(0.0 if is_nothing else end, reach, result.unit, more=1)
    if end is None or not math.isfinite(end):
        return text
    written = parse_brief(text, result.unit)
    value, limit = result.observed, result.limit
    beside = value is not None and ((end <= value < written) or (written < value <= end))
    at_limit = limit is not None and (written == limit or (written < limit) != (end < limit))
    if not (beside or at_limit):
        return text
    digits = count_distinguishing_digits(end, limit, digits=4)
    if value is not None and math.isfinite(value):
        digits = max(digits, count_distinguishing_digits(value, limit))
    return format_brief(end, result.unit, digits)


def _reach(result: SloResult) -> float | None:
    """The half-width of its interval. None: an end is not known."""
    return None if result.low is None or result.high is None else (result.high - result.low) / 2


def format_sample_size(result: SloResult) -> str:
    """``1500``; ``1500 (effective 140)`` where they are correlated."""
    if is_correlated(result):
        return f"{result.count} (effective {format_effective_size(result.effective or 0.0)})"
    return str(result.count or "-")


def format_effective_size(size: float) -> str:
    """``140``; ``less than 1``, where not even one independent request would say as little."""
    return "less than 1" if size < 1 else f"{size:,.0f}"


def is_correlated(result: SloResult) -> bool:
    """Whether fewer independent requests would say as much about the rule."""
    effective = result.effective
    return effective is not None and effective < CORRELATED * (result.count or 0)


def choose_row_decimals(row: Row) -> int:
    """The decimals by the mean's half-width, as a percentile is not known better."""
    size = row.effective or row.count
    if row.std is None or not size:
        return 2
    return decimal_places(NORMAL_REACH * row.std / math.sqrt(size))


def mark_scarce(count: int, percentile: float) -> str:
    """The mark after a percentile with too few values."""
    return "*" if has_too_few_values(count, percentile) else ""


def mark_inexact(row: Row, stat: str) -> str:
    """The mark before a value that the load generator may have too wrong."""
    return INEXACT if stat in row.inexact else ""


def explain_marks(rows: Sequence[tuple[str, ...]]) -> Iterator[TextBlock]:
    """The notes below a table on the marks of its values."""
    if any("*" in cell for cell in chain.from_iterable(rows)):
        yield TextBlock(SCARCE_NOTE)
    if has_inexact(rows):
        yield TextBlock(f"{INEXACT_NOTE} because of the load generator.")


def has_inexact(rows: Sequence[tuple[str, ...]]) -> bool:
    """Whether a value of a table has the mark ``~``."""
    return any(cell.startswith(INEXACT) for cell in chain.from_iterable(rows))


def format_percentile(row: Row, percentile: float, digits: int | None = None, most: int = 2) -> str:
    """A percentile of a row. ``*`` marks too few values, ``≥`` a lower bound, and ``~`` a value
    that may be off. ``digits`` and ``most``: see ``format_number``."""
    value = row.percentiles.get(percentile)
    least = row.at_least.get(percentile)
    few = "" if value is None or row.count is None else mark_scarce(row.count, percentile)
    inexact = "" if math.isinf(value or 0.0) else mark_inexact(row, name_percentile(percentile))
    return (
        f"{inexact}{format_number(value, digits, most)}"
        if least is None
        else f"≥ {format_number(least, digits, most)}"
    ) + few
