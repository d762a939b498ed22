"""Columns in files hold what they were given, and reports made with them have the same bytes."""

import io
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.records import a_run, answered, failed

from locust_llm.records.profile_export_jsonl import encode_record
from locust_llm.records.record_writer import RecordWriter
from locust_llm.records.run_facts import write_run
from locust_llm.report import gate_occupancy, stored_columns
from locust_llm.report.stored_columns import (
    GrowingColumn,
    StoredColumn,
    open_unnamed,
    read_column,
    receive_with_columns,
    send_with_columns,
    store_column,
)
from locust_llm.report.write_report_files import remake_reports

RECORDS = (
    *(answered(100 + i, 140 + i, 150 + 2 * i, id=f"r{i}", output_tokens=4) for i in range(40)),
    *(failed("reset", error=f"reset after {i} bytes", id=f"f{i}") for i in range(3)),
    answered(200, 200, 260, id="merged", merged=((1, 150_000),)),
    answered(id="whole", streamed=False, chunk_us=()),
    answered(90, 120, id="counted", chunk_tokens=((3, 2),), output_tokens=6),
    answered(5, 900, 1500, id="late", admitted_at=10.5, limit=1),
    failed("cut", id="waiting", sent_at=None, closed_at=12.0),
)


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_columns, "STORED_BYTES", 1)


def grow(kind: str, *blocks: list[float]) -> GrowingColumn:
    column = GrowingColumn(kind)
    for block in blocks:
        column.extend(np.array(block))
    return column


def test_equal_values_take_the_memory_of_one() -> None:
    for value in (2.5, np.nan):
        found = read_column(grow("d", [value, value], [], [value]).result())
        np.testing.assert_array_equal(found, [value] * 3)
        assert found.strides == (0,)
    assert len(read_column(grow("d").result())) == 0


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("room", [0, 16, 40])
def test_a_column_goes_on_in_memory_where_the_disk_is_full(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block has 16 bytes. The file takes none, one or two of them."""

    class FullDisk(io.FileIO):
        def write(self, data: Any) -> int:
            if self.tell() + len(data) > room:
                raise OSError(28, "No space left on device")
            return super().write(data)

    monkeypatch.setattr(
        stored_columns, "open_unnamed", lambda: FullDisk(os.memfd_create("x"), "w+")
    )
    found = grow("d", [1, 2], [3, 4], [5, 6]).result()
    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found, [1, 2, 3, 4, 5, 6])


def test_values_that_differ_late_are_all_kept() -> None:
    found = grow("f", [2, 2], [2, np.nan], [7]).result()
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [2, 2, 2, np.nan, 7])


def test_many_values_are_in_a_file(stored: None) -> None:
    found = grow("i", [1, 1], [2], [3, 4]).result()
    assert isinstance(found, StoredColumn)
    assert len(found) == 5
    assert found.values.tolist() == [1, 1, 2, 3, 4]
    assert not found.values.flags.writeable


def test_sent_columns_stay_in_their_file(stored: None) -> None:
    columns = {"a": store_column(np.array([1.5, 2.5])), "b": store_column(np.array([3, 4]))}
    with open_unnamed() as file:
        send_with_columns({**columns, "c": "text"}, file)
        received = receive_with_columns(file)
        assert received["c"] == "text"
        assert [received[name].values.tolist() for name in "ab"] == [[1.5, 2.5], [3, 4]]


def test_what_was_sent_in_part_is_refused() -> None:
    with open_unnamed() as file:
        file.write(b"half")
        with pytest.raises(OSError, match="Invalid argument"):
            receive_with_columns(file)


def report(folder: Path) -> dict[str, bytes]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    writer = RecordWriter(folder, jsonl=True)
    for record in RECORDS:
        writer.write(encode_record(record))
    writer.flush()
    writer.close()
    write_run(folder, a_run(limits=((10.0, 1), (10.2, 2))))
    remake_reports(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_report_has_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With each column in a file, and three moments of the gate at a time."""
    expected = report(tmp_path / "run")
    monkeypatch.setattr(stored_columns, "STORED_BYTES", 1)
    monkeypatch.setattr(gate_occupancy, "BLOCK", 3)
    assert report(tmp_path / "run") == expected
