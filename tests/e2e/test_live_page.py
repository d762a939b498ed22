"""The live page in a browser: what goes wrong is said, with a count, a reason and since when; one
screen; and steering with a way back."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from support.axe import violations
from support.web_ui import CHAT, Web, until

pytestmark = pytest.mark.slow

FAST = ("--ttft-ms", "60", "--itl-ms", "10")
TWO_NAMES = """
from locust import task
from locust_llm import LLMUser

class Reader(LLMUser):
    @task
    def ask(self):
        self.chat("What is the capital of France?", max_tokens=8, name="short")
        self.chat(max_tokens=30, name="long")
"""
TOPS = (
    "[...document.querySelectorAll('#panels .plot')].map((one) => one.getBoundingClientRect().top)"
)
"""Where the panels stand."""
X_RANGES = (
    "[...document.querySelectorAll('#panels .canvas')]"
    ".map((box) => charts.of(box).uplot.scales.x).map(({ min, max }) => [min, max])"
)
HOLES = (
    "[...document.querySelectorAll('#panels .canvas')]"
    ".map((box) => charts.of(box).plot.series[0].y.slice(1, -1).includes(null))"
)
"""For each panel, whether its line is broken."""


class Watched:
    """A server of its own, a run on it, and the page that shows it."""

    def __init__(
        self, browser: Any, folder: Path, *words: str, locustfile: Path = CHAT, quirks: str = "",
        **form: Any,
    ) -> None:  # fmt: skip
        wrong = ("--quirks", quirks) if quirks else ()
        self.server = subprocess.Popen(
            [sys.executable, "-m", "locust_llm.simulator", "--port", "0", *FAST, *wrong],
            stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        assert self.server.stdout is not None
        address = re.search(r"http://\S+", self.server.stdout.readline())
        assert address is not None
        self.web = Web(browser, address.group(), folder, *words, locustfile=locustfile)
        asked = {"user_count": 16, "spawn_rate": 100, "output_tokens_mean": 30,
            "synthetic_input_tokens_mean": 100, **form}  # fmt: skip
        if "--autostart" not in words:
            until(lambda: self._start(asked), 30)
        until(lambda: self.web.status()["ok"] > 20, 30)
        self.page = self.web.open("/llm")
        self.page.locator("#panels canvas").first.wait_for()

    def _start(self, asked: dict[str, Any]) -> bool:
        return bool(
            requests.post(self.web.base + "/swarm", data=asked, timeout=20).json()["success"]
        )

    def alert(self, text: str, seconds: float = 20) -> str:
        """Waits until the first alert matches. Returns it."""
        found = self.page.locator("#alert").filter(has_text=re.compile(text))
        found.wait_for(timeout=seconds * 1000)
        return str(found.inner_text())

    def legend(self, name: str) -> float:
        """The value of a series in the head of its panel."""
        text = self.page.locator("#panels").get_by_role("button", name=name).inner_text()
        return float(re.sub(r"[^\d.]", "", text) or 0)

    def end(self) -> None:
        self.server.kill()
        self.server.wait()
        os.killpg(self.web.process.pid, signal.SIGCONT)
        self.web.end()


@pytest.fixture
def watched(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def make(*words: str, **form: Any) -> Watched:
        made.append(Watched(browser, tmp_path, *words, **form))
        return made[-1]

    yield make
    for one in made:
        one.end()


def test_a_server_that_dies_is_said_with_count_reason_and_since_when(
    watched: Callable[..., Watched],
) -> None:
    run = watched(slo="error_rate < 1%\nttft p95 < 2s", run_time="60s")
    assert run.page.locator("#alert").inner_text() == "No alerts."
    run.server.kill()
    said = run.alert(r"\d+ of the last \d+ requests failed since 0:\d\d: .*Connection refused")
    assert "Show" in said
    run.page.locator("#failures").get_by_text(re.compile(r"^\d+ × refused")).wait_for()
    until(lambda: run.legend("answered") == 0, 15)  # failed requests are in no rate
    assert run.legend("failed") > 0
    assert "failures" in [mark[1] for mark in run.web.status()["marks"]]
    run.page.locator("#cards").get_by_text(re.compile("broken so far|cannot pass")).first.wait_for()
    run.web.picture(run.page, "dead")
    assert run.web.errors == []


def test_a_load_generator_that_stands_still_is_said_and_leaves_a_hole(
    watched: Callable[..., Watched],
) -> None:
    run = watched(run_time="60s")
    os.killpg(run.web.process.pid, signal.SIGSTOP)
    run.alert(r"^No news from the load generator for \d+ s")
    assert "stale" in (run.page.locator("body").get_attribute("class") or "")
    run.web.picture(run.page, "frozen")
    os.killpg(run.web.process.pid, signal.SIGCONT)
    run.page.locator("#alerts").get_by_text("stood still for").wait_for(state="attached")
    assert "stale" not in (run.page.locator("body").get_attribute("class") or "")
    until(lambda: run.web.status()["holes"], 10)
    until(lambda: all(run.page.evaluate(HOLES)), 10)
    run.web.picture(run.page, "hole")


def test_links_lead_nowhere_once_the_load_generator_is_gone(
    watched: Callable[..., Watched],
) -> None:
    run = watched(run_time="2s")
    run.page.get_by_role("link", name="Report", exact=True).wait_for(timeout=40_000)
    assert run.page.get_by_role("link", name="New run").is_visible()
    os.killpg(run.web.process.pid, signal.SIGKILL)
    run.alert("^No news from the load generator")
    for name in ("Report", "New run", "Run again", "Runs", "Locust's page"):
        assert not run.page.get_by_role("link", name=name, exact=True).is_visible()


def test_a_lost_worker_is_said_and_has_nothing_under_way(watched: Callable[..., Watched]) -> None:
    run = watched("--processes", "2", slo="ttft p95 < 2s", output_tokens_mean=150, run_time="60s")
    children = Path(f"/proc/{run.web.process.pid}/task/{run.web.process.pid}/children").read_text()
    os.kill(int(children.split()[-1]), signal.SIGKILL)
    said = run.alert(r"Worker \d of 2 lost at 0:\d\d: (\d+ records? gone|no record is missing)")
    assert run.page.locator("#generator").get_by_text("1 process").is_visible()
    number = re.search(r"Worker (\d)", said)
    assert number is not None
    mark = f"worker {number[1]} lost"
    until(lambda: mark in [one[1] for one in run.web.status()["marks"]], 5)

    def running() -> int:
        found = re.search(r"(\d+) running", run.web.status()["rules"][0]["counts"])
        return int(found[1]) if found else 0

    # the users of the lost one come back on the other; no request counts twice
    assert running() <= 16
    until(lambda: run.web.status()["users"] == 16, 20)
    assert running() <= 16
    run.web.picture(run.page, "lost")


def test_steering_moves_nothing_goes_away_and_can_be_undone(
    watched: Callable[..., Watched],
) -> None:
    run = watched(prefill_concurrency=4, run_time="60s")
    page = run.page
    before = page.evaluate(TOPS)
    page.locator("#limit").fill("2")
    page.get_by_role("button", name="Set", exact=True).click()
    output = page.locator("#answer output")
    output.get_by_text("prefill limit changed by hand from 4 to 2").wait_for()
    assert page.evaluate(TOPS)[1:] == before[1:]  # the first one has a mark more above its plot
    page.get_by_role("button", name="Undo").click()
    output.get_by_text("prefill limit changed by hand from 2 to 4").wait_for()
    until(lambda: run.web.status()["limit"] == 4, 5)
    page.locator("#limit").fill("0")
    page.locator("#limit").press("Enter")
    output.get_by_text("The limit must be a whole number of at least 1.").wait_for()
    page.locator("#users").fill("20")
    page.locator("#users").press("Enter")
    until(lambda: run.web.status()["users"] == 20, 10)
    marks = [mark[1] for mark in run.web.status()["marks"]]
    assert [text for text in marks if "limit" in text or "users" in text] == [
        "limit 2", "limit 4", "20 users",
    ]  # fmt: skip
    page.wait_for_timeout(6500)
    assert output.inner_text() == ""


def test_the_rate_of_an_open_loop_is_steered(watched: Callable[..., Watched]) -> None:
    """Arrivals of the schedule follow within seconds, and all of it is in the run's facts."""
    run = watched(user_count="", request_rate=5, arrival_pattern="constant", run_time="60s")
    page = run.page
    page.locator("#rate").fill("25")
    page.get_by_role("button", name="Set rate").click()
    page.locator("#answer").get_by_text("request rate changed by hand from 5/s to 25/s").wait_for()
    assert not page.locator("#people").is_visible()  # as many as needed
    until(lambda: run.legend("answered") > 15, 20)
    page.get_by_role("button", name="Undo").click()
    page.locator("#answer").get_by_text("from 25/s to 5/s").wait_for()
    marks = [mark[1] for mark in run.web.status()["marks"] if mark[2] == "rate"]
    assert marks == ["25 requests/s", "5 requests/s"]
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("link", name="Report", exact=True).wait_for(timeout=40_000)
    facts = json.loads((run.web.folder / "run" / "run.json").read_text())["run"]
    assert [change["per_s"] for change in facts["rates"]] == [25, 5]


