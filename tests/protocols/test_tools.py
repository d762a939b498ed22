"""Tools: a session that is written once in chat's form, as each protocol sends it and answers it,
by its bytes."""

import json
from typing import Any

import pytest

from locust_llm.client.chat_answer import join_deltas
from locust_llm.client.response_chunks import Response
from locust_llm.protocols.protocol_registry import PROTOCOLS, convert_key_headers
from locust_llm.protocols.request_body import encode_request_body
from locust_llm.protocols.responses_protocol import split_at_stored_response
from locust_llm.workload.answer_schema import find_response_schema, matches_response_schema

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
LOOK_UP = {
    "type": "function",
    "function": {"name": "look_up", "description": "Finds.", "parameters": TEXT},
}
NOW = {"type": "function", "function": {"name": "now"}}
CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"text": "a"}'}},
    {"id": "c2", "type": "function", "function": {"name": "look_up", "arguments": '{"text": "é"}'}},
]
ANSWER: dict[str, Any] = {
    "role": "assistant",
    "content": "Let me see",
    "reasoning": "hm",
    "tool_calls": CALLS,
}


def chat(pieces: list[list[str]]) -> list[dict[str, Any]]:
    """Events of an answer with text and two calls at once, whose arguments come in these pieces."""
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        {"reasoning": "hm"},
        {"content": "Let me see"},
    ]
    for index, parts in enumerate(pieces):
        begin = {
            "index": index,
            "id": f"c{index + 1}",
            "function": {"name": "look_up", "arguments": ""},
        }
        deltas += [{"tool_calls": [begin]},
            *({"tool_calls": [{"index": index, "function": {"arguments": part}}]}
                                              for part in parts)]  # fmt: skip
    events: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    return [*events, {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}]


def responses(pieces: list[list[str]], done: bool = False) -> list[dict[str, Any]]:
    """``done``: without deltas, the arguments come whole with the item's end."""
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {"id": "r1", "status": "in_progress"}},
        {"type": "response.reasoning_text.delta", "output_index": 0, "delta": "hm"},
        {"type": "response.output_text.delta", "output_index": 1, "delta": "Let me see"},
    ]
    for index, parts in enumerate(pieces, 2):
        item = {
            "type": "function_call",
            "id": f"fc{index}",
            "call_id": f"c{index - 1}",
            "name": "look_up",
        }
        kind = "response.function_call_arguments"
        events.append(
            {
                "type": "response.output_item.added",
                "output_index": index,
                "item": item | {"arguments": ""},
            }
        )
        if not done:
            events += [
                {"type": f"{kind}.delta", "output_index": index, "delta": part} for part in parts
            ]
            events.append(
                {"type": f"{kind}.done", "output_index": index, "arguments": "".join(parts)}
            )
        end = item | {"arguments": "".join(parts)}
        events.append({"type": "response.output_item.done", "output_index": index, "item": end})
    return [
        *events,
        {
            "type": "response.completed",
            "response": {"id": "r1", "status": "completed", "output": []},
        },
    ]


def messages(pieces: list[list[str]], done: bool = False) -> list[dict[str, Any]]:
    """``done``: without deltas, the input comes whole with the block's begin."""
    events: list[dict[str, Any]] = [
        {
            "type": "message_start",
            "message": {"type": "message", "content": [], "usage": {"input_tokens": 9}},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "thinking_delta", "thinking": "hm"},
        },
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "text_delta", "text": "Let me see"},
        },
    ]
    for index, parts in enumerate(pieces, 2):
        input_ = json.loads("".join(parts)) if done else {}
        block = {"type": "tool_use", "id": f"c{index - 1}", "name": "look_up", "input": input_}
        deltas = (
            []
            if done
            else [{"type": "input_json_delta", "partial_json": part} for part in ("", *parts)]
        )
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [
            {"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas
        ]
        events.append({"type": "content_block_stop", "index": index})
    usage = {"output_tokens": 7}
    return [
        *events,
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": usage},
        {"type": "message_stop"},
    ]


FORMS: dict[str, Any] = {"chat": chat, "responses": responses, "messages": messages}


def read(kind: str, events: list[dict[str, Any]], step: int) -> Response:
    """The answer, whose bytes come ``step`` at a time."""
    lines = [
        f"event: {event.get('type', 'message')}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n"
        for event in events
    ]
    data = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
        + "".join(lines).encode()
    )
    stream = Response(0, kind=kind, keep_text=True)
    for at in range(0, len(data), step):
        if stream.append_read(1 + at, 0, data[at : at + step]):
            stream.decode_pending()
    if not stream.over:
        stream.note_closed()
    stream.finish()
    return stream


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_an_answer_with_calls_is_the_same_message_in_each(kind: str, step: int) -> None:
    stream = read(kind, FORMS[kind]([['{"te', 'xt": "a"}'], ['{"text": "', "é", '"}']]), step)
    assert join_deltas(stream.answer.deltas or ()) == ANSWER
    assert (stream.answer.finish_reason, stream.answer.error, stream.answer.malformed) == (
        "tool_calls",
        None,
        None,
    )
    assert len(stream.answer.chunk_reads) == 2 + (1 + 2) + (1 + 3)


