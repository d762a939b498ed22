"""Retries: whether and when a refused request may be asked again."""

import math
from datetime import UTC
from email.utils import parsedate_to_datetime
from random import Random
from typing import Final

RETRIABLE: Final = ("rate_limited", "unavailable")
"""Refused before anything was generated: HTTP 429 and 503. Nothing else is tried again."""
BACKOFF_S: Final = 0.5
"""Before the second attempt, at most; doubled for each one after it."""
MAX_WAIT_S: Final = 60.0
"""A server that asks for a longer wait than this means that it does not want the request."""


def parse_retry_after_s(value: str, unix_s: float) -> float | None:
    """Seconds that a Retry-After asks for, of either form (RFC 9110, 10.2.3); None where it is
    neither. ``unix_s``: now."""
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        seconds = float(value)  # some servers write 0.5
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
        try:
            seconds = date.replace(tzinfo=date.tzinfo or UTC).timestamp() - unix_s
        except (OverflowError, ValueError):
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def retry_pause_s(attempt: int, asked_s: float | None, random: Random) -> float | None:
    """How long to wait behind attempt number ``attempt`` (from 1): what the server asked for, else
    half a second, doubled each time, and the half of it at random, so that those refused together
    do not come back together. None: do not."""
    if asked_s is not None:
        return asked_s if asked_s <= MAX_WAIT_S else None
    longest_s = min(BACKOFF_S * 2.0 ** min(attempt - 1, 16), MAX_WAIT_S)
    return longest_s * (0.5 + random.random() / 2)
