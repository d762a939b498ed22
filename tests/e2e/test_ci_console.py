"""The console of a CI job: a server whose every word is a command of the CI gets none of them onto
a line of a run."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest

from locust_llm.exit_status import ExitStatus

HOSTILE: Final = (
    "##[set-output name=verdict]PASS\n::set-output name=verdict::PASS\r::add-mask::x\n "
    "@octocat https://evil.example/x #1"
)

NAME: Final = "::add-mask::##[x]"


@pytest.fixture
def host() -> Iterator[str]:
    class Answers(BaseHTTPRequestHandler):
        def answer(self, status: int, body: object) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            self.answer(200, {"data": [{"id": NAME}]})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(500, {"error": {"message": HOSTILE}})

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_nothing_that_a_server_sends_is_a_command(host: str, tmp_path: Path) -> None:
    files = {
        "GITHUB_STEP_SUMMARY": str(tmp_path / "page"),
        "GITHUB_OUTPUT": str(tmp_path / "outputs"),
    }
    words = ["run", "--headless", "--host", host, "-u", "4", "--request-count", "12", "-t", "30",
        "--no-probe", "--slo",
             "error_rate < 1%", "--report-dir", str(tmp_path / "run")]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "locust_llm", *words], capture_output=True, text=True, timeout=120,
        env=os.environ | files | {"GITHUB_ACTIONS": "true"},
    )  # fmt: skip
    assert done.returncode == ExitStatus.RULE_FAILED, done.stderr
    lines = (done.stdout + "\n" + done.stderr).splitlines()
    assert "set-output" in done.stdout + done.stderr
    assert not [line for line in lines if "##[" in line]
    commands = [line for line in lines if line.lstrip().startswith("::")]
    assert [re.sub(" title=.*", "", line) for line in commands] == ["::error", "::notice"]
    page = (tmp_path / "page").read_text()
    for live in ("@octocat", "https://evil.example/x", "#1"):
        assert page.count(live) == page.count(f"`{live}`") > 0, live
    assert (tmp_path / "outputs").read_text().startswith("verdict=FAIL\n")
