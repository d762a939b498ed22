"""Exports: figures of three requests that one can get with a pencil, by each format's own
definitions."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.records import UNIX, a_run, answered, failed

from locust_llm.lab.interop import export_command as command
from locust_llm.lab.interop import import_command as imports
from locust_llm.lab.interop.measured_requests import MeasuredRun, select_measured_run, sent_s
from locust_llm.lab.interop.tool_registry import list_export_formats
from locust_llm.lab.interop.vllm_bench_export import fullest_second, most_at_once
from locust_llm.records.profile_export_jsonl import format_record_line
from locust_llm.records.record import Record
from locust_llm.records.run_facts import write_run

THREE = [
    answered(
        100,
        200,
        300,
        id="a",
        sent_at=10.0,
        input_tokens=10,
        asked_input_tokens=16,
        asked_output_tokens=4,
    ),
    answered(
        200,
        250,
        id="b",
        sent_at=10.5,
        input_tokens=20,
        asked_input_tokens=16,
        asked_output_tokens=4,
    ),
    answered(
        300,
        400,
        500,
        600,
        id="c",
        sent_at=11.0,
        input_tokens=30,
        asked_input_tokens=16,
        asked_output_tokens=4,
    ),
    failed("http_status", id="d", sent_at=10.2, closed_at=10.3, status=500, error="boom"),
    failed("cut", id="e", sent_at=10.3, closed_at=11.6),
    answered(1, 2, id="w", sent_at=1.0, phase="warmup"),
]
"""TTFT 100, 200, 300 ms; latency 300, 250, 600; TPOT 100, 50, 100; gaps 50 once and 100 five times;
1.6 s; 60 and 9 tokens."""


def a_folder(folder: Path, *more: Record, **settings: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "profile_export.jsonl").write_bytes(
        b"".join(format_record_line(one) + b"\n" for one in [*THREE, *more])
    )
    write_run(folder, a_run(**settings))
    return folder


def exported(folder: Path, name: str, *words: str) -> Any:
    assert command.run_export([str(folder), "--format", name, *words]) == 0
    return json.loads((folder / list_export_formats()[name].file).read_bytes())


def test_vllm_bench(tmp_path: Path) -> None:
    found = exported(a_folder(tmp_path), "vllm-bench", "--set", "tp=8", "--set", "hw=h200")
    expected = {
        "backend": "openai-chat", "model_id": "m", "num_prompts": 4, "request_rate": "inf",
        "max_concurrency": 2, "tp": 8,
        "hw": "h200", "duration": 1.6, "completed": 3, "failed": 1, "total_input_tokens": 60,
        "total_output_tokens": 9,
        "request_throughput": 3 / 1.6, "output_throughput": 9 / 1.6,
        "total_token_throughput": 69 / 1.6,
        "mean_ttft_ms": 200, "median_ttft_ms": 200, "std_ttft_ms": (20_000 / 3) ** 0.5,
        "p99_ttft_ms": 298,
        "mean_tpot_ms": 250 / 3, "p50_tpot_ms": 100, "mean_itl_ms": 550 / 6, "median_itl_ms": 100,
        "p90_e2el_ms": 540,
        # in the second that begins with the first send are a's three chunks and b's two; c sends
        # and ends in the next one
        "max_output_tokens_per_s": 5, "max_concurrent_requests": 2, "rtfx": 0,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == {
        name: value if isinstance(value, str) else pytest.approx(value, rel=1e-5)
        for name, value in expected.items()
    }
    assert found["request_goodput"] is None
    assert not {"burstiness", "ttfts", "itls"} & {*found}
    assert [one["metric"]["name"] for one in exported(tmp_path, "pytorch")][:2] == [
        "mean_ttft_ms",
        "median_ttft_ms",
    ]
    opened = exported(
        a_folder(tmp_path / "open", request_rate=2.0, arrival_pattern="constant"), "vllm-bench"
    )
    assert (opened["request_rate"], opened["max_concurrency"], "burstiness" in opened) == (
        2.0,
        None,
        False,
    )


def test_what_vllm_bench_gets_comes_back_by_import(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = exported(a_folder(tmp_path / "a"), "vllm-bench", "--detailed")
    assert first["ttfts"] == [0.1, 0.0, 0.2, 0.3]  # by their sends
    assert (
        imports.run_import(
            [str(tmp_path / "a" / "vllm_bench.json"), "--report-dir", str(tmp_path / "b")]
        )
        == 0
    ), capsys.readouterr()
    said = " ".join(capsys.readouterr().out.split())
    assert "locust-llm measured this, and exported it to the format of vllm bench." in said
    assert "SIMULATED" not in said
    again = exported(tmp_path / "b", "vllm-bench", "--detailed")
    lost = {"date", "start_times"}  # its clock has no date
    assert {name: again[name] for name in first if name not in lost} == {
        name: pytest.approx(value, rel=1e-5) if isinstance(value, float) else value
        for name, value in first.items()
        if name not in lost
    }


def test_a_simulated_run_stays_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = a_folder(tmp_path / "a")
    write_run(folder, replace(a_run(), simulated=True))
    exported(folder, "vllm-bench", "--detailed", "--set", "simulated=false")
    words = [str(folder / "vllm_bench.json"), "--report-dir", str(tmp_path / "b")]
    assert imports.run_import(words) == 0
    assert "SIMULATED: these results come from a simulator" in capsys.readouterr().out
    assert exported(tmp_path / "b", "vllm-bench")["simulated"] is True


def test_a_format_without_a_place_for_the_mark_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = a_folder(tmp_path)
    exported(folder, "benchmark-report")
    assert capsys.readouterr().err == ""
    write_run(folder, replace(a_run(), simulated=True))
    exported(folder, "benchmark-report")
    assert capsys.readouterr().err.startswith(
        "WARNING: benchmark-report has no place for this: SIMULATED: these results come"
    )


def test_gaps_that_the_report_leaves_out_are_counted_aloud(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 6 + 3 gaps the second and third chunk's are not sharp: all three of that answer."""
    exported(a_folder(tmp_path / "sharp"), "vllm-bench")
    assert capsys.readouterr().err == ""
    merged = answered(100, 120, 120, 140, id="m", merged=((1, 110_000), (2, 110_000)))
    found = exported(a_folder(tmp_path / "merged", merged), "vllm-bench")
    assert capsys.readouterr().err == (
        "3 of 9 gaps have a chunk that came in one read with others. The format's inter-token "
        "latency counts them, the report's Inter Chunk Latency does not.\n"
    )
    assert found["mean_itl_ms"] == pytest.approx((550 + 40) / 9)


