"""Gaps that are too short for a step, by pencil."""

import pytest

from locust_llm.probe.step_count import short_gaps

LINEAR = [(0.0, 0.0), (8000.0, 0.8)]
SQUARED = [(1000.0 * k, k * k) for k in range(5)]
"""Attention alone: four steps of 1,000 tokens take 1, 3, 5 and 7 s."""


@pytest.mark.parametrize(
    ("steps", "curve", "short"),
    [
        ([0.2, 0.2, 0.2, 0.2], LINEAR, 0),
        ([0.2, 0.2, 0.2, 0.05], LINEAR, 0),  # the last one is what is left
        ([0.05, 0.2, 0.2, 0.2, 0.05], LINEAR, 1),
        ([0.05, 0.03, 0.2, 0.04, 0.2, 0.1], LINEAR, 3),
        ([0.2, 0.11, 0.2, 0.2], LINEAR, 0),  # more than half
        ([0.14, 0.2, 0.2, 0.2], LINEAR, 1),  # less than three quarters, and the first
        ([0.16, 0.2, 0.2, 0.2], LINEAR, 0),
        ([0.2, 0.4, 0.2, 0.2], LINEAR, 0),  # two steps in one chunk are no measure for the others
        ([1.0, 3.0, 5.0, 7.0], SQUARED, 0),
        ([0.4, 1.0, 3.0, 5.0, 7.0], SQUARED, 1),
        ([0.2], LINEAR, 0),
        ([0.05, 0.2, 0.2], [(0.0, 0.0)], 0),  # nothing is known of prompts alone
        ([0.05, 0.2, 0.2], [(0.0, 0.0), (4000.0, 0.4), (8000.0, 0.4)], 2),  # measured too flat: both may be too short
    ],
)
def test_gaps_too_short_for_a_step(steps: list[float], curve: list[tuple[float, float]], short: int) -> None:
    assert short_gaps(steps, curve) == short
