"""Memory source options: the command comes from the command line of this process alone."""

from support import unpatched_locust  # noqa: F401  before anything of Locust

# isort: split
import os
import sys
from argparse import Namespace

from locust.rpc.protocol import Message

import pytest
from support.command_line import parse

from locust_llm.locust_adapter.command_line_parser import build_settings
from locust_llm.locust_adapter.memory_source_options import read_memory_source
from locust_llm.locust_adapter.withheld_options import strip_secrets
from locust_llm.server.server_looks import METRICS_ALONE, MemorySource
from locust_llm.settings.run_options import Settings
from locust_llm.settings.run_refusal import RunRefused

FLAG = "--memory-command"
PRINTS = f"{sys.executable} -c 'print(7)'"


def given(monkeypatch: pytest.MonkeyPatch, *words: str, headless: bool = True) -> Namespace:
    """The command line has these words, and they are parsed."""
    monkeypatch.setattr(sys, "argv", ["locust", *words])
    return parse(*words, headless=headless)


def read(options: Namespace) -> MemorySource:
    return read_memory_source(options, build_settings(options))


def test_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(given(monkeypatch)) == METRICS_ALONE
    options = given(monkeypatch, "--soak", "--pid", str(os.getpid()))
    assert read(options) == MemorySource(pid=os.getpid())
    options = given(monkeypatch, "--soak", FLAG, PRINTS)
    assert read(options) == MemorySource(command=PRINTS)
    assert options.memory_command is None


def test_a_command_that_something_else_has_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    options = given(monkeypatch, "--soak")
    options.memory_command = PRINTS  # as a configuration file does
    with pytest.raises(RunRefused, match="command line only, not in a configuration file"):
        read_memory_source(options, Settings(soak=True))
    monkeypatch.setenv("LOCUST_LLM_MEMORY_COMMAND", PRINTS)
    with pytest.raises(RunRefused, match="only, not in LOCUST_LLM_MEMORY_COMMAND"):
        read_memory_source(given(monkeypatch, "--soak", FLAG, PRINTS), Settings(soak=True))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--pid", "7"), "need --soak"),
        (("--soak", "--pid", "x"), "takes the number of a process, got 'x'"),
        (("--soak", "--pid", "7", FLAG, PRINTS), "exclude each other"),
        (("--soak", "--pid", "99999999"), "there is no process 99999999"),
        (("--soak", FLAG, "/no/such"), f"{FLAG} cannot be started"),
        (
            ("--soak", FLAG, f"{sys.executable} -c 'print(1, 2, sep=chr(97))'"),
            "must print the bytes",
        ),
        (("--soak", FLAG, PRINTS, "--worker"), "belong to the process that runs the load test"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunRefused, match=why):
        read(given(monkeypatch, *words))


def test_a_web_page_starts_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunRefused, match="a web page starts no commands"):
        read(given(monkeypatch, "--soak", FLAG, PRINTS, headless=False))


def test_neither_workers_nor_reports_get_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "sk-0123456789abcdef"
    options = given(monkeypatch, "--soak", FLAG, f"sh -c 'echo 7; : token={key}'", "--pid", "7")
    assert key not in build_settings(options).command
    assert "--memory-command" in build_settings(options).command
    sent = strip_secrets(Message("spawn", {"parsed_options": vars(options)}, "w"))
    assert not {"memory_command", "pid"} & sent.data["parsed_options"].keys()
    assert key.encode() not in sent.serialize()
