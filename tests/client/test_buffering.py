"""Buffering: streams that were held back on the way, told from those that came as they were made."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import answered, failed

from locust_llm.client.buffering import ANSWERS, DELAYED, LUMPS, WHOLE, Buffering, way_of
from locust_llm.core.record import Record

STEADY = answered(*(200 + 20 * number for number in range(20)))
BURST = answered(*(2000 + number / 100 for number in range(40)))
QUANTA = answered(*(200 + 40.3 * (number // 2) for number in range(20)))
FULL = answered(*(200 + 150 * (number // 6) for number in range(24)))


def seen(records: Iterable[Record]) -> Buffering:
    found = Buffering()
    for record in records:
        found.add(record)
    return found


@pytest.mark.parametrize(("record", "way"), [(STEADY, ""), (BURST, WHOLE), (QUANTA, DELAYED), (FULL, LUMPS)])
def test_how_chunks_came(record: Record, way: str) -> None:
    assert way_of(record) == way


def test_forty_tokens_in_a_hundredth_of_a_second_may_be_a_small_model_or_a_cache() -> None:
    assert way_of(answered(*(9 + number / 100 for number in range(40)))) == ""


def test_twenty_five_tokens_a_second_are_no_delayed_acknowledgements() -> None:
    assert way_of(answered(*(200 + 40 * number for number in range(30)))) == ""


def test_a_fast_server_whose_chunks_come_two_to_a_read_is_not_buffered() -> None:
    """2,400 tokens a second, read every 0.75 ms, and a stall when somebody's prompt comes."""
    us = [9 + 0.75 * (number // 2) + (300 if number > 30 else 0) for number in range(60)]
    assert way_of(answered(*us)) == ""


def test_what_was_read_late_is_no_proxys_doing() -> None:
    assert way_of(answered(*(2000 + number / 100 for number in range(40)), read_lag_us=1_500_000)) == ""
    assert way_of(answered(*(200 + 150 * (number // 6) for number in range(24)), read_lag_us=400_000)) == ""


def test_the_remark_names_the_likely_cause() -> None:
    assert list(seen([STEADY] * 20).remarks()) == []
    (said,) = seen([BURST] * 20).remarks()
    assert "20 of 20 answers" in said
    assert "after up to 2.0 s" in said
    assert "proxy_buffering" in said
    (said,) = seen([QUANTA] * 20).remarks()
    assert "TCP_NODELAY" in said
    (said,) = seen([FULL] * 20).remarks()
    assert "4 or more at a time" in said


def test_once_it_can_be_told_that_is_said() -> None:
    found = Buffering()
    assert [number for number in range(1, 300) if found.add(BURST)] == [20]


def test_it_takes_three_of_a_kind_and_half_of_all() -> None:
    assert seen([BURST] * 2).way == ""
    assert seen([BURST] * 3).way == WHOLE
    assert seen([BURST] * 3 + [STEADY] * 4).way == ""
    assert seen([BURST] * 4 + [STEADY] * 4).way == WHOLE


def test_failures_short_answers_and_whole_bodies_say_nothing() -> None:
    short = answered(2000, 2000, 2000)
    whole = answered(streamed=False, output_tokens=50)
    found = seen([failed(chunk_us=BURST.chunk_us), short, whole] * 9)
    assert (found.answers, found.way, found.tokens_a_chunk, list(found.remarks())) == (0, "", None, [])


def test_tokens_a_chunk_by_the_servers_own_count() -> None:
    ten = answered(*(200 + 90 * number for number in range(5)), output_tokens=41)
    found = seen([ten] * 3)
    assert found.tokens_a_chunk == pytest.approx(8.2)
    assert seen([answered(*range(200, 300, 10), output_tokens=11)]).tokens_a_chunk == pytest.approx(1.1)
    assert list(seen([answered(*range(200, 400, 20), output_tokens=11)] * 5).remarks()) == []
    estimated = answered(*range(200, 300, 10), tokens_from="chunks")
    assert seen([estimated] * 5).tokens_a_chunk is None
    assert seen([answered(*range(200, 400, 20), output_tokens=20, choices=2)] * 5).tokens_a_chunk is None


def test_after_enough_answers_no_more_are_looked_at() -> None:
    found = seen([STEADY] * ANSWERS + [BURST] * 1000)
    assert (found.answers, found.ways.total()) == (ANSWERS, 0)


@given(st.lists(st.integers(0, 10_000_000), min_size=1, max_size=60).map(sorted), st.integers(0, 5_000_000))
def test_no_stream_raises(chunk_us: list[int], read_lag_us: int) -> None:
    record = answered(chunk_us=tuple(chunk_us), output_tokens=len(chunk_us), read_lag_us=read_lag_us)
    assert way_of(record) in ("", WHOLE, DELAYED, LUMPS)
    list(seen([record] * 5).remarks())
