"""Body: extra inputs mean what they say, mistakes are named, and a length that was kept is told
from one that was not."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.server.length_control import WAYS, make_length_fields, obeys_length
from locust_llm.settings.extra_inputs import parse_extra_inputs


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("ignore_eos:true", {"ignore_eos": True}),
        ("ignore_eos:true min_tokens:100 temperature:0.5",
            {"ignore_eos": True, "min_tokens": 100, "temperature": 0.5}),
        (" a:1,b:-2 , c:1e3,", {"a": 1, "b": -2, "c": 1000.0}),
        ("a:null b:None c:False d:false", {"a": None, "b": None, "c": False, "d": False}),
        ("tier:flex id:007 v:1.2.3 n:NaN t:TRUE",
            {"tier": "flex", "id": "007", "v": "1.2.3", "n": "NaN", "t": "TRUE"}),
        ("url:http://x:80/y", {"url": "http://x:80/y"}),
        ('stop:["a, b", "c"] k:{"x": {"y": [1]}},s:"d e"',
            {"stop": ["a, b", "c"], "k": {"x": {"y": [1]}}, "s": "d e"}),
        ("k : 1", {"k": 1}),
        ('{"temperature": 0.7, "stop": ["x"]}', {"temperature": 0.7, "stop": ["x"]}),
    ],
)  # fmt: skip
def test_extra_inputs(text: str, fields: dict[str, object]) -> None:
    found = parse_extra_inputs(text)
    assert found == fields
    assert [type(value) for value in found.values()] == [type(value) for value in fields.values()]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "got ''"),
        (" , ", "got ','"),
        ("{}", "got '{}'"),
        ("ignore_eos", "got 'ignore_eos'"),
        ("a:1 true", "got 'true'"),
        ("a:", "without a value"),
        ("a:1, b:", "without a value"),
        ("{a:1}", "begins as JSON"),
        ('{"a": 1} b:2', "begins as JSON"),
        ("[1]", "got '[1]'"),
        ("a:[1,", "begins as JSON"),
        ("a:[NaN]", "begins as JSON"),
        ("a:[1]b:2", "after a value"),
        ("a:" + "[" * 100_000, "begins as JSON"),
        ("a:1 a:2", "'a' twice"),
        ("max_tokens:5", "use --output-tokens-mean"),
        ('{"stream": false}', "use --streaming"),
        ("model:x", "use --model"),
    ],
)
def test_mistakes_are_one_sentence(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=r"^--extra-inputs ?") as error:
        parse_extra_inputs(text)
    assert why in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(
    st.dictionaries(st.from_regex(r"[a-z_]{1,6}", fullmatch=True), JSON, min_size=1),
    st.sampled_from([" ", ",", ", "]),
)
def test_whatever_json_is_written_comes_back(fields: dict[str, object], separator: str) -> None:
    fields = {f"x_{key}": value for key, value in fields.items()}
    assert (
        parse_extra_inputs(
            separator.join(f"{key}:{json.dumps(value)}" for key, value in fields.items())
        )
        == fields
    )
    assert parse_extra_inputs(json.dumps(fields)) == fields


@given(st.text())
def test_no_text_breaks_it(text: str) -> None:
    with suppress(ValueError):  # and nothing else
        assert parse_extra_inputs(text)


def test_the_ways_to_keep_a_length() -> None:
    assert [make_length_fields(way, 20) for way in WAYS] == [
        {"ignore_eos": True},
        {"min_tokens": 20},
        {"ignore_eos": True, "min_tokens": 20},
    ]
    assert make_length_fields((), 20) == {}


@pytest.mark.parametrize(
    ("status", "tokens", "finish_reason", "kept"),
    [
        (200, 48, "length", True),
        (200, 49, "stop", True),
        (200, 47, "length", False),
        (200, 2, "stop", False),
        (200, None, "length", True),
        (200, None, "stop", False),
        (200, None, None, False),
        (400, 48, "length", False),
        (422, None, None, False),
    ],
)
def test_a_length_that_was_kept(
    status: int, tokens: int | None, finish_reason: str | None, kept: bool
) -> None:
    assert obeys_length(status, tokens, finish_reason, 48) is kept
