"""Soak text: what a soak found as sentences and as rows of a table."""

import math
from collections.abc import Iterator, Sequence
from typing import Final

from locust_llm.text.format import (
    capitalise_sentence,
    format_brief,
    format_count,
    format_duration,
)

from .soak_findings import SoakFindings, SoakQuantity, SoakSlope
from .steady_growth import GrowthVerdict, OpenReason

FEW_MINUTES: Final = 3
MANY_MINUTES: Final = 90
SIZES: Final = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
REASONS: Final = {
    OpenReason.SHORT: "there are too few readings",
    OpenReason.SLOWS: "its growth becomes slower, as in a warm-up",
    OpenReason.UNEVEN: "it rises in steps, or falls in between, as a cache does",
    OpenReason.WIDE: "it varies too much",
}
HEADERS: Final = (
    "",
    "verdict",
    "at first",
    "at last",
    "per hour (95%)",
    "per request",
    "per token",
    "visible per hour",
)


def format_size(value: float, digits: int = 3) -> str:
    """``1.23 GB``, in powers of 1,000."""
    for size, unit in SIZES:
        if abs(value) >= size:
            return format_brief(value / size, f" {unit}", digits)
    return format_brief(value, " B", digits)


def format_quantity(value: float | None, unit: str, digits: int = 3) -> str:
    """Writes a value of the quantity's unit, without the name of what is counted."""
    if value is None:
        return "-"
    if unit == "bytes":
        return format_size(value, digits)
    if unit == "s":
        return format_duration(value, digits)
    if unit == "share":
        return format_brief(value * 100, "%", digits)
    return format_brief(value, "", digits)


def format_slope(slope: SoakSlope | None, unit: str, *, ends: bool = True) -> str:
    if slope is None:
        return "-"
    text = _format_signed(slope.value, unit)
    if not ends:
        return text
    return f"{text} ({_format_signed(slope.low, unit)} to {_format_signed(slope.high, unit)})"


def _format_signed(value: float, unit: str) -> str:
    return f"{'+' if value > 0 else ''}{format_quantity(value, unit)}"


def format_hours(hours: float) -> str:
    """``66 s``, ``20 min``, ``1.5 h``."""
    minutes = max(hours, 0.0) * 60
    if minutes < FEW_MINUTES:
        return f"{max(round(minutes * 60), 1)} s"
    if minutes < MANY_MINUTES:
        return f"{round(minutes)} min"
    return format_brief(minutes / 60, " h", 2 if minutes < MANY_MINUTES * 10 else 3)


def _format_needed_hours(hours: float) -> str:
    """Rounded up, as a shorter soak decides nothing."""
    minutes = hours * 60
    step_hours = 0.1
    if minutes < MANY_MINUTES:
        step_hours = 1 / 60
    if minutes < FEW_MINUTES:
        step_hours = 1 / 3600
    return format_hours(math.ceil(round(hours / step_hours, 6)) * step_hours)


def describe_quantity(one: SoakQuantity) -> str:
    """What the quantity did, in one sentence or two, without its name at the beginning."""
    slope = one.per_hour
    if slope is None:
        return f"cannot tell yet: {REASONS[OpenReason.SHORT]}{_describe_need(one)}."
    if one.verdict == GrowthVerdict.GROWS:
        return _describe_growth(one, slope)
    unit = one.unit
    # free space shrinks
    worst = -slope.low if one.name == "kv_free" else slope.high
    most = f"{format_quantity(max(worst, 0.0), unit)} per hour"
    if one.verdict == GrowthVerdict.STABLE:
        text = f"stable: it {_verb(one)} by at most {most}."
    else:
        reason = REASONS[OpenReason(one.reason)]
        text = (
            f"cannot tell yet, as {reason}; it {_verb(one)} by at most {most}{_describe_need(one)}."
        )
    if one.visible_per_hour is None:
        return text
    return f"{text} A steady slope from {_format_visible(one)} per hour on would show."


