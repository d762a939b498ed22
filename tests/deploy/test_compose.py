"""The compose file: its page is of this machine alone, nobody in it is root, and nothing but
reports can be written."""

import os
import re
import shlex
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

FILE: Final = Path(__file__).parents[2] / "deploy" / "docker-compose.yml"
COMPOSE: Final[dict[str, Any]] = yaml.safe_load(FILE.read_text())
SERVICES: Final[dict[str, Any]] = COMPOSE["services"]


def filled(text: str) -> str:
    """With the defaults of its variables."""
    return re.sub(r"\$\{\w+(?::[-?]([^}]*))?\}", lambda found: found[1] or "", text)


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_is_root_or_writes_into_the_checkout(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"[1-9]\d*:\d+", service["user"])
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert "no-new-privileges:true" in service["security_opt"]
    for volume in map(filled, service["volumes"]):
        source, target, *mode = volume.split(":")
        if source in COMPOSE["volumes"]:
            assert target == "/reports"
        else:
            assert mode == ["ro"], volume
            assert (FILE.parent / source).resolve() == FILE.parents[1] / "locustfiles"


def test_ports_are_of_this_machine_alone() -> None:
    assert SERVICES["master"]["ports"] == ["127.0.0.1:8089:8089"]
    assert "ports" not in SERVICES["worker"]


@pytest.mark.parametrize("name", SERVICES)
def test_its_command_is_a_run_of_a_locustfile_that_is_there(name: str) -> None:
    words = shlex.split(filled(SERVICES[name]["command"]))
    assert words[0] == "run"
    assert (FILE.parents[1] / "locustfiles" / words[words.index("-f") + 1]).is_file()
    assert f"--{name}" in words
    build = SERVICES[name]["build"]
    assert os.path.samefile(
        FILE.parent / build["context"] / build["dockerfile"], FILE.parent / "Dockerfile"
    )
