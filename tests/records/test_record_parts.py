"""A part has exactly the records that were written into it, for this program and for others."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.random_records import random_records, without_surrogates
from support.records import answered, failed

from locust_llm.records import parquet_columns, record_parts
from locust_llm.records.record import Record
from locust_llm.records.record_parts import (
    FIELD_COLUMNS,
    RecordPart,
    WaitingRows,
    list_record_parts,
    name_part,
    write_part,
)


def write(path: Path, records: Sequence[Record]) -> RecordPart:
    rows = WaitingRows()
    for record in records:
        rows.add(record)
    write_part(path, rows, (3, 70), lambda: None)
    return RecordPart(path)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(random_records(), min_size=1, max_size=8))
def test_records_are_the_same_after_a_part(tmp_path: Path, records: list[Record]) -> None:
    part = write(tmp_path / "part.parquet", records)
    expected = [without_surrogates(record) for record in records]
    assert list(part.records()) == expected
    assert (part.rows, part.lines_begin, part.lines_end) == (len(records), 3, 70)
    assert list(part.records(range(0, len(records), 2))) == expected[::2]


def test_fields_that_are_not_needed_have_their_defaults(tmp_path: Path) -> None:
    """Those without a default are always read."""
    part = write(tmp_path / "part.parquet", [answered(10, 30, id="a", user=7, model="m", turn=2)])
    (record,) = part.records([0], needed=["chunk_us", "turn"])
    assert (record.id, record.chunk_us, record.turn) == ("a", (10_000, 30_000), 2)
    assert (record.user, record.model, record.sent_at) == (0, "", None)


def test_some_rows_are_read_from_their_pages_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three lists a page. The second page is damaged, and the rows of the others do not need it."""
    for module in (parquet_columns, record_parts):
        monkeypatch.setattr(module, "LIST_PAGE_ROWS", 3)
    records = [answered(10 + i, 30 + 2 * i, id=f"r{i}") for i in range(8)]
    path = tmp_path / "part.parquet"
    part = write(path, records)
    assert list(part.records([1, 2, 3, 7])) == [records[row] for row in (1, 2, 3, 7)]
    assert part.ended_at == [record.closed_unix_s for record in records]
    second = part.table._pages["chunk_us_deltas"][1]
    data = bytearray(path.read_bytes())
    data[second + 20 : second + 40] = bytes(20)
    path.write_bytes(data)
    assert list(RecordPart(path).records([0, 6])) == [records[0], records[6]]
    with pytest.raises(ValueError, match="chunk_us_deltas is damaged"):
        next(RecordPart(path).records())
    with pytest.raises(ValueError, match="chunk_us_deltas is damaged"):
        next(RecordPart(path).records([4]))


def test_each_field_of_a_record_has_a_column() -> None:
    """One declaration: the fields of ``Record``."""
    assert {column.field for column in FIELD_COLUMNS} == set(Record.__struct_fields__)
    assert len({column.name for column in FIELD_COLUMNS}) == len(FIELD_COLUMNS)


def test_other_programs_see_times_counts_and_texts(tmp_path: Path) -> None:
    write(
        tmp_path / "part.parquet",
        [
            answered(200, 250, 300, id="a", output_tokens=3),
            failed("refused", sent_at=None, error="no", id="b", merged=()),
            answered(10, id="c", chunk_us=(7, 2**40), merged=((1, 9),)),
        ],
    )
    table = pq.read_table(tmp_path / "part.parquet")
    column = {name: table.column(name).to_pylist() for name in table.column_names}
    assert column["id"] == ["a", "b", "c"]
    assert column["message"] == ["", "no", ""]
    assert column["sent_at"] == [10.0, None, 10.0]
    assert column["output_tokens"][0] == 3
    assert column["chunk_us_deltas"] == [[200_000, 50_000, 50_000], [], [7, 2**40 - 7]]
    assert column["merged"] == [None, None, "[[1,9]]"]


def test_no_column_holds_what_is_no_number(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="retry_after_s"):
        write(tmp_path / "part.parquet", [failed(retry_after_s=float("inf"))])
    assert list(tmp_path.iterdir()) == []


def test_a_part_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    rows = WaitingRows()
    rows.add(answered(1, 2))
    steps = 0

    def fail_later() -> None:
        nonlocal steps
        steps += 1
        if steps == 5:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_part(tmp_path / "part.parquet", rows, (0, 0), fail_later)
    assert list(tmp_path.iterdir()) == []


def test_lines_count_until_their_part_is_whole(tmp_path: Path) -> None:
    first, second = name_part(tmp_path, 1), name_part(tmp_path, 2)
    assert list_record_parts(tmp_path) == []
    first.parent.mkdir()
    for path in (first, first.with_suffix(".jsonl"), second.with_suffix(".jsonl")):
        path.touch()
    second.with_suffix(".tmp").touch()
    assert list_record_parts(tmp_path) == [first, second.with_suffix(".jsonl")]
