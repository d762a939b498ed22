"""Response: real servers' answers in every split, hostile bytes, and what a stamp may claim."""

import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.scripted import chunked, delta, event, head

from locust_llm.client import response_chunks
from locust_llm.client.response_chunks import (
    DECODE_BYTES,
    MAX_BODY_BYTES,
    MAX_ERROR_BYTES,
    NO_END,
    Response,
)
from locust_llm.client.sse import EventDecoder
from locust_llm.protocols.answer_parser import Completion
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.records.outcomes import FAILURES, OK
from locust_llm.records.server_times import ServerTimes
from locust_llm.settings.run_options import MAX_RESPONSE_BYTES
from locust_llm.text.sanitise import MESSAGE_BYTES, sanitise_text

CAPTURES = Path(__file__).parents[1] / "captures"


class Expected(NamedTuple):
    outcome: str
    chunks: int = 0
    finish: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    status: int = 200
    streamed: bool = True
    says: str = ""
    ends: str = "answer"
    """``close``: the connection ends before the answer does."""
    choices: int = 1


EXPECTED = {
    "vllm_stream": Expected(OK, 6, "length", 13, 6),
    "vllm_request_metrics": Expected(OK, 4, "length", 14, 4),
    "vllm_no_usage": Expected(OK, 4, "length"),
    "vllm_immediate_stop": Expected(OK, 0, "stop", 13, 1, says="the model ended at once"),
    "vllm_one_token": Expected(OK, 1, "length", 13, 1),
    "vllm_continuous_usage": Expected(OK, 3, "length", 13, 3),
    "vllm_n2": Expected(OK, 4, "length", 13, 4, choices=2),
    "vllm_interval_10": Expected(OK, 4, "length", 13, 25),
    "vllm_whole": Expected(OK, 0, "length", 13, 6, streamed=False),
    "vllm_unknown_model": Expected(
        "http_status", status=404, streamed=False, says="The model `nope` does not exist."
    ),
    "vllm_busy": Expected(
        "unavailable", status=503, streamed=False, says="The engine is currently busy"
    ),
    "vllm_no_key": Expected(
        "http_status", status=401, streamed=False, says="HTTP 401: Unauthorized"
    ),
    "vllm_too_long": Expected(
        "http_status", status=400, streamed=False, says="maximum context length is 16384 tokens"
    ),
    "vllm_completions": Expected(OK, 3, "length", 3, 3),
    "vllm_killed": Expected("stream_error", 3, says="EngineCore encountered an issue"),
    "llamacpp_stream": Expected(OK, 6, "length", 13, 6),
    "llamacpp_no_usage": Expected(OK, 4, "length"),
    "llamacpp_immediate_stop": Expected(OK, 0, "stop", 13, 1, says="the model ended at once"),
    "llamacpp_max_tokens_0": Expected(OK, 1, "length"),
    "llamacpp_schema": Expected(OK, 8, "length", 41, 16),
    "llamacpp_n2": Expected(OK, 4, "length", 13, 4, choices=2),
    "llamacpp_completions": Expected(OK, 3, "length", 3, 3),
    "vllm_responses": Expected(OK, 2, "length", 13, 5),
    "vllm_responses_metrics": Expected(OK, 3, "length", 11, 3),
    "vllm_messages": Expected(OK, 5, "length", 13, 5),
    "llamacpp_responses": Expected(OK, 5, "stop", 13, 5),
    "llamacpp_messages": Expected(OK, 5, "length", 13, 5),
    "llamacpp_too_long": Expected(
        "http_status", status=400, streamed=False, says="exceeds the available context size"
    ),
    "llamacpp_no_key": Expected(
        "http_status", status=401, streamed=False, says="HTTP 401: Invalid API Key"
    ),
    "llamacpp_ping": Expected(OK, 2, "length"),
    "llamacpp_killed": Expected("closed", 2, ends="close"),
    "transformers_stream": Expected(OK, 6, "length", 13, 6),
    "transformers_cb_stream": Expected(OK, 6, "length", 13, 6),
    "transformers_completions": Expected(OK, 3, "length", 3, 3),
    "transformers_stream_error": Expected("stream_error", says="`temperature` (=-1.0) has to be"),
    "transformers_500": Expected(
        "http_status", status=500, streamed=False, says="HTTP 500: Internal Server Error"
    ),
    "transformers_400": Expected(
        "http_status", status=400, streamed=False, says="Server is pinned to"
    ),
    "transformers_killed": Expected("closed", 1, ends="close"),
    "litellm_stream": Expected(OK, 6, "length", 13, 6),
    "litellm_immediate_stop": Expected(OK, 0, "stop", 13, 1, says="the model ended at once"),
    "litellm_n2": Expected(OK, 3, "length", 13, 4, choices=2),
    "litellm_completions": Expected(OK, 2, "length", 3, 3),
    "litellm_completions_ids": Expected(
        "http_status", status=500, streamed=False, says="Unmapped prompt format"
    ),
    "litellm_backend_down": Expected(
        "http_status", status=500, streamed=False, says="Connection error."
    ),
    "litellm_wrong_key": Expected(
        "http_status", status=400, streamed=False, says="HTTP 400: No connected db."
    ),
    "litellm_no_key": Expected(
        "http_status", status=500, streamed=False, says="HTTP 500: Internal Server Error"
    ),
    "litellm_killed": Expected("stream_error", 2, says="litellm.APIConnectionError"),
}


