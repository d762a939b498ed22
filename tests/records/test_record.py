"""What a record says about itself, and that it is the same after JSON."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import answered, failed

from locust_llm.records.outcomes import CANCELLED, CUT, FAILURES, OK, RETRIED
from locust_llm.records.profile_export_jsonl import (
    format_record_line,
    parse_record_line,
)

CHUNKS = st.lists(st.integers(0, 10_000_000), min_size=1, max_size=60).map(sorted).map(tuple)


def test_how_far_it_came() -> None:
    assert answered(200).broke_in == ""
    assert failed("refused", sent_at=None).broke_in == "connecting"
    assert failed("send_failed").broke_in == "sending"
    assert failed("timeout").broke_in == "headers"
    assert failed("rate_limited", status=429, headers_at=10.1).broke_in == "headers"
    assert failed("timeout", status=200, headers_at=10.1).broke_in == "prefill"
    chunk = {"chunk_us": (200_000,), "headers_at": 10.1, "status": 200}
    assert failed("reset", **chunk).broke_in == "decode"
    assert failed("reset", finish_reason="stop", **chunk).broke_in == "end"


@pytest.mark.parametrize("outcome", [*FAILURES, OK, CUT, CANCELLED, RETRIED])
def test_only_failures_are_failures(outcome: str) -> None:
    assert answered(200, outcome=outcome).failed == (outcome not in (OK, CUT, CANCELLED, RETRIED))


@given(CHUNKS, st.sampled_from([None, 3, 1 << 40]), st.text())
def test_a_record_is_the_same_after_json(
    chunk_us: tuple[int, ...], limit: int | None, message: str
) -> None:
    record = answered(200, chunk_us=chunk_us, limit=limit, error=message, sent_at=12345.678901234)
    data = msgspec.json.encode(record)
    assert msgspec.json.decode(data, type=type(record)) == record
    assert msgspec.json.decode(data).get("message", "") == message  # its name in files


def test_tokens_per_chunk() -> None:
    """Nine tokens in three chunks; without counts by chunk the token that ends an answer is in none
    of them."""
    counted = answered(
        1, 2, 3, output_tokens=10, chunk_tokens=((1, 1), (4, 2)), finish_reason="stop"
    )
    assert (counted.tokens_per_chunk, counted.chunks_counted) == (3.0, True)
    assert answered(1, 2, 3, output_tokens=10, finish_reason="stop").tokens_per_chunk == 3.0
    assert answered(1, 2, 3, output_tokens=9, finish_reason="length").tokens_per_chunk == 3.0
    assert answered(1, 2, 3, tokens_from="chunks").tokens_per_chunk is None
    assert answered().tokens_per_chunk is None


def test_chunk_tokens_are_read_back_and_those_of_other_chunks_are_refused() -> None:
    known = answered(1, 2, 3, chunk_tokens=((1, 1), (4, 2)))
    assert parse_record_line(format_record_line(known)) == known
    # as older folders have them
    assert b"chunk_tokens" not in format_record_line(answered(1, 2, 3))
    with pytest.raises(ValueError, match="chunk_tokens do not match its chunks"):
        parse_record_line(format_record_line(answered(1, 2, 3, chunk_tokens=((1, 1), (4, 9)))))
