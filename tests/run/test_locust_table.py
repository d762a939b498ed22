"""Locust's table in our digits, and without the copies of rows that only a history of rows needs."""

from locust.stats import RequestStats

import pytest
from support import unpatched_locust  # noqa: F401  before the rest

from locust_llm.run.locust_table import keep_no_copies_of_rows, three_digits_in_locust


def test_rows_keep_no_copies_and_the_total_does(monkeypatch: pytest.MonkeyPatch) -> None:
    import locust.stats

    monkeypatch.setattr(locust.stats.StatsEntry, "__init__", locust.stats.StatsEntry.__init__)  # put back afterwards
    keep_no_copies_of_rows()
    keep_no_copies_of_rows()  # of another environment
    stats = RequestStats()
    for second in range(3):
        monkeypatch.setattr("time.time", lambda second=second: 1000.0 + 2 * second)
        stats.get("a row", "TTFT").log(12.0, 0)
        stats.log_request("POST", "/v1", 12.0, 0)
    assert stats.get("a row", "TTFT").response_times_cache is None
    assert stats.total.response_times_cache
    stats.clear_all()
    assert stats.total.use_response_times_cache


def test_three_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    import locust.stats

    for name in ("bucket_response_time", "calculate_response_time_percentile"):
        monkeypatch.setattr(locust.stats, name, getattr(locust.stats, name))
    three_digits_in_locust()
    assert [locust.stats.bucket_response_time(ms) for ms in (12.4, 1234.0)] == [12.4, 1230.0]
