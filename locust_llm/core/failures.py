"""Failures told apart: kinds of few names, whatever a server writes."""

import re
from collections import Counter
from typing import Final

SHOWN: Final = 300
"""How much of a message tells its kind."""
LONG: Final = 40
"""A longer word is no word of a message: an id, a key, a path."""
KINDS: Final = 20
"""How many kinds of one outcome a process tells apart."""
OTHERS: Final = "(messages of other kinds)"
_DIFFERS: Final = re.compile(rf"(HTTP \d{{3}}\b)|[\w.:+-]*\d[\w.:+-]*|\S{{{LONG},}}")


def kind_of(message: str) -> str:
    """The message without what differs from one request to the next: each word with a digit in it, but for a status, and
    each very long one becomes ``#``."""
    return _DIFFERS.sub(lambda word: word[1] or "#", message[:SHOWN]).strip()


class FailureKinds:
    """The kinds of failures that a process has seen: at most ``KINDS`` of an outcome, whatever a server writes."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], str] = {}
        self._counts: Counter[str] = Counter()

    def name(self, outcome: str, message: str) -> tuple[str, bool]:
        """(what Locust's failure table shows, whether it is the first of its kind)."""
        kind = kind_of(message)
        known = self._seen.get((outcome, kind))
        if known is not None:
            return known, False
        if self._counts[outcome] > KINDS:
            return f"{outcome}: {OTHERS}", False
        self._counts[outcome] += 1
        if self._counts[outcome] > KINDS:
            kind = OTHERS
        self._seen[outcome, kind] = name = f"{outcome}: {kind}" if kind else outcome
        return name, True
