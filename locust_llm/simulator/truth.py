"""What really happened, from the server's side: the clock read just before and just after every send."""

from __future__ import annotations

import time
from array import array
from collections import deque
from dataclasses import dataclass
from typing import Any

MAX_ROWS = 100_000
MAX_STAMPS = 4_000_000  # over all rows, 8 bytes each; only `--truth full` keeps any
MAX_CHANGES = 200_000


@dataclass(slots=True, eq=False)
class Row:
    """One request. Stamps are seconds of CLOCK_MONOTONIC (`time.monotonic`), which all processes of a machine share.

    buffered counts the sends the socket did not take at once (a client that reads slowly): after the first of them the
    [before, after] intervals no longer say when bytes left.
    """

    id: str
    prompt_tokens: int
    max_tokens: int  # asked
    arrived_at: float  # the request fully read
    answer_id: str = ""
    output_tokens: int = 0  # delivered
    started_at: float | None = None  # the start of its first step; known at the end
    first_at: tuple[float, float] | None = None  # around the write of the first content token
    token_at: array[float] | None = None  # before, after, before, after, ...: of each chunk
    done_at: float | None = None
    cached_tokens: int = 0  # of the prompt, found in the prefix cache
    preemptions: int = 0
    aborted: bool = False  # by the client
    fault: str = ""  # by which the server ended it: error, cut, reset
    buffered: int = 0

    def as_json(self) -> dict[str, Any]:
        stamps = self.token_at
        return {
            "id": self.id,
            "prompt_tokens": self.prompt_tokens,
            "max_tokens": self.max_tokens,
            "output_tokens": self.output_tokens,
            "arrived_at": self.arrived_at,
            "started_at": self.started_at,
            "first_at": self.first_at,
            "token_at": None if stamps is None else list(zip(stamps[::2], stamps[1::2], strict=True)),
            "done_at": self.done_at,
            "cached_tokens": self.cached_tokens,
            "preemptions": self.preemptions,
            "aborted": self.aborted,
            "fault": self.fault,
            "buffered": self.buffered,
        }


class Truth:
    """The rows of one server: those under way, then the latest that ended; and how many were prefilling when."""

    def __init__(self, *, full: bool = False) -> None:
        self.full = full
        self.prefilling = 0
        self.connections = 0
        self.refused = 0
        self._under_way: dict[Row, None] = {}  # an ordered set
        self.reset()

    def reset(self) -> None:
        """Forget the past. Requests under way stay."""
        self.max_prefilling = self.prefilling
        self.connections = self.refused = 0
        self._num_stamps = 0
        self._rows: deque[Row] = deque()
        self._changes: deque[tuple[float, int]] = deque([(time.monotonic(), self.prefilling)], maxlen=MAX_CHANGES)

    def arrived(self, row: Row) -> None:
        if self.full:
            row.token_at = array("d")
        self._under_way[row] = None
        self._prefilling(row.arrived_at, +1)
        self.max_prefilling = max(self.max_prefilling, self.prefilling)

    def prefilled(self, at: float) -> None:
        """A request got its first token, or left before."""
        self._prefilling(at, -1)

    def done(self, row: Row, *, aborted: bool = False) -> None:
        row.done_at, row.aborted = time.monotonic(), aborted
        del self._under_way[row]
        self._rows.append(row)
        self._num_stamps += len(row.token_at or ())
        while len(self._rows) > MAX_ROWS or self._num_stamps > MAX_STAMPS:
            self._num_stamps -= len(self._rows.popleft().token_at or ())

    def as_json(self) -> dict[str, Any]:
        return {
            "now": time.monotonic(),
            "prefilling": self.prefilling,
            "max_prefilling": self.max_prefilling,
            "prefilling_changes": list(self._changes),
            "connections": self.connections,
            "refused": self.refused,
            "requests": [row.as_json() for row in (*self._rows, *self._under_way)],
        }

    def _prefilling(self, at: float, change: int) -> None:
        self.prefilling += change
        self._changes.append((at, self.prefilling))