def kind_of(name: str) -> str:
    return next((kind for kind in PROTOCOLS if kind in name), "chat")


def wire(name: str) -> bytes:
    """A capture as it went over the wire: its chunked framing put back, an event a chunk."""
    data = (CAPTURES / f"{name}.http").read_bytes()
    top, _, body = data.partition(b"\r\n\r\n")
    if b"chunked" in top.lower():
        events = (
            [part + b"\n\n" for part in body.split(b"\n\n") if part]
            if b"event-stream" in top
            else [body]
        )
        ending = chunked(b"") if EXPECTED[name].ends == "answer" else b""
        body = b"".join(map(chunked, events)) + ending
    return top + b"\r\n\r\n" + body


def give(stream: Response, stamp_ns: int, since_ns: int, data: bytes) -> None:
    """One read, as the reader's thread gives it."""
    if stream.append_read(stamp_ns, since_ns, data):
        stream.decode_pending()


def read(*reads: bytes, sent_ns: int = 0, kind: str = "chat") -> Response:
    """A stream that got these reads, a microsecond apart, each begun half of one before."""
    stream = Response(sent_ns, kind=kind, keep_text=True)
    for number, data in enumerate(reads, 1):
        if stream.over:
            break
        give(stream, sent_ns + number * 1000, sent_ns + number * 1000 - 1500, data)
    return stream


def ended(stream: Response) -> Expected:
    """What became of it, as in the table above."""
    if not stream.over:
        stream.note_closed()
    outcome, message = stream.finish()
    answer = stream.answer
    chunk_us, _ = stream.chunks()
    return Expected(
        outcome, len(chunk_us), answer.finish_reason, answer.input_tokens, answer.output_tokens,
        stream.status or 0, stream.streamed, message,
        "answer" if stream.frame.complete else "close", answer.choices,
    )  # fmt: skip


def check(name: str, *reads: bytes) -> Response:
    stream = read(*reads, kind=kind_of(name))
    # noticed with the last byte, not with the close
    assert stream.over == (EXPECTED[name].ends == "answer")
    got = ended(stream)
    assert got.says.find(EXPECTED[name].says) >= 0
    assert got._replace(says="") == EXPECTED[name]._replace(says="")
    return stream


def test_there_is_an_expectation_for_each_capture() -> None:
    assert {path.stem for path in CAPTURES.glob("*.http")} == set(EXPECTED)


def splits(data: bytes, step: int) -> Iterator[tuple[bytes, ...]]:
    yield (data,)
    for cut in range(1, len(data), step):
        yield data[:cut], data[cut:]
    for size in (1, 2, 3, 5, 7, 64, 1000):
        yield tuple(data[at : at + size] for at in range(0, len(data), size))


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_a_real_answer_means_the_same_in_any_split(name: str) -> None:
    data = wire(name)
    texts = {"".join(check(name, *reads).answer.text or ()) for reads in splits(data, 29)}
    assert len(texts) == 1


@pytest.mark.full
@pytest.mark.parametrize("name", EXPECTED)
def test_a_real_answer_means_the_same_in_every_split(name: str) -> None:
    for reads in splits(wire(name), 1):
        check(name, *reads)


STREAMED = sorted(name for name, expected in EXPECTED.items() if expected.streamed)


def said(name: str, *pieces: bytes) -> tuple[Completion, tuple[str, str]]:
    """The body alone, without HTTP around it: the decoder of events and that of answers."""
    answer = Completion(PROTOCOLS[kind_of(name)], True)
    for found in EventDecoder().feed(enumerate(pieces)):
        answer.add(found)
    return answer, answer.outcome()


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.full), 5])
@pytest.mark.parametrize("name", STREAMED)
def test_the_events_of_a_real_answer_mean_the_same_cut_anywhere(name: str, step: int) -> None:
    body = (CAPTURES / f"{name}.http").read_bytes().partition(b"\r\n\r\n")[2]
    whole, outcome = said(name, body)
    chunks = len(whole.chunk_reads)
    assert chunks == EXPECTED[name].chunks
    for cut in range(1, len(body), step):
        answer, end = said(name, body[:cut], body[cut:])
        assert (len(answer.chunk_reads), answer.text, answer.output_tokens, end) == (
            chunks, whole.text, whole.output_tokens, outcome,
        )  # fmt: skip
    bytewise, end = said(name, *(body[at : at + 1] for at in range(len(body))))
    assert (len(bytewise.chunk_reads), bytewise.text, end) == (chunks, whole.text, outcome)


