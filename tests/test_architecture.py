"""ARCHITECTURE.md: its table of folders is that of the import contracts, and each path in it
exists. So does each file that a docstring or a comment of the package names."""

import ast
import io
import re
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
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
OF_OTHER_PROJECTS: Final = {
    "chat.py",  # a user's locustfile
    "dataset/generator/prompt.py",
    "loader/models.py",
    "locust/main.py",
    "metric_utils.py",
    "scheduler.py",
    "srt/observability/req_time_stats.py",
    "v1/core/block_pool.py",
}
"""Beside all files of these folders:"""
OTHER_PROJECTS: Final = ("vllm/", "python/sglang/")
NAMED_FILE: Final = re.compile(r"[\w./-]*\w\.py\b")


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
    assert [len(names) for names in named] == [25, 14, 20]


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
    assert named_so == {*stems.values(), "operator_command"}  # what an operator gives to an option


def test_no_two_files_have_the_same_name() -> None:
    names = Counter(path.name for path in PACKAGE.rglob("*.py"))
    twice = {name for name, count in names.items() if count > 1}
    assert twice == {"__init__.py", "__main__.py"}


def iterate_comments(source: str) -> Iterator[str]:
    """The docstrings, of fields too, and the comments of a file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield str(node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def find_absent_files(comment: str, existing: list[str]) -> set[str]:
    """The files that a comment names and that are none of the package's or the repository's."""
    absent = set[str]()
    for name in NAMED_FILE.findall(comment):
        is_others = name in OF_OTHER_PROJECTS or name.startswith(OTHER_PROJECTS)
        exists = any(f"/{path}".endswith(f"/{name}") for path in existing)
        if not exists and not is_others:
            absent.add(name)
    return absent


def test_each_file_that_a_comment_or_a_docstring_names_exists() -> None:
    existing = list[str]()
    for folder in (PACKAGE, ROOT / "tests", ROOT / "locustfiles"):
        existing += [path.relative_to(ROOT).as_posix() for path in folder.rglob("*.py")]
    assert find_absent_files("see gone.py, gate.py and slo/rules.py", existing) == {"gone.py"}
    absent: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for comment in iterate_comments(path.read_text("utf-8")):
            absent.setdefault(path.name, set()).update(find_absent_files(comment, existing))
    for path in [*PACKAGE.glob("static/*"), *PACKAGE.rglob("*.c"), *PACKAGE.rglob("*.html")]:
        if path.suffix in (".js", ".css", ".c", ".html") and ".min." not in path.name:
            named = find_absent_files(path.read_text("utf-8"), existing)
            absent.setdefault(path.name, set()).update(named)
    assert {name: files for name, files in absent.items() if files} == {}
