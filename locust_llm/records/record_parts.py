"""Record parts: the records of a run as Parquet files of some thousand rows, in the folder
``records`` of a run.

Why Parquet: pandas, DuckDB, Polars and Spark open the folder as one table, without this package; its
pages can be written with zlib and ``array`` alone; and numpy reads them without parsing. It needs a
footer, so a killed run would lose its last file: a part is written beside its lines of JSON, renamed
when it is whole, and only then counts. So the records of a run are its whole parts and the lines of
all later records, and these lines are flushed as ever.

The columns follow from the fields of ``Record``. The stamps of chunks are differences
(``chunk_us_deltas``): the time to the first chunk, and then the gaps. What is neither a number nor a
text is JSON.
"""

import os
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import accumulate, compress
from math import isfinite
from operator import add, attrgetter, sub
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import inspect

from locust_llm.files.json_file import decode_json_file
from locust_llm.files.regular_file import read_regular

from .outcomes import RETRIED
from .parquet_columns import (
    LIST_PAGE_ROWS,
    ColumnKind,
    ParquetColumn,
    ParquetTable,
    format_parquet,
)
from .record import Record
from .run_facts import RECORDS, RUN

PARTS: Final = "records"
"""The name of the folder of parts, in the folder of a run."""
WHOLE: Final = ".parquet"
LINES: Final = ".jsonl"
"""How the names of parts end, and of the lines that have become no part yet."""
PART_ROWS: Final = 1 << 12
PART_CHUNKS: Final = 1 << 19
"""A part is complete from so many rows on, or from so many chunks on."""
MAX_PART_BYTES: Final = 1 << 30
BATCH_ROWS: Final = 64
"""So many records are read at once."""
_TYPES: Final[Mapping[type, ColumnKind]] = MappingProxyType(
    {
        inspect.FloatType: "double",
        inspect.IntType: "int",
        inspect.BoolType: "flag",
        inspect.StrType: "text",
    }
)


class FieldColumn(NamedTuple):
    """How a field of ``Record`` becomes a column."""

    field: str
    name: str
    """Its name in files, as in profile_export.jsonl."""
    kind: ColumnKind
    optional: bool
    """A row may have no value: None, or of JSON the default."""
    decode: Callable[[str], Any] | None
    """Of JSON, its decoder."""
    default: Any


def _choose_column(field: inspect.Field) -> FieldColumn:
    of = field.type
    default = field.default
    optional = isinstance(of, inspect.UnionType)
    if isinstance(of, inspect.UnionType):
        of = next(one for one in of.types if not isinstance(one, inspect.NoneType))
    if (
        isinstance(of, inspect.VarTupleType)
        and isinstance(of.item_type, inspect.IntType)
        and not optional
    ):
        return FieldColumn(field.name, f"{field.encode_name}_deltas", "list", False, None, default)
    kind = _TYPES.get(type(of))
    if kind is not None:
        return FieldColumn(field.name, field.encode_name, kind, optional, None, default)
    annotation = Record.__annotations__[field.name]
    decode = msgspec.json.Decoder(annotation).decode
    return FieldColumn(field.name, field.encode_name, "text", True, decode, default)


def _list_fields() -> Sequence[inspect.Field]:
    described = inspect.type_info(Record)
    assert isinstance(described, inspect.StructType)
    return described.fields


FIELD_COLUMNS: Final = tuple(map(_choose_column, _list_fields()))
_SCALARS: Final = tuple(column for column in FIELD_COLUMNS if column.kind != "list")
_LISTS: Final = tuple(column for column in FIELD_COLUMNS if column.kind == "list")
_scalars_of: Final = attrgetter(*(column.field for column in _SCALARS))


# -- writing ---------------------------------------------------------------------------------------