def test_all_is_on_one_screen_with_one_time_axis(watched: Callable[..., Watched]) -> None:
    rules = ("ttft p95 < 2s", "itl p95 < 60ms", "error_rate < 1%", "ttft p50 < 1s",
        "requests_per_s > 1/s", "request_latency p95 < 9s")  # fmt: skip
    run = watched(prefill_concurrency=4, slo="\n".join(rules), run_time="90s")
    page = run.page
    page.set_viewport_size({"width": 1440, "height": 900})
    page.locator("#cards li").nth(5).wait_for()
    until(lambda: page.evaluate("document.documentElement.scrollHeight") <= 900, 10)
    assert page.locator("#panels .plot").count() == 5
    cut = "[...document.querySelectorAll('#cards, #cards *')].filter((one) => one.scrollHeight > one.clientHeight + 2 && getComputedStyle(one).overflowY !== 'visible').length"
    assert page.evaluate(cut) == 0
    ranges = page.evaluate(X_RANGES)
    assert all(one == ranges[0] for one in ranges)
    page.get_by_role("button", name="1 min").click()
    until(lambda: page.evaluate(X_RANGES)[0] == [0, 60], 5)
    page.get_by_role("button", name="Freeze").click()
    frozen = page.locator("#freeze").inner_text()
    assert frozen.startswith("Frozen at 0:")
    ends = page.evaluate("liveCharts.history.points.length")
    legend = page.locator("#panels .keys").last.inner_text()
    until(lambda: page.evaluate("liveCharts.history.points.length") >= ends + 2, 10)
    assert page.locator("#panels .keys").last.inner_text() == legend
    page.locator("#freeze").click()
    page.get_by_role("button", name="log y").click()
    assert page.evaluate("charts.of(document.querySelector('#panels .canvas')).yAxis.log") == 10
    names = page.locator("#cards li span").all_inner_texts()
    assert sorted(names) == sorted(
        ["TTFT p95 < 2 s", "ITL p95 < 60 ms", "error rate < 1%", "TTFT p50 < 1 s",
         "request throughput > 1/s", "request latency p95 < 9 s"]
    )  # fmt: skip
    for width, scheme in ((1440, "dark"), (400, "light")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.wait_for_timeout(1500)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert violations(page) == []
    assert run.web.errors == []


def test_requests_of_several_names_have_a_row_each(
    watched: Callable[..., Watched], tmp_path: Path
) -> None:
    (tmp_path / "names.py").write_text(TWO_NAMES)
    run = watched(locustfile=tmp_path / "names.py", user_count=6, run_time="60s")
    rows = run.page.locator("#names tbody tr")
    rows.nth(1).wait_for(timeout=30_000)
    assert sorted(rows.locator("th").all_inner_texts()) == ["long", "short"]
    heads = run.page.locator("#names thead th").all_inner_texts()
    assert heads == ["TTFT p50", "p95", "ITL p50", "p95", "answered", "failed"]
    assert run.page.locator("#names tbody td:last-child").all_inner_texts() == ["0", "0"]
    assert violations(run.page) == []
    assert run.web.errors == []


def test_a_sweep_has_its_stages_and_a_curve_that_grows(watched: Callable[..., Watched]) -> None:
    run = watched(
        sweep="concurrency=2,4", stage_duration="3..4", stage_requests=10, slo="ttft p95 < 5s"
    )
    page = run.page
    page.locator("#fixed").get_by_text("their number follows from the load").wait_for()
    page.locator("#stages tbody tr").nth(1).wait_for(timeout=60_000)
    heads = page.locator("#stages thead th").all_inner_texts()
    assert heads[1:3] == ["concurrency", "TTFT p95"]
    assert page.locator("#stages tbody tr td:nth-child(2)").all_inner_texts() == ["2", "4"]
    assert page.locator("#curve canvas").is_visible()
    assert "concurrency 4" in [mark[1] for mark in run.web.status()["marks"]]
    assert not page.locator("#people").is_visible()
    page.wait_for_timeout(500)
    assert violations(page) == []
    run.web.picture(page, "sweep")
    assert run.web.errors == []


WRONG = "swap=0.2,broken_text=0.1,wide_flip=0.5"


def read_rows(run: Watched, place: str) -> dict[str, str]:
    """The rows of a part at the side, each value by its name."""
    both = (  # in one call, as the page may be painted anew between two
        "place => ['dt', 'dd'].map(tag => "
        "[...document.querySelectorAll(`#${place} ${tag}`)].map(one => one.innerText))"
    )
    names, values = run.page.evaluate(both, place)
    return dict(zip(names, values, strict=True))


def read_answers(run: Watched) -> dict[str, str]:
    return read_rows(run, "checks")


def read_locusts_tab(run: Watched) -> list[str]:
    """The lines in the tab of Locust's own page."""
    tables = requests.get(run.web.base + "/stats/requests", timeout=10).json()["extended_stats"]
    (ours,) = [table["data"] for table in tables if table["key"] == "llm"]
    return [row["figure"] for row in ours]


def test_the_checks_of_answers_are_shown_while_the_load_is_on(
    watched: Callable[..., Watched],
) -> None:
    """Over a master and two workers: a fifth of the answers is swapped, and a tenth broken."""
    run = watched("--check-answers", "--processes", "2", quirks=WRONG, run_time="60s")
    said = run.alert(r"\d+ answers? contains? the session marker of another session, since 0:\d\d")
    assert "Show" in said
    assert "locust-llm verify reproduce DIR" in said
    until(lambda: re.match(r"\d+, the first at 0:\d\d", read_answers(run)["Leaks"]), 20)
    until(lambda: re.match(r"\d+ of \d+", read_answers(run)["Differ under load"]), 30)
    before = read_answers(run)
    assert [*before][:4] == ["Searched", "Own marker repeated", "Leaks", "Differ under load"]
    assert re.fullmatch(r"in \d+(\.\d)?% of answers", before["Own marker repeated"])
    assert int(before["broken_text"].replace(",", "")) > 0
    loud = run.page.locator("#checks dd.loud")
    assert loud.first.inner_text() == before["Leaks"]
    until(lambda: read_answers(run)["Searched"] != before["Searched"], 10)  # it goes on
    assert "leak" in [mark[1] for mark in run.web.status()["marks"]]
    assert any(line.startswith("Leaks: ") for line in read_locusts_tab(run))
    for width, scheme in ((360, "light"), (390, "dark"), (1600, "dark")):
        run.page.set_viewport_size({"width": width, "height": 800})
        run.page.emulate_media(color_scheme=scheme)
        assert run.page.locator("#checks").is_visible()
        assert run.page.evaluate("document.documentElement.scrollWidth") <= width
        assert violations(run.page) == []
        run.web.picture(run.page, f"answers-{width}-{scheme}")
    assert run.web.errors == []
    run.web.log.flush()
    assert "LEAK: an answer contains the session marker" in (run.web.folder / "log").read_text()


MARKS = (
    "[...document.querySelectorAll('#panels .canvas')]"
    ".flatMap((box) => charts.of(box).plot.marks.map((mark) => mark.text))"
)


def test_growth_ghost_tokens_and_disruptions_are_shown(watched: Callable[..., Watched]) -> None:
    """The server keeps 2 MB of each request and generates on for clients who left."""
    run = watched(
        "--autostart", "-u", "8", "-t", "120s", "--output-tokens-mean", "30",
        "--synthetic-input-tokens-mean", "100", "--soak", "--soak-interval", "1",
        "--request-cancellation-rate", "20", "--request-cancellation-delay", "0.1",
        "--check-cancellations", "--disrupt", "at 2s: true",
        quirks="memory_leak=2000000,ghosts=max_tokens",
    )  # fmt: skip
    until(lambda: "disruption 1" in [mark[1] for mark in run.web.status()["marks"]], 20)
    until(lambda: "disruption 1" in run.page.evaluate(MARKS), 10)
    until(lambda: "Memory" in read_rows(run, "growth"), 30)
    until(lambda: re.match(r"at most \d", read_rows(run, "ghosts").get("Ghost tokens", "")), 20)
    # each cancelled answer had some 20 of 30 tokens left
    assert float(read_rows(run, "ghosts")["Ghost tokens"].split()[2].replace(",", "")) > 10
    assert re.fullmatch(r"[\d,]+ requests", read_rows(run, "ghosts")["Cancelled"])
    until(lambda: read_rows(run, "growth")["Verdict"].startswith("grows."), 110)
    assert " per hour" in read_rows(run, "growth")["Memory"]
    assert run.page.locator("#growth dd.loud").first.inner_text().startswith("grows.")
    for width, scheme in ((360, "light"), (1600, "light"), (1600, "dark")):
        run.page.set_viewport_size({"width": width, "height": 900})
        run.page.emulate_media(color_scheme=scheme)
        assert run.page.evaluate("document.documentElement.scrollWidth") <= width
        assert violations(run.page) == []
        run.web.picture(run.page, f"growth-{width}-{scheme}")
    assert run.web.errors == []


def test_without_checks_of_answers_nothing_of_them_is_shown(
    watched: Callable[..., Watched],
) -> None:
    run = watched(quirks=WRONG, run_time="60s")
    assert not run.page.locator("#checks").is_visible()
    assert run.web.status()["answers"] == []
    assert not [line for line in read_locusts_tab(run) if line.startswith(("Leaks", "Searched"))]
    assert run.page.locator("#alert").inner_text() == "No alerts."