def test_without_counts_and_gaps_they_are_left_out(tmp_path: Path) -> None:
    uncounted = answered(
        300, 400, id="u", sent_at=10.1, output_tokens=None, tokens_from="", lacks=("gaps",)
    )
    found = exported(a_folder(tmp_path, uncounted, gpus=2), "vllm-bench", "--detailed")
    assert not [
        name
        for name in found
        if "tpot" in name or "itl" in name or "token_throughput" in name or "_lens" in name
    ]
    assert found["completed"] == 4
    report = exported(tmp_path, "benchmark-report")
    assert "scenario" not in report
    assert [*report["results"]["request_performance"]["aggregate"]["throughput"]] == [
        "request_rate"
    ]


def test_a_sweep_is_exported_by_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_folder(tmp_path / "stages" / "1")
    a_folder(tmp_path)
    assert command.run_export([str(tmp_path), "--format", "vllm-bench"]) == 5
    assert "it is a sweep" in capsys.readouterr().err


def test_one_answer_in_one_piece_is_a_run() -> None:
    """It has no chunks."""
    one = answered(sent_at=10.0, closed_at=12.5, streamed=False, clock_offset_s=0.0)
    found = select_measured_run(a_run(), [one])
    assert (found.began_s, found.ended_s) == (10.0, 12.5)


