"""Kinds of failures: messages without their variable parts, bounded in number."""

import re
from collections import Counter
from typing import Final

MAX_MESSAGE_CHARS: Final = 300
"""Of a message, those that decide its kind."""
MIN_ID_CHARS: Final = 40
"""A longer word is an id, a key or a path."""
MAX_KINDS: Final = 20
"""Per outcome and process."""
OTHER_KINDS: Final = "(messages of other kinds)"
_DIFFERS: Final = re.compile(rf"(HTTP \d{{3}}\b)|[\w.:+-]*\d[\w.:+-]*|\S{{{MIN_ID_CHARS},}}")


def kind_of(message: str) -> str:
    """The message with ``#`` for what differs between requests: words with a digit, but for an HTTP status, and very long
    words."""
    return _DIFFERS.sub(lambda word: word[1] or "#", message[:MAX_MESSAGE_CHARS]).strip()


class FailureKinds:
    """The kinds of failures of a process, at most ``MAX_KINDS`` per outcome."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], str] = {}
        self._counts: Counter[str] = Counter()

    def name(self, outcome: str, message: str) -> tuple[str, bool]:
        """(name in Locust's failure table, whether it is the first of its kind)."""
        kind = kind_of(message)
        known = self._seen.get((outcome, kind))
        if known is not None:
            return known, False
        if self._counts[outcome] > MAX_KINDS:
            return f"{outcome}: {OTHER_KINDS}", False
        self._counts[outcome] += 1
        if self._counts[outcome] > MAX_KINDS:
            kind = OTHER_KINDS
        self._seen[outcome, kind] = name = f"{outcome}: {kind}" if kind else outcome
        return name, True
