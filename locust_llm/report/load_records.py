"""Load records: turns a stream of records into numpy columns with a row for each request, without
holding the records. Several processes read a large file."""

import subprocess
import sys
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from locust_llm.records.failure_kinds import generalise_failure_message
from locust_llm.records.machine import usable_cores
from locust_llm.records.outcomes import OK, RETRIED
from locust_llm.records.profile_export_jsonl import (
    RecordFile,
    UnreadLines,
    find_contradiction,
    has_same_last_line,
)
from locust_llm.records.record import Record
from locust_llm.records.record_columns import FLAGS, RECORD_COLUMNS, STAMPS
from locust_llm.records.record_parts import (
    LINES,
    WHOLE,
    RecordPart,
    list_record_parts,
    stand_alone,
)
from locust_llm.records.run_facts import RECORDS
from locust_llm.report.array_types import Floats, Ints, SharedArrays, share_constant
from locust_llm.report.fluidity_and_qoe import (
    Readability,
    has_token_times,
    list_token_runs,
    measure_readability,
)
from locust_llm.report.request_table import Column, RequestTable, TextColumn
from locust_llm.report.server_time_columns import ServerColumns, ServerTable
from locust_llm.report.server_time_columns import join_server_columns as joined_server
from locust_llm.report.stored_columns import (
    GrowingColumn,
    open_unnamed,
    read_column,
    receive_with_columns,
    send_with_columns,
)
from locust_llm.slo.reading_pace import ReadingPace

from .fluidity_and_qoe import load_reading_pace
from .inter_token_gaps import GapCounts
from .part_values import RowBlock, read_row_block

if TYPE_CHECKING:
    import pandas as pd

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
PART_FILES: Final = 25
"""So many parts of records justify a process of their own: about a second."""
PROCESSES: Final = 4
"""Each process takes some 100 MB."""
PART_READER: Final = f"from {__name__} import {{0}}; {{0}}()"
"""It is no main module, whose classes no other process could unpickle."""
BLOCK: Final = 2**10
FULL: Final = 2**16
"""So many chunks, or requests, are computed together."""
READER: Final = ReadingPace()
STALLS: Final = ("longest_stall_s", "longest_stall_least_s", "longest_stall_most_s")
"""The longest gap of each request, and the least and the most that it can be beside merged
chunks."""
PROMPT_US: Final = 1000
"""In an answer that was read at once, the chunks of one read came within so long of each other."""
LONG_GAP_S: Final = 1.0
"""A gap between two chunks that is as long is kept with its place."""
NO_GAP: Final = -1
"""Between the last chunk of a request and the first of the next one."""
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

    requests: RequestTable
    """A row a request: stamps ``_at`` in Unix seconds, durations ``_s``, token counts, flags; NaN
    where there is none. ``message`` is the first message of its kind (``kind_of``)."""
    gaps: dict[str, GapCounts]
    """The sharp gaps of the successful requests, by phase."""
    blurred: dict[str, CoalescedGaps]
    """The other gaps of these requests, by phase."""
    server: ServerColumns
    """The server's own times of each request, from its answer."""
    long_gaps: LongGaps


PartColumns = tuple[RequestColumns, UnreadLines]
"""The columns of a part, and its lines without a record."""


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
    collector = ColumnCollector(reader)
    collector.add_records(records)
    return collector.result()


