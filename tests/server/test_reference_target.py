"""Reference target: what is asked of a server, what is left out where it refuses a field, and what
is read from its answers."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.tiny_server import Asked, TinyServer, tiny_server

from locust_llm.answers.reference_answer import (
    IDLE,
    UNDER_LOAD,
    AnswerToken,
    AnswerToolCall,
    ReferenceAnswer,
)
from locust_llm.answers.reference_prompts import BUILT_IN_PROMPTS, ReferencePrompt
from locust_llm.server.reference_target import AskedHow, ReferenceTarget
from locust_llm.server.refused_request_fields import RequestForm
from locust_llm.settings.run_options import Settings

PLAIN, TOOL = BUILT_IN_PROMPTS[0], BUILT_IN_PROMPTS[-1]
STREAMED = AskedHow(IDLE, True, 5.0)
WHOLE = AskedHow(UNDER_LOAD, False, 5.0, in_flight=7)
KEY = "sk-of-the-run-0123456789abcdef"


@pytest.fixture
def server() -> Iterator[TinyServer]:
    with tiny_server() as server:
        yield server


def target(server: TinyServer, form: RequestForm | None = None, **settings: Any) -> ReferenceTarget:
    headers = {"Authorization": f"Bearer {KEY}"}
    known = Settings(host=server.url, **settings)
    return ReferenceTarget(known, "tiny", form or RequestForm(), headers)


def refusing(*names: str) -> Callable[[Asked], tuple[int, Any]]:
    """A server that refuses these fields, each by its name, and answers without them."""

    def answer(asked: Asked) -> tuple[int, Any]:
        for name in names:
            if name in asked.body:
                return 400, {"error": {"message": f"{name} is not supported"}}
        return 200, {"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]}

    return answer


def logprob(token: str, *, sure: float, other: str = "no") -> dict[str, Any]:
    top = [{"token": token, "logprob": -sure}, {"token": other, "logprob": -sure - 1.5}]
    return {"token": token, "logprob": -sure, "top_logprobs": top}


def test_a_stream_is_read_with_its_tokens_counts_and_names(server: TinyServer) -> None:
    def event(text: str | None, finish: str | None = None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": finish}
        if text is not None:
            choice |= {"delta": {"content": text}, "logprobs": {"content": [logprob(text, sure=1)]}}
        return {"id": "chatcmpl-1", "model": "tiny", "choices": [choice]}

    usage = {
        "prompt_tokens": 30, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 16},
    }  # fmt: skip
    server.chat = lambda asked: (
        200, [event("one"), event(" two"), event(None, "stop"), {"choices": [], "usage": usage}]
    )  # fmt: skip
    answer = target(server).ask(3, PLAIN, STREAMED)
    assert answer == ReferenceAnswer(
        prompt=3, question="Count from one to thirty in English word", asked=IDLE, sent_at=answer.sent_at, ended_at=answer.ended_at, streamed=True,
        text="one two", finish_reason="stop", input_tokens=30, output_tokens=2, cached_tokens=16,
        response_ids=("chatcmpl-1",), model="tiny",
        tokens=(AnswerToken("one", -1, 1.5), AnswerToken(" two", -1, 1.5)),
    )  # fmt: skip
    assert answer.sent_at <= answer.ended_at
    (asked,) = server.asked
    assert asked.body == {
        "model": "tiny", "messages": PLAIN.messages, "max_tokens": 64, "temperature": 0, "seed": 0,
        "logprobs": True, "top_logprobs": 2, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert asked.headers["authorization"] == f"Bearer {KEY}"


def test_a_whole_answer_with_a_tool_call_and_reasoning_is_read(server: TinyServer) -> None:
    function = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    message = {
        "content": None, "reasoning_content": "Hm.",
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }  # fmt: skip
    server.chat = lambda asked: (
        200, {"id": "x", "choices": [{"message": message, "finish_reason": "tool_calls"}]}
    )  # fmt: skip
    answer = target(server).ask(7, TOOL, WHOLE)
    assert (answer.kind, answer.text, answer.reasoning) == ("tool", "", "Hm.")
    assert answer.tool_calls == (AnswerToolCall("get_weather", '{"city": "Paris"}'),)
    assert (answer.asked, answer.streamed, answer.in_flight) == (UNDER_LOAD, False, 7)
    assert server.asked[0].body["tool_choice"] == "required"
    assert "stream" not in server.asked[0].body


@pytest.mark.parametrize("name", ["logprobs", "seed", "temperature"])
def test_a_refused_field_is_left_out_from_then_on_and_noted_once(
    server: TinyServer, name: str
) -> None:
    server.chat = refusing(name)
    asking = target(server)
    answers = [asking.ask(0, PLAIN, STREAMED), asking.ask(0, PLAIN, WHOLE)]
    assert [(answer.error, answer.without) for answer in answers] == [("", (name,))] * 2
    # streams and whole answers are refused apart
    assert [name in asked.body for asked in server.asked] == [True, False, True, False]
    (note,) = asking.notes
    assert note.startswith(f"the server refuses {name} (HTTP 400: {name} is not supported), so ")


def test_of_two_refused_fields_both_are_left_out_and_no_third(server: TinyServer) -> None:
    server.chat = refusing("temperature", "logprobs")
    asking = target(server)
    assert asking.ask(0, PLAIN, WHOLE).without == ("logprobs", "temperature")
    assert [note.partition(" (")[2].partition(")")[0] for note in asking.notes] == [
        "HTTP 400: logprobs is not supported",
        "HTTP 400: temperature is not supported",
    ]
    assert len(server.asked) == 3


def test_several_refused_fields_and_one_without_a_name(server: TinyServer) -> None:
    def answer(asked: Asked) -> tuple[int, Any]:
        if {"logprobs", "seed"} & {*asked.body}:
            return 422, {"detail": "Extra inputs are not permitted"}
        return 200, {"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]}

    server.chat = answer
    asking = target(server)
    assert asking.ask(0, PLAIN, WHOLE).without == ("logprobs", "seed", "temperature")
    assert len(asking.notes) == 3


def test_what_is_refused_with_tools_in_a_stream_is_left_out_there_alone(
    server: TinyServer,
) -> None:
    """As llama.cpp does."""

    def answer(asked: Asked) -> tuple[int, Any]:
        if {"tools", "stream", "logprobs"} <= {*asked.body}:
            return 400, {"error": {"message": "logprobs is not supported with tools + stream"}}
        return refusing()(asked)

    server.chat = answer
    asking = target(server)
    prompts = ((7, TOOL, STREAMED), (0, PLAIN, STREAMED), (7, TOOL, WHOLE), (7, TOOL, STREAMED))
    answers = [asking.ask(*asked) for asked in prompts]
    assert [answer.without for answer in answers] == [("logprobs",), (), (), ("logprobs",)]
    assert len(server.asked) == 5
    (note,) = asking.notes
    assert note.startswith("the server refuses logprobs with tools (HTTP 400: logprobs is not")


def test_a_refused_prompt_teaches_nothing(server: TinyServer) -> None:
    server.chat = lambda asked: (
        (400, {"error": {"message": "tools need --enable-auto-tool-choice"}})
        if "tools" in asked.body
        else refusing()(asked)
    )
    asking = target(server)
    answer = asking.ask(7, TOOL, WHOLE)
    assert answer.error == "HTTP 400: tools need --enable-auto-tool-choice"
    assert asking.ask(0, PLAIN, WHOLE).without == ()
    assert asking.notes == []


def test_a_failed_request_has_its_reason_without_secrets(server: TinyServer) -> None:
    server.chat = lambda asked: (500, {"error": {"message": f"{KEY}\nis \x1b[31mbad"}})
    answer = target(server).ask(0, PLAIN, STREAMED)
    assert answer.error == "HTTP 500: *** is bad"
    server.chat = lambda asked: (
        200, {"choices": [{"message": {"content": f"a {KEY} b"}, "finish_reason": "stop"}]}
    )  # fmt: skip
    assert target(server).ask(0, PLAIN, WHOLE).text == "a *** b"


def test_a_server_that_is_down_or_breaks_off_has_no_answer() -> None:
    with tiny_server(started=False) as server:
        answer = target(server).ask(0, PLAIN, STREAMED)
    assert "refused" in answer.error.lower()
    with tiny_server() as server:
        server.chat = lambda asked: (200, [{"choices": [{"delta": {"content": "on"}}]}])
        cut = target(server).ask(0, PLAIN, STREAMED)
    assert cut.error == "the response ended without a finish_reason"


def test_an_empty_answer_is_an_answer(server: TinyServer) -> None:
    server.chat = lambda asked: (
        200, {"choices": [{"message": {"content": ""}, "finish_reason": "stop"}],
              "usage": {"prompt_tokens": 9, "completion_tokens": 5}},
    )  # fmt: skip
    answer = target(server).ask(0, PLAIN, WHOLE)
    assert (answer.error, answer.text, answer.finish_reason) == ("", "", "stop")


def test_the_fields_of_the_load_go_along_but_for_those_that_change_the_task(
    server: TinyServer,
) -> None:
    extra = {
        "chat_template_kwargs": {"enable_thinking": False}, "temperature": 0.7, "ignore_eos": True,
        "n": 2, "tools": [{"type": "function", "function": {"name": "f"}}],
    }  # fmt: skip
    form = RequestForm(without=("stream_options",), max_tokens_field="max_completion_tokens")
    target(server, form, extra_inputs=json.dumps(extra)).ask(0, PLAIN, STREAMED)
    assert server.asked[0].body == {
        "model": "tiny", "messages": PLAIN.messages, "max_completion_tokens": 64, "stream": True,
        "chat_template_kwargs": {"enable_thinking": False}, "temperature": 0, "seed": 0,
        "logprobs": True, "top_logprobs": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "path", "fields"),
    [
        ("completions", "/v1/completions", {"temperature": 0, "seed": 0, "logprobs": 2}),
        ("responses", "/v1/responses", {"temperature": 0}),
        ("messages", "/v1/messages", {"temperature": 0}),
    ],
)
def test_each_api_is_asked_with_the_fields_that_it_knows(
    server: TinyServer, kind: str, path: str, fields: dict[str, Any]
) -> None:
    server.pages[path] = (500, {})
    target(server, endpoint_type=kind).ask(0, ReferencePrompt(messages=PLAIN.messages), WHOLE)
    (asked,) = server.asked
    known = ("temperature", "seed", "logprobs", "top_logprobs")
    assert {name: asked.body[name] for name in known if name in asked.body} == fields
