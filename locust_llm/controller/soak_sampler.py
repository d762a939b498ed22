"""Soak sampler: in each interval of a run with ``--soak`` it looks at the server at random moments,
and makes a reading of that and of the requests that ended."""

import math
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import fmean, median
from typing import Final, NamedTuple

import msgspec

from locust_llm.files.buffered_file import BufferedFile
from locust_llm.records.outcomes import OK, RETRIED
from locust_llm.records.record import Record
from locust_llm.server.server_looks import ServerLook, ServerLooks
from locust_llm.settings.run_options import Settings
from locust_llm.text.numbers import parse_size
from locust_llm.trends.soak_readings import READINGS, SoakReading, choose_reading_interval_s

from .run_context import TimeSource

HOUR_S: Final = 3600.0
LOOKS: Final = 10
"""So many times an interval the server is read, at random moments. A regular rhythm could meet the
same phase of a server's own rhythm again and again."""
LEAST_WAIT_S: Final = 0.5
"""Looks are so far apart on average, at least: each costs milliseconds of the load generator's
time."""
UNPLANNED_S: Final = 10.0
"""The interval of a run whose length nobody knows."""


class EndedRequest(NamedTuple):
    """What a reading needs of a request that ended."""

    answered: bool
    tokens: int
    ttft_s: float | None
    itl_s: float | None


def choose_interval_s(settings: Settings) -> float:
    if settings.soak_interval is not None:
        return settings.soak_interval
    if settings.run_time_s is None:
        return UNPLANNED_S
    return choose_reading_interval_s(settings.run_time_s)


class SoakSampler:
    """Makes readings. Their clock starts with the first record."""

    def __init__(
        self, settings: Settings, folder: Path, looks: ServerLooks, time: TimeSource
    ) -> None:
        self.every_s = choose_interval_s(settings)
        self._looks, self._time, self._folder = looks, time, folder
        self._memory_limit_bytes = looks.memory_limit_bytes
        if settings.memory_limit is not None:
            self._memory_limit_bytes = parse_size(settings.memory_limit)
        self._file: BufferedFile | None = None
        self._last = SoakReading(at=0.0, hours=0.0)
        self._began: float | None = None
        self._interval_began = 0.0
        self._seen: list[ServerLook] = []
        self._ended: list[EndedRequest] = []
        self._idle: list[SoakReading] = []
        self._over = False
        self.readings: list[SoakReading] = []

    def add(self, record: Record) -> None:
        """Count an ended request."""
        if record.outcome != RETRIED and (record.failed or record.outcome == OK):
            self._ended.append(
                EndedRequest(
                    record.outcome == OK, record.output_tokens or 0, record.ttft_s, record.itl_s
                )
            )

    def take_readings(self) -> None:
        """To the end of the run, in a greenlet."""
        while True:
            self.step()
            self._time.sleep(min(self.choose_wait_s(), self._left_of_interval_s()))

    def choose_wait_s(self, draw: Callable[[float, float], float] = random.uniform) -> float:
        """The time until the next look."""
        return max(self.every_s / LOOKS, LEAST_WAIT_S) * draw(0.5, 1.5)

    def _left_of_interval_s(self) -> float:
        """The last look of an interval is at its end, so that intervals are equally long."""
        left_s = self._interval_began + self.every_s - self._time.monotonic()
        return left_s if self._began is not None and left_s > 0 else math.inf

    def step(self) -> None:
        """Looks at the server. At the end of an interval it keeps a reading."""
        now = self._time.monotonic()
        if self._began is None:
            if not self._ended:
                return
            self._began = self._interval_began = now
        self._seen.append(self._looks.look())
        if self._over or now - self._interval_began < self.every_s:
            return
        self._interval_began = now
        self._last = self._make_reading((now - self._began) / HOUR_S)
        self._seen.clear()
        self._ended.clear()
        self._keep(self._last)

    def _make_reading(self, hours: float) -> SoakReading:
        answered = [one for one in self._ended if one.answered]
        processes = [one.process for one in self._seen]
        failures = [one.failure for one in self._seen if one.failure]
        return SoakReading(
            at=self._time.now(),
            hours=hours,
            requests=self._last.requests + len(self._ended),
            tokens=self._last.tokens + sum(one.tokens for one in self._ended),
            ended=len(self._ended),
            failed=len(self._ended) - len(answered),
            ttft_s=_median(one.ttft_s for one in answered),
            itl_s=_median(one.itl_s for one in answered),
            memory_bytes=min(_known(one.memory_bytes for one in processes), default=None),
            open_files=min(_known(one.open_files for one in processes), default=None),
            kv_free=max(_known(one.kv_free for one in self._seen), default=None),
            kv_blocks=max(_known(one.kv_blocks for one in self._seen), default=None),
            waiting=_mean(one.waiting for one in self._seen),
            server_started=next(
                (one.started for one in reversed(processes) if one.started is not None), None
            ),
            memory_source=self._looks.source,
            memory_limit_bytes=self._memory_limit_bytes,
            failed_looks=len(failures),
            failure=failures[0] if failures else "",
        )

    def _keep(self, reading: SoakReading) -> None:
        """Writes the reading. An interval in which no request ended is written when a later one has
        ended: at the end of the load there is none."""
        self._idle.append(reading)
        if not reading.ended:
            return
        if self._file is None:
            self._file = BufferedFile(self._folder / READINGS)
        for line in self._idle:
            self._file.write(msgspec.json.encode(line))
        self._file.flush()
        self.readings += self._idle
        self._idle.clear()

    def end(self) -> None:
        """No reading comes after this: the report has them all."""
        self._over = True

    def close(self) -> None:
        self.end()
        self._looks.close()
        if self._file is not None:
            self._file.close()
            self._file = None


def _known(values: Iterable[float | None]) -> Iterator[float]:
    return (value for value in values if value is not None)


def _median(values: Iterable[float | None]) -> float | None:
    known = list(_known(values))
    return median(known) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = list(_known(values))
    return fmean(known) if known else None
