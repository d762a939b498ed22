"""Format: how numbers and lines of text are written.

``static/chart_format.js`` writes by the same rules in the browser; ``tests/data/format_cases.json``
holds both to them.
"""

import math
import os
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Final, NamedTuple

import msgspec


def format_number(value: float | None, digits: int | None = None, most: int = 2) -> str:
    """For a table: ``most`` decimals, or fewer where that gives more than ``digits``. With 4
    digits: 12.35, 123.5, 12346. ``-`` stands for None, ``fail`` for a percentile that is a
    failure."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return "fail"
    decimals = most if digits is None or value < 1 else digits - 1 - math.floor(math.log10(value))
    return f"{value:.{max(0, min(most, decimals))}f}"


FEW_DIGITS: Final = 4
"""More digits than these show a value as it is, however small it is."""
MOST_DIGITS: Final = 15
"""The digits of a float that all mean something."""
MOST_DECIMALS: Final = 9
"""A difference without a digit among them is a rounding error of floats."""
SAME: Final = 1e-12
"""Two values are equal up to this relative difference: a product of floats is not exact."""


def format_brief(value: float | None, unit: str = "", digits: int = 4) -> str:
    """For a sentence: significant digits, no trailing zeros, no power of ten: ``612.3ms``,
    ``0.98%``, ``12,346/s``."""
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "fail"
    size = math.floor(math.log10(abs(value))) if value else 0
    most = 6 if digits <= FEW_DIGITS else digits + 6
    return _trim_zeros(f"{value:,.{max(0, min(most, digits - 1 - size))}f}") + unit


def _trim_zeros(text: str) -> str:
    """Without zeros at its end. What is rounded to 0 has no sign."""
    short = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if short == "-0" else short


def format_signed(value: float, decimals: int, unit: str = "") -> str:
    """A difference with its sign: ``+12.3%``. Only 0 is written as 0, and has no sign: ``0.0%``. A
    value too small for ``decimals`` gets one digit, ``-0.01%``."""
    if value and not round(value, decimals):
        digit = -math.floor(math.log10(abs(value)))
        decimals = digit if digit <= MOST_DECIMALS else decimals
    rounded = round(value, decimals) or 0.0
    return f"{rounded:{'+' if rounded else ''},.{decimals}f}{unit}"


def count_distinguishing_digits(value: float, *others: float | None, digits: int = 3) -> int:
    """How many significant digits (``digits`` at least) keep ``value`` on its side of each of the
    others and different from them. With three, 567.04 would be written as the limit of 567."""
    known = [
        other
        for other in others
        if other is not None and not math.isclose(value, other, rel_tol=SAME)
    ]
    for more in range(digits, MOST_DIGITS):
        written = parse_brief(format_brief(value, digits=more))
        if all(written != other and (written < other) == (value < other) for other in known):
            return more
    return MOST_DIGITS


def parse_brief(text: str, unit: str = "") -> float:
    """The value that a text of ``format_brief`` shows."""
    return float(text.removesuffix(unit).replace(",", "")) if text != "fail" else math.inf


def format_supported(
    value: float | None, reach: float | None, unit: str = "", digits: int = 4, more: int = 0
) -> str:
    """Writes as ``format_brief`` does, without digits that the error ``reach`` to either side makes
    meaningless. The last digit has the place of the first digit of ``reach``, or of its second
    where the first is 1 or 2, as uncertainties are written: 1.7 for 1.676 ± 0.3, 1.68 for 1.676 ±
    0.14. ``more`` adds places, for the ends of an interval."""
    if value is None or not math.isfinite(value) or reach is None or not 0 < reach < math.inf:
        return format_brief(value, unit, digits)
    decimals = _count_supported_decimals(value, reach, digits, more)
    return _trim_zeros(f"{round(value, decimals):,.{max(0, decimals)}f}") + unit


def format_supported_rounded_down(value: float, reach: float) -> str:
    """Writes a limit with the digits that ``reach`` supports, three at most, and never above the
    value: 190 for 199 ± 120."""
    if not 0 < reach < math.inf:
        reach = abs(value) / 1e3 or 1.0
    decimals = _count_supported_decimals(value, reach, digits=3)
    steps = math.floor(value * 10.0**decimals * (1 + SAME))
    return _trim_zeros(f"{steps / 10.0**decimals:,.{max(0, decimals)}f}")


def _count_supported_decimals(value: float, reach: float, digits: int, more: int = 0) -> int:
    """Below 0: tens, hundreds."""
    largest = math.floor(math.log10(abs(value))) if value else 0
    return max(min(_place(reach) + more, digits - 1 - largest, 6), -largest)


class ComparedTexts(NamedTuple):
    """Two values and their difference with the same decimals. The difference is of the values as
    they are written."""

    base: str
    value: str
    difference: str
    low: str
    high: str
    """The ends of the difference's interval; ``-``: not known."""