class ColumnCollector:
    """Collects the columns of requests, from records and from parts of records, in their order."""

    def __init__(self, reader: ReadingPace) -> None:
        self._table = _Table(SUMMARY_NUMBERS, SUMMARY_TEXTS, KIND_OF)
        self._streams = _Streams(reader)
        self._server = ServerTable()

    def add_records(self, records: Iterable[Record]) -> None:
        table, streams, server = self._table, self._streams, self._server
        for record in records:
            if record.outcome == RETRIED:  # an attempt, of a request that has another record
                continue
            table.add(record)
            streams.add(record)
            server.add(record)

    def add_part(self, part: RecordPart) -> UnreadLines:
        """The records that it could not use. Raises ValueError for a damaged part."""
        block = read_row_block(part, SUMMARY_NUMBERS, SUMMARY_TEXTS)
        if block is not None:
            self._table.add_block(block)
            self._streams.add_block(block)
            self._server.add_block(len(block.counts), block.server)
            return UnreadLines(lines=part.rows)
        unread = UnreadLines()
        for record in part.records():
            if wrong := find_contradiction(record):
                unread += UnreadLines(1, ((1, wrong),), 1)
            else:
                unread += UnreadLines(lines=1)
                self.add_records([record])
        return unread

    def result(self) -> RequestColumns:
        """All columns. The collector is used up."""
        gaps, blurred, stalls = self._streams.result()
        columns = self._table.columns() | stalls | self._streams.felt
        return RequestColumns(
            requests=RequestTable(share_equal(columns)),
            gaps=gaps,
            blurred=blurred,
            server=self._server.result(),
            long_gaps=self._streams.long_gaps,
        )


def share_equal(columns: Mapping[str, Column]) -> dict[str, Column]:
    """The columns, of which equal ones of numbers are one."""
    shared = SharedArrays()
    return {
        name: column if isinstance(column, TextColumn) else shared.share(column)
        for name, column in columns.items()
    }


def join_columns(parts: Sequence[RequestColumns]) -> RequestColumns:
    """The columns as ``collect_columns`` would have made them of the records of all parts, in
    order. The parts are used up."""
    tables = [part.requests for part in parts]
    sizes = [len(table) for table in tables]
    columns: dict[str, Column] = {}
    for name in list(tables[0].columns):
        values = [table.columns.pop(name) for table in tables]
        texts = [value for value in values if isinstance(value, TextColumn)]
        numbers = [value for value in values if not isinstance(value, TextColumn)]
        if texts:
            codes = _Codes(KIND_OF.get(name))
            # of each part its codes as those of the whole; its last one, -1, is that of no text
            of_parts = [
                np.array([*map(codes.__getitem__, text.labels), -1], np.int32) for text in texts
            ]
            which = [
                whole_codes[text.codes] for whole_codes, text in zip(of_parts, texts, strict=True)
            ]
            columns[name] = _make_text_column(np.concatenate(which), codes)
        else:
            joined = GrowingColumn(read_column(numbers[0]).dtype.str)
            for column in numbers:
                joined.extend(read_column(column))
            columns[name] = joined.result()
    gaps: defaultdict[str, GapCounts] = defaultdict(GapCounts)
    blurred = dict[str, CoalescedGaps]()
    for part in parts:
        for phase, counts in part.gaps.items():
            gaps[phase].merge(counts)
        for phase, bounds in part.blurred.items():
            blurred.setdefault(phase, CoalescedGaps(GapCounts(), GapCounts())).merge(bounds)
    server = joined_server([part.server for part in parts])
    return RequestColumns(
        requests=RequestTable(share_equal(columns)),
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
) -> tuple[RequestTable, "pd.DataFrame"]:
    """Everything, for people: ``requests`` (a row a request) and ``gaps`` (a row a gap between two
    chunks).

    requests: all RECORD_COLUMNS, stamps in Unix seconds, with ``chunks`` and ``merged`` as counts.
    gaps: ``id`` of the request, ``index`` (0 between the first two chunks), ``gap_s``, and
    ``merged``: one of the two chunks came together with others, so this gap is not sharp and stays
    out of the percentiles.
    """
    import pandas as pd

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
    requests = RequestTable(table.columns() | streams.felt)
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


def _make_text_column(which: Ints, codes: _Codes) -> TextColumn:
    """In as few bytes as the codes need: there may be a million rows."""
    kind = np.min_scalar_type(-max(len(codes.labels), 1))
    return TextColumn(share_constant(which.astype(kind)), codes.labels)


