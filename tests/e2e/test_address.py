"""The address: requests go to the server that was checked at the start, and the key with them, whoever sets another host."""

from support import unpatched_locust  # noqa: F401  before anything of Locust

# isort: split
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from locust.env import Environment

import pytest
import requests
from msgspec.structs import replace
from support.runs import free_port
from support.tiny_server import TinyServer, tiny_server

from locust_llm import LLMUser
from locust_llm.run.preflight import the_address, written_host

HOME = "http://home:8000"
KEY = "sk-0123456789abcdef"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> tuple[type[LLMUser], Environment]:
    """A class, and the environment of a run whose order has come."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    kind = type("Kind", (LLMUser,), {})
    environment = Environment(user_classes=[kind], host=HOME)
    user = kind(environment)
    user.sender.settings = replace(user.sender.settings, host=HOME)
    return kind, environment


def where(user: LLMUser) -> str:
    prepared, wire = user._prepare(b"{}", "id", None)
    assert f"Host: {(prepared.url or '').split('/')[2]}\r\n".encode() in wire
    return (prepared.url or "").removesuffix("/v1/chat/completions")


def test_a_host_that_is_set_later_is_not_followed(
    made: tuple[type[LLMUser], Environment], caplog: pytest.LogCaptureFixture
) -> None:
    kind, environment = made
    early = kind(environment)
    assert where(early) == HOME
    assert caplog.records == []
    kind.host = "http://elsewhere:1"  # as Locust's POST /user does
    environment.host = "http://elsewhere:2"  # as Locust's own POST /swarm does, and its message to a worker
    late = kind(environment)
    late.host = "http://elsewhere:3"
    assert {where(early), where(late), where(kind(environment))} == {HOME}
    assert late.client.base_url == HOME
    (line,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert line.getMessage() == (
        "the user class Kind has the host http://elsewhere:1, which is not followed: the requests of this run go to "
        "http://home:8000, the address that was checked at its start"
    )


def test_the_next_run_may_go_elsewhere(made: tuple[type[LLMUser], Environment]) -> None:
    kind, environment = made
    user = kind(environment)
    assert where(user) == HOME
    user.sender.settings = replace(user.sender.settings, host="http://next")
    assert where(user) == "http://next"


def test_a_host_with_v1_is_the_same_one(
    made: tuple[type[LLMUser], Environment], caplog: pytest.LogCaptureFixture
) -> None:
    kind, environment = made
    kind.host = "home:8000/v1/"
    assert where(kind(environment)) == HOME
    assert caplog.records == []


def test_the_key_goes_to_no_other_host_with_plain_requests() -> None:
    """Whatever base URL, or URL, the requests of a locustfile have."""
    with tiny_server() as here, tiny_server() as elsewhere:
        user = type("Kind", (LLMUser,), {})(Environment(user_classes=[], host=here.url))
        user.sender._headers = 0, {"Authorization": f"Bearer {KEY}", "X-Api-Key": KEY}
        user = type(user)(user.environment)
        user.client.get("/v1/models")
        user.client.get(elsewhere.url + "/v1/models")
        user.client.base_url = elsewhere.url
        user.client.get("/v1/models")
        assert [asked.headers["x-api-key"] for asked in here.asked] == [KEY]
        assert len(elsewhere.asked) == 2
        assert KEY not in str(elsewhere.asked)


def test_the_host_of_the_locustfile_is_that_of_all_its_classes_or_none() -> None:
    every: Any = type("Every", (), {"host": None})
    ours: Any = type("Ours", (every,), {})
    assert written_host(ours, every) is None
    plain: Any = type("Plain", (every,), {"host": "http://one"})
    assert written_host(ours, every) is None  # of a server that is not asked for chats
    first: Any = type("First", (ours,), {"host": "http://one"})
    type("Second", (first,), {})
    assert written_host(ours, every) == "http://one"
    plain.host = "http://two"
    assert written_host(ours, every) is None
    plain.host = None
    type("Third", (ours,), {"host": "http://three"})
    assert written_host(ours, every) is None


@pytest.mark.parametrize(
    ("now", "checked", "found", "lines"),
    [
        ("http://one/v1", "http://one", "http://one", 0),
        ("http://two", "http://one", "http://one", 1),
        (None, "http://one", "http://one", 0),
        ("two:1/v1", "", "http://two:1", 0),  # no command line, no form: an environment of somebody's own
    ],
)
def test_a_run_begins_at_the_address_that_was_checked(
    now: str | None, checked: str, found: str, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert the_address(now, checked) == found
    assert len(caplog.records) == lines


# -- with Locust -------------------------------------------------------------------------------------------------------

LOCUSTFILE = """
from locust import constant, task
from locust_llm import LLMUser


