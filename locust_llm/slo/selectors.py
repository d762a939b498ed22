"""Selectors: the requests, or stages of a sweep, of an SLO rule; the text in its braces."""

import re
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from functools import partial
from typing import Any, Final, NoReturn

STAGES: Final = ("stage", "concurrency", "request-rate", "prefill-concurrency", "input-tokens")
"""Selectors of stages, by the value of what the sweep changes: by any name, or by that of what it
must be."""
SELECTORS: Final = ("class", "input", "name", "model", "tenant", "turn", "images", *STAGES)
MOST_TOKENS: Final = 1e12
"""A length has twelve digits at most."""
TURNS: Final = ("first", "later")
COLUMNS: Final = {"class": "user_class", "name": "name", "model": "model", "tenant": "tenant"}
"""Selectors of requests by a value that they have, and what a record calls it."""
IMAGES: Final = "images"
"""The selector by the number of pictures in a request."""
INPUT: Final = "input"
"""The selector by length: of the prompt as delivered, else as asked, in tokens."""

Predicate = Callable[[Any], Any]
"""Of one value, or of a column elementwise; of NaN, no value, it is false."""

QUOTED: Final = r'"(?:[^"]|"")*+"'
"""A value in double quotes, doubled inside."""
_PICK: Final = re.compile(
    rf'\s*(?P<key>[\w-]+)\s*=\s*(?P<value>{QUOTED}|[^",\s](?:[^",]*[^",\s])?)\s*(?:,|$)'
)


def parse_selectors(text: str) -> tuple[tuple[str, str], ...]:
    """Keys and values in their canonical form. Raises ValueError of one sentence."""
    found: dict[str, str] = {}
    at = 0
    while at < len(text) or not found:
        pick = _PICK.match(text, at)
        if not pick:
            raise_selector_error(
                f"{{{text}}} is not a selector: write {{class=ShortQuestions}}, with "
                f"{', '.join(SELECTORS)} as keys"
            )
        key = pick["key"].lower()
        value = pick["value"]
        at = pick.end()
        if key not in SELECTORS:
            raise_selector_error(
                f"unknown selector {key}{find_nearest_names(key, SELECTORS)}; there are: "
                f"{', '.join(SELECTORS)}"
            )
        if key in found:
            raise_selector_error(f"{key} is given twice: use one value")
        if value.startswith('"'):
            value = value[1:-1].replace('""', '"')
        if key in (INPUT, IMAGES):
            value = _range(*parse_length_range(value.strip()))
        if key in STAGES:
            value = _stages(*parse_stage_range(value.strip()))
        if key == "turn" and value not in TURNS:
            raise_selector_error(f"unknown turn {value}: there are {' and '.join(TURNS)}")
        found[key] = value
    return tuple(found.items())


def make_predicates(where: Iterable[tuple[str, str]]) -> Iterator[tuple[str, Predicate]]:
    """(column, predicate) of each selector of requests; the column of a length is INPUT. Selectors
    of stages have none: the requests at hand are all of such a stage."""
    for key, value in where:
        if key in COLUMNS:
            yield COLUMNS[key], partial(_equals, value)
        elif key == "turn":
            yield key, partial(_is_first, value == "first")
        elif key == IMAGES:
            yield key, partial(_counts, *parse_length_range(value))
        elif key == INPUT:
            yield key, partial(_lies_in, *parse_length_range(value))


def _equals(wanted: str, value: Any) -> Any:
    return value == wanted


def _is_first(first: bool, turn: Any) -> Any:
    return (turn == 0) == first


def _lies_in(low: float, high: float, length: Any) -> Any:
    return (low <= length) & (length < high)


def _counts(low: float, high: float, count: Any) -> Any:
    """Where there are none, there is no value."""
    return _lies_in(low, high, count) | ((count != count) & (low <= 0))


def parse_length_range(value: str) -> tuple[float, float]:
    """[from, to) in tokens, of a selector's value: ``1k..4k`` and the bucket ``1k-4k`` are 1,000 to
    3,999."""
    if match := re.fullmatch(r"<(\w+)", value):
        low = 0.0
        high = _tokens(match[1])
    elif match := re.fullmatch(r"(\w+)\+", value):
        low = _tokens(match[1])
        high = float("inf")
    elif match := re.fullmatch(r"(\w*)(?:\.\.|-)(\w*)", value):
        low = _tokens(match[1]) if match[1] else 0.0
        high = _tokens(match[2]) if match[2] else float("inf")
    else:
        low = _tokens(value)
        high = low + 1
    if low >= high:
        raise ValueError(
            f"no length lies in input={value}: write input=1k..4k for 1,000 to 3,999 tokens"
        )
    return low, high


def parse_stage_range(value: str) -> tuple[float, float]:
    """Both ends, which belong to it, of a selector's value: ``8..32``, ``32``, ``8..`` or
    ``..32``."""
    number = r"(\d{1,12}(?:\.\d{1,4})?)"
    match = re.fullmatch(rf"(?:{number}?(\.\.))?{number}?", value)
    if not match or not (match[1] or match[3]):
        raise ValueError(
            f"{value!r} is not a value of a stage: write 32, or 8..32 for those from 8 to 32"
        )
    high = float(match[3] or "inf")
    low = float(match[1] or 0) if match[2] else high
    if low > high:
        raise ValueError(f"no value lies in {value}: write 8..32 for those from 8 to 32")
    return low, high


def shorten_foreign_text(text: str, length: int) -> str:
    """What a message shows of a text from outside."""
    return text if len(text) <= length else f"{text[:length]}..."


def find_nearest_names(name: str, names: Iterable[str], most: int = 1) -> str:
    near = get_close_matches(name, names, most)
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def format_plain_number(number: float) -> str:
    return repr(number).removesuffix(".0")


def quote_value(value: str) -> str:
    plain = value != "" and value == value.strip() and not re.search(r'["{},]', value)
    return value if plain else '"' + value.replace('"', '""') + '"'


def raise_selector_error(why: str) -> NoReturn:
    raise ValueError(why)


def _tokens(text: str) -> float:
    match = re.fullmatch(r"(\d{1,12})([kM]?)", text)
    count = float(match[1]) * {"": 1, "k": 1e3, "M": 1e6}[match[2]] if match else MOST_TOKENS
    if count >= MOST_TOKENS:
        raise_selector_error(
            f"{text!r} is not a length: write input=1k..4k, a bucket of the report (1k-2k) or a "
            f"number of tokens"
        )
    return count


def _range(low: float, high: float) -> str:
    if high == low + 1:
        return f"{low:.0f}"
    return f"{f'{low:.0f}' if low else ''}..{f'{high:.0f}' if high < float('inf') else ''}"


def _stages(low: float, high: float) -> str:
    if low == high:
        return format_plain_number(low)
    if high == float("inf"):
        return f"{format_plain_number(low)}.."
    return f"{format_plain_number(low) if low else ''}..{format_plain_number(high)}"
