"""A report has the same bytes, whether it reads lines, parts beside them, or parts alone."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.random_records import random_records
from support.records import a_run, answered, failed

from locust_llm.lab.interop.measured_requests import measure_run
from locust_llm.records import record_parts
from locust_llm.records.outcomes import RETRIED
from locust_llm.records.profile_export_jsonl import encode_record
from locust_llm.records.record import Record
from locust_llm.records.record_parts import PARTS, name_part
from locust_llm.records.record_writer import RecordWriter
from locust_llm.records.run_facts import RECORDS, RUN, write_run
from locust_llm.report.compare.condition_differences import load_run
from locust_llm.report.write_report_files import read, remake_reports

MIXED = [
    *(answered(100 + i, 140 + i, 150 + 2 * i, id=f"r{i}", output_tokens=4) for i in range(40)),
    *(failed("reset", error=f"reset after {i} bytes", id=f"f{i}") for i in range(3)),
    failed(RETRIED, id="again", status=503),
    answered(300, 900, id="again", attempt=2, session="s", turn=1, tool_s=0.5),
    answered(200, 200, 260, id="merged", merged=((1, 150_000),)),
    answered(id="whole", streamed=False, chunk_us=()),
    answered(90, 120, id="counted", chunk_tokens=((3, 2),), output_tokens=6),
]


def make(folder: Path, records: Sequence[Record], *, jsonl: bool, parts: bool) -> dict[str, bytes]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    writer = RecordWriter(folder, jsonl=jsonl)
    for record in records:
        writer.write(encode_record(record))
        if parts:
            writer.pack_rows()
    writer.flush()
    if parts:
        writer.pack_rows(last=True)
    writer.close()
    assert (folder / PARTS).exists() == parts
    assert ((folder / RECORDS).stat().st_size > 0) == jsonl
    write_run(folder, a_run())
    remake_reports(folder)
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.is_file() and path.name != RECORDS
    }


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_parts, "PART_ROWS", 7)


def require_same(tmp_path: Path, records: Sequence[Record]) -> None:
    folder = tmp_path / "run"
    of_lines = make(folder, records, jsonl=True, parts=False)
    assert make(folder, records, jsonl=True, parts=True) == of_lines
    assert make(folder, records, jsonl=False, parts=True) == of_lines


def test_all_files_are_the_same(tmp_path: Path) -> None:
    require_same(tmp_path, MIXED)
    assert load_run(tmp_path / "run").notes == ()
    found = read(tmp_path / "run")
    assert len(found.requests) == len(MIXED)
    assert len(measure_run(tmp_path / "run").ok) == 44


@pytest.mark.parametrize("one_part", [True, False])
@pytest.mark.parametrize("line", [1, 5, 20, len(MIXED) - 1, len(MIXED)])
def test_lines_that_are_gone_are_named_by_all_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: int, *, one_part: bool
) -> None:
    """A part of the removed line has its record, but the lines are the records of the run."""
    if one_part:
        monkeypatch.setattr(record_parts, "PART_ROWS", len(MIXED))
    folder = tmp_path / "run"
    make(folder, MIXED, jsonl=True, parts=True)
    lines = (folder / RECORDS).read_bytes().splitlines(keepends=True)
    del lines[line - 1]
    (folder / RECORDS).write_bytes(b"".join(lines))
    gone = "profile_export.jsonl has 46 of the 47 records that run.json counted"
    found = read(folder)
    assert (len(found.requests), found.run.unread) == (len(MIXED) - 1, (gone,))
    assert gone in load_run(folder).notes
    summary, run = remake_reports(folder)
    assert (summary.conditions.requests, run.unread) == (46, (gone,))


def test_a_part_of_another_run_is_no_part_of_a_run_with_lines(tmp_path: Path) -> None:
    """The other run had no profile_export.jsonl, so no line shows that its part does not belong
    here."""
    make(tmp_path / "other", MIXED[:7], jsonl=False, parts=True)
    run = tmp_path / "run"
    files = make(run, MIXED, jsonl=True, parts=True)
    for number in (1, 3, 99):
        shutil.copy(name_part(tmp_path / "other", 1), name_part(run, number))
        assert len(read(run).requests) == len(MIXED)
        assert len(load_run(run).seen.main.requests) == len(MIXED) - 1
        remake_reports(run)
        assert {name: (run / name).read_bytes() for name in files} == files


def test_parts_alone_are_the_records_of_a_run_whose_facts_are_lost(tmp_path: Path) -> None:
    """Its run.json was made anew from the parts."""
    folder = tmp_path / "run"
    make(folder, MIXED, jsonl=False, parts=True)
    (folder / RUN).unlink()
    for _ in range(2):
        summary, _ = remake_reports(folder)
        assert summary.conditions.requests == len(MIXED) - 1


@pytest.mark.slow
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(records=st.lists(random_records(), min_size=8, max_size=40))
def test_all_files_are_the_same_of_any_records(tmp_path: Path, records: list[Record]) -> None:
    require_same(tmp_path, records)
