"""Which counts of a server are taken, over all protocols: none that contradicts the answer."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from locust_llm.protocols.answer_parser import Completion
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.protocols.token_counts import SettledCounts, count_output_tokens
from locust_llm.records.outcomes import OK

STREAMS = ("chat", "completions", "responses", "messages")
NO_COUNTS: tuple[Any, ...] = (
    0,
    None,
    -1,
    2.5,
    True,
    "x",
    "",
    [],
    {},
    [1],
    {"a": 1},
    1e300,
    1 << 60,
)


def events(kind: str, usages: list[Any], texts: int = 3) -> list[Any]:
    """A stream of so many texts, and the usages behind them."""
    if kind == "chat":
        found = [{"choices": [{"index": 0, "delta": {"content": "a"}}]} for _ in range(texts)]
        found.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        return [*found, *({"choices": [], "usage": usage} for usage in usages)]
    if kind == "completions":
        found = [{"choices": [{"index": 0, "text": "a"}]} for _ in range(texts)]
        found.append({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})
        return [*found, *({"choices": [], "usage": usage} for usage in usages)]
    if kind == "responses":
        found = [{"type": "response.output_text.delta", "delta": "a"} for _ in range(texts)]
        last = (
            {"type": "response.completed", "response": {"status": "completed", "usage": usage}}
            for usage in usages
        )
        return [*found, *last]
    begin = {"type": "message_start", "message": {"content": [], "usage": {"output_tokens": 1}}}
    found = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}
    ] * texts
    last = (
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}
        for usage in usages
    )
    return [begin, *found, *last, {"type": "message_stop"}]


def usage(kind: str, read: Any, written: Any, **more: Any) -> dict[str, Any]:
    if kind in ("chat", "completions"):
        return {"prompt_tokens": read, "completion_tokens": written, **more}
    return {"input_tokens": read, "output_tokens": written, **more}


def answer(kind: str, messages: list[Any]) -> Completion:
    got = Completion(PROTOCOLS[kind])
    for read, message in enumerate(messages):
        got.add((read, "message", json.dumps(message).encode()))
    assert got.outcome() == (OK, ""), got.outcome()
    return got


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("none", NO_COUNTS, ids=str)
def test_what_is_no_count_is_not_taken_and_said(kind: str, none: Any) -> None:
    got = answer(kind, events(kind, [usage(kind, none, none)]))
    assert (got.input_tokens, got.output_tokens, len(got.chunk_reads)) == (None, None, 3)
    names = [name for name, _ in got.settled.rejected]
    told = isinstance(none, int | float | str) and none != "" and not isinstance(none, bool)
    assert all(
        text in ("0", "-1", "2.5", "a text", "out of range") for _, text in got.settled.rejected
    )
    assert names == (["input_tokens", "output_tokens"] if told else [])


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("none", NO_COUNTS, ids=str)
def test_what_is_no_count_erases_none_wherever_it_stands(kind: str, none: Any) -> None:
    good, bad = usage(kind, 7, 3), usage(kind, none, none)
    for usages in ([good, bad], [bad, good], [bad, good, bad]):
        got = answer(kind, events(kind, usages))
        assert (got.input_tokens, got.output_tokens, got.settled.rejected) == (7, 3, ())


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("seven", [7, 7.0, "7"])
def test_counts_as_other_types_are_counts(kind: str, seven: Any) -> None:
    got = answer(kind, events(kind, [usage(kind, seven, seven)]))
    assert (got.input_tokens, got.output_tokens) == (7, 7)


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize(
    "odd", [[], "", None, "x", 7, [{}], [{"cached_tokens": []}], {"cached_tokens": "x"}], ids=str
)
def test_details_of_another_type_cost_no_count(kind: str, odd: Any) -> None:
    names = (
        "prompt_tokens_details",
        "completion_tokens_details",
        "input_tokens_details",
        "output_tokens_details",
    )
    got = answer(kind, events(kind, [usage(kind, 7, 3, **dict.fromkeys(names, odd))]))
    assert (got.input_tokens, got.output_tokens, got.cached_tokens, got.reasoning_tokens) == (
        7,
        3,
        None,
        None,
    )


@pytest.mark.parametrize("kind", STREAMS)
def test_a_usage_of_another_type_is_none(kind: str) -> None:
    for odd in ([], "", "none", 0, 7, [1, 2]):
        assert answer(kind, events(kind, [odd])).output_tokens is None
    assert answer(kind, events(kind, [[usage(kind, 7, 3)]])).output_tokens == 3


def chat(*fields: dict[str, Any], **counts: Any) -> Completion:
    deltas = [{"choices": [{"index": 0, "delta": one}]} for one in fields]
    end = {
        "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, **counts},
    }
    return answer("chat", [*deltas, end])


WORDS = [{"content": "a"}] * 3
THOUGHTS = [{"reasoning_content": "a"}] * 5


@pytest.mark.parametrize(
    ("counts", "output", "reasoning", "rejected"),
    [
        ({"completion_tokens": 3, "total_tokens": 15, "reasoning": 5}, 8, 5, "3"),  # 15 - 7
        ({"completion_tokens": 3, "reasoning": 5}, 8, 5, "3"),  # more than all
        ({"completion_tokens": 3, "total_tokens": 10, "reasoning": 5}, 8, 5, "3"),
        ({"completion_tokens": 3, "total_tokens": 15}, 8, 5, "3"),  # Gemini names none
        ({"completion_tokens": 8, "total_tokens": 15, "reasoning": 5}, 8, 5, None),
        ({"completion_tokens": 8, "total_tokens": 15}, 8, None, None),
        ({"completion_tokens": 8, "total_tokens": 0, "reasoning": 5}, 8, 5, None),
        ({"completion_tokens": 0, "reasoning": 5}, None, 5, "0"),  # beside text
        ({"completion_tokens": 8, "reasoning": 0}, 8, 0, None),
    ],
)
def test_reasoning_that_is_no_part_of_the_output(
    counts: dict[str, Any], output: int | None, reasoning: int | None, rejected: str | None
) -> None:
    more = dict(counts)
    if "reasoning" in more:
        more["completion_tokens_details"] = {"reasoning_tokens": more.pop("reasoning")}
    got = chat(*THOUGHTS, *WORDS, **more)
    assert (got.output_tokens, got.reasoning_tokens) == (output, reasoning)
    assert got.settled.rejected == ((("output_tokens", rejected),) if rejected else ())
    assert got.hidden_tokens == 0


def test_reasoning_alone_is_all_of_an_answer() -> None:
    got = chat(*THOUGHTS, completion_tokens=0, completion_tokens_details={"reasoning_tokens": 60})
    assert (got.output_tokens, got.settled.rejected) == (60, (("output_tokens", "0"),))


def test_more_cached_tokens_than_the_prompt_has_are_none() -> None:
    got = chat(*WORDS, completion_tokens=3, prompt_tokens_details={"cached_tokens": 8})
    assert (got.cached_tokens, got.settled.rejected) == (None, (("cached_tokens", "8"),))


def test_hidden_reasoning_is_what_was_counted_and_did_not_come() -> None:
    details = {"completion_tokens_details": {"reasoning_tokens": 100}}
    assert chat(*WORDS, completion_tokens=103, **details).hidden_tokens == 100
    assert chat(*THOUGHTS, *WORDS, completion_tokens=103, **details).hidden_tokens == 0
    # <think> in the content
    inline = chat(*([{"content": "a"}] * 103), completion_tokens=103, **details)
    assert inline.hidden_tokens == 0
    summary = {"reasoning_details": [{"type": "reasoning.summary", "summary": "Hm"}]}
    assert chat(summary, *WORDS, completion_tokens=103, **details).hidden_tokens == 100
    assert chat(summary, *WORDS, completion_tokens=103).hidden_tokens is None
    encrypted = {"reasoning_details": [{"type": "reasoning.encrypted", "data": "AA"}]}
    assert chat(encrypted, *WORDS, completion_tokens=103).hidden_tokens is None
    assert chat(*WORDS, completion_tokens=3).hidden_tokens == 0


def test_a_usage_in_a_choice_or_in_a_field_of_the_servers_own() -> None:
    counts = {"prompt_tokens": 7, "completion_tokens": 4, "cached_tokens": 5}
    stop = {"index": 0, "delta": {}, "finish_reason": "stop"}
    text = {"choices": [{"index": 0, "delta": {"content": "a"}}]}
    for last in (
        {"choices": [{**stop, "usage": counts}]},
        {"choices": [stop], "x_groq": {"id": "a", "usage": counts}},
        {"choices": [stop], "usage": {"input_tokens": 7, "output_tokens": 4, "cached_tokens": 5}},
    ):
        got = answer("chat", [text, last])
        assert (got.input_tokens, got.output_tokens, got.cached_tokens) == (7, 4, 5)


def test_the_prompt_of_messages_is_its_parts_each_by_its_last_count() -> None:
    parts = {"input_tokens": 7, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 10}
    begin = {
        "type": "message_start",
        "message": {"content": [], "usage": {**parts, "output_tokens": 1}},
    }
    text = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}
    for later in (
        {"input_tokens": 0},
        {"input_tokens": 7},
        {},
        {**parts, "cache_read_input_tokens": 0},
    ):
        end = {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {**later, "output_tokens": 3},
        }
        got = answer("messages", [begin, text, end])
        assert (got.input_tokens, got.cached_tokens, got.output_tokens) == (117, 100, 3)
    end = {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn"},
        "usage": {"output_tokens": 0},
    }
    # 1 was said before anything was written
    assert answer("messages", [begin, text, end]).output_tokens is None


def test_a_zero_in_each_chunk_is_no_count_of_the_chunks() -> None:
    def chunk(tokens: int) -> dict[str, Any]:
        return {
            "choices": [{"index": 0, "delta": {"content": "a"}}],
            "usage": {"completion_tokens": tokens},
        }

    stop = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    got = answer("chat", [chunk(0), chunk(0), chunk(0), stop])
    assert (got.chunk_tokens, got.first_chunk_tokens, got.output_tokens) == ((), 1, None)
    got = answer(
        "chat", [chunk(0), chunk(0), chunk(0), {**stop, "usage": {"completion_tokens": 3}}]
    )
    assert (got.chunk_tokens, got.output_tokens, got.settled.rejected) == ((), 3, ())


def test_a_count_that_stands_still_is_none_of_a_long_answer() -> None:
    """A token of 128 characters, each by itself, may be; 1,000 chunks of one token may not."""
    assert answer("chat", events("chat", [usage("chat", 7, 1)], texts=128)).output_tokens == 1
    assert answer("chat", events("chat", [usage("chat", 7, 125)], texts=1000)).output_tokens == 125
    got = answer("chat", events("chat", [usage("chat", 7, 1)], texts=1000))
    assert (got.output_tokens, got.settled.rejected) == (None, (("output_tokens", "1"),))


def test_counts_under_two_names_are_those_that_are_not_zero() -> None:
    zeros, counts = (
        {"prompt_tokens": 0, "completion_tokens": 0},
        {"input_tokens": 7, "output_tokens": 3},
    )
    for both in (
        {**zeros, **counts},
        {"prompt_tokens": 7, "completion_tokens": 3, "input_tokens": 0, "output_tokens": 0},
    ):
        got = answer("chat", events("chat", [both]))
        assert (got.input_tokens, got.output_tokens, got.settled.rejected) == (7, 3, ())


def test_a_count_of_each_chunk_alone_is_none_of_the_answer() -> None:
    """It is one with each of three chunks. Three with each of them may be the answer's; so may one
    with its only chunk."""

    def counted(tokens: int, chunks: int, last: int | None = None) -> Completion:
        text = {
            "choices": [{"index": 0, "delta": {"content": "a"}}],
            "usage": usage("chat", 7, tokens),
        }
        stop = {
            "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
            "usage": usage("chat", 7, last),
        }
        return answer("chat", [text] * chunks + [stop])

    got = counted(1, 3)
    assert (got.input_tokens, got.output_tokens, got.chunk_tokens) == (7, None, ())
    assert got.settled.rejected == (("output_tokens", "1"),)
    assert (counted(1, 3, last=3).output_tokens, counted(1, 3, last=3).chunk_tokens) == (3, ())
    assert (counted(3, 3).output_tokens, counted(1, 1).output_tokens) == (3, 1)


@pytest.mark.parametrize("kind", ["embeddings", "rerank"])
def test_a_prompt_of_no_tokens_is_not_taken_of_vectors(kind: str) -> None:
    got = Completion(PROTOCOLS[kind])
    got.whole(
        json.dumps(
            {"data": [{"index": 0}], "usage": {"prompt_tokens": 0, "total_tokens": 0}}
        ).encode()
    )
    assert (got.outcome(), got.input_tokens, got.settled.rejected) == (
        (OK, ""),
        None,
        (("input_tokens", "0"),),
    )
    got = Completion(PROTOCOLS[kind])
    got.whole(
        json.dumps(
            {"data": [{"index": 0}], "usage": {"prompt_tokens": 0, "total_tokens": 7}}
        ).encode()
    )
    assert got.input_tokens == 7


NUMBERS = st.one_of(
    st.none(),
    st.integers(-5, 30),
    st.floats(),
    st.sampled_from(["7", "", "x", "1e3", [], {}, True]),
)


@examples(300)
@given(
    st.sampled_from(STREAMS), st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS), max_size=4)
)
def test_counts_that_are_taken_can_be_and_those_that_cannot_are_named(
    kind: str, numbers: list[Any]
) -> None:
    usages = [
        usage(kind, read, written, total_tokens=total,
            completion_tokens_details={"reasoning_tokens": thought},
              output_tokens_details={"reasoning_tokens": thought})
        for read, written, total, thought in numbers
    ]  # fmt: skip
    text = [{"choices": [], "usage": None}] if kind == "chat" else []
    got = Completion(PROTOCOLS[kind])
    for read, message in enumerate([*text, *events(kind, usages)]):
        got.add((read, "message", json.dumps(message, allow_nan=True).encode()))
    assert got.outcome()[0] in (OK, "truncated")
    settled = got.settled
    for count in (settled.input, settled.output):
        assert count is None or count > 0
    if settled.output is not None and settled.reasoning is not None:
        assert settled.reasoning <= settled.output
    assert {name for name, _ in settled.rejected} <= {
        "input_tokens",
        "output_tokens",
        "reasoning_tokens",
        "cached_tokens",
    }
    assert all(len(text.encode()) <= 40 for _, text in settled.rejected)


@pytest.mark.parametrize(
    ("input_", "output", "chunks", "generates", "counted"),
    [
        (7, 12, 5, True, (12, "usage", 3, 2)),
        (7, None, 5, True, (5, "chunks", None, 0)),
        (7, None, 0, True, (None, "", None, 0)),
        (7, None, 0, False, (None, "usage", None, 0)),
        (None, None, 0, False, (None, "", None, 0)),
    ],
)
def test_without_a_count_of_the_server_each_chunk_is_a_token(
    input_: int | None, output: int | None, chunks: int, generates: bool, counted: tuple[Any, ...]
) -> None:
    counts = SettledCounts(input_, output, 3, None, ())
    assert count_output_tokens(counts, chunks, 2, generates=generates) == counted
