"""Records in a file: parts of it, and from a moment on."""

from pathlib import Path

import pytest
from support.records import UNIX, answered, failed

from locust_llm.records import profile_export_jsonl
from locust_llm.records.profile_export_jsonl import RecordFile, format_record_line


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Twenty requests that ended at the seconds 10 to 29, two broken lines among them."""
    lines = [
        format_record_line(
            answered(5, sent_at=9.0 + i, closed_at=10.0 + i, id=str(i), name="x" * (i * 7 % 50))
        )
        for i in range(20)
    ]
    lines.insert(7, b"rubbish")
    lines.insert(14, lines[3][:50])
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def test_parts_hold_each_line_once(path: Path) -> None:
    size = path.stat().st_size
    for cut in range(0, size + 1, 13):
        parts = [RecordFile(path, 0, cut), RecordFile(path, cut, size)]
        assert [record.id for part in parts for record in part] == [str(i) for i in range(20)], cut
        assert sum(part.unread.count for part in parts) == 2


@pytest.mark.parametrize("sound", [True, False])
def test_ids_are_those_of_requests_whatever_they_hold(tmp_path: Path, sound: bool) -> None:
    """An attempt that was tried again is no request. Names and messages look like other fields."""
    hostile = '","id":"no","outcome":"retried","record":{"id":"x'
    records = [
        answered(5, id="a", name=hostile),
        failed("retried", id="b"),
        answered(5, id='c"\\\u00e9'),
        failed("reset", id="d", error='"outcome":"retried"'),
        answered(5, id=""),
    ]
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"\n".join(map(format_record_line, records)) + b"\n")
    assert list(RecordFile(path, sound=sound).read_ids()) == ["a", 'c"\\\u00e9', "d", ""]


@pytest.mark.parametrize("bisected", [1, 300, 1 << 20])
def test_since_a_moment(path: Path, bisected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However coarse the bisection, none is missed; a fine one gives few that ended before."""
    monkeypatch.setattr(profile_export_jsonl, "MIN_BISECTED_BYTES", bisected)
    for second in range(9, 31):
        found = [record.closed_at for record in RecordFile(path).since(UNIX + second)]
        assert [at for at in found if at >= second] == [
            float(at) for at in range(max(second, 10), 30)
        ]
        if bisected == 1 and found:
            assert found[0] >= second - 1
    assert len(list(RecordFile(path).since(0.0))) == 20


def test_no_file(tmp_path: Path) -> None:
    assert list(RecordFile(tmp_path / "none").since(0)) == list(RecordFile(tmp_path / "none")) == []
