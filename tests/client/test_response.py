"""Streams: real servers' answers in every split, hostile bytes, and what a stamp may claim."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from support.scripted import chunked, delta, event, head

from locust_llm.client.response import NO_END, Response
from locust_llm.client.sse import EventDecoder
from locust_llm.core.record import OK
from locust_llm.core.server_times import ServerTimes
from locust_llm.protocols.answer import Completion
from locust_llm.protocols.known import PROTOCOLS

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
    "vllm_no_usage": Expected(OK, 4, "length"),
    "vllm_immediate_stop": Expected(OK, 0, "stop", 13, 1, says="the model ended at once"),
    "vllm_one_token": Expected(OK, 1, "length", 13, 1),
    "vllm_continuous_usage": Expected(OK, 3, "length", 13, 3),
    "vllm_n2": Expected(OK, 4, "length", 13, 4, choices=2),
    "vllm_interval_10": Expected(OK, 4, "length", 13, 25),
    "vllm_whole": Expected(OK, 0, "length", 13, 6, streamed=False),
    "vllm_unknown_model": Expected("http_status", status=404, streamed=False, says="The model `nope` does not exist."),
    "vllm_busy": Expected("unavailable", status=503, streamed=False, says="The engine is currently busy"),
    "vllm_no_key": Expected("http_status", status=401, streamed=False, says="HTTP 401: Unauthorized"),
    "vllm_too_long": Expected("http_status", status=400, streamed=False, says="maximum context length is 16384 tokens"),
    "vllm_completions": Expected(OK, 3, "length", 3, 3),
    "vllm_killed": Expected("stream_error", 3, says="EngineCore encountered an issue"),
    "llamacpp_stream": Expected(OK, 6, "length", 13, 6),
    "llamacpp_no_usage": Expected(OK, 4, "length"),
    "llamacpp_immediate_stop": Expected(OK, 0, "stop", 13, 1, says="the model ended at once"),
    "llamacpp_max_tokens_0": Expected(OK, 1, "length"),
    "llamacpp_n2": Expected(OK, 4, "length", 13, 4, choices=2),
    "llamacpp_completions": Expected(OK, 3, "length", 3, 3),
    "vllm_responses": Expected(OK, 2, "length", 13, 5),
    "vllm_messages": Expected(OK, 5, "length", 13, 5),
    "llamacpp_responses": Expected(OK, 5, "stop", 13, 5),
    "llamacpp_messages": Expected(OK, 5, "length", 13, 5),
    "llamacpp_too_long": Expected("http_status", status=400, streamed=False, says="exceeds the available context size"),
    "llamacpp_no_key": Expected("http_status", status=401, streamed=False, says="HTTP 401: Invalid API Key"),
    "llamacpp_ping": Expected(OK, 2, "length"),
    "llamacpp_killed": Expected("closed", 2, ends="close"),
    "transformers_stream": Expected(OK, 6, "length", 13, 6),
    "transformers_cb_stream": Expected(OK, 6, "length", 13, 6),
    "transformers_completions": Expected(OK, 3, "length", 3, 3),
    "transformers_stream_error": Expected("stream_error", says="`temperature` (=-1.0) has to be"),
    "transformers_500": Expected("http_status", status=500, streamed=False, says="HTTP 500: Internal Server Error"),
    "transformers_400": Expected("http_status", status=400, streamed=False, says="Server is pinned to"),
    "transformers_killed": Expected("closed", 1, ends="close"),
    "litellm_stream": Expected(OK, 6, "length", 13, 6),
    "litellm_immediate_stop": Expected(OK, 0, "stop", 13, 1, says="the model ended at once"),
    "litellm_n2": Expected(OK, 3, "length", 13, 4, choices=2),
    "litellm_completions": Expected(OK, 2, "length", 3, 3),
    "litellm_completions_ids": Expected("http_status", status=500, streamed=False, says="Unmapped prompt format"),
    "litellm_backend_down": Expected("http_status", status=500, streamed=False, says="Connection error."),
    "litellm_wrong_key": Expected("http_status", status=400, streamed=False, says="HTTP 400: No connected db."),
    "litellm_no_key": Expected("http_status", status=500, streamed=False, says="HTTP 500: Internal Server Error"),
    "litellm_killed": Expected("stream_error", 2, says="litellm.APIConnectionError"),
}


def kind_of(name: str) -> str:
    return next((kind for kind in PROTOCOLS if kind in name), "chat")


def wire(name: str) -> bytes:
    """A capture as it went over the wire: its chunked framing put back, an event a chunk."""
    data = (CAPTURES / f"{name}.http").read_bytes()
    top, _, body = data.partition(b"\r\n\r\n")
    if b"chunked" in top.lower():
        events = [part + b"\n\n" for part in body.split(b"\n\n") if part] if b"event-stream" in top else [body]
        ending = chunked(b"") if EXPECTED[name].ends == "answer" else b""
        body = b"".join(map(chunked, events)) + ending
    return top + b"\r\n\r\n" + body


def give(stream: Response, stamp_ns: int, since_ns: int, data: bytes) -> None:
    """One read, as the reader's thread gives it."""
    if stream.arrived(stamp_ns, since_ns, data):
        stream.look()


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
        stream.closed()
    outcome, message = stream.finish()
    answer = stream.answer
    chunk_us, _ = stream.chunks()
    return Expected(
        outcome, len(chunk_us), answer.finish_reason, answer.input_tokens, answer.output_tokens,
        stream.status or 0, stream.streamed, message, "answer" if stream.frame.complete else "close", answer.choices,
    )  # fmt: skip


