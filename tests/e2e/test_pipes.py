"""A reader that goes away, as head does, is no error: no command leaves a traceback."""

import os
import subprocess
import sys

import pytest
from support.tiny_server import tiny_server

from locust_llm.commands import COMMANDS

full = pytest.mark.full


def with_closed_pipe(*words: str, both: bool = False) -> tuple[int, str]:
    """(exit status, stderr). ``both``: stderr goes into the same pipe."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "locust_llm", *words],
            stdout=writing, stderr=writing if both else subprocess.PIPE, text=True, timeout=60,
            check=False,
        )  # fmt: skip
    finally:
        os.close(writing)
    return done.returncode, done.stderr or ""


def test_check_goes_on_to_its_own_status() -> None:
    with tiny_server(started=False) as nobody:
        status, errors = with_closed_pipe("check", nobody.url)
    assert (status, "Traceback" in errors) == (1, False)


@pytest.mark.parametrize("command", ["history", pytest.param("all", marks=full)])
def test_help_into_a_closed_pipe(command: str) -> None:
    for name in COMMANDS if command == "all" else [command]:
        assert with_closed_pipe(name, "--help") == (0, "")


def test_an_error_into_a_closed_pipe_has_the_status_of_the_signal() -> None:
    assert with_closed_pipe("no-command", both=True)[0] == 141
