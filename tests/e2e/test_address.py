"""The address: no request follows another host that Locust's own routes set, in real runs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from support.runs import free_port
from support.tiny_server import TinyServer, tiny_server

KEY = "sk-0123456789abcdef"
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
    """The host is that of the locustfile's class; it is set anew before the run, in its middle, and
    with users to come."""
    here, elsewhere = two
    (tmp_path / "locustfile.py").write_text(LOCUSTFILE.format(host=here.url))
    url = f"http://127.0.0.1:{(port := free_port())}"
    process = subprocess.Popen(
        [sys.executable, "-m", "locust", "-f", "locustfile.py", "--web-host", "127.0.0.1",
            "--web-port", str(port),
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
        ready = (lambda: len(requests.get(url + "/stats/requests",
            timeout=2).json()["workers"]) == 2) if more else (
            lambda: requests.get(url, timeout=2).ok)  # fmt: skip
        until(ready)
        another()
        form = {"user_count": 8, "spawn_rate": 4, "host": here.url}
        assert requests.post(url + "/swarm", data=form, timeout=10).json()["success"]
        until(lambda: here.asked)
        another()
        until(lambda: len(here.asked) + len(elsewhere.asked) > 40)
        assert requests.post(url + "/swarm", data={**form, "user_count": 16}, timeout=10).json()[
            "success"
        ]
        another()
        until(lambda: requests.get(url + "/stats/requests", timeout=2).json()["user_count"] == 16)
        before = len(here.asked)
        until(lambda: len(here.asked) > before + 40)
        refused = requests.post(
            url + "/swarm", data={**form, "host": elsewhere.url}, timeout=10
        ).json()
        assert refused["message"].startswith("--host cannot change during a run")
        requests.post(url + "/stop", timeout=40)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
    assert {asked.headers["authorization"] for asked in here.asked} == {f"Bearer {KEY}"}
    assert elsewhere.asked == []
    if not more:  # the next message to a worker sets the host anew, before it has a user more
        assert f"has the host {elsewhere.url}, which is ignored" in out
