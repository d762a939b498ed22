"""What a report says of a probe: its lines and tables from symptoms by hand, and all files of a
probe in virtual time."""

import json
from pathlib import Path

import pytest
from support.probing import Noise, Server, probed
from support.records import a_run, answered
from support.symptoms import stall, symptoms

from locust_llm.lab.probe.episode_requests import ProbeResult
from locust_llm.lab.probe.probe_findings import ProbeFindings
from locust_llm.lab.probe.probe_measurements import CachedPrompt, ProbeMeasurements
from locust_llm.lab.probe.probe_report import (
    describe_scheduler,
    format_diagnosis,
    make_probe_blocks,
    plot_probe_by_length,
)
from locust_llm.lab.probe.scheduler_diagnosis import (
    CANNOT_TELL,
    CHUNKED,
    DISAGGREGATED,
    PARTIAL,
    Diagnosis,
)
from locust_llm.records.profile_export_jsonl import format_record_line
from locust_llm.records.record import Record
from locust_llm.report import write_report_files as report
from locust_llm.report.document_blocks import Heading, TableBlock, TextBlock
from locust_llm.report.render.text_report import render_console
from locust_llm.report.report_command import make_report_result

INF = float("inf")


@pytest.mark.parametrize(
    ("diagnosis", "steps", "said"),
    [
        (Diagnosis(CHUNKED, (490.0, 512.0, 530.0), 1), 16.0,
         "chunked, a step takes about 512 tokens (490 to 530); 1 prompt at a time"),
        (Diagnosis(CHUNKED, (3812.0, 5000.0, 8871.0), 1), 16.0,
         "chunked, a step takes between 3,800 and 8,900 tokens; 1 prompt at a time"),
        (Diagnosis(CHUNKED, (490.0, 512.0, 530.0), 1), 3.0,
         "chunked, a step takes between 490 and 530 tokens; 1 prompt at a time"),
        (Diagnosis(CHUNKED, (3812.0, 5000.0, INF), 1), 16.0,
         "chunked, a step takes at least 3,800 tokens; 1 prompt at a time"),
        (Diagnosis(PARTIAL, (490.0, 512.0, 530.0), 4), 16.0,
         "partial prefills, a step takes about 512 tokens (490 to 530); 4 prompts at a time"),
        (Diagnosis(PARTIAL, (490.0, 512.0, 530.0), 8), 16.0,
         "partial prefills, a step takes about 512 tokens (490 to 530); at least 8 prompts at a "
             "time"),
        (Diagnosis(DISAGGREGATED), 16.0, "disaggregated"),
        (Diagnosis(CANNOT_TELL, (490.0, 512.0, 530.0)), 16.0, "cannot tell"),
    ],
)  # fmt: skip
def test_the_scheduler_in_a_line(diagnosis: Diagnosis, steps: float, said: str) -> None:
    """A budget is about a number where its interval is narrow and rests on four steps at least."""
    found = symptoms(stalls=(stall(1, 8000, steps=steps),))
    assert format_diagnosis(diagnosis, found) == said


def test_reasons_stand_under_it_and_what_is_missing_is_loud() -> None:
    known = Diagnosis(DISAGGREGATED, reasons=("decoders kept their pace", "a short one waited"))
    assert list(describe_scheduler(ProbeFindings(symptoms=symptoms(), diagnosis=known))) == [
        TextBlock("Scheduler: disaggregated."),
        TextBlock("Because: decoders kept their pace."),
        TextBlock("Also: a short one waited."),
    ]
    unknown = Diagnosis(CANNOT_TELL, reasons=("64 steps",), missing=("longer prompts",))
    assert list(describe_scheduler(ProbeFindings(symptoms=symptoms(), diagnosis=unknown))) == [
        TextBlock("Scheduler: cannot tell.", loud=True),
        TextBlock("Reason: longer prompts."),
        TextBlock("Measured: 64 steps."),
    ]


def tables(found: ProbeMeasurements) -> dict[str, TableBlock]:
    heading, under = "", {}
    for block in make_probe_blocks(ProbeFindings(symptoms=found, diagnosis=Diagnosis(CHUNKED))):
        if isinstance(block, Heading):
            heading = block.text
        elif isinstance(block, TableBlock):
            under[heading] = block
    return under


def test_prompts_alone_with_what_a_token_more_costs() -> None:
    assert tables(symptoms())["Prompts alone"].rows == (
        ("2,000 tokens", "100", "3", "-"),
        ("4,000 tokens", "200", "3", "50.0"),
        ("8,000 tokens", "400", "3", "50.0"),
    )


def test_prompts_beside_decoders_with_their_spread() -> None:
    stalls = (
        stall(1, 8000), stall(2, 8000, ttft_s=0.5, steps=17.0, longest_s=0.035),
        stall(1, 4000, "pair")
    )  # fmt: skip
    assert tables(symptoms(stalls=stalls))["Prompts while decoders run"].rows == (
        ("one of 8,000", "400", "490 (480 to 500)", "34 (33 to 35)", "16 (16 to 17)", "33", "16"),
        ("two of 4,000", "400", "480", "33", "16", "33", "16"),
    )


def test_all_that_were_sent_together_are_in_their_row() -> None:
    rows = tables(symptoms())["Bursts of equal prompts, without decoders"].rows
    assert rows[0] == ("2,000 tokens", "8", "1", "100 200 300 400 500 600 700 800")


def texts(found: ProbeMeasurements) -> str:
    blocks = make_probe_blocks(ProbeFindings(symptoms=found, diagnosis=Diagnosis(CHUNKED)))
    return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))


