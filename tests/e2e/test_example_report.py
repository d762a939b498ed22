"""The example report in reports/example: its figures agree with each other and with its records."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

import locust_llm
from locust_llm.report.write_report_files import Results

EXAMPLE = Path(__file__).parents[2] / "reports" / "example"


@pytest.fixture(scope="module")
def results() -> Results:
    if not EXAMPLE.is_dir():
        pytest.skip("only a checkout has reports/example (make example)")
    return locust_llm.read(EXAMPLE)


@pytest.fixture(scope="module")
def said() -> dict[str, dict[str, float]]:
    """The exported summary: by tag, its statistics."""
    found: dict[str, dict[str, float]] = msgspec.json.decode(
        (EXAMPLE / "profile_export_aiperf.json").read_bytes()
    )
    return found


def test_latency_is_ttft_and_the_gaps(results: Results) -> None:
    requests = results.requests[results.requests["outcome"] == "ok"]
    gaps_s = results.gaps.groupby("id", observed=True)["gap_s"].sum()
    ours = requests["ttft_s"] + requests["id"].map(gaps_s).astype(float).fillna(0.0)
    assert np.abs(ours - requests["latency_s"]).max() < 1e-6


def test_count_over_time_is_the_rate(results: Results, said: dict[str, dict[str, float]]) -> None:
    main = results.requests[results.requests["phase"] == "profiling"]
    ok = main[main["outcome"] == "ok"]
    seconds = said["benchmark_duration"]["avg"]
    last_chunk = (main["sent_at"] + main["latency_s"]).max()
    assert seconds == pytest.approx(
        max(main["closed_at"].max(), last_chunk) - main["sent_at"].min(), abs=1e-4
    )
    assert said["request_throughput"]["avg"] == pytest.approx(len(ok) / seconds, rel=1e-5)
    assert said["output_token_throughput"]["avg"] == pytest.approx(
        ok["output_tokens"].sum() / seconds, rel=1e-5
    )
    assert said["request_count"]["avg"] == len(ok)


def test_percentiles_are_those_of_the_records(
    results: Results, said: dict[str, dict[str, float]]
) -> None:
    ok = results.requests[
        (results.requests["outcome"] == "ok") & (results.requests["phase"] == "profiling")
    ]
    for tag, column in (
        ("time_to_first_token", "ttft_s"),
        ("inter_token_latency", "itl_s"),
        ("request_latency", "latency_s"),
    ):
        for percentile in (50, 90, 95, 99):
            exact = float(np.percentile(ok[column].dropna(), percentile)) * 1e3
            assert said[tag][f"p{percentile}"] == pytest.approx(exact, abs=1e-5), (tag, percentile)


def test_littles_law(results: Results) -> None:
    """Mean number inside = arrivals a second x mean time inside; each summed up on its own, over a
    window inside the run."""
    sent = results.requests[results.requests["sent_at"].notna()]
    start, end = np.quantile(sent["sent_at"], (0.1, 0.9))
    grid = np.linspace(start, end, 20_001)
    begun = np.searchsorted(np.sort(sent["sent_at"]), grid)
    ended = np.searchsorted(np.sort(sent["closed_at"]), grid)
    inside = float((begun - ended).mean())
    window = sent[(sent["closed_at"] > start) & (sent["closed_at"] <= end)]
    rate_per_s = len(window) / (end - start)
    assert inside == pytest.approx(
        rate_per_s * float((window["closed_at"] - window["sent_at"]).mean()), rel=0.1
    )


def test_rate_times_ttft_is_within_the_limit(results: Results) -> None:
    """Little's law of the prefill phase: what the gate lets in at a time bounds it."""
    limit = results.run.settings.prefill_concurrency
    assert limit is not None
    sent = results.requests[results.requests["sent_at"].notna()]
    seconds = float(sent["sent_at"].max() - sent["sent_at"].min())
    assert len(sent) / seconds * float(sent["ttft_s"].mean()) <= limit * 1.02


def test_each_rule_is_decided_and_the_load_generator_kept_up(results: Results) -> None:
    summary = msgspec.json.decode((results.folder / "run.json").read_bytes())
    assert {slo["status"] for slo in summary["slos"]} == {"PASS"}
    assert summary["client"]["level"] == "OK"
