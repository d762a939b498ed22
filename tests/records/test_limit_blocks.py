"""What the requests of limit blocks come to, by hand: two blocks of ten seconds, one counted from 2
to 8, the other from 12 to 18."""

import math

import pytest

from locust_llm.records.limit_blocks import LimitBlock, LimitBlockRecords, find_median_length
from locust_llm.records.outcomes import CUT, RETRIED
from locust_llm.records.record import Record
from locust_llm.slo.best_prefill_limit import GOODPUT, SHORT_TTFT, STALL, TOKENS
from locust_llm.slo.rules import Condition


def a_block(limit: int | None, at: float) -> LimitBlock:
    return LimitBlock(
        round=1, limit=limit, began_at=at, settled_at=at + 2, counted_until=at + 8, ended_at=at + 10
    )


BLOCKS = [a_block(None, 0.0), a_block(4, 10.0)]


def a_record(due_at: float, *chunks_s: float, tokens: int = 100, **more: object) -> Record:
    """Sent half a second after it was due."""
    fields = {
        "id": "a", "clock_offset_s": 0.0, "due_at": due_at, "asked_at": due_at,
        "admitted_at": due_at + 0.5, "sent_at": due_at + 0.5,
        "closed_at": due_at + 0.5 + (chunks_s[-1] if chunks_s else 1.0),
        "chunk_us": tuple(round(s * 1e6) for s in chunks_s), "first_output": 0,
        "asked_input_tokens": tokens, "output_tokens": len(chunks_s), "tokens_from": "usage",
    }  # fmt: skip
    return Record(**(fields | more))  # type: ignore[arg-type]


def values_of(found: LimitBlockRecords, objective: str, limit: int | None) -> list[float]:
    return list(found.samples(objective, [limit], BLOCKS)[limit][1].values)


def test_only_requests_that_are_due_behind_the_settling_and_before_the_tail_count() -> None:
    found = LimitBlockRecords()
    for due_at in (1.9, 2.0, 7.9, 8.0, 12.5):
        found.add(a_record(due_at, 0.1), BLOCKS)
    assert values_of(found, SHORT_TTFT, None) == [pytest.approx(0.6)] * 2
    assert values_of(found, SHORT_TTFT, 4) == [pytest.approx(0.6)]


def test_what_is_in_flight_at_the_change_counts_nowhere_but_for_what_was_due_long_before() -> None:
    found = LimitBlockRecords()
    found.add(a_record(9.0, 0.1, 3.0), BLOCKS)  # left out
    found.add(a_record(3.0, 0.1, 9.0), BLOCKS)  # it should have ended by 10
    assert found.left_out == 1
    assert values_of(found, SHORT_TTFT, None) == [pytest.approx(0.6)]
    assert values_of(found, STALL, None) == []


def test_failures_are_infinite_cut_ones_at_least_their_age_and_retries_nothing() -> None:
    found = LimitBlockRecords()
    found.add(a_record(3.0, outcome="timeout", closed_at=4.0), BLOCKS)
    found.add(a_record(4.0, outcome=CUT, closed_at=9.0), BLOCKS)
    found.add(a_record(5.0, outcome=RETRIED, closed_at=9.0), BLOCKS)
    assert values_of(found, SHORT_TTFT, None) == [math.inf, pytest.approx(5.0)]


def test_short_prompts_are_at_most_as_long_as_the_median() -> None:
    found = LimitBlockRecords()
    for tokens, ttft_s in ((100, 0.1), (100, 0.2), (9000, 3.0)):
        found.add(a_record(3.0, ttft_s, tokens=tokens), BLOCKS)
    assert find_median_length(found.requests) == 100
    assert values_of(found, SHORT_TTFT, None) == [pytest.approx(0.6), pytest.approx(0.7)]


def test_good_requests_are_counted_by_the_conditions() -> None:
    found = LimitBlockRecords([Condition("ttft", "<", 150.0, "ms")])
    found.add(a_record(3.0, 0.1), BLOCKS)
    found.add(a_record(3.0, 0.2), BLOCKS)
    assert values_of(found, GOODPUT, None) == [1.0, 0.0]


def test_output_tokens_count_until_the_limit_changes() -> None:
    """Ten tokens from 7 to 16, of which 3 in 9 seconds come by 10, when the limit changes."""
    found = LimitBlockRecords()
    found.add(a_record(6.0, *(0.5 + i for i in range(10))), BLOCKS)
    assert values_of(found, TOKENS, None) == [pytest.approx(10 / 3)]
    assert values_of(found, TOKENS, 4) == []
