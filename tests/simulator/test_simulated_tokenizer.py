"""Counts by hand, and that /tokenize can't disagree with usage."""

import struct
import time
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.simulator import simulated_tokenizer


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
    assert simulated_tokenizer.count_text(text) == count


def test_a_chat_costs_its_template():
    # begin of text; 4 of header, 2 of text, 1 end of turn; 4 of the answer's header
    assert len(simulated_tokenizer.chat_pieces([("user", "Hello there")])) == 1 + (4 + 2 + 1) + 4
    both = simulated_tokenizer.chat_pieces([("system", "Be brief."), ("user", "Hello there")])
    assert len(both) == 1 + (4 + 3 + 1) + (4 + 2 + 1) + 4


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), st.text())))
def test_ids_are_as_many_as_counted(messages):
    pieces = simulated_tokenizer.chat_pieces(messages)
    assert len(simulated_tokenizer.encode_text(pieces)) == len(pieces)
    assert len(pieces) == 5 + sum(5 + simulated_tokenizer.count_text(text) for _, text in messages)
    for _, text in messages:
        assert len(simulated_tokenizer.prompt_pieces(text)) == 1 + simulated_tokenizer.count_text(
            text
        )
        assert len(
            simulated_tokenizer.prompt_pieces(text, add_special_tokens=False)
        ) == simulated_tokenizer.count_text(text)


def test_ids_tell_pieces_apart_and_special_tokens_from_text():
    ids = simulated_tokenizer.encode_text(
        simulated_tokenizer.chat_pieces([("user", "<|eot_id|> one two one")])
    )
    assert ids[0] == 128_000
    assert ids.count(128_009) == 1  # the text's own is none
    assert ids[-6] == ids[-8] != ids[-7]  # one two one


def test_block_keys_are_those_of_whole_blocks_and_of_all_before_them():
    first = ["a"] * 16 + ["b"] * 16 + ["c"] * 8
    assert len(simulated_tokenizer.block_keys(first)) == 2
    assert simulated_tokenizer.block_keys(first) == simulated_tokenizer.block_keys(first[:32])
    other_start = simulated_tokenizer.block_keys(["x", *first[1:]])
    assert not set(other_start) & set(simulated_tokenizer.block_keys(first))
    assert simulated_tokenizer.block_keys(first[:31]) == simulated_tokenizer.block_keys(first)[:1]


def test_the_next_turn_of_a_conversation_begins_with_the_blocks_of_this_one():
    asked = [("system", "Be brief."), ("user", "Tell me " + "more and " * 20)]
    answer = simulated_tokenizer.WORDS[3:40]
    keys = simulated_tokenizer.block_keys([*simulated_tokenizer.chat_pieces(asked), *answer])
    turn = simulated_tokenizer.chat_pieces(
        [*asked, ("assistant", " ".join(answer)), ("user", "And then?")]
    )
    assert simulated_tokenizer.block_keys(turn)[: len(keys)] == keys


def test_what_the_simulator_says_is_one_token_a_word():
    assert all(
        simulated_tokenizer.count_text(word) == 1 and word.isascii() and word.isalpha()
        for word in simulated_tokenizer.WORDS
    )
    assert simulated_tokenizer.count_text(" ".join(simulated_tokenizer.WORDS)) == len(
        simulated_tokenizer.WORDS
    )


def test_counting_a_long_prompt_does_not_hold_up_a_server():
    text = "the simulator counts " * 4000  # 16,000 tokens
    assert simulated_tokenizer.count_text(text) == 16_000
    took = []
    for _ in range(5):
        start = time.perf_counter()
        simulated_tokenizer.count_text(text)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.1  # 2 ms where nothing else runs


def data_url(head: bytes, size: int = 0) -> str:
    return "data:application/octet-stream;base64," + b64encode(head.ljust(size, b"\0")).decode()


PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 280, 57)
JPEG = b"\xff\xd8\xff\xe0\0\x04ab\xff\xc0\0\x11\x08" + struct.pack(">HH", 57, 280)
WAV = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0" + struct.pack("<HHIIHH", 1, 1, 16_000, 32_000, 2, 16)


@pytest.mark.parametrize(
    ("part", "count"),
    [
        # 280 / 28, and 57 / 28 rounded up
        ({"type": "image_url", "image_url": {"url": data_url(PNG)}}, 10 * 3),
        ({"type": "input_image", "image_url": data_url(JPEG)}, 10 * 3),
        (
            {
                "type": "image",
                "source": {"type": "base64", "data": data_url(PNG).partition(",")[2]},
            },
            10 * 3,
        ),
        ({"type": "image_url", "image_url": {"url": "http://x/a.png"}}, 1024),
        ({"type": "image_url", "image_url": None}, 1024),
        # two seconds
        (
            {
                "type": "input_audio",
                "input_audio": {"data": data_url(WAV, 64_000).partition(",")[2]},
            },
            50,
        ),
        (
            {
                "type": "input_audio",
                "input_audio": {"data": data_url(b"ID3", 16_000).partition(",")[2]},
            },
            25,
        ),
        ({"type": "text", "text": "Hello there"}, 2),
        ({}, 0),
    ],
)
def test_a_picture_is_tokens_by_its_size_and_a_sound_by_its_length(part, count):
    assert simulated_tokenizer.count_text(simulated_tokenizer.part_text(part)) == count


def test_another_picture_is_other_tokens():
    """Else a prefix cache would take one for the other."""
    one, same, other = (
        simulated_tokenizer.part_text({"type": "input_image", "image_url": data_url(PNG + end)})
        for end in (b"a", b"a", b"b")
    )
    assert one == same != other
