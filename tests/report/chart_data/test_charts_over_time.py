"""Plots over time: a run by hand, and a slow twin of what was delivered when."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import UNIX, a_run, answered, failed

from locust_llm.records.record import Record
from locust_llm.records.run_facts import Arm, Run, Stage, UserChange
from locust_llm.report.chart_data.charts_over_time import (
    choose_round_edges,
    plot_backlog,
    plot_latencies,
    plot_rates_over_time,
    spread_amounts,
)
from locust_llm.report.chart_data.plot_data import HOLE, Plot, PlotMark
from locust_llm.report.gate_occupancy import compute_occupancy
from locust_llm.report.load_records import collect_columns


def drawn(
    run: Run, *records: Record, limits: dict[str, tuple[PlotMark, ...]] | None = None
) -> dict[str, Plot]:
    columns = collect_columns(records)
    levels = compute_occupancy(columns.requests, run.limits)
    first = plot_latencies(columns.requests, run, limits or {})
    return {p.title: p for p in (*first, *plot_rates_over_time(columns.requests, levels, run))}


def test_a_run_by_hand() -> None:
    """
    second  10 ...... 11 ...... 12 ...... 13
    one     |prefill  |decode, three tokens |
    two               |waits    |prefill    | fails
    """
    one = answered(1000, 2000, 3000, asked_at=10.0, admitted_at=10.0)
    two = failed(sent_at=12.0, asked_at=11.0, admitted_at=12.0, closed_at=13.0)
    plots = drawn(a_run(((0.0, 1),)), one, two)
    assert list(plots) == [
        "Time to first token", "Inter-token latency", "Output tokens per second",
        "Requests per second",
        "Awaiting first token, and the prefill limit", "Decoding, and waiting for a prefill slot",
    ]  # fmt: skip
    assert {p.group for p in plots.values()} == {"time"}
    assert {(p.x.low, p.x.high) for p in plots.values()} == {(0.0, 13.0)}
    assert {p.x.label for p in plots.values()} == {"time since the start"}
    # no line joins the requests on both sides of an outage
    assert plots["Time to first token"].gap == plots["Inter-token latency"].gap == HOLE
    (strip,) = plots["Time to first token"].series  # the page adds the requests as dots
    assert plots["Time to first token"].key == "ttft"
    # a bar of a fifth of a second for the failure at second 13, and the end of the last bar
    assert (strip.kind, len(strip.x), strip.x[-2:], strip.y[-2:]) == (
        "strip",
        66,
        [12.8, 13.0],
        [1, 0],
    )
    assert sum(y for y in strip.y if y) == 1
    tokens = plots["Output tokens per second"].series[0]
    assert tokens.x == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 13.0]
    # three tokens from second 11 to 13; the last step is 1 s
    assert tokens.y == [0.0] * 5 + [0.75, 1.5, 1.5]
    finished, lost = plots["Requests per second"].series
    assert finished.y == lost.y == [0.0] * 6 + [1.0, 1.0]
    used, limit = plots["Awaiting first token, and the prefill limit"].series
    at = np.array(used.x, np.float64)
    where = [int(np.searchsorted(at, second)) - 1 for second in (5, 10.5, 11.5, 12.5)]
    assert [used.y[i] for i in where] == [0, 1, 0, 1]
    assert [limit.y[i] for i in where] == [1] * 4
    waiting, decoding = plots["Decoding, and waiting for a prefill slot"].series
    assert [waiting.y[i] for i in where] == [0, 0, 1, 0]
    assert [decoding.y[i] for i in where] == [0, 0, 1, 1]


def test_each_of_two_arms_has_its_own_dots_and_line() -> None:
    """Base 100 and 110 ms, candidate 200 and 220 ms, in turns: a line of each arm leads through its
    own blocks alone."""
    ttft_ms = {
        ("base", 1): (90, 100, 120),
        ("candidate", 1): (190, 200, 230),
        ("candidate", 2): (220,),
        ("base", 2): (110,),
    }
    records = [
        answered(ms, ms + 10, ms + 20, sent_at=10.0 * block + at, arm=arm, pair=pair, stage=block)
        for block, ((arm, pair), values) in enumerate(ttft_ms.items(), 1)
        for at, ms in enumerate(values)
    ]
    run = a_run()
    of_run = msgspec.structs.replace(
        run, arms=(Arm(name="base", host="http://a"), Arm(name="candidate", host="http://b"))
    )
    found = {one.name: one for one in drawn(of_run, *records)["Time to first token"].series}
    assert list(found) == [
        "base, request", "candidate, request", "base, p50 of each block",
        "candidate, p50 of each block",
    ]  # fmt: skip
    assert (found["base, request"].y, found["candidate, request"].y) == (
        [90, 100, 120, 110],
        [190, 200, 230, 220],
    )
    base, candidate = found["base, p50 of each block"], found["candidate, p50 of each block"]
    assert (base.x, base.y, candidate.x, candidate.y) == (
        [11, 40],
        [100, 110],
        [21, 30],
        [200, 220],
    )
    assert len({base.hue, candidate.hue}) == 2
    isolated = msgspec.structs.replace(
        of_run, settings=msgspec.structs.replace(run.settings, isolate="gold")
    )
    names = [one.name for one in drawn(isolated, *records)["Time to first token"].series]
    assert names[:2] == ["alone, request", "with the others, request"]


def test_the_rates_of_two_arms_are_two_lines_that_are_never_joined() -> None:
    """
    second  0 .. 10       10 .. 20    20 .. 30    30 .. 40
            base          candidate   candidate   base
    tokens  2 a second    4 a second  4 a second  2 a second

    Each request has its three tokens in one second, and each ends within its block.
    """
    per_second = {"base": 1, "candidate": 2}
    blocks = (("base", 1), ("candidate", 1), ("candidate", 2), ("base", 2))
    records = [
        answered(0.01, 100, 200, sent_at=10.0 * block + at, arm=arm, pair=pair, stage=block + 1)
        for block, (arm, pair) in enumerate(blocks)
        for at in range(10)
        for _ in range(per_second[arm])
    ]
    stages = tuple(
        Stage(number=block + 1, value=0.0, arm=arm, pair=pair, began_at=UNIX + 10.0 * block,
              ended_at=UNIX + 10.0 * block + 10)
        for block, (arm, pair) in enumerate(blocks)
    )  # fmt: skip
    run = msgspec.structs.replace(
        a_run(),
        arms=(Arm(name="base", host="http://a"), Arm(name="candidate", host="http://b")),
        stages=stages,
    )
    plots = drawn(run, *records)
    for title, unit in (("Output tokens per second", 3), ("Requests per second", 1)):
        base, candidate = plots[title].series
        assert (base.name, candidate.name) == ("base", "candidate")
        known = {
            series.name: [
                (x, y)
                for x, y in zip(series.x, series.y, strict=True)
                if x is not None and y is not None and y == y
            ]
            for series in (base, candidate)
        }
        # none in the blocks of the other one
        assert {x for x, _ in known["candidate"] if not 10 <= x <= 30} == set()
        assert {x for x, _ in known["base"] if 11 <= x < 30} == set()
        assert np.mean([y for x, y in known["base"] if x < 10]) == pytest.approx(unit, rel=0.1)
        assert np.mean([y for x, y in known["candidate"] if x < 30]) == pytest.approx(
            2 * unit, rel=0.1
        )


def test_whole_answers_have_no_prefill() -> None:
    plots = drawn(
        a_run(((0.0, 1),), endpoint_type="rerank"),
        answered(closed_at=12.0, streamed=False, output_tokens=None),
    )
    assert list(plots) == [
        "Request latency",
        "Requests per second",
        "In flight, and the prefill limit",
        "Waiting for a prefill slot",
    ]
    assert plots["In flight, and the prefill limit"].caption.endswith(
        "In flight: sent, before the end."
    )


def test_labels_say_the_main_figures() -> None:
    plots = drawn(a_run(), *(answered(100.0 + i, 200.0 + i, sent_at=10.0 + i) for i in range(101)))
    assert (
        plots["Time to first token"].label
        == "TTFT over time: median 150 ms, p99 199 ms, highest 200 ms"
    )
    assert "none failed" in plots["Requests per second"].label
    plots = drawn(a_run(), answered(5), failed("cut", sent_at=11.0), failed("cut", sent_at=12.0))
    assert "of 2 requests unfinished at the end" in plots["Time to first token"].caption


def test_marks_are_phases_changes_of_the_limit_and_the_stop() -> None:
    run = a_run(((0.0, 1), (4.0, 2), (6.0, 2), (8.0, 3)))
    warm = answered(5, phase="warmup", sent_at=1.0)
    plots = drawn(run, warm, answered(5, 10, sent_at=99.0, closed_at=101.0))
    assert [(m.text, m.x) for m in plots["Requests per second"].marks] == [
        ("profiling", 0.0), ("stop", 100.0), ("limit 2", 4.0), ("limit 3", 8.0),
    ]  # fmt: skip
    quick = drawn(
        a_run(((0.0, 1), (4.0, 2), (6.0, 3), (50.0, None))),
        answered(5, 10, sent_at=99.0, closed_at=101.0),
    )
    texts = [(m.text, m.x) for m in quick["Requests per second"].marks]
    assert texts == [("stop", 100.0), ("limit 1 to 3", 4.0), ("no limit", 50.0)]
    up_and_down = drawn(
        a_run(((0.0, 1), (4.0, 4), (6.0, 2), (8.0, 1), (10.0, None))),
        answered(5, 10, sent_at=99.0, closed_at=101.0),
    )
    texts = [(m.text, m.x) for m in up_and_down["Requests per second"].marks]
    assert texts == [("stop", 100.0), ("limit 4", 4.0), ("limit 4 to 1", 6.0), ("no limit", 10.0)]
    blocks = a_run(tuple((2.0 * i, 1 + i % 3) for i in range(40)))
    assert [m.text for m in drawn(blocks, answered(5))["Requests per second"].marks] == []
    many = drawn(a_run(tuple((float(i), i + 1) for i in range(20))), answered(5))
    assert many["Requests per second"].marks == ()


def test_a_change_of_users_is_a_mark() -> None:
    """Twenty start within a second; at second 30 somebody makes them forty, over two seconds; at
    second 60 ten; Locust takes all away at the stop."""
    counts = [(0.0, 5), (0.5, 20), (30.0, 30), (32.0, 40), (60.0, 10), (100.5, 0)]
    users = tuple(UserChange(UNIX + at, count) for at, count in counts)
    run = msgspec.structs.replace(a_run(), users=users)
    late = answered(5, 10, sent_at=99.0, closed_at=101.0)
    marks = drawn(run, late)["Requests per second"].marks
    assert [(m.text, m.x) for m in marks] == [
        ("stop", 100.0), ("40 users", 30.0), ("10 users", 60.0),
    ]  # fmt: skip
    many = tuple(UserChange(UNIX + 5.0 * i, 1 + i % 2) for i in range(20))
    run = msgspec.structs.replace(a_run(), users=many)
    assert [m.text for m in drawn(run, late)["Requests per second"].marks] == ["stop"]


def test_stages_are_marked_by_their_value() -> None:
    run = a_run(((0.0, 1), (20.0, 2)))
    stages = tuple(
        Stage(number=i, value=2.0**i, began_at=UNIX + 10 * i, ended_at=UNIX + 10 * i + 9)
        for i in (1, 2)
    )
    settings = msgspec.structs.replace(run.settings, sweep="concurrency=2,4")
    for asked, texts in (
        (run.settings, ["2", "4"]),
        (settings, ["concurrency 2", "concurrency 4"]),
    ):
        swept = msgspec.structs.replace(run, stages=stages, settings=asked)
        plots = drawn(swept, answered(5, sent_at=11.0))
        marks = [(m.text, m.x) for m in plots["Requests per second"].marks]
        assert marks == list(zip(texts, [10.0, 20.0], strict=True))
        assert "start of each stage" in plots["Time to first token"].caption


def test_failures_are_counted_in_a_strip() -> None:
    """A thousand failures in ten seconds of a hundred: bars by their number, not a solid band."""
    failures = [failed(sent_at=10.0 + i / 100, closed_at=10.0 + i / 100) for i in range(1000)]
    plot = drawn(a_run(), answered(5, sent_at=0.0), answered(5, sent_at=99.0), *failures)[
        "Time to first token"
    ]
    assert plot.caption.endswith(
        "Bars above the plot: failed requests in each 1 s, 1,000 in all, 99.8% of all requests."
    )
    strip = plot.series[-1]
    counts = {x: y for x, y in zip(strip.x, strip.y, strict=True) if y}
    assert counts == dict.fromkeys(map(float, range(10, 20)), 100.0)


def test_limits_stand_in_the_plot_that_they_are_about() -> None:
    limits = {"ttft_s": (PlotMark("ttft p95 < 20ms", y=20.0), PlotMark("ttft max < 1s", y=1000.0))}
    plots = drawn(a_run(), answered(10, 20), answered(11, 20), limits=limits)
    marks = plots["Time to first token"].marks
    assert [(m.text, m.y) for m in marks] == [("ttft p95 < 20ms", 20.0), ("ttft max < 1s", 1000.0)]
    assert plots["Inter-token latency"].marks == ()


def test_a_tail_makes_the_scale_logarithmic() -> None:
    plots = drawn(a_run(), answered(10, 11), answered(10, 11), answered(900, 901))
    assert plots["Time to first token"].y.log == 10
    assert "logarithmic" in plots["Time to first token"].caption
    assert plots["Inter-token latency"].y.log == 0


def test_little_or_nothing() -> None:
    assert drawn(a_run()) == {}
    only_failures = drawn(a_run(), failed("refused", sent_at=None))
    assert list(only_failures) == ["Requests per second"]
    assert (
        drawn(a_run(), answered(phase="warmup"))["Requests per second"].series[0].name == "finished"
    )


@pytest.mark.parametrize(
    ("low", "high", "count", "expected"),
    [
        (0, 20, 100, list(range(21))),  # twenty steps for a hundred requests
        (0, 20, 99, list(range(0, 21, 2))),
        (0, 20, 1, list(range(0, 21, 2))),  # but ten at least
        (-0.3, 20.4, 99, [-0.3, *range(2, 19, 2), 20.4]),  # a last step of 0.4 s would be noise
        (0, 0.001, 1, [i / 1e4 for i in range(11)]),
    ],
)
def test_steps_are_round(low: float, high: float, count: int, expected: list[float]) -> None:
    assert choose_round_edges(low, high, count).tolist() == pytest.approx(expected)


@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 5), st.integers(1, 500)), max_size=12),
    st.lists(st.floats(0, 15), min_size=1, max_size=6, unique=True),
)
def test_what_is_spread_is_all_there(
    amounts: list[tuple[float, float, int]], inner: list[float]
) -> None:
    """The slow twin asks each amount for its part between each two edges."""
    edges = np.array([-1.0, *sorted(inner), 16.0])
    first = np.array([at for at, _, _ in amounts])
    last = np.array([at + length for at, length, _ in amounts])
    amount = np.array([float(n) for _, _, n in amounts])
    found = spread_amounts(first, last, amount, edges)
    assert found.sum() == pytest.approx(amount.sum())
    slow = np.zeros(len(edges) - 1)
    for a, b, n in zip(first, last, amount, strict=True):
        for i in range(len(slow)):
            low, high = edges[i], edges[i + 1]
            if b - a <= 1e-3:
                slow[i] += n * (low <= b < high)
            else:
                slow[i] += n * max(0.0, min(b, high) - max(a, low)) / (b - a)
    assert found == pytest.approx(slow, abs=1e-6)


def test_the_backlog_of_an_overload() -> None:
    """One request a second is due for 9 s; each takes 100 ms, but from the fifth on none ends
    before the stop at 20 s."""
    answered_ones = [answered(50, 100, sent_at=10.0 + i) for i in range(4)]
    open_ones = [
        answered(50, 100, sent_at=10.0 + i, outcome="cut", closed_at=30.0) for i in range(4, 10)
    ]
    columns = collect_columns([*answered_ones, *open_ones])
    (plot,) = plot_backlog(columns.requests, a_run())
    in_flight, offered, completed = plot.series
    assert (offered.y[-1], completed.y[-1], max(y for y in in_flight.y if y is not None)) == (
        10,
        4,
        6,
    )
    assert plot.label == "10 requests offered, 4 completed, at most 6 in flight"
