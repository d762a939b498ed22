"""The simulator beside measurements: the errors, and that they are computed as said."""

import math

import calibration
import pytest
from calibration import Comparison, Point, Simulated, compare, rms, saturation

from locust_llm.simulator.scheduling.step_cost import (
    FOUR_LLAMA_8B_H100,
    LLAMA_8B_H100,
    V0_LLAMA_8B_H100,
)

FREE = Point("v1", 128, 0, 10, 30, 8.0, 9.9)
FULL = Point("v1", 128, 0, 100, 3000, 20.0, 90.0)


def test_throughput_counts_where_less_was_completed_than_offered():
    twice = Simulated(1, 16.0, 9.8), Simulated(1, 40.0, 45.0)
    free, full = Comparison(FREE, twice[0]), Comparison(FULL, twice[1])
    assert free.log_errors == (pytest.approx(math.log(2)),)
    assert full.log_errors == (pytest.approx(math.log(2)), pytest.approx(-math.log(2)))
    assert rms([free, full]) == pytest.approx(math.log(2))
    assert saturation([free, full]) == pytest.approx(-math.log(2))


def test_throughput_counts_too_where_the_simulated_server_alone_is_saturated():
    comparison = Comparison(FREE, Simulated(1, 8.0, 9.0))
    assert comparison.log_errors == (0, pytest.approx(math.log(9.0 / 9.9)))


def test_a_stage_that_is_not_saturated_completes_what_is_offered():
    found = calibration.simulate(Point("v1", 128, 128, 20, 0, 0, 0), LLAMA_8B_H100)
    assert found.completed_per_s == pytest.approx(20, rel=0.01)
    # weights 4.89 ms, 2.55 + some 0.02 ms, and about 20 x 0.5 s = 10 sequences of 240 tokens of KV:
    # 0.1 ms
    assert found.tpot_ms == pytest.approx(7.6, abs=0.2)


@pytest.mark.full
def test_the_errors_are_as_small_as_promised():
    """In sample: the constants were fitted to these rows."""
    assert rms(compare(LLAMA_8B_H100, V0_LLAMA_8B_H100)) < 0.10
    assert rms(compare(FOUR_LLAMA_8B_H100, FOUR_LLAMA_8B_H100)) < 0.13


def test_the_report_has_a_line_for_each_row(monkeypatch):
    points = calibration.H100_LLAMA_8B[:2]
    monkeypatch.setattr(calibration.compare, "__defaults__", (points,))
    lines = calibration.report().splitlines()
    rows = [line for line in lines if line.startswith(("v0", "v1"))]
    assert [row.split()[2] for row in rows] == ["1", "31.4"]
    assert "In sample" in "".join(lines)
