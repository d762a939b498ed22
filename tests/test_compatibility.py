"""What version 1.0.0rc1 promised (docs/compatibility.md) is still there: options, names, fields and
columns. tests/report/test_old_folders.py has the folders of earlier versions."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[1]
SCHEMAS: Final = ROOT / "docs" / "schemas"
OLD: Final[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "promised-1.0.0rc1.json").read_text()
)
NAMES: Final[dict[str, Any]] = json.loads((SCHEMAS / "names.json").read_text())


def list_option_flags() -> Iterator[str]:
    """Each flag in the option pages, which other tests compare with the parsers."""
    for page in (ROOT / "docs" / "reference" / "cli").glob("*.md"):
        for off, flag in re.findall(r"`--(\[no-\])?([a-z][a-z-]*)", page.read_text("utf-8")):
            yield f"--{flag}"
            if off:
                yield f"--no-{flag}"


def test_every_old_option_is_an_option() -> None:
    """A switch that was on had its page under its off form."""
    here = set(list_option_flags())
    old = OLD["options"]
    assert len(old) > 190
    gone = [flag for flag in old if flag not in here and flag.replace("--no-", "--") not in here]
    assert gone == []


@pytest.mark.parametrize("group", OLD["names"])
def test_every_old_name_is_a_name(group: str) -> None:
    old, here = OLD["names"][group], NAMES[group]
    if isinstance(old, dict):
        assert {name: here.get(name) for name in old} == old
    elif group.endswith(".csv"):
        assert here[: len(old)] == old, "a new column stands at the end"
    else:
        assert set(old) <= set(here)


@pytest.mark.parametrize("file", ["run.schema.json", "record.schema.json"])
def test_every_old_field_is_a_field(file: str) -> None:
    here = json.loads((SCHEMAS / file).read_text())["$defs"]
    gone = {
        f"{kind}.{field}"
        for kind, fields in OLD[file].items()
        for field in fields
        if field not in here[kind]["properties"]
    }
    assert gone == set()
