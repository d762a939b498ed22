"""The columns of a long file are the same, however many processes read it."""

import sys
from pathlib import Path

import pandas as pd
import pytest
from support.records import answered, failed

from locust_llm.records.profile_export_jsonl import RecordFile, format_record_line
from locust_llm.records.record import Record
from locust_llm.report import load_records
from locust_llm.report.load_records import collect_columns, join_columns

RECORDS: list[Record] = [
    *(
        answered(10.0 + i, 20.0 + 2 * i, name=f"n{i % 3}", model="a" if i < 9 else "b", id=str(i))
        for i in range(12)
    ),
    *(failed("reset", error=f"reset after {i} bytes", id=f"f{i}") for i in range(5)),
    answered(7, 9, phase="warmup"),
    failed("http_status", status=500, error="boom 7"),
    *(failed("reset", error=f"reset after {i} bytes", worker="w2") for i in range(5, 8)),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "records.jsonl"
    path.write_bytes(
        b"".join(format_record_line(record) + b"\n" for record in RECORDS) + b"broken\n"
    )
    return path


def same(found: load_records.RequestColumns, expected: load_records.RequestColumns) -> None:
    pd.testing.assert_frame_equal(found.requests.to_frame(), expected.requests.to_frame())
    assert set(found.gaps) == set(expected.gaps)
    for phase, gaps in expected.gaps.items():
        assert found.gaps[phase].count == gaps.count
        assert found.gaps[phase].percentiles_ms([0, 50, 99]) == gaps.percentiles_ms([0, 50, 99])


@pytest.mark.parametrize("cut", [0, 1, 11, 14, 19, len(RECORDS)])
def test_joined_parts_are_the_whole(cut: int) -> None:
    """Messages of one kind are still one, though each part has its own first of them."""
    same(
        join_columns([collect_columns(RECORDS[:cut]), collect_columns(RECORDS[cut:])]),
        collect_columns(RECORDS),
    )


def test_several_processes_read_what_one_does(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_records, "PART", 3000)
    monkeypatch.setattr(load_records, "usable_cores", lambda: 3)
    assert len(list(load_records.split_file(path.stat().st_size))) == 3
    found, broken = load_records.read_columns(path)
    same(found, collect_columns(RECORDS))
    assert broken.count == 1


def test_a_process_of_its_own_answers(path: Path) -> None:
    with load_records._reader(path, 0, path.stat().st_size, load_records.READER) as reader:
        answer = reader()
    assert answer is not None
    found, broken = answer
    same(found, collect_columns(RECORDS))
    assert broken.count == 1


def test_a_part_whose_process_fails_is_read_here(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_records, "PART", 3000)
    monkeypatch.setattr(load_records, "usable_cores", lambda: 2)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    found, broken = load_records.read_columns(path)
    same(found, collect_columns(RECORDS))
    assert broken.count == 1


def test_a_short_file_or_none_takes_no_other_process(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_records.subprocess, "Popen", None)
    same(load_records.read_columns(path)[0], collect_columns(RecordFile(path)))
    found, broken = load_records.read_columns(tmp_path / "none")
    assert (len(found.requests), broken.count) == (0, 0)


def test_parts_cover_the_file() -> None:
    assert list(load_records.split_file(0, 4)) == [(0, 0)]
    assert list(load_records.split_file(load_records.PART * 2 + 1, 8)) == [
        (0, load_records.PART),
        (load_records.PART, 2 * load_records.PART + 1),
    ]
    assert len(list(load_records.split_file(1 << 40, 64))) == load_records.PROCESSES
    assert len(list(load_records.split_file(1 << 40, 1))) == 1
