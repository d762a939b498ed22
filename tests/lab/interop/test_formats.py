"""Formats: files as the tools wrote them (tests/data/results/README.md): their figures are read,
and can be true."""

from pathlib import Path
from typing import Final

import pytest

from locust_llm.lab.interop import read_foreign_results
from locust_llm.lab.interop.audit import AuditOutcome, audit_figures
from locust_llm.lab.interop.load_metrics import Figures

DATA: Final = Path(__file__).parents[2] / "data" / "results"


def one(name: str) -> Figures:
    (figures,) = read_foreign_results.read_figures(DATA / name)
    return figures


@pytest.mark.parametrize(
    ("name", "tool", "requests", "places", "rate", "ttft_ms", "p50_ms", "tpot_ms", "latency_s",
        "tokens"),
    [
        ("aiperf-0.13.0/concurrency-8", "AIPerf 0.13.0", 100, 8, None, 54.21, 46.02, 10.83, 1.016,
            (128, 89.89)),
        ("aiperf-0.13.0/rate-6", "AIPerf 0.13.0", 100, None, 6, 43.91, 37.11, 15.03, 0.9906,
            (92.14, 64)),
        ("vllm-bench-0.32.0/concurrency-8.json", "vllm bench", 100, 8, None, 104.1, 114.1, 15.3,
            1.068, (170.1, 64)),
        ("vllm-bench-0.32.0/rate-6-detailed.json", "vllm bench", 100, None, 6, 37.43, 36.15, 15.1,
            0.9888, (170.1, 64)),
        ("guidellm-0.8.1/concurrency-8.json", "guidellm 0.8.1 concurrent",
         99, 8, None, 60.05, 52.54, 15.14, 1.022, (105.2, 64)),
        ("guidellm-0.8.1/rate-6.json", "guidellm 0.8.1 poisson", 100, None, 6, 48.35, 43.1, 15.4,
            1.025, (105.1, 64)),
        ("genai-bench-0.0.5/concurrency-8/D128_64_text-to-text_num_concurrency_8_time_17s.json",
            "genai-bench D(128,64)",
         104, 8, None, 159.0, 132.7, 15.97, 1.165, (102.5, 64)),
        ("inference-perf-0.7.0/concurrency-8/stage_0_lifecycle_metrics.json", "inference-perf",
         100, 8, None, 36.29, 32.63, 10.88, 1.002, (154.3, 89.59)),
        ("evalscope-1.14.1/concurrency-8", "evalscope", 100, 8, None, 65.74, 68.41, 15.38, 1.035,
            (157.0, 64)),
        ("evalscope-1.14.1/rate-6", "evalscope", 100, None, 6, 30.07, 29.23, 15.24, 0.9901,
            (157.9, 64)),
        ("locust-llm/concurrency-8", "locust-llm", 100, 8, None, 42.04, 40.97, 15.28, 1.005,
            (127.99, 64)),
    ],
)  # fmt: skip
def test_figures_of_a_file(
    name: str, tool: str, requests: int, places: int | None, rate: float | None, ttft_ms: float,
    p50_ms: float,
    tpot_ms: float, latency_s: float, tokens: tuple[float, float],
) -> None:  # fmt: skip
    """As the file has them, with four digits."""
    figures = one(name)
    assert (figures.title, figures.requests, figures.concurrency, figures.rate_per_s) == (
        tool,
        requests,
        places,
        rate,
    )
    values = [
        figures.ttft.avg,
        figures.ttft.percentiles[50.0],
        figures.tpot.avg,
        figures.latency.avg,
    ]
    assert [None if value is None else float(f"{value:.4g}") for value in values] == pytest.approx(
        [ttft_ms / 1e3, p50_ms / 1e3, tpot_ms / 1e3, latency_s], rel=1e-3
    )
    assert [figures.input_tokens.avg, figures.output_tokens.avg] == pytest.approx(tokens, rel=1e-3)
    found = audit_figures(figures)
    assert not [line for line in found if line.verdict is AuditOutcome.IMPOSSIBLE]
    assert len(found) > 15


def test_without_the_percentiles_beside_it_evalscopes_summary_is_read_all_the_same(
    tmp_path: Path,
) -> None:
    path = DATA / "evalscope-1.14.1" / "rate-6" / "benchmark_summary.json"
    (tmp_path / path.name).write_bytes(path.read_bytes())
    (figures,) = read_foreign_results.read_figures(tmp_path)
    assert (figures.ttft.avg, figures.ttft.percentiles) == (pytest.approx(0.03007), {})


def test_our_own_verdict_on_the_client_is_read(tmp_path: Path) -> None:
    """It stands in the conditions of a run folder; an imported run has none."""
    raw = (DATA / "locust-llm" / "concurrency-8" / "profile_export_aiperf.json").read_text()
    for verdict, doubts in (("OK", []), ("INVALID", ["client"])):
        (tmp_path / "profile_export_aiperf.json").write_text(
            raw.replace('"client_verdict": "OK"', f'"client_verdict": "{verdict}"')
        )
        (figures,) = read_foreign_results.read_figures(tmp_path)
        assert figures.client == verdict
        assert [
            one.rule
            for one in audit_figures(figures)
            if one.rule == "client" and one.verdict is not AuditOutcome.HOLDS
        ] == doubts


def test_what_runs_on_a_real_server_came_to_can_be_true() -> None:
    """The same vLLM, measured by six tools and ours; whatever else lies there is read too, or
    refused."""
    read = 0
    for path in sorted(DATA.rglob("*.json")):
        try:
            loads = read_foreign_results.read_figures(path)
        except read_foreign_results.UnknownFormat:
            continue
        read += 1
        wrong = [
            one
            for figures in loads
            for one in audit_figures(figures)
            if one.verdict is AuditOutcome.IMPOSSIBLE
        ]
        assert not wrong, path
    assert read >= 20
