"""TTFT, ITL, latency and gaps of one request, in numbers that a pencil can check."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.records import answered, failed

from locust_llm.records.profile_export_jsonl import (
    make_record_metrics,
)
from locust_llm.records.ttft_itl_latency import (
    AT_ONCE,
    HIDDEN_REASONING,
    NO_COUNT,
    NOT_STREAMED,
    ONE_CHUNK,
    ONE_TOKEN,
)

CHUNKS = st.lists(st.integers(0, 10_000_000), min_size=1, max_size=60).map(sorted).map(tuple)


def test_each_figure_of_one_request() -> None:
    record = answered(
        200, 220, 240, 300,
        due_at=9.0, asked_at=9.5, admitted_at=9.75, sent_at=10.0, closed_at=10.5, output_tokens=6,
        first_chunk_tokens=2,
    )  # fmt: skip
    assert record.gate_wait_s == 0.25
    assert record.late_s == 1.0
    assert record.ttft_s == 0.2
    assert record.ttft_from_due_s == pytest.approx(1.2)
    assert record.latency_s == 0.3
    assert record.itl_s == pytest.approx(0.025)  # 100 ms for the four tokens after the first two
    assert record.gaps_us == (20_000, 20_000, 60_000)
    assert record.longest_stall_s == 0.06
    assert record.close_lag_s == pytest.approx(0.2)


@given(CHUNKS)
def test_latency_is_ttft_and_the_sum_of_the_gaps_exactly(chunk_us: tuple[int, ...]) -> None:
    record = answered(200, chunk_us=chunk_us)
    assert chunk_us[0] + sum(record.gaps_us) == chunk_us[-1]
    assert record.latency_s == (chunk_us[0] + sum(record.gaps_us)) / 1e6


def test_no_itl_below_two_tokens_and_none_without_a_count() -> None:
    assert answered(200).itl_s is None
    assert answered(200, 220, output_tokens=None).itl_s is None
    assert answered(200, 220, output_tokens=1).itl_s is None
    assert answered(200).longest_stall_s is None


def test_of_several_choices_itl_is_that_of_one() -> None:
    """Two choices of three tokens each, side by side, a token every 20 ms."""
    record = answered(100, 100, 120, 120, 140, 140, choices=2)
    assert (record.output_tokens, record.itl_s) == (6, pytest.approx(0.02))
    assert answered(100, 100, choices=2).itl_s is None


def merged(*indices: int) -> tuple[tuple[int, int], ...]:
    return tuple((index, 0) for index in indices)


@pytest.mark.parametrize(
    ("ms", "fields", "why"),
    [
        ((200,), {"output_tokens": 50}, ONE_CHUNK),
        ((200, 200, 200), {"merged": merged(0, 1, 2)}, AT_ONCE),
        ((200, 200), {}, AT_ONCE),  # two reads of one microsecond
        # most of it in the first read
        ((200, 200, 200, 220), {"merged": merged(0, 1, 2)}, AT_ONCE),
        ((200, 200, 220, 240), {"merged": merged(0, 1)}, ""),
        ((200, 201, 201, 201, 201, 201, 201, 202, 202, 202) * 2, {}, ""),
        # 29 tokens in 2 ms
        ((200,) * 9 + (201,) * 11 + (202,) * 10, {"merged": merged(*range(30))}, AT_ONCE),
        ((200,) * 9 + (300,) * 11 + (400,) * 10, {"merged": merged(*range(30))}, ""),
        ((200, 220), {"output_tokens": 1}, ONE_TOKEN),
        ((200, 220), {"output_tokens": None}, NO_COUNT),
        ((), {"streamed": False}, NOT_STREAMED),
        ((200, 220), {"hidden_tokens": None}, HIDDEN_REASONING),
        ((200, 220), {"hidden_tokens": 5, "first_output": None}, HIDDEN_REASONING),
        ((200, 220, 240), {"hidden_tokens": 5, "first_output": 2, "output_tokens": 9}, ONE_CHUNK),
        ((200, 220, 240), {}, ""),
    ],
)
def test_why_there_is_no_itl(ms: tuple[float, ...], fields: dict[str, Any], why: str) -> None:
    record = answered(*sorted(ms), **fields)
    assert record.no_itl == why
    assert (record.itl_s is None) == bool(why)
    assert (
        ("inter_token_latency" in make_record_metrics(record))
        == ("output_token_throughput_per_user" in make_record_metrics(record))
        == (not why)
    )


def test_hidden_reasoning_divides_no_gap() -> None:
    """Ten chunks, a token each 50 ms; a hundred tokens of reasoning came before, and nobody saw
    them."""
    ms = range(2000, 2500, 50)
    assert answered(
        *ms, output_tokens=110, reasoning_tokens=100, hidden_tokens=100
    ).itl_s == pytest.approx(0.05)
    assert (
        answered(*ms, output_tokens=110, reasoning_tokens=100, hidden_tokens=100).tokens_per_chunk
        == 1
    )
    summary = answered(
        500, 900, *ms, output_tokens=110, reasoning_tokens=100, hidden_tokens=100, first_output=2
    )
    assert summary.itl_s == pytest.approx(0.05)
    assert summary.tokens_per_chunk == 1
    seen = answered(*ms, output_tokens=10, reasoning_tokens=5, first_output=5)
    assert seen.itl_s == pytest.approx(0.05)


@given(CHUNKS, st.data())
def test_an_itl_is_above_zero_and_no_longer_than_the_span(
    chunk_us: tuple[int, ...], data: st.DataObject
) -> None:
    hidden = data.draw(st.none() | st.integers(0, 100))
    first = data.draw(st.none() | st.integers(0, len(chunk_us) - 1))
    shared = data.draw(st.sets(st.integers(0, len(chunk_us) - 1)))
    record = answered(
        chunk_us=chunk_us, output_tokens=data.draw(st.none() | st.integers(0, 200)),
        hidden_tokens=hidden,
        first_output=first, merged=merged(*sorted(shared)), choices=data.draw(st.integers(1, 3)),
    )  # fmt: skip
    assert (record.itl_s is None) == bool(record.no_itl)
    if record.itl_s is not None:
        assert record.itl_s > 0
        assert len(set(chunk_us)) > 1


def test_ttfo_is_the_first_chunk_that_is_no_reasoning() -> None:
    assert answered(200, 220, 240, first_output=2).ttfo_s == 0.24
    assert answered(200, 220, first_output=None).ttfo_s is None


def test_gaps_next_to_merged_chunks_are_not_sharp() -> None:
    record = answered(100, 120, 140, 140, 160, merged=((2, 125_000), (3, 125_000)))
    assert record.gaps_us == (20_000, 20_000, 0, 20_000)
    assert record.sharp_gaps_us == (20_000,)
    assert not record.ttft_is_upper_bound
    assert answered(100, 100, merged=((0, 90_000), (1, 90_000))).ttft_is_upper_bound


def test_what_was_never_sent_has_no_latency() -> None:
    record = failed("refused", sent_at=None)
    assert (record.late_s, record.ttft_s, record.latency_s, record.ttft_from_due_s) == (
        None,
        None,
        None,
        None,
    )


def test_an_answer_in_one_piece_has_a_latency_and_no_ttft() -> None:
    record = answered(streamed=False, closed_at=10.75)
    assert record.latency_s == 0.75
    assert record.ttft_s is None


def test_what_merged_chunks_leave_open() -> None:
    """Chunks 2 and 3 in one read, after 15 ms; the last two in another, after 38 ms."""
    us, merged = (
        (10_000, 30_000, 30_000, 35_000, 50_000, 50_000),
        ((1, 15_000), (2, 15_000), (4, 38_000), (5, 38_000)),
    )
    record = replace(answered(1), chunk_us=us, merged=merged)
    assert record.sharp_gaps_us == ()
    assert record.blurred_gaps_us == (
        (5_000, 20_000),
        (0, 15_000),
        (5_000, 20_000),
        (3_000, 15_000),
        (0, 12_000),
    )
    assert (record.latency_s, record.latency_soonest_s) == (0.05, 0.038)
    assert replace(record, merged=()).latency_soonest_s == 0.05
    assert replace(record, merged=()).blurred_gaps_us == ()
