"""Soak sampler: reads the server and the run's records in each interval, and makes a reading of
them."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Final, NamedTuple

import msgspec

from locust_llm.files.regular_file import open_to_append
from locust_llm.records.outcomes import OK
from locust_llm.records.record import Record

from .server_memory import ProcessReading
from .soak_readings import READINGS, SoakReading

HOUR_S: Final = 3600.0
LOOKS: Final = 10
"""So many times an interval the server is read, at random moments. A regular rhythm could meet the
same phase of a server's own rhythm again and again."""


class ServerLook(NamedTuple):
    """What was read of the server at one moment."""

    process: ProcessReading = ProcessReading()
    kv_free: float | None = None
    waiting: float | None = None


class SoakSampler:
    """Makes readings. The clock of a soak starts with its first record."""

    def __init__(
        self,
        folder: Path,
        every_s: float,
        look: Callable[[], ServerLook],
        read_new: Callable[[], Iterable[Record]],
        clock: Callable[[], float],
        *,
        before: SoakReading | None = None,
        unix_offset_s: float = 0.0,
    ) -> None:
        """``clock`` gives monotonic seconds, which are Unix seconds with ``unix_offset_s`` more.
        ``before`` is the last reading of an earlier part."""
        self._folder = folder
        self.every_s = every_s
        self._look = look
        self._read_new = read_new
        self._clock = clock
        self._unix_offset_s = unix_offset_s
        self._last = before or SoakReading(at=0.0, hours=0.0, part=0)
        self._part = self._last.part + 1
        self._began: float | None = None
        self._interval_began = 0.0
        self._hours_before = self._last.hours
        self._looks: list[ServerLook] = []
        self._records: list[Record] = []
        self._idle: list[SoakReading] = []
        self.readings: list[SoakReading] = []
        """The readings of this part."""

    def wait_s(self, random: Random) -> float:
        """The time until the next look."""
        return self.every_s / LOOKS * random.uniform(0.5, 1.5)

    def step(self) -> SoakReading | None:
        """Looks at the server. At the end of an interval it returns its reading."""
        now = self._clock()
        self._records += self._read_new()
        if self._began is None:
            if not self._records:
                return None
            self._began = self._interval_began = now
        self._looks.append(self._look())
        hours = self._hours_before + (now - self._began) / HOUR_S
        if now - self._interval_began < self.every_s:
            return None
        self._interval_began = now
        reading = self._make_reading(now, hours)
        self._last = reading
        self._looks.clear()
        self._records.clear()
        return self._keep(reading)

    def _make_reading(self, now: float, hours: float) -> SoakReading:
        counted = [one for one in self._records if one.failed or one.outcome == OK]
        answered = [one for one in counted if one.outcome == OK]
        processes = [one.process for one in self._looks]
        return SoakReading(
            at=now + self._unix_offset_s,
            hours=hours,
            part=self._part,
            requests=self._last.requests + len(counted),
            tokens=self._last.tokens + sum(one.output_tokens or 0 for one in counted),
            ended=len(counted),
            failed=len(counted) - len(answered),
            ttft_s=_median(one.ttft_s for one in answered),
            itl_s=_median(one.itl_s for one in answered),
            memory_bytes=min(_known(one.memory_bytes for one in processes), default=None),
            open_files=min(_known(one.open_files for one in processes), default=None),
            kv_free=max(_known(one.kv_free for one in self._looks), default=None),
            waiting=_mean(one.waiting for one in self._looks),
            server_started=next(
                (one.started for one in reversed(processes) if one.started is not None), None
            ),
        )

    def _keep(self, reading: SoakReading) -> SoakReading:
        """Writes the reading. An interval in which no request ended is written when a later one has
        ended: at the end of the load there is none."""
        if not reading.ended:
            self._idle.append(reading)
            return reading
        lines = [*self._idle, reading]
        self._idle.clear()
        self.readings += lines
        with open(open_to_append(self._folder / READINGS), "ab") as file:
            file.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        return reading


def _known(values: Iterable[float | None]) -> Iterator[float]:
    return (value for value in values if value is not None)


def _median(values: Iterable[float | None]) -> float | None:
    known = list(_known(values))
    return median(known) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = list(_known(values))
    return fmean(known) if known else None