class _Table:
    """Rows that become typed columns block by block, so that a million of them need no more memory
    than their own size."""

    def __init__(
        self, numbers: Names, texts: Names, kinds: dict[str, Callable[[str], str]]
    ) -> None:
        self._numbers_of = attrgetter(*numbers)
        self._texts_of = attrgetter(*texts)
        self._codes = {name: _Codes(kinds.get(name)) for name in texts}
        self._names = (*numbers, *texts, "chunks", "merged")
        kept = [name for name in self._names if name != "clock_offset_s"]
        kinds_of = dict.fromkeys((*kept, "first_chunk_at", "last_chunk_at"), "d")
        kinds_of |= {name: "f" for name in numbers if name in SINGLE_PRECISION}
        kinds_of |= {name: "?" for name in numbers if name in FLAGS}
        kinds_of |= dict.fromkeys((*texts, "chunks", "merged"), "i")
        self._columns = {name: GrowingColumn(kind) for name, kind in kinds_of.items()}
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

    def add_block(self, block: RowBlock) -> None:
        self._settle()
        columns: dict[str, NDArray[Any]] = dict(block.numbers)
        for name, (which, labels) in block.texts.items():
            columns[name] = self._encode(self._codes[name], which, labels)
        self._extend(columns | {"chunks": block.counts, "merged": block.shared})

    def _extend(self, columns: dict[str, NDArray[Any]]) -> None:
        """With stamps in Unix time."""
        for name in STAMPS:
            if name in columns:
                columns[name] = columns[name] + columns["clock_offset_s"]
        sent_at, ttft_s = columns["sent_at"], columns["ttft_s"]
        columns["first_chunk_at"] = sent_at + ttft_s
        last_chunk_at = sent_at + columns["latency_s"]
        columns["last_chunk_at"] = np.where(np.isnan(ttft_s), np.nan, last_chunk_at)
        for name, column in self._columns.items():
            column.extend(columns[name])

    def _encode(self, codes: "_Codes", which: Ints, labels: Sequence[str]) -> Ints:
        """The codes of a column's texts. The first row with a text gives it its code."""
        used, first_rows = np.unique(which, return_index=True)
        of_label = np.full(len(labels) + 1, -1, np.int64)  # the last one: of -1, no text
        for place in used[np.argsort(first_rows)].tolist():
            if place >= 0:
                of_label[place] = codes[labels[place]]
        return of_label[which]

    def columns(self) -> dict[str, Column]:
        """The table is used up."""
        self._settle()
        columns: dict[str, Column] = {}
        for name in [*self._columns]:
            column = self._columns.pop(name).result()
            columns[name] = (
                _make_text_column(read_column(column), self._codes[name])
                if name in self._codes
                else column
            )
        return columns

    def _settle(self) -> None:
        if not self._rows:
            return
        block = np.array(self._rows, np.float64)  # None becomes NaN
        self._extend(dict(zip(self._names, block.T, strict=True)))
        self._rows = []


T = TypeVar("T")


def _pick(items: Sequence[T], within: range, row_of: Callable[[T], int]) -> Sequence[T]:
    """Those of some rows, from items in the order of their rows."""
    first = bisect_left(items, within.start, key=row_of)
    return items[first : bisect_left(items, within.stop, first, key=row_of)]


