"""The layers: a file imports only from those above it, and what is pure stays free of Locust and gevent."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from gevent.monkey import is_module_patched

import locust_llm

PACKAGE: Final = Path(locust_llm.__file__).parent
STANDARD: Final = sys.stdlib_module_names
PURE: Final = {"msgspec", "sseclient"}
NUMBERS: Final = PURE | {"numpy", "pandas", "tabulate", "hdrh"}
MACHINE: Final = PURE | {"gevent", "requests", "geventhttpclient"}
HOST: Final = MACHINE | {"locust", "flask", "werkzeug", "certifi", "zmq", "psutil"}

# (layer, the packages it may import, its modules: each may import those before it)
LAYERS: Final = (
    (
        "words",
        PURE,
        "exit_status record bounds shots steps symptoms episodes diagnosis advice buffering sse foreign_text chat failure "
        "endpoints retries gauges ramp ranges arrivals sizes definitions measures selectors slo stages settings run corpus "
        "tokens prompts spool journal "
        "outbox quotas clocks verdict disturbance examination summary readable jsonl folder formats logs given rows "
        "dataset conversation body plan "
        "timetable pulse sends exposition live archive",
    ),
    (
        "arithmetic",
        NUMBERS,
        "gaps columns harvest occupancy parts blocks delivery steady breakdowns intervals interference bootstrap abort "
        "growth censoring figures likeness compare sides good usl knee judgement findings metrics sweeps remarks curves "
        "stalls probing document tables junit plots overtime spectra ladder bylength timeline drawing page export "
        "report versus",
    ),
    (
        "machine",
        MACHINE,
        "framing stream connection nowait reader gate lease pacer budget supply health sockets exchange",
    ),
    (
        "Locust",
        HOST,
        "console children interrupts events options withheld prepared fetch survey meter sender greeting dealer crowd "
        "reporter book roster stepper limit work ending guarded course control messages worker scrape progress user probe "
        "checks form view swarm origin web plugin",
    ),
    ("door", HOST, "check __init__ locustfile probefile __main__"),
)
ORDER: Final = [name for _, _, names in LAYERS for name in names.split()]
FRONT: Final = "httptools"
"""The one HTTP library of the simulator."""

FILES: Final = sorted(PACKAGE.rglob("*.py"))
OURS: Final = [path for path in FILES if path.parent == PACKAGE]
SIMULATOR: Final = [path for path in FILES if path.parent.name == "simulator"]


def imports(path: Path) -> set[str]:
    """Absolute names of all that a file imports, wherever in the file it does, but for the type checker alone."""
    found: set[str] = set()
    nodes: list[ast.AST] = [ast.parse(path.read_text())]
    here = path.relative_to(PACKAGE.parent).parent.parts
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        nodes.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*here[: len(here) + 1 - node.level], *filter(None, [node.module])])
            base = base if node.level else node.module or ""
            # `from . import gate` names a module, `from .gate import Gate` something in one
            inside = (PACKAGE.parent / base.replace(".", "/")).is_dir()
            found |= {f"{base}.{alias.name}" for alias in node.names} if inside else {base}
    return found


def of_ours(names: set[str]) -> set[str]:
    """The modules of this package among them: ``gate``, ``simulator``; what the package itself gives is ``__init__``."""
    parts = (name.split(".") for name in names if name.split(".")[0] == "locust_llm")
    known = {path.stem for path in OURS} | {"simulator"}
    return {part[1] if len(part) > 1 and part[1] in known else "__init__" for part in parts}


def of_others(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names} - {"locust_llm"} - STANDARD


def test_every_module_has_a_place() -> None:
    assert sorted(ORDER) == sorted(path.stem for path in OURS)


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_a_file_imports_only_from_above_it(path: Path) -> None:
    above = set(ORDER[: ORDER.index(path.stem)])
    if path.stem == "__main__":
        above.add("simulator")  # the door, where the two meet
    assert of_ours(imports(path)) <= above


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_a_layer_imports_only_its_packages(path: Path) -> None:
    allowed = next(packages for _, packages, names in LAYERS if path.stem in names.split())
    assert of_others(imports(path)) <= allowed


@pytest.mark.parametrize("path", SIMULATOR, ids=lambda path: path.stem)
def test_the_simulator_stands_alone(path: Path) -> None:
    names = imports(path)
    assert of_ours(names) <= {"simulator"}
    assert of_others(names) <= {FRONT}


def test_these_tests_see_imports() -> None:
    """Else all of the above would pass for nothing."""
    assert {"gate", "record", "stream"} <= of_ours(imports(PACKAGE / "exchange.py"))
    assert {"events", "sender"} <= of_ours(imports(PACKAGE / "user.py"))  # `from . import events`
    assert {"simulator", "report"} <= of_ours(imports(PACKAGE / "__main__.py"))  # inside of functions
    assert of_ours(imports(PACKAGE / "locustfile.py")) == {"__init__"}
    assert {"locust", "gevent"} <= of_others(imports(PACKAGE / "plugin.py"))
    assert "simulator" in of_ours(imports(PACKAGE / "simulator" / "server.py"))


HEAVY: Final = ("locust", "gevent", "flask", "requests", "geventhttpclient")


def loaded_by(code: str) -> set[str]:
    """Which of the heavy packages are there after ``code`` in a fresh interpreter."""
    script = f"import sys\n{code}\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_yesterdays_report_needs_neither_locust_nor_gevent() -> None:
    code = "import locust_llm, locust_llm.metrics, locust_llm.report; assert locust_llm.read is locust_llm.report.read"
    assert loaded_by(code) == set()


def test_the_simulator_needs_neither_locust_nor_gevent() -> None:
    assert loaded_by("import locust_llm.simulator.command") == set()


def test_who_asks_for_the_user_gets_it_attached_to_locust() -> None:
    code = """
from locust_llm import LLMUser
import locust, locust_llm.plugin
assert issubclass(LLMUser, locust.User)
assert locust_llm.plugin._start in locust.events.test_start._handlers
"""
    assert {"locust", "gevent"} <= loaded_by(code)


def test_locust_has_not_patched_the_process_of_the_tests() -> None:
    """All test files are imported by now; those that need Locust do so through ``unpatched_locust``."""
    assert not any(map(is_module_patched, ("socket", "threading", "select", "time")))


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'LLMUsers'"):
        locust_llm.LLMUsers  # noqa: B018


TESTS: Final = sorted(Path(__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", FILES + TESTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_first_line_of_a_file_says_its_idea(path: Path) -> None:
    first_line = (ast.get_docstring(ast.parse(path.read_text()), clean=False) or "").partition("\n")[0]
    assert len(first_line) > 10


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_names_say_what_a_thing_is(path: Path) -> None:
    """A manager, a helper, a handler, utils: names of things that were not understood."""
    classes = [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
    empty = re.compile(r"(utils?|managers?|helpers?|handlers?|common|misc)$", re.IGNORECASE)
    assert not [name for name in [path.stem, *classes] if empty.search(name)]