@pytest.mark.parametrize("kind", ["responses", "messages"])
def test_arguments_that_come_whole(kind: str) -> None:
    answer = read(
        kind, FORMS[kind]([['{"text": "a"}'], ['{"text": "é"}']], done=True), 1 << 20
    ).answer
    message = join_deltas(answer.deltas or ())
    assert [json.loads(call["function"]["arguments"]) for call in message["tool_calls"]] == [
        {"text": "a"},
        {"text": "é"},
    ]
    assert [call["id"] for call in message["tool_calls"]] == ["c1", "c2"]
    assert answer.finish_reason == "tool_calls"


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize(("choice", "pieces", "good"), [
    ("auto", [['{"text": ', '"a"}']], True),
    ("required", [['{"text": "a"}'], ['{"text": "b"}']], True),
    ("required", [['{"text": "a"}'], ['{"text": 1}']], False), ("auto", [['{"text": "a"']], False),
    ("auto", [[]], False),
    ("required", [], False), ("auto", [], None), ("none", [], None),
    ({"type": "function", "function": {"name": "look_up"}}, [['{"text": "a"}']], True),
    ({"type": "function", "function": {"name": "now"}}, [['{"text": "a"}']], False),
])  # fmt: skip
def test_whether_the_arguments_fit(
    kind: str, choice: Any, pieces: list[list[str]], good: bool | None
) -> None:
    pytest.importorskip("jsonschema")
    what = find_response_schema({"tools": [LOOK_UP, NOW], "tool_choice": choice})
    message = join_deltas(read(kind, FORMS[kind](pieces), 5).answer.deltas or ())
    assert (None if what is None else matches_response_schema(what, message)) is good


@pytest.mark.parametrize("choice", [
    {"type": "any"}, {"type": "tool", "name": "look_up"}, {"type": "function", "name": "look_up"},
    {"type": "allowed_tools", "allowed_tools": {"mode": "required"}},
])  # fmt: skip
def test_choices_in_their_own_form_must_call(choice: dict[str, Any]) -> None:
    what = find_response_schema({"tools": [LOOK_UP], "tool_choice": choice})
    free = find_response_schema({"tools": [LOOK_UP], "tool_choice": {"type": "auto"}})
    assert [what and what.must_call, free and free.must_call] == [True, False]
    assert find_response_schema({"tools": [LOOK_UP], "tool_choice": {"type": "none"}}) is None


def body(kind: str, **more: Any) -> dict[str, Any]:
    """Of the second turn of a session with two calls."""
    session = [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Look"}, ANSWER,
        *({"role": "tool", "tool_call_id": id_, "content": text} for id_,
            text in (("c1", "found"), ("c2", "none"))),
    ]  # fmt: skip
    found: dict[str, Any] = json.loads(
        encode_request_body(kind, "m", session, 5, tools=[LOOK_UP, NOW], **more)
    )
    return found


