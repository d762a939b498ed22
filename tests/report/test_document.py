"""Report document: its table of conditions."""

import pytest
from support.records import a_run, answered

from locust_llm.report.blocks import TableBlock
from locust_llm.report.columns import collect_columns
from locust_llm.report.document import build_report_document
from locust_llm.report.summarise import summarise_run


@pytest.mark.parametrize(
    ("streaming", "rows"),
    [
        (True, {"awaiting first token", "chunks"}),
        # an answer in one piece has no chunks, and nothing is awaited but all of it
        (False, set()),
    ],
)
def test_answers_in_one_piece_have_no_chunks_and_no_first_token(
    streaming: bool, rows: set[str]
) -> None:
    run = a_run(((0.0, 1),), prefill_concurrency=1, streaming=streaming)
    records = [answered(*([10, 20] if streaming else []), sent_at=10.0 + i) for i in range(3)]
    summary = summarise_run(collect_columns(records), run)
    tables = [one for one in build_report_document(summary, run) if isinstance(one, TableBlock)]
    (conditions,) = (one for one in tables if one.head == ("Condition", "Value"))
    known = {"awaiting first token", "chunks"}
    assert {row[0] for row in conditions.rows} & known == rows
