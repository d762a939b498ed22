"""Rows of numbers: percentiles against slow twins; parts of the requests, and which of them a mask
leaves."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.records import answered, failed

from locust_llm.report.distribution_rows import adjust_for_failures, make_distribution_row
from locust_llm.report.load_records import collect_columns
from locust_llm.report.request_selection import RequestSelection, mean_of_known, ratio_of_sums
from locust_llm.report.summary_rows import Row
from locust_llm.slo.metric_definitions import LATENCIES
from locust_llm.slo.percentile import has_too_few_values

LATENCY = LATENCIES[0]


@pytest.mark.parametrize(
    ("count", "percentile", "few"),
    [(1, 50, True), (2, 50, False), (9, 90, True), (10, 90, False), (99, 99, True),
        (100, 99, False),
     (999, 99.9, True), (1000, 99.9, False)],
)  # fmt: skip
def test_too_few_values(count: int, percentile: float, few: bool) -> None:
    assert has_too_few_values(count, percentile) == few


@given(
    st.lists(st.floats(0, 1e4), min_size=1, max_size=60),
    st.lists(st.floats(0.1, 99.9), min_size=1, max_size=4),
)
def test_percentiles_against_a_slow_twin(values: list[float], percentiles: list[float]) -> None:
    said = make_distribution_row(LATENCY, np.array([*values, math.nan]), percentiles).percentiles
    assert said == pytest.approx({p: 1e3 * interpolated(values, p) for p in percentiles})


@given(
    st.lists(st.floats(0, 1e4), max_size=40),
    st.integers(1, 40),
    st.lists(st.integers(1, 999), min_size=1, max_size=4),
)
def test_adjusted_against_a_slow_twin(
    values: list[float], failures: int, permille: list[int]
) -> None:
    percentiles = [p / 10 for p in permille]
    said = adjust_for_failures(
        LATENCY, *all_requests(values, [], failures), failures, percentiles
    ).percentiles
    everything = sorted(1e3 * value for value in values) + [math.inf] * failures
    for p, thousandths in zip(percentiles, permille, strict=True):
        smallest = next(
            i for i in range(1, len(everything) + 1) if i * 1000 >= thousandths * len(everything)
        )
        assert said[p] == pytest.approx(everything[smallest - 1])


def all_requests(
    values: list[float], cut: list[float], failures: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(the least, the most) of each, in seconds."""
    failed = [math.inf] * failures
    return np.array([*values, *cut, *failed]), np.array([*values, *[math.inf] * len(cut), *failed])


def interpolated(values: Sequence[float], percentile: float) -> float:
    ordered = sorted(values)
    place = percentile / 100 * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def test_without_failures_a_percentile_is_the_one_of_every_other_table() -> None:
    """Of 1, 2, 3, 4 ms the median is 2.5 ms. With one cut at 4 ms in place of the last, p50 is
    known and p90 at least 3.7 ms; with a failure more p50 is the third of five."""
    values, cut = [0.001, 0.002, 0.003], [0.004]

    def adjusted(values: list[float], cut: list[float], failures: int) -> Row:
        low, high = all_requests(values, cut, failures)
        return adjust_for_failures(LATENCY, low, high, failures, (50.0, 90.0))

    whole = adjusted([*values, *cut], [], 0)
    assert whole.percentiles == pytest.approx({50.0: 2.5, 90.0: 3.7})
    assert whole.at_least == {}
    some = adjusted(values, cut, 0)
    assert some.percentiles == pytest.approx({50.0: 2.5, 90.0: math.inf})
    assert some.at_least == pytest.approx({90.0: 3.7})
    assert adjusted([*values, *cut], [], 1).percentiles[50.0] == 3.0


def test_nearest_rank_is_not_misled_by_floats() -> None:
    """99.9 % of 1000 is the 999th value, although 99.9 / 100 * 1000 is 999.0000000000001."""
    assert (
        adjust_for_failures(
            LATENCY, *all_requests((np.arange(1, 1000) / 1e3).tolist(), [], 1), 1, (99.9,)
        ).percentiles[99.9]
        == 999
    )


def test_a_part_of_a_part() -> None:
    requests = collect_columns([answered(100), failed(), answered(300), answered(500)]).requests
    whole = RequestSelection(requests, np.array([True, True, True, False]))
    ok = whole.outcome("ok")
    assert ok["ttft_s"].tolist() == [0.1, 0.3]
    later = ok.where(np.array([False, True]))  # as long as the part, not as the frame
    assert (later.size, later["ttft_s"].tolist()) == (1, [0.3])
    assert (whole.size, ok.size) == (3, 2)  # and neither was changed


def test_means_and_ratios_are_of_what_is_known() -> None:
    assert mean_of_known(np.array([1.0, math.nan, 4.0])) == 2.5
    assert mean_of_known(np.array([math.nan])) is None
    assert ratio_of_sums(np.array([1.0, 5.0, math.nan]), np.array([4.0, math.nan, 9.0])) == 0.25
    assert ratio_of_sums(np.array([0.0]), np.array([0.0])) is None
