"""The curves of a sweep: a sweep by hand."""

import pytest
from support.levels import level, row

from locust_llm.report.chart_data.plot_data import Plot, PlotMark
from locust_llm.report.sections.sweep.sweep_chart import plot_stages
from locust_llm.report.summary_rows import Knee, LoadLevel, Row, SweepSummary
from locust_llm.slo.rules import SloResult, parse_rule


def drawn(
    *levels: LoadLevel,
    knees: tuple[Knee, ...] = (),
    limits: dict[str, tuple[PlotMark, ...]] | None = None,
) -> dict[str, Plot]:
    sweep = SweepSummary(
        axis="concurrency",
        unit="users",
        levels=levels,
        ended="",
        conditions="ttft < 1s",
        knees=knees,
    )
    return {plot.title: plot for plot in plot_stages(sweep, limits or {})}


def test_curves_over_the_value_of_each_stage() -> None:
    plots = drawn(*(level(2.0**i) for i in range(4)))
    assert list(plots) == [
        "Time to first token", "Inter-token latency", "Throughput",
        "Throughput of the server against throughput per user",
    ]  # fmt: skip
    ttft = plots["Time to first token"]
    assert [(s.name, s.x, s.y) for s in ttft.series] == [
        ("p50", [1, 2, 4, 8], [10, 20, 40, 80]),
        ("p99", [1, 2, 4, 8], [30, 60, 120, 240]),
    ]
    assert (ttft.x.log, ttft.x.label) == (2, "concurrency (users)")
    assert ttft.x.ticks == ((1, "1"), (2, "2"), (4, "4"), (8, "8"))
    assert ttft.label == "p99 of TTFT: 30 ms at 1, 60 ms at 2, 120 ms at 4, 240 ms at 8"
    pareto = plots["Throughput of the server against throughput per user"].series[0]
    assert (pareto.x, pareto.y, pareto.labels) == (
        [100, 50, 25, 12.5],
        [100, 200, 400, 800],
        ("1", "2", "4", "8"),
    )


def test_a_p99_of_too_few_is_told() -> None:
    few = row("time_to_first_token", 5, 9)
    plots = drawn(
        level(
            1,
            latencies={
                few.tag: Row(
                    label="", tag=few.tag, unit="ms", count=99, percentiles=few.percentiles
                )
            },
        ),
        level(2),
    )
    assert "too few for a p99, at 1." in plots["Time to first token"].caption
    assert "too few" not in drawn(level(1), level(2))["Time to first token"].caption


def test_the_percentiles_of_the_rules_are_drawn() -> None:
    """p95 from the rows of the stages; p99.9, which these lack, as judged."""
    rules = (
        parse_rule("ttft p95 < 1s"),
        parse_rule("ttft p99.9 < 1s"),
        parse_rule("ttft{class=A} p75 < 1s"),
        parse_rule("itl p50 < 1s"),
    )
    judged = SloResult(rule="ttft p99.9 < 1s", status="PASS", observed=0.5, unit="s")
    tail = Row(
        label="", tag="", unit="ms", count=19, percentiles={50.0: 10.0, 95.0: 20.0, 99.0: 30.0}
    )
    levels = [
        level(v, latencies={**level(v).latencies, "time_to_first_token": tail}, slos=(judged,))
        for v in (1.0, 2.0)
    ]
    sweep = SweepSummary(axis="concurrency", unit="users", levels=tuple(levels), ended="")
    plots = {plot.title: plot for plot in plot_stages(sweep, {}, rules)}
    ttft = plots["Time to first token"]
    assert [(s.name, s.y) for s in ttft.series] == [
        ("p50", [10, 10]),
        ("p95", [20, 20]),
        ("p99.9", [500, 500]),
    ]
    assert ttft.caption.startswith(
        "TTFT of successful requests: p50 and p95 and p99.9 of each stage. Under 1000 requests"
    )
    assert [s.name for s in plots["Inter-token latency"].series] == ["p50", "p99"]


