"""Blocks: how figures and intervals of rules are written."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from locust_llm.report.document_blocks import format_interval, format_observed
from locust_llm.slo.rules import SloResult
from locust_llm.text.format import SAME, parse_brief


def seconds(
    observed_s: float, low_s: float | None, high_s: float | None, limit_s: float = 10.0
) -> SloResult:
    return SloResult(
        rule="itl p50 < 10s",
        status="PASS",
        observed=observed_s,
        low=low_s,
        high=high_s,
        limit=limit_s,
        unit="s",
    )


@pytest.mark.parametrize(
    ("result", "figure", "ends"),
    [
        (seconds(0.006, 0.005888, 0.006195), "6ms", "5.888ms to 6.195ms"),
        (seconds(0.000031, 0.00003, None), "0.031ms", "at least 0.03ms"),
        (seconds(1.7, 0.9, 2.5), "1.7s", "0.9s to 2.5s"),
        (seconds(0.694, 0.3, 1.2), "694ms", "300ms to 1,200ms"),
        (seconds(0.45, 0.4394, None), "450ms", "at least 439.4ms"),
        (seconds(0.3, None, 0.4394), "300ms", "at most 439.4ms"),
        (seconds(0.3, None, None), "300ms", "-"),
        (seconds(0.3, 0.2, math.inf), "300ms", "200ms to fail"),
        (seconds(math.inf, 0.2, None), "fail", "at least 0.2s"),
    ],
)
def test_the_unit_is_near_to_what_was_measured(result: SloResult, figure: str, ends: str) -> None:
    assert (format_observed(result), format_interval(result)) == (figure, ends)


def test_the_figure_has_the_digits_of_headline_and_tiles_and_stays_on_its_side() -> None:
    wide = SloResult(
        rule="r", status="PASS", observed=567.3, low=410.0, high=720.0, limit=900.0, unit="ms"
    )
    near = SloResult(
        rule="r", status="FAIL", observed=567.3, low=567.1, high=567.9, limit=567.0, unit="ms"
    )
    assert (format_observed(wide), format_observed(near)) == ("567ms", "567.3ms")


def milliseconds(value: float, limit: float, **more: float) -> SloResult:
    return SloResult(rule="r", status="FAIL", observed=value, limit=limit, unit="ms", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("result", "written"),
    [
        (milliseconds(567.04, 567.0), "567.04ms"),  # four digits would be the limit again
        (milliseconds(567.0004, 567.0), "567.0004ms"),
        (milliseconds(566.96, 567.0), "566.96ms"),
        (milliseconds(567.0, 567.0), "567ms"),
        (milliseconds(0.567 * 1e3, 567.0), "567ms"),  # the same but for the last bit of a float
        (milliseconds(1234.6, 1234.5), "1,235ms"),
        (milliseconds(0.0000002, 0.0), "0.0000002ms"),
        (milliseconds(567.02, 567.0, worst=700.0), "567.02ms to 700ms"),
        (milliseconds(567.02, 567.0, worst=math.inf), "≥ 567.02ms"),
    ],
)
def test_a_figure_that_is_not_its_limit_is_not_written_as_it(
    result: SloResult, written: str
) -> None:
    assert format_observed(result) == written


@pytest.mark.parametrize(
    ("value", "low", "high", "written"),
    [
        (62.0417, 62.0417, 432.0, ("62.04ms", "62.04ms to 432ms")),
        (96.553, 23.0, 96.553, ("96.55ms", "23ms to 96.55ms")),
        (62.047, 62.046, 62.09, ("62.05ms", "62.05ms to 62.09ms")),
    ],
)
def test_a_figure_is_not_written_outside_of_its_interval(
    value: float, low: float, high: float, written: tuple[str, str]
) -> None:
    result = SloResult(
        rule="r", status="FAIL", observed=value, low=low, high=high, limit=30.0, unit="ms"
    )
    assert (format_observed(result), format_interval(result)) == written


def test_an_end_that_is_nearly_nothing_is_written_as_nothing() -> None:
    result = SloResult(
        rule="r", status="INCONCLUSIVE", observed=12.5, low=4e-17, high=87.0, limit=5.0, unit="%"
    )
    assert format_interval(result) == "0% to 87%"
    # but where the limit is 0
    assert format_interval(replace(result, limit=0.0)) != "0% to 87%"


def near(most: float) -> st.SearchStrategy[float]:
    """Of all sizes."""
    return st.one_of(st.just(0.0), *(st.floats(0, most / 10**power) for power in range(0, 9, 2)))


@given(st.floats(1, 1000), near(5), near(5), near(6) | near(6).map(lambda off: -off))
def test_what_is_written_agrees_with_the_values(
    value: float, below: float, above: float, to_limit: float
) -> None:
    """Of figure, interval and limit."""
    low, high, limit = value - below, value + above, value + to_limit
    result = SloResult(
        rule="r", status="FAIL", observed=value, low=low, high=high, limit=limit, unit="ms"
    )
    shown, (least, most) = format_observed(result), format_interval(result).split(" to ")
    number, first, last = (parse_brief(text, "ms") for text in (shown, least, most))
    assert first <= number <= last
    for written, exact in ((number, value), (first, low), (last, high)):
        assert math.isclose(exact, limit, rel_tol=SAME) or (written < limit) == (exact < limit)


@pytest.mark.parametrize(
    ("low", "high", "written"),
    [
        (567.03, 590.0, "567.03ms to 590ms"),
        (540.0, 566.98, "540ms to 566.98ms"),
        (567.03, None, "at least 567.03ms"),
        (None, 566.98, "at most 566.98ms"),
        (567.0, 590.0, "567ms to 590ms"),
        (0.0, None, "-"),
        (0.0, math.inf, "-"),
    ],
)
def test_an_end_of_an_interval_is_not_written_as_the_limit_that_it_misses(
    low: float | None, high: float | None, written: str
) -> None:
    result = SloResult(
        rule="r", status="FAIL", observed=570.0, low=low, high=high, limit=567.0, unit="ms"
    )
    assert format_interval(result) == written
