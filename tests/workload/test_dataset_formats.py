"""Formats: each JSON kind by a row that one can read, and what is wrong with a row, told with its
place."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from locust_llm.workload.dataset_formats import (
    JSON_KINDS,
    RowError,
    Turn,
    parse_json_row,
    read_row_session,
    recognise_row,
)


def turns(row: dict[str, Any] | str, kind: str | None = None) -> list[Turn]:
    data = (row if isinstance(row, str) else json.dumps(row)).encode()
    return parse_json_row(kind or recognise_row(data), data, 7)[1]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


HI = user("hi")
YES = {"role": "assistant", "content": "yes"}


@pytest.mark.parametrize(
    ("row", "turn"),
    [
        # mooncake_trace, as in FAST25-release/traces, then AIPerf's additions
        (
            {"timestamp": 3000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]},
            Turn(input_tokens=6758, output_tokens=500, at_s=3.0, hash_ids=(0, 1, 2), row=7),
        ),
        (
            {"text_input": "hi", "delay": 250, "output_length": 4, "extra": {"seed": 1}},
            Turn(messages=[HI], output_tokens=4, delay_s=0.25, body={"seed": 1}, row=7),
        ),
        (
            {
                "payload": {"messages": [HI], "max_tokens": 50, "stream": False, "top_p": 1},
                "timestamp": 1.5,
            },
            Turn(
                messages=[HI], whole=True, output_tokens=50, at_s=0.0015, body={"top_p": 1}, row=7
            ),
        ),
        # openai
        (
            {"prompt": "hi", "output_tokens": 10},
            Turn(messages=[HI], whole=True, output_tokens=10, row=7),
        ),
        (
            {"messages": [HI, YES, HI], "max_tokens": 9, "model": "m", "tools": [{}], "score": 0.1},
            Turn(
                messages=[HI, YES, HI],
                whole=True,
                output_tokens=9,
                body={"model": "m", "tools": [{}]},
                row=7,
            ),
        ),
        ({"messages": [HI, YES]}, Turn(messages=[HI], whole=True, reference="yes", row=7)),
        (
            {"messages": [HI, YES], "continue_final_message": True},
            Turn(messages=[HI, YES], whole=True, body={"continue_final_message": True}, row=7),
        ),
        (
            {
                "custom_id": "a",
                "method": "POST",
                "body": {"model": "m", "messages": [HI], "max_completion_tokens": 3},
            },
            Turn(messages=[HI], whole=True, output_tokens=3, body={"model": "m"}, row=7),
        ),
        (
            {
                "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
                "prompt": 5,
                "text": [],
            },
            Turn(
                messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
                whole=True,
                row=7,
            ),
        ),
        # single_turn
        (
            {"text": "hi", "timestamp": 2500, "output_length": 8, "role": "system"},
            Turn(
                messages=[{"role": "system", "content": "hi"}],
                whole=True,
                output_tokens=8,
                at_s=2.5,
                row=7,
            ),
        ),
        ({"texts": ["hi", "ho"], "delay": 0}, Turn(messages=[HI], whole=True, delay_s=0.0, row=7)),
        (
            {"text": "hi", "timestamp": "1970-01-01T00:01:00.5Z"},
            Turn(messages=[HI], whole=True, at_s=60.5, row=7),
        ),
    ],
)
def test_a_row_of_one_request(row: dict[str, Any], turn: Turn) -> None:
    assert turns(row) == [turn]


def test_a_session_in_one_row() -> None:
    row = {
        "session_id": "s",
        "turns": [{"text": "hi"}, {"text": "ho", "delay": 500, "output_length": 2}],
    }
    assert turns(row) == [
        Turn(messages=[HI], row=7),
        Turn(messages=[user("ho")], delay_s=0.5, output_tokens=2, row=7),
    ]
    assert turns({"turns": ["hi", "ho"]}) == [
        Turn(messages=[HI], row=7),
        Turn(messages=[user("ho")], row=7),
    ]
    assert turns({"turns": [HI, YES]}) == [Turn(messages=[HI], reference="yes", row=7)]


def test_sharegpt_sends_what_the_human_said_and_keeps_the_answer() -> None:
    said = [
        ("system", "be brief"),
        ("human", "hi"),
        ("gpt", "yes"),
        ("human", "a"),
        ("human", "b"),
        ("gpt", "c"),
        ("human", "d"),
    ]
    rows = [{"from": who, "value": text} for who, text in said]
    assert turns({"id": "x", "conversations": rows}) == [
        Turn(messages=[{"role": "system", "content": "be brief"}, HI], reference="yes", row=7),
        Turn(messages=[user("a"), user("b")], reference="c", row=7),
        Turn(messages=[user("d")], row=7),
    ]
    assert turns({"conversation": [HI, YES]}) == [Turn(messages=[HI], reference="yes", row=7)]


@pytest.mark.parametrize(
    "said", [[], [("gpt", "and so on")], [("human", "")], [("system", "be brief"), ("gpt", "yes")]]
)
def test_a_conversation_without_a_human_asks_for_nothing(said: list[tuple[str, str]]) -> None:
    """The split ShareGPT file is full of them."""
    assert turns({"conversations": [{"from": who, "value": text} for who, text in said]}) == []


def test_an_answer_to_nothing_at_the_start_is_left_out() -> None:
    rows = [{"from": "gpt", "value": "and so on"}, {"from": "human", "value": "hi"}]
    assert turns({"conversations": rows}) == [Turn(messages=[HI], row=7)]


def test_rows_that_share_a_session() -> None:
    """Mooncake's lengths and texts add to the conversation; its messages are all of it, unless they
    say delta."""
    assert not turns({"session_id": "s", "input_length": 5})[0].whole
    assert turns({"messages": [HI], "session_id": "s"}, "mooncake_trace")[0].whole
    assert not turns({"messages": [HI], "message_mode": "delta"}, "mooncake_trace")[0].whole
    assert read_row_session(b'{"session_id": "s", "input_length": 5}') == "s"
    assert read_row_session(b'{"session_id": 12}') == "12"
    assert read_row_session(b'{"input_length": 5}') == ""


def test_the_name_of_a_session() -> None:
    for key in ("session_id", "custom_id", "id"):
        assert (
            parse_json_row("openai", json.dumps({key: "me", "prompt": "hi"}).encode(), 1)[0] == "me"
        )


@pytest.mark.parametrize(
    ("row", "said", "field"),
    [
        ("[1]", "a JSON object is needed", ""),
        ({"instruction": "x"}, "not a known format", ""),
        ({"input_length": 0}, "input_length: expected int >= 1", "input_length"),
        ({"input_length": "5"}, "input_length: expected int, got str", "input_length"),
        ({"input_length": 5, "timestamp": -1}, "timestamp: expected float >= 0", "timestamp"),
        ({"input_length": 5, "timestamp": "noon"}, "timestamp is not a time: 'noon'", "timestamp"),
        (
            {"input_length": 5, "hash_ids": [1, "2"]},
            "hash_ids[1]: expected int, got str",
            "hash_ids",
        ),
        ({"prompt": 5}, "prompt: expected str, got int", "prompt"),
        ({"messages": []}, "messages contains no message to answer", "messages"),
        ({"messages": [YES]}, "messages contains no message to answer", "messages"),
        ({"messages": ["hi"]}, "messages[0]: expected object, got str", "messages"),
        ({"messages": [{"content": "hi"}]}, "messages[0] has no role", "messages"),
        ({"messages": [HI, {"role": "user"}]}, "messages[1] needs content", "messages"),
        ({"texts": []}, "a request needs text, but texts has none", "texts"),
        ({"text": "hi", "video": "x.mp4"}, "video is not supported here", "video"),
        ({"text": "hi", "image": 5}, "image takes a path, a URL or a data URL", "image"),
        ({"turns": []}, "turns must be a list with at least one turn", "turns"),
        ({"turns": [{"delay": 3}]}, "turns[0] needs messages, text,", "turns"),
        (
            {"conversations": [{"from": "dog", "value": "wau"}]},
            "conversations[0] is from 'dog'",
            "conversations",
        ),
        ({"conversations": [{"from": "human"}]}, "conversations[0] has no text", "conversations"),
        ({"payload": 3}, "payload must be an object", "payload"),
    ],
)
def test_what_is_wrong_with_a_row(row: dict[str, Any] | str, said: str, field: str) -> None:
    with pytest.raises(RowError) as wrong:
        turns(row)
    assert str(wrong.value).startswith(said)
    assert wrong.value.field == field


def test_a_row_of_another_kind() -> None:
    with pytest.raises(
        RowError, match="a row of single_turn needs text or texts, but this row has none"
    ):
        turns({"prompt": "hi"}, "single_turn")


@pytest.mark.parametrize(
    ("row", "byte"),
    [
        (b'{"a" 1}', 5),
        (b'{"a": 1', 7),
        (b'{"a": 1} x', 9),
        (b'{"a": "\xff"}', 7),
        (b"[" * 100_000, None),
    ],
)
def test_where_a_row_is_broken(row: bytes, byte: int | None) -> None:
    with pytest.raises(RowError) as wrong:
        recognise_row(row)
    assert wrong.value.byte == byte


NAMES = (
    "turns conversations payload body messages text_input input_length prompt text texts timestamp "
    "delay hash_ids role "
    "content from value extra output_length session_id message_mode"
)
FIELDS = st.sampled_from(NAMES.split())
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=8,
)


@examples(400)
@given(st.dictionaries(FIELDS, JSON, min_size=1, max_size=5), st.sampled_from(sorted(JSON_KINDS)))
def test_any_object_is_a_row_or_a_row_error(fields: dict[str, Any], kind: str) -> None:
    try:
        name, made = parse_json_row(kind, json.dumps(fields).encode(), 1)
    except RowError:
        return
    assert isinstance(name, str)
    for turn in made:
        assert turn.messages or turn.input_tokens
        assert turn.at_s is None or turn.at_s >= 0
        assert turn.output_tokens is None or turn.output_tokens >= 1


def test_the_system_prompt_beside_messages_is_sent() -> None:
    row = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    for system, roles in (("be brief", ["system", "user"]), ("", ["user"]), (None, ["user"])):
        _, (turn,) = parse_json_row("openai", json.dumps({**row, "system": system}).encode(), 1)
        assert [message["role"] for message in turn.messages or ()] == roles


def test_the_system_prompt_of_a_sharegpt_row_is_sent() -> None:
    human, gpt = {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}

    def sent(**row: Any) -> list[list[Any]]:
        _, turns = parse_json_row("sharegpt", json.dumps(row).encode(), 1)
        return [[(one["role"], one["content"]) for one in turn.messages or ()] for turn in turns]

    both = [human, gpt, human, gpt]
    assert sent(conversations=both, system="be brief") == [
        [("system", "be brief"), ("user", "q")],
        [("user", "q")],
    ]
    assert (
        sent(conversations=both, system="")
        == sent(conversations=both)
        == [[("user", "q")], [("user", "q")]]
    )
    own = [{"from": "system", "value": "own"}, human, gpt]
    assert sent(conversations=own, system="other") == [[("system", "own"), ("user", "q")]]
    with pytest.raises(RowError, match="system must be text"):
        sent(conversations=both, system=["x"])


WEATHER = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
TOOL = {"type": "function", "function": WEATHER}


@pytest.mark.parametrize("tools", [[TOOL], [WEATHER], json.dumps([WEATHER]), json.dumps([TOOL])])
@pytest.mark.parametrize("kind", ["sharegpt", "openai"])
def test_tools_of_a_row_are_sent_in_whichever_form_it_has_them(kind: str, tools: Any) -> None:
    content = {
        "sharegpt": {"conversations": [{"from": "human", "value": "q"}]},
        "openai": {"messages": [HI]},
    }[kind]
    _, (turn,) = parse_json_row(
        kind, json.dumps({**content, "tools": tools, "tool_choice": "auto"}).encode(), 1
    )
    assert turn.body == {"tools": [TOOL], "tool_choice": "auto"}


@pytest.mark.parametrize("tools", ["", " ", "[]", [], None])
def test_no_tools_are_no_field(tools: Any) -> None:
    row = {"conversations": [{"from": "human", "value": "q"}], "tools": tools, "model": "gpt-4"}
    assert turns(row) == [Turn(messages=[user("q")], row=7)]


@pytest.mark.parametrize("tools", ["weather", "{}", 7, {"name": "x"}])
def test_tools_that_are_no_list_are_named(tools: Any) -> None:
    with pytest.raises(RowError, match="tools "):
        turns({"conversations": [{"from": "human", "value": "q"}], "tools": tools})


def test_calls_and_results_of_a_sharegpt_row_are_sent() -> None:
    """As LLaMA-Factory has them. The recorded call goes on, not the server's answer: the result
    belongs to it."""
    said = [
        ("human", "weather?"), ("function_call",
            '{"name": "weather", "arguments": {"city": "Bonn"}}'),
        ("observation", '{"sun": 1}'), ("gpt", "It shines."), ("human", "both?"),
        ("function_call", '[{"name": "a", "arguments": "{}"}, {"name": "b"}]'),
        ("observation", "1"), ("gpt", "Yes."),
    ]  # fmt: skip

    def call(number: int, name: str, arguments: str) -> dict[str, Any]:
        return {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }

    def result(number: int, text: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": f"call_{number}", "content": text}

    one, both = [call(0, "weather", '{"city":"Bonn"}')], [call(0, "a", "{}"), call(1, "b", "{}")]
    first, second, third, fourth = turns(
        {"conversations": [{"from": who, "value": text} for who, text in said]}
    )
    assert first.messages == [user("weather?")]
    assert first.recorded == {"role": "assistant", "content": None, "tool_calls": one}
    assert (second.messages, second.reference, second.recorded) == (
        [result(0, '{"sun": 1}')],
        "It shines.",
        None,
    )
    assert third.recorded == {"role": "assistant", "content": None, "tool_calls": both}
    assert fourth.messages == [result(0, "1"), result(1, "1")]


@pytest.mark.parametrize(("said", "why"), [
    ([("human", "q"), ("function_call", "weather()")], "is not JSON"),
    ([("human", "q"), ("function_call", '{"arguments": {}}')], "does not name the function"),
    ([("human", "q"), ("gpt", "a"), ("observation", "1")], "without a function_call before it"),
    ([("human", "q"), ("tool", "1")], "neither human"),
])  # fmt: skip
def test_a_call_that_cannot_be_read_is_named(said: list[tuple[str, str]], why: str) -> None:
    with pytest.raises(RowError, match=why):
        turns({"conversations": [{"from": who, "value": text} for who, text in said]})


@pytest.mark.parametrize("content", [
    {"prompt": "q"}, {"text": "q"}, {"texts": ["q"]}, {"text_input": "q"},
    {"messages": [user("q")]}, {"turns": ["q", "r"]},
    {"turns": [{"text": "q", "id": "a"}, {"text": "r", "after": ["a"]}]},
    {"conversations": [{"from": "human", "value": "q"}]},
])  # fmt: skip
def test_the_system_prompt_of_any_row_is_sent_once(content: dict[str, Any]) -> None:
    first, *later = turns({**content, "system": "be brief"})
    assert first.messages == [{"role": "system", "content": "be brief"}, user("q")]
    assert [turn.messages for turn in later] == [[user("r")]] * ("turns" in content)


def test_each_root_of_a_tree_has_the_system_prompt() -> None:
    row = {
        "turns": [{"text": "q", "id": "a", "after": []}, {"text": "r", "id": "b", "after": []}],
        "system": "be brief",
    }
    assert [len(turn.messages or ()) for turn in turns(row)] == [2, 2]


def test_a_synthetic_turn_keeps_its_length() -> None:
    (turn,) = turns({"input_length": 9, "output_length": 2, "timestamp": 0, "system": "be brief"})
    assert (turn.messages, turn.input_tokens) == (None, 9)


def test_the_tools_of_a_row_are_those_of_each_turn_without_its_own() -> None:
    other = {"type": "function", "function": {"name": "other"}}
    row = {
        "turns": [{"text": "q"}, {"text": "r", "tools": [other]}],
        "tools": json.dumps([WEATHER]),
        "tool_choice": "auto",
    }
    assert [turn.body for turn in turns(row)] == [
        {"tools": [TOOL], "tool_choice": "auto"}, {"tools": [other], "tool_choice": "auto"},
    ]  # fmt: skip


def test_nothing_is_chosen_of_no_tools() -> None:
    row = {"conversations": [{"from": "human", "value": "q"}], "tools": "[]", "tool_choice": "auto"}
    assert [turn.body for turn in turns(row)] == [{}]
