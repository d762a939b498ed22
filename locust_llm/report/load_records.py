"""Load records: turns a stream of records into numpy columns with a row for each request, without
holding the records. Several processes read a large file."""

import pickle
import subprocess
import sys
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from locust_llm.records.failure_kinds import generalise_failure_message
from locust_llm.records.machine import usable_cores
from locust_llm.records.outcomes import OK, RETRIED
from locust_llm.records.profile_export_jsonl import RecordFile, UnreadLines
from locust_llm.records.record import Record
from locust_llm.records.record_columns import FLAGS, RECORD_COLUMNS, STAMPS
from locust_llm.report.array_types import Floats, Ints
from locust_llm.report.fluidity_and_qoe import (
    Readability,
    has_token_times,
    list_token_runs,
    measure_readability,
)
from locust_llm.report.server_time_columns import ServerColumns, ServerTable
from locust_llm.report.server_time_columns import join_server_columns as joined_server
from locust_llm.slo.reading_pace import ReadingPace

from .fluidity_and_qoe import load_reading_pace
from .inter_token_gaps import GapCounts

Names = tuple[str, ...]

NUMBERS: Final = (
    "clock_offset_s",
    *(column.name for column in RECORD_COLUMNS if column.kind != "text"),
)
TEXTS: Final = tuple(column.name for column in RECORD_COLUMNS if column.kind == "text")
SUMMARY_COLUMNS: Final = tuple(column for column in RECORD_COLUMNS if column.in_summary)
SUMMARY_NUMBERS: Final = (
    "clock_offset_s",
    *(column.name for column in SUMMARY_COLUMNS if column.kind != "text"),
)
SUMMARY_TEXTS: Final = tuple(column.name for column in SUMMARY_COLUMNS if column.kind == "text")
SINGLE_PRECISION: Final = frozenset(
    column.name for column in RECORD_COLUMNS if column.single_precision
)

PART: Final = 100 * 2**20
"""So many bytes justify a process of their own: about a second."""
PROCESSES: Final = 4
"""Each process takes some 100 MB."""
PART_READER: Final = f"from {__name__} import send_file_part; send_file_part()"
"""It is no main module, whose classes no other process could unpickle."""
BLOCK: Final = 2**10
READER: Final = ReadingPace()
STALLS: Final = ("longest_stall_s", "longest_stall_least_s", "longest_stall_most_s")
"""The longest gap of each request, and the least and the most that it can be beside merged
chunks."""
PROMPT_US: Final = 1000
"""In an answer that was read at once, the chunks of one read came within so long of each other."""
LONG_GAP_S: Final = 1.0
"""A gap between two chunks that is as long is kept with its place."""
MAX_KINDS: Final = 1000
"""The kinds of error messages that are kept."""


@dataclass(frozen=True)
class CoalescedGaps:
    """The gaps beside merged chunks. Each lies between two bounds."""

    least: GapCounts
    most: GapCounts

    def merge(self, other: "CoalescedGaps") -> None:
        self.least.merge(other.least)
        self.most.merge(other.most)


@dataclass(frozen=True)
class LongGaps:
    """The long gaps between chunks. A row a gap, in the order of requests and time."""

    request: Ints
    """The row of its request."""
    began_s: Floats
    """Seconds after the send of the request."""
    ended_s: Floats
    """By the stamp of the chunk."""
    soonest_s: Floats
    """The soonest end, where the chunk was read together with others."""


@dataclass(frozen=True)
class RequestColumns:
    """The columns that the computations need of a run's records."""

    requests: pd.DataFrame
    """A row a request: stamps ``_at`` in Unix seconds, durations ``_s``, token counts, flags; NaN
    where there is none. ``message`` is the first message of its kind (``kind_of``)."""
    gaps: dict[str, GapCounts]
    """The sharp gaps of the successful requests, by phase."""
    blurred: dict[str, CoalescedGaps]
    """The other gaps of these requests, by phase."""
    server: ServerColumns
    """The server's own times of each request, from its answer."""
    long_gaps: LongGaps