def _describe_growth(one: SoakQuantity, slope: SoakSlope) -> str:
    unit = one.unit
    value, low, high = (format_quantity(abs(x), unit) for x in (slope.value, slope.low, slope.high))
    if one.name == "kv_free":
        low, high = high, low
    text = f"{_verb(one)} by {value} per hour (95% interval {low} to {high})"
    if one.per_request is not None and one.per_token is not None:
        text += (
            f", {format_quantity(abs(one.per_request.value), unit)} per request and "
            f"{format_quantity(abs(one.per_token.value), unit)} per token"
        )
    if one.unit == "s" and one.first:
        text += f", {format_brief(slope.value / one.first * 100, '%', 2)} of its first value"
    if one.full_in_hours is None or one.full_at_earliest_hours is None:
        return f"{text}."
    what = "The cache" if one.name == "kv_free" else "Memory"
    return (
        f"{text}. {what} is full in {format_hours(one.full_in_hours)}, at the earliest in "
        f"{format_hours(one.full_at_earliest_hours)}."
    )


def _format_visible(one: SoakQuantity) -> str:
    """The smallest slope that would have been called growth."""
    return format_quantity(one.visible_per_hour, one.unit)


def _verb(one: SoakQuantity) -> str:
    return "shrinks" if one.name == "kv_free" else "grows"


def _describe_need(one: SoakQuantity) -> str:
    if one.needed_hours is None or not math.isfinite(one.needed_hours):
        return ""
    return f"; a soak of {_format_needed_hours(one.needed_hours)} may decide it"


def describe_changes(one: SoakQuantity) -> Iterator[str]:
    for change in one.changes:
        before = format_quantity(change.before, one.unit)
        after = format_quantity(change.after, one.unit)
        yield f"{capitalise_sentence(one.label)} changed from {before} to {after} after {format_hours(change.hours)}."


def describe_soak(result: SoakFindings) -> str:
    """The verdict in one sentence."""
    growing = [one.label for one in result.quantities if one.verdict == GrowthVerdict.GROWS]
    unclear = [one.label for one in result.quantities if one.verdict == GrowthVerdict.OPEN]
    after = f"after {format_hours(result.hours)} and {format_count(result.requests, 'request')}"
    if growing:
        return f"GROWS {after}: {', '.join(growing)}."
    if unclear or not result.quantities:
        return f"CANNOT TELL YET {after}: {', '.join(unclear) or 'nothing was read'}."
    return f"STABLE {after}: {', '.join(one.label for one in result.quantities)}."


def describe_need_of_soak(result: SoakFindings) -> str:
    """How long a soak must be to decide. Empty: nobody knows, or it is decided."""
    if result.verdict != GrowthVerdict.OPEN:
        return ""
    needed = [
        one.needed_hours
        for one in result.quantities
        if one.verdict == GrowthVerdict.OPEN and one.needed_hours is not None
    ]
    known = [hours for hours in needed if math.isfinite(hours)]
    return f" A soak of {_format_needed_hours(max(known))} may decide it." if known else ""


def describe_progress(quantities: Sequence[SoakQuantity], hours: float, planned: float) -> str:
    """A line of progress."""
    parts = [
        f"{one.label} {format_quantity(one.last, one.unit)} {_mark(one)}".rstrip()
        for one in quantities
    ]
    return f"{format_hours(hours)} of {format_hours(planned)}: {', '.join(parts)}"


def _mark(one: SoakQuantity) -> str:
    if one.verdict == GrowthVerdict.GROWS and one.per_hour is not None:
        return f"({_format_signed(one.per_hour.value, one.unit)}/h)"
    return "(stable)" if one.verdict == GrowthVerdict.STABLE else ""


def list_rows(result: SoakFindings) -> list[tuple[str, ...]]:
    return [
        (
            one.label,
            one.verdict,
            format_quantity(one.first, one.unit),
            format_quantity(one.last, one.unit),
            format_slope(one.per_hour, one.unit),
            format_slope(one.per_request, one.unit, ends=False),
            format_slope(one.per_token, one.unit, ends=False),
            _format_visible(one),
        )
        for one in result.quantities
    ]
