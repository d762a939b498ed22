"""Answers of chat and plain completions: which events are chunks, which count wins, how they end;
hostile ones."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from locust_llm.protocols.answer_parser import Completion
from locust_llm.protocols.error_message import MAX_MESSAGE_BYTES, error_line, status_message
from locust_llm.protocols.first_token import classify_content
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.records.outcomes import FAILURES, OK
from locust_llm.text.sanitise import MESSAGE_BYTES


def of(kind: str = "chat", keep_text: bool = False) -> Completion:
    return Completion(PROTOCOLS[kind], keep_text)


def answer(*messages: Any, keep_text: bool = False) -> Completion:
    """The messages as the events of a stream, each in a read of its own; bytes are taken as they
    are."""
    got = of(keep_text=keep_text)
    for read, message in enumerate(messages):
        got.add(
            (
                read,
                "message",
                message if isinstance(message, bytes) else json.dumps(message).encode(),
            )
        )
    return got


def delta(index: int = 0, finish: str | None = None, **content: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": content, "finish_reason": finish}]}


STOP = delta(finish="stop")
AT_ONCE = "no content: the model ended at once (finish_reason stop)"


def counted(tokens: int | None, **more: Any) -> dict[str, Any]:
    """The usage event."""
    return {"choices": [], "usage": {"completion_tokens": tokens, **more}}


@pytest.mark.parametrize(
    "content",
    [
        {"content": "a"},
        {"content": [{"type": "text", "text": "a"}]},
        {"reasoning_content": "a"},
        {"reasoning": "a"},
        {"refusal": "a"},
        {"tool_calls": [{"index": 0, "id": "t"}]},
        {"tool_calls": [{"index": 0, "function": {"name": "f"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
        {"tool_calls": [{"index": 0, "custom": {"input": "ls"}}]},
        {"function_call": {"name": "f"}},
        {"function_call": {"arguments": "{"}},
        {"thinking": "a"},
        {"thinking_blocks": [{"type": "thinking", "thinking": "a"}]},
        {"reasoning_details": [{"type": "reasoning.text", "text": "a"}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}]},
        {"content": {"type": "text", "text": "a"}},
        {"images": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]},
        {"audio": {"data": "AAAA"}},
    ],
)
def test_these_are_chunks(content: dict[str, Any]) -> None:
    assert answer(delta(**content), STOP).chunk_reads == [0]


@pytest.mark.parametrize(
    "message",
    [
        delta(role="assistant"),
        delta(role="assistant", content=""),
        delta(role="assistant", content=None, tool_calls=[], reasoning=None),
        delta(content=[]),
        delta(content=[{"type": "text", "text": ""}]),
        delta(content=[{"type": "thinking", "thinking": []}]),
        delta(
            reasoning_details=[],
            thinking="",
            thinking_blocks=[{"type": "thinking", "thinking": "", "signature": "s"}],
        ),
        delta(reasoning_details=[{"type": "reasoning.encrypted", "data": "AAAA"}]),
        delta(reasoning_details=[{"type": "reasoning.text", "signature": "AAAA", "index": 0}]),
        delta(content=[{"type": "thinking", "signature": "AAAA"}]),
        delta(tool_calls=[{"index": 0}]),
        delta(
            tool_calls=[
                {"index": 0, "id": None, "type": None, "function": {"name": None, "arguments": ""}}
            ]
        ),
        delta(tool_calls=[{"index": 0, "id": "", "function": {"name": "", "arguments": {}}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": None}}]),
        delta(tool_calls=[None, 7]),
        delta(function_call={}),
        delta(function_call={"name": "", "arguments": ""}),
        delta(function_call=""),
        delta(images=[], audio={"id": "a"}),
        {"choices": [], "usage": {"completion_tokens": 1}},
        {"choices": [{"index": 0, "delta": None}]},
        {"choices": None},
        {},
        b"[DONE]",
        b"[DONE] ",
        b"",
        b" ",
    ],
)
def test_these_are_none(message: Any) -> None:
    got = answer(message, delta(content="a"), STOP)
    assert got.chunk_reads == [1]
    assert got.outcome() == (OK, "")


def test_an_event_with_two_choices_is_one_chunk() -> None:
    both = {
        "choices": [
            {"index": 0, "delta": {"content": "a"}},
            {"index": 1, "delta": {"reasoning": "b"}},
        ]
    }
    assert answer(both, both, STOP).chunk_reads == [0, 1]


def test_reasoning_comes_before_the_first_output() -> None:
    got = answer(
        delta(reasoning_content="hm"),
        delta(reasoning="hm"),
        delta(content="a"),
        delta(content="b"),
        STOP,
    )
    assert (got.chunk_reads, got.first_output) == ([0, 1, 2, 3], 2)


def test_continuous_counts_grow_and_the_first_tells_how_many_tokens_the_first_chunk_has() -> None:
    def with_usage(tokens: int, **content: Any) -> dict[str, Any]:
        return {**delta(**content), "usage": {"prompt_tokens": 9, "completion_tokens": tokens}}

    got = answer(
        with_usage(0, role="assistant"),
        with_usage(3, content="a b c"),
        with_usage(5, content="d e"),
        STOP,
    )
    assert (got.first_chunk_tokens, got.output_tokens, got.input_tokens) == (3, 5, 9)
    final = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 6}}
    assert answer(with_usage(5, content="a"), STOP, final).output_tokens == 6


def test_a_usage_event_for_each_choice_adds_up_and_one_that_is_repeated_does_not() -> None:
    def usage(tokens: int) -> dict[str, Any]:
        return {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": tokens}}

    first, second = delta(0, "stop", content="a"), delta(1, "stop", content="b")
    assert answer(first, usage(2), second, usage(3)).output_tokens == 5  # llama.cpp with n=2
    assert answer(first, second, usage(5)).output_tokens == 5  # vLLM with n=2
    assert answer(first, usage(5), usage(5)).output_tokens == 5
    assert answer(delta(content="a"), usage(1), usage(2), first, usage(3)).output_tokens == 3
    assert answer(first, usage(2), second, usage(3)).input_tokens == 9


def test_a_count_that_is_missing_later_does_not_erase_the_one_before() -> None:
    got = answer(
        {
            "choices": [],
            "usage": {"prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens": 2},
        },
        {
            "choices": [],
            "usage": {"prompt_tokens_details": {"cached_tokens": None}, "completion_tokens": None},
        },
        {
            "choices": [],
            "usage": {
                "completion_tokens_details": {"reasoning_tokens": 1},
                "prompt_tokens_details": None,
            },
        },
    )
    assert (got.cached_tokens, got.output_tokens, got.reasoning_tokens) == (4, 2, 1)


def test_counts_as_proxies_write_them() -> None:
    assert answer({"usage": {"completion_tokens": 6.0}}).output_tokens == 6
    for nonsense in (-1, 1e300, 1 << 60):
        assert answer({"usage": {"completion_tokens": nonsense}}).output_tokens is None


def test_an_empty_finish_reason_is_none_yet() -> None:
    got = answer(delta(content="a", finish=""), delta(content="b", finish=""))
    assert got.outcome()[0] == "truncated"


def test_how_answers_end() -> None:
    assert answer(delta(content="a")).outcome()[0] == "truncated"
    # [DONE] proves nothing
    assert answer(delta(content="a"), b"[DONE]").outcome()[0] == "truncated"
    assert answer(delta(content="a"), STOP).outcome() == (OK, "")
    assert answer(STOP).outcome()[0] == "empty"
    immediate = {"choices": [], "usage": {"completion_tokens": 1}}
    assert answer(STOP, immediate).outcome() == (OK, AT_ONCE)  # the token is the end of sequence
    assert answer(delta(content="a"), b"{broken", STOP).outcome()[0] == "malformed"


def test_an_end_at_once_is_ok_and_says_so_and_tokens_without_content_are_a_failure() -> None:
    assert answer(STOP, counted(1)).outcome() == (OK, AT_ONCE)
    assert answer(STOP, counted(0)).outcome() == (OK, AT_ONCE)
    assert answer(STOP, counted(2)).outcome() == (
        "empty",
        "no content, though 2 tokens were counted (finish_reason stop)",
    )
    assert answer(delta(finish="content_filter"), counted(0)).outcome()[0] == "empty"
    assert answer(STOP).outcome() == (
        "empty",
        "no content and no token count (finish_reason stop)",
    )
    both = [delta(0, "stop"), delta(1, "stop")]
    assert answer(*both, counted(2)).outcome() == (OK, AT_ONCE)  # each choice has its end
    assert answer(*both, counted(3)).outcome()[0] == "empty"


def test_tokens_of_reasoning_that_is_not_shown_are_no_content() -> None:
    hidden = counted(9, completion_tokens_details={"reasoning_tokens": 9})
    outcome, message = answer(delta(finish="length"), hidden).outcome()
    assert (outcome, message) == (
        "empty",
        "no content, though 9 tokens were counted, 9 of them hidden reasoning (finish_reason "
        "length)",
    )
    assert answer(delta(reasoning="hm"), delta(finish="length"), hidden).outcome() == (OK, "")


def test_of_several_choices_each_ends_or_the_stream_says_that_it_is_over() -> None:
    said = [delta(0, content="a"), delta(1, content="b"), delta(0, "stop")]
    assert answer(*said).outcome() == ("truncated", "1 of 2 choices ended without a finish_reason")
    assert answer(*said, delta(1, "stop")).outcome() == (OK, "")
    assert answer(*said, counted(2)).outcome() == (OK, "")  # LiteLLM
    assert answer(*said, b"[DONE]").outcome() == (OK, "")
    assert answer(counted(2), b"", *said).outcome()[0] == "truncated"  # that came before any end
    assert answer(*said).choices == 2


@pytest.mark.parametrize("reason", ["x" * 100_000, "sk-0123456789", "a\nb", "µ"])
def test_a_finish_reason_is_a_word_or_is_not_written_down(reason: str) -> None:
    got = answer(delta(content="a"), delta(finish=reason))
    assert (got.finish_reason, got.outcome()) == ("(no reason)", (OK, ""))
    for known in ("stop", "length", "tool_calls", "content_filter", "MAX_TOKENS", "stop sequence"):
        assert answer(delta(finish=known)).finish_reason == known


def test_errors_as_vllm_wrote_them_until_2025() -> None:
    old = {"object": "error", "message": "engine died", "type": "x", "code": 400}
    assert answer(delta(content="a"), old).outcome() == ("stream_error", "engine died")
    got = of()
    got.whole(json.dumps(old).encode())
    assert got.outcome() == ("stream_error", "engine died")


def test_no_error_is_as_long_as_a_picture() -> None:
    """To search 33 MB for one takes a second, in which nothing else happens."""
    assert of().look_for_error(
        json.dumps({"error": "no", "pad": "x" * (MAX_MESSAGE_BYTES - 30)}).encode()
    )
    assert not of().look_for_error(
        json.dumps({"error": "no", "pad": "x" * MAX_MESSAGE_BYTES}).encode()
    )


def test_what_was_wrong_is_kept_and_else_what_came_last() -> None:
    good, bad = json.dumps(delta(content="a")).encode(), b'{"error": "died"}'
    got = answer(good, bad, b"{broken", STOP, b"[DONE]")
    assert got.broken == bad
    got = answer(b"[DONE]", good, b"[DONE]")
    assert (got.broken, got.last) == (b"", good)


def plain(*messages: Any, kind: str = "completions") -> Completion:
    got = of(kind, True)
    for read, message in enumerate(messages):
        got.add((read, "message", json.dumps(message).encode()))
    return got


def test_a_plain_completion_says_its_text_in_the_choice() -> None:
    texts = [
        {"choices": [{"index": 0, "text": text, "finish_reason": None}]} for text in ("", "a", " b")
    ]
    end = {
        "choices": [{"index": 0, "text": "", "finish_reason": "length"}],
        "usage": {"completion_tokens": 2},
    }
    got = plain(*texts, end)
    assert (got.chunk_reads, got.text, got.outcome(), got.output_tokens) == (
        [1, 2],
        ["a", " b"],
        (OK, ""),
        2,
    )
    # as an answer of the other kind it says nothing
    assert plain(*texts, end, kind="chat").outcome()[0] == "empty"
    got = of("completions", True)
    got.whole(json.dumps({"choices": [{"text": "abc", "finish_reason": "stop"}]}).encode())
    assert (got.outcome(), got.text) == ((OK, ""), ["abc"])


def test_logprobs_change_no_count() -> None:
    tokens = [{"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}] * 2
    choice = {
        "index": 0,
        "delta": {"content": "aa"},
        "logprobs": {"content": tokens},
        "finish_reason": None,
    }
    got = answer({"choices": [choice]}, STOP, counted(2))
    assert (len(got.chunk_reads), got.output_tokens, got.outcome()) == (1, 2, (OK, ""))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ({"message": "engine died", "code": 500}, "engine died"),
        ({"code": 500}, "{'code': 500}"),
        ("text  of\n an error", "text of an error"),
        (["a"], "a"),
    ],
)
def test_errors_of_every_shape_in_a_stream(error: Any, message: str) -> None:
    assert answer(delta(content="a"), {"error": error}, b"[DONE]").outcome() == (
        "stream_error",
        message,
    )
    assert answer({"error": error}, delta(content="a"), STOP).outcome() == ("stream_error", message)


def test_an_event_named_error_is_one_and_an_empty_error_field_is_none() -> None:
    got = of()
    got.add((0, "error", b'{"code": 500}'))
    assert got.outcome() == ("stream_error", "{'code': 500}")
    for data, said in (
        (b"overloaded", "overloaded"),
        (b'{"error": "no"}', "no"),
        (b"", "an event named error"),
    ):
        got = of()
        got.add((0, "error", data))
        assert (got.outcome(), got.broken) == (("stream_error", said), data)
    assert answer({**delta(content="a"), "error": None}, {**STOP, "error": ""}).outcome() == (
        OK,
        "",
    )


def test_half_a_character_and_bad_utf8_lose_no_chunk() -> None:
    # JavaScript cuts strings between surrogates
    half = rb'{"choices": [{"delta": {"content": "\ud83d"}}]}'
    other = rb'{"choices": [{"delta": {"content": "\ude00"}}]}'
    bad = b'{"choices": [{"delta": {"content": "a\xff"}}]}'
    got = answer(half, other, bad, STOP, keep_text=True)
    assert (got.chunk_reads, got.outcome()) == ([0, 1, 2], (OK, ""))
    assert got.text is not None
    "".join(got.text).encode()
    assert answer(rb'{"error": "\ud83d no"}').outcome() == (
        "stream_error",
        "\N{REPLACEMENT CHARACTER} no",
    )


def test_a_whole_answer() -> None:
    got = of(keep_text=True)
    body = {
        "choices": [{"message": {"content": "abc"}, "finish_reason": "stop"}],
        "usage": {"completion_tokens": 3, "prompt_tokens": 5},
    }
    got.whole(json.dumps(body).encode())
    assert (got.outcome(), got.output_tokens, got.text, got.chunk_reads) == (
        (OK, ""),
        3,
        ["abc"],
        [],
    )
    for other, outcome in ((b"", "malformed"), (b"[]", "malformed"), (b'{"a": 1}', "malformed"),
        (b"<html>", "malformed"),
                          (b'{"error": {"message": "no"}}', "stream_error"),
                          (b'{"choices": []}', "truncated")):  # fmt: skip
        got = of()
        got.whole(other)
        assert got.outcome()[0] == outcome


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "no such model", "code": 404}}', "no such model"),
        (b'{"error": "Unauthorized"}', "Unauthorized"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"message": "slow down"}', "slow down"),
        (b'{"detail": [{"loc": ["body"]}]}', "[{'loc': ['body']}]"),
        (b"Internal Server Error\n", "Internal Server Error"),
        (b'"text"', "text"),
        (b"", ""),
        (b"\xff\x1b[31mred\x00", "\N{REPLACEMENT CHARACTER}red"),
    ],
)
def test_what_an_error_response_says(body: bytes, message: str) -> None:
    assert status_message(body) == message


def test_messages_are_one_line_of_bounded_length_that_no_terminal_obeys() -> None:
    line = error_line(b"\x1b]0;title\x07a\r\nb\x9b" + b"x" * 100_000)
    assert line.isprintable()
    assert len(line) <= MESSAGE_BYTES


TYPES = ["response.output_text.delta", "response.function_call_arguments.delta",
    "response.completed", "tool_use",
         "error", "response.output_item.added", "content_block_delta", "content_block_start",
         "message_start"]  # fmt: skip
JSON = st.recursive(
    st.sampled_from(TYPES) | st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = ["choices", "delta", "text", "object", "function_call",
          "message", "usage", "error", "content", "finish_reason", "index", "tool_calls",
          "reasoning",
          "type", "output", "item", "response", "content_block", "summary", "thinking", "input",
          "stop_reason",
          "completion_tokens", "prompt_tokens", "completion_tokens_details", "reasoning_tokens",
          "detail"]  # fmt: skip
SHAPES = st.recursive(
    JSON,
    lambda inner: (
        st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4) | st.lists(inner, max_size=2)
    ),
)


@examples(300)
@given(st.lists(SHAPES, max_size=4), st.binary(max_size=30))
def test_no_json_and_no_bytes_raise_and_the_counts_stay_counts(
    messages: list[Any], noise: bytes
) -> None:
    got = answer(*messages, noise)
    outcome, message = got.outcome()
    assert outcome == OK or outcome in FAILURES
    assert message.isprintable()
    for value in (
        got.output_tokens,
        got.input_tokens,
        got.cached_tokens,
        got.reasoning_tokens,
        got.first_chunk_tokens,
    ):
        assert value is None or (isinstance(value, int) and value >= 0)
    for kind in PROTOCOLS:
        one = of(kind)
        one.whole(json.dumps(messages).encode())
        one.outcome()
        many = of(kind)
        for message in messages:
            many.add((0, "message", json.dumps(message).encode()))
        many.outcome()
    assert status_message(json.dumps(messages).encode()).isprintable()
    assert status_message(noise).isprintable()


def test_nesting_without_end_is_malformed() -> None:
    deep = b'{"error":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert answer(deep).outcome()[0] == "malformed"
    assert status_message(deep).startswith('{"error":[[[')
    for depth in range(500, 1100, 50):  # where decoding still goes, and printing may not
        nested = b'{"error":' + b"[" * depth + b"]" * depth + b"}"
        assert answer(nested).outcome()[0] in ("stream_error", "malformed")
        status_message(nested)


@pytest.mark.parametrize("reason", ["abort", "error", "timeout", "cancelled"])
def test_a_finish_reason_that_says_broken_off_is_a_failure_and_the_chunks_stay(reason: str) -> None:
    answer = of()
    answer.add(
        (0, "message", b'{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}')
    )
    answer.add(
        (
            1,
            "message",
            b'{"choices":[{"index":0,"delta":{},"finish_reason":"%s"}]}' % reason.encode(),
        )
    )
    assert answer.outcome() == ("stream_error", f"finish_reason {reason}")
    assert answer.chunk_reads == [0]


def with_count(tokens: int | None, index: int = 0, **content: Any) -> dict[str, Any]:
    return {**delta(index, **content), "usage": {"completion_tokens": tokens}}


def test_tokens_of_each_chunk_as_the_server_counts_them() -> None:
    """A count with an event that is no chunk (a role, half of a letter) is of the chunk after
    it."""
    several = [with_count(tokens, content="x") for tokens in (1, 4, 7, 8)]
    got = answer(
        with_count(0, role="assistant"),
        *several,
        with_count(9),
        with_count(11, content="x"),
        counted(12),
    )
    assert got.chunk_tokens == ((1, 1), (3, 2), (1, 1), (3, 1))
    assert (got.first_chunk_tokens, got.output_tokens) == (1, 12)
    assert answer(with_count(5, content="x"), with_count(5, content="y")).chunk_tokens == (
        (5, 1),
        (0, 1),
    )


@pytest.mark.parametrize(
    "messages",
    [
        [with_count(1, content="x"), delta(content="y")],  # one is missing
        [with_count(2, content="x"), with_count(1, content="y")],  # it falls
        [with_count(1, content="x"), with_count(1, 1, content="y")],  # each choice has its own
        [with_count(None, content="x")],
        [with_count(2**40, content="x")],
        [],
    ],
)
def test_counts_that_do_not_say_what_each_chunk_has(messages: list[Any]) -> None:
    assert answer(*messages, STOP).chunk_tokens == ()


@pytest.mark.parametrize("kind", [[], {}, ["thinking"], 1, None])
def test_a_type_of_content_that_is_no_text_fails_nothing(kind: object) -> None:
    """The inner text counts as output, as with any part of an unknown type."""
    assert classify_content({"type": kind, "text": "a"}) == (True, False)
