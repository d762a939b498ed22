"""Numbers: numbers from outside. They are read from a text, or refused, and shown in a message."""

import math
import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final

TOKENS: Final = 10**7
SECONDS: Final = 10**7
"""Four months."""

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,100}", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", re.ASCII)

_SIZE_UNITS: Final = {
    "": 1.0, "b": 1.0, "k": 1e3, "kb": 1e3, "m": 1e6, "mb": 1e6, "g": 1e9, "gb": 1e9, "t": 1e12,
    "tb": 1e12, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40,
    "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40,
}  # fmt: skip
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?(?:[eE][+]?\d{1,2})?)[ \t]*+([A-Za-z]*+)(?![\w.])")


def read_number(kind: type, text: str) -> Any:
    """Reads a whole or finite number in ASCII digits. Raises ValueError."""
    text = text.strip()
    if not (_WHOLE if kind is int else _NUMBER).fullmatch(text):
        raise ValueError(f"not a number: {truncate_quoted_text(text)!r}")
    value = kind(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"out of range: {truncate_quoted_text(text)!r}")
    return value


def format_quoted_number(value: float) -> str:
    """A number as a message shows it. A float cannot hold a number as large as an int can be."""
    if isinstance(value, int):
        return truncate_quoted_text(str(value))
    if abs(value) < 1e16 and value == int(value):
        return str(int(value))
    return f"{value:g}"


def parse_size(text: str) -> float:
    """Bytes of ``1234``, ``1.5 GiB`` or ``120MB``. What follows is left out, as in ``1.2GiB /
    16GiB``. Raises ValueError."""
    found = _SIZE.match(text)
    factor = _SIZE_UNITS.get(found[2].lower()) if found else None
    if found is None or factor is None:
        raise ValueError("it is no size such as 1234567, 1.5GiB or 120MB")
    return float(found[1]) * factor


def truncate_quoted_text(text: str, length: int = 60) -> str:
    """A text from outside as a message shows it."""
    return text if len(text) <= length else f"{text[:length]}..."


def parse_finite_number(value: Any) -> float | None:
    """A finite number, also from its text. None: it is something else."""
    if isinstance(value, bool):
        return None
    try:
        number: float = read_number(float, value) if isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def format_quoted_value(value: Any) -> str:
    """A value as a message shows it."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def make_session_ids(name: str, ids: Iterable[int]) -> tuple[int, ...]:
    """Make ids that are unique to this session from ids that mean something within it alone."""
    base = int.from_bytes(blake2b(name.encode("utf-8", "replace"), digest_size=8).digest())
    return tuple((base + id) % 2**63 for id in ids)
