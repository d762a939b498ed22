"""Each protocol of the simulator, as the client reads it: an answer, a tool session, and each fault
mean the same in all."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.simulated import Simulator, received, started

from locust_llm.client.chat_answer import join_deltas
from locust_llm.client.response_chunks import Response
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.protocols.request_body import encode_request_body
from locust_llm.protocols.responses_protocol import split_at_stored_response
from locust_llm.records.outcomes import OK

KINDS = ("chat", "completions", "responses", "messages")
THREE = [{"role": "user", "content": "one " * words} for words in (1, 2, 3)]
WITH_TOOLS = ("chat", "responses", "messages")
SESSION: tuple[list[dict[str, Any]], ...] = ([], [
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c", "function": {"name": "look_up", "arguments": '{"text": "the river runs slow"}'}}
    ]},
    {"role": "tool", "tool_call_id": "c", "content": "nothing"},
])  # fmt: skip
"""What follows HELLO."""
HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello there"}]
FUNCTION = {"name": "look_up", "description": "", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
NOW = {"type": "function", "function": {"name": "now"}}


@pytest.fixture(scope="module")
def server() -> Iterator[Simulator]:
    with started("--enable-prefix-caching") as simulator:
        yield simulator


def ask(
    server: Simulator,
    kind: str,
    messages: Any = HELLO,
    tokens: int = 4,
    quirks: str = "",
    **more: Any,
) -> tuple[Response, tuple[str, str]]:
    """The answer to one request, and (outcome, message)."""
    body = encode_request_body(kind, None, messages, tokens, **more)
    head = (
        f"POST {PROTOCOLS[kind].path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Simulate: "
        f"{quirks}\r\n"
    )
    stream = Response(0, kind=kind, keep_text=True)
    data = received(server.raw(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body))
    if stream.append_read(1, 0, data):
        stream.decode_pending()
    if not stream.over:
        stream.note_closed()
    return stream, stream.finish()


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_and_an_answer_in_one_piece(server: Simulator, kind: str) -> None:
    stream, outcome = ask(server, kind)
    answer = stream.answer
    assert (outcome, answer.finish_reason, len(answer.chunk_reads)) == ((OK, ""), "length", 4)
    assert (stream.status, stream.streamed, len("".join(answer.text or ()).split())) == (
        200,
        True,
        4,
    )
    whole, outcome = ask(server, kind, streaming=False)
    assert (outcome, whole.answer.finish_reason, whole.streamed) == ((OK, ""), "length", False)
    assert (whole.answer.input_tokens, whole.answer.output_tokens) == (
        answer.input_tokens,
        answer.output_tokens,
    )
    assert (answer.input_tokens, answer.output_tokens) == (
        (7, 4) if kind == "completions" else (20, 4)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_cached(server: Simulator, kind: str) -> None:
    messages = [{"role": "user", "content": f"{kind} " * 100}]
    for streaming, cached in ((True, 0), (True, 96), (False, 96)):
        stream, _ = ask(server, kind, messages, streaming=streaming)
        assert (stream.answer.cached_tokens or 0) >= cached
        assert (stream.answer.input_tokens or 0) > 100


@pytest.mark.parametrize("kind", WITH_TOOLS)
def test_reasoning_then_text(server: Simulator, kind: str) -> None:
    for streaming in (True, False):
        stream, outcome = ask(server, kind, quirks="reasoning=3", streaming=streaming)
        message = join_deltas(stream.answer.deltas or ())
        assert (outcome, len(message["reasoning"].split()), len(message["content"].split())) == (
            (OK, ""),
            3,
            1,
        )
        assert not streaming or (stream.answer.first_output, len(stream.answer.chunk_reads)) == (
            3,
            4,
        )


@pytest.mark.parametrize("kind", WITH_TOOLS)
@pytest.mark.parametrize("streaming", [True, False])
def test_a_tool_session(server: Simulator, kind: str, streaming: bool) -> None:
    more = {"tools": [TOOL], "streaming": streaming}
    stream, outcome = ask(server, kind, **more)
    message = join_deltas(stream.answer.deltas or ())
    (call,) = message["tool_calls"]
    assert (outcome, stream.answer.finish_reason) == ((OK, ""), "tool_calls")
    assert (message["content"], call["function"]["name"]) == (None, "look_up")
    assert len(json.loads(call["function"]["arguments"])["text"].split()) == 4
    assert not streaming or len(stream.answer.chunk_reads) == 1 + 4
    given = [*HELLO, message, {"role": "tool", "tool_call_id": call["id"], "content": "nothing"}]
    stream, outcome = ask(server, kind, given, **more)
    assert (outcome, len(join_deltas(stream.answer.deltas or ())["content"].split())) == (
        (OK, ""),
        4,
    )
    # 20 tokens of HELLO; the call {"text":"the river runs slow"}: 13, and 5 of its message; the
    # tool's answer: 1 and 5
    counted = [
        ask(server, kind, [*HELLO, *turns], **more)[0].answer.input_tokens for turns in SESSION
    ]
    assert counted == [20, 20 + 13 + 5 + 1 + 5]


@pytest.mark.parametrize("kind", WITH_TOOLS)
def test_which_tool_is_called(server: Simulator, kind: str) -> None:
    for choice, name in (
        ("auto", "look_up"),
        ("required", "look_up"),
        (NOW, "now"),
        ("none", None),
    ):
        message = join_deltas(
            ask(server, kind, tools=[TOOL, NOW], tool_choice=choice)[0].answer.deltas or ()
        )
        assert [call["function"]["name"] for call in message.get("tool_calls", [])] == [name] * (
            name is not None
        )


@pytest.mark.parametrize("streaming", [True, False])
def test_a_response_goes_on_from_the_one_before(server: Simulator, streaming: bool) -> None:
    """With the same tokens as the whole conversation; the system message is said each time."""
    said: list[dict[str, Any]] = list(HELLO)
    for turn in range(3):
        more: dict[str, Any] = {"tools": [TOOL] if turn == 0 else [], "streaming": streaming}
        whole, news = ask(server, "responses", said, **more)[0], said
        if turn:
            id_, news = split_at_stored_response(said)
            more["previous_response_id"] = id_
        answer = ask(server, "responses", news, **more)[0].answer
        assert (answer.input_tokens, len(news)) == (whole.answer.input_tokens, 2)
        message = join_deltas(answer.deltas or ())
        said += [
            message | {"response_id": answer.response_id},
            {"role": "user", "content": "go on"},
        ]
        if "tool_calls" in message:
            said[-1] = {
                "role": "tool",
                "tool_call_id": message["tool_calls"][0]["id"],
                "content": "nothing",
            }
    stream, (outcome, why) = ask(server, "responses", previous_response_id="resp-0")
    assert (stream.status, outcome, why) == (
        404,
        "http_status",
        "HTTP 404: Response with id 'resp-0' not found.",
    )
    id_ = ask(server, "responses", store=False)[0].answer.response_id
    assert ask(server, "responses", previous_response_id=id_)[0].status == 404


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("quirks", "outcome", "chunks"), [
    ("status=429", "rate_limited", 0), ("status=503", "unavailable", 0),
    ("error=0", "stream_error", 0),
    ("error=2", "stream_error", 2), ("cut=2", "closed", 2), ("malformed=3", "malformed", 3),
    ("finish=none", "truncated", 4),
    ("eos=0", OK, 0), ("eos=2", OK, 2), ("split_utf8=yes", OK, 4), ("tokens_per_chunk=2", OK, 3),
    ("usage=none", OK, 4),
    ("role=early", OK, 4), ("ping_s=0.001", OK, 4),
])  # fmt: skip
def test_a_fault_means_the_same_in_each(
    server: Simulator, kind: str, quirks: str, outcome: str, chunks: int
) -> None:
    stream, (found, message) = ask(server, kind, quirks=quirks)
    assert (found, len(stream.answer.chunk_reads)) == (outcome, chunks)
    if "error" in quirks:
        assert message.startswith("EngineCore encountered an issue")


@pytest.mark.parametrize(("kind", "body", "message"), [
    ("responses", {"input": []}, "body.input"), ("responses", {"input": [7]}, "body.input.0"),
    ("responses", {"tools": [{"type": "function"}]}, "body.tools.0.name"),
    ("messages", {"max_tokens": None}, "max_tokens"),
    ("messages", {"messages": [{"role": "bot", "content": ""}]}, "body.messages.0"),
    ("messages", {"tools": [7]}, "tools"),
    ("messages", {"tools": [{"type": "custom", "name": "x"}]}, "body.tools.0.input_schema"),
    ("chat", {"tools": [FUNCTION]}, "body.tools.0.function.name"),
    ("responses", {"input": [{"type": "function_call_output", "output": ""}]},
        "body.input.0.call_id"),
    ("messages", {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
        "tool_use_id"),
    ("messages", {"messages": [{"role": "assistant",
        "content": [{"type": "tool_use", "input": "x"}]}]}, "content.input"),
    ("chat", {"tools": [TOOL], "tool_choice": NOW}, "there is no tool now"),
    ("messages", {"messages": [{"role": "user", "content": 7}]}, "body.messages.0.content"),
])  # fmt: skip
def test_what_is_refused(server: Simulator, kind: str, body: dict[str, Any], message: str) -> None:
    stream, (outcome, found) = ask(server, kind, **body)
    assert (stream.status, outcome) == (400, "http_status")
    assert message in found


@pytest.mark.parametrize(
    ("kind", "tokens"), [("embeddings", 2 + 3 + 4), ("rerank", (2 + 2) + (2 + 3))]
)
def test_embeddings_and_rerank(server: Simulator, kind: str, tokens: int) -> None:
    """A token that begins each text, and one a word; rerank reads the query again with each
    document."""
    stream, outcome = ask(server, kind, THREE)
    answer = stream.answer
    assert (outcome, stream.status, stream.streamed, answer.input_tokens) == (
        (OK, ""),
        200,
        False,
        tokens,
    )
    assert (answer.output_tokens, answer.finish_reason, answer.chunk_reads) == (None, None, [])
    assert answer.results == (3 if kind == "embeddings" else None)


@pytest.mark.parametrize(("quirks", "outcome"), [
    ("status=429", "rate_limited"), ("error=0", "http_status"), ("error=2", "http_status"),
    ("cut=2", "closed"),
    ("slow_headers_s=0.01", OK),
])  # fmt: skip
def test_a_fault_of_embeddings(server: Simulator, quirks: str, outcome: str) -> None:
    assert ask(server, "embeddings", THREE, quirks=quirks)[1][0] == outcome


@pytest.mark.parametrize(("kind", "body", "message"), [
    ("embeddings", {"input": []}, "body.input"), ("embeddings", {"input": [7]}, "body.input"),
    ("embeddings", {"stream": True}, "body.stream"), ("rerank", {"query": ""}, "body.query"),
    ("rerank", {"documents": None}, "body.documents"),
    ("embeddings", {"model": "other"}, "does not exist"),
    ("embeddings", {"input": ["word " * 200_000]}, "maximum context length"),
])  # fmt: skip
def test_inputs_that_are_refused(
    server: Simulator, kind: str, body: dict[str, Any], message: str
) -> None:
    stream, (outcome, found) = ask(server, kind, THREE, **body)
    assert (stream.status in (400, 404), outcome) == (True, "http_status")
    assert message in found