@pytest.mark.parametrize("apart_s", [0.5, 1e9, -1e9, 1e11])
def test_seconds_without_a_request_take_no_memory(apart_s: float) -> None:
    """Of three answers two share a second; the third is up to 3,000 years away."""
    far = answered(100, 200, sent_at=10.0, clock_offset_s=apart_s)
    near = [
        answered(100, 200, 300, sent_at=10.25, clock_offset_s=0.0),
        answered(100, sent_at=10.25, clock_offset_s=0.0),
    ]
    ok = tuple(sorted([far, *near], key=sent_s))
    found = MeasuredRun(a_run(), ok, (), 0, sent_s(ok[0]), sent_s(ok[-1]))
    together = apart_s == 0.5
    tracemalloc.start()
    assert (fullest_second(found), most_at_once(found)) == ((6.0, 3) if together else (4.0, 2))
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()


def test_benchmark_report(tmp_path: Path) -> None:
    found = exported(a_folder(tmp_path), "benchmark-report")
    aggregate = found["results"]["request_performance"]["aggregate"]
    requests, latency = aggregate["requests"], aggregate["latency"]
    assert (requests["total"], requests["failures"], requests["incomplete"]) == (5, 1, 1)
    assert requests["input_length"]["mean"] == 20
    ttft = latency["time_to_first_token"]
    assert (ttft["units"], ttft["p50"], ttft["stddev"]) == (
        "s",
        pytest.approx(0.2),
        pytest.approx(0.1),
    )
    assert latency["normalized_time_per_output_token"]["mean"] == pytest.approx(
        (0.1 + 0.125 + 0.15) / 3
    )
    assert latency["inter_token_latency"]["min"] == pytest.approx(0.05)
    load = found["scenario"]["load"]["standardized"]
    assert (load["tool"], load["concurrency"], load["input_seq_len"]["min"]) == (
        "locust-llm",
        2,
        10,
    )
    assert found == exported(tmp_path, "benchmark-report")  # its ids too
    assert "server:8000" not in json.dumps(found)


def test_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert command.run_export([str(a_folder(tmp_path)), "--format", "parquet"]) == 0
    table = parquet.read_table(tmp_path / "records.parquet")
    assert table.num_rows == 6
    rows = {row["id"]: row for row in table.to_pylist()}
    assert rows["a"]["chunk_us"] == [100_000, 200_000, 300_000]
    assert (rows["a"]["sent_at"], rows["a"]["ttft_s"]) == (UNIX + 10, 0.1)
    assert (rows["d"]["outcome"], rows["d"]["ttft_s"], rows["w"]["phase"]) == (
        "http_status",
        None,
        "warmup",
    )
    assert table.schema.field("chunk_us").metadata == {b"unit": b"us after sent_at"}
    assert table.schema.metadata[b"tool"] == b"locust-llm"
    assert b"simulated" not in table.schema.metadata
    write_run(tmp_path, replace(a_run(), simulated=True))
    assert command.run_export([str(tmp_path), "--format", "parquet"]) == 0
    about = parquet.read_table(tmp_path / "records.parquet").schema.metadata
    assert about[b"simulated"] == b"true"


@pytest.mark.parametrize(
    ("words", "why"),
    [(["--set", "x"], "KEY=VALUE"), (["--out", "/nowhere/x"], "/nowhere/x: No such file")],
)
def test_refused(
    tmp_path: Path, words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run_export([str(a_folder(tmp_path)), "--format", "vllm-bench", *words]) == 5
    assert why in capsys.readouterr().err


def test_a_folder_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run_export([str(tmp_path), "--format", "vllm-bench"]) == 5
    (tmp_path / "profile_export.jsonl").write_bytes(b"")
    write_run(tmp_path, a_run())
    assert command.run_export([str(tmp_path), "--format", "parquet"]) == 5
    assert capsys.readouterr().err.count("locust-llm: error: ") == 2
