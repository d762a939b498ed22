"""Errors inside of answers, in the forms that servers use, over all protocols; and what is none."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from locust_llm.protocols.answer_parser import Completion
from locust_llm.protocols.error_forms import find_embedded_error, is_error, read_error_message
from locust_llm.protocols.error_message import status_message
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.records.outcomes import OK

TEXT = {
    "chat": {"choices": [{"index": 0, "delta": {"content": "a"}}]},
    "completions": {"choices": [{"index": 0, "text": "a"}]},
    "responses": {"type": "response.output_text.delta", "delta": "a"},
    "messages": {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": "a"},
    },
}
END = {
    "chat": {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    "completions": {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]},
    "responses": {"type": "response.completed", "response": {"status": "completed"}},
    "messages": {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
}
ERRORS: list[Any] = [
    {"error": {"message": "boom", "code": 500}},
    {"error": "boom"},
    {"error": ["boom"]},
    {"error": [{"message": "boom"}]},
    {"error": {"error": {"message": "boom"}}},
    {"error": True, "message": "boom"},
    {"error": {"code": 0, "message": "boom"}},
    {"error": {"detail": "boom"}},
    {"code": 500, "message": "boom", "type": "InternalServerError"},
    {"code": "InvalidParameter", "message": "boom", "request_id": "a"},
    {"code": "429", "msg": "boom"},
    {"message": "boom", "type": "server_error"},
    {"object": "error", "message": "boom", "code": 40001},
    {"status": 500, "error": "Internal Server Error", "message": "boom", "path": "/v1"},
    {"type": "about:blank", "title": "boom", "status": 503},
    {"status": "error", "message": "boom"},
    {"errors": [{"message": "boom"}]},
    {"errors": ["boom"], "success": False},
    {"success": False, "message": "boom"},
    {"base_resp": {"status_code": 1002, "status_msg": "boom"}},
    {"base_resp": {"status_code": "1002", "status_msg": "boom"}, "choices": None},
    {"error_code": 336000, "error_msg": "boom"},
    {"errcode": 1, "errmsg": "boom"},
    {"error": '{"error": {"message": "boom"}}'},
    {"Error": {"Code": "Throttled", "Message": "boom"}},
    {"ResponseMetadata": {"RequestId": "a", "Error": {"Code": "Throttled", "Message": "boom"}}},
    {"Response": {"Error": {"Code": "InternalError", "Message": "boom"}, "RequestId": "a"}},
    {"internalServerException": {"message": "boom"}},
    {"__type": "ThrottlingException", "Message": "boom"},
    {"fault": {"faultstring": "boom", "detail": {"errorcode": "quota"}}},
    [{"error": {"message": "boom"}}],
    [{"error": {"code": 400, "message": "boom", "status": "INVALID_ARGUMENT"}}, {"a": 1}],
]
DOUBTFUL: list[Any] = [{"detail": "boom"}, {"message": "boom"}, {"msg": "boom"}, {"title": "boom"},
    {"Message": "boom"}, {"header": {"code": 10013, "message": "boom", "status": 2}},
]  # fmt: skip
HARMLESS: list[Any] = [
    {"error": None}, {"error": ""}, {"error": {}}, {"error": []}, {"error": False}, {"error": 0},
    {"error": "null"},
    {"error": "None"}, {"error": {"message": "", "code": None}},
    {"error": {"code": 0, "message": "ok"}},
    {"error": {"code": 200, "message": "success"}},
    {"base_resp": {"status_code": 0, "status_msg": ""}},
    {"base_resp": {"status_code": 0, "status_msg": "success"}}, {"base_resp": {}},
    {"base_resp": None}, {"base_resp": []},
    {"header": {"code": 0, "message": "Success"}}, {"data": {"code": "a"}},
    {"ResponseMetadata": {"RequestId": "a"}},
    {"code": 200}, {"code": 200, "message": "ok"}, {"code": 0, "msg": "keep going"},
    {"code": "200", "message": "fine"},
    {"success": True}, {"success": True, "message": "fine"}, {"errors": []}, {"errors": None},
    {"status": "in_progress"},
    {"status": 200}, {"detail": None}, {"message": None}, {"message": ""},
    {"object": "chat.completion.chunk"}, {},
]  # fmt: skip


def stream(kind: str, *messages: Any) -> Completion:
    got = Completion(PROTOCOLS[kind])
    for read, message in enumerate(messages):
        got.add((read, "message", json.dumps(message).encode()))
    return got


@pytest.mark.parametrize("kind", TEXT)
@pytest.mark.parametrize("error", ERRORS, ids=json.dumps)
def test_an_error_in_a_stream_has_the_servers_own_message(kind: str, error: Any) -> None:
    for messages in ([TEXT[kind], error], [error], [TEXT[kind], error, TEXT[kind], END[kind]]):
        got = stream(kind, *messages)
        assert got.outcome() == ("stream_error", "boom")
        assert json.loads(got.broken) == error


@pytest.mark.parametrize("kind", PROTOCOLS)
@pytest.mark.parametrize("error", [*ERRORS, *DOUBTFUL], ids=json.dumps)
def test_an_error_as_the_whole_answer(kind: str, error: Any) -> None:
    got = Completion(PROTOCOLS[kind])
    got.whole(json.dumps(error).encode())
    assert got.outcome() == ("stream_error", "boom")
    assert status_message(json.dumps(error).encode()) == "boom"


@pytest.mark.parametrize("kind", TEXT)
@pytest.mark.parametrize("doubtful", DOUBTFUL, ids=json.dumps)
def test_a_text_alone_explains_only_what_has_no_end(kind: str, doubtful: Any) -> None:
    assert stream(kind, TEXT[kind], doubtful).outcome() == ("stream_error", "boom")
    assert stream(kind, TEXT[kind], doubtful, END[kind]).outcome() == (OK, "")


@pytest.mark.parametrize("kind", TEXT)
@pytest.mark.parametrize("harmless", HARMLESS, ids=json.dumps)
def test_what_says_that_nothing_failed_is_no_error(kind: str, harmless: dict[str, Any]) -> None:
    assert find_embedded_error(harmless) is None
    assert stream(kind, TEXT[kind], harmless, END[kind]).outcome() == (OK, "")
    beside = {
        **TEXT[kind],
        **{name: value for name, value in harmless.items() if name not in TEXT[kind]},
    }
    got = stream(kind, beside, END[kind])
    assert (got.outcome(), got.chunk_reads) == ((OK, ""), [0])
    assert stream(kind, TEXT[kind], harmless).outcome()[0] == "truncated"


def test_an_error_beside_choices_or_in_one_of_them() -> None:
    for fields in ({"error": {"message": "boom"}},
        {"base_resp": {"status_code": 1, "status_msg": "boom"}},
                   {"x_groq": {"error": "boom"}}):  # fmt: skip
        assert stream("chat", {**TEXT["chat"], **fields}).outcome() == ("stream_error", "boom")
    choice = {
        "index": 0,
        "delta": {"content": ""},
        "finish_reason": "error",
        "error": {"code": 502, "message": "boom"},
    }
    whole = Completion(PROTOCOLS["chat"])
    whole.whole(json.dumps({"choices": [choice]}).encode())
    assert whole.outcome() == ("stream_error", "boom")
    got = stream("chat", TEXT["chat"], {"choices": [choice]})
    assert (got.outcome(), got.chunk_reads) == (("stream_error", "boom"), [0])


def test_what_fastapi_says_of_a_field_is_kept_whole() -> None:
    detail = [{"loc": ["body", "max_tokens"], "msg": "Field required"}]
    assert "max_tokens" in (read_error_message({"detail": detail}) or "")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "error",
                    "message",
                    "code",
                    "detail",
                    "errors",
                    "success",
                    "base_resp",
                    "status",
                    "loc",
                    "type",
                ]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=10,
)


@examples(500)
@given(JSON)
def test_no_json_raises_and_an_error_has_a_message(content: Any) -> None:
    is_error(content)
    found = find_embedded_error(content)
    assert found is None or found.certain or found.message
    for kind in TEXT:
        got = stream(kind, content, TEXT[kind])
        assert got.outcome()[1]


def test_the_error_of_a_status_may_be_an_event_stream_or_begin_with_a_mark() -> None:
    error = b'{"error": {"message": "boom"}}'
    for body in (
        b"data: " + error + b"\n\ndata: [DONE]\n\n",
        b"event: error\ndata: " + error + b"\n\n",
        b": ping\n\ndata:" + error,
        b"\xef\xbb\xbf" + error,
        b'event: error\ndata: {"text": "boom"}\n\n',
        b"data: boom\n\n",
    ):
        assert status_message(body) == "boom"
    assert status_message(b"database is down") == "database is down"
