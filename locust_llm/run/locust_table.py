"""Locust's own table in our digits: three instead of two, and its percentiles those of core/histogram.py."""

import logging
from typing import Any

import locust.stats

from locust_llm.core.histogram import percentiles, three_digits


def without_tables() -> None:
    """Locust prints no tables at its end: the ending of the run has their figures."""
    logging.getLogger("locust.stats_logger").addFilter(lambda line: False)


def three_digits_in_locust() -> None:
    """In this process, from now on."""
    locust.stats.bucket_response_time = _rounded_ms  # type: ignore[assignment]
    locust.stats.calculate_response_time_percentile = _percentile_ms  # type: ignore[assignment]


def keep_no_copies_of_rows() -> None:
    """Locust keeps the last twenty states of the response times of each row, for ``--csv-full-history`` alone; in our digits
    they came to 18 MB after seven minutes. The page needs those of the total."""
    begin = locust.stats.StatsEntry.__init__

    def begin_without_copies(
        self: Any, stats: Any, name: str, method: str, use_response_times_cache: bool = False
    ) -> None:
        begin(self, stats, name, method, use_response_times_cache and name == "Aggregated")

    if begin.__name__ != begin_without_copies.__name__:
        locust.stats.StatsEntry.__init__ = begin_without_copies  # type: ignore[method-assign]


def _rounded_ms(response_time: float) -> float:
    return three_digits(round(response_time * 1000)) / 1000


def _percentile_ms(response_times: dict[float, int], num_requests: int, percent: float) -> float:
    """``percent``: from 0 to 1, as Locust has it."""
    return percentiles(response_times, (percent * 100,))[0] if response_times else 0.0
