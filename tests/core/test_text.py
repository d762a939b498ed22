"""How figures are written in tables."""

from locust_llm.core.text import amount, brief, clean, many, number, title
from locust_llm.report.analysis.summary import Row
from locust_llm.report.document.blocks import marked


def test_numbers() -> None:
    assert [number(value) for value in (None, 0.0, 1234567.891, float("inf"))] == ["-", "0.00", "1234567.89", "fail"]


def test_brief_numbers() -> None:
    values = (None, 0.0, 0.456, 9.999, 12.345, 99.996, 123.45, 1234.5, 12_345.6, -1.0)
    said = ["-", "0.00", "0.46", "10.00", "12.35", "100.00", "123.5", "1234", "12346", "-1.00"]
    assert [brief(value) for value in values] == said


def test_clean() -> None:
    assert clean("a\tb\nc\x00µ…") == "a b c\N{REPLACEMENT CHARACTER}µ…"


def test_amounts_have_their_unit() -> None:
    values = (None, 0.0, 612.345, 12_345.6, float("inf"))
    assert [amount(value, "ms") for value in values] == ["?", "0ms", "612.3ms", "12346ms", "fail"]


def test_a_percentile_of_too_few_values_is_marked() -> None:
    row = Row(label="", tag="", unit="ms", count=99, percentiles={50.0: 1.0, 99.0: 2.0})
    assert [marked(row, p) for p in (50.0, 99.0, 10.0)] == ["1.00", "2.00*", "-"]
    assert title(99.9) == "p99.9"


def test_counts_and_their_word() -> None:
    said = [many(n, "process", "processes") for n in (None, 0, 1, 2)]
    assert said == ["? processes", "0 processes", "1 process", "2 processes"]
