"""Raw reads taken apart: the same events and moments however the bytes were split on their way."""

import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.lab.gateway.raw_answer import (
    AnswerTimes,
    SentWord,
    StreamEvent,
    find_words,
    parse_reads,
    read_times,
    split_events,
)

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-A: 1\r\nx-a: 2\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
FIRST = b'data: {"text":"r000000000000000100.2 w0.000000000000000200 "}\n\n'
SECOND = b'event: delta\nid: 7\ndata: {"text":"w1.000000000000000300 "}\n\n'
COMMENT = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


WIRE = [CHUNKED + chunk(FIRST), chunk(COMMENT), chunk(SECOND), chunk(DONE) + b"0\r\n\r\n"]


def test_a_stream_with_a_chunk_a_read() -> None:
    answer = parse_reads([(10 * (n + 1), data) for n, data in enumerate(WIRE)], closed=False)
    assert (answer.status, answer.complete) == (200, True)
    assert answer.header("x-a") == "1, 2"
    assert answer.is_event_stream
    assert answer.body == FIRST + COMMENT + SECOND + DONE
    assert split_events(answer.pieces) == [
        StreamEvent(10, "", FIRST[6:-2]),
        StreamEvent(20, "", b"", comment=b"keep-alive"),
        StreamEvent(30, "delta", b'{"text":"w1.000000000000000300 "}', "7"),
        StreamEvent(40, "", b"[DONE]"),
    ]
    assert read_times(answer) == AnswerTimes(100, (SentWord(0, 200, 10), SentWord(1, 300, 30)), 40)


@given(cuts=st.lists(st.integers(1, sum(map(len, WIRE)) - 1), unique=True).map(sorted))
def test_an_event_comes_with_the_read_of_its_last_byte(cuts: list[int]) -> None:
    wire = b"".join(WIRE)
    bounds = [0, *cuts, len(wire)]
    reads = [(number, wire[start:end]) for number, (start, end) in enumerate(pairwise(bounds))]

    def read_with(byte: int) -> int:
        """The number of the read that brings it."""
        return next(number for number, end in enumerate(bounds[1:]) if byte < end)

    answer = parse_reads(reads, closed=False)
    assert answer.complete
    assert answer.body == FIRST + COMMENT + SECOND + DONE
    events = split_events(answer.pieces)
    for event, text in zip(events, (FIRST, COMMENT, SECOND, DONE), strict=True):
        assert event.at_ns == read_with(wire.index(text) + len(text) - 1)


@given(cuts=st.lists(st.integers(1, 200), unique=True).map(sorted))
def test_a_compressed_body(cuts: list[int]) -> None:
    packer = zlib.compressobj(wbits=31)
    packed = packer.compress(FIRST) + packer.flush(zlib.Z_SYNC_FLUSH)
    at = len(packed)
    packed += packer.compress(DONE) + packer.flush()
    head = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    bounds = [0, *[cut for cut in cuts if cut < len(packed)], len(packed)]
    reads = [(0, head)]
    for number, (start, end) in enumerate(pairwise(bounds), 1):
        reads.append((number, packed[start:end]))
    answer = parse_reads(reads, closed=False)
    assert (answer.complete, answer.coding, answer.body) == (True, "gzip", FIRST + DONE)
    first = split_events(answer.pieces)[0]
    assert first.at_ns <= next(number for number, end in enumerate(bounds) if end >= at)


def test_bodies_of_a_length_and_of_a_connection() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"
    assert parse_reads([(1, head + b"abc")], closed=False).complete is False
    assert parse_reads([(1, head + b"ab"), (2, b"cd")], closed=False).pieces == (
        (1, b"ab"),
        (2, b"cd"),
    )
    open_end = parse_reads([(1, b"HTTP/1.0 200 OK\r\n\r\nabc")], closed=False)
    assert (open_end.body, open_end.complete) == (b"abc", False)
    assert parse_reads([(1, b"HTTP/1.0 200 OK\r\n\r\nabc")], closed=True).complete
    interim = parse_reads(
        [(1, b"HTTP/1.1 100 Continue\r\n\r\n"), (2, head + b"abcd")], closed=False
    )
    assert (interim.status, interim.body) == (200, b"abcd")


@pytest.mark.parametrize(
    "data", [b"", b"nonsense", b"\x00\x01\r\n\r\n", b"HTTP/1.1 200 OK\r\nA: b"]
)
def test_what_is_no_answer_has_no_status(data: bytes) -> None:
    assert parse_reads([(1, data)], closed=True).status is None


def test_a_broken_chunk_ends_the_body() -> None:
    answer = parse_reads([(1, CHUNKED + chunk(FIRST) + b"zz\r\nlost\r\n")], closed=True)
    assert (answer.body, answer.complete) == (FIRST, False)
    assert parse_reads([(1, CHUNKED + chunk(FIRST))], closed=True).complete is False


def test_events_with_other_line_ends_and_several_lines() -> None:
    assert split_events([(1, b"data: a\r\ndata: b\r\n\r\n"), (2, b"data: lost")]) == [
        StreamEvent(1, "", b"a\nb")
    ]


def test_words_that_come_twice_count_once_for_their_times() -> None:
    assert find_words([(5, b"w3.000000000000000001 w3.000000000000000001")]) == [
        SentWord(3, 1, 5),
        SentWord(3, 1, 5),
    ]
    whole = parse_reads(
        [
            (
                9,
                b"HTTP/1.1 200 OK\r\nContent-Length: 42\r\n\r\nw0.000000000000000001w0.000000000000000001",
            )
        ],
        closed=False,
    )
    assert read_times(whole) == AnswerTimes(None, (SentWord(0, 1, 9),), 9)
