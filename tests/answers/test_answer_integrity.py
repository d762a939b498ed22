"""What is found in one answer, fault by fault, and what sound servers do that looks like a
fault."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.answers.answer_integrity import (
    ModelNames,
    find_answer_faults,
    is_same_model,
    name_text_difference,
)
from locust_llm.answers.fault_names import FAULT_SENTENCES
from locust_llm.answers.received_answer import (
    AnswerRequested,
    EventOrder,
    EventReader,
    ReceivedAnswer,
)

ASKED = AnswerRequested(model="small", max_tokens=4)
SOUND = {
    "text": "the river runs slow",
    "finish_reason": "length",
    "prompt_tokens": 12,
    "completion_tokens": 4,
    "total_tokens": 16,
}


def chunk(text="x", id_="a", model="small", logprob=False, **more):
    listed = {"content": [{"token": text, "logprob": -0.1}]} if logprob else None
    choice = {"index": 0, "delta": {"content": text}, "logprobs": listed}
    return {"id": id_, "model": model, "choices": [choice], **more}


def read(*events):
    reader = EventReader()
    for event in events:
        reader.add(event if isinstance(event, bytes) else json.dumps(event).encode())
    return reader


def faults(asked=ASKED, models=None, events=None, **changes):
    answer = ReceivedAnswer(**{**SOUND, **changes}, events=events and read(*events))
    return find_answer_faults(answer, asked, models or ModelNames())


def test_every_fault_has_one_short_sentence():
    for name, sentence in FAULT_SENTENCES.items():
        assert name == name.lower()
        assert sentence.endswith(".")
        assert len(sentence.split()) <= 25


def test_a_sound_answer():
    assert faults(events=[chunk()] * 4) == ()
    assert faults(text="", completion_tokens=None, total_tokens=None) == ()


# -- ids -------------------------------------------------------------------------------------------


def test_a_stream_whose_id_switches():
    assert faults(events=[chunk()] * 3 + [chunk(id_="b")] * 3) == ("id_switched",)
    assert faults(events=[*[chunk()] * 3, chunk(id_="b"), *[chunk()] * 8]) == ("id_switched",)


@pytest.mark.parametrize(
    "events",
    [
        [chunk(id_=str(number)) for number in range(20)],  # an id for each event
        [chunk(id_=str(number // 2)) for number in range(20)],
        [{"id": "", "model": "", "choices": []}, *[chunk()] * 4],  # Azure's first event
        [*[chunk()] * 4, {"id": "b", "choices": [], "usage": {"prompt_tokens": 1}}],
        [chunk(id_=None)] * 3,
    ],
)
def test_ids_that_are_no_fault(events):
    assert faults(events=events) == ()


def test_ids_in_responses():
    deltas = [{"type": "x.delta", "item_id": f"i{n}", "sequence_number": n} for n in (1, 2, 3)]
    first = {"response": {"id": "r1"}, "sequence_number": 0}
    same = {"response": {"id": "r1"}, "sequence_number": 4}
    other = {"response": {"id": "r2"}, "sequence_number": 4}
    assert faults(events=[first, *deltas, same, {"response": {"id": "r1"}}]) == ()
    assert faults(events=[first, *deltas, other, {"response": {"id": "r2"}}]) == ("id_switched",)


# -- models ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "answered", "same"),
    [
        ("gpt-5", "gpt-5-2026-01-31", True),
        ("openai/gpt-5", "gpt-5", True),
        ("Small", "small", True),
        ("llama3", "llama3:8b", True),
        ("gpt-5", "gpt-5-mini", False),
        ("small", "large", False),
    ],
)
def test_names_of_one_model(asked, answered, same):
    assert is_same_model(asked, answered) is same


def test_a_model_that_was_not_asked_for():
    models = ModelNames({"small": "s", "alias": "s", "large": "l"})
    assert faults(models=models, events=[chunk(model="large")]) == ("wrong_model",)
    assert faults(models=models, events=[chunk(model="alias")]) == ()
    assert faults(models=models, events=[chunk(), chunk(model="large")]) == ("wrong_model",)


def test_a_name_outside_of_the_list_is_right_if_it_was_there_first():
    models = ModelNames()
    assert faults(models=models, events=[chunk(model="/models/x.gguf")]) == ()
    assert faults(models=models, events=[chunk(model="/models/x.gguf")]) == ()
    assert faults(models=models, events=[chunk(model="/models/y.gguf")]) == ("wrong_model",)
    models = ModelNames()
    assert faults(models=models, events=[chunk(model="small")]) == ()
    assert faults(models=models, events=[chunk(model="/models/y.gguf")]) == ("wrong_model",)
    assert faults(models=models, events=[chunk(model="small-2026-01-01")]) == ()


# -- counts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"completion_tokens": 5, "total_tokens": 17},  # more than asked
        {"total_tokens": 15},
        {"text": "x" * 513},  # no token has 128 characters
    ],
)
def test_usage_that_does_not_fit(changes):
    assert faults(**changes) == ("wrong_usage",)


@pytest.mark.parametrize(
    "changes",
    [
        {"total_tokens": 20},  # with hidden reasoning
        {"completion_tokens": 3, "total_tokens": 15, "finish_reason": "stop"},
        {"completion_tokens": 3, "total_tokens": 15},  # the context may be full
        {"completion_tokens": 9, "total_tokens": 21, "reasoning_tokens": 5},
        {"completion_tokens": 8, "total_tokens": 20, "choices": 2},
        {"completion_tokens": 8, "total_tokens": 16, "choices": 2},  # llama.cpp
        {"completion_tokens": 0, "total_tokens": 12, "finish_reason": "stop"},
    ],
)
def test_usage_of_sound_servers(changes):
    assert faults(**changes) == ()


# -- tool calls and logprobs -----------------------------------------------------------------------


def test_arguments_of_tools():
    called = {"finish_reason": "tool_calls", "text": ""}
    assert faults(tool_arguments=('{"city": "Par',), **called) == ("tool_arguments",)
    assert faults(tool_arguments=("[1]",), **called) == ("tool_arguments",)
    assert faults(tool_arguments=('{"city": "Paris"}', ""), **called) == ()
    assert faults(tool_arguments=('{"city": "Par',), finish_reason="length", text="") == ()


def listed(text, *tokens):
    events = [chunk(token, logprob=True) for token in tokens]
    return faults(events=events, text=text)


def test_the_tokens_of_logprobs_join_to_the_text():
    assert listed("a b c d", "a", " b", " c", " d") == ()
    assert listed("a b c d", "▁a", "▁b", "▁c", "▁d") == ()
    assert listed("a b x d", "a", " b", " c", " d") == ("logprobs_text",)
    stopped = {"finish_reason": "stop", "completion_tokens": 2, "total_tokens": 14}
    events = [chunk("a", logprob=True), chunk("<eot>", logprob=True)]
    assert faults(events=events, text="a", **stopped) == ()


def test_the_number_of_logprobs():
    assert listed("a b d", "a", " b", " d") == ("lost_delta",)
    assert listed("a b b c d", "a", " b", " b", " c", " d") == ("doubled_delta",)
    four = [chunk(token, logprob=True) for token in ("a", "b", "c", "d")]
    assert faults(events=four, text="abcd", completion_tokens=6, total_tokens=18) == (
        "wrong_usage",
    )
    # what stands before the JSON of a schema is held back, but not all of its tokens (llama.cpp)
    assert listed('{"a"', " ``", '{"', 'a"') == ()
    assert listed('{"a"', "\n\n", '{"', 'a"') == ()
    assert faults(events=four[:3], text="abcé") == ()  # half a character is in no list


def test_a_server_may_list_bytes():
    tokens = [{"token": "\ufffd", "bytes": [0xC3]}, {"token": "\ufffd", "bytes": [0xA9]}]
    event = {"choices": [{"logprobs": {"content": tokens}}]}
    assert read(event).logprob_tokens[1].bytes == [0xA9]
    assert faults(events=[event], text="é", completion_tokens=2, total_tokens=14,
                  finish_reason="stop") == ()  # fmt: skip


# -- deltas ----------------------------------------------------------------------------------------


def order(*numbers):
    found = EventOrder()
    for number in numbers:
        found.add(number)
    return found.has_lost, found.has_doubled, found.has_reordered


def test_numbered_events():
    assert order(*range(8)) == (False, False, False)
    assert order(0, 1, 2, 4, 5, 6, 7) == (True, False, False)
    assert order(0, 1, 2, 2, 3, 4, 5) == (False, True, False)
    assert order(0, 1, 2, 4, 3, 5, 6, 7, 8) == (False, False, True)


def test_events_that_have_no_real_numbers():
    assert order(*[0] * 9) == (False, False, False)
    assert order(*range(0, 90, 10)) == (False, False, False)


def test_faults_by_the_numbers_of_events():
    events = [{"sequence_number": number} for number in (0, 1, 2, 4, 5, 6)]
    assert faults(events=events) == ("lost_delta",)


def test_counts_with_each_chunk():
    texts = ("a", "b", "c", "d", "e")
    assert faults(chunk_texts=texts, tokens_so_far=(1, 2, 4, 5, 6)) == ()
    assert faults(chunk_texts=texts, tokens_so_far=(1, 2, 4, 3, 5)) == ("reordered_delta",)
    twice = ("a", "b", "b", "c", "d")
    assert faults(chunk_texts=twice, tokens_so_far=(1, 2, 2, 3, 4)) == ("doubled_delta",)
    assert faults(chunk_texts=twice, tokens_so_far=(1, 2, 3, 4, 5)) == ()
    assert faults(chunk_texts=("a",) * 5, tokens_so_far=(1,) * 5) == ()


TEXT = "one two three four five six"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (TEXT, ""),
        ("one two four five six", "lost_delta"),
        ("one two three three four five six", "doubled_delta"),
        ("one three two four five six", "reordered_delta"),
        ("one two three", ""),  # it ended early
        ("one two three seven five six", ""),
        ("one two red green blue", ""),
        ("one two three and four five six", ""),
        ("", ""),
    ],
)
def test_a_difference_that_a_delta_explains(text, name):
    assert name_text_difference(TEXT, text) == name


WORDS = st.lists(st.text("abc ", min_size=1, max_size=6), min_size=4, max_size=12)


@given(WORDS, st.integers(1, 2))
def test_any_delta_that_is_lost_doubled_or_swapped_is_named(words, place):
    whole = "".join(words)
    lost = "".join([*words[:place], *words[place + 1 :]])
    doubled = "".join([*words[: place + 1], *words[place:]])
    swapped = "".join([*words[:place], words[place + 1], words[place], *words[place + 2 :]])
    cut = whole.startswith(lost)
    assert name_text_difference(whole, lost) == ("" if cut else "lost_delta")
    assert name_text_difference(whole, doubled) == "doubled_delta"
    assert name_text_difference(whole, swapped) == ("" if swapped == whole else "reordered_delta")


# -- broken text -----------------------------------------------------------------------------------


def test_replacement_characters():
    assert faults(text="a\ufffdb c") == ("broken_text",)
    assert faults(text="a b c\ufffd") == ()  # half a character, cut by the length
    assert faults(text="a b c\ufffd", finish_reason=None) == ()  # or by the client
    assert faults(text="a b c\ufffd", finish_reason="stop") == ("broken_text",)


@given(st.binary(max_size=200))
def test_any_bytes_can_be_read(data):
    read(data, b'{"id": 5}', b'{"choices": [{"logprobs": {"content": null}}]}', b"[]")
