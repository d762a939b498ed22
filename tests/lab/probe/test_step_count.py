"""Gaps that may be steps or pauses, by pencil."""

import pytest

from locust_llm.lab.probe.probe_measurements import count_doubtful_steps, drop_steps_before_pause

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
        ([0.2, 0.4, 0.2, 0.2], LINEAR, 0),  # two steps in one chunk are no measure for the others
        ([1.0, 3.0, 5.0, 7.0], SQUARED, 0),
        ([0.4, 1.0, 3.0, 5.0, 7.0], SQUARED, 1),
        ([0.2], LINEAR, 0),
        ([0.05, 0.2, 0.2], [(0.0, 0.0)], 0),  # nothing is known of prompts alone
        # measured too flat: both may be too short
        ([0.05, 0.2, 0.2], [(0.0, 0.0), (4000.0, 0.4), (8000.0, 0.4)], 2),
    ],
)
def test_steps_that_may_be_pauses(
    steps: list[float], curve: list[tuple[float, float]], short: int
) -> None:
    assert count_doubtful_steps(steps, 0.0, curve) == short


def test_the_gap_in_which_the_prompt_was_sent() -> None:
    """It began before: far shorter than a step it is none, else it may be one."""
    assert drop_steps_before_pause([0.06, 0.2, 0.2], 0.06) == [0.2, 0.2]
    assert drop_steps_before_pause([0.06, 0.2, 0.2], 0.01) == [0.06, 0.2, 0.2]  # it came later
    assert drop_steps_before_pause([0.07, 0.2, 0.2], 0.07) == [0.07, 0.2, 0.2]
    assert drop_steps_before_pause([0.06], 0.06) == [0.06]
    assert count_doubtful_steps([0.2, 0.2, 0.2], 0.2, LINEAR) == 1
    assert count_doubtful_steps([0.05, 0.2, 0.2], 0.05, LINEAR) == 1
    assert count_doubtful_steps([0.2], 0.2, LINEAR) == 0  # there must be one
