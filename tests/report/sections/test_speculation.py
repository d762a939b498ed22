"""What chunks of several tokens and speculative decoding change in a report: who says so, over
which time."""

from pathlib import Path

import msgspec
import pytest
from support.records import UNIX, a_run, answered

from locust_llm.records.profile_export_jsonl import format_record_line
from locust_llm.records.run_facts import RECORDS
from locust_llm.records.server_metrics_history import SERVER_METRICS, EngineHistory
from locust_llm.records.server_metrics_parser import EngineSample
from locust_llm.report.load_records import collect_columns
from locust_llm.report.sections.notes import format_speculation
from locust_llm.report.sections.speculation import Speculation, measure_speculation
from locust_llm.report.write_report_files import write_reports


def sample(
    at: float, drafts: float, drafted: float, accepted: float, **more: object
) -> EngineSample:
    return EngineSample(
        at=UNIX + at, engine="vLLM", drafts=drafts, drafted=drafted, accepted=accepted,
        **more,  # type: ignore[arg-type]
    )  # fmt: skip


NO_REQUESTS = collect_columns([]).requests
BEFORE, DURING, AFTER = (
    sample(-1, 10, 40, 20),
    sample(50, 110, 440, 260),
    sample(101, 999, 3999, 3999),
)


def test_the_window_begins_before_the_phase_and_ends_in_it() -> None:
    """100 drafts of 400 tokens, 240 of them accepted: 60 %, 3.4 tokens a step; what came after the
    stop is in nothing."""
    history = EngineHistory()
    for one in (sample(-9, 0, 0, 0), BEFORE, DURING, AFTER):
        history.add(one)
    assert list(measure_speculation(history, a_run(), NO_REQUESTS)) == [
        Speculation(
            engine="vLLM", share=0.6, drafted=400, accepted=240, tokens_per_step=3.4, window_s=51.0
        )
    ]


def test_what_answers_report_wins_over_the_counters_of_all() -> None:
    """Three answers of 10 steps, 40 draft tokens and 15 accepted ones each; one of the warmup; one
    that says nothing."""
    drafts = {"draft_steps": 10, "drafted_tokens": 40, "accepted_tokens": 15}
    records = [answered(100, 120, id=f"{i}", **drafts) for i in range(3)]
    records += [answered(100, 120, id="w", phase="warmup", **drafts), answered(100, 120, id="n")]
    history = EngineHistory()
    for one in (BEFORE, DURING):
        history.add(one)
    (found,) = measure_speculation(history, a_run(), collect_columns(records).requests)
    assert (found.drafted, found.accepted, found.share, found.tokens_per_step) == (
        120,
        45,
        0.375,
        2.5,
    )
    assert format_speculation(found) == (
        "Speculative decoding (the server): 37.5% of 120 draft tokens were accepted, 2.50 tokens per "
        "step with a draft, as 3 "
        "answers reported."
    )


def test_a_server_that_has_a_rate_alone_and_one_that_drafts_nothing() -> None:
    history = EngineHistory()
    for at, rate in ((1, 0.5), (2, 0.7)):
        history.add(EngineSample(at=UNIX + at, engine="SGLang", source="a:1", acceptance=rate))
        history.add(
            EngineSample(
                at=UNIX + at, engine="vLLM", source="b:1", drafted=5.0, accepted=1.0, drafts=1.0
            )
        )
    (found,) = measure_speculation(history, a_run(), NO_REQUESTS)
    assert (found.engine, found.source, found.share, found.drafted) == (
        "SGLang",
        "a:1",
        pytest.approx(0.6),
        None,
    )


@pytest.mark.parametrize("counted", [True, False])
def test_what_is_of_chunks_and_what_of_tokens_is_said(tmp_path: Path, counted: bool) -> None:
    tokens = {"chunk_tokens": ((1, 1), (4, 2))} if counted else {}
    records = [answered(100, 140, 180, id=str(i), output_tokens=9, **tokens) for i in range(4)]
    (tmp_path / RECORDS).write_bytes(
        b"".join(format_record_line(record) + b"\n" for record in records)
    )
    (tmp_path / SERVER_METRICS).write_bytes(
        b"".join(msgspec.json.encode(one) + b"\n" for one in (BEFORE, DURING))
    )
    summary = write_reports(tmp_path, a_run())
    rows = {row.tag: row for row in summary.rows}
    assert rows["tokens_per_chunk"].avg == 3.0
    assert rows["inter_token_latency"].avg == 10.0  # 80 ms for eight tokens
    assert rows["inter_chunk_latency"].avg == 40.0
    said = (tmp_path / "summary.md").read_text()
    assert "Inter Token Latency (ms per token)" in said
    assert "Inter Chunk Latency (ms per chunk of 3.0)" in said
    assert ("--per-chunk-usage requests the count from the server" in said) == (not counted)
    assert (
        "Speculative decoding (vLLM): 60.0% of 400 draft tokens were accepted, 3.40 tokens per step "
        "with a draft" in said
    )
    exported = msgspec.json.decode((tmp_path / "profile_export_aiperf.json").read_bytes())
    assert exported["spec_decode_overall_draft_acceptance_rate"] == {"unit": "%", "avg": 60.0}
    assert (
        exported["total_draft_tokens"]["avg"],
        exported["total_accepted_draft_tokens"]["avg"],
    ) == (400, 240)
    assert exported["tokens_per_chunk"]["avg"] == 3.0
    assert exported["locust_llm"]["counts"]["chunks_counted"] == 4 * counted


def test_of_one_token_a_chunk_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / RECORDS).write_bytes(
        format_record_line(answered(100, 140, 180, chunk_tokens=((1, 3),))) + b"\n"
    )
    summary = write_reports(tmp_path, a_run())
    assert "tokens_per_chunk" not in {row.tag for row in summary.rows}
    assert "per chunk" not in (tmp_path / "summary.md").read_text().replace("Tokens per Chunk", "")