def test_the_curve_of_a_rule_has_the_result_and_the_interval_of_each_stage() -> None:
    """Stages of 1, 2 and 4 users pass, are open, and fail; p95 is 20 ms for each user."""
    rule = parse_rule("ttft p95 < 60ms")
    levels = []
    for value, status in ((1.0, "PASS"), (2.0, "INCONCLUSIVE"), (4.0, "FAIL")):
        judged = SloResult(
            rule=str(rule), status=status, observed=20 * value, unit="ms",
            low=15 * value, high=25 * value,
        )  # fmt: skip
        ttft = Row(
            label="", tag="", unit="ms", count=400, percentiles={50.0: 10 * value, 95.0: 20 * value}
        )
        latencies = {**level(value).latencies, "time_to_first_token": ttft}
        levels.append(level(value, latencies=latencies, slos=(judged,), slo_status=status))
    sweep = SweepSummary(axis="concurrency", unit="users", levels=tuple(levels), ended="")
    plots = {plot.title: plot for plot in plot_stages(sweep, {}, (rule,))}
    found = {one.name: one for one in plots["Time to first token"].series}
    assert list(found) == ["p50", "p95", "passes", "not decided", "fails"]
    assert [(one.x, one.y, one.low, one.high) for one in list(found.values())[2:]] == [
        ([1], [20], [15], [25]),
        ([2], [40], [30], [50]),
        ([4], [80], [60], [100]),
    ]
    assert len({one.hue for one in found.values()}) == 5
    assert "result of their stage" in plots["Time to first token"].caption
    # ITL has no rule: the points are on its highest percentile
    assert [one.name for one in plots["Inter-token latency"].series] == [
        "p50", "p99", "passes", "not decided", "fails",
    ]  # fmt: skip


def test_several_stages_at_one_load_are_one_point() -> None:
    """At 2 users 100 requests of which all were good, then 60 of which half were: 130 of 160. The
    other charts show the stage of 100."""
    levels = [
        level(value, requests=requests, succeeded=requests, attainment=share)
        for value, requests, share in ((1.0, 40, 1.0), (2.0, 100, 1.0), (2.0, 60, 0.5))
    ]
    plots = drawn(*levels)
    attainment = plots["Attainment"]
    assert (attainment.series[0].x, attainment.series[0].y) == ([1, 2], [100, 81.25])
    assert attainment.caption.endswith("Several stages at one load count together.")
    shown = " Of several stages at one load the one with the most requests is shown."
    for title in ("Time to first token", "Throughput"):
        assert plots[title].caption.endswith(shown)
        assert not drawn(*levels[:2])[title].caption.endswith(shown)
    assert "Several stages" not in drawn(*levels[:2])["Attainment"].caption


@pytest.mark.parametrize(("rule", "name"), [("ttft p95 < 1s", "TTFT"), ("itl p95 < 1s", "ITL")])
def test_the_throughput_stands_against_the_latency_that_its_caption_has(
    rule: str, name: str
) -> None:
    percentiles = {50.0: 10.0, 95.0: 20.0, 99.0: 30.0}
    tag = {"TTFT": "time_to_first_token", "ITL": "inter_token_latency"}[name]
    made = Row(label="", tag=tag, unit="ms", count=400, percentiles=percentiles)
    levels = tuple(level(v, latencies={tag: made}) for v in (1.0, 2.0))
    sweep = SweepSummary(axis="concurrency", unit="users", levels=levels, ended="")
    plots = [*plot_stages(sweep, {}, (parse_rule(rule),))]
    assert plots[0].title == f"Throughput against {name} p95"
    assert f"Down: shorter {name}." in plots[0].caption


def test_even_steps_have_an_even_axis() -> None:
    assert drawn(level(1), level(2), level(3), level(4))["Throughput"].x.log == 0


def test_goodput_has_its_interval_and_attainment_is_a_percentage() -> None:
    good = [level(v, goodput_per_s=v * share, goodput_low=v * share - 0.1,
        goodput_high=v * share + 0.1, attainment=share)
            for v, share in ((1.0, 1.0), (2.0, 0.5))]  # fmt: skip
    plots = drawn(*good, level(4.0))
    goodput = next(s for s in plots["Goodput"].series if s.name == "good requests/s")
    assert (goodput.x, goodput.y) == ([1, 2], [1, 1])
    assert (goodput.low, goodput.high) == ([0.9, 0.9], [1.1, 1.1])
    assert next(s for s in plots["Goodput"].series if s.name == "all requests/s").y == [1, 2, 4]
    assert plots["Attainment"].series[0].y == [100, 50]
    assert (plots["Attainment"].y.low, plots["Attainment"].y.high) == (0, 100)
    assert "ttft < 1s" in plots["Attainment"].caption
    assert "Goodput" not in drawn(level(1), level(2))


