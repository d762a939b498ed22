"""inference-doctor 0.4.1 and llmd-benchmark-report 0.2.1 read what we write. Needs an interpreter
that has both: EXPORTS_PYTHON=/path/to/python (make test-exports makes one)."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.records import a_run, answered, failed

from locust_llm.lab.interop import export_command
from locust_llm.records.profile_export_jsonl import format_record_line
from locust_llm.records.record import Record
from locust_llm.report.write_report_files import write_reports

VERSIONS = {"inference-doctor": "0.4.1", "llmd-benchmark-report": "0.2.1"}
LOADER = """
import json, sys
from importlib.metadata import version
from llmd_benchmark_report import import_benchmark_report
from llmd_benchmark_report.native_to_br0_2 import import_aiperf, import_vllm_benchmark

folder = sys.argv[1]
ours = import_benchmark_report(folder + "/benchmark_report.json")
made = [ours, import_aiperf(folder + "/profile_export_aiperf.json"), import_vllm_benchmark(folder + "/vllm_bench.json")]
found = [one.results.request_performance.aggregate for one in made]
print(json.dumps({
    "versions": {name: version(name) for name in ("inference-doctor", "llmd-benchmark-report")},
    "schema": ours.version,
    "requests": [[one.requests.total, one.requests.failures] for one in found],
    "ttft": [(of.p50, {"s": 1, "ms": 1e-3}[of.units]) for of in (one.latency.time_to_first_token for one in found)],
    "tokens_per_s": [one.throughput.output_token_rate.mean for one in found],
    "concurrency": ours.scenario.load.standardized.concurrency,
}))
"""


@pytest.fixture(scope="module")
def python() -> str:
    found = os.environ.get("EXPORTS_PYTHON")
    if not found:
        pytest.skip(
            "EXPORTS_PYTHON names no interpreter with inference-doctor and llmd-benchmark-report"
        )
    return found


def exported(path: Path, *more: Record) -> Path:
    """Nine requests, and ``more``."""
    records = [
        answered(100 + i, 120 + i, 150 + 2 * i, sent_at=10.0 + i, id=str(i)) for i in range(9)
    ]
    records += more
    (path / "profile_export.jsonl").write_bytes(
        b"".join(format_record_line(record) + b"\n" for record in records)
    )
    write_reports(path, a_run())
    for name in ("vllm-bench", "benchmark-report"):
        assert export_command.run_export([str(path), "--format", name]) == 0
    return path


def test_benchmark_report_reads_all_three(tmp_path: Path, python: str) -> None:
    folder = exported(tmp_path, failed("http_status", id="f", status=500, error="boom"))
    done = subprocess.run([python, "-c", LOADER, str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["versions"] == VERSIONS
    assert (found["schema"], found["concurrency"]) == ("0.2.1", 2)
    assert found["requests"] == [[10, 1]] * 3
    assert [value * scale for value, scale in found["ttft"]] == pytest.approx([0.104] * 3)
    assert found["tokens_per_s"] == pytest.approx([27 / 8.166] * 3, rel=1e-5)


@pytest.mark.parametrize(
    ("file", "source"), [("vllm_bench.json", "vllm"), ("profile_export_aiperf.json", "aiperf")]
)
def test_inference_doctor_compares_them(
    python: str, tmp_path: Path, file: str, source: str
) -> None:
    (tmp_path / "run").mkdir()
    folder = exported(tmp_path / "run")
    sides = [tmp_path / side for side in ("baseline", "candidate")]
    for side in sides:
        side.mkdir()
        for number in range(3):
            shutil.copy(folder / file, side / f"{number}.json")
    doctor = Path(python).with_name("inference-doctor")
    words = [word for side in sides for word in (f"--{side.name}", str(side))]
    done = subprocess.run(
        [doctor, "compare-runs", *words, "--metric", "ttft_p99_ms"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "RESULT: PASS" in done.stdout
    assert f"Input: {source} results" in done.stdout
    assert "107.92" in done.stdout  # p99 of 100 to 108 ms
