"""Counts by hand, and that /tokenize can't disagree with usage."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.simulator import tokens


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("   ", 0),
        ("hello", 1),
        ("Hello there", 2),
        ("sixsix", 1),
        ("sevensn", 2),
        ("internationalisation", 4),  # 20 letters
        ("Stop! No...", 6),  # Stop ! No . . .
        ("12 1234567", 4),  # 12, 123 456 7
        ("a\n\n\nb", 3),
        ("über", 2),  # what is not ASCII is a token of its own
        ("日本", 2),
        ("snake_case", 3),
    ],
)
def test_count_of_a_text(text, count):
    assert tokens.count_text(text) == count


def test_a_chat_costs_its_template():
    # begin of text; 4 of header, 2 of text, 1 end of turn; 4 of the answer's header
    assert tokens.count_chat([("user", "Hello there")]) == 1 + (4 + 2 + 1) + 4
    assert tokens.count_chat([("system", "Be brief."), ("user", "Hello there")]) == 1 + (4 + 3 + 1) + (4 + 2 + 1) + 4


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), st.text())))
def test_ids_are_as_many_as_counted(messages):
    assert len(tokens.encode_chat(messages)) == tokens.count_chat(messages)
    for _, text in messages:
        assert len(tokens.encode_text(text)) == tokens.count_text(text)
        assert len(tokens.encode_prompt(text)) == 1 + tokens.count_text(text)
        assert len(tokens.encode_prompt(text, add_special_tokens=False)) == tokens.count_text(text)


def test_what_the_simulator_says_is_one_token_a_word():
    assert all(tokens.count_text(word) == 1 and word.isascii() and word.isalpha() for word in tokens.WORDS)
    assert tokens.count_text(" ".join(tokens.WORDS)) == len(tokens.WORDS)


def test_counting_a_long_prompt_takes_milliseconds():
    text = "the simulator counts " * 4000  # 16,000 tokens
    assert tokens.count_text(text) == 16_000
    took = []
    for _ in range(5):
        start = time.perf_counter()
        tokens.count_text(text)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.010