def test_each_knee_is_marked_with_its_rule() -> None:
    knees = (
        Knee(rule="SLO", value=4.0, text=""), Knee(rule="USL", value=4.0, text=""),
        Knee(rule="asymptotic", value=3.5, text=""), Knee(rule="other", value=None, text="none"),
    )  # fmt: skip
    limits = {"ttft_s": (PlotMark("ttft p99 < 100ms", y=100.0),)}
    plots = drawn(level(2), level(4), level(8), knees=knees, limits=limits)
    marks = plots["Time to first token"].marks
    assert [(m.text, m.x, m.y) for m in marks] == [
        ("3.5: asymptotic", 3.5, None), ("4: SLO, USL", 4.0, None),
        ("ttft p99 < 100ms", None, 100.0),
    ]  # fmt: skip
    assert [m.text for m in plots["Throughput"].marks] == ["3.5: asymptotic", "4: SLO, USL"]


def test_stages_that_may_found_nothing_are_hollow() -> None:
    plots = drawn(level(1), level(2), level(4, client="INVALID"))
    for title, points in (("Throughput", [400]), ("Time to first token", [40, 120])):
        rings = plots[title].series[-1]
        assert (rings.kind, rings.name, rings.y) == ("rings", "distorted by the client", points)
    assert "Hollow" in plots["Time to first token"].caption
    assert all(s.kind != "rings" for s in drawn(level(1), level(2))["Throughput"].series)


@pytest.mark.parametrize("levels", [(), (level(1),)])
def test_less_than_two_stages_are_no_curve(levels: tuple[LoadLevel, ...]) -> None:
    assert drawn(*levels) == {}


def test_stages_without_figures_are_left_out() -> None:
    empty = level(2, latencies={}, output_tokens_per_s=None, requests_per_s=0.0, succeeded=0)
    plots = drawn(level(1), empty, level(4))
    assert plots["Time to first token"].series[0].x == [1, 4]
    assert plots["Throughput"].series[0].x == [1, 4]
    only = drawn(empty, level(3, latencies={}, output_tokens_per_s=None))
    assert plots["Throughput"].y.label == "output tokens/s"
    assert only["Throughput"].y.label == "requests/s"


def test_throughput_against_latency_shows_each_result_in_its_own_form() -> None:
    """A load that was visited twice has two points, and the line goes through the longer visit."""
    rule = parse_rule("ttft p95 < 100ms")

    def judged(value: float, p95: float, status: str, **more: object) -> LoadLevel:
        tail = Row(label="", tag="", unit="ms", count=99, percentiles={50.0: 10.0, 95.0: p95})
        result = SloResult(
            rule=str(rule), status=status, observed=p95, low=p95 / 2, high=p95 * 2, unit="ms"
        )
        latencies = {**level(value).latencies, "time_to_first_token": tail}
        return level(value, latencies=latencies, slos=(result,), slo_status=status, **more)

    levels = (
        judged(1, 20.0, "PASS"),
        judged(2, 60.0, "INCONCLUSIVE", succeeded=50, requests=50),
        judged(2, 80.0, "PASS"),
        judged(4, 2_100.0, "FAIL"),
    )
    limits = {"ttft_s": (PlotMark(str(rule), y=100.0),)}
    sweep = SweepSummary(axis="concurrency", unit="users", levels=levels, ended="")
    first, second, *_ = plot_stages(sweep, limits, [rule])
    assert first.title == "Throughput against TTFT p95"
    path, *results = first.series
    assert (path.x, path.y, path.labels) == ([100, 200, 400], [20, 80, 2100], ("1", "2", "4"))
    assert [(s.name, s.kind, s.x, s.y, s.low, s.high) for s in results] == [
        ("passes", "dots", [100, 200], [20, 80], [10, 40], [40, 160]),
        ("not decided", "rings", [200], [60], [30], [120]),
        ("fails", "rings", [400], [2100], [1050], [4200]),
    ]
    assert (first.y.log, second.y.log) == (10, 10)  # 21 times the limit
    assert second.series[1].y == [20, 80, 2100]
    assert first.marks[0].y == 100