def earliest_chunks_us(record: Record) -> Sequence[tuple[int, int]]:
    """The earliest moment of each merged chunk. Where the answer was read at once, by the kernel's
    stamps, its chunks came together."""
    lag_us, us = record.read_lag_us, record.chunk_us
    if record.clock != "kernel" or not lag_us or lag_us >= PROMPT_US:
        return record.merged
    return [(index, max(earliest, us[index] - PROMPT_US)) for index, earliest in record.merged]


def collect_columns(records: Iterable[Record], reader: ReadingPace = READER) -> RequestColumns:
    """Read the stream once. It takes about 6 µs a request and 0.2 µs a chunk. Attempts that were
    tried again are left out."""
    table = _Table(SUMMARY_NUMBERS, SUMMARY_TEXTS, KIND_OF)
    streams = _Streams(reader)
    server = ServerTable()
    for record in records:
        if record.outcome == RETRIED:  # an attempt, of a request that has another record
            continue
        table.add(record)
        streams.add(record)
        server.add(record)
    gaps, blurred, stalls = streams.result()
    requests = table.frame()
    for name, column in zip(STALLS, stalls, strict=True):
        requests[name] = column
    _add(requests, streams.felt)
    return RequestColumns(
        requests=requests,
        gaps=gaps,
        blurred=blurred,
        server=server.result(),
        long_gaps=streams.long_gaps,
    )


def _add(requests: pd.DataFrame, what: Readability) -> None:
    for name, column in zip(Readability._fields, what, strict=True):
        requests[name] = column


def join_columns(parts: Sequence[RequestColumns]) -> RequestColumns:
    """The columns as ``collect_columns`` would have made them of the records of all parts, in
    order. The parts are used up."""
    tables = [part.requests for part in parts]
    sizes = [len(table) for table in tables]
    columns: dict[str, object] = {}
    for name in list(tables[0].columns):
        values = [table.pop(name) for table in tables]
        if name in SUMMARY_TEXTS:
            codes = _Codes(KIND_OF.get(name))
            # of each part its codes as those of the whole; its last one, -1, is that of no text
            of_parts = [
                np.array([*map(codes.__getitem__, value.cat.categories), -1]) for value in values
            ]
            which = [
                whole_codes[value.cat.codes]
                for whole_codes, value in zip(of_parts, values, strict=True)
            ]
            columns[name] = _categorical(np.concatenate(which), codes)
        else:
            columns[name] = np.concatenate([value.to_numpy() for value in values])
    gaps: defaultdict[str, GapCounts] = defaultdict(GapCounts)
    blurred = dict[str, CoalescedGaps]()
    for part in parts:
        for phase, counts in part.gaps.items():
            gaps[phase].merge(counts)
        for phase, bounds in part.blurred.items():
            blurred.setdefault(phase, CoalescedGaps(GapCounts(), GapCounts())).merge(bounds)
    server = joined_server([part.server for part in parts])
    return RequestColumns(
        requests=pd.DataFrame(columns, copy=False),
        gaps=dict(gaps),
        blurred=blurred,
        server=server,
        long_gaps=_join_long_gaps(parts, sizes),
    )


def _join_long_gaps(parts: Sequence[RequestColumns], sizes: Sequence[int]) -> LongGaps:
    """``sizes`` has the requests of each part."""
    before = np.cumsum([0, *sizes[:-1]])
    places = zip(parts, before, strict=True)
    return LongGaps(
        request=np.concatenate([part.long_gaps.request + first for part, first in places]),
        began_s=np.concatenate([part.long_gaps.began_s for part in parts]),
        ended_s=np.concatenate([part.long_gaps.ended_s for part in parts]),
        soonest_s=np.concatenate([part.long_gaps.soonest_s for part in parts]),
    )


