"""Ports: one that another program has is refused before the load, in one line with what to do."""

from support import unpatched_locust  # noqa: F401  before anything of Locust

# isort: split
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.command_line import parse
from support.tiny_server import tiny_server

from locust_llm.exit_status import ExitStatus
from locust_llm.locust_adapter.ports import refuse_taken_ports
from locust_llm.settings.run_refusal import RunRefused

HAS = "another program uses it: choose another port"


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("--web-port", "PORT", "--web-host", "127.0.0.1"),
            f"--web-port 127.0.0.1:PORT cannot be opened: {HAS}",
        ),
        (("--web-port", "PORT"), f"--web-port PORT cannot be opened: {HAS}"),
        (("--web-port", "PORT", "--web-host", "*"), f"--web-port PORT cannot be opened: {HAS}"),
        (
            ("--headless", "--metrics-port", "PORT"),
            f"--metrics-port 127.0.0.1:PORT cannot be opened: {HAS}",
        ),
        (
            ("--headless", "--master", "--master-bind-port", "PORT"),
            f"--master-bind-port PORT cannot be opened: {HAS}",
        ),
        (
            (
                "--headless",
                "--master",
                "--master-bind-port",
                "PORT",
                "--master-bind-host",
                "127.0.0.1",
            ),
            f"--master-bind-port 127.0.0.1:PORT cannot be opened: {HAS}",
        ),
    ],
)
def test_a_port_that_another_has_is_refused(words: tuple[str, ...], line: str, taken: int) -> None:
    with pytest.raises(RunRefused) as refused:
        refuse_taken_ports(
            parse(*(word.replace("PORT", str(taken)) for word in words), headless=False)
        )
    assert str(refused.value) == line.replace("PORT", str(taken))


def test_what_is_no_port_is_refused_too() -> None:
    with pytest.raises(RunRefused, match="--metrics-port takes a port or ADDR:PORT, got 'nine'"):
        refuse_taken_ports(parse("--metrics-port", "nine"))


@pytest.mark.parametrize(
    "words",
    [
        ("--headless", "--web-port", "PORT"),
        ("--worker", "--web-port", "PORT", "--metrics-port", "PORT"),
        ("--headless", "--master", "--processes", "2", "--master-bind-port", "PORT"),
        ("--headless", "--master", "--master-bind-host", "eth9", "--master-bind-port", "PORT"),
        ("--web-port", "0", "--metrics-port", "0"),
    ],
)
def test_one_that_is_not_opened_or_free_is_not(words: tuple[str, ...], taken: int) -> None:
    refuse_taken_ports(parse(*(word.replace("PORT", str(taken)) for word in words), headless=False))


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("--web-port", "PORT"), ("--headless", "--metrics-port", "PORT")]
)
def test_a_process_ends_with_one_line_and_status_5(words: tuple[str, ...], taken: int) -> None:
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LOCUST", "OPENAI"))
    }
    with tiny_server() as server:
        server.start()
        command = [
            sys.executable,
            "-m",
            "locust_llm",
            "run",
            "--host",
            server.url,
            "-u",
            "1",
            "-t",
            "1",
        ]
        command += [word.replace("PORT", str(taken)) for word in words]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env=clean, check=False
        )
        assert server.asked == []
    assert done.returncode == ExitStatus.REFUSED
    assert (done.stdout, done.stderr.count("\n"), HAS in done.stderr) == ("", 1, True), done.stderr
