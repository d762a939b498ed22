"""Records as columns: every column is what the record's own property says."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import UNIX, answered, failed

from locust_llm.records.record import Record
from locust_llm.report import load_records
from locust_llm.report.fluidity_and_qoe import Readability
from locust_llm.report.load_records import collect_columns, make_data_frames


def _streams() -> st.SearchStrategy[Record]:
    def with_merged(chunk_us: tuple[int, ...]) -> st.SearchStrategy[Record]:
        indices = st.sets(st.integers(0, max(len(chunk_us) - 1, 0)), max_size=len(chunk_us))
        return indices.map(
            lambda them: answered(chunk_us=chunk_us, merged=tuple((i, 0) for i in sorted(them)))
        )

    return (
        st.lists(st.integers(0, 10_000_000), max_size=20)
        .map(sorted)
        .map(tuple)
        .flatmap(with_merged)
    )


@given(st.lists(_streams(), max_size=8))
def test_pooled_gaps_are_the_records_sharp_gaps(records: list[Record]) -> None:
    pooled = [gap / 1e3 for record in records for gap in record.sharp_gaps_us]
    gaps = collect_columns(records).gaps.get("profiling")
    assert (gaps.count if gaps else 0) == len(pooled)
    if pooled:
        assert gaps
        assert gaps.percentiles_ms([0, 50, 100]) == pytest.approx(
            np.percentile(pooled, [0, 50, 100]).tolist()
        )


def test_each_column_is_the_records_property() -> None:
    records = [
        answered(
            200, 240, admitted_at=9.9, due_at=9.0, connect_s=0.01, simulated=True, cached_tokens=3
        ),
        failed("http_status", status=500, error="oops"),
        answered(100, phase="warmup", outcome="cut", streamed=False),
    ]
    tables = (make_data_frames(records)[0], collect_columns(records).requests)
    wide, narrow = (table.to_frame() for table in tables)
    for frame in (wide, narrow):
        for name in set(frame.columns) - {
            *load_records.STAMPS,
            *Readability._fields,
            "longest_stall_least_s",
            "longest_stall_most_s",
            "chunks",
            "merged",
            "first_chunk_at",
            "last_chunk_at",
        }:
            said = [getattr(record, name) for record in records]
            assert [None if x is None or x != x else x for x in frame[name].tolist()] == said, name
    assert wide["sent_at"].tolist() == [UNIX + 10] * 3
    assert wide["last_chunk_at"].tolist()[0] == UNIX + 10.24
    assert math.isnan(wide["last_chunk_at"].tolist()[1])
    assert wide["chunks"].tolist() == [2, 0, 1]


def test_gaps_for_people() -> None:
    records = [
        answered(100, 120, 150, id="x", merged=((2, 130_000),)),
        answered(id="y"),
        answered(1, 3, id="z"),
    ]
    gaps = make_data_frames(records)[1]
    assert gaps["id"].tolist() == ["x", "x", "z"]
    assert gaps["index"].tolist() == [0, 1, 0]
    assert gaps["gap_s"].tolist() == [0.02, 0.03, 0.002]
    assert gaps["merged"].tolist() == [False, True, False]


def test_no_records() -> None:
    requests, gaps = make_data_frames([])
    assert (len(requests), len(gaps)) == (0, 0)
    assert "ttft_s" in requests.columns
    assert collect_columns([]).gaps == {}


def test_messages_without_end_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_records, "MAX_KINDS", 2)
    words = ["one", "two", "three", "four", "one"]
    requests = collect_columns(failed("reset", error=f"{word} 7") for word in words).requests
    other = "(messages of other kinds)"
    assert requests.texts("error").tolist() == ["one 7", "two 7", other, other, "one 7"]


def test_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_records, "BLOCK", 3)
    requests = collect_columns(answered(float(i + 1)) for i in range(10)).requests
    assert requests.floats("ttft_s").tolist() == [(i + 1) / 1e3 for i in range(10)]
