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
