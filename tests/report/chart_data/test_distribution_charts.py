"""Distributions: percentile spectra with their tail, failures in them, and what depends on the
length."""

import numpy as np
import pytest
from support.records import answered, failed

from locust_llm.records.record import Record
from locust_llm.report.chart_data.distribution_charts import (
    compute_running_medians,
    compute_spectrum,
    plot_distributions,
)
from locust_llm.report.chart_data.plot_data import Plot, PlotMark
from locust_llm.report.inter_token_gaps import GapCounts
from locust_llm.report.load_records import collect_columns

FIRST, BETWEEN = "Time to first token, by percentile", "Between tokens, by percentile"


def drawn(
    *records: Record, open_loop: bool = False, **limits: tuple[PlotMark, ...]
) -> dict[str, Plot]:
    return {
        plot.title: plot for plot in plot_distributions(collect_columns(records), open_loop, limits)
    }


def at(plot: Plot, name: str, x: float) -> float:
    series = next(s for s in plot.series if s.name == name)
    return float(np.interp(x, np.array(series.x, np.float64), np.array(series.y, np.float64)))


def test_each_nine_takes_as_much_room() -> None:
    """0 to 999 ms: half of them lie below 499.5, of a hundred one above 989.01; the last point is
    the highest."""
    values = np.arange(1000.0)
    x, y = compute_spectrum(values, 1000)
    assert (x[0], y[0]) == (1.0, 0.0)
    assert (x[-1], y[-1]) == (1000.0, 999.0)
    assert np.interp([2, 10, 100], x, y).tolist() == pytest.approx([499.5, 899.1, 989.01])
    assert (np.diff(x) > 0).all()
    assert (np.diff(y) >= 0).all()
    gaps = GapCounts()
    gaps.add((values * 1000).astype(np.int64))
    assert compute_spectrum(gaps, 1000)[1].tolist() == pytest.approx(y.tolist())


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_spectrum_of_few(count: int) -> None:
    x, y = compute_spectrum(np.arange(count) + 1.0, count)
    assert (x[0], y[0]) == (1.0, 1.0)
    assert (x[-1], y[-1]) == (max(count, 2), count)


def test_failures_bend_the_line_to_infinity() -> None:
    """90 answers in 100 ms and 10 failures: of the requests the first 90 % have 100 ms, the others
    none."""
    plot = drawn(*[answered(100, 110)] * 90, *[failed()] * 10)[FIRST]
    worse = next(s for s in plot.series if s.dashed)
    assert max(x for x in worse.x if x is not None) == pytest.approx(10)
    assert [(mark.text, mark.x) for mark in plot.marks] == [("10.00% failed", pytest.approx(10))]
    assert plot.label.endswith("10.00% of the requests failed")
    assert "infinite" in plot.caption
    assert not any(s.dashed for s in drawn(*[answered(100, 110)] * 90)[FIRST].series)


def test_what_stands_in_which_plot() -> None:
    records = [
        answered(100 + i, 110 + i, 150 + i, due_at=9.0, admitted_at=9.5, limit=1) for i in range(20)
    ]
    plots = drawn(
        *records,
        ttft_s=(PlotMark("ttft p95 < 120ms", y=120.0),),
        icl=(PlotMark("icl max < 50ms", y=50.0),),
    )
    assert [s.name for s in plots[FIRST].series] == ["TTFT", "gate wait", "TTFT from due"]
    assert [s.name for s in plots[BETWEEN].series] == ["ITL", "ICL", "longest stall"]
    assert at(plots[FIRST], "TTFT", 2) == pytest.approx(109.5)
    assert at(plots[FIRST], "TTFT from due", 2) == pytest.approx(1109.5)
    assert at(plots[BETWEEN], "longest stall", 2) == pytest.approx(40)
    assert at(plots[BETWEEN], "ITL", 2) == pytest.approx(25)
    assert [m.text for m in plots[FIRST].marks] == ["ttft p95 < 120ms"]
    assert [m.text for m in plots[BETWEEN].marks] == ["icl max < 50ms"]
    assert [s.name for s in drawn(answered(1, 2), open_loop=True)[FIRST].series] == [
        "TTFT",
        "TTFT from due",
    ]
    assert [s.name for s in drawn(answered(1, 2))[FIRST].series] == ["TTFT"]


def test_only_profiling_counts() -> None:
    assert drawn(answered(5, phase="warmup")) == {}
    assert drawn() == {}
    assert drawn(failed()) == {}


def test_ttft_by_length() -> None:
    records = [
        answered(10 + i, 200, input_tokens=tokens) for tokens in (100, 1000) for i in range(5)
    ]
    plot = drawn(*records, answered(7, 200, input_tokens=8000))[
        "Time to first token by input length"
    ]
    (line,) = plot.series  # the page adds the requests as dots
    assert (plot.key, plot.of) == ("length", "ttft")
    assert (line.x, line.y) == ([100, 1000], [12, 12])  # one of 8,000 tokens is no median
    assert plot.x.log == 10
    assert "100 to 8,000 tokens" in plot.label
    assert "Time to first token by input length" not in drawn(answered(1, 2), answered(3, 4))


def test_medians_are_of_about_one_length() -> None:
    lengths = np.array([100.0, 101, 99.5, 102, 100, 500, 500, 500, 500, 500, 3000])
    at, median = compute_running_medians(lengths, np.arange(11.0))
    assert len(at) == len(median)
    assert median[-1] == 7.0
    assert at[-1] == 500.0
    assert 3000 not in at


def test_lengths_where_there_are_several() -> None:
    """Three of 10 tokens, one of 40: of 50 bins of 41 / 50 tokens the one with 10 is three times as
    high."""
    plots = drawn(
        *(answered(100, asked_input_tokens=25, input_tokens=tokens) for tokens in (10, 10, 10, 40))
    )
    assert "Output length" not in plots
    delivered = plots["Input length"].series[0]
    assert len(plots["Input length"].series) == 1
    assert "Every request had a limit of 25." in plots["Input length"].caption
    bars = {x: y for x, y in zip(delivered.x, delivered.y, strict=True) if y}
    assert bars == {9.84: 3, 39.36: 1}
    both = drawn(
        answered(1, asked_input_tokens=5), answered(2, asked_input_tokens=50, input_tokens=3)
    )["Input length"]
    assert [s.name for s in both.series] == ["delivered", "asked for"]
    assert both.x.log == 10  # 3 to 100 tokens
    assert sum(y or 0 for y in both.series[1].y) == 2
