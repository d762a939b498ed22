"""The files around the code: issue forms, citation, changelog, and the project's addresses, which
stand in one place."""

import json
import re
import subprocess
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema

import locust_llm

ROOT: Final = Path(__file__).parents[1]
FORMS: Final = ROOT / ".github" / "ISSUE_TEMPLATE"
CHANGELOG: Final = (ROOT / "docs" / "changelog.md").read_text("utf-8")
KINDS: Final = ("Added", "Changed", "Fixed", "Removed")


def load_yaml(path: Path) -> Any:
    """As JSON, whose keys are texts and whose dates are none."""
    return json.loads(json.dumps(yaml.safe_load(path.read_text("utf-8")), default=str))


@pytest.mark.parametrize("name", ["bug.yml", "idea.yml"])
def test_an_issue_form_is_one_for_github(name: str) -> None:
    form = load_yaml(FORMS / name)
    jsonschema.validate(form, get_builtin_schema("vendor.github-issue-forms"))
    named = [part["id"] for part in form["body"] if "id" in part]
    assert len(set(named)) == len(named) > 1


def test_the_choice_of_forms_is_one_for_github() -> None:
    jsonschema.validate(
        load_yaml(FORMS / "config.yml"), get_builtin_schema("vendor.github-issue-config")
    )


def test_the_citation_names_this_version() -> None:
    cited = load_yaml(ROOT / "CITATION.cff")
    jsonschema.validate(cited, get_builtin_schema("vendor.citation-file-format"))
    assert cited["version"] == locust_llm.__version__
    assert cited["authors"][0]["name"] in (ROOT / "LICENSE").read_text("utf-8")


def test_each_change_has_its_kind() -> None:
    """Sections of the unreleased version, in the order of Keep a Changelog."""
    unreleased = CHANGELOG.partition("## Unreleased\n")[2].partition("\n## ")[0]
    before, *sections = re.split(r"^### (.*)$", unreleased, flags=re.MULTILINE)
    assert before.strip() == "", "each change stands below its kind: Added, Changed, Fixed, Removed"
    kinds = sections[::2]
    assert kinds == [kind for kind in KINDS if kind in kinds]
    assert f"## {locust_llm.__version__}\n" in CHANGELOG


def list_tracked_texts() -> Iterator[tuple[str, str]]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 1_000_000:
            yield name, path.read_text("utf-8", errors="ignore")


def test_the_projects_addresses_stand_in_one_file() -> None:
    """Who publishes it sets them once."""
    parser = ConfigParser()
    parser.read(ROOT / "setup.cfg")
    urls = re.findall(r"https://\S+", parser["metadata"]["project_urls"])
    assert len(urls) == 4
    (home,) = {min(urls, key=len)}
    assert all(url.startswith(home) for url in urls)
    assert [name for name, text in list_tracked_texts() if home in text] == ["setup.cfg"]
