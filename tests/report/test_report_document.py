"""Report document: its table of conditions, and what its rules cannot vouch for."""

import pytest
from msgspec.structs import replace
from support.records import a_run, answered

from locust_llm.records.record import Record
from locust_llm.report.document_blocks import TableBlock, TextBlock, format_effective_size
from locust_llm.report.load_records import collect_columns
from locust_llm.report.report_document import build_report_document
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.slo.load_generator_health import MERGED, SENT_TOGETHER, FigureError


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


def unseen(records: list[Record], *rules: str) -> list[str]:
    run = a_run(slo=rules)
    summary = summarise_run(collect_columns(records), run)
    texts = [one.text for one in build_report_document(summary, run) if isinstance(one, TextBlock)]
    return [text for text in texts if "phase" in text]


def test_what_a_rule_that_passed_may_have_missed() -> None:
    """Three phases are expected in three times as long as they come once in: a run of 89.7 s sees
    one that comes every 29 s in more than 19 of 20 cases, and one that comes every 30 s in fewer."""
    steady = [answered(20 + i % 7, sent_at=10.0 + i * 0.3) for i in range(300)]
    missed = "This run may have missed a {} phase that occurs less than once in 29 s."
    assert unseen(steady, "ttft p95 < 1s") == [missed.format("slow")]
    assert unseen(steady, "error_rate < 5%") == [missed.format("failing")]
    assert unseen(steady, "ttft p95 < 1s", "error_rate < 5%") == [missed.format("slow or failing")]
    assert unseen(steady, "ttft p95 < 1ms") == []


def test_values_that_vary_slowly_are_named() -> None:
    """Two phases of 150 requests: no more than a few independent values, whatever is decided."""
    phases = [answered(20 + 10 * (i >= 150) + i % 3, sent_at=10.0 + i * 0.3) for i in range(300)]
    (text,) = unseen(phases, "ttft p50 < 1ms")
    assert text == (
        "ttft p50 < 1ms: its values vary slowly, so 300 requests have an effective sample size of "
        "3. No run can show a phase longer than itself."
    )


def test_an_effective_size_below_one_is_no_zero() -> None:
    assert [format_effective_size(size) for size in (0.2, 0.99, 1.0, 1234.4)] == [
        "less than 1", "less than 1", "1", "1,234",
    ]  # fmt: skip


@pytest.mark.parametrize("cause", [SENT_TOGETHER, MERGED])
def test_errors_that_do_not_count_are_explained(cause: str) -> None:
    """1.22 ms of 28.9 ms are more than 2% and 1 ms, and have no mark where chunks came together."""
    run = a_run()
    summary = summarise_run(collect_columns([answered(20)]), run)
    error = FigureError(
        word="ttft", stat="p50", label="TTFT", unit="ms", value=28.9, higher=1.22,
        causes={cause: 1.22},
    )  # fmt: skip
    shown = replace(summary, figure_errors=(error,))
    blocks = list(build_report_document(shown, run))
    texts = [one.text for one in blocks if isinstance(one, TextBlock)]
    (table,) = (one for one in blocks if isinstance(one, TableBlock) and "Cause" in one.head)
    assert any("sent together cause does not count" in text for text in texts) == (
        cause == SENT_TOGETHER
    )
    assert (table.rows[0][4] == "too inaccurate") == (cause == MERGED)
