"""Web UI: starts a real process, and controls it with a browser."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from locust_llm.demo_command import start_simulator

ROOT = Path(__file__).parents[2]
CHAT = ROOT / "locustfiles" / "chat.py"
LOGIN = f"""
import sys
sys.path.insert(0, {str(ROOT / "locustfiles")!r})
from chat import *
from flask import redirect, request, session
from flask_login import UserMixin, login_user
from locust import events

class Somebody(UserMixin):
    def get_id(self):
        return "somebody"

@events.init.add_listener
def on_init(environment, **kw):
    if environment.web_ui is None:
        return
    environment.web_ui.app.secret_key = "of the test"
    environment.web_ui.login_manager.user_loader(lambda name: Somebody())
    environment.web_ui.auth_args["username_password_callback"] = "/sign-in"

    @environment.web_ui.app.route("/sign-in", methods=["POST"])
    def sign_in():
        if request.form["password"] != "right":
            session["auth_error"] = "wrong"
            return redirect("/login")
        login_user(Somebody())
        return redirect("/")
"""


@pytest.fixture(scope="module")
def busy_server() -> Iterator[str]:
    """Runs a server whose prefills of 2,000 tokens take about 70 ms each in turn, so that as many
    requests wait as may."""
    with start_simulator("--truth", "full", "--max-num-batched-tokens", "2048") as url:
        yield url


class Web:
    """Runs Locust with its web UI and a browser. Pictures are taken only into the folder
    LOCUST_LLM_PICTURES, as they take seconds."""

    def __init__(
        self, browser: Any, server: str, folder: Path, *words: str, locustfile: Path = CHAT
    ) -> None:
        self.server, self.folder = server, folder
        self.pictures = os.environ.get("LOCUST_LLM_PICTURES")
        self.name = os.environ["PYTEST_CURRENT_TEST"].partition("::")[2].partition(" ")[0]
        self.taken = 0
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = int(listener.getsockname()[1])
        path = words[words.index("--web-base-path") + 1] if "--web-base-path" in words else ""
        self.base = f"http://127.0.0.1:{port}{path}"
        self.log = (folder / "log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "locust", "-f", str(locustfile), "--host", server, "--web-port",
                str(port), "--web-host",
             "127.0.0.1", "--report-dir", str(folder / "run"), "--stop-timeout", "5", *words],
            stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self.context = browser.new_context(
            viewport={"width": 1280, "height": 900}, accept_downloads=True
        )
        self.errors: list[str] = []
        self.context.on(
            "console", lambda said: self.errors.append(said.text) if said.type == "error" else None
        )
        self.context.on("weberror", lambda error: self.errors.append(str(error.error)))
        until(lambda: requests.get(self.base + "/", timeout=2, allow_redirects=False).ok, 60)

    def open(self, path: str) -> Any:
        page = self.context.new_page()
        page.set_default_timeout(15_000)
        page.goto(self.base + path)
        return page

    def picture(self, page: Any, what: str) -> None:
        if self.pictures:
            self.taken += 1
            page.screenshot(
                path=Path(self.pictures) / f"{self.name}-{self.taken}-{what}.png", full_page=True
            )

    def status(self) -> dict[str, Any]:
        return dict(requests.get(self.base + "/llm/live", timeout=5).json())

    def truth(self) -> dict[str, Any]:
        return dict(requests.get(self.server + "/truth", timeout=5).json())

    def most_in_prefill(self, since: float) -> int:
        """Returns the most prefills on the server from a moment of its own clock on."""
        changes = self.truth()["prefilling_changes"]
        before = [level for at, level in changes if at <= since]
        return max([*before[-1:], *(level for at, level in changes if at > since)])

    def end(self) -> str:
        self.context.close()
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait(60)
        self.log.seek(0)
        return self.log.read()


@pytest.fixture
def web(browser: Any, busy_server: str, tmp_path: Path) -> Iterator[Callable[..., Web]]:
    made: list[Web] = []

    def make(*words: str, **how: Any) -> Web:
        made.append(Web(browser, busy_server, tmp_path, *words, **how))
        return made[-1]

    yield make
    for one in made:
        said = one.end()
        assert "Traceback" not in said, said


def until(true: Callable[[], object], seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if true():
                return
        except (requests.RequestException, KeyError):
            pass
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s")


def fill(page: Any, **fields: str) -> None:
    """Fills in our forms or Locust's."""
    page.evaluate(
        "document.querySelectorAll('#run details').forEach(folded => { folded.open = true; })"
    )
    for folded in ("Advanced options", "Custom parameters"):
        button = page.locator("form").get_by_role("button", name=folded, expanded=False)
        if button.count():
            button.click()
    for name, text in fields.items():
        if name == "slo":
            write_rules(page, text)
        elif name == "sweep":
            axis, _, values = text.partition("=")
            page.locator(".axis").select_option(axis)
            page.locator(".values").fill(values)
        else:
            page.locator(f'[name="{name}"]').last.fill(text)


def write_rules(page: Any, text: str) -> None:
    """Writes the rules of our form as text."""
    as_text = page.get_by_role("button", name="Edit as text")
    as_text.click()
    page.locator('[name="slo"]').fill(text)
    as_text.click()


def start(page: Any, **fields: str) -> None:
    """Starts a run by our form."""
    fill(
        page, user_count="24", synthetic_input_tokens_mean="2000", output_tokens_mean="4", **fields
    )
    page.get_by_role("button", name="Start", exact=True).click()
