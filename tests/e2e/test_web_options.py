"""Options through the page of a real master with two workers and the class picker: what it does not
show stays as it is."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import requests
from support.runs import free_port
from support.tiny_server import tiny_server
from support.wild_options import VALUES, spelt

from locust_llm.locust_adapter.command_line_parser import OPTIONS

LOCUSTFILE: Final = """
import json
import os

from locust import events, task
from locust_llm import LLMUser


@events.init_command_line_parser.add_listener
def flags(parser, **more):
    parser.add_argument("--my-secret", is_secret=True, default="")
    parser.add_argument("--my-plain", default="plain")


@events.test_start.add_listener
def keep(environment, **more):
    values = {name: repr(value) for name, value in vars(environment.parsed_options).items()}
    with open(f"options-{os.environ['WHO']}", "a") as file:
        print(json.dumps(values), file=file)


class Ann(LLMUser):
    @task
    def ask(self):
        self.chat("hello", max_tokens=1)


class Bob(Ann):
    pass
"""
ATTACKS: Final = (
    {"llm_secrets": "my_plain"}, {"html_file": "victim"}, {"json_file": "victim"},
    {"csv_prefix": "victim"},
    {"processes": "50"},
    {"exit_code_on_error": "0"}, {"insecure": "true"}, {"my_secret": "mine"},
    {"api_key_command": "touch victim2"}, {"disrupt": "at 0s: touch victim2"},
    {"HTML_FILE": "victim"}, {"html-file": "victim"}, {"user_classes": "Eve"},
    {"shape_class": "Eve"}, {"logfile": "victim"},
)  # fmt: skip


SHOWN: Final = {option.dest for option in OPTIONS if option.in_form} | {"num_users", "llm_users"}
"""What the page may set, by the name of its option."""


@pytest.fixture
def processes() -> Iterator[list[Any]]:
    started: list[Any] = []
    yield started
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until(true: Callable[[], object], seconds: float = 40.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if true():
                return
        except (requests.RequestException, OSError):
            pass
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s")


def wild_form(draw: random.Random, names: list[str], plain: dict[str, str]) -> dict[str, Any]:
    """Of a run, with one to three fields more, each with a value or a list of them."""
    form: dict[str, Any] = dict(plain)
    for _ in range(draw.choice((1, 1, 2, 3))):
        name = spelt(draw, draw.choice(names)).encode("utf-8", "replace").decode()
        values = [value.encode("utf-8", "replace").decode() for value in draw.choices(VALUES, k=2)]
        form[name] = values if draw.random() < 0.2 else values[0]
    return form


@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.full  # tests/web/test_form_whitelist.py asks the same of one process
def test_two_workers_get_only_what_the_page_shows(
    processes: list[Any], tmp_path: Path, seed: int
) -> None:
    (tmp_path / "lf.py").write_text(LOCUSTFILE)
    (tmp_path / "victim").write_text("precious")
    port, web = free_port(), free_port()

    def start(who: str, *words: str) -> None:
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("LOCUST", "OPENAI"))
        }
        with (tmp_path / f"log-{who}").open("wb") as log:
            processes.append(subprocess.Popen(
                [sys.executable, "-m", "locust", "-f", "lf.py", *words], stdout=log, stderr=log,
                cwd=tmp_path,
                env=clean | {"WHO": who, "MY_SECRET": f"secret-of-{who}"}, start_new_session=True,
            ))  # fmt: skip

    with tiny_server() as server:
        server.start()
        start(
            "master", "--master", "--master-bind-host", "127.0.0.1", "--master-bind-port",
            str(port), "--class-picker",
            "--web-port", str(web), "--web-host", "127.0.0.1", "--host", server.url, "--no-probe",
            "--no-server-metrics",
            "--my-secret", "secret-of-master", "--report-dir", "run",
        )  # fmt: skip
        base = f"http://127.0.0.1:{web}"
        until(lambda: requests.get(f"{base}/worker-count", timeout=5).ok)
        for who in ("first", "second"):
            start(
                who,
                "--worker",
                "--master-host",
                "127.0.0.1",
                "--master-port",
                str(port),
                "--my-secret",
                f"secret-of-{who}",
            )
        until(lambda: requests.get(f"{base}/worker-count", timeout=5).json()["worker_count"] == 2)

        plain = {
            "user_count": "2",
            "spawn_rate": "2",
            "run_time": "2",
            "user_classes": "Bob",
            "my_plain": "changed",
        }
        for more in ATTACKS:
            answer = requests.post(f"{base}/swarm", data={**plain, **more}, timeout=60)
            assert answer.status_code == 200
            assert answer.json()["success"] is False, more
        draw, started = random.Random(f"options of two workers {seed}"), 0

        def run_wildly(form: dict[str, Any]) -> bool:
            """Whether it could start; then it is stopped."""
            answer = requests.post(f"{base}/swarm", data=form, timeout=60)
            assert answer.status_code == 200, (form, answer.text)
            assert "Error: " not in answer.text, (form, answer.text)
            if not answer.json()["success"]:
                return False
            requests.post(f"{base}/stop", timeout=60)
            until(lambda: requests.get(f"{base}/llm/live", timeout=5).json()["state"] == "over")
            return True

        assert run_wildly({**plain, "my_plain": "earlier"})
        until((tmp_path / "options-first").exists)
        names = list(json.loads((tmp_path / "options-first").read_text().splitlines()[0]))
        wild = [name for name in names if name not in plain and name not in SHOWN]
        for _ in range(150):
            form = wild_form(draw, [*wild, "llm_secrets", "__class__", "environment"], plain)
            started += run_wildly(form)
        assert started < 15  # a few name what the page shows, as --model
        got = requests.post(f"{base}/swarm", data=plain, timeout=60).json()
        assert got["success"], got
        assert got["user_classes"] == ["Bob"]
        until(lambda: requests.get(f"{base}/llm/live", timeout=5).json()["state"] == "over")
        for process in processes:
            os.killpg(process.pid, signal.SIGINT)
        statuses = [process.wait(40) for process in processes]
    assert statuses == [0, 0, 0], (tmp_path / "log-master").read_text()
    assert (tmp_path / "victim").read_text() == "precious"
    assert not (tmp_path / "victim2").exists()
    for who in ("first", "second"):
        first, *_, line = (tmp_path / f"options-{who}").read_text().splitlines()
        options = json.loads(line)
        before = {**json.loads(first), "my_plain": "'changed'"}
        assert {name for name, value in options.items() if value != before[name]} <= SHOWN
        assert options["my_secret"] == repr(f"secret-of-{who}")
        assert options["my_plain"] == "'changed'"
        assert [options[name] for name in ("html_file", "json_file", "processes",
            "exit_code_on_error", "insecure")] == [
            "None", "None", "None", "1", "False",
        ]  # fmt: skip
