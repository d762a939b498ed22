"""Each record is seen once, while lines become parts."""

from pathlib import Path

import pytest
from support.records import answered, failed

from locust_llm.lab.soak.record_tail import RecordTail
from locust_llm.records import record_parts
from locust_llm.records.outcomes import RETRIED
from locust_llm.records.record_writer import RecordWriter


@pytest.mark.parametrize("jsonl", [True, False])
@pytest.mark.parametrize("every", [1, 2, 5, 7, 30])
def test_each_record_is_seen_once(
    tmp_path: Path, jsonl: bool, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_parts, "PART_ROWS", 4)
    tail = RecordTail(tmp_path)
    assert list(tail.read_new()) == []
    writer = RecordWriter(tmp_path, jsonl=jsonl)
    records = [answered(10 + i, id=f"r{i}") for i in range(23)]
    seen = []
    for count, record in enumerate(records, 1):
        writer.write(record)
        writer.write(failed(RETRIED, id=f"again{count}"))
        writer.flush()
        if count % 3 == 0:
            writer.pack_rows()
        if count % every == 0:
            seen += tail.read_new()
    seen += tail.read_new()
    assert seen == records
    assert list(tail.read_new()) == []
