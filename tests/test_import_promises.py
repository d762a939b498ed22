"""Promises about what is imported when; the order of the folders is in pyproject.toml, and
lint-imports looks at it."""

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
HEAVY: Final = (
    "locust",
    "gevent",
    "flask",
    "requests",
    "geventhttpclient",
    "numpy",
    "pandas",
    "tabulate",
    "jsonschema",
)


def loaded_by(code: str) -> set[str]:
    """Which of the heavy packages are there after ``code`` in a fresh interpreter."""
    script = f"import sys\n{code}\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_yesterdays_report_needs_neither_locust_nor_gevent() -> None:
    code = "import locust_llm, locust_llm.report.write_report_files as b; assert locust_llm.read is b.read"
    assert loaded_by(code) == {"numpy", "tabulate"}


def test_the_load_generator_needs_neither_numpy_nor_pandas() -> None:
    assert not {"numpy", "pandas", "tabulate"} & loaded_by(
        "from locust_llm import LLMUser, ProbeUser"
    )


def test_a_run_without_rules_on_schemas_does_not_load_jsonschema() -> None:
    pytest.importorskip("jsonschema")
    code = """
from locust_llm.settings.run_options import Settings
from locust_llm.settings.settings_validation import validate_settings
assert list(validate_settings(Settings(host="http://127.0.0.1:1"))) == []
"""
    assert loaded_by(code) == set()


def test_what_exports_telemetry_needs_neither_locust_nor_gevent() -> None:
    pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
    assert not {"locust", "gevent", "numpy"} & loaded_by(
        "import locust_llm.integrations.otel.exporting_process"
    )


def test_the_simulator_stands_alone() -> None:
    assert loaded_by("import locust_llm.simulator.simulate_command") == set()


def test_who_asks_for_the_user_gets_it_attached_to_locust() -> None:
    code = """
from locust_llm import LLMUser, events
import locust, locust_llm.plugin
assert issubclass(LLMUser, locust.User)
assert locust_llm.plugin._init in locust.events.init._handlers
"""
    assert {"locust", "gevent"} <= loaded_by(code)


def test_locust_has_not_patched_the_process_of_the_tests() -> None:
    """All test files are imported by now; those that need Locust do so through
    ``unpatched_locust``."""
    assert not any(map(is_module_patched, ("socket", "threading", "select", "time")))


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'LLMUsers'"):
        locust_llm.LLMUsers  # noqa: B018


@pytest.mark.slow
def test_the_first_line_of_a_file_says_its_idea() -> None:
    first_lines = {
        path: (ast.get_docstring(ast.parse(path.read_text()), clean=False) or "").partition("\n")[0]
        for path in FILES + TESTS
    }
    assert {path: line for path, line in first_lines.items() if len(line) <= 10} == {}


def test_no_test_imports_another() -> None:
    found = [
        path
        for path in TESTS
        if re.search(r"^\s*(from|import) test_", path.read_text(), re.MULTILINE)
    ]
    assert found == []
