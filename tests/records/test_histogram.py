"""The histogram of live percentiles: digits and ranks by pencil, ranks as numpy has them, and as
the report has them."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.records.histogram import (
    Histogram,
    SlidingHistogram,
    histogram_percentiles,
    round_to_three_digits,
)
from locust_llm.report import inter_token_gaps

times = st.lists(st.integers(0, 10**9), min_size=1, max_size=60)


@pytest.mark.parametrize(
    ("us", "rounded"),
    [
        (0, 0),
        (7, 7),
        (999, 999),
        (1000, 1000),
        (1234, 1230),
        (1235, 1240),
        (9996, 10000),
        (123_456, 123_000),
    ],
)
def test_three_digits_by_pencil(us: int, rounded: int) -> None:
    assert round_to_three_digits(us) == rounded


@given(times)
def test_the_report_rounds_alike(times_us: list[int]) -> None:
    """Where there are too many different gaps to count them exactly."""
    assert inter_token_gaps.round_array_to_three_digits(np.array(times_us, np.int64)).tolist() == [
        round_to_three_digits(us) for us in times_us
    ]


def of(*times_us: int) -> Histogram:
    found = Histogram()
    found.add(*times_us)
    return found


def test_percentiles_by_pencil() -> None:
    # ranks 0 to 4; the median is rank 2, p75 rank 3, p90 at 3.6: 40 + 0.6 (50 - 40)
    assert of(50, 10, 30, 20, 40).percentiles_ms(90, 50, 75, 100) == pytest.approx(
        [0.046, 0.03, 0.04, 0.05]
    )
    assert of(7).percentiles_ms(50, 99) == [0.007, 0.007]
    assert of().percentiles_ms(50) is None


@given(
    st.lists(st.floats(0, 1e3), min_size=1, max_size=60),
    st.lists(st.floats(0, 100), min_size=1, max_size=5),
)
def test_percentiles_are_numpys(values: list[float], percents: list[float]) -> None:
    counts = {value: values.count(value) for value in values}
    assert histogram_percentiles(counts, percents) == pytest.approx(
        np.percentile(values, percents).tolist()
    )


@given(times)
def test_a_rounded_percentile_is_the_percentile_rounded(times_us: list[int]) -> None:
    """At a rank; between two it is at most half a per cent off."""
    ranks = [100 * rank / max(len(times_us) - 1, 1) for rank in range(len(times_us))]
    expected = [round_to_three_digits(us) / 1e3 for us in sorted(times_us)]
    assert of(*times_us).percentiles_ms(*ranks) == pytest.approx(expected, rel=1e-6, abs=1e-6)
    exact = np.percentile(times_us, (50, 90, 99)) / 1e3
    assert of(*times_us).percentiles_ms(50, 90, 99) == pytest.approx(exact.tolist(), rel=5e-3)


@given(times, times)
def test_two_merged_are_one_of_all(some: list[int], others: list[int]) -> None:
    both = of(*some)
    both.merge(of(*others))
    assert both == of(*some, *others)
    assert both.count == len(some) + len(others)


def test_it_can_be_written_and_read() -> None:
    assert msgspec.json.decode(msgspec.json.encode(of(10, 1234, 1234)), type=Histogram) == of(
        10, 1234, 1234
    )


def test_a_window_forgets_what_is_old() -> None:
    now = [100.7]
    window = SlidingHistogram(10, lambda: now[0])
    assert window.histogram().count == 0
    window.add([1, 2])
    window.add([3])
    now[0] = 109.9
    window.add([4])
    assert window.histogram() == of(1, 2, 3, 4)
    now[0] = 110.0
    assert window.histogram() == of(4)
    now[0] = 200.0
    assert window.histogram() == of()
