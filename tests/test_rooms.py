"""The rooms: promises about what is imported when; the order of rooms is in pyproject.toml, and lint-imports looks at it."""

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
FILES: Final = sorted(PACKAGE.rglob("*.py"))
TESTS: Final = sorted(Path(__file__).parent.rglob("*.py"))
MAX_FILES: Final = 20
"""In a room, its __init__.py aside."""
MAX_ROOMS: Final = 13
MAX_ABOVE: Final = 9
"""Files in no room: commands, what attaches to Locust, what a locustfile imports."""
MAX_LINES: Final = 400
"""Of a file."""
MAX_LINES_OF_FUNCTION: Final = 60
HEAVY: Final = ("locust", "gevent", "flask", "requests", "geventhttpclient", "numpy", "pandas", "tabulate")


def loaded_by(code: str) -> set[str]:
    """Which of the heavy packages are there after ``code`` in a fresh interpreter."""
    script = f"import sys\n{code}\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_yesterdays_report_needs_neither_locust_nor_gevent() -> None:
    code = "import locust_llm, locust_llm.report.build as b; assert locust_llm.read is b.read"
    assert loaded_by(code) == {"numpy", "pandas", "tabulate"}


def test_the_load_generator_needs_neither_numpy_nor_pandas() -> None:
    assert not {"numpy", "pandas", "tabulate"} & loaded_by("from locust_llm import LLMUser, ProbeUser")


def test_what_exports_telemetry_needs_neither_locust_nor_gevent() -> None:
    pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
    assert not {"locust", "gevent", "numpy"} & loaded_by("import locust_llm.run.telemetry.process")


def test_the_simulator_stands_alone() -> None:
    assert loaded_by("import locust_llm.simulator.cli") == set()


def test_who_asks_for_the_user_gets_it_attached_to_locust() -> None:
    code = """
from locust_llm import LLMUser, events
import locust, locust_llm.plugin
assert issubclass(LLMUser, locust.User)
assert locust_llm.plugin._init in locust.events.init._handlers
"""
    assert {"locust", "gevent"} <= loaded_by(code)


def test_locust_has_not_patched_the_process_of_the_tests() -> None:
    """All test files are imported by now; those that need Locust do so through ``unpatched_locust``."""
    assert not any(map(is_module_patched, ("socket", "threading", "select", "time")))


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'LLMUsers'"):
        locust_llm.LLMUsers  # noqa: B018


def test_rooms_are_few_and_small() -> None:
    rooms = {path.parent for path in FILES} - {PACKAGE, PACKAGE / "locustfiles"}  # those are handed to Locust, by path
    assert len([room for room in rooms if room.parent == PACKAGE]) <= MAX_ROOMS
    counts = {str(room.relative_to(PACKAGE)): len(list(room.glob("*.py"))) - 1 for room in rooms}
    assert {room: count for room, count in counts.items() if count > MAX_FILES} == {}
    assert len(list(PACKAGE.glob("*.py"))) <= MAX_ABOVE


def test_files_and_functions_are_short() -> None:
    sources = {path: path.read_text() for path in FILES}
    assert {path: n for path, text in sources.items() if (n := len(text.splitlines())) > MAX_LINES} == {}
    lengths = {
        (path, node.name): (node.end_lineno or 0) - node.lineno + 1
        for path, text in sources.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: n for name, n in lengths.items() if n > MAX_LINES_OF_FUNCTION} == {}


@pytest.mark.slow
def test_the_first_line_of_a_file_says_its_idea() -> None:
    first_lines = {
        path: (ast.get_docstring(ast.parse(path.read_text()), clean=False) or "").partition("\n")[0]
        for path in FILES + TESTS
    }
    assert {path: line for path, line in first_lines.items() if len(line) <= 10} == {}


def test_names_say_what_a_thing_is() -> None:
    """A manager, a helper, a handler, utils: names of things that were not understood."""
    empty = re.compile(r"(utils?|managers?|helpers?|handlers?|common|misc)$", re.IGNORECASE)
    classes = {
        path: [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
        for path in FILES
    }
    assert [(path, name) for path in FILES for name in (path.stem, *classes[path]) if empty.search(name)] == []


def test_no_test_imports_another() -> None:
    found = [path for path in TESTS if re.search(r"^\s*(from|import) test_", path.read_text(), re.MULTILINE)]
    assert found == []
