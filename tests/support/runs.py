"""Runs: run a whole load test as a process against a server of this process, and read its
records."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from locust_llm.demo_command import start_simulator
from locust_llm.records.profile_export_jsonl import parse_record_line
from locust_llm.records.record import Record

ROOT = Path(__file__).parents[2]
CHAT = str(ROOT / "locustfiles" / "chat.py")


class Server:
    """Holds a simulator and its truth."""

    def __init__(self, url: str) -> None:
        self.url = url

    def truth(self) -> dict[str, Any]:
        return requests.get(self.url + "/truth", timeout=10).json()

    def reset(self) -> None:
        requests.post(self.url + "/truth/reset", timeout=10).raise_for_status()

    def rows(self) -> list[dict[str, Any]]:
        """Returns one row per request of the load, as probes have none of our ids."""
        return [
            row
            for row in self.truth()["requests"]
            if "-" in str(row["id"]) and row["id"].count("-") >= 2
        ]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with start_simulator("--truth", "full") as url:
        yield Server(url)


def command(server: Server, folder: Path, *words: str, locustfile: str = CHAT) -> list[str]:
    return [
        sys.executable, "-m", "locust", "-f", locustfile, "--headless", "--host",
        server.url.removeprefix("http://"),
        "--report-dir", str(folder), *words,
    ]  # fmt: skip


def run(server: Server, folder: Path, *words: str, **how: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(server, folder, *words, **how),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def records(folder: Path) -> list[Record]:
    return [
        parse_record_line(line)
        for line in (folder / "profile_export.jsonl").read_bytes().splitlines()
    ]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
