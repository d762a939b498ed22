"""The columns of a report are the same from parts as from lines, bit for bit."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.random_records import random_records
from support.records import answered, failed

from locust_llm.records import record_parts
from locust_llm.records.profile_export_jsonl import UnreadLines, encode_record
from locust_llm.records.record import Record
from locust_llm.records.record_parts import PARTS, RecordPart, name_part
from locust_llm.records.record_writer import RecordWriter
from locust_llm.records.run_facts import RECORDS
from locust_llm.report import load_records, part_values
from locust_llm.report.inter_token_gaps import GapCounts
from locust_llm.report.load_records import RequestColumns, read_columns, read_file_part
from locust_llm.report.part_values import read_row_block


def write(folder: Path, records: Iterable[Record], rows: int, *, jsonl: bool = True) -> Path:
    """The records with a part for each so many rows. The last ones are only lines."""
    writer = RecordWriter(folder, jsonl=jsonl)
    for count, record in enumerate(records, 1):
        writer.write(encode_record(record))
        if count % rows == 0:
            writer.pack_rows()
    writer.flush()
    writer.close()
    return folder / RECORDS


def read_lines(path: Path) -> tuple[RequestColumns, UnreadLines]:
    return read_file_part(path, 0, path.stat().st_size)


def describe(gaps: GapCounts) -> tuple[object, ...]:
    return gaps.count, gaps.exact, gaps.avg_ms, gaps.std_ms, gaps.percentiles_ms(range(101))


def require_same(found: RequestColumns, expected: RequestColumns) -> None:
    pd.testing.assert_frame_equal(
        found.requests.to_frame(), expected.requests.to_frame(), check_exact=True
    )
    assert set(found.gaps) == set(expected.gaps)
    for phase, gaps in expected.gaps.items():
        assert describe(found.gaps[phase]) == describe(gaps)
    assert set(found.blurred) == set(expected.blurred)
    for phase, bounds in expected.blurred.items():
        assert describe(found.blurred[phase].least) == describe(bounds.least)
        assert describe(found.blurred[phase].most) == describe(bounds.most)
    for one, other in ((found.server, expected.server), (found.long_gaps, expected.long_gaps)):
        for name, column in vars(other).items():
            np.testing.assert_array_equal(getattr(one, name), column, name)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    records=st.lists(random_records(), min_size=1, max_size=12),
    rows=st.integers(1, 5),
    full=st.integers(1, 40),
)
def test_parts_and_lines_give_the_same_columns(
    tmp_path: Path,
    records: list[Record],
    rows: int,
    full: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_parts, "PART_ROWS", rows)
    monkeypatch.setattr(load_records, "FULL", full)
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    path = write(tmp_path, records, rows)
    expected, of_lines = read_lines(path)
    found, unread = read_columns(path)
    require_same(found, expected)
    assert unread == of_lines == UnreadLines(lines=len(records))


PLAIN = [answered(200, 250 + i, 300 + i, id=f"r{i}", hidden_tokens=0) for i in range(7)]


@pytest.fixture
def three_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_parts, "PART_ROWS", 3)


@pytest.mark.usefixtures("three_rows")
class TestFiles:
    def test_parts_are_read_and_not_the_lines(self, tmp_path: Path) -> None:
        """Half of the text of a line is changed, so it cannot have been read."""
        path = write(tmp_path, PLAIN, 3)
        expected, _ = read_lines(path)
        data = path.read_bytes()
        path.write_bytes(data.replace(b"[200000,250000,300000]", b"[200000,250000,300001]"))
        found, _ = read_columns(path)
        require_same(found, expected)

    @pytest.mark.parametrize("change", ["remove", "edit"])
    def test_lines_that_were_edited_count(self, tmp_path: Path, change: str) -> None:
        path = write(tmp_path, PLAIN, 3)
        lines = path.read_bytes().splitlines(keepends=True)
        if change == "remove":
            del lines[1]
        else:
            lines[1] = lines[1].replace(b"300001", b"3000001")
        path.write_bytes(b"".join(lines))
        expected, _ = read_lines(path)
        require_same(read_columns(path)[0], expected)
        assert len(expected.requests) == len(lines)

    def test_added_lines_count(self, tmp_path: Path) -> None:
        path = write(tmp_path, PLAIN, 3)
        other = write_lines(tmp_path, [failed("reset", id="later")])
        with path.open("ab") as file:
            file.write(other)
        assert len(read_columns(path)[0].requests) == 8

    def test_a_damaged_part_beside_lines_costs_nothing(self, tmp_path: Path) -> None:
        path = write(tmp_path, PLAIN, 3)
        part = name_part(tmp_path, 2)
        part.write_bytes(part.read_bytes()[:300])
        found, unread = read_columns(path)
        assert (len(found.requests), unread.count) == (7, 0)

    def test_a_missing_part_beside_lines_costs_nothing(self, tmp_path: Path) -> None:
        path = write(tmp_path, PLAIN, 3)
        name_part(tmp_path, 1).unlink()
        assert len(read_columns(path)[0].requests) == 7

    def test_without_lines_a_damaged_part_is_counted(self, tmp_path: Path) -> None:
        path = write(tmp_path, PLAIN, 3, jsonl=False)
        assert len(read_columns(path)[0].requests) == 7
        part = name_part(tmp_path, 2)
        part.write_bytes(part.read_bytes()[:300])
        found, unread = read_columns(path)
        assert (len(found.requests), unread.count) == (4, 1)
        assert "000002.parquet" in unread.reasons[0]

    @pytest.mark.parametrize("jsonl", [True, False])
    def test_several_processes_read_what_one_does(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jsonl: bool
    ) -> None:
        path = write(tmp_path, PLAIN, 3, jsonl=jsonl)
        expected, _ = read_columns(path)
        monkeypatch.setattr(load_records, "PART_FILES", 1)
        monkeypatch.setattr(load_records, "usable_cores", lambda: 2)
        found, unread = read_columns(path)
        require_same(found, expected)
        assert (len(found.requests), unread.count) == (7, 0)


def write_lines(folder: Path, records: Sequence[Record]) -> bytes:
    other = folder / "other"
    other.mkdir()
    return write(other, records, 100).read_bytes()


@pytest.mark.usefixtures("three_rows")
def test_a_record_that_contradicts_itself_is_left_out(tmp_path: Path) -> None:
    wrong = answered(200, 250, id="wrong", chunk_us=(250_000, 200_000))
    path = write(tmp_path, [PLAIN[0], wrong, PLAIN[1]], 3)
    found, unread = read_columns(path)
    expected, of_lines = read_lines(path)
    require_same(found, expected)
    assert unread.count == of_lines.count == 1
    assert unread.reasons == of_lines.reasons


@pytest.mark.usefixtures("three_rows")
def test_a_column_without_a_formula_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, PLAIN, 3)
    expected, _ = read_lines(path)
    part = RecordPart(sorted((tmp_path / PARTS).iterdir())[0])
    assert read_row_block(part, ["itl_s"], ["no_itl"]) is not None
    fewer = {name: make for name, make in part_values.NUMBER_FORMULAS.items() if name != "itl_s"}
    monkeypatch.setattr(part_values, "NUMBER_FORMULAS", fewer)
    assert read_row_block(part, ["itl_s"], ["no_itl"]) is None
    require_same(read_columns(path)[0], expected)
