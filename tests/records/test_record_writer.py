"""What is written is read again: while it is written, after a kill at any byte, and after a full
disk."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.records import answered, failed

from locust_llm.records import record_parts
from locust_llm.records.profile_export_jsonl import RecordFile, encode_record, format_record_line
from locust_llm.records.record import Record
from locust_llm.records.record_parts import PARTS, RecordPart, list_record_parts
from locust_llm.records.record_writer import RecordWriter, remove_records
from locust_llm.records.run_facts import RECORDS

WRITTEN = [
    answered(10 + i, 30 + i, id=f"r{i}") if i % 5 else failed("reset", id=f"r{i}")
    for i in range(25)
]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_parts, "PART_ROWS", 10)


def write(folder: Path, records: Sequence[Record], *, jsonl: bool) -> RecordWriter:
    writer = RecordWriter(folder, jsonl=jsonl)
    for record in records:
        writer.write(encode_record(record))
        writer.pack_rows()
    assert writer.flush()
    return writer


def read(folder: Path) -> list[Record]:
    return list(RecordFile(folder / RECORDS))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / PARTS).iterdir())


def test_lines_stay_beside_the_parts(tmp_path: Path) -> None:
    writer = write(tmp_path, WRITTEN, jsonl=True)
    assert names(tmp_path) == ["000001.parquet", "000002.parquet"]
    writer.pack_rows(last=True)
    assert names(tmp_path) == ["000001.parquet", "000002.parquet", "000003.parquet"]
    assert read(tmp_path) == WRITTEN
    lines = [format_record_line(record) + b"\n" for record in WRITTEN]
    assert (tmp_path / RECORDS).read_bytes() == b"".join(lines)
    parts = [*map(RecordPart, list_record_parts(tmp_path))]
    assert [record for part in parts for record in part.records()] == WRITTEN
    ends = [len(b"".join(lines[:count])) for count in (0, 10, 20, 25)]
    assert [(part.lines_begin, part.lines_end) for part in parts] == [*pairwise(ends)]


def test_a_small_run_has_only_lines(tmp_path: Path) -> None:
    write(tmp_path, WRITTEN[:9], jsonl=True).pack_rows(last=True)
    assert [path.name for path in tmp_path.iterdir()] == [RECORDS]


def test_without_lines_all_records_are_in_parts_at_the_end(tmp_path: Path) -> None:
    writer = write(tmp_path, WRITTEN, jsonl=False)
    assert names(tmp_path) == ["000001.parquet", "000002.parquet", "000003.jsonl"]
    assert read(tmp_path) == WRITTEN
    writer.pack_rows(last=True)
    writer.close()
    assert (tmp_path / RECORDS).read_bytes() == b""
    assert read(tmp_path) == WRITTEN
    file = RecordFile(tmp_path / RECORDS, sound=True)
    assert list(file.read_ids()) == [record.id for record in WRITTEN]
    assert list(file.since(min(record.closed_unix_s for record in WRITTEN))) == WRITTEN
    assert list(file.since(WRITTEN[0].closed_unix_s + 1e6)) == []
    half = list(file.evenly(0.5, 6))
    assert 10 <= len(half) <= 15
    assert [record for record in WRITTEN if record in half] == half
    (tmp_path / RECORDS).unlink()
    assert list(RecordFile(tmp_path / RECORDS).evenly(0.5, 6)) == half


def test_since_begins_within_a_part(tmp_path: Path) -> None:
    """One ends each second. Parts have ten: the moments are at the begin of one, within one, and
    behind the last; the lines of no part come too."""
    records = [answered(10, id=f"r{i}", closed_at=100.0 + i) for i in range(25)]
    write(tmp_path, records, jsonl=False).close()
    file = RecordFile(tmp_path / RECORDS)
    begin = records[0].closed_unix_s
    for first in (0, 1, 10, 13, 19):
        assert list(file.since(begin + first)) == records[first:]
    assert list(file.since(begin + 20)) == records[20:]
    (tmp_path / PARTS / "000001.parquet").write_bytes(b"PAR1")
    assert list(RecordFile(tmp_path / RECORDS).since(begin + 13)) == records[13:]


def test_since_with_parts_that_are_not_in_order(tmp_path: Path) -> None:
    """The first part has a request that ended a minute after the last one of the second."""
    ends = [*range(9), 80, *range(10, 20), *range(20, 30)]
    records = [answered(10, id=f"r{i}", closed_at=100.0 + end) for i, end in enumerate(ends)]
    write(tmp_path, records, jsonl=False).close()
    begin = records[0].closed_unix_s
    for first in (9, 20, 22, 50):
        found = RecordFile(tmp_path / RECORDS).since(begin + first)
        assert [record.closed_at - 100 for record in found] == [end for end in ends if end >= first]


@pytest.mark.parametrize("jsonl", [True, False])
def test_records_may_come_while_a_part_is_written(tmp_path: Path, jsonl: bool) -> None:
    writer = RecordWriter(tmp_path, jsonl=jsonl)
    for record in WRITTEN[:10]:
        writer.write(encode_record(record))
    rest = iter(WRITTEN[10:])

    def go_on() -> None:
        for record in rest:
            writer.write(encode_record(record))
            writer.pack_rows()  # one at a time
            break

    writer.pack_rows(go_on)
    writer.flush()
    assert read(tmp_path) == WRITTEN
    writer.pack_rows(last=True)
    writer.close()
    parts = map(RecordPart, list_record_parts(tmp_path))
    assert [record for part in parts for record in part.records()] == WRITTEN


def cut_last_file(folder: Path, left: Callable[[int], int]) -> Path:
    last = folder / PARTS / "000003.jsonl"
    data = last.read_bytes()
    last.write_bytes(data[: left(len(data))])
    return last


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(share=st.floats(0, 1))
def test_after_a_kill_every_whole_record_is_read(tmp_path: Path, share: float) -> None:
    """A record is whole when the newline behind its line is on the disk, in a part or not."""
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    write(tmp_path, WRITTEN, jsonl=False).close()
    last = cut_last_file(tmp_path, lambda size: int(share * size))
    whole = last.read_bytes().count(b"\n")
    file = RecordFile(tmp_path / RECORDS)
    found = list(file)
    assert found[: 20 + whole] == WRITTEN[: 20 + whole]
    assert len(found) - 20 - whole <= 1  # a last line may lack its newline only
    (tmp_path / PARTS / "000004.tmp").write_bytes(b"PAR1")  # killed while a part was written
    assert list(RecordFile(tmp_path / RECORDS)) == found


def test_a_damaged_part_is_counted(tmp_path: Path) -> None:
    write(tmp_path, WRITTEN, jsonl=False).close()
    part = tmp_path / PARTS / "000002.parquet"
    part.write_bytes(part.read_bytes()[:-9])
    file = RecordFile(tmp_path / RECORDS)
    assert list(file) == [*WRITTEN[:10], *WRITTEN[20:]]
    assert file.unread.count == 1
    assert "000002.parquet: not a whole Parquet file" in file.unread.reasons[0]


@pytest.mark.parametrize("jsonl", [True, False])
def test_a_part_that_cannot_be_written_leaves_its_lines(
    tmp_path: Path, jsonl: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_disk(*words: object) -> Iterator[bytes]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record_parts, "format_parquet", fill_disk)
    writer = write(tmp_path, WRITTEN, jsonl=jsonl)
    assert writer.without_parts == "No space left on device"
    writer.pack_rows(last=True)
    assert read(tmp_path) == WRITTEN


def test_records_can_be_removed(tmp_path: Path) -> None:
    write(tmp_path, WRITTEN, jsonl=False).close()
    remove_records(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_deleted_folder_is_told(tmp_path: Path) -> None:
    kept, lost = tmp_path / "kept", tmp_path / "lost"
    for folder in (kept, lost):
        folder.mkdir()
    writer = write(kept, WRITTEN[:5], jsonl=False)
    (kept / PARTS / "000001.jsonl").unlink()
    assert writer.restore()
    assert read(kept) == WRITTEN[:5]
    writer = write(lost, WRITTEN, jsonl=False)
    shutil.rmtree(lost)
    with pytest.raises(OSError, match="only those since part 2 are left"):
        writer.restore()
