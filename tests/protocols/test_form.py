"""The form of a chunk: what stands around its text, where that is all that it brings."""

import json
from typing import Any

import pytest

from locust_llm.protocols.protocol_registry import PROTOCOLS

CHUNK: dict[str, Any] = {
    "id": "x",
    "choices": [{"index": 0, "delta": {"content": "word"}, "finish_reason": None}],
}
NONE = (b"", b"")


def form(message: dict[str, Any], kind: str = "chat") -> tuple[bytes, bytes]:
    return PROTOCOLS[kind].form(json.dumps(message).encode())


def test_what_stands_around_the_text() -> None:
    assert form(CHUNK) == (
        b'{"id": "x", "choices": [{"index": 0, "delta": {"content": "',
        b'"}, "finish_reason": null}]}',
    )
    assert form({"choices": [{"text": " word"}]}, "completions") == (
        b'{"choices": [{"text": "',
        b'"}]}',
    )


def test_a_text_that_is_elsewhere_too() -> None:
    before, behind = form(CHUNK | {"id": "word"})
    assert before.endswith(b'"content": "')
    assert behind.startswith(b'"}')


@pytest.mark.parametrize(
    "choice",
    [
        {"delta": {"content": ""}},
        {"delta": {"content": None}},
        {"delta": {"content": 'a "b"'}},
        {"delta": {"content": "a\n"}},
        {"delta": {"content": "µ"}},
        {"delta": {"content": "a", "reasoning": "b"}},
        {"delta": {"content": "a", "tool_calls": [{"index": 0}]}},
        {"delta": {"content": "a"}, "finish_reason": "stop"},
        {"delta": {"content": "a"}, "index": 1},
        {"delta": {"content": "a"}, "message": {"content": "b"}},
        {"delta": {}},
        {},
    ],
)
def test_more_than_a_text_has_none(choice: dict[str, Any]) -> None:
    assert form({"choices": [choice]}) == NONE


def test_more_than_a_choice_has_none() -> None:
    assert form({"choices": CHUNK["choices"] * 2}) == form({"choices": []}) == form({}) == NONE
    for more in (
        {"usage": {"completion_tokens": 1}},
        {"timings": {"a": 1}},
        {"error": "no"},
        {"object": "error"},
    ):
        assert form(CHUNK | more) == NONE
    assert PROTOCOLS["chat"].form(b'{"content": "a"') == PROTOCOLS["responses"].form(b"{}") == NONE
