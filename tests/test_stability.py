"""What is promised (docs/compatibility.md): schemas of files, the names, the grammar of rules, each
beside the code."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.lark import from_lark
from lark import Lark
from support.records import answered, failed

from locust_llm.records.outcomes import FAILURES
from locust_llm.records.profile_export_jsonl import format_record_line
from locust_llm.slo.rules import PRESETS, parse_rule

ROOT: Final = Path(__file__).parents[1]
SCHEMAS: Final = ROOT / "docs" / "schemas"
GRAMMAR: Final = Lark((SCHEMAS / "slo.lark").read_text())
EXAMPLE: Final = ROOT / "reports" / "example"
BEYOND: Final = re.compile(
    "above 100%|is ambiguous|given twice|no length lies in|no value lies in|is not a limit|is not "
    "a length"
)
"""What the grammar's second paragraph says that it does not say, in the words of the parser."""


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    return found


def test_the_files_are_what_the_code_says() -> None:
    spec = importlib.util.spec_from_file_location(
        "generate_schemas", ROOT / "docs" / "generate_schemas.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: dict[Path, str] = module.files()
    assert {path: path.read_text("utf-8") for path in made} == made, "make docs makes them anew"
    assert set(SCHEMAS.iterdir()) == set(made)


def test_a_run_and_its_records_fit_their_schemas() -> None:
    jsonschema.validate(json.loads((EXAMPLE / "run.json").read_text()), schema("run"))
    of_record = jsonschema.Draft202012Validator(schema("record"))
    lines = (EXAMPLE / "profile_export.jsonl").read_bytes().splitlines()[::20]
    made = [
        format_record_line(answered(20, 30, 40, merged=((1, 25_000),))),
        *(format_record_line(failed(outcome)) for outcome in FAILURES),
    ]
    for text in (*lines, *made):
        of_record.validate(json.loads(text))
    with pytest.raises(jsonschema.ValidationError):
        of_record.validate({"record": {}})


@given(from_lark(GRAMMAR, alphabet=st.characters(codec="latin-1", exclude_categories=("Cc", "Cs"))))
@example('ttft{class=""} p95 < 500ms')
def test_what_the_grammar_makes_the_parser_reads(text: str) -> None:
    """And writes in a form that the grammar has too."""
    try:
        rule = parse_rule(text)
    except ValueError as error:
        if BEYOND.search(str(error)):
            return
        raise
    GRAMMAR.parse(str(rule))


def test_each_rule_that_is_written_somewhere_is_one_of_the_grammar() -> None:
    page = (ROOT / "docs" / "reference" / "slo.md").read_text("utf-8")
    rules = [
        text
        for text in re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
        if re.search("[<>]|within", text)
    ]
    rules += [text for texts in PRESETS.values() for text in texts]
    assert len(rules) > 30
    for text in rules:
        GRAMMAR.parse(text)
        GRAMMAR.parse(str(parse_rule(text)))
