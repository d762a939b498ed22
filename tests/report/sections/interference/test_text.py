"""What a report says of disturbed gaps: a sentence where something can be said, and why not where not."""

from itertools import chain
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.records import a_run, answered, failed

from locust_llm.records.jsonl import format_record_line
from locust_llm.records.record import Record
from locust_llm.records.storage import RecordFile, write_run
from locust_llm.report import build as report
from locust_llm.report.blocks import TextBlock
from locust_llm.report.columns import collect_columns
from locust_llm.report.occupancy import compute_occupancy
from locust_llm.report.render.text import render_plain_block
from locust_llm.report.sections.interference import PrefillSlope, make_interference_blocks, measure_interference

LONG = PrefillSlope(ms_per_1k=25.34, low=23.2, high=27.41, r2=0.751, count=300)


def said(*records: Record, client: str = "OK", **changes: object) -> str:
    columns = collect_columns(records)
    found = measure_interference(columns, compute_occupancy(columns.requests, ()), records)
    assert found is not None
    text = "\n".join(
        map(render_plain_block, make_interference_blocks(msgspec.structs.replace(found, **changes), client))
    )
    return text.replace("\n  ", " ")


def stream(undisturbed: int, disturbed: int, ms: float = 40.0) -> Record:
    """Gaps of 10 ms, then longer ones from second 12 on."""
    us = np.cumsum([2000 - 10 * undisturbed, *[10] * undisturbed, *[ms] * disturbed])
    return answered(*us.tolist(), sent_at=10.0)


PREFILL = failed(sent_at=12.0, closed_at=20.0)


def test_slower() -> None:
    text = said(stream(40, 40), PREFILL)
    assert "took 4.0 times as long as one without (40 ms against 10 ms at as many streams or more)" in text
    assert "decode time lost to prefill: 60.0% (1.2 of 2.0 s)." in text
    assert "sample" not in text


def test_no_slower() -> None:
    assert "took no longer than one without (10 ms against 10 ms" in said(stream(40, 40, 10.0), PREFILL)


def test_nothing_to_compare_with() -> None:
    assert "No gap was undisturbed" in said(stream(0, 40), PREFILL)
    assert "29 disturbed gaps: too few" in said(stream(40, 29), PREFILL)
    assert "29 undisturbed gaps: too few" in said(stream(29, 40), PREFILL)


def test_gaps_without_a_counterpart_are_said() -> None:
    """Another request decodes from 14.1 to 14.4 s: its gap, and those beside it, are at two streams."""
    text = said(stream(40, 190), PREFILL, answered(100, 400, sent_at=14.0, id="other"))
    assert "of the disturbed gaps, by number or by time, which have fewer than 30 undisturbed" in text
    assert "times as long as one without" in text


def test_where_too_few_gaps_have_a_counterpart_nothing_is_concluded() -> None:
    """Three others decode from 14.1 s on: of 12.6 s of disturbed gaps 2.1 have a comparison."""
    others = [answered(100, 3000, sent_at=14.0, id=str(i)) for i in range(3)]
    text = said(stream(40, 100), PREFILL, *others)
    assert "What prefills cost the others is not reported: only 16% of the disturbed gaps" in text
    assert "It takes 90%" in text
    assert "times as long as one without" not in text
    assert "of the decode time" not in text


def test_nothing_was_disturbed() -> None:
    assert said(stream(40, 0)) == ""


def test_the_client_was_not_up_to_it() -> None:
    text = said(stream(40, 40), PREFILL, answered(100, sent_at=13.0), client="DEGRADED", slope=LONG)
    assert "No conclusion: the client verdict is DEGRADED" in text
    assert "times as long as one" not in text
    assert "Each 1,000" not in text


def test_slope() -> None:
    text = said(stream(40, 40), PREFILL, answered(100, sent_at=13.0), slope=LONG)
    assert "Each 1,000 tokens ahead add 25.3 ms to TTFT at the same own length (95% interval 23.2 to 27.4;" in text


def test_a_sample_says_so() -> None:
    assert "A sample: the gaps of 1 of 7 requests" in said(stream(40, 40), PREFILL, of_requests=7)


def test_texts_are_short() -> None:
    """Of the console: two tables, a sentence and a legend each."""
    columns = collect_columns(records := [stream(40, 40), PREFILL, answered(100, sent_at=13.0)])
    found = measure_interference(columns, compute_occupancy(columns.requests, ()), records)
    assert found is not None
    assert sum(isinstance(block, TextBlock) for block in make_interference_blocks(found)) == 3


# -- in a folder -------------------------------------------------------------------------------------------------------


def written(path: Path, records: list[Record]) -> Path:
    write_run(path, a_run())
    (path / "profile_export.jsonl").write_bytes(b"".join(format_record_line(record) + b"\n" for record in records))
    return path


def test_every_file_of_a_report_has_it(tmp_path: Path) -> None:
    report.remake_reports(written(tmp_path, [stream(40, 40), PREFILL]))
    run = msgspec.json.decode((tmp_path / "run.json").read_bytes())
    assert [row["label"] for row in run["interference"]["rows"]] == ["0", "1"]
    assert run["interference"]["disturbed"]["slowdown"] == pytest.approx(4)
    assert "Disturbed Gaps" in run["definitions"]
    for name in ("summary.md", "report.html"):
        assert "Gaps while other requests await their first token" in (tmp_path / name).read_text()


def test_a_share_of_the_records_in_even_stretches(tmp_path: Path) -> None:
    records = [answered(100, 110, id=f"{i:04}") for i in range(1000)]
    file = RecordFile(written(tmp_path, records) / "profile_export.jsonl")
    assert list(file.evenly(1.0)) == records
    some = [int(record.id) for record in file.evenly(0.2, stretches=10)]
    assert some == list(chain.from_iterable(range(a, a + 20) for a in range(0, 1000, 100)))
