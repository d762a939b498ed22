"""Tiles of the page: percentiles of too few requests have the star of the tables."""

import pytest
from support.records import a_run, answered, mixed

from locust_llm.report.columns import collect_columns
from locust_llm.report.render.tiles import make_tiles
from locust_llm.report.summarise import summarise_run


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (8, "p95 7.65 ms*, p99 7.93 ms*"),
        (38, "p95 36.1 ms, p99 37.6 ms*"),
        (100, "p95 95 ms, p99 99 ms"),
    ],
)
def test_a_percentile_of_few_requests_has_a_star(count: int, shown: str) -> None:
    """TTFT of 1 to ``count`` ms."""
    records = [
        answered(ms, ms + 10, ms + 30, sent_at=10.0 + i) for i, ms in enumerate(mixed(count))
    ]
    run = a_run()
    found = {
        name: (figure, detail)
        for name, figure, detail in make_tiles(summarise_run(collect_columns(records), run), run)
    }
    assert found["TTFT, p50"][1] == shown
