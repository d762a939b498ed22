"""Answer: the assistant's message joined from its chunks, as each kind of server sends them."""

import json
from typing import Any

import msgspec
import pytest

from locust_llm.client.chat_answer import Answer, build_answer, join_deltas
from locust_llm.protocols.answer_parser import Completion
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.records.record import Record

RECORD = Record(
    id="1", clock_offset_s=0.0, due_at=1.0, asked_at=1.0, closed_at=2.0, error="the end"
)


def of(*deltas: dict[str, Any], kind: str = "chat") -> Answer:
    """As a stream brings them."""
    answer = Completion(PROTOCOLS[kind], keep_text=True)
    for read, delta in enumerate(deltas):
        choice = {"index": 0, **(delta if kind == "completions" else {"delta": delta})}
        answer.add((read, "message", json.dumps({"choices": [choice]}).encode()))
    return build_answer(RECORD, answer.deltas)


def call(index: int | None, **more: Any) -> dict[str, Any]:
    return {"tool_calls": [{**({} if index is None else {"index": index}), **more}]}


def test_text() -> None:
    answer = of({"role": "assistant", "content": ""}, {"content": "Hello"}, {"content": " there"})
    assert answer.message == {"role": "assistant", "content": "Hello there"}
    assert (answer.text, answer.tool_calls) == ("Hello there", [])
    assert of({"text": "a"}, {"text": "b"}, kind="completions").message == {
        "role": "assistant",
        "content": "ab",
    }


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_stays_in_its_field(field: str) -> None:
    answer = of({field: "Hm"}, {field: ", so"}, {"content": "Yes"})
    assert answer.message == {"role": "assistant", "content": "Yes", field: "Hm, so"}


def test_tool_calls_in_pieces_as_vllm_sends_them() -> None:
    answer = of(
        call(0, id="a", type="function", function={"name": "look_up", "arguments": ""}),
        call(0, function={"arguments": '{"text": '}),
        call(0, function={"arguments": '"x"}'}),
        call(1, id="b", type="function", function={"name": "add", "arguments": "{}"}),
    )
    assert answer.message == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "a",
                "type": "function",
                "function": {"name": "look_up", "arguments": '{"text": "x"}'},
            },
            {"id": "b", "type": "function", "function": {"name": "add", "arguments": "{}"}},
        ],
    }
    assert [one["id"] for one in answer.tool_calls] == ["a", "b"]
    assert answer.text == ""


def test_calls_that_all_have_the_index_0_and_those_without_one() -> None:
    gemini = of(
        call(
            0, id="a", function={"name": "f", "arguments": "{}"}, extra_content={"signature": "s"}
        ),
        call(0, id="b", function={"name": "g", "arguments": "{}"}),
    )
    assert [(one["id"], one["function"]["name"]) for one in gemini.tool_calls] == [
        ("a", "f"),
        ("b", "g"),
    ]
    assert gemini.tool_calls[0]["extra_content"] == {"signature": "s"}
    bare = of(
        call(None, id="a", function={"name": "f", "arguments": '{"a"'}),
        call(None, function={"arguments": ": 1}"}),
        call(None, id="b", function={"name": "g", "arguments": {"b": 2}}),
    )
    assert [one["function"] for one in bare.tool_calls] == [
        {"name": "f", "arguments": '{"a": 1}'}, {"name": "g", "arguments": '{"b":2}'}
    ]  # fmt: skip


def test_a_function_call_of_the_old_kind() -> None:
    answer = of(
        {"function_call": {"name": "f", "arguments": ""}}, {"function_call": {"arguments": "{}"}}
    )
    assert answer.message["function_call"] == {"name": "f", "arguments": "{}"}


@pytest.mark.parametrize("delta", [
    {"tool_calls": "no"}, {"tool_calls": [7]}, {"tool_calls": [{"index": [], "function": 3}]},
    {"content": 7},
    {"content": [{"type": "text", "text": "a"}]}, {"reasoning": ["a"]}, {"function_call": "f"},
    {"refusal": {"a": 1}},
], ids=range(8))  # fmt: skip
def test_parts_of_another_kind_raise_nothing(delta: dict[str, Any]) -> None:
    assert of(delta, {"content": "b"}).message["role"] == "assistant"


def test_it_is_the_record_too() -> None:
    answer = of({"content": "a"})
    assert (answer.id, answer.closed_at, answer.error) == ("1", 2.0, "the end")
    assert isinstance(answer, Record)
    assert msgspec.json.encode(answer) == msgspec.json.encode(RECORD)
    assert answer.message is answer.message


def test_what_was_not_kept() -> None:
    with pytest.raises(ValueError, match="keep_text"):
        build_answer(RECORD, None).message  # noqa: B018
    assert join_deltas([]) == {"role": "assistant", "content": ""}