class WaitingRows:
    """The records of the next part. No Python object is kept of a chunk."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []
        self._deltas = {column.name: array("q") for column in _LISTS}
        self._lengths = {column.name: array("i") for column in _LISTS}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def full(self) -> bool:
        return len(self._rows) >= PART_ROWS or any(
            len(deltas) >= PART_CHUNKS for deltas in self._deltas.values()
        )

    def add(self, record: Record) -> None:
        self._rows.append(_scalars_of(record))
        for column in _LISTS:
            stamps = getattr(record, column.field)
            self._deltas[column.name].fromlist(list(map(sub, stamps, (0, *stamps))))
            self._lengths[column.name].append(len(stamps))

    def columns(self) -> Iterator[ParquetColumn]:
        """Raises ValueError or OverflowError for values that no column holds."""
        for column, values in zip(_SCALARS, zip(*self._rows, strict=True), strict=True):
            yield _make_scalar_column(column, values)
        for column in _LISTS:
            name = column.name
            yield ParquetColumn(name, "list", self._deltas[name], None, self._lengths[name])


def _make_scalar_column(column: FieldColumn, values: Sequence[Any]) -> ParquetColumn:
    if column.decode is not None:
        default = column.default
        encode = msgspec.json.encode
        values = [None if value == default else encode(value).decode() for value in values]
    present: bytes | None = None
    if column.optional:
        absent = values.count(None)
        present = bytes(len(values))
        if absent < len(values):
            present = bytes([value is not None for value in values])
        values = list(compress(values, present))
    if column.kind == "text":
        codes = {value: code for code, value in enumerate(dict.fromkeys(values))}
        packed = array("i", list(map(codes.__getitem__, values)))
        return ParquetColumn(column.name, "text", packed, present, (), list(codes))
    if column.kind == "flag":
        return ParquetColumn(column.name, "flag", bytes(map(bool, values)), present)
    numbers: array[Any] = array("d" if column.kind == "double" else "q", values)
    if column.kind == "double" and not isfinite(sum(numbers)):
        raise ValueError(f"{column.name} has a value that is no number")
    return ParquetColumn(column.name, column.kind, numbers, present)


def write_part(
    path: Path, rows: WaitingRows, lines: tuple[int, int], pause: Callable[[], object]
) -> None:
    """Write a part, which is there as a whole or not at all. ``lines``: the bytes in
    profile_export.jsonl, from and to, that have the same records; (0, 0) where it has none of them.
    ``pause`` is called after each millisecond's work. Raises OSError, ValueError and
    OverflowError."""
    begin, end = lines
    metadata = {"lines_begin": str(begin), "lines_end": str(end)}
    path.parent.mkdir(exist_ok=True)
    draft = path.with_suffix(".tmp")
    try:
        with draft.open("wb") as file:
            for piece in format_parquet(rows.columns(), len(rows), metadata):
                file.write(piece)
                pause()
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


# -- reading ---------------------------------------------------------------------------------------


class RecordPart:
    """One part. Raises OSError, and ValueError for a damaged file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.table = ParquetTable(read_regular(path, MAX_PART_BYTES))
        self.rows = self.table.rows
        try:
            self.lines_begin = int(self.table.metadata["lines_begin"])
            self.lines_end = int(self.table.metadata["lines_end"])
        except KeyError as error:
            raise ValueError(f"its metadata lack {error}") from None
        if not 0 <= self.lines_begin <= self.lines_end:
            raise ValueError("its metadata contradict each other")

    def records(
        self, rows: Sequence[int] | None = None, needed: Collection[str] | None = None
    ) -> Iterator[Record]:
        """The records of some rows, by default of all. A field that this version does not know is
        left out, and one that the file does not have gets its default. So do all that are not
        ``needed``, where they have one. Raises ValueError; where all are read, before the first
        record."""
        chosen = range(self.rows) if rows is None else rows
        names = [*self.table.names]
        columns = [column for column in FIELD_COLUMNS if column.name in names]
        if needed is not None:
            columns = [
                column
                for column in columns
                if column.field in needed or column.default is msgspec.NODEFAULT
            ]
        readers = [
            self._make_stamps_reader(column.name, whole=rows is None)
            if column.kind == "list"
            else self._make_reader(column)
            for column in columns
        ]
        fields = [column.field for column in columns]
        for first in range(0, len(chosen), BATCH_ROWS):
            some = chosen[first : first + BATCH_ROWS]
            for row in zip(*(read(some) for read in readers), strict=True):
                yield Record(**dict(zip(fields, row, strict=True)))

    def read_ids(self) -> list[str]:
        """The ids of its requests, without attempts that were tried again. Raises ValueError."""
        ids = self.table.column("id")
        outcomes = self.table.column("outcome")
        return [
            ids.labels[place]
            for place, code in zip(ids.values, outcomes.values, strict=True)
            if outcomes.labels[code] != RETRIED
        ]

    @property
    def last_id(self) -> str:
        ids = self.table.column("id")
        return str(ids.labels[ids.values[-1]])

    @cached_property
    def ended_at(self) -> list[float]:
        """When each request ended, in Unix seconds. Raises ValueError."""
        closed, offset = map(self.table.column, ("closed_at", "clock_offset_s"))
        return list(map(add, closed.values, offset.values))

    def _make_reader(self, column: FieldColumn) -> Callable[[Sequence[int]], list[Any]]:
        """A function that reads the values of some rows."""
        stored = self.table.column(column.name)
        values: Sequence[Any] = stored.values
        present = stored.present
        absent = column.default if column.decode is not None else None
        if present is not None and not any(present):
            return lambda rows: [absent] * len(rows)
        before = None if present is None else list(accumulate(present, initial=0))

        def read(rows: Sequence[int]) -> list[Any]:
            places = rows
            if present is not None and before is not None:
                places = [before[row] for row in rows if present[row]]
            chosen = [values[place] for place in places]
            if stored.kind == "text":
                chosen = _read_labels(stored.labels, chosen, column.decode)
            elif stored.kind == "flag":
                chosen = [value > 0 for value in chosen]
            if present is None:
                return chosen
            following = iter(chosen)
            return [next(following) if present[row] else absent for row in rows]

        return read

    def _make_stamps_reader(
        self, name: str, *, whole: bool
    ) -> Callable[[Sequence[int]], list[tuple[int, ...]]]:
        """The same of a list of stamps. Its pages are read when their rows are; ``whole``: now."""
        pages: dict[int, tuple[list[int], Sequence[int]]] = {}

        def load(number: int) -> None:
            page = self.table.list_page(name, number)
            pages[number] = list(accumulate(page.lengths, initial=0)), page.values

        def read(rows: Sequence[int]) -> list[tuple[int, ...]]:
            stamps = []
            for row in rows:
                number, place = divmod(row, LIST_PAGE_ROWS)
                if number not in pages:
                    pages.clear()
                    load(number)
                ends, deltas = pages[number]
                stamps.append(tuple(accumulate(deltas[ends[place] : ends[place + 1]])))
            return stamps

        if whole:
            for number in range(-(-self.rows // LIST_PAGE_ROWS)):
                load(number)
        return read


def _read_labels(
    labels: Sequence[str], codes: Sequence[int], decode: Callable[[str], Any] | None
) -> list[Any]:
    if decode is None:
        return [labels[code] for code in codes]
    decoded = {code: decode(labels[code]) for code in set(codes)}
    return [decoded[code] for code in codes]


def name_part(folder: Path, number: int) -> Path:
    """The path of a part. Its lines have the same name with ``LINES``."""
    return folder / PARTS / f"{number:06}{WHOLE}"


def list_record_parts(folder: Path) -> list[Path]:
    """The parts of a run in order, and the files of lines that have become no part."""
    try:
        files = sorted((folder / PARTS).iterdir())
    except OSError:
        return []
    whole = {file.stem for file in files if file.suffix == WHOLE}
    return [
        file
        for file in files
        if file.suffix == WHOLE or (file.suffix == LINES and file.stem not in whole)
    ]


def count_record_bytes(folder: Path) -> int:
    """The bytes of profile_export.jsonl, and of the parts beside it. Raises OSError where there is
    no such file."""
    packed = sum(path.stat().st_size for path in list_record_parts(folder))
    return (folder / RECORDS).stat().st_size + packed


class _LineSettings(msgspec.Struct):
    jsonl: bool = False


class _LineRun(msgspec.Struct):
    settings: _LineSettings


class _LineFile(msgspec.Struct):
    run: _LineRun


def _wrote_lines(folder: Path) -> bool:
    """Whether a run has all its records in profile_export.jsonl, by its run.json."""
    with suppress(OSError, ValueError):
        settings = decode_json_file(folder / RUN, _LineFile).run.settings
        return settings.jsonl and (folder / RECORDS).stat().st_size > 0
    return False


def stand_alone(folder: Path) -> bool:
    """Whether the records of its parts are in no profile_export.jsonl. In the folder of a run that
    wrote its lines, such a part is of another run."""
    if _wrote_lines(folder):
        return False
    for path in list_record_parts(folder):
        if path.suffix == LINES:
            return True
        with suppress(OSError, ValueError):
            return not RecordPart(path).lines_end
    return False