@pytest.mark.parametrize("name", ["vllm_stream", "llamacpp_stream"])
def test_with_other_line_ends_and_framings(name: str) -> None:
    top, _, body = (CAPTURES / f"{name}.http").read_bytes().partition(b"\r\n\r\n")
    plain = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    for end in (b"\r\n", b"\r"):
        other = body.replace(b"\n", end)
        for data in (
            plain + b"Content-Length: %d\r\n\r\n" % len(other) + other,
            top + b"\r\n\r\n" + chunked(other) + chunked(b""),
        ):
            for reads in splits(data, 31):
                check(name, *reads)
    for cut in range(1, len(body), 31):
        stream = read(plain + b"Connection: close\r\n\r\n", body[:cut], body[cut:])
        assert not stream.over
        assert ended(stream)._replace(says="") == EXPECTED[name]


DONE = chunked(event(delta(content="a")) + event(delta("stop")) + event("[DONE]"))
USAGE = chunked(event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 9}}))
S = 1_000_000_000
LAZY = 16_000
"""A moment to send at: by it nothing is decoded before so many bytes wait."""


def test_an_answer_whose_message_has_no_end_is_over_a_second_behind_its_done() -> None:
    stream = Response(LAZY)
    give(stream, S, 0, head(Transfer_Encoding="chunked"))
    give(stream, 2 * S, 0, chunked(event(delta(content="b"))))
    give(stream, 3 * S, 0, DONE)  # nobody has looked for it yet
    assert not stream.must_decode(4 * S)
    assert stream.must_decode(4 * S + 1)
    stream.decode_pending(4 * S)
    assert not stream.over
    assert not stream.must_decode(4 * S)
    assert stream.must_decode(4 * S + 1)
    stream.decode_pending(4 * S + 1)
    assert stream.over
    assert stream.finish() == (OK, NO_END)
    assert (stream.ended_ns, stream.frame.reusable) == (3 * S, False)


def test_what_comes_behind_done_within_the_second_is_taken() -> None:
    stream = Response(LAZY)
    give(stream, S, 0, head(Transfer_Encoding="chunked") + DONE)
    give(stream, S + 400_000_000, 0, USAGE)
    stream.decode_pending(2 * S + 1)
    assert stream.finish() == (OK, NO_END)
    assert (stream.answer.input_tokens, stream.answer.output_tokens, stream.ended_ns) == (7, 9, S)


