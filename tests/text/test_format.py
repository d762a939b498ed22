"""How figures are written in tables."""

import json
import math
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import locust_llm
from locust_llm.report.document_blocks import format_percentile
from locust_llm.report.summary_rows import Row
from locust_llm.text.format import (
    SAME,
    clean_line,
    count_distinguishing_digits,
    decimal_places,
    format_brief,
    format_clock,
    format_comparison,
    format_count,
    format_date,
    format_duration,
    format_number,
    format_signed,
    format_supported,
    format_supported_rounded_down,
    name_percentile,
    parse_brief,
)

CASES = json.loads((Path(__file__).parents[1] / "data" / "format_cases.json").read_text())
"""By function; tests/js/chart_format.test.js has them too."""
FORMATS = {
    "brief": format_brief,
    "duration": format_duration,
    "clock": format_clock,
    "date": format_date,
}


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, cases in CASES.items() for case in cases]
)
def test_the_browser_writes_as_python_does(name: str, case: dict[str, Any]) -> None:
    assert FORMATS[name](*case["arguments"]) == case["text"]


def test_numbers() -> None:
    assert [format_number(value) for value in (None, 0.0, 1234567.891, float("inf"))] == [
        "-",
        "0.00",
        "1234567.89",
        "fail",
    ]
    values = (0.456, 9.999, 12.345, 99.996, 123.45, 1234.5, 12_345.6, -1.0)
    found = ["0.46", "10.00", "12.35", "100.00", "123.5", "1234", "12346", "-1.00"]
    assert [format_number(value, 4) for value in values] == found


def test_no_zero_has_a_minus() -> None:
    assert format_brief(-1e-9, " ms") == "0 ms"
    assert format_supported(-0.0, 8.0, "%") == "0%"
    written = {
        -0.04: "-0.04%", -0.0071: "-0.007%", -0.06: "-0.1%", -0.0: "0.0%",
        12.34: "+12.3%", 1234.5: "+1,234.5%", 1e-12: "0.0%",
    }  # fmt: skip
    assert {value: format_signed(value, 1, "%") for value in written} == written


def sign_of(text: str) -> int:
    value = Decimal(text.removesuffix("%").replace(",", ""))
    assert (text[0] in "+-") == bool(value), text
    return int(value > 0) - int(value < 0)


@given(st.floats(-1e6, 1e6).filter(lambda value: not 0 < abs(value) < 1e-9), st.integers(0, 3))
def test_a_difference_is_written_with_its_own_sign(value: float, decimals: int) -> None:
    assert sign_of(format_signed(value, decimals, "%")) == (value > 0) - (value < 0)


def test_brief_numbers() -> None:
    values = (
        None,
        0.0,
        0.456,
        9.9996,
        12.345,
        99.996,
        123.45,
        1234.5,
        12_345.6,
        -1.0,
        0.00012346,
        1e-9,
        float("inf"),
    )
    found = [
        "-",
        "0",
        "0.456",
        "10",
        "12.35",
        "100",
        "123.5",
        "1,234",
        "12,346",
        "-1",
        "0.000123",
        "0",
        "fail",
    ]
    assert [format_brief(value) for value in values] == found
    assert [format_brief(value, "ms") for value in (None, 612.345, float("inf"))] == [
        "-",
        "612.3ms",
        "fail",
    ]
    assert [format_brief(value, digits=3) for value in (1.2345, 12.345, 999.6, 1234.5)] == [
        "1.23",
        "12.3",
        "1,000",
        "1,234",
    ]


