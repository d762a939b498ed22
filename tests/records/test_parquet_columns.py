"""Columns are the same after a file, and another program reads the same from it."""

import io
from array import array
from collections.abc import Callable
from itertools import islice
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from locust_llm.records.parquet_columns import ParquetColumn, ParquetTable, format_parquet

KINDS = st.sampled_from(["double", "int", "flag", "text", "list"])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "double": st.floats(allow_nan=False),
    "int": st.integers(-(2**63), 2**63 - 1),
    "flag": st.integers(0, 1),
    "text": st.text(st.characters(codec="utf-8"), max_size=5),
    "small": st.integers(0, 2**31 - 1),
    "list": st.integers(-5, 2**40),
}


@st.composite
def columns(draw: Callable[..., Any], rows: int) -> ParquetColumn:
    kind = draw(KINDS)
    if kind == "list":
        lengths = draw(st.lists(st.integers(0, 9), min_size=rows, max_size=rows))
        of = VALUES[draw(st.sampled_from(["list", "small"]))]
        total = sum(lengths)
        values = array("q", draw(st.lists(of, min_size=total, max_size=total)))
        return ParquetColumn("c", "list", values, None, lengths)
    present = None
    if draw(st.booleans()):
        present = bytes(draw(st.lists(st.integers(0, 1), min_size=rows, max_size=rows)))
    count = rows if present is None else present.count(1)
    found = draw(st.lists(VALUES[kind], min_size=count, max_size=count))
    if kind == "text":
        labels = list(dict.fromkeys(found))
        codes = array("i", map(labels.index, found))
        return ParquetColumn("c", "text", codes, present, (), labels)
    packed = bytes(found) if kind == "flag" else array("d" if kind == "double" else "q", found)
    return ParquetColumn("c", kind, packed, present)


def list_rows(column: ParquetColumn, rows: int) -> list[Any]:
    """The column as a list with None for what is missing."""
    values = iter(column.values)
    if column.kind == "list":
        return [list(islice(values, length)) for length in column.lengths]
    if column.kind == "text":
        values = iter([column.labels[code] for code in column.values])
    if column.kind == "flag":
        values = map(bool, values)
    return [next(values) if there else None for there in column.present or b"\1" * rows]


def write(columns: list[ParquetColumn], rows: int) -> bytes:
    return b"".join(format_parquet(iter(columns), rows, {"made": "here"}))


@settings(max_examples=100)
@given(st.sampled_from([1, 3, 8, 17, 300]).flatmap(lambda n: st.tuples(st.just(n), columns(n))))
def test_a_column_is_the_same_after_a_file(case: tuple[int, ParquetColumn]) -> None:
    rows, column = case
    data = write([column], rows)
    table = ParquetTable(data)
    assert (table.rows, table.metadata, [*table.names]) == (rows, {"made": "here"}, ["c"])
    assert list_rows(table.column("c"), rows) == list_rows(column, rows)
    theirs = pq.read_table(io.BytesIO(data)).column("c").to_pylist()
    assert theirs == list_rows(column, rows)


def test_many_texts_need_wider_codes() -> None:
    for count in (1, 2, 256, 257, 70_000):
        labels = [str(i) for i in range(count)]
        column = ParquetColumn("c", "text", array("i", [*range(count), 0]), None, (), labels)
        data = write([column], count + 1)
        assert list_rows(ParquetTable(data).column("c"), count + 1) == [*labels, "0"]
        assert pq.read_table(io.BytesIO(data)).column("c").to_pylist() == [*labels, "0"]


def test_another_file_is_refused() -> None:
    file = io.BytesIO()
    pq.write_table(pq.read_table(io.BytesIO(write([], 0))), file)
    for data in (b"", b"PAR1", b"x" * 100, file.getvalue()):
        with pytest.raises(ValueError, match=r"not a whole Parquet file|another program"):
            ParquetTable(data)


WHOLE = write([ParquetColumn("c", "double", array("d", [1.5, 2.5, 3.5] * 50))], 150)


@settings(max_examples=300)
@given(st.integers(4, len(WHOLE) - 1), st.integers(1, 255))
def test_damage_is_found(at: int, change: int) -> None:
    """Of the values; the rest of the metadata is not what a reader of ours uses."""
    data = bytearray(WHOLE)
    data[at] ^= change
    try:
        values = list(ParquetTable(bytes(data)).column("c").values)
    except (ValueError, KeyError):
        return
    assert values == [1.5, 2.5, 3.5] * 50