class _Streams:
    """The chunks of many requests end to end. Gaps and stalls are computed block by block, as in
    ``Record.sharp_gaps_us`` and ``Record.longest_stall_s``, at a fifth of the cost."""

    def __init__(self, reader: ReadingPace) -> None:
        self._reader = reader
        self._felt = {name: GrowingColumn("d") for name in Readability._fields}
        self._tokens: list[tuple[int, Sequence[tuple[float, int]]]] = []
        """(first chunk, runs) of requests with several tokens a chunk."""
        self._uncounted: list[int] = []
        self._gaps: defaultdict[str, GapCounts] = defaultdict(GapCounts)
        self._bounds: defaultdict[str, CoalescedGaps] = defaultdict(
            lambda: CoalescedGaps(GapCounts(), GapCounts())
        )
        self._stalls = {name: GrowingColumn("d") for name in STALLS}
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
        if record.merged and chunk_us:
            here = len(self._us)
            self._blurred.extend((here + index, us) for index, us in earliest_chunks_us(record))
        if not has_token_times(record):
            self._uncounted.append(len(self._counts))
        if several := list_token_runs(record):
            self._tokens.append((len(self._us), several))
        self._us.fromlist(list(chunk_us))  # half the time of extend
        self._counts.append(len(chunk_us))
        self._phases.append(record.phase if record.outcome == OK and chunk_us else "")
        if len(self._us) >= FULL or len(self._counts) >= FULL:
            self._settle()

    def add_block(self, block: RowBlock) -> None:
        """As ``add`` of each row: what is settled together is the same."""
        ends = np.cumsum(block.counts)
        rows = len(ends)
        row = 0
        while row < rows:
            done = int(ends[row - 1]) if row else 0
            filled = int(np.searchsorted(ends, done + FULL - len(self._us))) + 1
            end = min(filled, row + FULL - len(self._counts), rows)
            self._append_rows(block, row, end, done, int(ends[end - 1]))
            row = end
            if len(self._us) >= FULL or len(self._counts) >= FULL:
                self._settle()

    def _append_rows(self, block: RowBlock, row: int, end: int, begin_us: int, end_us: int) -> None:
        """``begin_us``, ``end_us``: where the stamps of these rows begin and end."""
        base = len(self._us)
        starts = base + np.cumsum(block.counts[row:end]) - block.counts[row:end]
        within = range(row, end)
        self._uncounted += [
            len(self._counts) + at - row for at in _pick(block.untimed, within, lambda at: at)
        ]
        for at, runs in _pick(block.tokens, within, itemgetter(0)):
            self._tokens.append((int(starts[at - row]), runs))
        for at, record in _pick(block.merged, within, itemgetter(0)):
            here = int(starts[at - row])
            self._blurred.extend((here + index, us) for index, us in earliest_chunks_us(record))
        self._us.frombytes(block.us[begin_us:end_us].view(np.uint8).data)
        self._counts += block.counts[row:end].tolist()
        self._phases += block.phases[row:end]

    def result(self) -> tuple[dict[str, GapCounts], dict[str, CoalescedGaps], dict[str, Column]]:
        """(the sharp gaps of each phase, the others, the columns STALLS; NaN below two chunks)."""
        self._settle()
        stalls: dict[str, Column] = {name: column.result() for name, column in self._stalls.items()}
        return dict(self._gaps), dict(self._bounds), stalls

    @property
    def long_gaps(self) -> LongGaps:
        """The long gaps of all requests, once ``result`` was called."""
        request, *times_us = map(np.concatenate, zip(*self._long_gaps, strict=True))
        return LongGaps(request, *(us / 1e6 for us in times_us))

    @property
    def felt(self) -> dict[str, Column]:
        """The readability of each request, once ``result`` was called."""
        return {name: column.result() for name, column in self._felt.items()}

    def _feel(self, us: Ints, count: Ints) -> None:
        tokens = np.ones(len(us)) if self._tokens else None
        for begin, runs in self._tokens:
            each = np.repeat([size for size, _ in runs], [chunks for _, chunks in runs])
            assert tokens is not None
            tokens[begin : begin + len(each)] = np.maximum(each, 1)
        readability = measure_readability(us, tokens, count, self._reader)
        for name, values in readability._asdict().items():
            values[self._uncounted] = np.nan
            self._felt[name].extend(values)
        self._tokens, self._uncounted = [], []

    def _settle(self) -> None:
        us = np.frombuffer(self._us, np.int64)
        count = np.array(self._counts, np.int64)
        self._feel(us, count)
        ends = np.cumsum(count)
        between = ends[:-1][(count[:-1] > 0) & (ends[:-1] < len(us))] - 1
        gap = np.diff(us)
        gap[between] = NO_GAP
        least = most = gap
        sharp = gap != NO_GAP
        earliest = us
        if self._blurred:
            earliest = us.copy()
            blurred = np.zeros(len(us), np.bool_)
            for index, soonest in self._blurred:
                blurred[index], earliest[index] = True, soonest
            least = np.maximum(earliest[1:] - us[:-1], 0)
            most = us[1:] - earliest[:-1]
            least[between] = most[between] = NO_GAP
            sharp &= ~(blurred[1:] | blurred[:-1])
        self._note_stalls((gap, least, most), count, ends - count)
        long = np.flatnonzero(gap >= LONG_GAP_S * 1e6)
        of_request = self._settled + np.searchsorted(ends, long, side="right")
        self._long_gaps.append((of_request, us[long], us[long + 1], earliest[long + 1]))
        self._settled += len(count)
        for phase in {*self._phases} - {""}:
            of_phase = np.repeat([name == phase for name in self._phases], count)[1:]
            self._gaps[phase].add(gap[sharp & of_phase])
            if self._blurred and (others := of_phase & ~sharp & (gap != NO_GAP)).any():
                self._bounds[phase].least.add(least[others])
                self._bounds[phase].most.add(most[others])
        self._us = array("q")
        self._counts = []
        self._phases = []
        self._blurred = []

    def _note_stalls(self, gaps: tuple[Ints, ...], count: Ints, starts: Ints) -> None:
        """``gaps``: as they were read, at least and at most."""
        several = count > 1
        stalls = np.full(len(count), np.nan)
        for place, column in enumerate(self._stalls.values()):
            if several.any() and (place == 0 or gaps[place] is not gaps[0]):
                stalls[several] = np.maximum.reduceat(gaps[place], starts[several]) / 1e6
            column.extend(stalls)


