"""``locust-llm quick``, and what a person without an address is shown: at a pseudo-terminal, against
servers at the usual ports."""

import os
import pty
import re
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from support.tiny_server import tiny_server

from locust_llm.demo_command import start_simulator
from locust_llm.exit_status import ExitStatus
from locust_llm.server.local_servers import USUAL_PORTS

pytestmark = pytest.mark.xdist_group("usual ports")  # each test looks at all of them

KEY: Final = "sk-of-the-terminal"
LEAST_S: Final = 240


@contextmanager
def listen_at_a_usual_port() -> Iterator[tuple[int, list[bytes]]]:
    """Yields the port of a server that counts its connections, and what each of them sent."""
    heard: list[bytes] = []
    answer = b'{"data": [{"id": "tiny"}]}'

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    heard.append(connection.recv(65536))
                    connection.sendall(
                        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer)
                    )

    for port in USUAL_PORTS:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)) as listener:
            threading.Thread(target=serve, args=(listener,), daemon=True).start()
            try:
                yield port, heard
            finally:
                listener.shutdown(socket.SHUT_RDWR)
            return
    pytest.skip("each usual port is in use")


def run_command(*words: str, **how: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "locust_llm", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LEAST_S,
        check=False,
        **how,
    )


def run_at_terminal(*words: str, cwd: Path) -> tuple[int, str]:
    """(exit status, all output) of a command whose streams are a terminal."""
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "locust_llm", *words],
        stdin=its,
        stdout=its,
        stderr=its,
        cwd=cwd,
        env={**os.environ, "OPENAI_API_KEY": KEY, "COLUMNS": "200"},
        start_new_session=True,
    )
    os.close(its)
    until = time.monotonic() + LEAST_S
    text = b""
    with suppress(OSError):  # EIO: the other side has closed it
        while time.monotonic() < until:
            if select.select([ours], [], [], 0.5)[0]:
                text += os.read(ours, 65536)
    os.close(ours)
    return process.wait(LEAST_S), text.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("words", [("run", "--headless", "-t", "1"), ("check",), ("quick",)])
def test_without_a_terminal_nobody_is_asked(words: tuple[str, ...]) -> None:
    with listen_at_a_usual_port() as (_, heard):
        done = run_command(*words)
    assert (done.returncode, done.stdout, heard) == (ExitStatus.REFUSED, "", [])
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("locust-llm: error: ")


@pytest.mark.parametrize("words", [("run", "--headless", "-t", "1"), ("check",)])
def test_a_person_is_shown_the_server_and_the_command(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    with listen_at_a_usual_port() as (port, heard):
        status, text = run_at_terminal(*words, cwd=tmp_path)
    assert status == ExitStatus.REFUSED
    (asked,) = heard  # no load, no second look
    assert asked.startswith(b"GET /v1/models HTTP/1.1\r\n")
    assert KEY.encode() not in asked
    assert re.search(rf"^  localhost:{port}  .*model tiny$", text, re.MULTILINE), text
    assert re.search(rf"^  locust-llm {words[0]} .*localhost:{port}", text, re.MULTILINE), text
    assert "locust-llm: error: " in text
    assert list(tmp_path.iterdir()) == []


def test_quick_takes_the_only_server_of_this_machine(tmp_path: Path) -> None:
    """Its check finds that the server answers no chat. Where another server answers too, a person
    chooses."""
    with listen_at_a_usual_port() as (port, heard):
        status, text = run_at_terminal("quick", cwd=tmp_path)
    assert heard[0].startswith(b"GET /v1/models HTTP/1.1\r\n")
    assert KEY.encode() not in heard[0]
    if "To test one of them:" in text:
        assert (status, len(heard)) == (ExitStatus.REFUSED, 1)
        assert f"  locust-llm quick localhost:{port}" in text
        return
    assert f"On this machine answers localhost:{port}" in text
    assert status == ExitStatus.FAILED_REQUESTS, text
    assert "PROBLEM" in text
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_cannot_be_tested_gets_no_load(tmp_path: Path) -> None:
    with tiny_server() as server:
        server.chat_status = 500
        done = run_command("quick", server.url, cwd=tmp_path)
    assert done.returncode == ExitStatus.FAILED_REQUESTS
    assert "PROBLEM" in done.stdout
    assert list(tmp_path.iterdir()) == []


def run_shorter(seconds: int, *words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """``locust-llm quick`` with so many seconds in place of its minute."""
    program = (
        "import sys\n"
        "from locust_llm.__main__ import main\n"
        "from locust_llm.lab.quick import quick_command\n"
        f"quick_command.RUN_TIME = '{seconds}s'\n"
        "sys.exit(main(['quick', *sys.argv[1:]]))\n"
    )
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LEAST_S,
        check=False,
        cwd=cwd,
    )


@pytest.mark.slow
def test_the_first_minute_of_a_server_with_known_times(tmp_path: Path) -> None:
    """A first token comes after 20 ms and a token each 2 ms, whatever the load: all users fit. A
    busy machine reads tokens late, some of them together, or leaves the question open."""
    with start_simulator("--ttft-ms", "20", "--itl-ms", "2") as url:
        done = run_shorter(20, url, "-u", "2", "--output-tokens-mean", "20", cwd=tmp_path)
    assert done.returncode in (ExitStatus.OK, ExitStatus.INCONCLUSIVE), done.stderr
    found = re.search(
        r"A single user gets the first token after ([\d.]+) ms, then ([\d.]+) tokens/s", done.stdout
    )
    assert found is not None, done.stdout
    assert 20 <= float(found[1]) < 60
    assert 250 < float(found[2]) < 1000
    assert re.search(
        r"^(At least (1 user fits|2 users fit) within 3 s|A minute was too short)",
        done.stdout,
        re.MULTILINE,
    ), done.stdout
    assert f"run: locust-llm run --headless --host={url} --output-tokens-mean=20.0" in done.stdout
    assert "SIMULATED" in done.stdout
    (folder,) = (tmp_path / "reports").iterdir()
    assert f"report: reports/{folder.name}/report.html" in done.stdout
    assert (folder / "report.html").stat().st_size


@pytest.mark.slow
def test_a_slow_server_gets_no_number(tmp_path: Path) -> None:
    """One answer takes 32 s, so three seconds show nothing."""
    with start_simulator("--ttft-ms", "100", "--itl-ms", "250") as url:
        done = run_shorter(3, url, cwd=tmp_path)
    assert "so the speed of the server is unknown." in done.stdout, done.stdout + done.stderr
    assert "A minute was too short to find how many users fit" in done.stdout
    assert "For an answer, run: locust-llm run" in done.stdout