def check(name: str, *reads: bytes) -> Response:
    stream = read(*reads, kind=kind_of(name))
    assert stream.over == (EXPECTED[name].ends == "answer")  # noticed with the last byte, not with the close
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
    assert not stream.due(4 * S)
    assert stream.due(4 * S + 1)
    stream.look(4 * S)
    assert not stream.over
    assert not stream.due(4 * S)
    assert stream.due(4 * S + 1)
    stream.look(4 * S + 1)
    assert stream.over
    assert stream.finish() == (OK, NO_END)
    assert (stream.ended_ns, stream.frame.reusable) == (3 * S, False)


def test_what_comes_behind_done_within_the_second_is_taken() -> None:
    stream = Response(LAZY)
    give(stream, S, 0, head(Transfer_Encoding="chunked") + DONE)
    give(stream, S + 400_000_000, 0, USAGE)
    stream.look(2 * S + 1)
    assert stream.finish() == (OK, NO_END)
    assert (stream.answer.input_tokens, stream.answer.output_tokens, stream.ended_ns) == (7, 9, S)


def test_pings_behind_done_do_not_keep_an_answer_open() -> None:
    stream = Response(LAZY)
    give(stream, S, 0, head(Transfer_Encoding="chunked") + chunked(event(delta(content="b"))))
    give(stream, 2 * S, 0, DONE)
    for half in range(5, 14):
        assert not stream.due(half * S // 2)
        give(stream, half * S // 2, 0, chunked(b": ping\n\n"))
    assert stream.due(7 * S + 1)
    stream.look(7 * S + 1)
    assert stream.over
    assert stream.finish() == (OK, NO_END)
    assert stream.ended_ns == 2 * S


def test_a_done_without_a_finish_reason_is_no_more_than_it_was() -> None:
    stream = read(head(Transfer_Encoding="chunked"), chunked(event(delta(content="a")) + event("[DONE]")))
    stream.look(2 * S)
    assert stream.finish() == ("truncated", "the answer ended without a finish_reason")


def test_a_stream_without_done_is_never_over_by_itself() -> None:
    stream = read(head(Transfer_Encoding="chunked"), chunked(event(delta(content="a")) + event(delta("stop"))))
    stream.look(1000 * S)
    assert not stream.over
    assert not stream.due(1000 * S)


def test_what_waits_is_looked_at_in_the_end() -> None:
    """A chunk each 0.4 s: never quiet for a second, and never 16 kB."""
    stream = read(head(Transfer_Encoding="chunked") + A, sent_ns=LAZY)
    for tenth in range(10, 60, 4):
        give(stream, tenth * S // 10, 0, B)
    assert not stream.due(6 * S)
    assert stream.due(6 * S + 1)


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
        stream.look()
        assert ended(stream).outcome == outcome, (reads[0], len(reads))
    stream = Response(0, max_chunks=3)
    for number, data in enumerate([top, A, A, A, A + A], 1):
        give(stream, number, number, data)
    stream.look()
    assert stream.over
    assert stream.finish() == ("too_long", "more than 3 chunks")


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
        stream.failed("reset", "by peer")
        assert (stream.finish(), stream.server) == ((OK, ""), None)


@pytest.mark.parametrize(
    ("headers", "streamed", "expected"),
    [
        ("X-Queue-Time: 12\r\nx-inference-time: 800\r\nx-total-time: 815", True,
         {"queue_us": 12_000, "inference_us": 800_000, "e2e_us": 815_000}),
        ('Server-Timing: queue;dur=12.5, prefill;desc="800 tokens";dur="90", db;dur=3, decode, ttft ; DUR = 103', True,
         {"queue_us": 12_500, "prefill_us": 90_000, "ttft_us": 103_000}),
        ("openai-processing-ms: 900\r\nx-envoy-upstream-service-time: 950", False, {"e2e_us": 900_000}),
        ("openai-processing-ms: 900", True, None),
        ("x-queue-time: soon\r\nx-total-time: -1\r\nserver-timing: queue;dur=nan, ;;;=,", False, None),
        ("x-queue-time: 1\r\nx-queue-time: 2", False, None),
    ],
)  # fmt: skip
def test_times_in_headers(headers: str, streamed: bool, expected: dict[str, int] | None) -> None:
    kind = "text/event-stream" if streamed else "application/json"
    stream = read(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: 2\r\n{headers}\r\n\r\n{{}}".encode())
    assert stream.server == (None if expected is None else ServerTimes(source="headers", **expected))
    assert Response(0).server is None
