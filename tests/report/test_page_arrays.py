"""numpy decodes the pages of parts as the standard library does, and neither fails on any bytes."""

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from locust_llm.records.parquet_columns import (
    PageDecoder,
    ParquetColumn,
    ParquetTable,
    format_parquet,
)
from locust_llm.report.page_arrays import ARRAYS

STANDARD = PageDecoder()


@given(st.binary(max_size=20), st.integers(0, 200))
@example(b"\x05", 3)
def test_bits(data: bytes, count: int) -> None:
    bits = ARRAYS.unpack_bits(data, count)
    assert bits == STANDARD.unpack_bits(data, count)
    if (data, count) == (b"\x05", 3):
        assert bits == b"\1\0\1"


@given(st.sampled_from([("i", 4), ("q", 8), ("d", 8)]), st.binary(max_size=20))
def test_numbers(kind: tuple[str, int], digits: bytes) -> None:
    name, width = kind
    data = digits * width
    found = ARRAYS.join_bytes(data, name, width)
    assert found.tobytes() == STANDARD.join_bytes(data, name, width).tobytes()


def test_a_number() -> None:
    assert ARRAYS.join_bytes(b"\1\2\0\1\0\0\0\0", "i", 4).tolist() == [1, 258]


@given(st.lists(st.integers(0, 5), max_size=9))
@example([3, 0, 1])
def test_lists(lengths: list[int]) -> None:
    begins = b"".join(b"\0" + b"\1" * (length - 1) for length in lengths)
    filled = b"".join(b"\1" * length or b"\0" for length in lengths)
    assert list(STANDARD.measure_lists(begins, filled)) == lengths
    assert ARRAYS.measure_lists(begins, filled).tolist() == lengths


def write(column: ParquetColumn, rows: int) -> bytes:
    return b"".join(format_parquet(iter([column]), rows, {}))


FILES = [
    write(ParquetColumn("c", "list", array("q", range(900)), None, [3] * 300), 300),
    write(ParquetColumn("c", "list", array("q", [-1, 2**40]), None, [2, 0]), 2),
    write(ParquetColumn("c", "double", array("d", [1.5, 2.5]), b"\1\0\1"), 3),
    write(ParquetColumn("c", "flag", b"\1\0\1", None), 3),
    write(ParquetColumn("c", "text", array("i", [0, 1, 0]), None, (), ["a", "b"]), 3),
    write(ParquetColumn("c", "text", array("i", [0, 1]), b"\1\1\0", (), ["a", "b"]), 3),
]


def describe(decode: Callable[[], ParquetColumn]) -> Any:
    """Its values as lists. None: damage was found."""
    try:
        column = decode()
    except ValueError:
        return None
    numbers = np.asarray(column.values).tolist() if len(column.values) else []
    lengths = [*map(int, column.lengths)]
    return column.kind, repr(numbers), column.present, lengths, column.labels


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(FILES), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255))))
@example(FILES[0], [])
@example(FILES[1], [])
@example(FILES[2], [])
@example(FILES[3], [])
@example(FILES[4], [])
@example(FILES[5], [])
def test_columns_of_any_bytes(file: bytes, changes: list[tuple[int, int]]) -> None:
    data = bytearray(file)
    for at, byte in changes:
        data[at % len(data)] = byte
    try:
        table = ParquetTable(bytes(data))
    except ValueError:
        return
    if "c" not in table.names:
        return
    found = describe(lambda: table.decode_column("c", ARRAYS))
    assert found == describe(lambda: table.column("c"))
    assert changes or found is not None


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(FILES), st.integers(0, 10**6))
def test_a_file_that_is_cut_short(file: bytes, end: int) -> None:
    """The footer is at the end: without it no column is found."""
    try:
        ParquetTable(file[: end % len(file)])
    except ValueError:
        return
    raise AssertionError("a part of a file was taken for a whole one")
