"""Spans from a file, joined to the records of a run."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from support.exports import as_json, export, span
from support.records import answered, failed

from locust_llm.records.profile_export_jsonl import RecordFile, format_record_line
from locust_llm.records.run_facts import RECORDS
from locust_llm.records.spans.span_times import FILE, read_spans
from locust_llm.records.spans.trace_ids import make_trace_id
from locust_llm.report.spans_file import SpansRefused, find_span_rows, join_spans_file

RUN = "4bf92f3577b34da6"


def of(request_id: str) -> dict[str, Any]:
    return span(make_trace_id(RUN, request_id), queue=0.25)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    records = [answered(id="a"), answered(id="b"), failed(id="c")]
    (folder / RECORDS).write_bytes(b"\n".join([*map(format_record_line, records), b'{"id": "half']))
    return folder


def test_a_file_of_a_collector_however_it_is_written(folder: Path, tmp_path: Path) -> None:
    first, second = as_json(of("a"), span("0" * 32, queue=1.0)), as_json(of("b"), of("b"), of("c"))
    lines = first + b"\n\n" + second + b"\n{broken"
    whole = json.dumps(export([of("a"), of("b"), of("c")]), indent=2).encode()
    for data, said in (
        (
            lines,
            "2 of 2 requests have a span (1 of other traces, 1 twice, 1 exports refused; the first "
            "mistake: ",
        ),
        (
            gzip.compress(lines),
            "2 of 2 requests have a span (1 of other traces, 1 twice, 1 exports refused; ",
        ),
        (
            b"{broken\n" + lines,
            "2 of 2 requests have a span (1 of other traces, 1 twice, 2 exports refused; ",
        ),
        (whole, "2 of 2 requests have a span"),
        (b"[" + first + b"]", "1 of 2 requests have a span (1 of other traces)"),
    ):
        (file := tmp_path / "spans").write_bytes(data)
        assert str(join_spans_file(folder, file, RUN)).startswith(said)
        assert {*read_spans(folder).times} == ({"a"} if data.startswith(b"[") else {*"abc"})
    own = folder / FILE
    assert str(join_spans_file(folder, own, RUN)) == "1 of 2 requests have a span"
    assert {*read_spans(folder).times} == {"a"}


@pytest.mark.parametrize("sound", [True, False])
def test_spans_belong_to_the_rows_of_their_requests(folder: Path, sound: bool) -> None:
    """An attempt that was tried again has no row, and a record beyond the count came later."""
    records = [answered(id="a"), failed(id="x", outcome="retried"), answered(id="b"),
               answered(id="c"), answered(id="later")]  # fmt: skip
    (folder / RECORDS).write_bytes(b"".join(format_record_line(one) + b"\n" for one in records))
    for name in ("later", "c", "unknown", "a", "x"):
        with (folder / FILE).open("a") as file:
            file.write(f'{{"id": "{name}", "source": "spans", "queue_us": {ord(name[0])}}}\n')
    rows = find_span_rows(folder, RecordFile(folder / RECORDS, sound=sound), 3)
    assert {row: times.queue_us for row, times in rows.items()} == {0: ord("a"), 2: ord("c")}


def test_what_cannot_be_joined_changes_nothing(folder: Path, tmp_path: Path) -> None:
    (folder / FILE).write_bytes(b"before")
    others = tmp_path / "others"
    others.write_bytes(as_json(span("0" * 32, queue=1.0)))
    assert (
        str(join_spans_file(folder, others, RUN))
        == "0 of 2 requests have a span (1 of other traces)"
    )
    (tmp_path / "text").write_bytes(b"no spans\nat all")
    (tmp_path / "cut").write_bytes(gzip.compress(as_json(of("a")))[:-12])
    for name, run, why in (
        ("others", "", "had no traceparent"),
        ("text", RUN, "contains no OTLP/JSON spans: "),
        ("cut", RUN, "cannot be read: "),
        ("missing", RUN, "No such file"),
        (".", RUN, "directory"),
    ):
        with pytest.raises(SpansRefused, match=why):
            join_spans_file(folder, tmp_path / name, run)
    assert (folder / FILE).read_bytes() == b"before"
