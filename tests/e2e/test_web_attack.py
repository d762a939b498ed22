"""A page of another site in a real browser: it tries to start, stop, edit and turn the gate; all is
refused, ours works."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from support.tiny_server import tiny_server
from support.web_ui import CHAT, LOGIN, Web, fill, start, until

CHANGES: Final = (
    ("/user", json.dumps({"user_class_name": "ChatUser", "host": "ELSEWHERE"})),
    ("/swarm", "user_count=3&spawn_rate=3&host=ELSEWHERE"),
    ("/swarm", "user_count=1&spawn_rate=1"),
    ("/stop", ""),
    ("/stats/reset", ""),
    ("/llm/gate", "limit=1"),
    ("/llm/datasets?name=x.jsonl", "x=1"),
)
READS: Final = (
    "/",
    "/stats/requests",
    "/llm/live",
    "/llm/new",
    "/llm/runs",
    "/logs",
    "/stop",
    "/llm/gate?limit=1",
)
ATTACK: Final = """async ([base, changes, reads]) => {
  const pause = new Promise(done => setTimeout(done, 1500)), read = [];
  for (const [path, body] of changes) {
    for (const type of ["text/plain", "application/x-www-form-urlencoded"])
      await fetch(base + path, {method: "POST", mode: "no-cors", credentials: "include", body,
        headers: {"Content-Type": type}}).catch(() => 0);
    await fetch(base + path, {method: "POST", credentials: "include", body, headers: {"Content-Type": "application/json"}})
      .then(answer => read.push(path), () => 0);  // with a preflight
    const frame = document.createElement("iframe"), form = document.createElement("form");
    frame.name = form.target = "frame" + document.forms.length + path;
    form.method = "POST"; form.enctype = "text/plain"; form.action = base + path;
    const field = document.createElement("input");
    field.name = body.split("=")[0] || "x"; field.value = body.split("=").slice(1).join("=");
    form.append(field); document.body.append(frame, form); form.submit();
  }
  for (const path of reads) {
    const image = new Image(), frame = document.createElement("iframe");
    image.src = base + path; frame.src = base + path;
    document.body.append(image, frame);
    for (const credentials of ["include", "omit"])
      await fetch(base + path, {credentials}).then(answer => read.push(path), () => 0);
  }
  await pause;
  return read;
}"""


@contextmanager
def other_site() -> Iterator[int]:
    """An empty page; its port."""

    class Empty(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>Elsewhere</title><body>")

        def log_message(self, *args: object) -> None:
            pass

    site = ThreadingHTTPServer(("127.0.0.1", 0), Empty)
    threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield site.server_port
    finally:
        site.shutdown()
        site.server_close()


def attack(locust: Web, page_at: str, elsewhere: str) -> list[tuple[str, str, int]]:
    """From a page there, with the cookies of the user; what Locust has answered to each request."""
    answers: list[tuple[str, str, int]] = []
    page = locust.context.new_page()
    page.on("response", lambda got: answers.append((got.request.method, got.url, got.status)))
    page.goto(page_at)
    changes = [(path, body.replace("ELSEWHERE", elsewhere)) for path, body in CHANGES]
    assert page.evaluate(ATTACK, [locust.base, changes, READS]) == []  # nothing that it could read
    page.close()
    return [(method, url, status) for method, url, status in answers if url.startswith(locust.base)]


@pytest.mark.full
@pytest.mark.parametrize(
    "words", [(), ("--web-base-path", "/deep/er"), ("--web-login",)], ids=["plain", "path", "login"]
)
def test_a_page_of_another_site_changes_nothing_and_reads_nothing(
    web: Callable[..., Web],
    tmp_path: Path,
    words: tuple[str, ...],
) -> None:
    file = CHAT
    if "--web-login" in words:
        (file := tmp_path / "login.py").write_text(LOGIN)
    with other_site() as port, tiny_server() as elsewhere:
        locust = web(*words, locustfile=file)
        pages = (f"http://127.0.0.1:{port}/", f"http://localhost:{port}/")  # same site, and another
        ours = locust.open("/")
        if "--web-login" in words:
            fill(ours, username="me", password="right")
            ours.get_by_role("button", name="Login").click()
        live = lambda: ours.evaluate(f"async () => (await fetch('{locust.base}/llm/live')).json()")  # noqa: E731
        ours.get_by_role("button", name="Start", exact=True).wait_for()
        answers = [answer for page in pages for answer in attack(locust, page, elsewhere.url)]
        assert live()["run"] == 0  # none was started

        start(ours, prefill_concurrency="4")
        ours.wait_for_url("**/llm")
        until(lambda: live().get("done", 0) > 20, 20)
        answers += [answer for page in pages for answer in attack(locust, page, elsewhere.url)]
        status = live()
        assert (status["run"], status["state"], status["limit"], status["users"]) == (
            1,
            "on",
            4,
            24,
        )
        before = status["done"]
        until(lambda: live()["done"] > before + 10, 20)  # neither stopped nor reset
        ours.get_by_role("button", name="Stop", exact=True).click()
        until(lambda: live()["state"] == "over", 40)
        assert elsewhere.asked == []
    assert {status for _, _, status in answers} == {403}, [
        answer for answer in answers if answer[2] != 403
    ]
    assert {method for method, _, _ in answers} >= {"GET", "POST"}
    paths = {url.removeprefix(locust.base).partition("?")[0] for _, url, _ in answers}
    assert paths >= {
        "/user",
        "/swarm",
        "/stop",
        "/stats/reset",
        "/llm/gate",
        "/stats/requests",
        "/llm/live",
    }


@pytest.mark.full  # tests/web/test_cross_site_guard.py asks as such a browser would
def test_a_name_that_was_pointed_at_this_machine_sees_nothing(
    web: Callable[..., Web], browser: Any
) -> None:
    """DNS rebinding: for the browser it is one origin."""
    locust = web()
    port = locust.base.rpartition(":")[2]
    program = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    rules = "--host-resolver-rules=MAP rebound.example 127.0.0.1, MAP allowed.example 127.0.0.1"
    rebound = browser.browser_type.launch(executable_path=program, args=["--no-sandbox", rules])
    try:
        page = rebound.new_page()
        answer = page.goto(f"http://rebound.example:{port}/llm/live")
        assert (answer.status, "rebound.example" in answer.text()) == (403, True)
        ask = (
            "async () => (await fetch('/llm/gate', {method: 'POST', body: new "
            "URLSearchParams({limit: 1})})).status"
        )
        assert page.evaluate(ask) == 403
        assert page.goto(f"http://localhost:{port}/llm/live").status == 200
    finally:
        rebound.close()
