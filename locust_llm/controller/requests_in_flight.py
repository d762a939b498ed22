"""Requests in flight: how many of the sent requests are still under way, and which others may be
counted.

A failure may be over in a millisecond and an answer in a minute, so too many of the finished
requests have failed. A rule is about the sent requests, so these are counted in the order of their
sends. A record counts only when it is known how many others its process had sent by then. The ones
of them without a record are under way. Processes report their counts four times a second, each with
the moment of its own clock.
"""

import heapq
import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Final

from locust_llm.records.record import Record

CLOCKS_S: Final = 0.1
"""The clocks of two processes, by the arrival of their reports, are at most so far apart."""


class ProcessInFlight:
    """The requests of one process. The report in which they were first counted tells them apart."""

    def __init__(self) -> None:
        self.waiting = 0
        self.decoding = 0
        """The requests under way that had their first chunk."""
        self._over = self._recorded = 0
        """The admitted requests that are over, as reported, and how many of them have their record
        here."""
        self._admitted = 0
        self._reported_at = 0.0
        self._at: list[float] = []
        """The times of its reports, as far as requests from then are under way."""
        self._open: list[int] = []
        """How many of the requests that were admitted between two reports are under way."""
        self._held: list[tuple[float, int, Record]] = []
        """The records of requests that were admitted after the last report."""
        self._count = 0
        self._unix_offset_s = math.inf
        """From its clock to Unix time: that of the report that took the least time to come."""
        self._settled_at = -math.inf
        """All that was admitted up to then is over, and has its record here."""

    def over(self, record: Record) -> None:
        self._count += 1
        self._recorded += record.admitted_at is not None
        heapq.heappush(self._held, (_entered(record), self._count, record))

    def report(
        self,
        at: float,
        received_unix_s: float,
        admitted: int,
        over: int,
        waiting: int,
        decoding: int,
    ) -> list[Record]:
        """Take a report. Returns the records that may be counted from now on."""
        self._unix_offset_s = min(self._unix_offset_s, received_unix_s - at)
        self._over = over
        self.waiting, self.decoding, self._reported_at = waiting, decoding, at
        self._at.append(at)
        self._open.append(admitted - self._admitted)
        self._admitted = admitted
        records = self._take_held(at)
        begun = next((i for i, count in enumerate(self._open) if count), len(self._open))
        if begun:
            self._settled_at = self._at[begun - 1]
        del self._at[:begun], self._open[:begun]
        return records

    def end(self) -> list[Record]:
        """The process sends nothing any more, and has nothing under way. Returns the records that
        were not counted yet."""
        records = self._take_held(math.inf)
        if not any(self._open):  # else it was lost, and nobody knows what became of them
            self._settled_at = math.inf
        self.waiting = self.decoding = 0
        self._at, self._open = [], []
        return records

    def _take_held(self, until: float) -> list[Record]:
        """The records of requests that were admitted up to then, which are not under way."""
        records = list[Record]()
        while self._held and self._held[0][0] <= until:
            entered, _, record = heapq.heappop(self._held)
            place = bisect_left(self._at, entered)
            if record.admitted_at is not None and place < len(self._open):
                self._open[place] -= 1
            records.append(record)
        return records

    @property
    def settled_unix_s(self) -> float:
        """All that it sent before then is over, and has its record here."""
        if self._settled_at == -math.inf:
            return -math.inf
        return self._settled_at + self._unix_offset_s - CLOCKS_S

    @property
    def open(self) -> int:
        return sum(self._open) + self.waiting

    def older(self, age_s: float, *, silent: bool) -> int:
        """How many requests have been under way for longer than this since their admission.
        ``silent``: how many at least had no chunk."""
        upto = bisect_left(self._at, self._reported_at - age_s)
        on_the_way = max(0, self._over - self._recorded)
        return max(0, sum(self._open[:upto]) - on_the_way - (self.decoding if silent else 0))


class RequestsInFlight:
    """The requests of all processes of a run. Times are on each process's own monotonic clock."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        """``now`` gives Unix seconds."""
        self._now = now
        self._processes: dict[str, ProcessInFlight] = {}

    def over(self, record: Record) -> None:
        """Add a finished request, or an attempt that another one follows."""
        self._of(record.worker).over(record)

    def report(
        self,
        worker: str,
        at: float,
        *,
        admitted: int,
        over: int,
        waiting: int = 0,
        decoding: int = 0,
    ) -> list[Record]:
        """Take the report of a process at a moment: admitted requests, finished ones, waiting ones
        at its gate, and decoding ones. Returns the records that may be counted from now on, in the
        order of their sends."""
        return self._of(worker).report(at, self._now(), admitted, over, waiting, decoding)

    def end(self, worker: str) -> list[Record]:
        """A process has ended. Returns the records that were not counted yet."""
        return self._of(worker).end()

    def settled_unix_s(self, workers: Iterable[str]) -> float:
        """All that these and earlier processes sent before then is over, and has its record
        here."""
        known = {*self._processes, *workers}
        return min((self._of(worker).settled_unix_s for worker in known), default=-math.inf)

    @property
    def open(self) -> int:
        """The requests under way, also at the gate, beside the records that may be counted."""
        return sum(process.open for process in self._processes.values())

    def older(self, age_s: float, *, silent: bool = False) -> int:
        """How many requests at least have been under way for longer than this. ``silent``: without
        any chunk."""
        return sum(process.older(age_s, silent=silent) for process in self._processes.values())

    def _of(self, worker: str) -> ProcessInFlight:
        return self._processes.setdefault(worker, ProcessInFlight())


def _entered(record: Record) -> float:
    """When the request was counted. A request that never came so far has the time when it was asked
    for."""
    return record.asked_at if record.admitted_at is None else record.admitted_at