def format_comparison(
    base: float | None,
    value: float | None,
    low: float | None = None,
    high: float | None = None,
    unit: str = "",
) -> ComparedTexts:
    """The interval's half-width decides the digits, with one place more than it supports. Without
    an interval there are four digits. A difference other than 0 is never written as 0."""
    if base is None or value is None or not (math.isfinite(base) and math.isfinite(value)):
        known = base is not None and value is not None
        return ComparedTexts(
            format_brief(base, unit), format_brief(value, unit), "fail" if known else "-", "-", "-"
        )
    largest = max(abs(base), abs(value))
    most = 3 - (math.floor(math.log10(largest)) if largest else 0)
    decimals = most
    half = (high - low) / 2 if low is not None and high is not None else 0.0
    if 0 < half < math.inf:
        decimals = min(_place(half) + 1, most)
    if base != value:
        decimals = max(decimals, -math.floor(math.log10(abs(value - base))))
    # 1,143 is not 1,140: the report beside it has the figure too
    decimals = min(max(decimals, 0), 6)
    rounded = round(base, decimals), round(value, decimals)
    difference = round(rounded[1] - rounded[0], decimals)
    shown = decimals  # without the zeros that all of them end in
    while shown > 0 and all(
        round(number, shown - 1) == number for number in (*rounded, difference)
    ):
        shown -= 1
    places = shown

    def end(number: float | None) -> str:
        if number is None or not math.isfinite(number):
            return "-" if number is None else "fail"
        return format_signed(number, decimals, unit)

    written = [f"{number + 0.0:,.{places}f}{unit}" for number in rounded]
    return ComparedTexts(
        written[0], written[1], format_signed(difference, places, unit), end(low), end(high)
    )


def decimal_places(reach: float | None) -> int:
    """The decimals of the cells in a table's row (0 to 2), by the same rule."""
    if reach is None or not 0 < reach < math.inf:
        return 2
    return max(0, min(2, _place(reach)))


def _place(reach: float) -> int:
    """The number of decimals; below 0: tens, hundreds."""
    size = math.floor(math.log10(reach))
    return (reach / 10.0**size < 2.95) - size


def format_duration(seconds: float | None, digits: int = 3) -> str:
    """Writes seconds: ``12.3 ms``, ``1.23 s``."""
    if seconds is not None and abs(seconds) < 0.9995:
        return format_brief(seconds * 1e3, " ms", digits)
    return format_brief(seconds, " s", digits)


def format_clock(seconds: float | None, decimals: int = 0) -> str:
    """Writes a moment or a length on the run's own clock: ``0:51``, ``1:02:03``; with decimals
    ``0:51.3``."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    rounded = round(abs(seconds), decimals)
    hours, rest = divmod(rounded, 3600)
    minutes, rest = divmod(rest, 60)
    width = decimals + 3 if decimals else 2
    clock = f"{minutes:.0f}:{rest:0{width}.{decimals}f}"
    if hours:
        clock = f"{hours:.0f}:{minutes:02.0f}:{rest:0{width}.{decimals}f}"
    return f"-{clock}" if seconds < 0 and rounded else clock


def format_date(unix_s: float | None) -> str:
    """Writes a moment: ``2026-11-25 16:24 UTC``."""
    if unix_s is None or not math.isfinite(unix_s):
        return "-"
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def format_duration_rounded_up(seconds: float) -> str:
    """Writes seconds, rounded up: ``4 s``, ``40 s``, ``9 min``, ``3 h``."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * size:
            return f"{math.ceil(seconds / size)} {unit}"
    step = 1 if seconds <= 10 else 10
    return f"{math.ceil(seconds / step) * step} s"


