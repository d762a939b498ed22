"""ARCHITECTURE.md: its table of folders is that of the import contracts, and each path in it
exists."""

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any, Final

import locust_llm
from locust_llm.commands import COMMANDS

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = Path(locust_llm.__file__).parent
TEXT: Final = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
TOP: Final = tuple(path.name for path in ROOT.iterdir())
APART: Final = {"simulator"}
"""In the last row: it is in no layer, as it imports nothing of the package."""


def contracts() -> list[dict[str, Any]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    found: list[dict[str, Any]] = settings["tool"]["importlinter"]["contracts"]
    return found


def rows_of_folders() -> list[set[str]]:
    table = TEXT.partition("| folder or file |")[2].partition("\n\n")[0]
    first_cells = re.findall(r"^\| ([^|]*`[^|]*) \|", table, re.MULTILINE)
    return [set(re.findall(r"`(\w+)`", cell)) for cell in first_cells]


def paths() -> list[str]:
    """Those in backquotes that begin with something at the top of the repository."""
    words = re.findall(r"`([\w./-]+)`", TEXT)
    return [word for word in words if word.partition("/")[0] in TOP]


def test_it_is_short() -> None:
    assert len(TEXT.split()) <= 2000


def test_each_path_exists() -> None:
    assert len(paths()) > 60
    assert [path for path in paths() if not (ROOT / path).exists()] == []


def test_each_path_into_the_package_is_written_in_full() -> None:
    """Else the test above would not see it."""
    short = [
        word for word in re.findall(r"`([\w./-]+\.(?:py|c|html|js))`", TEXT) if word not in paths()
    ]
    assert short == ["__init__.py"]


def test_each_name_is_in_the_file_beside_it() -> None:
    named = re.findall(r"`(\w+)`\s+in\s+`([\w./]+)`", TEXT)
    assert len(named) >= 2
    assert [
        (name, path)
        for name, path in named
        if not re.search(rf"\b{name}\b", (ROOT / path).read_text())
    ] == []


def test_the_rows_of_folders_are_the_layers_of_the_import_contract() -> None:
    (layered,) = (
        contract
        for contract in contracts()
        if contract["type"] == "layers" and contract["containers"] == ["locust_llm"]
    )
    layers = [set(layer.split(" | ")) for layer in layered["layers"]]
    assert rows_of_folders() == [*layers, APART]


def test_the_three_flows_name_files_and_no_more_than_they_need() -> None:
    flows = TEXT.partition("## Three flows")[2].partition("## ")[0].split("- **")[1:]
    named = [set(re.findall(r"`(\w+)`", flow)) for flow in flows]
    files = {path.stem for path in PACKAGE.rglob("*.py")} | {"_reader"}
    assert set[str]().union(*named) - files == set()
    assert [len(names) for names in named] == [22, 14, 20]


def test_each_folder_of_the_package_is_named() -> None:
    folders = {
        path.name
        for path in PACKAGE.iterdir()
        if any(path.rglob("*.py")) and path.name != "__pycache__"
    }
    in_table = set[str]().union(*rows_of_folders())
    without_code = {path.partition("/")[2] for path in paths() if path.count("/") == 1}
    assert len(folders) > 20
    assert folders - in_table - without_code == set()


def test_each_command_is_in_the_file_of_its_name() -> None:
    modules = {name: path.partition(":")[0] for name, path in COMMANDS.items()}
    stems = {name: module.rpartition(".")[2] for name, module in modules.items()}
    assert stems == {name: f"{name}_command" for name in COMMANDS}
    named_so = {path.stem for path in PACKAGE.rglob("*_command.py")}
    assert named_so == set(stems.values())


def test_no_two_files_have_the_same_name() -> None:
    names = Counter(path.name for path in PACKAGE.rglob("*.py"))
    twice = {name for name, count in names.items() if count > 1}
    assert twice == {"__init__.py", "__main__.py"}
