"""Server time columns: the server's own times of each request, beside the columns of the
records."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from locust_llm.records.record import Record
from locust_llm.records.server_times import HEADERS, METRICS, SLACK_US, SPANS, TIMINGS, ServerTimes

SOURCES: Final = ("", SPANS, TIMINGS, HEADERS, METRICS)
"""The sources by their code; 0: nothing was reported."""
FIELDS: Final = (
    "queue_us",
    "prefill_us",
    "decode_us",
    "inference_us",
    "ttft_us",
    "e2e_us",
    "arrived_at",
)
Numbers = tuple[float | None, ...]
"""The fields of one request."""


@dataclass(frozen=True)
class ReportedColumns:
    """A row for each request; NaN where the server reported nothing."""

    source: NDArray[np.int8]
    """The place in SOURCES."""
    queue_us: NDArray[np.float64]
    prefill_us: NDArray[np.float64]
    decode_us: NDArray[np.float64]
    inference_us: NDArray[np.float64]
    ttft_us: NDArray[np.float64]
    e2e_us: NDArray[np.float64]
    arrived_at: NDArray[np.float64]
    """Unix seconds of the server's clock."""

    def rows(self, rows: slice) -> "ReportedColumns":
        return ReportedColumns(*(getattr(self, field.name)[rows] for field in fields(self)))

    def impossible(
        self, ttft_us: NDArray[np.float64], total_us: NDArray[np.float64]
    ) -> NDArray[np.bool_]:
        """Which times are impossible beside the client's stamps, taken before the server had the
        request and after it had written.

        ``ttft_us``: from the send to the first chunk. ``total_us``: from the send to the end of the
        answer. NaN: not known.
        """
        queue, prefill, decode = (
            np.nan_to_num(us) for us in (self.queue_us, self.prefill_us, self.decode_us)
        )
        first = np.fmax(queue + prefill, self.ttft_us)
        last = np.fmax(
            np.maximum(queue + prefill + decode, queue + np.nan_to_num(self.inference_us)),
            self.e2e_us,
        )
        return np.asarray((first > ttft_us + SLACK_US) | (last > total_us + SLACK_US))

    @property
    def divides(self) -> bool:
        """The server reported a queue, prefill or decode of some request."""
        return not all(
            np.isnan(us).all() for us in (self.queue_us, self.prefill_us, self.decode_us)
        )

    def without_division(self) -> "ReportedColumns":
        """The columns as if the server had reported no queue, prefill and decode of any request."""
        nothing = np.full(len(self.source), np.nan)
        return replace(self, queue_us=nothing, prefill_us=nothing, decode_us=nothing)


@dataclass(frozen=True)
class ServerColumns:
    """The times in the answers of some requests (``rows``)."""

    count: int
    """The number of all requests."""
    rows: NDArray[np.int64]
    sources: NDArray[np.int8]
    times: NDArray[np.float64]
    """A row for each of ``rows``, a column for each of FIELDS."""

    def reported(self, spans: Mapping[int, ServerTimes]) -> ReportedColumns:
        """The times with spans, by the rows of their requests. A span counts before the times in
        the answer."""
        source = np.zeros(self.count, np.int8)
        if not spans and not len(self.rows):
            return ReportedColumns(source, *[np.broadcast_to(np.nan, source.shape)] * len(FIELDS))
        table = np.full((len(FIELDS), self.count), np.nan)
        source[self.rows], table[:, self.rows] = self.sources, self.times.T
        if spans:
            rows = np.fromiter(spans, np.int64, len(spans))
            source[rows] = SOURCES.index(SPANS)
            table[:, rows] = _table([*map(_numbers, spans.values())]).T
        return ReportedColumns(source, *table)


class ServerTable:
    """Collects the times record by record."""

    def __init__(self) -> None:
        self._count = 0
        self._rows = array("q")
        self._sources = array("b")
        self._times: list[Numbers] = []

    def add(self, record: Record) -> None:
        if (times := record.server) is not None and times.source in SOURCES:
            self._rows.append(self._count)
            self._sources.append(SOURCES.index(times.source))
            self._times.append(_numbers(times))
        self._count += 1

    def add_block(self, count: int, server: Sequence[tuple[int, ServerTimes]]) -> None:
        """``server``: (place among these requests, times of this request)."""
        for row, times in server:
            if times.source in SOURCES:
                self._rows.append(self._count + row)
                self._sources.append(SOURCES.index(times.source))
                self._times.append(_numbers(times))
        self._count += count

    def result(self) -> ServerColumns:
        return ServerColumns(
            self._count,
            np.frombuffer(self._rows, np.int64),
            np.frombuffer(self._sources, np.int8),
            _table(self._times),
        )


def join_server_columns(parts: Sequence[ServerColumns]) -> ServerColumns:
    """Join the columns of consecutive records."""
    begins = np.cumsum([0, *(part.count for part in parts)])
    return ServerColumns(
        int(begins[-1]),
        np.concatenate([part.rows + begin for part, begin in zip(parts, begins, strict=False)]),
        np.concatenate([part.sources for part in parts]),
        np.concatenate([part.times for part in parts]),
    )


_numbers: Final[Callable[[ServerTimes], Numbers]] = attrgetter(*FIELDS)


def _table(rows: list[Numbers]) -> NDArray[np.float64]:
    """The rows as an array; None becomes NaN."""
    return np.array(rows, np.float64).reshape(-1, len(FIELDS))
