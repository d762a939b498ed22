"""The command refuses in one line, with status 5, before any load; what it takes, it writes without
a secret."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from support.runs import CHAT
from support.tiny_server import TinyServer, tiny_server

from locust_llm.exit_status import ExitStatus

KEY: Final = "sk-0123456789"
SECRET: Final = "s3cret"


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("LOCUST", "OPENAI"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def server() -> Iterator[TinyServer]:
    with tiny_server() as server:
        yield server


class Ended(NamedTuple):
    status: int
    out: str
    err: str


def processes_of(session: int) -> list[str]:
    """The processes of a session that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue  # it has just ended
        state, _parent, _group, its_session = rest.split()[:4]
        if int(its_session) == session and state != "Z":
            found.append(name)
    return found


def locust(*words: str, **environment: str) -> Ended:
    """The real command, in a session of its own of which nothing is left a few seconds later."""
    process = subprocess.Popen(
        [sys.executable, "-m", "locust", "-f", CHAT, "--headless", *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | environment, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=60)
        until = time.monotonic() + 10
        while (left := processes_of(process.pid)) and time.monotonic() < until:
            time.sleep(0.02)
        assert left == []
        return Ended(process.returncode, out, err)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        pytest.param(
            "--processes 2 --prefill-concurrency x",
            "--prefill-concurrency must be a whole number, got 'x'",
            marks=pytest.mark.full,
        ),
        pytest.param(
            "--processes 2 -u 2 --prefill-concurrency 3",
            "--prefill-concurrency 3 is above the 2 users (-u): at most 2 requests can run at the "
            "same time",
            marks=pytest.mark.full,
        ),
        (
            "--host {url} --processes 2 --model mine",
            "--model: the server has no model 'mine'; it has: tiny, other; to send it anyway, use "
            "--no-model-check",
        ),
        pytest.param(
            "--host {url} --report-dir file/run",
            "the report folder cannot be written: file/run: Not a directory (use --report-dir to "
            "choose another folder)",
            marks=pytest.mark.full,
        ),
        pytest.param(
            "--host {url} --header " + SECRET,
            "--header must be NAME: VALUE, got one without a colon",
            marks=pytest.mark.full,
        ),
    ],
)
def test_the_command_refuses_in_one_line_and_leaves_nothing(
    words: str, line: str, server: TinyServer
) -> None:
    Path("file").touch()
    ended = locust(*words.format(url=server.url).split(), OPENAI_API_KEY=KEY)
    assert ended == Ended(5, "", f"locust-llm: error: {line}\n")
    assert "/v1/chat/completions" not in server.paths()


@pytest.mark.slow
def test_the_command_refuses_a_host_that_cannot_be_reached() -> None:
    with tiny_server(started=False) as nobody:  # the port is taken, and nobody listens
        ended = locust(
            "--host",
            nobody.url,
            "--processes",
            "2",
            "--header",
            f"X-Key: {SECRET}",
            OPENAI_API_KEY=KEY,
        )
    assert (ended.status, ended.out, ended.err.count("\n")) == (5, "", 1)
    assert ended.err.startswith(f"locust-llm: error: cannot reach {nobody.url}: ")
    assert "refused" in ended.err
    assert SECRET not in ended.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "processes",
    [
        pytest.param([], id="one process", marks=pytest.mark.full),
        pytest.param(["--processes", "2"], id="two workers"),
    ],
)
def test_a_run_sends_the_key_and_the_headers_and_writes_them_nowhere(
    server: TinyServer, processes: list[str]
) -> None:
    server.models = (404, {})
    server.tokenize = lambda text: len(text.split())
    words = [
        "--host",
        server.url,
        "-u",
        "2",
        "--model",
        "mine",
        "--request-count",
        "6",
        "--report-dir",
        "run",
    ]
    ended = locust(*words, *processes, "--header", f"X-Key: {SECRET}", OPENAI_API_KEY=KEY)
    assert ended.status == 0, ended.err
    sent = [asked for asked in server.asked if "x-locust-llm-probe" not in asked.headers]
    chats: list[Any] = [asked for asked in sent if asked.path == "/v1/chat/completions"]
    assert len(chats) == 6
    for one in server.asked:
        assert (one.headers["authorization"], one.headers["x-key"]) == (f"Bearer {KEY}", SECRET)
    note = "the server does not list its models (HTTP 404 for /v1/models): --model was not checked"
    assert note in ended.err
    written = {path.name: path.read_text() for path in Path("run").rglob("*") if path.is_file()}
    assert {"run.json", "profile_export.jsonl", "summary.md", "report.html"} <= set(written)
    assert note in written["run.json"]
    for text in (ended.out, ended.err, *written.values()):
        assert KEY not in text
        assert SECRET not in text


# -- numbers ---------------------------------------------------------------------------------------

REAL: Final[tuple[tuple[tuple[str, ...], dict[str, str]], ...]] = (
    (("--request-count", "9" * 23), {}),
    (("--random-seed", "9" * 40), {}),
    (("-t", "9" * 400), {}),
    ((), {"LOCUST_LLM_REQUEST_TIMEOUT": "1e309"}),
    ((), {"LOCUST_USERS": "9" * 23}),
    ((), {"LOCUST_SPAWN_RATE": "9" * 9}),
    (("--processes", "99999"), {}),
)


@pytest.mark.full  # tests/text/test_numbers.py has the lines, and the test above the command
@pytest.mark.parametrize(("words", "variables"), REAL)
def test_the_command_refuses_with_one_line_and_its_status(
    words: tuple[str, ...], variables: dict[str, str]
) -> None:
    command = [
        sys.executable,
        "-m",
        "locust_llm",
        "run",
        "--headless",
        "--host",
        "127.0.0.1:9",
        *words,
    ]
    environment: dict[str, Any] = {**os.environ, **variables}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert done.returncode == ExitStatus.REFUSED, done.stderr
    lines = [line for line in done.stderr.splitlines() if "locust-llm: error:" in line]
    assert len(lines) == 1
    assert "127.0.0.1:9" not in lines[0]  # nobody was asked
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [
    ("-m", "locust_llm", "report", "."),
    ("-m", "locust_llm", "run", "--headless", "--host", "http://127.0.0.1:9"),
    ("-m", "locust", "-f", CHAT, "--headless", "--host", "http://127.0.0.1:9"),
])  # fmt: skip
def test_under_a_limit_on_memory_nothing_begins(words: tuple[str, ...]) -> None:
    """Libraries would abort the process somewhere on its way."""
    limited = f"ulimit -v 400000; exec {shlex.join([sys.executable, *words])}"
    done = subprocess.run(
        ["bash", "-c", limited], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == ExitStatus.REFUSED, done.stderr
    assert "ulimit -v allows 390 MB of memory, and 512 MB are needed" in done.stderr
    assert "Traceback" not in done.stderr
