"""--processes auto: one for each core but one, wherever Locust reads its option from."""

import os
from pathlib import Path
from typing import Any

import pytest
from support.command_line import parse
from support.unpatched_locust import get_empty_argument_parser, setup_parser_arguments

from locust_llm.locust_adapter.command_line_parser import PROCESSES, add_options, check_options
from locust_llm.settings.run_refusal import RunRefused


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cores(monkeypatch, 8)
    monkeypatch.delenv(PROCESSES, raising=False)
    monkeypatch.chdir(tmp_path)


def cores(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(count)))


def fresh(*files: str) -> Any:
    parser = get_empty_argument_parser(default_config_files=list(files))
    setup_parser_arguments(parser)
    add_options(parser, before_load=lambda options: None)
    return parser


@pytest.mark.parametrize(("count", "processes"), [(8, 7), (2, 1), (1, 1)])
def test_one_for_each_core_but_one(
    monkeypatch: pytest.MonkeyPatch, count: int, processes: int
) -> None:
    cores(monkeypatch, count)
    options = parse("--processes", "auto")
    assert options.processes == processes  # before Locust forks: it takes a number
    assert check_options(options).processes == processes


@pytest.mark.parametrize(("word", "processes"), [("4", 4), ("-1", -1), (" AUTO ", 7), ("", None)])
def test_locusts_own_numbers_stay(word: str, processes: int | None) -> None:
    assert parse(f"--processes={word}").processes == processes


@pytest.mark.parametrize("word", ["all", "1.5", "auto+1"])
def test_what_is_neither(word: str) -> None:
    with pytest.raises(
        RunRefused,
        match=rf"^--processes must be a whole number or auto, got '{word.replace('+', '.')}'$",
    ):
        fresh().parse(["--processes", word])


def test_of_the_environment_which_locust_reads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROCESSES, "auto")
    assert fresh().parse_args(["-f", "a.py"]).processes == 7
    # Locust's own, for its form and in a worker that begins: no type of ours
    later = get_empty_argument_parser()
    setup_parser_arguments(later)
    assert later.parse([]).processes == 7


def test_of_a_file() -> None:
    Path("locust.conf").write_text("processes = auto\n")
    assert fresh("locust.conf").parse_args(["-f", "a.py"]).processes == 7
