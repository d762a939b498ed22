"""Part values: the fields of a part of records as numpy columns, and the durations of its requests,
without a ``Record`` of each row.

The formulas are those of records/ttft_itl_latency.py for plain requests, with arrays in place of
numbers. Rows that are not plain (``PLAIN``) are computed by ``Record`` itself, and so is a whole
part where a column has no formula here: a new column is right without one, and slow.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec
import numpy as np

from locust_llm.records.outcomes import OK, RETRIED
from locust_llm.records.parquet_columns import ParquetColumn
from locust_llm.records.profile_export_jsonl import (
    CLOCK_SLACK_S,
    MAX_REQUEST_S,
    MAX_UNIX_S,
    OUTCOMES,
    PHASES,
    find_contradiction,
)
from locust_llm.records.record import Record
from locust_llm.records.record_parts import FIELD_COLUMNS, RecordPart
from locust_llm.records.server_times import ServerTimes
from locust_llm.records.ttft_itl_latency import (
    AT_ONCE,
    NO_COUNT,
    NOT_STREAMED,
    ONE_CHUNK,
    ONE_TOKEN,
)
from locust_llm.report.array_types import Bools, Floats, Ints

from .fluidity_and_qoe import SEVERAL, list_token_runs
from .page_arrays import ARRAYS

Texts = tuple[Ints, Sequence[str]]
"""(for each row the place of its text, -1 for none; the texts)."""

PLAIN: Final = ("merged", "chunk_tokens", "rejected_counts", "lacks")
"""A plain request has none of these. Its answer is one choice without hidden tokens."""
CHUNKS: Final = "chunk_us"
_COLUMN_OF: Final = MappingProxyType({column.field: column for column in FIELD_COLUMNS})
_decode_server: Final = msgspec.json.Decoder(ServerTimes).decode


class PartValues:
    """The fields of a part. Raises ValueError for a damaged one."""

    def __init__(self, part: RecordPart) -> None:
        self._part = part
        self._there = frozenset(part.table.names)
        self._columns: dict[str, ParquetColumn] = {}
        self._numbers: dict[str, Floats] = {}
        self.rows = part.rows

    def has(self, field: str) -> bool:
        return field in _COLUMN_OF and _COLUMN_OF[field].name in self._there

    def _column(self, field: str) -> ParquetColumn:
        if field not in self._columns:
            name = _COLUMN_OF[field].name
            self._columns[field] = self._part.table.decode_column(name, ARRAYS)
        return self._columns[field]

    def present(self, field: str) -> Bools:
        """Whether a row has a value."""
        stored = self._column(field)
        if stored.present is None:
            return np.ones(self.rows, np.bool_)
        return np.frombuffer(stored.present, np.bool_)

    def number(self, field: str) -> Floats:
        """NaN where there is none."""
        if field not in self._numbers:
            self._numbers[field] = self._read_number(field)
        return self._numbers[field]

    def _read_number(self, field: str) -> Floats:
        stored = self._column(field)
        values = stored.values
        known = (
            np.frombuffer(values, np.uint8) if stored.kind == "flag" else np.asarray(values)
        ).astype(np.float64)
        if stored.present is None:
            return known
        numbers = np.full(self.rows, np.nan)
        numbers[np.frombuffer(stored.present, np.bool_)] = known
        return numbers

    def text(self, field: str) -> Texts:
        stored = self._column(field)
        codes = np.asarray(stored.values, np.int64)
        if stored.present is None:
            return codes, stored.labels
        which = np.full(self.rows, -1, np.int64)
        which[np.frombuffer(stored.present, np.bool_)] = codes
        return which, stored.labels

    def has_text(self, field: str, text: str) -> Bools:
        which, labels = self.text(field)
        place = labels.index(text) if text in labels else -2
        return np.asarray(which == place)

    @cached_property
    def counts(self) -> Ints:
        """The chunks of each request."""
        return np.asarray(self._chunks.lengths, np.int64)

    @cached_property
    def us(self) -> Ints:
        """The stamps of all chunks end to end, in microseconds after the send."""
        stamps = np.cumsum(self.deltas)
        before = np.concatenate([[0], stamps])[self._ends - self.counts]
        stamps -= np.repeat(before, self.counts)
        return stamps

    @property
    def deltas(self) -> Ints:
        return np.asarray(self._chunks.values, np.int64)

    @cached_property
    def _chunks(self) -> ParquetColumn:
        return self._column(CHUNKS)

    @cached_property
    def _ends(self) -> Ints:
        return np.cumsum(self.counts)

    @cached_property
    def first_us(self) -> Floats:
        return self.at_chunk(np.where(self.counts > 0, 0.0, np.nan))

    @cached_property
    def last_us(self) -> Floats:
        return self.at_chunk(np.where(self.counts > 0, self.counts - 1.0, np.nan))

    def at_chunk(self, index: Floats) -> Floats:
        """The stamp of one chunk of each request; NaN where the index is NaN."""
        known = ~np.isnan(index)
        stamps = np.full(self.rows, np.nan)
        begins = self._ends - self.counts
        stamps[known] = self.us[begins[known] + index[known].astype(np.int64)]
        return stamps

    @cached_property
    def tokens_later(self) -> Floats:
        """Of plain requests."""
        return np.nan_to_num(self.number("output_tokens")) - self.number("first_chunk_tokens")

    @cached_property
    def plain(self) -> Bools:
        """The formulas below hold for a row."""
        plain = (self.number("hidden_tokens") == 0) & (self.number("choices") == 1)
        for field in PLAIN:
            plain &= ~self.present(field)
        return np.asarray(plain)

    def is_sound(self) -> bool:
        """Whether no plain request contradicts itself, as in ``find_contradiction``."""
        asked_at = self.number("asked_at")
        sent_at = self.number("sent_at")
        took_s = self.number("closed_at") - asked_at
        index = self.number("first_output")
        apart_s = [
            np.abs(self.number(field) - asked_at)
            for field in ("due_at", "sent_at", "admitted_at", "headers_at", "freed_at")
        ]
        wrong = (
            (took_s < -CLOCK_SLACK_S)
            | (took_s > MAX_REQUEST_S)
            | (np.abs(asked_at + self.number("clock_offset_s")) > MAX_UNIX_S)
            | (np.fmax.reduce(apart_s) > MAX_REQUEST_S)
            | (index >= self.counts)
            | ((self.counts > 0) & np.isnan(sent_at))
            | (self.last_us > MAX_REQUEST_S * 1e6)
        )
        known = set(self.text("outcome")[1]) <= OUTCOMES and set(self.text("phase")[1]) <= PHASES
        return known and not bool(wrong.any()) and not bool((self.deltas < 0).any())


# -- the formulas of plain requests ----------------------------------------------------------------


def _find_no_itl(values: PartValues) -> Texts:
    chunks = values.counts
    reasons = ("", NOT_STREAMED, NO_COUNT, ONE_CHUNK, AT_ONCE, ONE_TOKEN)
    which = np.select(
        [
            chunks == 0,
            np.isnan(values.number("output_tokens")),
            chunks == 1,
            values.first_us == values.last_us,
            values.tokens_later <= 0,
        ],
        [1, 2, 3, 4, 5],
    )
    return which, reasons


def _measure_itl(values: PartValues) -> Floats:
    which, _ = _find_no_itl(values)
    has_one = which == 0
    itl_s = np.full(values.rows, np.nan)
    span_us = (values.last_us - values.first_us)[has_one]
    itl_s[has_one] = span_us / 1e6 / values.tokens_later[has_one]
    return itl_s


def _measure_latency(values: PartValues) -> Floats:
    whole = (values.number("streamed") == 0) & values.has_text("outcome", OK)
    took_s = values.number("closed_at") - values.number("sent_at")
    without = np.where(whole, took_s, np.nan)
    return np.where(values.counts > 0, values.last_us / 1e6, without)


def _measure_send_delay(values: PartValues) -> Floats:
    reconnect_s = np.nan_to_num(values.number("reconnect_s"))
    delay_s = values.number("sent_at") - values.number("admitted_at") - reconnect_s
    return np.where(values.number("resent") > 0, np.nan, np.maximum(delay_s, 0.0))


def _measure_cycle(values: PartValues) -> Floats:
    before_us = np.nan_to_num(values.number("turnaround_us")) + np.nan_to_num(
        values.number("paused_us")
    )
    again = values.number("attempt") > 1
    began_at = np.where(again, values.number("due_at"), values.number("asked_at"))
    return values.number("closed_at") - began_at + before_us / 1e6


def _count_tokens_per_chunk(values: PartValues) -> Floats:
    counted = (values.counts > 0) & values.has_text("tokens_from", "usage")
    tokens = values.number("output_tokens") - values.has_text("finish_reason", "stop")
    return np.where(counted, tokens / np.maximum(values.counts, 1), np.nan)


def _measure_ttft(values: PartValues) -> Floats:
    return values.first_us / 1e6


NUMBER_FORMULAS: Final[Mapping[str, Callable[[PartValues], Floats]]] = MappingProxyType(
    {
        "ttft_s": _measure_ttft,
        "ttft_soonest_s": _measure_ttft,
        "ttfo_s": lambda values: values.at_chunk(values.number("first_output")) / 1e6,
        "ttft_from_due_s": lambda values: (
            values.number("sent_at") - values.number("due_at") + _measure_ttft(values)
        ),
        "itl_s": _measure_itl,
        "latency_s": _measure_latency,
        "latency_soonest_s": _measure_latency,
        "gate_wait_s": lambda values: values.number("admitted_at") - values.number("asked_at"),
        "late_s": lambda values: values.number("sent_at") - values.number("due_at"),
        "send_delay_s": _measure_send_delay,
        "turnaround_s": lambda values: values.number("turnaround_us") / 1e6,
        "cycle_s": _measure_cycle,
        "ttft_is_upper_bound": lambda values: np.zeros(values.rows),
        "tokens_per_chunk": _count_tokens_per_chunk,
        "chunks_counted": lambda values: np.zeros(values.rows),
    }
)
TEXT_FORMULAS: Final[Mapping[str, Callable[[PartValues], Texts]]] = MappingProxyType(
    {
        "no_itl": _find_no_itl,
        "rejected": lambda values: (np.zeros(values.rows, np.int64), [""]),
    }
)


# -- a block of rows -------------------------------------------------------------------------------


class RowBlock(NamedTuple):
    """What ``load_records`` keeps of many records at once. Attempts that were tried again are left
    out."""

    numbers: Mapping[str, Floats]
    texts: Mapping[str, Texts]
    us: Ints
    counts: Ints
    shared: Ints
    """``Record.shared`` of each request."""
    phases: Sequence[str]
    """Empty where the gaps of a request do not count."""
    untimed: Sequence[int]
    """The rows whose stamps do not show when the tokens came."""
    tokens: Sequence[tuple[int, Sequence[tuple[float, int]]]]
    """(row, runs) as in ``list_token_runs``."""
    merged: Sequence[tuple[int, Record]]
    """The rows with merged chunks."""
    server: Sequence[tuple[int, ServerTimes]]


def read_row_block(
    part: RecordPart, numbers: Sequence[str], texts: Sequence[str]
) -> RowBlock | None:
    """The columns of a part, bit for bit as of its records. None: they are to be read one by one,
    as something is unusual in this part. Raises ValueError for a damaged part."""
    values = PartValues(part)
    known = all(map(values.has, (column.field for column in FIELD_COLUMNS)))
    computed = {*NUMBER_FORMULAS, *TEXT_FORMULAS}
    if not known or not all(name in computed or values.has(name) for name in (*numbers, *texts)):
        return None
    if not values.is_sound() or values.present("lacks").any():
        return None
    unusual = np.flatnonzero(~values.plain)
    records = list(part.records(unusual.tolist())) if len(unusual) else []
    if any(map(find_contradiction, records)):
        return None
    columns = {name: NUMBER_FORMULAS.get(name, _field_of(name))(values) for name in numbers}
    labels = {name: _read_text(values, name) for name in texts}
    for name in numbers:
        if records and name in NUMBER_FORMULAS:
            columns[name][unusual] = np.array([*map(attrgetter(name), records)], np.float64)
    for name in texts:
        if records and name in TEXT_FORMULAS:
            labels[name] = _replace_texts(*labels[name], unusual, [*map(attrgetter(name), records)])
    return _keep_final(
        _make_block(values, columns, labels, dict(zip(unusual.tolist(), records, strict=True))),
        values,
    )


def _field_of(name: str) -> Callable[[PartValues], Floats]:
    return lambda values: values.number(name)


def _read_text(values: PartValues, name: str) -> Texts:
    return TEXT_FORMULAS[name](values) if name in TEXT_FORMULAS else values.text(name)


def _replace_texts(which: Ints, labels: Sequence[str], rows: Ints, texts: Sequence[str]) -> Texts:
    known = {label: place for place, label in enumerate(labels)}
    which = which.copy()
    which[rows] = [known.setdefault(text, len(known)) for text in texts]
    return which, list(known)


def _make_block(
    values: PartValues,
    columns: Mapping[str, Floats],
    labels: Mapping[str, Texts],
    unusual: Mapping[int, Record],
) -> RowBlock:
    counts = values.counts
    choices = values.number("choices")
    at_once = (counts > 1) & (values.first_us == values.last_us)
    shared = np.zeros(values.rows, np.int64)
    merged = []
    runs: dict[int, Sequence[tuple[float, int]]] = {}
    for row, record in unusual.items():
        if record.merged:
            shared[row] = record.shared
            merged.append((row, record))
        runs[row] = list_token_runs(record)
    means = _count_tokens_per_chunk(values)
    several = values.plain & (means > SEVERAL) & (values.number("output_tokens") > SEVERAL * counts)
    for row in np.flatnonzero(several).tolist():
        runs[row] = ((float(means[row]), int(counts[row])),)
    which, phases = values.text("phase")
    counted = (counts > 0) & values.has_text("outcome", OK)
    of_server, server = values.text("server")
    return RowBlock(
        numbers=columns,
        texts=labels,
        us=values.us,
        counts=counts,
        shared=shared,
        phases=np.where(counted, np.array(phases, np.object_)[which], "").tolist(),
        untimed=np.flatnonzero((choices != 1) | at_once).tolist(),
        tokens=sorted((row, pairs) for row, pairs in runs.items() if pairs),
        merged=merged,
        server=[
            (row, _decode_server(server[of_server[row]]))
            for row in np.flatnonzero(of_server >= 0).tolist()
        ],
    )


def _keep_final(block: RowBlock, values: PartValues) -> RowBlock:
    """The block without attempts that were tried again."""
    keep = ~values.has_text("outcome", RETRIED)
    if keep.all():
        return block
    rows = np.flatnonzero(keep).tolist()
    place = dict(zip(rows, range(len(rows)), strict=True))
    return RowBlock(
        numbers={name: column[keep] for name, column in block.numbers.items()},
        texts={name: (which[keep], labels) for name, (which, labels) in block.texts.items()},
        us=block.us[np.repeat(keep, block.counts)],
        counts=block.counts[keep],
        shared=block.shared[keep],
        phases=[block.phases[row] for row in rows],
        untimed=[place[row] for row in block.untimed if row in place],
        tokens=[(place[row], runs) for row, runs in block.tokens if row in place],
        merged=[(place[row], record) for row, record in block.merged if row in place],
        server=[(place[row], times) for row, times in block.server if row in place],
    )