def make_data_frames(
    records: Iterable[Record], reader: ReadingPace = READER
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Everything, for people: ``requests`` (a row a request) and ``gaps`` (a row a gap between two
    chunks).

    requests: all RECORD_COLUMNS, stamps in Unix seconds, with ``chunks`` and ``merged`` as counts.
    gaps: ``id`` of the request, ``index`` (0 between the first two chunks), ``gap_s``, and
    ``merged``: one of the two chunks came together with others, so this gap is not sharp and stays
    out of the percentiles.
    """
    table = _Table(NUMBERS, TEXTS, {})
    streams = _Streams(reader)
    ids: list[str] = []
    nothing = np.empty(0, np.int64)
    parts: list[tuple[Ints, Ints, Ints]] = [(nothing, nothing, nothing)]
    for record in records:
        table.add(record)
        streams.add(record)
        gap_us = np.array(record.gaps_us, np.int64)
        merged = np.zeros(len(gap_us) + 1, np.int64)
        merged[[index for index, _ in record.merged]] = 1
        ids.append(record.id)
        parts.append((gap_us, np.arange(len(gap_us)), merged[1:] | merged[:-1]))
    gap_us, index, merged = (np.concatenate(column) for column in zip(*parts, strict=True))
    codes, known = pd.factorize(np.array(ids, np.object_))
    which = np.repeat(codes, [len(part[0]) for part in parts[1:]])
    streams.result()
    requests = table.frame()
    _add(requests, streams.felt)
    return requests, pd.DataFrame(
        {
            "id": pd.Categorical.from_codes(which, categories=pd.Index(known)),
            "index": index,
            "gap_s": gap_us / 1e6,
            "merged": merged > 0,
        }
    )


KIND_OF: Final[dict[str, Callable[[str], str]]] = {
    "error": generalise_failure_message,
    "rejected": generalise_failure_message,
}


class _Codes(dict[str | None, int]):
    """Codes for the texts of one column. Texts of one kind share the first of them."""

    def __init__(self, kind: Callable[[str], str] | None = None) -> None:
        super().__init__({None: -1})
        self._kind = kind
        self._of_kind: dict[str, int] = {}
        self.labels: list[str] = []

    def __missing__(self, text: str) -> int:
        if self._kind is None or not text:
            self[text] = len(self.labels)
        else:  # not kept by its text: there may be a million different ones
            kind = self._kind(text)
            if len(self._of_kind) >= MAX_KINDS and kind not in self._of_kind:
                kind = text = "(messages of other kinds)"
            if kind in self._of_kind:
                return self._of_kind[kind]
            self._of_kind[kind] = len(self.labels)
        self.labels.append(text)
        return len(self.labels) - 1


def _categorical(which: Ints, codes: _Codes) -> pd.Categorical:
    return pd.Categorical.from_codes(which, categories=pd.Index(codes.labels, dtype=np.object_))


class _Table:
    """Rows that become typed columns block by block, so that a million of them need no more memory
    than their own size."""

    def __init__(
        self, numbers: Names, texts: Names, kinds: dict[str, Callable[[str], str]]
    ) -> None:
        self._numbers_of = attrgetter(*numbers)
        self._texts_of = attrgetter(*texts)
        self._codes = {name: _Codes(kinds.get(name)) for name in texts}
        types = dict.fromkeys(numbers, "d")
        types |= {name: "f" for name in numbers if name in SINGLE_PRECISION}
        types |= {name: "b" for name in numbers if name in FLAGS}
        types |= dict.fromkeys(texts, "i") | {"chunks": "i", "merged": "i"}
        self._columns = {name: array(kind) for name, kind in types.items()}
        self._rows: list[tuple[float | None, ...]] = []

    def add(self, record: Record) -> None:
        texts = zip(self._codes.values(), self._texts_of(record), strict=True)
        codes = [codes[text] for codes, text in texts]
        self._rows.append(
            (
                *self._numbers_of(record),
                *codes,
                len(record.known_us),
                record.shared if record.merged else 0,
            )
        )
        if len(self._rows) >= BLOCK:
            self._settle()

    def frame(self) -> pd.DataFrame:
        """The rows as a DataFrame, with stamps in Unix time. The table is used up."""
        self._settle()
        columns = {
            name: np.frombuffer(column, column.typecode) for name, column in self._columns.items()
        }
        offset = columns.pop("clock_offset_s")
        for name in columns:
            if name in STAMPS:
                columns[name] += offset
        columns["first_chunk_at"] = columns["sent_at"] + columns["ttft_s"]
        streamed = ~np.isnan(columns["ttft_s"])
        columns["last_chunk_at"] = np.where(
            streamed, columns["sent_at"] + columns["latency_s"], np.nan
        )
        typed: dict[str, object] = {}
        for name, column in columns.items():
            if name in self._codes:
                typed[name] = _categorical(column, self._codes[name])
            else:
                typed[name] = column.view(np.bool_) if name in FLAGS else column
        return pd.DataFrame(typed, copy=False)

    def _settle(self) -> None:
        if not self._rows:
            return
        block = np.array(self._rows, np.float64)  # None becomes NaN
        for column, values in zip(self._columns.values(), block.T, strict=True):
            column.frombytes(values.astype(column.typecode).tobytes())
        self._rows = []


class _Streams:
    """The chunks of many requests end to end. Gaps and stalls are computed block by block, as in
    ``Record.sharp_gaps_us`` and ``Record.longest_stall_s``, at a fifth of the cost."""

    def __init__(self, reader: ReadingPace) -> None:
        self._reader = reader
        self._felt: list[Readability] = []
        self._tokens: list[tuple[int, Sequence[tuple[float, int]]]] = []
        """(first chunk, runs) of requests with several tokens a chunk."""
        self._uncounted: list[int] = []
        self._gaps: defaultdict[str, GapCounts] = defaultdict(GapCounts)
        self._bounds: defaultdict[str, CoalescedGaps] = defaultdict(
            lambda: CoalescedGaps(GapCounts(), GapCounts())
        )
        self._stalls = tuple(array("d") for _ in STALLS)
        self._us = array("q")
        self._counts: list[int] = []
        self._phases: list[str] = []
        self._blurred: list[tuple[int, int]] = []
        self._long_gaps: list[tuple[Ints, Ints, Ints, Ints]] = []
        """(requests, begins, ends, soonest ends) in microseconds, block by block."""
        self._settled = 0
        """The requests of the blocks before."""

    def add(self, record: Record) -> None:
        chunk_us = record.known_us
        if record.merged:
            here = len(self._us)
            self._blurred.extend((here + index, us) for index, us in earliest_chunks_us(record))
        if not has_token_times(record):
            self._uncounted.append(len(self._counts))
        if several := list_token_runs(record):
            self._tokens.append((len(self._us), several))
        self._us.fromlist(list(chunk_us))  # half the time of extend
        self._counts.append(len(chunk_us))
        self._phases.append(record.phase if record.outcome == OK and chunk_us else "")
        if len(self._us) >= 2**16 or len(self._counts) >= 2**16:
            self._settle()

    def result(self) -> tuple[dict[str, GapCounts], dict[str, CoalescedGaps], list[Floats]]:
        """(the sharp gaps of each phase, the others, the columns STALLS; NaN below two chunks)."""
        self._settle()
        stalls = [np.frombuffer(column, np.float64) for column in self._stalls]
        return dict(self._gaps), dict(self._bounds), stalls

    @property
    def long_gaps(self) -> LongGaps:
        """The long gaps of all requests, once ``result`` was called."""
        request, *times_us = map(np.concatenate, zip(*self._long_gaps, strict=True))
        return LongGaps(request, *(us / 1e6 for us in times_us))

    @property
    def felt(self) -> Readability:
        """The readability of each request, once ``result`` was called."""
        return Readability(*(np.concatenate(column) for column in zip(*self._felt, strict=True)))

    def _feel(self, us: Ints, count: Ints) -> None:
        tokens = np.ones(len(us))
        for begin, runs in self._tokens:
            each = np.repeat([size for size, _ in runs], [chunks for _, chunks in runs])
            tokens[begin : begin + len(each)] = np.maximum(each, 1)
        readability = measure_readability(us, tokens, count, self._reader)
        for column in readability:
            column[self._uncounted] = np.nan
        self._felt.append(readability)
        self._tokens, self._uncounted = [], []

    def _settle(self) -> None:
        us = np.frombuffer(self._us, np.int64)
        count = np.array(self._counts, np.int64)
        self._feel(us, count)
        starts = np.cumsum(count) - count
        blurred = np.zeros(len(us), np.bool_)
        first = np.zeros(len(us), np.bool_)
        earliest = us.copy()
        for index, soonest in self._blurred:
            blurred[index], earliest[index] = True, soonest
        first[starts[count > 0]] = True
        gap = np.diff(us)
        between = first[1:]  # between two requests lies none
        least = np.maximum(earliest[1:] - us[:-1], 0)
        most = us[1:] - earliest[:-1]
        several = count > 1
        for column, gaps in zip(self._stalls, (gap, least, most), strict=True):
            stalls = np.full(len(count), np.nan)
            if several.any():
                longest = np.maximum.reduceat(np.where(between, -1, gaps), starts[several])
                stalls[several] = longest / 1e6
            column.frombytes(stalls.tobytes())
        long = ~between & (gap >= LONG_GAP_S * 1e6)
        of_request = np.repeat(np.arange(len(count)), count)[1:]
        self._long_gaps.append(
            (self._settled + of_request[long], us[:-1][long], us[1:][long], earliest[1:][long])
        )
        self._settled += len(count)
        sharp = ~(between | blurred[1:] | blurred[:-1])
        for phase in {*self._phases} - {""}:
            of_phase = np.repeat([name == phase for name in self._phases], count)[1:]
            self._gaps[phase].add(gap[sharp & of_phase])
            if (others := of_phase & ~sharp & ~between).any():
                self._bounds[phase].least.add(least[others])
                self._bounds[phase].most.add(most[others])
        self._us = array("q")
        self._counts = []
        self._phases = []
        self._blurred = []


# -- of a file -------------------------------------------------------------------------------------


def read_columns(
    path: Path, reader: ReadingPace | None = None
) -> tuple[RequestColumns, UnreadLines]:
    """(the columns of this file's records, its unreadable lines). Raises OSError. ``reader``: the
    reading pace; None: the pace in the run.json beside the file."""
    reader = reader or load_reading_pace(path.parent)
    begins = list(split_file(path.stat().st_size if path.exists() else 0))
    with ExitStack() as stack:
        others = [stack.enter_context(_reader(path, *part, reader)) for part in begins[1:]]
        parts = [read_file_part(path, *begins[0], reader)]
        for part, other in zip(begins[1:], others, strict=True):
            parts.append(_result(other) or read_file_part(path, *part, reader))
    if len(parts) == 1:
        return parts[0]
    return join_columns([columns for columns, _ in parts]), sum(
        (unread for _, unread in parts), UnreadLines()
    )


def split_file(size: int, cores: int | None = None) -> Iterator[tuple[int, int]]:
    """(begin, end) in bytes of about equal parts."""
    cores = cores or usable_cores()
    count = max(1, min(cores, PROCESSES, size // PART))
    ends = [size * i // count for i in range(count + 1)]
    return pairwise(ends)


def read_file_part(
    path: Path, begin: int, end: int, reader: ReadingPace = READER
) -> tuple[RequestColumns, UnreadLines]:
    file = RecordFile(path, begin, end)
    return collect_columns(file, reader), file.unread


def _reader(path: Path, begin: int, end: int, reader: ReadingPace) -> "subprocess.Popen[bytes]":
    """A fresh process that reads a part. A fork would carry along this process's memory."""
    return subprocess.Popen(
        [sys.executable, "-c", PART_READER, str(path), str(begin), str(end), *map(str, reader)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def _result(reader: "subprocess.Popen[bytes]") -> tuple[RequestColumns, UnreadLines] | None:
    """None: it failed, whatever the reason. The part can be read here."""
    assert reader.stdout is not None
    try:
        part: tuple[RequestColumns, UnreadLines] = pickle.load(reader.stdout)
    except Exception:  # of half a pickle anything can come
        return None
    return part


def send_file_part() -> None:
    """Read a part as the arguments name it, and send the columns to stdout."""
    path, begin, end, *pace = sys.argv[1:]
    part = read_file_part(Path(path), int(begin), int(end), ReadingPace(*map(float, pace)))
    pickle.dump(part, sys.stdout.buffer, protocol=5)
