"""The server's own metrics as charts: levels as they are, counters as rates and shares, each by
pencil."""

from collections.abc import Sequence

import pytest

from locust_llm.records.server_metrics_history import EngineHistory
from locust_llm.records.server_metrics_parser import EngineSample
from locust_llm.report.chart_data import server_chart_list
from locust_llm.report.chart_data.plot_data import Plot
from locust_llm.report.chart_data.server_charts import plot_server_metrics
from locust_llm.report.chart_data.time_axis import TimeAxis

UNIX = 1.7e9


def history(samples: Sequence[EngineSample]) -> EngineHistory:
    made = EngineHistory()
    for sample in samples:
        made.add(sample)
    return made


def sample(second: float, source: str = "", **more: float) -> EngineSample:
    return EngineSample(at=UNIX + second, engine="vLLM", source=source, **more)  # type: ignore[arg-type]


def drawn(samples: Sequence[EngineSample], seconds: float = 20.0) -> dict[str, Plot]:
    return {
        plot.title: plot
        for plot in plot_server_metrics(history(samples), TimeAxis(UNIX, 0.0, seconds))
    }


def test_a_level_has_a_line_for_each_replica_and_a_hole_where_a_reading_failed() -> None:
    samples = [
        sample(second, name, running=second, kv_used=0.5)
        for second in range(4)
        for name in ("a", "b")
    ]
    samples[4] = EngineSample(at=UNIX + 2, engine="", source="a", failure="HTTP 503")
    plots = drawn(samples)
    assert list(plots) == ["Running in the server", "KV cache in use"]
    running = plots["Running in the server"]
    assert [(one.name, one.x, one.y) for one in running.series[:2]] == [
        ("a", [0, 1, 2, 3], [0, 1, None, 3]),
        ("b", [0, 1, 2, 3], [0, 1, 2, 3]),
    ]
    strip = running.series[2]
    failures = {x: y for x, y in zip(strip.x, strip.y, strict=True) if y}
    assert (strip.kind, failures) == ("strip", {2.0: 1.0})
    assert running.caption.endswith("Bars above the plot: failed readings (1 in all).")
    assert plots["KV cache in use"].series[0].y == [50, 50, None, 50]
    assert plots["KV cache in use"].x.label == "time since the start"


def test_a_failed_reading_of_a_page_breaks_the_lines_of_its_gpus() -> None:
    gpus = [
        EngineSample(at=UNIX + s, engine="DCGM", source="n", gpu="0", gpu_use=0.5)
        for s in (0, 1, 3, 4)
    ]
    plot = drawn([*gpus, EngineSample(at=UNIX + 2, engine="", source="n", failure="timeout")])[
        "GPU use"
    ]
    assert plot.series[0].y == [50, 50, None, 50, 50]


def test_a_counter_is_a_rate_and_begins_anew_with_its_server() -> None:
    # two a second; at 5 s the server was new, and one came
    counts = [0, 2, 4, 6, 8, 1, 3, 5, 7, 9, 11]
    (plot,) = drawn(
        [sample(second, preemptions=count) for second, count in enumerate(counts)], 10
    ).values()
    (line,) = plot.series
    assert (line.kind, line.x[:3]) == ("steps", [0, 1, 2])
    assert line.y == [2, 2, 2, 2, 1, 2, 2, 2, 2, 2, 2]


def test_a_failed_reading_breaks_the_line_of_a_counter_too() -> None:
    """Two a second; 4 and 5 s could not be read, so between 3 and 6 s nobody knows."""
    samples = [
        sample(second, preemptions=2 * second) for second in range(11) if second not in (4, 5)
    ]
    samples += [
        EngineSample(at=UNIX + s, engine="", source=samples[0].source, failure="refused")
        for s in (4, 5)
    ]
    plot = drawn(sorted(samples, key=lambda one: one.at), 10)["Preemptions per second"]
    values = dict(zip(plot.series[0].x, plot.series[0].y, strict=True))
    assert all(value is None for at, value in values.items() if 3 <= at < 6)
    assert all(value == 2 for at, value in values.items() if not 2.5 < at < 6)


def test_where_nothing_was_read_is_a_hole() -> None:
    """The load generator stood still from second 5 to second 14: nobody knows what grew when."""
    seconds = [*range(6), *range(14, 20)]
    plots = drawn([sample(second, preemptions=2 * second, running=3) for second in seconds])
    running = plots["Running in the server"]
    assert running.series[0].x == seconds
    assert running.gap == 4.0
    rate = plots["Preemptions per second"].series[0]
    values = dict(zip(rate.x, rate.y, strict=True))
    # of the steps of 2 s those that are in it, the first in part
    assert [at for at, value in values.items() if value is None] == [4, 6, 8, 10, 12]
    assert {value for value in values.values() if value is not None} == {2}


def test_a_share_is_of_what_both_counters_grew_by_and_nothing_where_there_was_nothing() -> None:
    samples = [sample(s, cache_queries=min(s, 5) * 10, cache_hits=min(s, 5) * 2) for s in range(11)]
    (plot,) = drawn(samples, 10).values()
    assert plot.series[0].y == [20] * 5 + [None] * 6


def test_a_long_run_has_no_more_points() -> None:
    (plot,) = drawn([sample(second, waiting=second % 2) for second in range(3600)], 3600).values()
    (line,) = plot.series
    assert len(line.y) == 300
    assert set(line.y) == {0.5}
    assert plot.caption.endswith("Each point is the mean of 12 readings.")


def test_nothing_but_failures_is_drawn_too() -> None:
    failures = [
        EngineSample(at=UNIX + s, engine="", source="a", failure="refused") for s in range(3)
    ]
    (plot,) = drawn(failures).values()
    assert [one.kind for one in plot.series] == ["strip"]
    assert drawn([]) == {}


def test_values_at_a_moment_for_the_live_page() -> None:
    made = history(
        [
            sample(s, "a", running=s, cache_queries=s * 10, cache_hits=s * 2, preemptions=s)
            for s in range(9)
        ]
    )
    made.add(sample(8, "b", running=7))
    made.add(EngineSample(at=UNIX + 8, engine="", source="c", failure="refused"))
    values = dict(
        zip(
            [chart.field for chart in server_chart_list.CHARTS],
            server_chart_list.read_current_values(made, ["a", "b"]),
            strict=True,
        )
    )
    assert values["running"] == (8, 7)
    assert values["cache_hits"] == (pytest.approx(20), None)
    assert values["preemptions"] == (pytest.approx(1), None)
    assert values["gpu_use"] is None


def test_lines_are_in_the_order_of_their_numbers_and_keep_their_places() -> None:
    made = history([sample(0, name) for name in ("n:9400, GPU 0", "r-10:1", "r-2:1")])
    made.add(EngineSample(at=UNIX, engine="", source="c", failure="refused"))
    assert server_chart_list.list_line_names(made) == ["r-2:1", "r-10:1", "n:9400, GPU 0"]
    assert server_chart_list.list_line_names(made, ["r-10:1"]) == [
        "r-10:1",
        "r-2:1",
        "n:9400, GPU 0",
    ]
