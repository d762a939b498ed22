"""Secrets: a run against a server that quotes every key it is given, and none in anything that the
run writes or serves."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from support.tiny_server import Asked, TinyServer, tiny_server

KEY = "sk-of-the-environment-0123456789abcdef"
FLAG = "flag-secret-fedcba9876543210"
TENANT = "tenant-secret-00112233445566"
SESSION = "session-secret-778899aabbccdd"
SECRETS = {KEY, FLAG, TENANT, SESSION}

LOCUSTFILE = """
from locust import events, task
from locust_llm import LLMUser


class User(LLMUser):
    @task
    def ask(self):
        self.chat("hello", headers={"X-Session-Token": "SECRET"})


@events.init.add_listener
def routes(environment, **kw):
    if environment.web_ui is not None:
        with open("routes", "w") as file:
            for rule in environment.web_ui.app.url_map.iter_rules():
                print(rule.rule, *rule.methods, file=file)
""".replace("SECRET", SESSION)


def echo(asked: Asked) -> tuple[int, Any]:
    """Each way of failing in turn, and all that came with the request in what it says."""
    told = "you sent " + "; ".join(f"{name}: {value}" for name, value in asked.headers.items())
    number = int(asked.headers["x-request-id"].rpartition("-")[2]) % 8
    chunk = {"choices": [{"index": 0, "delta": {"content": "a"}}]}
    return (
        (401, {"error": {"message": told, "code": 401}}),
        (500, f"<html><pre>{told}</pre></html>"),
        (200, [chunk, {"error": {"message": told}}]),
        (200, [chunk, {"error": told}]),
        (200, f"no JSON, but {told}"),
        (429, {"detail": [{"msg": told}]}),
        (
            200,
            [
                chunk,
                {
                    "choices": [
                        {"index": 0, "delta": {}, "finish_reason": asked.headers["x-api-key"]}
                    ]
                },
            ],
        ),
        (400, "x" * 4000 + told),  # where a message is cut off
    )[number]


@pytest.fixture
def server() -> Iterator[TinyServer]:
    with tiny_server() as made:
        made.chat = echo
        yield made


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def command(server: TinyServer, *words: str) -> list[str]:
    Path("locustfile.py").write_text(LOCUSTFILE)
    return [
        sys.executable, "-m", "locust", "-f", "locustfile.py", "--host", server.url, "-u", "16",
        "--no-probe",
        "--report-dir", "run", "--header", f"X-Api-Key: {FLAG}", "--model", "tiny", *words,
    ]  # fmt: skip


def environment() -> dict[str, str]:
    return os.environ | {"OPENAI_API_KEY": KEY, "LOCUST_LLM_HEADERS": f"X-Tenant: {TENANT}"}


def check(texts: dict[str, str]) -> None:
    shown = [(name, secret) for name, text in texts.items() for secret in SECRETS if secret in text]
    assert shown == []


def written() -> dict[str, str]:
    return {
        str(path): path.read_text(errors="replace")
        for path in Path("run").rglob("*")
        if path.is_file()
    }


@pytest.mark.full
@pytest.mark.parametrize(
    "more", [(), ("--processes", "2", "--max-retries", "1")], ids=["one process", "two workers"]
)
def test_no_file_and_no_line_on_the_console_has_one(
    server: TinyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = subprocess.run(
        command(server, "--headless", "--request-count", "32", "-L", "DEBUG", *more),
        env=environment(), text=True,
        stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    sent = [asked.headers for asked in server.asked if asked.path == "/v1/chat/completions"]
    assert len(sent) >= 32
    for name, secret in (("x-api-key", FLAG), ("x-tenant", TENANT), ("x-session-token", SESSION)):
        assert {headers[name] for headers in sent} == {secret}
    files = written()
    assert {"run/run.json", "run/profile_export.jsonl", "run/summary.md", "run/report.html"} <= set(
        files
    )
    assert files["run/profile_export.jsonl"].count("***") > 100  # they were quoted, and hidden
    check({"stdout": done.stdout, "stderr": done.stderr, **files})


@pytest.mark.slow
def test_no_page_of_the_web_ui_has_one(
    server: TinyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        command(server, "--web-host", "127.0.0.1", "--web-port", str(port)), env=environment(),
        text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    pages: dict[str, str] = {}

    def look(when: str) -> None:
        for line in Path("routes").read_text().splitlines():
            path, *methods = line.split()
            if "GET" in methods and "<" not in path:
                pages[f"{when} {path}"] = requests.get(url + path, timeout=10).text

    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                if requests.get(url, timeout=2).ok:
                    break
            except requests.RequestException:
                time.sleep(0.1)
        form = {"user_count": 16, "spawn_rate": 16, "host": server.url}
        answer = requests.post(url + "/swarm", data=form, timeout=10)
        pages["swarm"] = answer.text
        assert answer.json()["success"], answer.text
        while len(server.asked) < 20 and time.monotonic() < until:
            time.sleep(0.1)
        look("running")
        pages["stop"] = requests.post(url + "/stop", timeout=40).text
        while not Path("run/report.html").exists() and time.monotonic() < until + 60:
            time.sleep(0.1)
        assert Path("run/report.html").exists()
        look("stopped")
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        out, _ = process.communicate(timeout=20)
    assert len(pages) > 10
    assert "***" in pages["stopped /stats/requests"]
    check(pages | written() | {"console": out})
