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
    assert len(tokens.chat_pieces([("user", "Hello there")])) == 1 + (4 + 2 + 1) + 4
    both = tokens.chat_pieces([("system", "Be brief."), ("user", "Hello there")])
    assert len(both) == 1 + (4 + 3 + 1) + (4 + 2 + 1) + 4


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), st.text())))
def test_ids_are_as_many_as_counted(messages):
    pieces = tokens.chat_pieces(messages)
    assert len(tokens.encode(pieces)) == len(pieces)
    assert len(pieces) == 5 + sum(5 + tokens.count_text(text) for _, text in messages)
    for _, text in messages:
        assert len(tokens.prompt_pieces(text)) == 1 + tokens.count_text(text)
        assert len(tokens.prompt_pieces(text, add_special_tokens=False)) == tokens.count_text(text)


def test_ids_tell_pieces_apart_and_special_tokens_from_text():
    ids = tokens.encode(tokens.chat_pieces([("user", "<|eot_id|> one two one")]))
    assert ids[0] == 128_000
    assert ids.count(128_009) == 1  # the text's own is none
    assert ids[-6] == ids[-8] != ids[-7]  # one two one


def test_block_keys_are_those_of_whole_blocks_and_of_all_before_them():
    first = ["a"] * 16 + ["b"] * 16 + ["c"] * 8
    assert len(tokens.block_keys(first)) == 2
    assert tokens.block_keys(first) == tokens.block_keys(first[:32])
    other_start = tokens.block_keys(["x", *first[1:]])
    assert not set(other_start) & set(tokens.block_keys(first))
    assert tokens.block_keys(first[:31]) == tokens.block_keys(first)[:1]


def test_the_next_turn_of_a_conversation_begins_with_the_blocks_of_this_one():
    asked = [("system", "Be brief."), ("user", "Tell me " + "more and " * 20)]
    answer = tokens.WORDS[3:40]
    keys = tokens.block_keys([*tokens.chat_pieces(asked), *answer])
    turn = tokens.chat_pieces([*asked, ("assistant", " ".join(answer)), ("user", "And then?")])
    assert tokens.block_keys(turn)[: len(keys)] == keys


def test_what_the_simulator_says_is_one_token_a_word():
    assert all(tokens.count_text(word) == 1 and word.isascii() and word.isalpha() for word in tokens.WORDS)
    assert tokens.count_text(" ".join(tokens.WORDS)) == len(tokens.WORDS)


def test_counting_a_long_prompt_does_not_hold_up_a_server():
    text = "the simulator counts " * 4000  # 16,000 tokens
    assert tokens.count_text(text) == 16_000
    took = []
    for _ in range(5):
        start = time.perf_counter()
        tokens.count_text(text)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.1  # 2 ms where nothing else runs