def format_duration_rounded_down(seconds: float) -> str:
    """Writes seconds, rounded down by a fifth at most: ``800 ms``, ``13 s``, ``9 min``, ``5 h``."""
    for unit, size in (("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= 5 * size or (unit == "s" and seconds >= 1):
            return f"{math.floor(seconds / size)} {unit}"
    return f"{math.floor(seconds * 1e3)} ms"


def clean_line(text: str) -> str:
    """One line without control or direction characters: an error message may hold anything."""

    def clean(character: str) -> str:
        if character.isprintable():
            return character
        return " " if character.isspace() else "\N{REPLACEMENT CHARACTER}"

    return text if text.isprintable() else "".join(map(clean, text))


def name_percentile(percentile: float) -> str:
    """``p99.9``."""
    return f"p{percentile:g}"


def format_count(count: int | None, noun: str, more: str = "") -> str:
    """``1 request``, ``2 requests``."""
    several = more or f"{noun}s"
    if count is None:
        return f"? {several}"
    return f"{count} {noun if count == 1 else several}"


def add_noun(amount: str, noun: str) -> str:
    """``1 request``, ``1.02 requests``, of a written amount."""
    return f"{amount} {noun}" if amount == "1" else f"{amount} {noun}s"


def capitalise_sentence(text: str) -> str:
    """Begin a sentence with a capital; everything else stays as it is."""
    return text[:1].upper() + text[1:]


def truncate_text(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "\N{HORIZONTAL ELLIPSIS}"


def format_error_ends(pair: tuple[float, float] | None) -> str:
    """``± 0.03``, or ``-17.8 +0.03`` where merged chunks make one end longer."""
    if pair is None:
        return "-"
    lower, upper = pair
    wide = max(lower, upper)
    if not math.isfinite(wide):
        return "unknown"
    if wide - min(lower, upper) < 0.1 * wide or wide < 0.1:
        return f"± {format_bound(wide)}"
    return f"-{format_bound(lower)} +{format_bound(upper)}"


def format_bound(value: float) -> str:
    """Writes two digits, the last one rounded up, so that no bound gets smaller."""
    if value <= 0:
        return "0"
    step = 10.0 ** max(-3, math.floor(math.log10(value)) - 1)
    up = math.ceil(value / step - 1e-9) * step
    return f"{up:.{max(0, -round(math.log10(step)))}f}"


def print_safely(text: str) -> None:
    """Print the text, whatever the terminal takes. A closed pipe or a full disk is no error."""
    try:
        try:
            print(text, end="", flush=True)
        except UnicodeEncodeError:  # a terminal that is not of UTF-8
            encoding = sys.stdout.encoding or "ascii"
            print(text.encode(encoding, "replace").decode(encoding), end="", flush=True)
    except (
        OSError
    ):  # the pipe is closed (| head) or the disk full; Python would flush again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(value: object) -> None:
    """Print the value as one line of JSON. A number that is not finite is null."""
    print_safely(f"{msgspec.json.encode(value).decode()}\n")


def describe_error(error: Exception) -> str:
    """The file and what is wrong with it; for another error, its own sentence."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def find_nearest_names(name: str, names: Iterable[str], most: int = 1) -> str:
    """The text that a message about an unknown name adds; empty where no name is near."""
    near = get_close_matches(name, names, most)
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def format_plain_number(number: float) -> str:
    """All digits, without a fraction of zero: ``32``, ``0.5``."""
    return repr(number).removesuffix(".0")
