"""Responses: which events are chunks, where the end and the counts are, and what a conversation
becomes."""

import json
from typing import Any

import pytest

from locust_llm.client.chat_answer import join_deltas
from locust_llm.protocols.answer_parser import Completion
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.protocols.request_body import encode_request_body
from locust_llm.records.outcomes import OK

USAGE = {
    "input_tokens": 9, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 8},
    "output_tokens_details": {"reasoning_tokens": 1},
}  # fmt: skip


def answer(*events: dict[str, Any]) -> Completion:
    """As a stream brings them, each in a read of its own."""
    got = Completion(PROTOCOLS["responses"], keep_text=True)
    for read, event in enumerate(events):
        got.add((read, event.get("type", ""), json.dumps(event).encode()))
    return got


def whole(**body: Any) -> Completion:
    got = Completion(PROTOCOLS["responses"], keep_text=True)
    got.whole(json.dumps(body).encode())
    return got


def text(delta: str) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "output_index": 1, "delta": delta}


def last(status: str = "completed", kind: str = "", **more: Any) -> dict[str, Any]:
    response = {
        "status": status,
        "error": None,
        "incomplete_details": None,
        "usage": USAGE,
        "output": [],
        **more,
    }
    return {"type": f"response.{kind or status}", "response": response}


CREATED = {
    "type": "response.created",
    "response": {"status": "in_progress", "output": [], "usage": None},
}


def test_deltas_of_text_are_chunks_and_what_frames_them_is_none() -> None:
    got = answer(
        CREATED,
        {"type": "response.output_item.added", "output_index": 0,
            "item": {"type": "message", "content": []}},
        text("a"), text(""), text("b"),
        {"type": "response.output_text.done", "text": "ab"},
        last(),
    )  # fmt: skip
    assert (got.chunk_reads, got.early_read, got.done_read, got.first_output) == ([2, 4], 0, 6, 0)
    assert (got.outcome(), got.finish_reason, got.text) == ((OK, ""), "stop", ["a", "b"])
    assert (got.input_tokens, got.output_tokens, got.cached_tokens, got.reasoning_tokens) == (
        9,
        4,
        8,
        1,
    )


@pytest.mark.parametrize(
    "kind", ["response.reasoning_text.delta", "response.reasoning_summary_text.delta"]
)
def test_reasoning_is_a_chunk_before_the_first_output(kind: str) -> None:
    got = answer({"type": kind, "delta": "hm"}, {"type": kind, "delta": "so"}, text("a"), last())
    assert (got.chunk_reads, got.first_output) == ([0, 1, 2], 2)
    assert join_deltas(got.deltas or ()) == {
        "role": "assistant",
        "content": "a",
        "reasoning": "hmso",
    }


def test_tool_calls_come_in_pieces() -> None:
    def call(index: int, id_: str) -> dict[str, Any]:
        item = {
            "type": "function_call",
            "call_id": id_,
            "id": f"fc_{id_}",
            "name": "look_up",
            "arguments": "",
        }
        return {"type": "response.output_item.added", "output_index": index, "item": item}

    def arguments(index: int, delta: str) -> dict[str, Any]:
        return {
            "type": "response.function_call_arguments.delta",
            "output_index": index,
            "delta": delta,
        }

    end = last(output=[{"type": "function_call"}])
    got = answer(
        call(0, "a"),
        arguments(0, '{"x":'),
        arguments(0, " 1}"),
        call(1, "b"),
        arguments(1, "{}"),
        end,
    )
    assert (got.chunk_reads, got.finish_reason, got.outcome()) == (
        [0, 1, 2, 3, 4],
        "tool_calls",
        (OK, ""),
    )
    assert join_deltas(got.deltas or ())["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "look_up", "arguments": '{"x": 1}'}},
        {"id": "b", "type": "function", "function": {"name": "look_up", "arguments": "{}"}},
    ]


def test_how_responses_end() -> None:
    cut = {"incomplete_details": {"reason": "max_output_tokens"}}
    for end, reason in (
        (last("incomplete", **cut), "length"), (last("incomplete"), "length"),
        (last("incomplete", "completed", **cut), "length"),  # vLLM
        (last("incomplete", incomplete_details={"reason": "content_filter"}), "content_filter"),
    ):  # fmt: skip
        got = answer(text("a"), end)
        assert (got.finish_reason, got.outcome()) == (reason, (OK, ""))
    assert answer(text("a")).outcome()[0] == "truncated"
    assert answer(text("a"), last("failed", error={"message": "died"})).outcome() == (
        "stream_error",
        "died",
    )
    assert answer(last("cancelled")).outcome() == ("stream_error", "status cancelled")
    error = {"type": "error", "code": "server_error", "message": "overloaded"}
    assert answer(text("a"), error).outcome() == ("stream_error", "overloaded")
    nameless = Completion(PROTOCOLS["responses"])
    # through a proxy that leaves out the event's name
    nameless.add((0, "message", json.dumps(error).encode()))
    assert nameless.outcome() == ("stream_error", "overloaded")
    none = {"input_tokens": 9, "output_tokens": 0}
    assert answer(last(usage=none)).outcome() == (
        OK,
        "no content: the model ended at once (finish_reason stop)",
    )


def test_a_whole_response() -> None:
    got = whole(status="completed", usage=USAGE, output=[
        {"type": "reasoning", "summary": [{"text": "hm"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
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
            "function": {"name": "f", "arguments": "{}"}}],
    }  # fmt: skip
    assert whole(choices=[]).outcome()[0] == "malformed"
    assert whole(error={"message": "no"}).outcome() == ("stream_error", "no")


def test_a_conversation_with_a_tool_as_input() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Look"}, image]},
        {"role": "assistant", "content": "Well", "reasoning": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "found"},
    ]
    body = json.loads(encode_request_body("responses", "m", messages, 5))
    said = {"type": "output_text", "text": "Well", "annotations": []}
    assert body == {
        "model": "m", "max_output_tokens": 5, "stream": True,
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Look"},
                                         {"type": "input_image", "image_url": "data:image/png;base64,AA"}]},
            {"type": "message", "role": "assistant", "status": "completed", "content": [said]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"x": 1}'},
            {"type": "function_call_output", "call_id": "c", "output": "found"},
        ],
    }  # fmt: skip
