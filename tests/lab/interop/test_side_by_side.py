"""Results beside each other: a difference where the loads are alike, the reason where they are
not."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from locust_llm.exit_status import ExitStatus
from locust_llm.lab.compare_command import run_compare
from locust_llm.lab.interop.audit_command import run_audit
from locust_llm.lab.interop.load_metrics import Distribution, Figures
from locust_llm.lab.interop.read_foreign_results import holds_foreign_result
from locust_llm.lab.interop.side_by_side import (
    build_result_table,
    find_unlike_conditions,
    format_results_markdown,
)

BASE = Figures(
    tool="one", model="m", concurrency=8, requests=1000, requests_per_s=4.0,
    input_tokens=Distribution(avg=100.0),
    output_tokens=Distribution(avg=90.0), server_output_tokens=64.0,
    ttft=Distribution(avg=0.2, percentiles={99.0: 0.4}),
)  # fmt: skip


@pytest.mark.parametrize(
    ("other", "why"),
    [
        # of one tokenizer
        (replace(BASE, output_tokens=Distribution(avg=64.0), server_output_tokens=None), ""),
        (replace(BASE, model="", concurrency=None), ""),  # what it does not say is no reason
        (replace(BASE, model="n"), "model n instead of m"),
        (replace(BASE, concurrency=16), "in flight at most 16 instead of 8"),
        (
            replace(BASE, input_tokens=Distribution(avg=106.0)),
            "input tokens 106 instead of 100 on average",
        ),
        (
            replace(BASE, input_tokens=Distribution(avg=103.0)),
            "input tokens 103 instead of 100 on average",
        ),
        (replace(BASE, tool="two", input_tokens=Distribution(avg=104.0)), ""),  # tokenizers differ
        (
            replace(BASE, tool="two", input_tokens=Distribution(avg=106.0)),
            "input tokens 106 instead of 100 on average",
        ),
        (replace(BASE, server_output_tokens=80.0), "output tokens 80 instead of 64 on average"),
        (
            replace(BASE, concurrency=None, rate_per_s=5.0),
            "one is an open loop, the other a closed one",
        ),
    ],
)
def test_what_is_another_load(other: Figures, why: str) -> None:
    assert find_unlike_conditions(BASE, other) == why


def test_the_table() -> None:
    alike = replace(
        BASE, tool="two", ttft=Distribution(avg=0.3, percentiles={99.0: 0.5}), requests_per_s=3.0
    )
    said = format_results_markdown(
        build_result_table(
            [(Path("a"), BASE), (Path("b"), alike), (Path("c"), replace(alike, model="n"))]
        )
    )
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in said.splitlines()
        if line.startswith("|")
    ]
    found = {row[0]: row[1:] for row in rows}
    assert found["file"] == ["a", "b", "c"]
    assert found[""] == ["one", "two (1)", "two (2)"]
    assert found["TTFT mean, ms"] == ["200", "300 (+50.0%)", "300"]
    assert found["requests/s"] == ["4", "3 (-25.0%)", "3"]
    assert "latency p99, ms" not in found
    assert said.startswith(
        "two (2) had another load than one: model n instead of m. So no differences are shown.\n"
    )
    assert "They have no intervals" in said
    assert (
        "one: doubtful: token counts: 90 tokens per response by the tool's tokenizer, 64 by the "
        "server's usage" in said
    )


def test_files_of_other_tools_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = {"mean_ttft_ms": 500.0, "request_throughput": 4.0, "completed": 100, "duration": 25.0}
    for name, ttft in (("a.json", 500.0), ("b.json", 400.0)):
        (tmp_path / name).write_text(json.dumps({**bench, "mean_ttft_ms": ttft}))
    assert run_compare([str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == ExitStatus.OK
    printed = capsys.readouterr().out
    assert "400 (-20.0%)" in printed
    to = [str(tmp_path / name) for name in ("table.md", "figures.json", "page.html")]
    files = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    assert (
        run_compare([*files, "--markdown", to[0], "--json", to[1], "--html", to[2]])
        == ExitStatus.OK
    )
    assert Path(to[0]).read_text() == printed
    assert [one["figures"]["ttft"]["avg"] for one in json.loads(Path(to[1]).read_text())] == [
        0.5,
        0.4,
    ]
    assert "400 (-20.0%)" in Path(to[2]).read_text()
    assert (
        run_compare([*files, "--markdown", str(tmp_path / "no" / "table.md")]) == ExitStatus.REFUSED
    )
    (tmp_path / "b.json").write_text("{")
    assert run_compare([str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == ExitStatus.REFUSED
    assert "b.json: it is not JSON" in capsys.readouterr().err


RESULTS = Path(__file__).parents[2] / "data" / "results"


def test_folders_that_audit_reads_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two folders of AIPerf, without and with the file of their requests, whose name is that of
    ours."""
    folders = [RESULTS / "aiperf-0.13.0" / name for name in ("concurrency-8", "rate-6")]
    assert run_audit([str(folders[0])]) == ExitStatus.OK
    assert run_compare([str(folder) for folder in folders]) == ExitStatus.OK
    assert "AIPerf 0.13.0 (1)" in capsys.readouterr().out
    whole = tmp_path / "whole"
    whole.mkdir()
    name = "profile_export_aiperf.json"
    (whole / name).write_bytes((folders[0] / name).read_bytes())
    (whole / "profile_export.jsonl").write_text('{"metadata":{"session_num":0},"metrics":{}}\n')
    assert holds_foreign_result(whole)
    assert run_compare([str(whole), str(folders[1])]) == ExitStatus.OK
    (whole / "run.json").write_text("{}")
    assert not holds_foreign_result(whole)  # a run of ours has that summary too
    (whole / "run.json").unlink()
    (whole / "profile_export.jsonl").write_text('{"metadata":{},"record":{}}\n')
    assert not holds_foreign_result(whole)


def test_a_folder_of_another_tool_without_a_known_name_is_told_the_way(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = str(RESULTS / "inference-perf-0.7.0" / "rate-6")
    assert run_compare([folder, folder]) == ExitStatus.REFUSED
    assert (
        f"{folder} is not a run folder: it has no profile_export.jsonl. To compare a result of another "
        "tool, name its file" in capsys.readouterr().err
    )
    assert run_audit([folder]) == ExitStatus.REFUSED
    assert "benchmark_summary.json: name the file with the metrics" in capsys.readouterr().err
