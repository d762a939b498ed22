"""Retries: what Retry-After says, in whatever form, and how long to wait without one."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.client.retry import (
    BACKOFF_S,
    MAX_WAIT_S,
    parse_retry_after_s,
    retry_pause_s,
)

NOON = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("3", 3.0),
        (" 120 ", 120.0),
        ("0", 0.0),
        ("0.5", 0.5),
        ("Tue, 14 Nov 2023 22:13:30 GMT", 10.0),
        ("Tue, 14 Nov 2023 22:13:10 GMT", 0.0),  # that was before
        ("Tuesday, 14-Nov-23 22:13:30 GMT", 10.0),
        ("-5", 0.0),
        ("soon", None),
        ("", None),
        ("nan", None),
        ("inf", None),
        ("9" * 400, 999_999_999.0),
        ("['1', '2']", None),
    ],
)
def test_how_long_a_server_asks_to_wait(value: str, seconds: float | None) -> None:
    assert parse_retry_after_s(value, NOON) == seconds


@given(st.text())
def test_no_text_raises(value: str) -> None:
    seconds = parse_retry_after_s(value, NOON)
    assert seconds is None or seconds >= 0


def test_what_the_server_asks_for_is_done_unless_it_is_absurd() -> None:
    assert retry_pause_s(1, 7.0, Random(1)) == 7.0
    assert retry_pause_s(9, 0.0, Random(1)) == 0.0
    assert retry_pause_s(1, MAX_WAIT_S, Random(1)) == MAX_WAIT_S
    assert retry_pause_s(1, MAX_WAIT_S + 0.1, Random(1)) is None


def test_without_a_word_it_doubles_from_half_a_second_and_half_of_it_is_chance() -> None:
    for attempt, most in (
        (1, 0.5),
        (2, 1.0),
        (3, 2.0),
        (7, 32.0),
        (8, MAX_WAIT_S),
        (2000, MAX_WAIT_S),
    ):
        pauses = [retry_pause_s(attempt, None, Random(seed)) for seed in range(200)]
        assert all(pause is not None and most / 2 <= pause <= most for pause in pauses)
        assert len(set(pauses)) > 100
    assert BACKOFF_S == 0.5
