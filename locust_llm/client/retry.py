"""Retry: whether and when a refused request is sent again."""

import math
from datetime import UTC
from email.utils import parsedate_to_datetime
from random import Random
from typing import Final

RETRIABLE: Final = ("rate_limited", "unavailable")
"""These requests were refused before anything was generated (HTTP 429 and 503). Nothing else is
sent again."""
BACKOFF_S: Final = 0.5
"""The longest wait before the second attempt. It doubles for each later one."""
MAX_WAIT_S: Final = 60.0
"""A server that asks for a longer wait does not want the request."""


def parse_retry_after_s(value: str, unix_s: float) -> float | None:
    """The seconds that a Retry-After asks for, in either form (RFC 9110, 10.2.3). None: it is
    neither. ``unix_s`` is the time now."""
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
    """How many seconds to wait after attempt ``attempt`` (from 1). None: do not send again.

    It is what the server asked for, else half a second, doubled each time. Half of it is random, so
    that requests refused together do not come back together.
    """
    if asked_s is not None:
        return asked_s if asked_s <= MAX_WAIT_S else None
    longest_s = min(BACKOFF_S * 2.0 ** min(attempt - 1, 16), MAX_WAIT_S)
    return longest_s * (0.5 + random.random() / 2)
