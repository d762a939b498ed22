"""Intervals: tests the oracle of make intervals."""

import numpy as np
from intervals import decide_by_oracle


def test_an_oracle_decides_by_how_the_figure_varies_from_run_to_run() -> None:
    """Of 41 runs with figures of 80, 81 ... 120, the second lowest is 81 and the second highest 119.
    A limit of 130 passes below 130 * 81 % = 105.3, which 80 ... 105 are: 26 runs. A limit of 70
    fails above 70 * 119 % = 83.3, which 84 ... 120 are: 37."""
    figures = np.arange(80.0, 121.0)
    assert decide_by_oracle(figures, 100.0, 0.3) == (26 / 41, 37 / 41)


def test_an_oracle_decides_each_run_of_a_figure_that_hardly_varies() -> None:
    """The second lowest is 90.5: below 130 * 90.5 % = 117.65 are all. Above 70 * 109.5 % = 76.65 are
    all."""
    figures = np.arange(90.0, 110.5, 0.5)
    assert len(figures) == 41
    assert decide_by_oracle(figures, 100.0, 0.3) == (1.0, 1.0)
    assert decide_by_oracle(figures, 100.0, 0.0) == (1 / 41, 1 / 41)
