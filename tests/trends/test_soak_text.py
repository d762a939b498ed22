"""Soak text: short times are in seconds, so that a needed time is longer than the one that was too
short."""

import pytest

from locust_llm.trends.soak_text import _format_needed_hours, format_hours


@pytest.mark.parametrize(
    ("hours", "text"),
    [
        (30 / 3600, "30 s"),
        (60 / 3600, "60 s"),
        (66 / 3600, "66 s"),
        (0.0, "1 s"),
        (5 / 60, "5 min"),
        (1.6, "1.6 h"),
    ],
)
def test_a_time_is_written_in_its_unit(hours: float, text: str) -> None:
    assert format_hours(hours) == text


@pytest.mark.parametrize(
    ("hours", "text"),
    [
        (30.1 / 3600, "31 s"),
        (66 / 3600, "66 s"),
        (5.2 / 60, "6 min"),
        (44 / 60, "44 min"),
        (1.52, "1.6 h"),
        (20.0, "20 h"),
    ],
)
def test_a_needed_time_is_rounded_up(hours: float, text: str) -> None:
    assert _format_needed_hours(hours) == text
