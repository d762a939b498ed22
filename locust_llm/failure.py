"""Failures told apart: kinds of few names, one sample of each, and no secret in either."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from .chat import MESSAGE_BYTES

SHOWN: Final = 300
"""How much of a message tells its kind."""
LONG: Final = 40
"""A longer word is no word of a message: an id, a key, a path."""
KINDS: Final = 20
"""How many kinds of one outcome a process tells apart."""
OTHERS: Final = "(messages of other kinds)"
_DIFFERS: Final = re.compile(rf"(HTTP \d{{3}}\b)|[\w.:+-]*\d[\w.:+-]*|\S{{{LONG},}}")

HIDDEN: Final = "***"
SHORTEST: Final = 6
"""A shorter value of a header is no key, and hiding it would hide ordinary words."""
_SECRET_NAME: Final = re.compile(r"auth|cookie|key|token|secret|password|signature|credential|^sig$", re.IGNORECASE)
_SCHEME: Final = re.compile(r"(?:Bearer|Basic|Token|ApiKey|Digest|Negotiate)\s+", re.IGNORECASE)


def kind_of(message: str) -> str:
    """The message without what differs from one request to the next: each word with a digit in it, but for a status, and
    each very long one becomes ``#``."""
    return _DIFFERS.sub(lambda word: word[1] or "#", message[:SHOWN]).strip()


class Kinds:
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


def secrets_of(headers: Mapping[str, str | bytes], names: Iterable[str] = ()) -> list[str]:
    """The values that must appear nowhere: of headers that are in ``names`` or have a name like that of a secret; the
    longest first."""
    wanted = {name.lower() for name in names}
    found: set[str] = set()
    for name, value in headers.items():
        if name.lower() in wanted or is_secret(name):
            text = (value.decode("latin-1") if isinstance(value, bytes) else value).strip()
            bare = _SCHEME.sub("", text, count=1)
            found |= {text, bare, json.dumps(bare)[1:-1]}
    return sorted((value for value in found if len(value) >= SHORTEST), key=len, reverse=True)


def is_secret(name: str) -> bool:
    """A header, or a field of a URL, of this name may well hold a key."""
    return _SECRET_NAME.search(name) is not None


def without(text: str, secrets: Iterable[str]) -> str:
    """``text`` with each of them hidden, also the beginning of one at its very end, where it may have been cut off. Servers
    like to quote the key that they refuse."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
        for size in range(len(secret) - 1, SHORTEST - 1, -1):
            if text.endswith(secret[:size]):
                text = text[:-size] + HIDDEN
                break
    return text


def sample_of(data: bytes, secrets: Iterable[str]) -> str:
    """The beginning of what a server sent, as text of at most 4 kB, without secrets."""
    return without(data[:MESSAGE_BYTES].decode("utf-8", "ignore"), secrets)