# -- of a file -------------------------------------------------------------------------------------


def read_columns(
    path: Path, reader: ReadingPace | None = None
) -> tuple[RequestColumns, UnreadLines]:
    """(the columns of this file's records, its unreadable lines). Raises OSError. ``reader``: the
    reading pace; None: the pace in the run.json beside the file."""
    reader = reader or load_reading_pace(path.parent)
    files = list_record_parts(path.parent) if path.name == RECORDS else []
    if files:
        with suppress(StaleParts):
            return _join(read_part_files(path, files, reader))
    spans = list(split_file(path.stat().st_size if path.exists() else 0))
    with ExitStack() as stack:
        others = [stack.enter_context(_reader(path, *span, reader)) for span in spans[1:]]
        parts = [read_file_part(path, *spans[0], reader)]
        for span, other in zip(spans[1:], others, strict=True):
            parts.append(other() or read_file_part(path, *span, reader))
    return _join(parts)


def _join(parts: Sequence[PartColumns]) -> PartColumns:
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


def read_file_part(path: Path, begin: int, end: int, reader: ReadingPace = READER) -> PartColumns:
    file = RecordFile(path, begin, end, lines_only=True)
    return collect_columns(file, reader), file.unread


class StaleParts(ValueError):
    """Parts that do not have the same records as the lines beside them, or are damaged."""