def test_the_second_turn_in_each_form() -> None:
    empty = {"type": "object", "properties": {}}
    assert body("chat")["tools"] == [LOOK_UP, NOW]
    got = body("responses")
    assert got["instructions"] == "Be brief."
    assert [item.get("type", item.get("role")) for item in got["input"]] == [
        "user", "message", "function_call", "function_call", "function_call_output",
        "function_call_output"
    ]  # fmt: skip
    assert got["input"][3:5] == [
        {"type": "function_call", "call_id": "c2", "name": "look_up", "arguments": '{"text": "é"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "found"},
    ]
    assert got["tools"] == [
        {
            "type": "function",
            "name": "look_up",
            "description": "Finds.",
            "parameters": TEXT,
            "strict": False,
        },
        {"type": "function", "name": "now", "parameters": empty, "strict": False},
    ]
    got = body("messages")
    assert (got["system"], [message["role"] for message in got["messages"]]) == (
        "Be brief.",
        ["user", "assistant", "user"],
    )
    assert [block["type"] for block in got["messages"][1]["content"]] == [
        "text",
        "tool_use",
        "tool_use",
    ]
    assert [block["tool_use_id"] for block in got["messages"][2]["content"]] == ["c1", "c2"]
    assert got["tools"] == [
        {"name": "look_up", "description": "Finds.", "input_schema": TEXT},
        {"name": "now", "input_schema": empty}
    ]  # fmt: skip


@pytest.mark.parametrize(("asked", "of_responses", "of_messages"), [
    ({"tool_choice": "auto"}, {"tool_choice": "auto"}, {"tool_choice": {"type": "auto"}}),
    ({"tool_choice": "none"}, {"tool_choice": "none"}, {"tool_choice": {"type": "none"}}),
    ({"tool_choice": "required"}, {"tool_choice": "required"}, {"tool_choice": {"type": "any"}}),
    ({"tool_choice": {"type": "function", "function": {"name": "now"}}},
     {"tool_choice": {"type": "function", "name": "now"}},
     {"tool_choice": {"type": "tool", "name": "now"}}),
    ({"tool_choice": {"type": "any"}}, {"tool_choice": {"type": "any"}},
        {"tool_choice": {"type": "any"}}),
    ({"parallel_tool_calls": False}, {"parallel_tool_calls": False},
     {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}),
    ({"parallel_tool_calls": True}, {"parallel_tool_calls": True}, {}),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": TEXT}}},
     {"text": {"format": {"type": "json_schema", "name": "x", "schema": TEXT}}},
     {"output_config": {"format": {"type": "json_schema", "schema": TEXT}}}),
    ({"tools": [{"type": "web_search"}]}, {"tools": [{"type": "web_search"}]},
        {"tools": [{"type": "web_search"}]}),
    ({"tools": [{"name": "x", "input_schema": TEXT}]},
        {"tools": [{"name": "x", "input_schema": TEXT}]},
     {"tools": [{"name": "x", "input_schema": TEXT}]}),
    ({"temperature": 0}, {"temperature": 0}, {"temperature": 0}),
])  # fmt: skip
def test_fields_of_chat_in_the_form_of_each(
    asked: dict[str, Any], of_responses: dict[str, Any], of_messages: dict[str, Any]
) -> None:
    tools = {"tools": [LOOK_UP]}
    for kind, expected in (("responses", of_responses), ("messages", of_messages)):
        found = PROTOCOLS[kind].fields(tools | asked)
        assert {
            name: value for name, value in found.items() if "tools" in asked or name != "tools"
        } == expected
    assert PROTOCOLS["chat"].fields(asked) == asked


def test_a_turn_goes_on_from_the_last_answer_that_the_server_keeps() -> None:
    system, asks = {"role": "system", "content": "s"}, {"role": "user", "content": "a"}
    kept, plain = (
        {"role": "assistant", "content": "b", "response_id": "r1"},
        {"role": "assistant", "content": "c"},
    )
    assert split_at_stored_response([system, asks, kept, asks]) == ("r1", [system, asks])
    assert split_at_stored_response([asks, kept, asks, plain, asks]) == (
        "r1",
        [asks, plain, asks],
    )  # one of its answers has no id
    for whole, lost in (
        ([asks], None),
        ([asks, kept], None),
        ([asks, kept, asks], "r1"),
        ([asks, plain, asks], None),
    ):
        assert split_at_stored_response(whole, lost) == (None, whole)
    sent = json.loads(encode_request_body("responses", None, [system, asks, kept], 5))
    assert "response_id" not in json.dumps(sent)


def test_the_key_in_the_place_of_another_protocol() -> None:
    version = {"anthropic-version": "2023-06-01"}
    assert convert_key_headers("messages", {"Authorization": "Bearer k", "X-A": "1"}, "chat") == {
        "Authorization": "Bearer k", "X-A": "1", "x-api-key": "k", **version
    }  # fmt: skip
    assert (
        convert_key_headers("chat", {"x-api-key": "k", **version}, "messages")["Authorization"]
        == "Bearer k"
    )
    assert convert_key_headers("chat", {"x-api-key": "k", "authorization": "Bearer own"},
        "messages") == {
        "x-api-key": "k", "authorization": "Bearer own"
    }  # fmt: skip
    assert convert_key_headers("messages", {}, "chat") == version
    assert convert_key_headers("chat", version, "messages") == version