class ChatUser(LLMUser):
    host = "{host}"
    wait_time = constant(0.1)

    @task
    def ask(self):
        self.chat("hello", max_tokens=1)
"""


@pytest.fixture
def two() -> Iterator[tuple[TinyServer, TinyServer]]:
    with tiny_server() as here, tiny_server() as elsewhere:
        yield here, elsewhere


@pytest.mark.full
@pytest.mark.parametrize("more", [(), ("--processes", "2")], ids=["one process", "two workers"])
def test_no_request_follows_what_locusts_own_routes_set(
    two: tuple[TinyServer, TinyServer], tmp_path: Path, more: tuple[str, ...]
) -> None:
    """The host is that of the locustfile's class; it is set anew before the run, in its middle, and with users to come."""
    here, elsewhere = two
    (tmp_path / "locustfile.py").write_text(LOCUSTFILE.format(host=here.url))
    url = f"http://127.0.0.1:{(port := free_port())}"
    process = subprocess.Popen(
        [sys.executable, "-m", "locust", "-f", "locustfile.py", "--web-host", "127.0.0.1", "--web-port", str(port),
         "--report-dir", "run", "--no-probe", "--class-picker", *more],
        cwd=tmp_path, env=os.environ | {"OPENAI_API_KEY": KEY}, stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip

    def until(true: Any) -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                if true():
                    return
            except (requests.RequestException, KeyError):
                pass
            time.sleep(0.05)
        raise AssertionError(process.communicate()[0] if process.poll() is not None else "too late")

    def another() -> None:
        user = {"user_class_name": "ChatUser", "host": elsewhere.url}
        assert requests.post(url + "/user", json=user, timeout=5).status_code == 201

    try:
        ready = (lambda: len(requests.get(url + "/stats/requests", timeout=2).json()["workers"]) == 2) if more else (
            lambda: requests.get(url, timeout=2).ok)  # fmt: skip
        until(ready)
        another()
        form = {"user_count": 8, "spawn_rate": 4, "host": here.url}
        assert requests.post(url + "/swarm", data=form, timeout=10).json()["success"]
        until(lambda: here.asked)
        another()
        until(lambda: len(here.asked) + len(elsewhere.asked) > 40)
        assert requests.post(url + "/swarm", data={**form, "user_count": 16}, timeout=10).json()["success"]
        another()
        until(lambda: requests.get(url + "/stats/requests", timeout=2).json()["user_count"] == 16)
        before = len(here.asked)
        until(lambda: len(here.asked) > before + 40)
        refused = requests.post(url + "/swarm", data={**form, "host": elsewhere.url}, timeout=10).json()
        assert refused["message"].startswith("--host cannot change while a run is on")
        requests.post(url + "/stop", timeout=40)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
    assert {asked.headers["authorization"] for asked in here.asked} == {f"Bearer {KEY}"}
    assert elsewhere.asked == []
    if not more:  # the next message to a worker sets the host anew, before it has a user more
        assert f"has the host {elsewhere.url}, which is not followed" in out
