"""AIPerf 0.13's own models and the loader of `aiperf plot` take our files. Needs an interpreter
that has aiperf: AIPERF_PYTHON=/path/to/python (aiperf pins versions that would not live with ours
in one environment)."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.records import a_run, answered, failed

from locust_llm.records.profile_export_jsonl import format_record_line
from locust_llm.report.write_report_files import write_reports

LOADER = """
import json, sys
from pathlib import Path
from aiperf.common.models.export_models import JsonExportData
from aiperf.common.models.record_models import MetricRecordInfo
from aiperf.plot.core.data_loader import DataLoader

folder = Path(sys.argv[1])
data = JsonExportData.model_validate_json((folder / "profile_export_aiperf.json").read_bytes())
lines = (folder / "profile_export.jsonl").read_bytes().splitlines()
records = [MetricRecordInfo.model_validate_json(line) for line in lines]
run = DataLoader().load_run(folder)
print(json.dumps({
    "ttft_p50": data.time_to_first_token and data.time_to_first_token.p50,
    "endpoint": [str(data.input_config.endpoint.type), data.input_config.endpoint.streaming],
    "models": [model.name for model in data.input_config.models.items],
    "of_record": sorted(records[0].metrics),
    "input_throughput": (getattr(data, "input_throughput", None) or {}).get("avg"),
    "phase": data.input_config.phases[0].model_dump(mode="json", include={"concurrency", "prefill_concurrency"}),
    "errors": [error.count for error in data.error_summary],
    "record_ttft": [r.metrics["time_to_first_token"].value for r in records if "time_to_first_token" in r.metrics],
    "record_errors": [r.error and r.error.type for r in records],
    "rows": len(run.requests),
    "model": run.metadata.model,
}))
"""


EXPECTED = ("ttft_p50", "phase", "errors", "record_ttft", "record_errors", "rows", "model")


def aiperf_python() -> str:
    python = os.environ.get("AIPERF_PYTHON")
    if not python:
        pytest.skip("AIPERF_PYTHON names no interpreter with aiperf 0.13")
    if subprocess.run([python, "-c", "import aiperf"], capture_output=True).returncode:
        pytest.skip(f"{python} cannot import aiperf")
    return python


def loaded(folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [aiperf_python(), "-c", LOADER, str(folder)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def test_aiperf_loads_both_files(tmp_path: Path) -> None:
    records = [
        answered(
            100,
            120,
            150,
            admitted_at=10.0,
            headers_at=10.05,
            cached_tokens=5,
            connect_s=0.001,
            session="s",
        ),
        answered(300, 340, sent_at=11.0, id="b", merged=((1, 320_000),)),
        failed("http_status", status=500, error="boom", id="c"),
        failed("cut", chunk_us=(5000,), first_output=0, id="d"),
        failed("refused", sent_at=None, id="e", error=""),
        answered(50, phase="warmup", sent_at=1.0, id="f"),
    ]
    (tmp_path / "profile_export.jsonl").write_bytes(
        b"".join(format_record_line(record) + b"\n" for record in records)
    )
    write_reports(
        tmp_path,
        a_run(((0.0, 2),), users=30, prefill_concurrency=3, prefill_concurrency_ramp_duration=30.0),
    )
    assert {name: value for name, value in loaded(tmp_path).items() if name in EXPECTED} == {
        "ttft_p50": 200.0,
        "phase": {"concurrency": 30, "prefill_concurrency": 3},
        "errors": [1, 1],
        "record_ttft": [100.0, 300.0, 5.0, 50.0],
        "record_errors": [None, None, "http_status", "cut", "refused", None],
        "rows": 6,
        "model": "m",
    }


def test_aiperf_loads_a_run_without_a_model_a_host_or_users(tmp_path: Path) -> None:
    (tmp_path / "profile_export.jsonl").write_bytes(format_record_line(answered(100)) + b"\n")
    write_reports(tmp_path, a_run(host="", model=None, users=None, prefill_concurrency=3))
    assert loaded(tmp_path)["model"] == "unknown"


CHUNKED = {"chunk_tokens": ((1, 1), (4, 2)), "output_tokens": 9, "first_chunk_tokens": 1}


@pytest.mark.parametrize(
    ("kind", "name", "more"),
    [
        ("completions", "completions", {}),
        ("responses", "responses", {}),
        ("messages", "messages", {}),
        ("embeddings", "embeddings", {"streaming": False}),
        ("rerank", "cohere_rankings", {"streaming": False}),
        ("llamacpp", "chat", {}),  # a protocol of a locustfile, which AIPerf has not
        (
            "chat",
            "chat",
            {"per_chunk_usage": True, "model": None, "model_mix": "base=60,adapter:a/b=40"},
        ),
    ],
)
def test_aiperf_loads_the_exports_of_each_protocol(
    tmp_path: Path, kind: str, name: str, more: dict[str, Any]
) -> None:
    pooled = {
        "streamed": False,
        "inputs": 4,
        "output_tokens": None,
        "finish_reason": None,
        "tokens_from": "usage",
    }
    records = [
        answered(id=str(i), closed_at=10.2, **pooled) if more.get("streaming") is False
        else answered(100, 120, 150, id=str(i), **(CHUNKED if more else {}))
        for i in range(3)
    ]  # fmt: skip
    (tmp_path / "profile_export.jsonl").write_bytes(
        b"".join(format_record_line(record) + b"\n" for record in records)
    )
    write_reports(tmp_path, a_run(endpoint_type=kind, **more))
    found = loaded(tmp_path)
    assert found["endpoint"] == [name, more.get("streaming", True)]
    assert found["models"] == (["base", "adapter:a/b"] if "model_mix" in more else ["m"])
    assert found["rows"] == 3
    assert ("inter_token_latency" in found["of_record"], "inputs" in found["of_record"]) == (
        ("streaming" not in more), ("streaming" in more),
    )  # fmt: skip
    of_inputs = pytest.approx(60.0, abs=1e-3) if "streaming" in more else None  # 12 in 0.2 s
    assert found["input_throughput"] == of_inputs


def plotted(folder: Path) -> tuple[set[str], str]:
    """What `aiperf plot` draws of a folder, and what it says. It draws with a Chrome."""
    if not any(map(shutil.which, ("google-chrome", "chrome", "chromium", "chromium-browser"))):
        pytest.skip("aiperf plot needs a Chrome or Chromium")
    done = subprocess.run(
        [aiperf_python(), "-m", "aiperf", "plot", str(folder)],
        capture_output=True, text=True, env=os.environ | {"HOME": str(folder.parent)}, timeout=120,
    )  # fmt: skip
    images = list((folder / "plots").glob("*.png"))
    assert all(image.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" for image in images)
    assert all(image.stat().st_size > 20_000 for image in images)  # an empty one has 10 kB
    return {image.stem for image in images}, done.stdout + done.stderr


def test_aiperf_plots_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    records = [
        answered(90 + i, 150, 200 + 5 * i, sent_at=10.0 + i / 3, id=str(i)) for i in range(30)
    ]
    (folder / "profile_export.jsonl").write_bytes(
        b"".join(format_record_line(record) + b"\n" for record in records)
    )
    write_reports(folder, a_run())
    images, said = plotted(folder)
    assert images == {"ttft_over_time", "ttft_timeline"}, said


def test_aiperf_plots_the_stages_of_a_sweep_against_each_other(tmp_path: Path) -> None:
    """All that it draws by default of several runs, which takes the number of GPUs."""
    for number, users in enumerate((1, 2, 4, 8), 1):
        folder = tmp_path / "stages" / str(number)
        folder.mkdir(parents=True)
        records = [
            answered(
                50 * users + 3 * i, 60 * users + 50 + 3 * i, sent_at=10.0 + i / users, id=str(i)
            )
            for i in range(40)
        ]
        (folder / "profile_export.jsonl").write_bytes(
            b"".join(format_record_line(record) + b"\n" for record in records)
        )
        write_reports(folder, a_run(users=users, gpus=1))
    images, said = plotted(tmp_path / "stages")
    assert images == {
        "pareto_curve_throughput_per_gpu_vs_latency",
        "pareto_curve_throughput_per_gpu_vs_interactivity",
        "ttft_vs_throughput", "latency_throughput_uncertainty",
    }, said  # fmt: skip
