"""Bounds: a result of few bytes and very many requests or values is refused, and fills no
memory."""

import json
import shutil
from pathlib import Path
from typing import Final

import pytest

from locust_llm.lab.interop import imported_records, read_foreign_results, result_file
from locust_llm.lab.interop.imported_records import UnusableResult
from locust_llm.lab.interop.read_foreign_results import read_imported_runs

DATA: Final = Path(__file__).parents[2] / "data" / "results"
RESULTS: Final = {
    "vllm bench": "vllm-bench-0.32.0/rate-6-detailed.json",
    "guidellm": "guidellm-0.8.1/rate-6.json",
    "AIPerf": "aiperf-0.13.0/rate-6/profile_export.jsonl",
    "inference-perf": "inference-perf-0.7.0/concurrency-8/per_request_lifecycle_metrics.json",
}


@pytest.mark.parametrize("tool", RESULTS)
def test_a_result_has_a_number_of_requests_at_most(
    tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = len(read_imported_runs(DATA / RESULTS[tool])[0].records)
    monkeypatch.setattr(imported_records, "MAX_REQUESTS", count)
    assert len(read_imported_runs(DATA / RESULTS[tool])[0].records) == count > 1
    monkeypatch.setattr(imported_records, "MAX_REQUESTS", count - 1)
    with pytest.raises(UnusableResult, match=rf"^it has more than {count - 1} requests"):
        read_imported_runs(DATA / RESULTS[tool])


def test_a_request_that_takes_two_bytes_is_one_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them had a sentence in memory on why it could not be read: 90 times the file."""
    monkeypatch.setattr(imported_records, "MAX_REQUESTS", 1000)
    path = tmp_path / "result.json"
    lists = {"ttfts": [], "itls": [], "output_lens": [], "start_times": [0] * 1001}
    path.write_text(json.dumps({"mean_ttft_ms": 1, "request_throughput": 1, **lists}))
    with pytest.raises(UnusableResult, match=r"^it has more than 1,000 requests"):
        read_imported_runs(path)


def test_a_file_has_a_number_of_values_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before they are decoded, by whatever reads the file."""
    path = tmp_path / "result.json"
    shutil.copy(DATA / RESULTS["vllm bench"], path)
    monkeypatch.setattr(result_file, "MAX_VALUES", 20_000)
    assert read_foreign_results.read_figures(path)[0].requests == 100
    result = json.loads(path.read_bytes())
    path.write_text(json.dumps({**result, "more": [[]] * 10_001}))  # a comma and a bracket each
    for read in (read_imported_runs, read_foreign_results.read_figures):
        with pytest.raises(OSError, match=r"result\.json has more than 20,000 values"):
            read(path)
