"""The release: its workflow, and the versions of Python that it and the scripts name."""

import re
import tomllib
from configparser import ConfigParser
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema

CHECKOUT: Final = Path(__file__).parents[2]
TEXT: Final = (CHECKOUT / ".github" / "workflows" / "release.yml").read_text()
WORKFLOW: Final[dict[str, Any]] = yaml.safe_load(TEXT)
WORKFLOW["on"] = WORKFLOW.pop(True)  # what YAML 1.1 takes the word for
JOBS: Final[dict[str, dict[str, Any]]] = WORKFLOW["jobs"]


def test_the_schema_takes_the_workflow() -> None:
    jsonschema.validate(WORKFLOW, get_builtin_schema("vendor.github-workflows"))


def test_a_job_may_do_what_it_must() -> None:
    assert WORKFLOW["permissions"] == {}
    read_only = {"contents": "read"}
    assert {name: job["permissions"] for name, job in JOBS.items()} == {
        "sdist": read_only,
        "wheel": read_only,
        "try": read_only,
        "image": read_only,
        "publish": {"id-token": "write"},
        "github": {"contents": "write", "id-token": "write", "attestations": "write"},
    }
    assert "secrets." not in TEXT
    for job in JOBS.values():
        for step in job["steps"]:
            assert "${{" not in step.get("run", "")
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"] == {"persist-credentials": False}


def test_nothing_is_published_that_was_not_tried() -> None:
    assert JOBS["publish"]["needs"] == ["try", "image"]
    assert JOBS["publish"]["if"] == "github.event_name == 'push'"
    assert JOBS["try"]["needs"] == ["sdist", "wheel"]
    assert JOBS["github"]["needs"] == "publish"


def test_actions_and_tools_have_a_version() -> None:
    used = [step["uses"] for job in JOBS.values() for step in job["steps"] if "uses" in step]
    assert len(used) >= len(JOBS)
    assert [one for one in used if not re.fullmatch(r"[\w./-]+@v\d+(\.\d+)*", one)] == []
    installed = re.findall(r"pip install (.*)", TEXT)
    assert installed
    words = " ".join(installed).split()
    assert [word for word in words if not re.fullmatch(r"[\w-]+==[\d.]+", word)] == []


def test_every_version_of_python_that_is_named_is_tried() -> None:
    setup = ConfigParser()
    setup.read(CHECKOUT / "setup.cfg")
    named = re.findall(r":: Python :: (3\.\d+)", setup["metadata"]["classifiers"])
    assert named[0] == setup["options"]["python_requires"].removeprefix(">= ")
    assert JOBS["try"]["strategy"]["matrix"]["python"] == named
    for script in ("wheel", "pythons"):
        (tried,) = re.findall(
            r"for version in \$\{@:-(.*)\}; do", (CHECKOUT / ".ci" / script).read_text()
        )
        assert tried.split() == named


def test_one_wheel_is_built_for_each_machine_and_an_old_glibc() -> None:
    options = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    assert options == {
        "build": "cp311-manylinux_*",
        "manylinux-x86_64-image": "manylinux2014",
        "manylinux-aarch64-image": "manylinux2014",
    }
    assert JOBS["wheel"]["strategy"]["matrix"] == {"runner": ["ubuntu-24.04", "ubuntu-24.04-arm"]}


@pytest.mark.parametrize("name", ["v1.0.0", "v1.0.0rc1", "v1.2.10"])
def test_a_versions_tag_starts_it_and_that_of_the_action_does_not(name: str) -> None:
    (pattern,) = WORKFLOW["on"]["push"]["tags"]
    matches = re.compile(pattern.replace(".", r"\.").replace(r"\.*", r"\..*"))
    assert matches.fullmatch(name)
    assert not matches.fullmatch("v1")
