"""Messages: which events are chunks, where the end and the counts are, and what a conversation
becomes."""

import json
from typing import Any

import pytest

from locust_llm.client.chat_answer import join_deltas
from locust_llm.protocols.answer_parser import Completion
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.protocols.request_body import encode_request_body
from locust_llm.records.outcomes import OK


def answer(*events: dict[str, Any]) -> Completion:
    """As a stream brings them, each in a read of its own."""
    got = Completion(PROTOCOLS["messages"], keep_text=True)
    for read, event in enumerate(events):
        got.add((read, event["type"], json.dumps(event).encode()))
    return got


def whole(**body: Any) -> Completion:
    got = Completion(PROTOCOLS["messages"], keep_text=True)
    got.whole(json.dumps(body).encode())
    return got


def start(**usage: int) -> dict[str, Any]:
    return {"type": "message_start", "message": {"type": "message", "content": [], "usage": usage}}


def delta(index: int = 0, **delta: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def stop(reason: str = "end_turn", **usage: int) -> dict[str, Any]:
    return {
        "type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": None},
        "usage": usage,
    }


PING = {"type": "ping"}
END = {"type": "message_stop"}
BLOCK = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}


def test_deltas_of_text_are_chunks_and_what_frames_them_is_none() -> None:
    got = answer(
        start(input_tokens=9, output_tokens=1), BLOCK, PING, delta(text="a"), PING, delta(text="b"),
        {"type": "content_block_stop", "index": 0}, stop(output_tokens=3), END,
    )  # fmt: skip
    assert (got.chunk_reads, got.early_read, got.done_read, got.first_output) == ([3, 5], 0, 8, 0)
    assert (got.outcome(), got.finish_reason, got.text) == ((OK, ""), "stop", ["a", "b"])
    assert (got.input_tokens, got.output_tokens, got.cached_tokens) == (9, 3, None)


def test_what_was_cached_belongs_to_the_prompt() -> None:
    got = answer(
        start(input_tokens=1, cache_read_input_tokens=12, cache_creation_input_tokens=4),
        delta(text="a"),
    )
    assert (got.input_tokens, got.cached_tokens) == (17, 12)
    # vLLM
    repeated = answer(
        start(input_tokens=13), delta(text="a"), stop(input_tokens=13, output_tokens=5)
    )
    assert (repeated.input_tokens, repeated.output_tokens) == (13, 5)


def test_thinking_is_a_chunk_before_the_first_output() -> None:
    signed = delta(type="signature_delta", signature="c2ln")
    got = answer(
        delta(type="thinking_delta", thinking="hm"),
        signed,
        delta(1, type="text_delta", text="a"),
        stop(),
    )
    assert (got.chunk_reads, got.first_output) == ([0, 2], 1)
    assert join_deltas(got.deltas or ()) == {"role": "assistant", "content": "a", "reasoning": "hm"}


def test_tool_calls_come_in_pieces() -> None:
    def block(index: int, id_: str) -> dict[str, Any]:
        use = {"type": "tool_use", "id": id_, "name": "look_up", "input": {}}
        return {"type": "content_block_start", "index": index, "content_block": use}

    got = answer(
        block(1, "a"), delta(1, partial_json=""), delta(1, partial_json='{"x":'),
        delta(1, partial_json=" 1}"),
        block(2, "b"), delta(2, partial_json="{}"), stop("tool_use", output_tokens=5),
    )  # fmt: skip
    assert (got.chunk_reads, got.finish_reason, got.outcome()) == (
        [0, 2, 3, 4, 5],
        "tool_calls",
        (OK, ""),
    )
    assert join_deltas(got.deltas or ())["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "look_up", "arguments": '{"x": 1}'}},
        {"id": "b", "type": "function", "function": {"name": "look_up", "arguments": "{}"}},
    ]


def test_how_messages_end() -> None:
    others = {"max_tokens": "length", "refusal": "content_filter"}
    for reason in ("max_tokens", "stop_sequence", "refusal", "pause_turn"):
        got = answer(delta(text="a"), stop(reason, output_tokens=1))
        assert (got.finish_reason, got.outcome()) == (others.get(reason, reason), (OK, ""))
    assert answer(delta(text="a"), END).outcome()[0] == "truncated"
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    assert answer(delta(text="a"), overloaded).outcome() == ("stream_error", "Overloaded")
    nameless = Completion(PROTOCOLS["messages"])
    # through a proxy that leaves out the event's name
    nameless.add((0, "message", json.dumps(overloaded).encode()))
    assert nameless.outcome() == ("stream_error", "Overloaded")
    assert answer(start(input_tokens=3), stop(output_tokens=1), END).outcome() == (
        OK,
        "no content: the model ended at once (finish_reason stop)",
    )


def test_a_whole_message() -> None:
    got = whole(type="message", stop_reason="tool_use",
        usage={"input_tokens": 9, "output_tokens": 4}, content=[
        {"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"},
        {"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1}},
    ])  # fmt: skip
    assert (got.outcome(), got.finish_reason, got.output_tokens, got.chunk_reads) == (
        (OK, ""),
        "tool_calls",
        4,
        [],
    )
    assert join_deltas(got.deltas or ()) == {
        "role": "assistant", "content": "a", "reasoning": "hm",
        "tool_calls": [{"id": "c", "type": "function",
            "function": {"name": "f", "arguments": '{"x":1}'}}],
    }  # fmt: skip
    assert whole(choices=[]).outcome()[0] == "malformed"
    assert whole(type="error", error={"type": "x", "message": "no"}).outcome() == (
        "stream_error",
        "no",
    )


def test_a_conversation_with_tools() -> None:
    calls = [
        {"id": id_, "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
        for id_ in "cd"
    ]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Look"}, image]},
        {"role": "assistant", "content": "Well", "reasoning": "hm", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c", "content": "found"},
        {"role": "tool", "tool_call_id": "d", "content": "more"},
    ]
    body = json.loads(encode_request_body("messages", "m", messages, 5, streaming=False))
    source = {"type": "base64", "media_type": "image/png", "data": "AA"}
    assert body == {
        "model": "m", "max_tokens": 5, "system": "Be brief.",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Look"},
                {"type": "image", "source": source}]},
            {"role": "assistant", "content": [
                {"type": "text", "text": "Well"},
                *({"type": "tool_use", "id": id_, "name": "f", "input": {"x": 1}} for id_ in "cd"),
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": "found"},
                {"type": "tool_result", "tool_use_id": "d", "content": "more"},
            ]},
        ],
    }  # fmt: skip


@pytest.mark.parametrize("arguments", ["", None, "no JSON", "[1]", {"x": 1}])
def test_arguments_become_an_object_whatever_a_model_wrote(arguments: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    body = json.loads(
        encode_request_body(
            "messages", "m", [{"role": "assistant", "content": None, "tool_calls": [call]}], 5
        )
    )
    assert isinstance(body["messages"][0]["content"][0]["input"], dict)


def test_the_key_goes_into_a_header_of_its_own() -> None:
    version = {"anthropic-version": "2023-06-01"}
    assert PROTOCOLS["messages"].headers("k") == {**version, "x-api-key": "k"}
    assert PROTOCOLS["messages"].headers("") == version
    assert PROTOCOLS["chat"].headers("k") == {"Authorization": "Bearer k"}
