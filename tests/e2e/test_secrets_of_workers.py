"""Secrets of real workers: each has its own, who lacks one takes no part, and a stranger who joins
gets none."""

from support import unpatched_locust  # noqa: F401  before anything of Locust

# isort: split
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from locust import __version__
from locust.rpc.protocol import Message

import pytest
import zmq
from support.runs import free_port
from support.tiny_server import TinyServer, tiny_server

from locust_llm.exit_status import ExitStatus
from locust_llm.gate.shares import GateStatus
from locust_llm.wire.handshake import make_hello
from locust_llm.wire.worker_messages import (
    TO_CONTROL,
    TO_SENDER,
    Begin,
    Hello,
    Refused,
    pack_message,
    unpack_to_worker,
)

# that secrets stay out of messages is in tests/locust_adapter/test_secrets_stay.py
pytestmark = pytest.mark.full
KEY = "sk-of-the-environment-0123456789abcdef"
FLAG = "flag-secret-fedcba9876543210"
TENANT = "tenant-secret-00112233445566"
OWN = "secret-of-the-locustfile-4455"
LOCUSTFILE = """
from locust import events, task
from locust_llm import LLMUser


@events.init_command_line_parser.add_listener
def flags(parser, **kw):
    parser.add_argument("--my-password", is_secret=True, include_in_web_ui=False, default="")


class ChatUser(LLMUser):
    @task
    def ask(self):
        self.chat("hello", max_tokens=1, headers={"X-Password": self.environment.parsed_options.my_password})
"""


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("LOCUST", "OPENAI"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def server() -> Iterator[TinyServer]:
    with tiny_server() as made:
        yield made


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.processes = folder, free_port(), [Any][:0]
        (folder / "locustfile.py").write_text(LOCUSTFILE)

    def start(self, name: str, *words: str, **environment: str) -> Any:
        with (self.folder / name).open("wb") as log:
            self.processes.append(subprocess.Popen(
                [sys.executable, "-m", "locust", "-f", "locustfile.py", *words], stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL, cwd=self.folder, env=os.environ | environment,
                start_new_session=True,
            ))  # fmt: skip
        return self.processes[-1]

    def master(self, server: TinyServer, *words: str, **environment: str) -> Any:
        return self.start(
            "master", "--master", "--master-bind-port", str(self.port), "--headless", "--host",
            server.url, "-u", "2",
            "--no-probe", "--report-dir", "run", *words, **environment,
        )  # fmt: skip

    def worker(self, name: str, *words: str, **environment: str) -> Any:
        return self.start(name, "--worker", "--master-port", str(self.port), *words, **environment)

    def log(self, name: str) -> str:
        return (self.folder / name).read_text()


def until(true: Callable[[], object], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    its = Site(folder)
    try:
        yield its
    finally:
        for process in its.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_a_stranger_who_joins_gets_no_secret(server: TinyServer, tmp_path: Path) -> None:
    """It does all that a worker does; Locust asks nobody who he is."""
    with site(tmp_path) as its, zmq.Context() as context:
        its.master(
            server, "--header", f"X-Api-Key: {FLAG}", "--my-password", OWN, "--expect-workers", "1",
            "-t", "5",
            OPENAI_API_KEY=KEY, LOCUST_LLM_HEADERS=f"X-Tenant: {TENANT}",
        )  # fmt: skip
        me = "stranger_0123456789"
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt_string(zmq.IDENTITY, me)
        socket.connect(f"tcp://127.0.0.1:{its.port}")
        version = make_hello([]).version
        got: list[bytes] = []

        def send(kind: str, data: Any) -> None:
            socket.send(Message(kind, data, me).serialize())

        def hear(wanted: str, seconds: float = 20) -> Any:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                if socket.poll(100):
                    got.append(socket.recv())
                    message = Message.unserialize(got[-1])
                    if message.type == wanted:
                        return message.data
            raise AssertionError(its.log("master"))

        def refused() -> str:
            _, message, _ = unpack_to_worker(hear(TO_SENDER))
            assert isinstance(message, Refused)
            return message.reason

        send("client_ready", __version__)
        hear("ack")
        send(TO_CONTROL, pack_message(1, GateStatus(1, 1, 1)))  # nobody has greeted
        send(TO_CONTROL, b"\xc1")
        send(TO_CONTROL, {"epoch": 1})
        send(TO_CONTROL, pack_message(0, Hello(version)))
        why = refused()  # which tells it what to say
        locustfile = why.rpartition("the master's is ")[2]
        send(TO_CONTROL, pack_message(0, Hello(version, locustfile)))
        assert "Authorization and no X-Api-Key and no X-Tenant" in refused()
        secrets = ("--my-password", "Authorization", "X-Api-Key", "X-Tenant")
        send(TO_CONTROL, pack_message(0, Hello(version, locustfile, secrets)))
        options = hear("spawn")["parsed_options"]
        assert options["model"] is None
        assert not {"header", "api_key_file", "my_password"} & set(options)
        socket.close()
        said = its.log("master")
    assert said.count("is damaged or has another version and was ignored") == 2
    assert "Traceback" not in said
    messages = [Message.unserialize(one) for one in got]
    assert Begin in [
        type(unpack_to_worker(one.data)[1]) for one in messages if one.type == TO_SENDER
    ]
    assert [secret for secret in (KEY, FLAG, TENANT, OWN) if secret.encode() in b"".join(got)] == []


def test_each_worker_has_its_own_secrets_and_who_lacks_one_takes_no_part(
    server: TinyServer, tmp_path: Path
) -> None:
    """The master has its key in a file; the workers, of which one is right, where they like."""
    (tmp_path / "key").write_text(KEY + "\n")
    header = ("--header", f"X-Api-Key: {FLAG}")
    with site(tmp_path) as its:
        master = its.master(
            server, *header, "--my-password", OWN, "--api-key-file", "key", "--expect-workers", "1",
            "--request-rate", "20",
        )  # fmt: skip
        both = {"OPENAI_API_KEY": KEY, "LOCUST_LLM_HEADERS": f"x-api-key: {FLAG}"}
        right = its.worker("right", "--my-password", OWN, **both)
        until(lambda: len(server.asked) > 10)
        for name, words, variables in (
            ("keyless", (*header, "--my-password", OWN), {}),
            ("headerless", ("--my-password", OWN), {"OPENAI_API_KEY": KEY}),
            ("passwordless", (), both),
            ("nothing", ("--api-key-file", "none", *header), {}),
        ):
            assert its.worker(name, *words, **variables).wait(60) == ExitStatus.REFUSED, name
        assert "--api-key-file none: No such file" in its.log("nothing")
        before = len(server.asked)
        until(lambda: len(server.asked) > before + 10)  # the run goes on
        master.send_signal(signal.SIGINT)
        assert master.wait(60) == 0, its.log("master")
        right.wait(30)
        said = its.log("master")
    assert "it has no Authorization, but the master has" in its.log("keyless")
    assert "it has no X-Api-Key, but the master has" in said
    assert "it has no --my-password, but the master has" in said
    asked = [asked.headers for asked in server.asked if asked.path == "/v1/chat/completions"]
    assert len(asked) > 10
    for name, value in (
        ("authorization", f"Bearer {KEY}"),
        ("x-api-key", FLAG),
        ("x-password", OWN),
    ):
        assert {headers.get(name) for headers in asked} == {value}
    for path in (tmp_path / "run").rglob("*"):
        assert not path.is_file() or OWN not in path.read_text(errors="replace"), path


def test_processes_of_one_command_have_them_and_nobody_else_can_join(
    server: TinyServer, tmp_path: Path
) -> None:
    with site(tmp_path) as its:
        words = (
            "--headless",
            "--host",
            server.url,
            "-u",
            "2",
            "--no-probe",
            "--report-dir",
            "run",
            "--request-count",
            "20",
        )
        done = its.start(
            "run.log", *words, "--processes", "2", "--header", f"X-Api-Key: {FLAG}",
            "--my-password", OWN,
            "--master-bind-port", str(its.port), "-L", "DEBUG", OPENAI_API_KEY=KEY,
        )  # fmt: skip
        listening = ""
        until = time.monotonic() + 30
        while done.poll() is None and time.monotonic() < until:
            listening += Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
            time.sleep(0.05)
        assert done.wait(60) == 0, its.log("run.log")
    at = {
        line.split()[1]
        for line in listening.splitlines()
        if f":{its.port:04X} 0" in line and " 0A " in line
    }
    assert at == {f"0100007F:{its.port:04X}"}  # 127.0.0.1
    assert {asked.headers.get("x-api-key") for asked in server.asked if "chat" in asked.path} == {
        FLAG
    }
    assert {asked.headers.get("authorization") for asked in server.asked} == {f"Bearer {KEY}"}
