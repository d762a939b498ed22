"""Bodies: what a request of each protocol has."""

import msgspec

from locust_llm.protocols.protocol import text_of
from locust_llm.protocols.request_body import encode_request_body


def test_a_chat_sends_its_messages() -> None:
    messages = [{"role": "user", "content": "hi"}]
    body = msgspec.json.decode(encode_request_body("chat", "m", messages, 5, temperature=0))
    assert body == {
        "model": "m", "messages": messages, "max_tokens": 5, "temperature": 0,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    plain = encode_request_body(
        "chat", None, messages, 5, streaming=False, max_tokens_field="max_completion_tokens"
    )
    assert msgspec.json.decode(plain) == {"messages": messages, "max_completion_tokens": 5}
    assert (
        msgspec.json.decode(encode_request_body("chat", "m", messages, None, model="other"))[
            "model"
        ]
        == "other"
    )


def test_a_plain_completion_sends_what_was_said_without_roles() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    body = msgspec.json.decode(
        encode_request_body("completions", "m", messages, 5, streaming=False)
    )
    assert body == {"model": "m", "prompt": "Be brief.\n\nhi", "max_tokens": 5}
    ids = msgspec.json.decode(
        encode_request_body("completions", None, messages, 5, streaming=False, prompt=[1, 2])
    )
    assert ids["prompt"] == [1, 2]


def test_of_parts_only_the_text_is_said() -> None:
    parts = [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {}},
        {"type": "text", "text": "b"},
        7,
    ]
    assert text_of({"role": "user", "content": parts}) == "ab"
    assert text_of({"role": "assistant", "tool_calls": []}) == ""


def test_a_count_with_each_chunk_is_asked_for_where_the_protocol_has_one() -> None:
    def options(kind: str, **how: bool) -> object:
        body = encode_request_body(
            kind, "m", [{"role": "user", "content": "hi"}], 5, per_chunk_usage=True, **how
        )  # type: ignore[arg-type]
        return msgspec.json.decode(body).get("stream_options")

    both = {"include_usage": True, "continuous_usage_stats": True}
    assert [options(kind) for kind in ("chat", "completions", "responses", "messages")] == [
        both,
        both,
        None,
        None,
    ]
    assert options("chat", streaming=False) is None
