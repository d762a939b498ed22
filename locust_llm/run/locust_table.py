"""Locust's own table in our digits: three instead of two, and its percentiles those of core/histogram.py."""

import locust.stats

from locust_llm.core.histogram import percentiles, three_digits


def three_digits_in_locust() -> None:
    """In this process, from now on."""
    locust.stats.bucket_response_time = _rounded_ms  # type: ignore[assignment]
    locust.stats.calculate_response_time_percentile = _percentile_ms  # type: ignore[assignment]


def _rounded_ms(response_time: float) -> float:
    return three_digits(round(response_time * 1000)) / 1000


def _percentile_ms(response_times: dict[float, int], num_requests: int, percent: float) -> float:
    """``percent``: from 0 to 1, as Locust has it."""
    return percentiles(response_times, (percent * 100,))[0] if response_times else 0.0
