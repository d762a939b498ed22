"""Token margins: tokens and their margins, in the forms of chat and of plain completions."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from locust_llm.answers.reference_answer import AnswerToken
from locust_llm.answers.token_margins import read_token_margins


def read(event: Any) -> list[AnswerToken]:
    return [*read_token_margins(json.dumps(event).encode())]


def test_the_margin_is_to_the_most_likely_other_token() -> None:
    top = [{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": -2.5}]
    chosen = {"token": "a", "logprob": -0.1, "top_logprobs": top}
    alone = {"token": "c", "logprob": -1}
    found = read({"id": "x", "choices": [{"index": 0, "logprobs": {"content": [chosen, alone]}}]})
    assert found == [AnswerToken("a", -0.1, pytest.approx(2.4)), AnswerToken("c", -1, None)]


def test_plain_completions_have_three_lists() -> None:
    logprobs = {
        "tokens": ["a", "b"],
        "token_logprobs": [-0.5, None],
        "top_logprobs": [{"a": -0.5, "z": -0.75}, None],
    }
    found = read({"choices": [{"index": 0, "logprobs": logprobs}]})
    assert found == [AnswerToken("a", -0.5, 0.25), AnswerToken("b", None, None)]


@pytest.mark.parametrize(
    "event",
    [
        {"choices": [{"index": 1, "logprobs": {"content": [{"token": "b", "logprob": -1}]}}]},
        {"choices": "x"},
        {"choices": []},
        {"choices": [{"logprobs": None}]},
        [],
        "[DONE]",
    ],
)
def test_another_choice_and_other_forms_have_no_tokens(event: Any) -> None:
    assert read(event) == []


events = st.recursive(
    st.none() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "logprobs", "content", "token", "top_logprobs", "tokens"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(st.binary(max_size=60) | events.map(lambda value: json.dumps(value).encode()))
@examples(300)
def test_nothing_that_a_server_writes_raises(data: bytes) -> None:
    assert all(isinstance(token, AnswerToken) for token in read_token_margins(data))
