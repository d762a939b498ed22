"""The script of a request: it survives the way through a prompt, and mistakes are refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.lab.gateway.upstream_script import (
    FAULTS,
    FEATURES,
    MARKER,
    UpstreamScript,
    find_script,
    write_prompt,
)

scripts = st.builds(
    UpstreamScript,
    id=st.text(min_size=1, max_size=40),
    ttft_ms=st.floats(0, 1000),
    gap_ms=st.floats(0, 1000),
    tokens=st.integers(1, 500),
    jitter=st.floats(0, 1),
    fault=st.sampled_from(["", *FAULTS]),
    after=st.integers(0, 9),
    fault_arrivals=st.integers(0, 3),
    features=st.lists(st.sampled_from([*FEATURES]), unique=True).map(tuple),
)


def test_a_prompt_is_prose_and_one_line_without_defaults() -> None:
    script = UpstreamScript(id="a1", tokens=64, features=("tools",))
    prose, line, rest = write_prompt(script).split("\n")
    assert len(prose.split()) > 10
    assert line == 'gwbench {"id": "a1", "tokens": 64, "features": ["tools"]}'
    assert rest == ""


@given(script=scripts)
def test_a_script_is_found_in_each_form_of_a_body(script: UpstreamScript) -> None:
    prompt = write_prompt(script)
    bodies: list[Any] = [
        {"messages": [{"role": "system", "content": "hello"}, {"role": "user", "content": prompt}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": prompt}]}]},
        {"prompt": prompt},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": prompt}]}]},
        {"input": [prompt, "another text"]},
    ]
    for body in bodies:
        assert find_script(json.loads(json.dumps(body))) == script


def test_the_last_script_of_a_conversation_counts() -> None:
    turns = [
        {"role": "user", "content": write_prompt(UpstreamScript(id="first"))},
        {"role": "assistant", "content": "w0"},
        {"role": "user", "content": write_prompt(UpstreamScript(id="second"))},
    ]
    found = find_script({"messages": turns})
    assert found is not None
    assert found.id == "second"


@pytest.mark.parametrize(
    "body",
    [
        None,
        {},
        {"prompt": "hello"},
        {"prompt": MARKER},
        {"prompt": MARKER + "{broken"},
        {"prompt": MARKER + '{"id": "a", "unknown": 1}'},
        {"prompt": MARKER + '{"id": "a", "tokens": 0}'},
        {"prompt": MARKER + '{"id": "a", "tokens": "many"}'},
    ],
)
def test_what_is_no_script_is_none(body: Any) -> None:
    assert find_script(body) is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"fault": "gone"}, "unknown fault 'gone'"),
        ({"features": ("tool",)}, "unknown feature 'tool'"),
        ({"tokens": 0}, "tokens must be"),
        ({"gap_ms": -1}, "must be from 0"),
        ({"ttft_ms": float("nan")}, "must be from 0"),
        ({"jitter": 2}, "jitter"),
    ],
)
def test_mistakes_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        UpstreamScript(id="a", **values)


def test_channels() -> None:
    made = UpstreamScript(id="a", tokens=5, features=("reasoning", "tools")).channels
    assert made == ("reasoning", "reasoning", "tool", "tool", "tool")
    assert UpstreamScript(id="a", tokens=2).channels == ("content", "content")
