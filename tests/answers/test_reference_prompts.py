"""Reference prompts: the built-in ones, and files of prompts."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from locust_llm.answers.reference_prompts import (
    BUILT_IN_PROMPTS,
    ReferencePrompt,
    load_reference_prompts,
)


def test_without_a_file_the_built_in_prompts_are_used() -> None:
    assert load_reference_prompts(None) == BUILT_IN_PROMPTS
    kinds = [prompt.kind for prompt in BUILT_IN_PROMPTS]
    assert (len(kinds), kinds.count("tool"), kinds.count("schema")) == (8, 1, 1)
    assert {prompt.max_tokens for prompt in BUILT_IN_PROMPTS} == {64}


def test_a_question_is_the_begin_of_the_last_message() -> None:
    system, question = (
        {"role": "system", "content": "no"},
        {"role": "user", "content": "a\nb " * 20},
    )
    assert ReferencePrompt(messages=[system, question]).question == ("a b " * 20)[:40]
    image = {"role": "user", "content": [{"type": "image_url"}]}
    assert ReferencePrompt(messages=[image]).question == ""


def test_a_line_is_a_prompt_or_an_object(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        '\ufeffSay "one".\r\n\n'
        '{"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}],'
        ' "max_tokens": 5}\n'
        '  {"messages": [{"role": "user", "content": "z"}], "tools": [{"type": "function"}]}\n'
    )
    first, second, third = load_reference_prompts(str(file))
    assert first.messages == [{"role": "user", "content": 'Say "one".'}]
    assert (first.max_tokens, first.fields) == (64, {})
    assert ([one["content"] for one in second.messages], second.max_tokens) == (["x", "y"], 5)
    assert (third.kind, third.fields) == ("tool", {"tools": [{"type": "function"}]})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", " has no prompt"),
        ("\n \n", " has no prompt"),
        ("{", ", line 1: it begins as JSON, but is not valid JSON: "),
        ("a\n{}", ", line 2: Object missing required field `messages`"),
        ('{"messages": []}', ", line 1: messages is empty"),
        ('{"messages": [{"content": "a"}]}', ", line 1: each message needs a role"),
        ('{"messages": "a"}', ", line 1: Expected `array`, got `str` - at `$.messages`"),
        (
            '{"messages": [{"role": "user"}], "max_tokens": 0}',
            ", line 1: max_tokens must be 1 to 4096, got 0",
        ),
        ("a\n" * 101, " has 101 prompts, but at most 100 are possible"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_line(
    tmp_path: Path, text: str, why: str
) -> None:
    file = tmp_path / "prompts"
    file.write_text(text)
    with pytest.raises(ValueError, match=re.escape(f"--reference-file {file}{why}")):
        load_reference_prompts(str(file))


def test_a_missing_file_has_its_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "none"))):
        load_reference_prompts(str(tmp_path / "none"))


@given(
    st.lists(
        st.text(min_size=1, max_size=40).filter(
            lambda text: (
                text.strip() == text and text[0] != "{" and not set(text) & {"\n", "\r", "\ufeff"}
            )
        ),
        min_size=1,
        max_size=20,
    )
)
@examples(100)
def test_plain_prompts_come_back_as_they_are(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[str]
) -> None:
    file = tmp_path_factory.mktemp("prompts") / "file"
    file.write_text("\n".join(prompts), newline="")
    read = load_reference_prompts(str(file))
    assert [prompt.messages[0]["content"] for prompt in read] == prompts


json_values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
objects = st.dictionaries(
    st.sampled_from(["messages", "max_tokens", "tools", "tool_choice", "response_format", "more"]),
    json_values,
)


@given(objects)
@examples(200)
def test_any_object_is_a_prompt_or_refused_in_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, value: dict[str, Any]
) -> None:
    file = tmp_path_factory.mktemp("prompts") / "file"
    file.write_text(json.dumps(value))
    try:
        prompts = load_reference_prompts(str(file))
    except ValueError as refused:
        why, prompts = str(refused), ()
    else:
        why = ""
    assert "\n" not in why
    assert [prompt.messages for prompt in prompts] == ([] if why else [value["messages"]])