def test_no_digit_that_the_interval_does_not_support() -> None:
    """The last digit has the place of the first one of the reach, or of its second where that
    begins with 1 or 2."""
    reaches = (0.3, 0.14, 0.02, 3.0, 40.0, 140.0, None, 0.0, float("inf"))
    found = [
        "1,234.6",
        "1,234.57",
        "1,234.57",
        "1,235",
        "1,230",
        "1,230",
        "1,234.57",
        "1,234.57",
        "1,234.57",
    ]
    assert [format_supported(1234.567, reach, digits=6) for reach in reaches] == found
    assert [format_supported(1.676, reach, " users") for reach in (0.3, 0.14, 2.0, 50.0)] == [
        "1.7 users", "1.68 users", "1.7 users", "2 users",
    ]  # fmt: skip
    assert format_supported(12.345, 0.4, "ms", more=1) == "12.35ms"
    assert (format_supported(None, 1.0), format_supported(float("inf"), 1.0)) == ("-", "fail")
    assert [decimal_places(reach) for reach in (None, 0.004, 0.03, 0.14, 0.3, 2.0, 3.0, 400.0)] == [
        2,
        2,
        2,
        2,
        1,
        1,
        0,
        0,
    ]


def test_durations() -> None:
    seconds = (
        None,
        0.0,
        0.0000123,
        0.012345,
        0.5,
        0.99949,
        0.9996,
        1.2345,
        123.4,
        3661.0,
        float("nan"),
    )
    found = [
        "-",
        "0 ms",
        "0.0123 ms",
        "12.3 ms",
        "500 ms",
        "999 ms",
        "1 s",
        "1.23 s",
        "123 s",
        "3,661 s",
        "-",
    ]
    assert [format_duration(value) for value in seconds] == found


def test_clean() -> None:
    assert clean_line("a\tb\nc\x00µ…") == "a b c\N{REPLACEMENT CHARACTER}µ…"


def test_a_percentile_of_too_few_values_is_marked() -> None:
    row = Row(label="", tag="", unit="ms", count=99, percentiles={50.0: 1.0, 99.0: 2.0})
    assert [format_percentile(row, p) for p in (50.0, 99.0, 10.0)] == ["1.00", "2.00*", "-"]
    assert name_percentile(99.9) == "p99.9"


def test_counts_and_their_word() -> None:
    said = [format_count(n, "process", "processes") for n in (None, 0, 1, 2)]
    assert said == ["? processes", "0 processes", "1 process", "2 processes"]


@pytest.mark.parametrize(
    ("figures", "written"),
    [
        # (base, value, ends of the interval of the difference): a place more than the interval
        # supports
        ((5.92, 10.05, -1.0, 9.3), ("5.9", "10.1", "+4.2", "-1.0", "+9.3")),
        ((47.604, 43.794, -19.3, 9.21), ("47.6", "43.8", "-3.8", "-19.3", "+9.2")),
        ((12.46, 14.23, 0.265, 13.1), ("12.5", "14.2", "+1.7", "+0.3", "+13.1")),
        ((7.5531, 7.5795, -0.0523, 0.0838), ("7.553", "7.580", "+0.027", "-0.052", "+0.084")),
        ((363.1, 363.5, -131.0, 132.0), ("363.1", "363.5", "+0.4", "-131.0", "+132.0")),
        ((66.78, 55.39, None, None), ("66.78", "55.39", "-11.39", "-", "-")),
        ((35.0, 31.0, None, None), ("35", "31", "-4", "-", "-")),
        (
            (12_345.6, 23_456.7, 9_000.0, 13_000.0),
            ("12,346", "23,457", "+11,111", "+9,000", "+13,000"),
        ),
        ((0.0, 0.0, 0.0, 0.0), ("0", "0", "0", "0.000", "0.000")),
        ((100_000.0, 100_000.4, 0.3, 0.5), ("100,000.0", "100,000.4", "+0.4", "+0.3", "+0.5")),
        ((None, 1.0, None, None), ("-", "1", "-", "-", "-")),
        ((1.0, math.inf, None, None), ("1", "fail", "fail", "-", "-")),
    ],
)
def test_a_difference_in_the_digits_of_its_figures_by_pencil(
    figures: tuple[float | None, float | None, float | None, float | None], written: tuple[str, ...]
) -> None:
    assert tuple(format_comparison(*figures)) == written