def test_pings_behind_done_do_not_keep_an_answer_open() -> None:
    stream = Response(LAZY)
    give(stream, S, 0, head(Transfer_Encoding="chunked") + chunked(event(delta(content="b"))))
    give(stream, 2 * S, 0, DONE)
    for half in range(5, 14):
        assert not stream.must_decode(half * S // 2)
        give(stream, half * S // 2, 0, chunked(b": ping\n\n"))
    assert stream.must_decode(7 * S + 1)
    stream.decode_pending(7 * S + 1)
    assert stream.over
    assert stream.finish() == (OK, NO_END)
    assert stream.ended_ns == 2 * S


def test_a_done_without_a_finish_reason_is_no_more_than_it_was() -> None:
    stream = read(
        head(Transfer_Encoding="chunked"), chunked(event(delta(content="a")) + event("[DONE]"))
    )
    stream.decode_pending(2 * S)
    assert stream.finish() == ("truncated", "the response ended without a finish_reason")


def test_a_stream_without_done_is_never_over_by_itself() -> None:
    stream = read(
        head(Transfer_Encoding="chunked"), chunked(event(delta(content="a")) + event(delta("stop")))
    )
    stream.decode_pending(1000 * S)
    assert not stream.over
    assert not stream.must_decode(1000 * S)


def test_what_waits_is_looked_at_in_the_end() -> None:
    """A chunk each 0.4 s: never quiet for a second, and never 16 kB."""
    stream = read(head(Transfer_Encoding="chunked") + A, sent_ns=LAZY)
    for tenth in range(10, 60, 4):
        give(stream, tenth * S // 10, 0, B)
    assert not stream.must_decode(6 * S)
    assert stream.must_decode(6 * S + 1)


def test_bytes_reads_and_chunks_of_an_answer_are_bounded() -> None:
    """By what was asked for: 5,000 bytes are 78 reads of any size, or 19 chunks."""
    top = head(Transfer_Encoding="chunked")
    for reads, outcome in (
        ([chunked(b": " + b"x" * 95 + b"\n\n")] * 60, "too_large"),  # 104 bytes each
        ([chunked(b": " + b"x" * 95 + b"\n\n")] * 40, "closed"),
        ([chunked(b"\n")] * 79, "too_large"),
        ([chunked(b"\n")] * 75, "closed"),
        ([A] * 20, "too_large"),
        ([A] * 19, "closed"),
    ):
        stream = Response(0, max_bytes=5000)
        for number, data in enumerate([top, *reads], 1):
            if not stream.over:
                give(stream, number, number, data)
        stream.decode_pending()
        assert ended(stream).outcome == outcome, (reads[0], len(reads))
    stream = Response(0, max_chunks=3)
    for number, data in enumerate([top, A, A, A, A + A], 1):
        give(stream, number, number, data)
    stream.decode_pending()
    assert stream.over
    assert stream.finish() == ("too_long", "more than 3 chunks")


def test_no_answer_has_more_chunks_than_a_record_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its bytes may be: packing, unpacking and writing a record must not hold a process
    for long."""
    monkeypatch.setattr(response_chunks, "MOST_CHUNKS", 3)
    stream = Response(0, max_bytes=2**40)
    for number, data in enumerate([head(Transfer_Encoding="chunked"), A, A, A], 1):
        give(stream, number, number, data)
    stream.decode_pending()
    assert not stream.over
    give(stream, 5, 5, A)
    stream.decode_pending()
    assert stream.over
    assert stream.finish() == ("too_large", "more than 3 chunks")


def test_an_error_says_more_than_the_size_of_its_page() -> None:
    stream = Response(0, max_bytes=5000)
    give(stream, 1, 0, head(500, "text/plain", Connection="close") + b"x" * 5000)
    assert stream.over
    assert stream.finish()[0] == "http_status"


def test_a_stream_that_ends_early_is_closed_or_truncated_or_reset() -> None:
    data = wire("vllm_stream")
    done = data.index(b"[DONE]\n\n") + 8
    for cut in (*range(0, done, 13), done - 1):
        stream = read(data[:cut]) if cut else Response(0)
        assert ended(stream).outcome == "closed"
        stream = read(data[:cut]) if cut else Response(0)
        stream.end_with("reset", "by peer")
        assert stream.finish() == ("reset", "by peer")
    for cut in range(done, len(data) - 1):  # nothing is missing but the end of the HTTP message
        assert ended(read(data[:cut])) == EXPECTED["vllm_stream"]._replace(
            says=NO_END, ends="close"
        )
        for reason in ("reset", "timeout", "gap_timeout", "cut"):
            stream = read(data[:cut])
            stream.end_with(reason, "by peer")
            assert stream.finish() == (OK, NO_END)
    no_end = head(Connection="close") + event(delta(content="a"))
    assert ended(read(no_end)).outcome == "truncated"
    assert ended(read(no_end + b"data: {")).outcome == "truncated"


def test_an_error_in_the_stream_says_more_than_the_end_of_the_connection() -> None:
    top = head(Transfer_Encoding="chunked")
    for reads in (
        [top + chunked(event({"error": "died"}))],
        [top, chunked(event({"error": "died"}))],
    ):
        assert ended(read(*reads)).outcome == "stream_error"


def test_a_status_says_more_than_the_end_of_the_connection() -> None:
    got = ended(read(head(429, "text/plain", Content_Length="99") + b"slow do"))
    assert (got.outcome, got.says) == ("rate_limited", "HTTP 429: slow do")


def test_an_error_instead_of_the_first_chunk_ends_prefill() -> None:
    stream = read(head(Transfer_Encoding="chunked"), chunked(event(delta(role="assistant"))))
    assert not stream.first_seen
    give(stream, 9000, 8500, chunked(event({"error": "no"})))
    assert stream.first_seen
    assert not stream.over


# -- what a stamp may claim ------------------------------------------------------------------------

TOP = head(Transfer_Encoding="chunked")
A, B, C = (chunked(event(delta(content=letter))) for letter in "abc")
FINISH = chunked(event(delta("stop"))) + chunked(b"")


def test_chunks_of_their_own_reads_have_their_stamps() -> None:
    stream = read(TOP, A, B, C + FINISH)
    stream.finish()
    assert stream.chunks() == ((2, 3, 4), ())


def test_chunks_of_one_read_share_its_stamp_and_may_be_as_old_as_the_read_before() -> None:
    stream = read(TOP, A, B + C, FINISH, sent_ns=5_000_000)
    stream.finish()
    assert stream.chunks() == ((2, 3, 3), ((1, 1), (2, 1)))  # the read before began at 1.5 µs
    first = read(TOP + A + B, FINISH, sent_ns=5_000_000)
    first.finish()
    assert first.chunks() == ((1, 1), ((0, 0), (1, 0)))


def test_a_chunk_that_came_with_the_beginning_of_the_next_is_merged() -> None:
    """The stamp is that of the newest byte, so of the other event."""
    for cut in range(B.index(b"d"), len(B) - 2):  # of its event, not of its framing
        stream = read(TOP, A + B[:cut], B[cut:], FINISH)
        stream.finish()
        assert stream.chunks() == ((2, 3), ((0, 0),) if cut > B.index(b"d") else ())


def test_what_follows_a_chunk_in_its_read_makes_it_merged_only_where_the_reader_was_slow() -> None:
    done = chunked(event("[DONE]"))
    for behind in (
        done,
        chunked(b": ping\n\n" + event(delta("stop"))),
        chunked(event({"error": "no"})),
    ):
        for since_ns, lag_ns, merged in (
            (8_100_000, 5_000_000, ()),  # the thread looked a moment ago, and B was not there
            (2_100_000, 200_000, ()),  # it was asleep, and came at once
            (2_100_000, 5_000_000, ((1, 2100),)),
        ):
            stream = Response(0)
            for stamp_ns, data in ((1_000_000, TOP), (2_000_000, A)):
                give(stream, stamp_ns, 0, data)
            stream.read_lag_ns = lag_ns
            give(stream, 9_000_000, since_ns, B + behind)
            give(stream, 9_000_000, since_ns, done)
            stream.finish()
            assert stream.chunks() == ((2000, 9000), merged)


def test_stamps_that_fall_by_the_error_of_the_clocks_do_not() -> None:
    stream = Response(0)
    for stamp_ns, data in ((1000, TOP), (9000, A), (8000, B), (12_000, C), (20_000, FINISH)):
        give(stream, stamp_ns, stamp_ns, data)
    stream.finish()
    assert stream.chunks() == ((9, 9, 12), ())


def test_microseconds_are_whole_and_never_later_than_the_stamp() -> None:
    """So the last chunk is never later than the end of its answer."""
    stream = Response(100)
    for stamp_ns, data in ((200, TOP), (1099, A), (1100, B)):
        give(stream, stamp_ns, stamp_ns, data)
    stream.end_with("cut", "")
    stream.finish()
    assert stream.chunks()[0] == (0, 1)


# -- where an answer ends --------------------------------------------------------------------------


@pytest.mark.parametrize("extra", [b"x", b"HTTP/1.1 200 OK\r\n\r\n", b"y" * 100])
def test_bytes_after_the_end_do_not_hide_it(extra: bytes) -> None:
    everything = TOP + A + B + FINISH + extra
    for cut in range(1, len(everything)):
        stream = read(everything[:cut], everything[cut:])
        # cut inside its last line ends: seen when more comes, or when time is out
        if not stream.over:
            assert len(TOP + A + B + FINISH) - cut in (1, 2, 3)
            stream.end_with("timeout", "")
        assert ended(stream)._replace(says="") == Expected(OK, 2, "stop")
        # else it is alive() that sees it
        assert not stream.frame.reusable or cut == len(TOP + A + B + FINISH)


def test_an_end_that_came_before_it_was_given_up_is_an_end() -> None:
    stream = read(TOP, A, FINISH)
    stream.end_with("timeout", "too late")
    assert stream.finish() == (OK, "")


def test_given_up_before_the_end_keeps_the_chunks() -> None:
    stream = read(TOP, A, B)
    stream.end_with("cut", "given up")
    assert stream.finish() == ("cut", "given up")
    assert len(stream.chunks()[0]) == 2
    stream.end_with("timeout", "later reasons do not count")
    assert stream.failure == ("cut", "given up")


# -- hostile bytes ---------------------------------------------------------------------------------


def test_garbage_instead_of_http() -> None:
    for data in (
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x16\x03\x01\x02\x00",
        b"<html>",
        b"HTTP/9.9 abc\r\n\r\n",
    ):
        assert ended(read(data)).outcome == "malformed"


def test_a_compressed_answer_is_refused_with_its_reason() -> None:
    got = ended(read(head(Content_Encoding="gzip", Content_Length="3") + b"\x1f\x8b\x08"))
    assert (got.outcome, "gzip" in got.says) == ("malformed", True)
    fine = head(Content_Encoding="identity", Transfer_Encoding="chunked") + A + FINISH
    assert ended(read(fine)).outcome == OK


MEGABYTE = b"x" * 65_536
# what it begins with, what comes for ever, outcome
ENDLESS: dict[str, tuple[bytes, bytes, str]] = {
    "header": (b"HTTP/1.1 200 OK\r\nX: ", MEGABYTE, "malformed"),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 10_000, "malformed"),
    "interim responses": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 2500, "malformed"),
    "event": (head(Connection="close") + b"data: ", MEGABYTE, "too_large"),
    "event of lines": (head(Connection="close"), b"data: x\n" * 8000, "malformed"),
    "comments": (head(Connection="close"), b": ping\n\n" * 8000, "truncated"),
    "blank lines": (head(Connection="close"), b"\n" * 65_536, "truncated"),
    "JSON": (
        head(200, "application/json", Connection="close") + b'{"choices": "',
        MEGABYTE,
        "malformed",
    ),
    "error page": (head(500, "text/html", Connection="close"), MEGABYTE, "http_status"),
    "chunk sizes": (head(Transfer_Encoding="chunked"), b"1;" + MEGABYTE, "closed"),
    "trailer": (head(Transfer_Encoding="chunked") + b"0\r\nX: ", MEGABYTE, "closed"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", ENDLESS)
def test_an_endless_answer_needs_bounded_memory(what: str) -> None:
    first, more, outcome = ENDLESS[what]
    stream = Response(0, max_bytes=MAX_BODY_BYTES if what == "event" else MAX_RESPONSE_BYTES)
    if first:
        give(stream, 1, 0, first)
    tracemalloc.start()
    try:
        # MB / 16; of lines, which cost a second each, 260,000 and 130,000: 12 and 24 bytes kept of
        # each would be too much
        for number in range({"blank lines": 4, "comments": 8}.get(what, 48 * 16)):
            if stream.over:
                break
            # a new object each time, as from a socket
            give(stream, number, number, bytes(bytearray(more)))
        got = ended(stream)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert got.outcome == outcome
    assert peak < (3.5 * MAX_BODY_BYTES if what in ("JSON", "error page", "event") else 8 << 20)


def test_an_event_that_is_too_long_costs_none_of_those_before_it() -> None:
    endless = b"data: x\n" * 2001
    for reads in (
        [TOP, A, B + chunked(endless)],
        [TOP + A + B + chunked(endless)],
        [TOP, A + B, chunked(endless)],
    ):
        got = ended(read(*reads))
        assert (got.outcome, got.chunks) == ("malformed", 2)


@pytest.mark.slow
def test_a_long_event_that_drips_does_not_take_the_square_of_its_length() -> None:
    stream = read(head(Connection="close"), event(delta(content="a")))
    for byte in event(delta(content="x" * 300_000)):
        give(stream, 5000, 4000, bytes((byte,)))
    assert len(ended(stream).says) < 100
    assert len(stream.chunks()[0]) == 2


@pytest.mark.parametrize("kept", [True, False])
def test_a_long_answer_does_not_pile_up(kept: bool) -> None:
    stream = read(TOP, A)
    for number in range(4000):
        give(stream, number, number, B)
        assert stream.waiting_bytes <= DECODE_BYTES + len(B)
    give(stream, 5000, 5000, FINISH)
    assert stream.over
    assert ended(stream).chunks == 4001


@st.composite
def mutilated(draw: st.DrawFn) -> list[bytes]:
    """A real answer with some bytes changed, lost, doubled or put in, in some split."""
    data = bytearray(wire(draw(st.sampled_from(sorted(EXPECTED)))))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        change = draw(st.sampled_from(["lose", "put", "double", "flip"]))
        if change == "lose":
            del data[at : at + draw(st.integers(1, 40))]
        elif change == "put":
            data[at:at] = draw(st.binary(min_size=1, max_size=20))
        elif change == "double":
            data[at:at] = data[at : at + draw(st.integers(1, 200))]
        else:
            for place in range(at, min(at + 2, len(data))):
                data[place] ^= draw(st.integers(1, 255))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    return [bytes(data[a:b]) for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]


def outcome_of(reads: Iterable[bytes], last: str, kind: str = "chat") -> Response:
    stream = read(*reads, kind=kind)
    if not stream.over:
        stream.note_closed() if last == "closed" else stream.end_with(last, "")
    outcome, message = stream.finish()
    assert outcome in (OK, "cut") or outcome in FAILURES
    assert message.isprintable()
    assert len(message) < 5000
    chunk_us, merged = stream.chunks()
    assert list(chunk_us) == sorted(chunk_us)
    assert all(0 <= earliest <= chunk_us[index] for index, earliest in merged)
    return stream


@examples(400)
@given(
    mutilated(),
    st.sampled_from(["closed", "reset", "timeout", "cut"]),
    st.sampled_from(["chat", "completions"]),
)
def test_mutilated_answers_raise_nothing(reads: list[bytes], last: str, kind: str) -> None:
    stream = outcome_of(reads, last, kind)
    assert len(sanitise_text(stream.sample, lines=True).encode()) <= MESSAGE_BYTES
    assert stream.answer.choices >= 1
    assert len(stream.answer.finish_reason or "") <= 32


NOISE = [
    b": ping\n\n", b"\n", b"event: ping\n\n", b"id: 3\n\n", b"retry: 100\n\n", b"data:\n\n",
    b"data: \n\n",
    b'event: ping\ndata: {"type": "ping"}\n\n', b'data: {"choices": []}\n\n',
    b'data: {"choices": null, "x": 1}\n\n',
    b'data: {"choices": [{"index": 0, "delta": {}, "text": "", "finish_reason": null}]}\n\n',
]  # fmt: skip


@examples(300)
@given(st.sampled_from(STREAMED), st.data())
def test_what_says_nothing_changes_no_count_wherever_it_stands(
    name: str, data: st.DataObject
) -> None:
    body = (CAPTURES / f"{name}.http").read_bytes().partition(b"\r\n\r\n")[2]
    events = [part + b"\n\n" for part in body.split(b"\n\n") if part]
    noisy = b"".join(
        b"".join(data.draw(st.lists(st.sampled_from(NOISE), max_size=2))) + event
        for event in events
    ) + b"".join(data.draw(st.lists(st.sampled_from(NOISE), max_size=2)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(noisy)), max_size=5)))
    pieces = [noisy[a:b] for a, b in zip([0, *cuts], [*cuts, len(noisy)], strict=True)]
    answer, outcome = said(name, *pieces)
    clean, expected = said(name, body)
    assert (len(answer.chunk_reads), answer.text, answer.output_tokens, answer.input_tokens,
        outcome) == (
        len(clean.chunk_reads), clean.text, clean.output_tokens, clean.input_tokens, expected,
    )  # fmt: skip


@examples(200)
@given(st.lists(st.binary(min_size=1, max_size=200), max_size=5), st.booleans())
def test_random_bytes_raise_nothing(reads: list[bytes], after_headers: bool) -> None:
    outcome_of([head(Connection="close"), *reads] if after_headers else reads, "closed")


def test_a_megabyte_is_what_it_says() -> None:
    assert len(MEGABYTE) * 16 == 1 << 20


@pytest.mark.parametrize(
    ("status", "most", "outcome", "message"),
    [
        (500, 64 << 20, "http_status", "HTTP 500: xxx"),
        (200, 1 << 20, "too_large", "more than 1048576 bytes"),
    ],
)
def test_of_a_large_body_that_is_no_answer_little_is_kept(
    status: int, most: int, outcome: str, message: str
) -> None:
    stream = Response(0, max_bytes=most)
    stream.append_read(1, 1, head(status, "application/json", Connection="close"))
    for at in range(2, 34):
        stream.append_read(at, at, b"x" * 65_536)
        stream.decode_pending()
    assert len(stream.body) == MAX_ERROR_BYTES
    stream.note_closed()
    got = stream.finish()
    assert got[0] == outcome
    assert got[1].startswith(message)


# -- the server's own times ------------------------------------------------------------------------


def test_timings_of_llamacpp_are_the_last_that_it_wrote() -> None:
    """As the captures have them; nothing of other servers, and nothing of what is no time."""
    expected = {
        "llamacpp_stream": (780, 1_738),
        "llamacpp_no_usage": (554, 1_052),
        "vllm_stream": None,
        "vllm_no_key": None,
    }
    for name, us in expected.items():
        stream = read(wire(name), kind=kind_of(name))
        stream.finish()
        times = stream.server
        assert (None if times is None else (times.prefill_us, times.decode_us)) == us, name
        assert times is None or times.source == "timings"
    for wrong in (
        b"7",
        b'{"prompt_ms":"soon"}',
        b'{"prompt_ms":-1}',
        b'{"prompt_ms":1e300}',
        b"{}",
        b"null",
    ):
        data = (
            b'{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}],"timings":%b}' % wrong
        )
        stream = read(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data))
        assert (stream.finish(), stream.server) == ((OK, ""), None)


TIMED = (
    b'"metrics":{"time_to_first_token_ms":21.5,"generation_time_ms":300.25,"queue_time_ms":0.015,"mean_itl_ms":9.5,'
    b'"tokens_per_second":31.0}'
)
"""As vLLM 0.32 writes it with --enable-per-request-metrics."""


def test_metrics_of_vllm_are_in_the_event_with_the_usage() -> None:
    """In Responses they are in the answer that the last event holds. Its time to first token begins
    with the first step: it is the prefill."""
    whole = b'{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}],%b}' % TIMED
    stream = read(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(whole), whole))
    expected = ServerTimes(source="metrics", queue_us=15, prefill_us=21_500, decode_us=300_250)
    assert (stream.finish(), stream.server) == ((OK, ""), expected)
    events = (
        b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
        b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1},%b}\n\ndata: '
        b"[DONE]\n\n" % TIMED
    )
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"
        % len(events)
    )
    stream = read(head + events)
    assert (stream.finish(), stream.server) == ((OK, ""), expected)
    stream = read(wire("vllm_request_metrics"))
    expected = ServerTimes(source="metrics", queue_us=32, prefill_us=21_402, decode_us=54_805)
    assert (stream.finish(), stream.server) == ((OK, ""), expected)
    stream = read(wire("vllm_responses_metrics"), kind="responses")
    expected = ServerTimes(source="metrics", queue_us=9, prefill_us=17_124, decode_us=22_027)
    assert (stream.finish(), stream.server) == ((OK, ""), expected)
    for nothing in (
        b"{}",
        b"null",
        b"[]",
        b'{"queue_time_ms":"soon"}',
        b'{"queue_time_ms":-1}',
        b'{"speculative_decoding":{}}',
    ):
        data = (
            b'{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}],"metrics":%b}'
            % nothing
        )
        stream = read(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data))
        assert (stream.finish(), stream.server) == ((OK, ""), None)


def test_draft_tokens_of_one_request() -> None:
    """As vLLM 0.32 writes them with --per-request-spec-decode-metrics summary; what cannot be is
    not taken."""
    reported = (
        b'{"speculative_decoding":{"mean_acceptance_length":1.23,"draft_acceptance_rate":0.0775,"num_spec_steps":43,'
        b'"acceptance_histogram":[39,1,0,3],"num_accepted_draft_tokens":10,"num_draft_tokens":129,"num_spec_tokens":3}}'
    )
    for metrics, expected in (
        (reported, (43, 129, 10)),
        (reported.replace(b":10,", b":130,"), None),
        (reported.replace(b":10,", b":-1,"), None),
        (reported.replace(b":43,", b":null,"), None),
        (b"{}", None),
    ):
        data = (
            b'{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}],"metrics":%b}'
            % metrics
        )
        stream = read(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data))
        assert (stream.finish(), stream.drafts, stream.server) == ((OK, ""), expected, None)


@pytest.mark.parametrize(
    ("headers", "streamed", "expected"),
    [
        ("X-Queue-Time: 12\r\nx-inference-time: 800\r\nx-total-time: 815", True,
         {"queue_us": 12_000, "inference_us": 800_000, "e2e_us": 815_000}),
        ('Server-Timing: queue;dur=12.5, prefill;desc="800 tokens";dur="90", db;dur=3, decode, '
            'ttft ; DUR = 103', True,
         {"queue_us": 12_500, "prefill_us": 90_000, "ttft_us": 103_000}),
        ("openai-processing-ms: 900\r\nx-envoy-upstream-service-time: 950", False,
            {"e2e_us": 900_000}),
        ("x-litellm-response-duration-ms: 3948.441982269287", False, {"e2e_us": 3_948_442}),
        ("openai-processing-ms: 900", True, None),
        ("x-queue-time: soon\r\nx-total-time: -1\r\nserver-timing: queue;dur=nan, ;;;=,", False,
            None),
        ("x-queue-time: 1\r\nx-queue-time: 2", False, None),
    ],
)  # fmt: skip
def test_times_in_headers(headers: str, streamed: bool, expected: dict[str, int] | None) -> None:
    kind = "text/event-stream" if streamed else "application/json"
    stream = read(
        f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: 2\r\n{headers}\r\n\r\n{{}}".encode()
    )
    assert stream.server == (
        None if expected is None else ServerTimes(source="headers", **expected)
    )
    assert Response(0).server is None


UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
FINISHED = event(delta(content="a")) + event(delta("stop"))
WHOLE_BODY = b'{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"completion_tokens":1}}'


@pytest.mark.parametrize(("data", "outcome", "cut"), [
    (UNTIL_CLOSED + FINISHED, OK, "truncated"),
    (UNTIL_CLOSED + FINISHED + b"data: [DONE]\n\n", OK, OK),
    (UNTIL_CLOSED + event(delta(content="a")), "truncated", "truncated"),
    (UNTIL_CLOSED.replace(b"text/event-stream", b"application/json") + WHOLE_BODY, OK, OK),
    (UNTIL_CLOSED.replace(b"text/event-stream", b"application/json") + WHOLE_BODY[:-9], "malformed",
        "truncated"),
    (head(Content_Length=str(len(FINISHED))) + FINISHED, OK, OK),
])  # fmt: skip
def test_without_the_word_of_tls_the_end_of_a_connection_is_no_end(
    data: bytes, outcome: str, cut: str
) -> None:
    """Unless the answer itself shows that it is whole."""
    for is_cut, expected in ((False, outcome), (True, cut)):
        stream = Response(0)
        stream.append_read(1, 1, data)
        stream.decode_pending(2)
        stream.note_closed(cut=is_cut)
        assert stream.finish()[0] == expected
