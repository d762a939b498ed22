"""Schema: what requests ask of an answer in each server's words, what is no schema, and which
answers fit."""

from pathlib import Path
from typing import Any

import pytest

from locust_llm.workload import answer_schema as schema
from locust_llm.workload.answer_schema import (
    SchemaError,
    check_response_schema,
    find_response_schema,
    matches_response_schema,
    read_tools_file,
)
from locust_llm.workload.dataset_formats import DatasetError
from locust_llm.workload.dataset_summary import check_dataset as check_dataset

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY}}
GOOD, BAD = '{"city": "Oslo"}', '{"city": 1}'


def said(content: str | None = None, *calls: tuple[str, str]) -> dict[str, Any]:
    made = [
        {"id": "1", "type": "function", "function": {"name": name, "arguments": text}}
        for name, text in calls
    ]
    return {"role": "assistant", "content": content, **({"tool_calls": made} if made else {})}


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": FORMAT},
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": CITY}}},
        {"response_format": {"type": "json_object", "schema": CITY}},
        {"guided_json": CITY},
        {
            "guided_json": '{"type": "object", "required": ["city"], "properties": {"city": '
            '{"type": "string"}}}'
        },
        {"structured_outputs": {"json": CITY}},
        {"json_schema": CITY},
        {"response_format": FORMAT, "tools": [WEATHER]},
    ],
)
def test_a_text_of_a_schema(body: dict[str, Any]) -> None:
    check_response_schema(body)
    what = find_response_schema(body)
    assert what is not None
    found = [
        matches_response_schema(what, said(text))
        for text in (GOOD, BAD, "{}", f"```json\n{GOOD}\n```", GOOD[:-1], "", None)
    ]
    assert found == [True, *[False] * 6]


def test_json_mode_takes_any_object() -> None:
    what = find_response_schema({"response_format": {"type": "json_object"}})
    assert what is not None
    assert [matches_response_schema(what, said(text)) for text in ("{}", BAD, "[]", "1", "no")] == [
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    "tool",
    [
        WEATHER,
        {"type": "function", "name": "weather", "parameters": CITY},
        {"name": "weather", "input_schema": CITY},
    ],
    ids=["chat", "responses", "messages"],
)
def test_arguments_of_a_call(tool: dict[str, Any]) -> None:
    what = find_response_schema({"tools": [tool]})
    assert what is not None
    assert matches_response_schema(what, said(None, ("weather", GOOD))) is True
    assert matches_response_schema(what, said(None, ("weather", GOOD), ("weather", BAD))) is False
    assert matches_response_schema(what, said(None, ("weather", GOOD[:-1]))) is False
    assert matches_response_schema(what, said(None, ("other", GOOD))) is False
    assert matches_response_schema(what, said("It is warm.")) is None  # it need not call
    must = find_response_schema({"tools": [tool], "tool_choice": "required"})
    assert must is not None
    assert matches_response_schema(must, said("It is warm.")) is False


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"temperature": 0, "text": "x"},
        {"response_format": {"type": "text"}},
        {"tools": [WEATHER], "tool_choice": "none"},
        {"tools": [{"type": "web_search"}]},
    ],
)
def test_most_requests_want_nothing_that_could_be_looked_at(body: dict[str, Any]) -> None:
    check_response_schema(body)
    assert find_response_schema(body) is None


@pytest.mark.parametrize(
    ("body", "field", "why"),
    [
        (
            {"guided_json": {"type": "nope"}},
            "guided_json",
            "is not a valid schema: 'nope' is not valid",
        ),
        ({"guided_json": "{"}, "guided_json", "it must be an object"),
        ({"guided_json": {"pattern": "("}}, "guided_json", r"is not a 'regex' \(at \$.pattern\)"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "has no schema"),
        ({"tools": {}}, "tools", "must be a list"),
        ({"tools": [1]}, "tools", r"\[0\] must be an object"),
        ({"tools": [WEATHER, {"type": "function"}]}, "tools", r"\[1\] has no function with a name"),
        (
            {"tools": [{"name": "f", "parameters": {"type": 3}}]},
            "tools",
            r"\[0\] \(f\): is not a valid schema: 3 is not valid",
        ),
    ],
)
def test_what_is_no_schema(body: dict[str, Any], field: str, why: str) -> None:
    with pytest.raises(SchemaError, match=why) as refused:
        check_response_schema(body)
    assert refused.value.field == field


@pytest.mark.parametrize(
    "other", [{"$ref": "http://localhost:1/x"}, {"$ref": "#"}, {"type": "nope"}]
)
def test_what_cannot_be_known_is_not_guessed(
    other: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    what = find_response_schema({"guided_json": other})
    assert what is not None
    assert matches_response_schema(what, said("1")) is None
    assert matches_response_schema(what, said("no JSON")) is False
    known = find_response_schema({"guided_json": CITY})
    assert known is not None
    assert matches_response_schema(known, said('"' + "x" * schema.MAX_CHARS + '"')) is None
    monkeypatch.setattr(schema, "has_jsonschema", lambda: False)
    assert (
        matches_response_schema(known, said(GOOD)),
        matches_response_schema(known, said("no JSON")),
    ) == (
        None,
        False,
    )


def test_a_file_of_tools(tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_text('[{"name": "f"}]')
    assert read_tools_file(str(file)) == [{"name": "f"}]
    for text, why in (
        ("{", "is not valid JSON"), ("[]", "must be a JSON list of tools"),
        ("{}", "must be a JSON list of tools"),
        ("[1]", r"\[0\] must be an object"),
    ):  # fmt: skip
        file.write_text(text)
        with pytest.raises(ValueError, match=why) as refused:
            read_tools_file(str(file))
    for path, why in (
        ("none.json", "No such file or directory"),
        (str(tmp_path), "Is a directory"),
    ):
        with pytest.raises(ValueError, match=f"^--tools {path}: {why}$"):
            read_tools_file(path)
        assert str(refused.value).startswith(f"--tools {file}: ")


def test_a_row_of_a_file_with_what_is_no_schema(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(
        '{"prompt": "a", "guided_json": {"type": "object"}}\n{"prompt": "b", "guided_json": '
        '{"type": 3}}\n'
    )
    with pytest.raises(
        DatasetError,
        match=r"rows.jsonl, line 2, guided_json: is not a valid schema: 3 is not valid",
    ):
        check_dataset(str(file))
