"""What a ramp of the prefill limit did, with a pencil."""

from support.records import a_run, answered

from locust_llm.report.chart_data.charts_by_prefill_limit import plot_ramp_by_limit
from locust_llm.report.load_records import collect_columns
from locust_llm.report.summarise_metrics import summarise_run


def test_ttft_and_the_wait_by_limit() -> None:
    """Under limit 1 a request waits 2 s at the gate, and then 100 ms; under 3 it waits 300 ms."""
    records = [
        answered(ms, ms + 10, sent_at=at, admitted_at=at, asked_at=at - wait, due_at=at - wait,
            limit=limit)
        for limit, ms, wait, start in ((1, 100, 2.0, 10), (3, 300, 0.0, 50))
        for at in [start + 0.5 * i for i in range(20)]
    ]  # fmt: skip
    run = a_run(((0.0, 1), (45.0, 3)), prefill_concurrency=3)
    summary = summarise_run(collect_columns(records), run, 0, records)
    (plot,) = plot_ramp_by_limit(summary.breakdowns)
    assert [(line.name.partition(",")[0], line.x, line.y) for line in plot.series] == [
        ("TTFT from due p50", [1, 3], [2100, 300]),
        ("TTFT p50", [1, 3], [100, 300]),
    ]
    assert plot.label.endswith("100 ms at 1, 300 ms at 3")
    assert plot.x.ticks == ((1.0, "1"), (3.0, "3"))


def test_a_run_without_a_ramp_has_none() -> None:
    records = [answered(100, 110, sent_at=10.0 + i) for i in range(5)]
    summary = summarise_run(collect_columns(records), a_run(), 0, records)
    assert list(plot_ramp_by_limit(summary.breakdowns)) == []
