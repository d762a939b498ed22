"""How far off a twin is: what its check found, and what predictions of servers that were started
later showed."""

import json
import math
from pathlib import Path
from statistics import fmean

import pytest

from locust_llm.lab.twin.predict import OTHER_SETTINGS, WIDTH, standard_error_of

WRITTEN_BEFORE = ("llamacpp_what_if", "vllm_what_if", "vllm_what_if_2", "vllm_what_if_3")
AS_FITTED = ("as it was", "max-num-batched-tokens=2048")


def test_the_error_of_another_percentile_is_the_largest_of_its_metric() -> None:
    errors = {"ttft p50": 0.1, "ttft p99": 0.3, "itl p50": 0.05, "throughput": 0.02}
    assert standard_error_of("ttft p50", errors) == 0.1
    assert standard_error_of("ttft p95", errors) == 0.3
    assert standard_error_of("ttft_from_due p50", errors) == 0.3
    assert standard_error_of("ttft p50", {}) == 0.0


def test_a_metric_without_a_check_has_the_error_of_what_it_is_made_of() -> None:
    errors = {"ttft p50": 0.1, "itl p50": 0.05, "stall p95": 0.4, "throughput": 0.02}
    assert standard_error_of("request_latency p50", errors) == 0.1
    assert standard_error_of("requests/s", errors) == standard_error_of("served", errors) == 0.02


def test_other_settings_have_an_error_of_their_own() -> None:
    assert standard_error_of("ttft p95", {"ttft p95": 0.24}, other_settings=True) == pytest.approx(
        0.26
    )  # 10 to 24 as 5 to 12
    assert standard_error_of(
        "throughput", {"throughput": 0.08}, other_settings=True
    ) == pytest.approx(0.1)
    assert standard_error_of("request_latency p99", {}, other_settings=True) == 0.1


@pytest.mark.parametrize("metric", OTHER_SETTINGS)
def test_predictions_were_as_far_off_as_their_error_says(metric: str) -> None:
    """Squares of how far off they were, in standard errors, are 1 on the mean."""
    squares = [
        off**2 / (known**2 + OTHER_SETTINGS[metric] ** 2)
        for name in WRITTEN_BEFORE
        for figure, off, known in _offs(name)
        if figure.partition(" ")[0] == metric
    ]  # fmt: skip
    assert len(squares) >= 11
    assert fmean(squares) == pytest.approx(1, abs=0.03)


def _offs(name: str) -> list[tuple[str, float, float]]:
    """(figure, said / measured as a logarithm, its standard error then) of the work of the sweep at
    other settings."""
    found = json.loads((Path(__file__).parents[2] / f"data/twin/{name}.json").read_text())
    return [
        (figure, math.log(about / one["measured"][figure]), math.log(high / low) / (2 * WIDTH))
        for one in found["predictions"]
        if one["workload"] == "own" and one["set"] not in AS_FITTED
        for figure, (low, about, high) in one["said"].items()
        if figure in one["measured"]
    ]
