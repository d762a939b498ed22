"""How far off a twin is: what its check found, and more the further away one asks."""

import math

import pytest

from locust_llm.lab.twin.twin_model import SchedulerSettings
from locust_llm.lab.twin.twin_prediction import (
    OTHER_POLICY,
    PER_OCTAVE,
    lengths_apart,
    settings_apart,
    standard_error_of,
)


def test_the_error_of_another_percentile_is_the_largest_of_its_metric() -> None:
    errors = {"ttft p50": 0.1, "ttft p99": 0.3, "itl p50": 0.05, "throughput": 0.02}
    assert standard_error_of("ttft p50", errors) == 0.1
    assert standard_error_of("ttft p95", errors) == 0.3
    assert standard_error_of("ttft_from_due p50", errors) == 0.3
    assert standard_error_of("ttft p99", errors) == pytest.approx(1.5 * 0.3)
    assert standard_error_of("ttft p50", {}) == 0.0


def test_a_metric_without_a_check_has_the_error_of_what_it_is_made_of() -> None:
    errors = {"ttft p50": 0.1, "itl p50": 0.05, "stall p95": 0.4, "throughput": 0.02}
    assert standard_error_of("request_latency p50", errors) == 0.1
    assert standard_error_of("requests/s", errors) == standard_error_of("served", errors) == 0.02


def test_the_square_of_an_error_grows_with_the_distance() -> None:
    per_octave = PER_OCTAVE["ttft"]
    assert standard_error_of("ttft p95", {"ttft p95": 2.4 * per_octave}, 1.0) == pytest.approx(
        2.6 * per_octave
    )  # 10 and 24 as 26
    assert standard_error_of("ttft avg", {}, 9.0) == 3 * per_octave
    assert standard_error_of("request_latency p90", {}, 4.0) == 2 * per_octave


def plain(budget: int = 1024, **more: int) -> SchedulerSettings:
    return SchedulerSettings(policy="chunked", max_num_batched_tokens=budget, **more)


@pytest.mark.parametrize(
    ("other", "octaves"),
    [
        (plain(), 0.0),
        (plain(512), 1.0),
        (plain(4096), 2.0),
        (plain(long_prefill_token_threshold=128), 3.0),
        (plain(2048, max_num_partial_prefills=2), 0.0),
        (plain(max_num_seqs=8), 1.0),
        (SchedulerSettings(policy="mixed", max_num_batched_tokens=1024), OTHER_POLICY),
    ],
)
def test_settings_are_apart_by_factors_of_two(other: SchedulerSettings, octaves: float) -> None:
    assert settings_apart(plain(), other) == settings_apart(other, plain()) == octaves
    assert settings_apart(other, other) == 0.0


def test_two_limits_are_apart_by_their_ratio() -> None:
    assert settings_apart(plain(max_num_seqs=32), plain(max_num_seqs=8)) == 2.0


def test_lengths_are_apart_by_their_mean_factor_of_two() -> None:
    """Half of the prompts four times as long; all answers half as long."""
    assert lengths_apart([(100, 10)], [(100, 10)] * 7) == 0.0
    assert lengths_apart([(100, 10), (100, 10)], [(100, 10), (400, 10)]) == pytest.approx(
        1.0, abs=0.05
    )
    assert lengths_apart([(100, 10)], [(100, 5)]) == pytest.approx(1.0)
    assert lengths_apart([(100, 10)], []) == 0.0
    assert math.isclose(lengths_apart([(1, 1)], [(8, 1)]), 3.0)
