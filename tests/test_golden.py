"""Golden files: help, exit statuses, imports, pages and the numbers of the example stay as they are
in tests/golden."""

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import golden, unpatched_locust  # noqa: F401  before the rest

from locust_llm.report.write_report_files import remake_reports

HOW = "make golden writes the files anew: a difference that is meant belongs in the changelog"


def read_json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


@pytest.mark.parametrize("command", golden.HELP_COMMANDS)
def test_the_help_of_each_command_stays(command: str) -> None:
    stored = golden.help_file(command).read_text("utf-8")
    assert golden.normalise_width(golden.make_help(command)) == golden.normalise_width(stored), HOW


def test_each_golden_help_is_of_a_command() -> None:
    assert {golden.help_file(command) for command in golden.HELP_COMMANDS} == set(
        (golden.GOLDEN / "help").iterdir()
    )


def test_what_python_code_imports_stays() -> None:
    assert golden.make_python_api() == read_json(golden.PYTHON_API), HOW


def test_addresses_and_ids_of_pages_stay() -> None:
    assert golden.make_pages() == read_json(golden.PAGES), HOW


def test_each_ending_has_a_golden_exit_status() -> None:
    assert [*golden.ENDINGS, *golden.ENDINGS_WITH_SERVER] == list(read_json(golden.EXIT_STATUSES))


@pytest.mark.parametrize("ending", golden.ENDINGS)
def test_exit_statuses_stay(ending: str, tmp_path: Path) -> None:
    status = golden.find_exit_status(golden.ENDINGS[ending], tmp_path)
    assert status == read_json(golden.EXIT_STATUSES)[ending], HOW


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with golden.start_server() as url:
        yield url


@pytest.mark.slow
@pytest.mark.parametrize("ending", golden.ENDINGS_WITH_SERVER)
def test_exit_statuses_with_a_server_stay(ending: str, tmp_path: Path, server: str) -> None:
    status = golden.find_exit_status(golden.ENDINGS_WITH_SERVER[ending], tmp_path, server)
    assert status == read_json(golden.EXIT_STATUSES)[ending], HOW


def test_the_numbers_of_the_example_follow_from_its_records(tmp_path: Path) -> None:
    """The results are computed anew from the records, and each number is the one that is stored."""
    stored = golden.read_numbers(golden.EXAMPLE)
    assert len(stored) > 1000
    folder = tmp_path / "again"
    folder.mkdir()
    for name in ("profile_export.jsonl", "server_metrics.jsonl", "run.json"):
        shutil.copy(golden.EXAMPLE / name, folder)
    remake_reports(folder)
    again = golden.read_numbers(folder)
    assert again.keys() == stored.keys()
    different = {
        place: (value, again[place])
        for place, value in stored.items()
        if not math.isclose(value, again[place], rel_tol=1e-9)
    }
    assert different == {}