@example(0.0, 0.0, (0.0, 5e-324))  # half of it is 0
@given(
    st.floats(-1e6, 1e6), st.floats(-1e6, 1e6),
    st.none() | st.tuples(st.floats(-1e5, 1e5), st.floats(0, 1e5)),
)  # fmt: skip
def test_every_difference_adds_up_as_it_is_written(
    base: float, value: float, interval: tuple[float, float] | None
) -> None:
    ends = (None, None) if interval is None else (interval[0], sum(interval))
    a, b, difference = (text.replace(",", "") for text in format_comparison(base, value, *ends)[:3])
    assert Decimal(b) - Decimal(a) == Decimal(difference)
    assert len({len(text.partition(".")[2]) for text in (a, b, difference)}) == 1
    assert abs(value - base) < 1e-6 or Decimal(difference) != 0


@pytest.mark.parametrize(
    ("value", "others", "digits"),
    [(567.4, (567.0,), 4), (567.04, (567.0,), 5), (566.96, (567.0,), 5), (612.0, (567.0,), 3),
        (567.0, (567.0,), 3),
     (567.4, (567.0, 567.38), 4), (0.1 + 0.2, (0.3,), 3), (5.0, (None,), 3)],
)  # fmt: skip
def test_so_many_digits_that_a_value_is_on_its_side(
    value: float, others: tuple[float | None, ...], digits: int
) -> None:
    assert count_distinguishing_digits(value, *others) == digits


@given(st.floats(1e-6, 1e9), st.floats(-1e-6, 1e-6))
def test_what_differs_is_written_so(limit: float, off: float) -> None:
    value = limit * (1 + off)
    written = parse_brief(format_brief(value, digits=count_distinguishing_digits(value, limit)))
    same = math.isclose(value, limit, rel_tol=SAME)
    assert same or (written != limit and (written < limit) == (value < limit))


OWN_MS = {
    "text/format.py",  # the one place
    "report/document_blocks.py", "report/sections/metric_tables.py",  # the mark's bound, 1 ms
    "report/sections/interference.py", "report/sections/notes.py",  # ms for each 1,000 tokens
    "lab/history/history_chart.py",  # an error beside its value
    "lab/twin/twin_drift.py",  # a difference with a sign
    "simulator/simulate_command.py",  # imports nothing of the package
}  # fmt: skip
"""The files that write milliseconds by hand, and what of."""


def test_times_are_written_by_one_function() -> None:
    """``2.17 s``, not ``2,174 ms``: a text with its own unit would not change at a second."""
    package = Path(locust_llm.__file__).parent
    by_hand = re.compile(r"""\} ms\b|["'] ms["']""")
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if by_hand.search(path.read_text())
    }
    assert found == OWN_MS
    assert [format_duration(s) for s in (0.4123, 0.99949, 0.9995, 2.1743)] == [
        "412 ms", "999 ms", "1 s", "2.17 s",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "reach", "written"),
    [
        (85_185.0, 30_000.0, "80,000"),
        (199.0, 120.0, "190"),
        (49.8, 3.0, "49"),
        (49.8, 0.1, "49.8"),
        (360.0, 0.1, "360"),
        (29_091.0, 1.0, "29,000"),
        (0.29, 0.01, "0.29"),
        (49.87, 0.0, "49.8"),  # nothing is known of its error
        (0.0, 0.0, "0"),
    ],
)
def test_a_limit_is_never_rounded_up(value: float, reach: float, written: str) -> None:
    assert format_supported_rounded_down(value, reach) == written


@given(st.floats(0.01, 1e9), st.floats(1e-3, 1.0))
def test_a_limit_rounded_down_loses_little(value: float, share: float) -> None:
    """Its first digit stays: at most half of it is lost."""
    written = parse_brief(format_supported_rounded_down(value, share * value))
    assert value / 2 < written <= value * (1 + 1e-9)
