"""Web pages: runs Locust's web UI with ours, without a browser, through Flask's client."""

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from locust_llm.server.discovery import Discovery
from locust_llm.web.live_page_data import RunView
from locust_llm.web.routes import attach_pages
from support import unpatched_locust  # noqa: F401  before the rest
from support.command_line import parse


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("LOCUST", "OPENAI"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "argv", ["locust", "-f", "my/chat.py"])
    monkeypatch.chdir(tmp_path)


class Page:
    """Is Locust's web UI with ours. Locust's own start is replaced by a list of the forms that it
    got."""

    def __init__(self, *words: str, first: bool = False) -> None:
        # after unpatched_locust, which sorting would put behind it
        from locust.env import Environment
        from locust.event import Events

        self.options: Namespace = parse("--web-host", "127.0.0.1", *words, headless=False)
        self.environment = Environment(
            parsed_options=self.options, host=self.options.host, events=Events()
        )
        self.ui: Any = self.environment.create_web_ui(
            "127.0.0.1", 0, web_base_path=self.options.web_base_path,
            web_login=self.options.web_login,
            delayed_start=True,
        )  # fmt: skip
        # after it: else it would make its page at once
        self.runner = self.environment.create_local_runner()
        self.asked: list[dict[str, list[str]]] = []
        self.surveyed: list[Discovery] = []
        self.locusts_swarm = self.ui.app.view_functions["locust.swarm"]
        self.ui.app.view_functions["locust.swarm"] = self._swarm
        self.view: RunView = attach_pages(
            self.environment, lambda settings, found: self.surveyed.append(settings), first=first
        )
        self.client = self.ui.app.test_client()

    def _swarm(self) -> Any:
        import flask

        self.asked.append(flask.request.form.to_dict(flat=False))
        self.options.num_users = int(flask.request.form["user_count"])
        return flask.jsonify({"success": True})

    def start(self, form: dict[str, Any] | None = None, **headers: str) -> dict[str, Any]:
        asked = {"user_count": "2", "spawn_rate": "1", **(form or {})}
        answer = self.client.post("/swarm", data=asked, headers=headers)
        assert answer.status_code == 200
        return dict(answer.get_json())

    def live(self, **wanted: Any) -> dict[str, Any]:
        return dict(self.client.get("/llm/live", query_string=wanted).get_json())


@pytest.fixture
def pages() -> Iterator[Callable[..., Page]]:
    made: list[Page] = []

    def make(*words: str, first: bool = False) -> Page:
        made.append(Page(*words, first=first))
        return made[-1]

    yield make
    for page in made:
        page.view.control = None
        page.runner.greenlet.kill(block=True)
