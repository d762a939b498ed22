"""Failure kinds: failures by their kinds (messages that differ in variable parts alone) in a
bounded number, and runs that begin with failures."""

import re
from bisect import insort
from collections import Counter
from collections.abc import Iterator
from typing import Final

from .outcomes import is_answer, is_unanswered
from .record import Record

MAX_MESSAGE_CHARS: Final = 300
"""The characters of a message that decide its kind."""
NAME_CHARS: Final = 200
"""The characters of a message in a table."""
FIRST: Final = 10
"""The first requests of a run. Where all of them have failed, all others are likely to fail."""
SILENT_REQUESTS: Final = 3
SILENT_S: Final = 2.0
"""A server that answered is silent after so many requests without an answer, over so many
seconds."""
MIN_ID_CHARS: Final = 40
"""A longer word is an id, a key or a path."""
MAX_KINDS: Final = 20
"""The most kinds for each outcome and process."""
OTHER_KINDS: Final = "(messages of other kinds)"
_DIFFERS: Final = re.compile(rf"(HTTP \d{{3}}\b)|[\w.:+-]*\d[\w.:+-]*|\S{{{MIN_ID_CHARS},}}")


def generalise_failure_message(message: str) -> str:
    """The message with ``#`` for what differs between requests: words with a digit (not an HTTP
    status) and very long words."""
    return _DIFFERS.sub(lambda word: word[1] or "#", message[:MAX_MESSAGE_CHARS]).strip()


class FailureKinds:
    """The kinds of failures of a process, at most ``MAX_KINDS`` per outcome."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], str] = {}
        self._counts: Counter[str] = Counter()

    def name(self, outcome: str, message: str) -> tuple[str, bool]:
        """(name in Locust's failure table, which is the kind's first message; whether this is that
        message)."""
        kind = generalise_failure_message(message)
        known = self._seen.get((outcome, kind))
        if known is not None:
            return known, False
        if self._counts[outcome] > MAX_KINDS:
            return f"{outcome}: {OTHER_KINDS}", False
        self._counts[outcome] += 1
        if self._counts[outcome] > MAX_KINDS:
            kind = message = OTHER_KINDS
        name = f"{outcome}: {message[:NAME_CHARS].strip()}" if kind else outcome
        self._seen[outcome, kind] = name
        return name, True


class FirstRequests:
    """The requests of a run that were sent first. If all fail, their kinds are printed in full.
    Records come in the order in which requests end, and a refusal ends before any answer can."""

    def __init__(self) -> None:
        self._first: list[Record] = []
        """Of the records so far, those of the first sends in their order, at most ``FIRST``."""
        self._judged = False

    def add(self, record: Record) -> None:
        if self._judged:
            return
        insort(self._first, record, key=_sent_unix_s)
        del self._first[FIRST:]

    def judge(self, settled_unix_s: float) -> tuple[tuple[Record, int], ...]:
        """If all of the first requests have failed, returns once each kind's first record and
        number, the most frequent first. Else it returns nothing. All that was sent before
        ``settled_unix_s`` has ended and was added, so no open request is among the first."""
        if self._judged or len(self._first) < FIRST:
            return ()
        if self._first[-1].sent_unix_s >= settled_unix_s:
            return ()
        self._judged = True
        records, self._first = self._first, []
        if not all(record.failed for record in records):
            return ()
        kinds: dict[tuple[str, str], tuple[Record, int]] = {}
        for record in records:
            kind = record.outcome, generalise_failure_message(record.error)
            first, count = kinds.get(kind, (record, 0))
            kinds[kind] = first, count + 1
        return tuple(sorted(kinds.values(), key=lambda entry: -entry[1]))


def _sent_unix_s(record: Record) -> float:
    return record.sent_unix_s


class SilenceDetector:
    """Reports a server that answered and no longer does, and its return: a line each. ``outcomes``
    decides what an answer is. A comparison has a detector for each server: one that answers says
    nothing of the other."""

    def __init__(self, arm: str = "") -> None:
        """``arm`` names the server in a comparison."""
        self._server = arm or "server"
        self._no_answer = f"no answer from the {arm}" if arm else "no answer"
        self._answered_at: float | None = None
        """When anything was last answered, in Unix seconds. None: nothing was yet."""
        self._unanswered = 0
        """Requests that have failed since then without an answer."""
        self._reported = False

    def add(self, record: Record, began_at: float) -> str:
        """Add a record. Returns a line, empty without news. ``began_at`` is the
        first send of the run in Unix seconds, as in the report."""
        at = record.closed_unix_s
        if is_answer(record.outcome, record.status, has_chunk=bool(record.chunk_us)):
            began, ended = _answering(record)
            silent_s = began - (self._answered_at or began)
            was_reported, self._reported = self._reported, False
            self._answered_at = max(ended, self._answered_at or ended)
            self._unanswered = 0
            again = f"The {self._server} answers again, after {silent_s:.1f} s."
            return again if was_reported else ""
        if (
            self._answered_at is None
            or self._reported
            or not record.failed
            or not is_unanswered(record.outcome, record.status, has_chunk=bool(record.chunk_us))
        ):
            return ""
        self._unanswered += 1
        if self._unanswered < SILENT_REQUESTS or at - self._answered_at < SILENT_S:
            return ""
        self._reported = True
        since_s = max(0.0, self._answered_at - began_at)
        return (
            f"WARNING: {self._no_answer} since {since_s:.1f} s after the start: "
            f"{record.outcome}: {record.error[:NAME_CHARS]}"
        )


def _answering(record: Record) -> tuple[float, float]:
    """(first chunk, last chunk) in Unix seconds; without a chunk, the end twice."""
    if record.sent_at is None or not record.chunk_us:
        closed_at = record.closed_unix_s
        return closed_at, closed_at
    sent_at = record.sent_at + record.clock_offset_s
    return sent_at + record.chunk_us[0] / 1e6, sent_at + record.chunk_us[-1] / 1e6


def describe_retries(retried: int, resent: int = 0) -> Iterator[str]:
    """Notes on ``retried`` attempts, and on requests that were ``resent`` on a new connection."""
    if retried:
        attempts = "1 attempt was" if retried == 1 else f"{retried} attempts were"
        yield (
            f"{attempts} refused (HTTP 429 or 503, or 401 for an expired key) and retried. They "
            "count only in TTFT from Due, which covers all attempts of a request. A request whose "
            "last attempt was refused is a failure."
        )
    if resent:
        requests = "1 request was" if resent == 1 else f"{resent} requests were"
        read, times = ("it", "Its times start") if resent == 1 else ("them", "Their times start")
        yield (
            f"{requests} sent again immediately on a new connection, because the server closed the "
            f"kept-alive connection before it read {read}. {times} at the second send."
        )