def test_how_far_the_rounds_agree() -> None:
    """Longest gaps of 30 and 36 ms are 9 % from their median; all else is the same in both
    rounds."""
    stalls = (stall(1, 8000, longest_s=0.030), stall(2, 8000, longest_s=0.036))
    said = texts(symptoms(stalls=stalls))
    assert "median: TTFT alone 0%, TTFT while decoders run 0%, longest gaps 9%" in said


def test_what_else_was_seen() -> None:
    said = texts(symptoms())
    assert (
        "Short requests behind a prompt of 8,000 tokens: TTFT 300 ms, 10 ms alone, which is 100%"
        in said
    )
    assert (
        "No prefix caching: a prompt of 4,000 tokens took 200 ms, and 200 ms the second time."
        in said
    )
    assert "No event without content" in said
    said = texts(symptoms(cached=(CachedPrompt(4000, 0.2, 0.01, 3984),), early_s=0.055))
    assert (
        "Prefix caching: a prompt of 4,000 tokens took 200 ms, and 10 ms the second time, 3,984 of "
        "its tokens cached" in said
    )
    assert "up to 55 ms" in said


def test_nothing_seen_is_nothing_said() -> None:
    empty = ProbeMeasurements(requests=0, failed=0, episodes=0, short_s=None)
    blocks = list(
        make_probe_blocks(ProbeFindings(symptoms=empty, diagnosis=Diagnosis(CANNOT_TELL)))
    )
    assert not [block for block in blocks if isinstance(block, TableBlock)]
    assert list(plot_probe_by_length(empty)) == []


def test_a_ring_for_each_time_that_a_prompt_was_tried() -> None:
    ttft, gaps = plot_probe_by_length(symptoms())
    assert {series.name: len(series.x) for series in ttft.series} == {
        "alone, median": 3, "alone": 9, "while decoders run": 6, "the later of two": 2,
    }  # fmt: skip
    assert ttft.series[0].x == [2000, 4000, 8000]
    assert ttft.series[0].y == [100.0, 200.0, 400.0]
    assert {series.name: series.y for series in gaps.series} == {
        "one prompt": [33.0] * 6,
        "two of this length": [33.0] * 2,
    }
    assert [mark.y for mark in gaps.marks] == [10.0]


# -- all files of a probe --------------------------------------------------------------------------


def record(shot: ProbeResult, number: int) -> Record:
    return answered(
        *((at - shot.sent_at) * 1e3 for at in shot.chunk_at), sent_at=shot.sent_at, id=str(number),
        name=shot.role,
        session=f"probe/{shot.episode}/{shot.round}/{shot.kind}", input_tokens=shot.input_tokens,
        asked_input_tokens=shot.asked_tokens, output_tokens=shot.output_tokens,
        asked_output_tokens=shot.asked_output_tokens, cached_tokens=shot.cached_tokens,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probe")
    shots = probed(Server(budget=512), Noise(steps=0.03))
    (folder / "profile_export.jsonl").write_bytes(
        b"".join(format_record_line(record(s, i)) + b"\n" for i, s in enumerate(shots))
    )
    report.write_reports(folder, a_run(users=8, goodput="inter_token_latency:20"))
    return folder


def test_the_examination_is_in_run_json(folder: Path) -> None:
    found = json.loads((folder / "run.json").read_text())["examination"]
    assert found["diagnosis"]["name"] == CHUNKED
    low, _, high = found["diagnosis"]["budget"]
    assert low <= 512 <= high
    assert found["symptoms"]["stalls"]
    assert any("Gaps of 20 ms" in one["what"] for one in found["advice"])
    assert found["outcome"] == "named"
    assert make_report_result(*report.remake_reports(folder), "").probe == "named"


def test_the_report_begins_with_the_scheduler_and_leaves_out_what_a_mix_says(folder: Path) -> None:
    summary, run = report.remake_reports(folder)
    text = render_console(summary, run, folder)
    assert text.startswith("Interference probe by-hand\n")
    assert text.index("Scheduler: chunked, a step takes about 5") < text.index("Conditions")
    assert (
        text.index("Prompts alone")
        < text.index("Prompts while decoders run")
        < text.index("Advice")
        < text.index("Notes")
    )
    for absent in (
        "Metrics\n",
        "Closed loop",
        "input length",
        "WARNING",
        "Gaps while other",
        "By name",
    ):
        assert absent not in text
    assert max(map(len, text.splitlines())) <= 120


def test_the_page_shows_it_with_plots(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert "<h1>Interference probe by-hand</h1>" in page
    for heading in ("Prompts while decoders run", "By prompt length", "Timeline", "Advice"):
        assert f">{heading}</h2>" in page
    assert "Over time" not in page.partition("<script")[0]


def test_a_run_that_is_no_probe_has_none(tmp_path: Path) -> None:
    (tmp_path / "profile_export.jsonl").write_bytes(format_record_line(answered(100, 120)) + b"\n")
    summary = report.write_reports(tmp_path, a_run())
    assert summary.examination is None
    assert make_report_result(summary, a_run(), "").probe == ""
    assert json.loads((tmp_path / "run.json").read_text())["examination"] is None


def test_a_probe_that_failed_is_broken(tmp_path: Path) -> None:
    """Then Locust's exit status is that of failures, and not that of a scheduler that cannot be
    told."""
    lost = [
        answered(id=str(i), outcome="reset", session=f"probe/{i}/0/warm", name="short")
        for i in range(2)
    ]
    (tmp_path / "profile_export.jsonl").write_bytes(
        b"".join(format_record_line(one) + b"\n" for one in lost)
    )
    summary = report.write_reports(tmp_path, a_run())
    assert make_report_result(summary, a_run(), "").probe == "broken"
    assert "Reason: 2 of 2 requests failed." in render_console(summary, a_run())