def read_part_files(path: Path, files: Sequence[Path], reader: ReadingPace) -> list[PartColumns]:
    """The columns of the parts of a run, and of the later lines of its profile_export.jsonl,
    ``path``. Raises StaleParts where its lines are to be read instead."""
    alone = stand_alone(path.parent)
    count = max(1, min(usable_cores(), PROCESSES, len(files) // PART_FILES))
    ahead = PART_FILES if count > 1 else 0  # this process reads while the others start
    ends = [0, *(ahead + (len(files) - ahead) * i // count for i in range(1, count + 1))]
    groups = [files[begin:end] for begin, end in pairwise(ends)]
    lasts = [number == count for number in range(1, count + 1)]
    with ExitStack() as stack:
        others = [
            stack.enter_context(_start_reader(send_parts, path, alone, last, *group, reader=reader))
            for group, last in zip(groups[1:], lasts[1:], strict=True)
        ]
        found = [read_parts(path, groups[0], reader, alone=alone, last=lasts[0])]
        for group, last, other in zip(groups[1:], lasts[1:], others, strict=True):
            found.append(other() or read_parts(path, group, reader, alone=alone, last=last))
    end = 0
    for _, (group_begin, group_end) in found:
        if group_begin != end:
            raise StaleParts("lines between two parts are in none")
        end = group_end
    return [columns for columns, _ in found]


def read_parts(
    path: Path, files: Sequence[Path], reader: ReadingPace, *, alone: bool, last: bool
) -> tuple[PartColumns, tuple[int, int]]:
    """(their columns; the bytes in profile_export.jsonl, ``path``, with the same records). ``last``:
    the later lines of it follow. Raises StaleParts, unless the parts stand ``alone``."""
    collector = ColumnCollector(reader)
    unread = UnreadLines()
    begins, ends = [0], [0]
    for file in files:
        if file.suffix == LINES and file.exists():  # else it has just become a part
            lines = RecordFile(file)
            collector.add_records(lines)
            unread += lines.unread
            continue
        try:
            part = RecordPart(file.with_suffix(WHOLE))
            if not alone:
                _require_same_lines(path, part, ends[1:])
            unread += collector.add_part(part)
        except (OSError, ValueError) as error:
            why = f"{file.name}: {getattr(error, 'strerror', None) or error}"
            if not alone:
                raise StaleParts(why) from None
            unread += UnreadLines(1, ((1, why),), 1)
        else:
            begins.append(part.lines_begin)
            ends.append(part.lines_end)
    if last:
        lines = RecordFile(path, ends[-1], lines_only=True)
        collector.add_records(lines)
        unread += lines.unread
    return (collector.result(), unread), (begins[:2][-1], ends[-1])


def _require_same_lines(path: Path, part: RecordPart, ends: Sequence[int]) -> None:
    """The last line of a part is at its place, so no line before it became longer or shorter.
    ``ends``: of the parts before."""
    if ends and part.lines_begin != ends[-1]:
        raise StaleParts("lines between two parts are in none")
    if not has_same_last_line(path, part):
        raise StaleParts("the line of its last record is another one")


def _reader(
    path: Path, begin: int, end: int, reader: ReadingPace
) -> AbstractContextManager[Callable[[], Any]]:
    return _start_reader(send_file_part, path, begin, end, reader=reader)


@contextmanager
def _start_reader(
    send: Callable[[], None], *words: object, reader: ReadingPace
) -> Iterator[Callable[[], Any]]:
    """A fresh process that reads a part; a fork would carry along this process's memory. The
    function waits for what it sends. None: it failed, whatever the reason. The part can be read
    here."""
    script = PART_READER.format(send.__name__)
    command = [sys.executable, "-c", script, *map(str, reader), *map(str, words)]
    file = open_unnamed()  # its columns stay in it

    def receive() -> Any:
        process.wait()
        try:
            return receive_with_columns(file)
        except Exception:  # of half a pickle anything can come
            return None

    with subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL) as process:
        yield receive


def _read_arguments() -> tuple[ReadingPace, list[str]]:
    count = len(ReadingPace._fields)
    return ReadingPace(*map(float, sys.argv[1 : count + 1])), sys.argv[count + 1 :]


def send_file_part() -> None:
    """Read lines as the arguments name them, and send the columns to stdout."""
    reader, (path, begin, end) = _read_arguments()
    part = read_file_part(Path(path), int(begin), int(end), reader)
    send_with_columns(part, sys.stdout.buffer)


def send_parts() -> None:
    """Read parts as the arguments name them, and send the columns to stdout."""
    reader, (path, alone, last, *files) = _read_arguments()
    found = read_parts(
        Path(path), [*map(Path, files)], reader, alone=alone == str(True), last=last == str(True)
    )
    send_with_columns(found, sys.stdout.buffer)
