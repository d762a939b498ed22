"""In flight: how many of the requests that were sent are still under way, and which of the others
may be counted.

A failure may be over in a millisecond and an answer in a minute, so among the requests that are
over too many have failed. What is asked of a server holds of the requests that were sent, so these
are looked at in the order of their sends: a record counts only when it is known how many others its
process had sent by then, and those of them that have no record are under way. Processes report
their counts four times a second, each with the moment of its own clock at which they were true.
"""

import heapq
from bisect import bisect_left

from locust_llm.records.record import Record


class ProcessInFlight:
    """Of one process. Requests are told apart by the report in which they were first counted."""

    def __init__(self) -> None:
        self.waiting = 0
        """At the gate."""
        self.decoding = 0
        """The requests under way that had their first chunk."""
        self._over = self._recorded = 0
        """Admitted requests that are over, as it reported, and those of them whose record is
        here."""
        self._admitted = 0
        self._reported_at = 0.0
        self._at: list[float] = []
        """When it reported, as far as requests of then are under way."""
        self._open: list[int] = []
        """How many of those that were admitted between the report before and this one are under
        way."""
        self._held: list[tuple[float, int, Record]] = []
        """Records of requests that were admitted after the last report."""
        self._count = 0

    def over(self, record: Record) -> None:
        self._count += 1
        self._recorded += record.admitted_at is not None
        heapq.heappush(self._held, (_entered(record), self._count, record))

    def report(
        self, at: float, admitted: int, over: int, waiting: int, decoding: int
    ) -> list[Record]:
        """Gives the records that may be counted from now on."""
        self._over = over
        self.waiting, self.decoding, self._reported_at = waiting, decoding, at
        self._at.append(at)
        self._open.append(admitted - self._admitted)
        self._admitted = admitted
        records = list[Record]()
        while self._held and self._held[0][0] <= at:
            entered, _, record = heapq.heappop(self._held)
            if record.admitted_at is not None:
                self._open[bisect_left(self._at, entered)] -= 1
            records.append(record)
        begun = next((i for i, count in enumerate(self._open) if count), len(self._open))
        del self._at[:begun], self._open[:begun]
        return records

    def end(self) -> list[Record]:
        """It sends nothing any more, and nothing of it is under way: all its records may be
        counted."""
        records = [record for *_, record in sorted(self._held, key=lambda held: held[:2])]
        self.waiting = self.decoding = 0
        self._at, self._open, self._held = [], [], []
        return records

    @property
    def open(self) -> int:
        return sum(self._open) + self.waiting

    def older(self, age_s: float, *, silent: bool) -> int:
        """How many are under way for longer than this after their admission; ``silent``: without
        any chunk, at least."""
        upto = bisect_left(self._at, self._reported_at - age_s)
        on_the_way = max(0, self._over - self._recorded)
        return max(0, sum(self._open[:upto]) - on_the_way - (self.decoding if silent else 0))


class RequestsInFlight:
    """Of all processes of a run. Times are of each process's own monotonic clock."""

    def __init__(self) -> None:
        self._processes: dict[str, ProcessInFlight] = {}

    def over(self, record: Record) -> None:
        """A request, or an attempt that is followed by another one, is over."""
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
        """At that moment a process had admitted so many, of which so many were over; so many waited
        at its gate, and so many had their first chunk and not their last. Gives the records that
        may be counted from now on, in the order of their sends."""
        return self._of(worker).report(at, admitted, over, waiting, decoding)

    def end(self, worker: str) -> list[Record]:
        """A process has ended. Gives the records that were not counted yet."""
        return self._of(worker).end()

    @property
    def open(self) -> int:
        """Requests under way, those at the gate too, beside the records that may be counted."""
        return sum(process.open for process in self._processes.values())

    def older(self, age_s: float, *, silent: bool = False) -> int:
        """At least so many are under way for longer than this; ``silent``: without any chunk."""
        return sum(process.older(age_s, silent=silent) for process in self._processes.values())

    def _of(self, worker: str) -> ProcessInFlight:
        return self._processes.setdefault(worker, ProcessInFlight())


def _entered(record: Record) -> float:
    """When it was counted; of a request that never came so far, when it was asked for."""
    return record.asked_at if record.admitted_at is None else record.admitted_at
