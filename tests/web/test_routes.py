"""Web: the pages show what there is, change what may be changed, and give nothing else away; no
browser, no load."""

import logging
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import msgspec
import pytest
from support import unpatched_locust  # noqa: F401  before the rest
from support.records import answered, failed
from support.tiny_server import TinyServer, tiny_server
from support.web_pages import Page
from support.years import START, run_folder

import locust_llm
from locust_llm.controller.early_stop import EarlyStop, LoadLeft
from locust_llm.controller.run_progress import LostWorker, ProcessState, RunProgress
from locust_llm.records.phase_plan import PROFILING, WARMUP
from locust_llm.records.report_result import MetricValue, ReportResult, RuleResult
from locust_llm.server.discovery import Discovery
from locust_llm.settings.run_options import Settings
from locust_llm.slo.load_generator_health import ClientVerdict
from locust_llm.web import live_page_data as view_module
from locust_llm.web import run_form_submit
from locust_llm.web.live_page_tallies import LivePageTallies
from locust_llm.web.routes import ASSETS

STATIC = Path(locust_llm.__file__).parent / "static"
KEY = "sk-0123456789"
STOPPED_S = 1_700_000_000.0
"""The clock of a run and of its live values: what is of the last seconds stays, however long a page
takes on a busy machine."""


@pytest.fixture
def server() -> Iterator[TinyServer]:
    with tiny_server() as server:
        yield server


class Run:
    """Of a control what the pages look at."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text("{}")
        self.folder = folder
        self.settings = Settings(
            **{"host": "http://server", "users": 9, "prefill_concurrency": 4, **settings}
        )
        self.survey = Discovery(model="m")
        self.run_progress = RunProgress(lambda: STOPPED_S)
        self.abort = EarlyStop(self.settings.rules.readable)
        self.plan = SimpleNamespace(phase=PROFILING)
        self.stages = self.limit_block = self.soak = None
        self.draining = False
        self.phase_s = 0.0
        self.store = self
        self.result = self.poller = self.answer_tally = None
        self.losses = SimpleNamespace(lost_workers=list[LostWorker]())
        self.by_hand = self
        self.failure = ""
        self.sets_limits = self.users_follow_load = False
        self.rate: float | None = self.settings.request_rate
        self.states = [ProcessState(1, 9, 0.31, 0.2)]
        self.limit: int | None = 4
        self.turned: list[tuple[int | None, float | None]] = []
        self.users: list[int] = []

    def fail(self, why: str) -> None:
        raise AssertionError(why)

    @property
    def load_goes_on(self) -> bool:
        return not self.draining or self.run_progress.inside > 0

    def find_left(self) -> LoadLeft:
        return LoadLeft(requests=0) if self.draining else LoadLeft()

    def processes(self) -> list[ProcessState]:
        return self.states

    def change_limit(self, limit: int | None, ramp_s: float | None = None) -> str:
        if limit == 99:
            raise ValueError("99 is too many")
        self.turned.append((limit, ramp_s))
        self.limit = limit
        return "turned"

    def change_rate(self, per_s: float) -> str:
        self.rate = per_s
        return "changed"

    def change_users(self, users: int) -> bool:
        self.users.append(users)
        return True


@pytest.fixture
def on(
    pages: Callable[..., Page], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Page, Any]:
    """A page, and the run that is on."""
    monkeypatch.setattr(
        view_module, "LivePageTallies", partial(LivePageTallies, clock=lambda: STOPPED_S)
    )
    monkeypatch.setattr(
        view_module, "time", SimpleNamespace(time=lambda: STOPPED_S, monotonic=time.monotonic)
    )
    page, run = pages("-u", "9", "--prefill-concurrency", "4"), Run(tmp_path / "reports" / "one")
    page.view.begins(run)  # type: ignore[arg-type]
    page.runner.state = "running"
    page.runner.target_user_count = 9
    return page, run


# -- our page --------------------------------------------------------------------------------------


def test_the_page_is_there_with_all_that_it_asks_for(pages: Callable[..., Page]) -> None:
    page = pages()
    answer = page.client.get("/llm")
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    form = page.client.get("/llm/new")
    assert (form.status_code, form.headers["Content-Security-Policy"]) == (
        200,
        answer.headers["Content-Security-Policy"],
    )
    wanted = re.findall(r'(?:src|href)="?llm/static/([\w.]+)', answer.text)
    wanted += re.findall(r'(?:src|href)="?static/([\w.]+)', form.text)
    past = page.client.get("/llm/past")
    wanted += re.findall(r'(?:src|href)="?static/([\w.]+)', past.text)
    assert set(wanted) == set(ASSETS)
    for name in ASSETS:
        asset = page.client.get(f"/llm/static/{name}")
        assert (asset.status_code, asset.data) == (200, (STATIC / name).read_bytes())
    assert page.client.get("/llm/static/page.css").status_code == 404
    assert page.client.get("/llm/static/../web.py").status_code == 404


def test_the_page_is_small_and_asks_nothing_of_other_servers() -> None:
    names = [*ASSETS, "live.html", "new_run.html"]
    assert sum((STATIC / name).stat().st_size for name in names) < 1_000_000
    for name in names:
        if name.startswith("uPlot"):
            continue
        text = (STATIC / name).read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//\w+\.\w+/|@import|url\(", text), name


def test_it_lies_below_locusts_base_path(pages: Callable[..., Page]) -> None:
    page = pages("--web-base-path", "/deep/er")
    assert page.client.get("/deep/er/llm").status_code == 200
    assert page.client.get("/llm").status_code == 404
    assert '"href": "./llm"' in page.client.get("/deep/er/").text
    stats = page.client.get("/deep/er/stats/requests").get_json()
    assert [table["key"] for table in stats["extended_stats"]] == ["llm"]


def test_the_history_of_past_runs(
    pages: Callable[..., Page], on: tuple[Page, Any], tmp_path: Path
) -> None:
    page, _ = on
    # reading a thousand folders would disturb the run
    assert page.client.get("/llm/history").status_code == 409
    page.view.control = None
    run_folder(tmp_path / "reports" / "a b", START, 1.0, model="<b>m")
    (tmp_path / "reports" / "a b" / "report.html").touch()
    answer = page.client.get("/llm/history")
    assert (answer.status_code, answer.mimetype) == (200, "text/html")
    assert "&lt;b&gt;m" in answer.text
    (link,) = re.findall(r'href="(runs/[^"]+)"', answer.text)
    assert page.client.get(f"/llm/{link}").status_code == 200
    assert "sandbox" in answer.headers["Content-Security-Policy"]
    assert (
        pages("--report-dir", str(tmp_path / "reports" / "mine"))
        .client.get("/llm/history")
        .status_code
        == 404
    )


def test_only_listed_runs_are_compared_and_not_during_a_run(
    on: tuple[Page, Any], tmp_path: Path
) -> None:
    page, _ = on
    for name in ("a", "b"):
        run_folder(tmp_path / "reports" / name, START, 1.0)
        (tmp_path / "reports" / name / "report.html").touch()
    assert page.client.get("/llm/compare?run=a&run=b").status_code == 409
    page.view.control = None
    for query in ("", "?run=a", "?run=a&run=../a", "?run=a&run=c"):
        assert page.client.get(f"/llm/compare{query}").status_code == 404, query


def test_it_is_behind_locusts_login(pages: Callable[..., Page]) -> None:
    page = pages("--web-login")
    page.ui.app.secret_key = "s"
    page.ui.login_manager.user_loader(lambda name: None)
    ours = [rule.rule for rule in page.ui.app.url_map.iter_rules() if rule.rule.startswith("/llm")]
    assert len(ours) >= 9
    for path in ours:
        path = (
            path.replace("<name>", "live.js")
            .replace("<run>", "one")
            .replace("<path:path>", "report.html")
        )
        posts = ("/llm/gate", "/llm/rate", "/llm/datasets", "/llm/command")
        way = page.client.post if path in posts else page.client.get
        answer = way(path)
        assert (answer.status_code, answer.headers.get("Location", "")[:6]) == (302, "/login"), path
    for path, way in (
        ("/", page.client.get),
        ("/swarm", page.client.post),
        ("/stats/requests", page.client.get),
    ):
        assert way(path).status_code == 302, path
    assert (page.asked, page.view.refusal) == ([], "")


def test_before_the_first_run_there_is_none(pages: Callable[..., Page]) -> None:
    page = pages()
    assert page.live() == {
        "run": 0,
        "name": "",
        "state": "none",
        "where": "no run yet",
        "refusal": "",
        "alerts": [],
    }
    assert page.client.get("/llm/runs").get_json() == {"last": "", "runs": []}


# -- start -----------------------------------------------------------------------------------------


def test_a_form_starts_a_run(pages: Callable[..., Page], server: TinyServer) -> None:
    page = pages("-t", "9s")
    form = {
        "host": server.url,
        "prefill_concurrency": "2",
        "run_time": "",
        "slo": "ttft p95 < 1s",
        "model": "other",
    }
    assert page.start(form) == {"success": True}
    assert page.asked == [{"user_count": ["2"], "spawn_rate": ["1"], "host": [server.url]}]
    assert (page.options.prefill_concurrency, page.options.llm_rules) == (2, ["ttft p95 < 1s"])
    assert (page.options.run_time, page.options.num_users) == (None, 2)
    assert [found.model for found in page.surveyed] == ["other"]
    assert (page.view.starting, page.view.refusal) == (False, "")


def test_users_of_the_warmup_begin(pages: Callable[..., Page], server: TinyServer) -> None:
    page = pages()
    form = {
        "host": server.url,
        "user_count": "8",
        "warmup_concurrency": "3",
        "warmup_request_count": "6",
    }
    assert page.start(form)["success"]
    assert page.asked[0]["user_count"] == ["3"]
    assert (page.options.num_users, page.options.llm_users) == (8, 8)


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ({"prefill_concurrency": "x"}, "--prefill-concurrency must be a whole number, got 'x'"),
        ({"prefill_concurrency": "3"}, "--prefill-concurrency 3 is above the 2 users"),
        ({"slo": "ttft < 5"}, "ttft"),
        (
            {"model": "mine"},
            "--model: the server has no model 'mine'; it has: tiny, other; to send it anyway, use "
            "--no-model-check",
        ),
        ({"host": "http://127.0.0.1:1"}, "cannot reach http://127.0.0.1:1: "),
        ({"host": ""}, "--host is missing"),
        ({"api_key_file": "/etc/passwd"}, "--api-key-file works on the command line only"),
    ],
)
def test_a_run_that_cannot_be_is_refused_in_the_form(
    form: dict[str, str],
    line: str,
    pages: Callable[..., Page],
    server: TinyServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    page = pages("--host", server.url)
    before = dict(vars(page.options))
    answer = page.start(form)
    assert not answer["success"]
    assert line in answer["message"]
    assert (page.asked, page.surveyed, vars(page.options)) == ([], [], before)
    assert page.view.refusal == f"The run cannot start: {answer['message']}"
    assert page.live()["refusal"] == page.view.refusal
    assert (logging.ERROR, page.view.refusal) in [
        (line.levelno, line.getMessage()) for line in caplog.records
    ]
    assert page.start()["success"]
    assert page.view.refusal == ""


def test_the_next_visit_of_the_form_is_not_greeted_by_an_old_refusal(
    pages: Callable[..., Page],
) -> None:
    page = pages("--host", "http://server")
    assert not page.start({"slo": "ttff p95 < 1s"})["success"]
    assert page.view.refusal
    assert "ttff" not in page.client.get("/llm/new").text


@pytest.mark.parametrize("error", [OverflowError("too large"), MemoryError(), TypeError("no text")])
def test_an_error_at_the_start_is_a_refusal_in_the_form(
    error: Exception,
    pages: Callable[..., Page],
    server: TinyServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def raising(*args: Any, **kw: Any) -> None:
        raise error

    monkeypatch.setattr(run_form_submit, "prepare_run", raising)
    page = pages("--host", server.url)
    answer = page.start()
    assert answer["success"] is False
    assert type(error).__name__ in answer["message"]
    assert page.view.refusal == f"The run cannot start: {answer['message']}"
    assert page.asked == []


def test_only_one_run_is_about_to_start(pages: Callable[..., Page]) -> None:
    page = pages()
    page.view.starting = True
    assert page.start()["message"] == "a run is starting: locust-llm is checking the server"
    assert page.view.starting
    assert page.live()["state"] == "starting"


def test_a_new_run_waits_for_the_report_of_the_last(
    on: tuple[Page, Any], server: TinyServer
) -> None:
    page, run = on
    page.runner.state, run.draining = "stopped", True
    gevent.spawn_later(0.1, page.view.ends)
    assert page.start({"host": server.url, "user_count": "9"})["success"]
    assert page.view.control is None


# -- the key ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "headers", "passes"),
    [
        (["--web-host", "127.0.0.1"], {}, True),
        # anybody could name a server of his own, and read the key there
        (["--web-host", ""], {}, False),
        (["--web-host", "", "--host", "{url}"], {}, True),
        (["--web-host", "127.0.0.1"], {"Sec-Fetch-Site": "same-origin"}, True),
        (["--web-host", "127.0.0.1"], {"Origin": "http://localhost"}, True),
    ],
)
def test_the_key_goes_to_no_server_that_others_name(
    words: list[str], headers: dict[str, str], passes: bool, pages: Callable[..., Page],
    server: TinyServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    page = pages(*[word.format(url=server.url) for word in words])
    answer = page.start({"host": server.url}, **headers)
    assert answer["success"] == passes
    assert len(page.asked) == passes
    assert bool(server.asked) == passes
    assert KEY not in str(answer)
    assert passes or "the API key" in answer["message"]


def test_without_a_key_any_server_may_be_named(
    pages: Callable[..., Page], server: TinyServer
) -> None:
    assert pages("--web-host", "").start({"host": server.url})["success"]


def test_no_secret_is_in_any_page(
    pages: Callable[..., Page], server: TinyServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    (tmp_path / "hidden-key").write_text("sk-from-file")
    page = pages("--host", server.url, "--header", "X-Key: s3cret", "--api-key-file", "hidden-key")
    page.start()
    for path in ("/", "/llm", "/llm/live", "/llm/runs", "/stats/requests"):
        text = page.client.get(path).text
        for secret in (KEY, "s3cret", "sk-from-file", "hidden-key"):
            assert secret not in text, path


# -- edit, and the gate ----------------------------------------------------------------------------


def test_the_form_of_changes_turns_the_gate_at_once(on: tuple[Page, Any]) -> None:
    page, run = on
    assert page.start({"user_count": "9", "prefill_concurrency": "6", "output_tokens_mean": "128"})[
        "success"
    ]
    assert (run.turned, run.users, page.asked) == ([(6, None)], [], [])
    assert page.start({"user_count": "9", "prefill_concurrency": "6"})["success"]  # where it is
    assert page.start({"user_count": "9"})["success"]
    assert run.turned == [(6, None)]
    # empty: not edited
    assert page.start({"user_count": "9", "prefill_concurrency": ""})["success"]
    assert run.turned == [(6, None)]
    assert page.live()["marks"][-1][1] == "limit 6"


def test_a_limit_that_was_not_edited_in_the_form_does_not_undo_the_live_pages(
    on: tuple[Page, Any],
) -> None:
    page, run = on
    page.client.post("/llm/gate", data={"limit": "3"})
    answer = page.start({"user_count": "9", "prefill_concurrency": "4"})
    assert answer["message"] == "The prefill limit is unchanged: the live page set it to 3"
    assert page.start({"user_count": "9", "prefill_concurrency": "5"})["message"] == "Changed"
    assert run.turned == [(3, None), (5, None)]


@pytest.mark.parametrize(("typed", "kept"), [("8", "8"), ("", "")])
def test_the_form_of_the_next_run_has_the_changed_limit(
    typed: str, kept: str, on: tuple[Page, Any]
) -> None:
    page, run = on
    page.client.post("/llm/gate", data={"limit": typed})
    assert page.options.prefill_concurrency == 4
    run.draining = True
    assert (
        f'name="prefill_concurrency" aria-describedby="of-prefill_concurrency-help" value="{kept}"'
        in (page.client.get("/llm/new").text)
    )
    page.view.ends()
    assert page.options.prefill_concurrency == (int(kept) if kept else None)


def test_a_tab_of_somebody_else_stays(on: tuple[Page, Any]) -> None:
    page, _ = on

    @page.ui.app.after_request
    def theirs(answer: Any) -> Any:
        if answer.is_json:
            answer.set_data(
                msgspec.json.encode(
                    {**answer.get_json(), "extended_stats": [{"key": "theirs", "data": []}]}
                )
            )
        return answer

    for _ in range(2):
        stats = page.client.get("/stats/requests").get_json()
        assert [table["key"] for table in stats["extended_stats"]] == ["theirs", "llm"]


def test_the_form_of_changes_changes_the_users(on: tuple[Page, Any]) -> None:
    page, run = on
    assert page.start({"user_count": "12", "prefill_concurrency": "4"})["success"]
    assert (run.users, run.turned) == ([12], [])
    assert page.asked == [{"user_count": ["12"], "spawn_rate": ["1"], "host": ["http://server"]}]
    run.change_users = lambda users: False
    assert (
        page.start({"user_count": "15"})["message"]
        == "The number of users is unchanged: the load sets it"
    )
    assert len(page.asked) == 1


def test_empty_and_unchanged_fields_of_the_form_of_changes_are_no_change(
    pages: Callable[..., Page], server: TinyServer, tmp_path: Path
) -> None:
    """Whatever was typed into the form that started the run."""
    page = pages("--host", server.url)
    typed = {
        "user_count": "9", "slo": "ttft p95<1s;error_rate < 1%", "prefill_concurrency": "4",
        "slo_preset": "chat",
        "streaming": "true", "arrival_pattern": "none", "output_tokens_mean": "64",
    }  # fmt: skip
    assert page.start(typed)["success"]
    run = Run(tmp_path / "one", host=server.url)
    page.view.begins(run)  # type: ignore[arg-type]
    page.runner.state, page.runner.target_user_count = "running", 9
    for form in (
        typed,
        dict.fromkeys(typed, ""),
        {**typed, "slo": "", "slo_preset": "none", "output_tokens_mean": "64.0"},
    ):
        assert page.start({**form, "user_count": "12"})["success"], page.view.refusal
    assert (run.turned, run.users) == ([], [12, 12, 12])


def test_a_refused_change_is_shown_until_the_next_one_succeeds(on: tuple[Page, Any]) -> None:
    page, _ = on
    assert not page.start({"user_count": "12", "model": "x"})["success"]
    assert page.live()["refusal"].startswith("Not changed: --model cannot change")
    assert page.start({"user_count": "12"})["success"]
    assert page.live()["refusal"] == ""


def test_the_server_does_not_change_while_a_run_is_on(on: tuple[Page, Any]) -> None:
    page, run = on
    assert page.start({"user_count": "12", "host": "http://elsewhere"})["message"] == (
        "--host cannot change during a run: it is http://server"
    )
    assert (run.users, page.asked) == ([], [])
    assert page.start({"user_count": "12", "host": " http://server/v1"})["success"]


def test_nothing_else_changes_while_a_run_is_on(on: tuple[Page, Any]) -> None:
    page, run = on
    answer = page.start(
        {"user_count": "12", "prefill_concurrency": "6", "model": "x", "slo": "ttft p95 < 1s"}
    )
    assert answer["message"] == (
        "--model and --slo cannot change during a run: only --prefill-concurrency and the number "
        "of users can"
    )
    assert (run.turned, run.users, page.asked) == ([], [], [])
    # Locust closes its form all the same
    assert page.live()["refusal"] == f"Not changed: {answer['message']}"


@pytest.mark.parametrize(
    ("form", "status", "said", "turned"),
    [
        ({"limit": "7"}, 200, "turned", [(7, None)]),
        ({"limit": " 2 ", "ramp_s": "2.5"}, 200, "turned", [(2, 2.5)]),
        ({"limit": ""}, 200, "turned", [(None, None)]),
        ({"limit": "many"}, 422, "the limit must be a whole number, got 'many'", []),
        (
            {"limit": "3", "ramp_s": "nan"},
            422,
            "the ramp must be a number of seconds, got 'nan'",
            [],
        ),
        (
            {"limit": "3", "ramp_s": "inf"},
            422,
            "the ramp must be a number of seconds, got 'inf'",
            [],
        ),
        ({"limit": "99"}, 422, "99 is too many", []),
    ],
)
def test_the_gate_is_turned_from_the_page(
    form: dict[str, str], status: int, said: str, turned: list[Any], on: tuple[Page, Any]
) -> None:
    page, run = on
    answer = page.client.post("/llm/gate", data=form)
    assert (answer.status_code, answer.get_json()) == (
        status,
        {"done": status == 200, "message": said},
    )
    assert run.turned == turned
    if turned:
        limit = turned[0][0]
        assert page.live()["limit"] == page.live()["target"] == limit
        over = " over 2.5 s" if form.get("ramp_s") else ""
        assert page.live()["marks"][-1][1] == (f"limit {limit}{over}" if limit else "no limit")


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({}, True),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://behind.a.proxy"}, True),
        ({"Origin": "http://localhost"}, True),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Origin": "http://elsewhere"}, False),
        ({"Origin": "null"}, False),
    ],
)
def test_no_page_of_another_site_turns_it(
    headers: dict[str, str], passes: bool, on: tuple[Page, Any]
) -> None:
    page, run = on
    answer = page.client.post("/llm/gate", data={"limit": "7"}, headers=headers)
    assert (answer.status_code, len(run.turned)) == ((200, 1) if passes else (403, 0))


def test_it_is_turned_by_post_and_during_a_run_only(pages: Callable[..., Page]) -> None:
    page = pages()
    assert page.client.get("/llm/gate?limit=7").status_code == 405
    answer = page.client.post("/llm/gate", data={"limit": "7"})
    assert (answer.status_code, answer.get_json()["message"]) == (
        422, "no run is active: start a run first",
    )  # fmt: skip


# -- the figures -----------------------------------------------------------------------------------


def test_the_history_is_told_once(on: tuple[Page, Any]) -> None:
    page, _ = on
    assert page.view.live is not None
    for _ in range(3):
        page.view.live.tick(9, 4, "profiling")
    page.view.live.stats.parts.add(answered(100, rtt_us=1000))
    first = page.live()
    parts = [["network", "network (round trip)", 1.0], ["server", "in the server", 99.0]]
    assert first["parts"] == {"count": 1, "seconds": 30, "parts": parts, "before": []}
    assert (first["run"], first["whole"], len(first["points"])) == (1, True, 3)
    same = {"run": 1, "step": first["step"], "after": first["points"][-1][0]}
    assert (page.live(**same)["whole"], page.live(**same)["points"]) == (False, [])
    page.view.live.started_at -= 5
    page.view.live.tick(9, 4, "profiling")
    assert len(page.live(**same)["points"]) == 1
    for other in ({"run": 2}, {"step": 2}, {"run": "", "step": "x", "after": "y"}):
        again = page.live(**{**same, **other})
        assert (again["whole"], len(again["points"])) == (True, 4)
    assert "lines" not in first
    assert page.live(lines="")["lines"] is None


def test_the_tab_of_locusts_page_says_the_same(on: tuple[Page, Any]) -> None:
    page, run = on
    assert page.view.live is not None
    run.run_progress.update("local", used=2, waiting=3, decoding=4, ttfts_s=[0.1])
    page.view.live.add(answered(100, 150))
    index = page.client.get("/").text
    for text in (
        '"extended_tabs": [{"title": "LLM", "key": "llm"}]',
        '"href": "./llm"',
        '"href": "./llm/last/report.html"',
    ):
        assert text in index
    told = page.client.get("/stats/requests").get_json()
    (ours,) = told["extended_stats"]
    structure = {
        column["key"] for column in page.ui.template_args["extended_tables"][0]["structure"]
    }
    rows = {row["figure"]: row for row in ours["data"]}
    assert all(set(row) <= structure for row in ours["data"])
    assert rows["TTFT"] == {
        "figure": "TTFT", "count": "1", **{f"recent{q}": "100" for q in (50, 90, 95, 99)},
        **{f"whole{q}": "100" for q in (50, 90, 95, 99)},
    }  # fmt: skip


def test_the_tab_is_there_in_the_moment_in_which_a_run_begins(
    pages: Callable[..., Page], tmp_path: Path
) -> None:
    """What was shown half a second ago is of no use any more."""
    page = pages()
    assert list(page.view.rows()) == []
    page.view.begins(Run(tmp_path / "one"))  # type: ignore[arg-type]
    assert len(list(page.view.rows())) > 2


def test_the_tab_shows_a_refusal_as_locust_closes_its_form(on: tuple[Page, Any]) -> None:
    page, _ = on
    page.start({"user_count": "12", "model": "x"})
    page.view._status = (0.0, {})
    assert next(page.view.rows())["figure"].startswith("Not changed: --model")


def test_rules_are_told_as_they_stand(pages: Callable[..., Page], tmp_path: Path) -> None:
    page, run = (
        pages(),
        Run(
            tmp_path / "one",
            slo=("ttft p95 < 1s", "itl p95 < 1ms", "goodput >= 1/s given ttft < 1s"),
        ),
    )
    page.view.begins(run)  # type: ignore[arg-type]
    assert [card["state"] for card in page.live()["rules"]] == ["no value yet"] * 3
    run.abort.add(answered(100, 150))
    page.view.on_record(answered(100, 150))
    run.run_progress.update("local", used=0, waiting=0, decoding=0, ttfts_s=[0.1])
    page.view._status = (0.0, {})
    cards = page.live()["rules"]
    assert [card["state"] for card in cards] == ["OK so far", "at risk", "no value yet"]
    assert [(card["name"], card["now"], card["limit"]) for card in cards[:2]] == [
        ("TTFT p95 < 1 s", "100 ms", "1 s"),
        ("ITL p95 < 1 ms", "50 ms", "1 ms"),
    ]


def test_cards_and_charts_are_of_one_moment(pages: Callable[..., Page], tmp_path: Path) -> None:
    """A token that comes after the last point of the charts is in the next point, and in the card
    with it."""
    page, run = pages(), Run(tmp_path / "one", slo=("ttft_from_due p95 < 1s",))
    page.view.begins(run)  # type: ignore[arg-type]
    live = page.view.live
    assert live is not None
    seen = list[tuple[str, object]]()
    for ttft_s in (0.1, 0.3):
        run.run_progress.update("local", used=0, waiting=0, decoding=0, ttfts_from_due_s=[ttft_s])
        page.view.settled()
        if live.points:  # a page asks between two points
            seen.append((page.live()["rules"][0]["now"], live.points[-1].ttft_ms))
        live.tick(1, None, "profiling")
        page.view._look_at_rules(run, live.seconds)  # type: ignore[arg-type]
    assert seen == [("100 ms", (100.0, 100.0, 100.0))]
    page.view.settled()
    assert page.live()["rules"][0]["now"] == "290 ms"  # p95 of 100 and 300 ms


def test_a_change_of_users_is_a_mark_and_a_cause(on: tuple[Page, Any]) -> None:
    page, _ = on
    assert page.start({"user_count": "12"})["success"]
    mark = page.live()["marks"][-1]
    assert mark[1:3] == ["12 users", "users"]
    assert mark[3].endswith("to 12")


def test_steps_of_the_runs_own_ramp_are_marks(on: tuple[Page, Any]) -> None:
    """Those of a ramp that somebody asks for are not: it has its mark where it begins."""
    page, run = on
    live = page.view.live
    assert live is not None
    for limit in (None, 1, 1, 2, 3):
        run.limit = limit
        page.view._mark_ramp(run, live)
    assert [mark.text for mark in live.marks] == ["limit 2", "limit 3"]
    assert live.marks[-1].sentence == "the prefill limit went from 2 to 3"
    page.view.change_limit(5, 10.0)
    for limit in (4, 5):
        run.limit = limit
        page.view._mark_ramp(run, live)
    assert [mark.text for mark in live.marks] == ["limit 2", "limit 3", "limit 5 over 10 s"]


def test_what_goes_wrong_is_told_the_worst_first(on: tuple[Page, Any]) -> None:
    """A worker was lost 15 s after the start, another is silent, and three of four requests
    failed."""
    page, run = on
    live = page.view.live
    assert live is not None
    live.started_at -= 100
    run.losses.lost_workers.append(LostWorker(live.started_at + 15, 2, 2, 8, 0))
    run.states = [ProcessState(1, 9, None, 4.2)]
    now = live.started_at + live.seconds
    for outcome in ("ok", "refused", "refused", "refused"):
        record = answered(clock_offset_s=now - 10, outcome=outcome, error="connection refused")
        page.view.on_record(record)
    page.view._status = (0.0, {})
    texts = [alert["text"] for alert in page.live()["alerts"]]
    assert texts == [
        "3 of the last 3 requests failed since 1:40: connection refused",
        "Worker 1 of 2 has reported nothing for 4 s",
        "Worker 2 of 2 lost at 0:15: 8 records gone",
    ]


def test_the_rate_of_a_schedule_is_changed_from_the_page(
    pages: Callable[..., Page], tmp_path: Path
) -> None:
    page, run = pages(), Run(tmp_path / "one", request_rate=2.5, prefill_concurrency=None)
    page.view.begins(run)  # type: ignore[arg-type]
    assert page.live()["steers"]["rate"] == 2.5
    for rate, status in (("0", 422), ("", 422), ("x", 422), ("nan", 422), ("5", 200)):
        assert page.client.post("/llm/rate", data={"rate": rate}).status_code == status, rate
    assert run.rate == 5
    page.view.keep_changed_load()
    assert page.options.request_rate == 5
    mark = page.live()["marks"][-1]
    assert mark[1:] == ["5 requests/s", "rate", "the request rate went from 2.5 to 5/s"]


def test_a_report_that_could_not_be_made_is_an_alert(on: tuple[Page, Any]) -> None:
    page, _ = on
    page.view.ends()
    assert page.live()["alerts"][0]["text"].startswith("The report could not be created")


@pytest.mark.parametrize(
    ("settings", "generates", "streams"),
    [
        ({}, True, True),
        ({"streaming": False}, True, False),
        ({"endpoint_type": "embeddings"}, False, False),
    ],
)
def test_the_page_knows_whether_a_first_token_is_awaited(
    settings: dict[str, Any],
    generates: bool,
    streams: bool,
    pages: Callable[..., Page],
    tmp_path: Path,
) -> None:
    page, run = pages(), Run(tmp_path / "one", **settings)
    page.view.begins(run)  # type: ignore[arg-type]
    assert (page.live()["generates"], page.live()["streams"]) == (generates, streams)


def test_charts_get_the_limits_of_the_rules_in_their_units(
    pages: Callable[..., Page], tmp_path: Path
) -> None:
    rules = (
        "ttft p95 < 1.5s",
        "itl p99 <= 40ms",
        "output_tokens_per_s >= 2500",
        "error_rate < 1%",
        "request_latency avg < 9s",
    )
    page, run = pages(), Run(tmp_path / "one", slo=rules)
    page.view.begins(run)  # type: ignore[arg-type]
    drawn = [
        ["ttft", 1500, rules[0]],
        ["itl", 40, rules[1]],
        ["output_tokens_per_s", 2500, rules[2].replace("2500", "2500/s")],
    ]
    assert page.live()["limits"] == drawn
    page.view.ends()
    assert page.live()["limits"] == drawn


@pytest.mark.parametrize("state", ["cleanup", "stopping", "stopped"])
def test_a_run_is_on_for_locusts_page_until_its_report_is_there(
    state: str, on: tuple[Page, Any]
) -> None:
    page, run = on
    page.runner.state, run.draining = state, True
    told = lambda: page.client.get("/stats/requests").get_json()["state"]  # noqa: E731
    assert told() == "running"
    assert '"state": "running"' in page.client.get("/").text
    assert page.live()["state"] == "ending"
    page.view.ends()
    assert told() == "stopped"


def test_the_warmup_is_counted_while_it_lasts_and_not_with_the_run(on: tuple[Page, Any]) -> None:
    page, run = on
    run.plan.phase = WARMUP
    for record in [answered(5, 10)] * 8:
        run.run_progress.add(msgspec.structs.replace(record, phase=WARMUP))
    found = page.live()
    assert (found["warms_up"], found["ok"], found["failed"]) == (True, 8, 0)
    run.plan.phase = PROFILING
    for record in [answered(5, 10)] * 18:
        run.run_progress.add(record)
    page.view.settled()
    found = page.live()
    assert (found["warms_up"], found["ok"], found["failed"]) == (False, 18, 0)
    page.view.ends()
    assert (page.live()["ok"], page.live()["failed"]) == (18, 0)


def test_at_the_end_nothing_runs_and_the_time_stops(on: tuple[Page, Any]) -> None:
    page, run = on
    live = page.view.live
    assert live is not None
    run.run_progress.update("local", used=0, waiting=0, decoding=6)
    run.draining = True
    live.started_at -= 12
    live.tick(0, 4, "stop")
    assert page.live()["where"] == "6 requests still running"
    run.run_progress.end("local")
    page.view.settled()
    live.started_at -= 20  # the report takes so long
    status = page.live()
    assert (status["where"], status["decoding"]) == ("making the report", 0)
    assert status["seconds"] == live.points[-1].at == pytest.approx(12, abs=1)
    page.view._last_s = 12.6  # it was last running between two points
    page.view.settled()
    assert page.live()["seconds"] == 12.6


def test_the_end_shows_what_the_report_says(on: tuple[Page, Any]) -> None:
    page, run = on
    run.store.result = ReportResult(
        client=ClientVerdict("OK"),
        headline="So it is.",
        slo_status="FAIL",
        rules=(RuleResult("ttft p95 < 1s", "FAIL", "2s", "why"),),
        figures={
            "time_to_first_token": MetricValue(
                count=7,
                percentiles={50.0: 1.5, 90.0: 2.0, 95.0: 3.0, 99.0: 4.0},
                inexact=("p50",),
            ),
            "output_token_throughput": MetricValue(12.5),
        },
    )
    page.view.ends()
    status = page.live()
    assert (status["state"], status["slo"], status["client"]["level"], status["tokens_per_s"]) == (
        "over",
        "FAIL",
        "OK",
        12.5,
    )
    assert status["table"][0]["label"] == "TTFT from due"
    assert status["table"][1] == {
        "label": "TTFT", "count": 0, "recent_ms": None, "whole_count": 7,
        "whole_ms": [1.5, 2.0, 3.0, 4.0], "named": False, "inexact": ["p50"],
    }  # fmt: skip
    assert status["table"][2]["whole_ms"] is None
    (card,) = status["rules"]
    assert (card["rule"], card["state"], card["now"], card["reason"]) == (
        "ttft p95 < 1s", "failed", "2 s", "why",
    )  # fmt: skip
    assert status["headline"] == "So it is."


def test_of_a_sweep_no_latency_of_all_stages_is_shown(on: tuple[Page, Any]) -> None:
    page, run = on
    run.store.result = ReportResult(
        swept=True, findings=("All stages are done.", "It turns at 4.", "So be it.")
    )
    page.view.ends()
    status = page.live()
    assert (status["table"], status["found"]) == (
        [],
        ["All stages are done.", "It turns at 4.", "So be it."],
    )


def test_a_run_whose_report_failed_keeps_its_live_figures(on: tuple[Page, Any]) -> None:
    page, _ = on
    assert page.view.live is not None
    page.view.live.add(answered(100, 150))
    page.view.ends()
    assert page.live()["state"] == "over"
    assert page.live()["table"][0]["whole_count"] == 1


def test_a_second_run_begins_clean(on: tuple[Page, Any], tmp_path: Path) -> None:
    page, _ = on
    assert page.view.live is not None
    page.view.live.add(answered(100, 150))
    page.view.live.tick(9, 4, "profiling")
    page.view.change_limit(7)
    page.view.ends()
    page.view.begins(Run(tmp_path / "reports" / "two", prefill_concurrency=3))  # type: ignore[arg-type]
    status = page.live(run=1, step=1, after=0)
    assert (status["run"], status["name"], status["target"], status["whole"]) == (2, "two", 3, True)
    assert (status["points"], status["marks"], status["table"][0]["whole_count"]) == ([], [], 0)
    listed = page.client.get("/llm/runs").get_json()
    assert (listed["last"], {entry["name"] for entry in listed["runs"]}) == ("two", {"one", "two"})


@pytest.mark.parametrize("over", ["ending", "between stages"])
def test_rates_stand_still_when_the_load_is_over(
    over: str, pages: Callable[..., Page], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request a second for 10 s. Making the report takes 10 s more: of 20 s the rate would be
    0.5/s. Half of the requests fail, and nothing that is still to come can change that."""
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(
        view_module, "time", SimpleNamespace(time=lambda: now.s, monotonic=lambda: now.s)
    )
    slo = ("requests_per_s >= 0.8/s", "error_rate < 10%")
    page, run = pages(), Run(tmp_path / "one", slo=slo)
    page.view.begins(run)  # type: ignore[arg-type]
    for second in range(20):
        record = failed() if second % 2 else answered(100, 150)
        run.abort.add(record)
        page.view.on_record(record)
        now.s += 0.5
    page.view.settled()
    rate, errors = page.live()["rules"]
    assert (rate["so_far"], rate["state"], errors["state"]) == ("1/s", "OK so far", "at risk")
    if over == "ending":
        run.draining = True
    else:
        run.plan.phase = "between stages"
    now.s += 10.0
    page.view.settled()
    later, errors = page.live()["rules"]
    assert later == rate
    assert errors["state"] == ("cannot pass" if over == "ending" else "at risk")
    assert page.live()["table"][-1]["count"] == (9 if over == "ending" else 0)


def test_phases_are_marked_as_they_come(
    on: tuple[Page, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, run = on
    run.plan.phase = WARMUP
    assert view_module._phase(run) == "warmup"
    stages: Any = SimpleNamespace(number=2, value=8.0, asked=SimpleNamespace(axis="concurrency"))
    run.stages, run.plan.phase = stages, "profiling 2"
    assert view_module._phase(run) == "concurrency 8"
    run.plan.phase = "between stages"
    assert view_module._phase(run) == ""
    run.draining = True
    assert view_module._phase(run) == "stop"


# -- files -----------------------------------------------------------------------------------------


def test_reports_are_shown_in_a_sandbox_and_the_rest_is_saved(on: tuple[Page, Any]) -> None:
    page, run = on
    for name in ("report.html", "summary.md", "profile_export.jsonl", "secret.txt"):
        (run.folder / name).write_text("<script>")
    report = page.client.get("/llm/runs/one/report.html")
    assert (report.status_code, report.mimetype, report.text) == (200, "text/html", "<script>")
    assert report.headers["Content-Security-Policy"].startswith("sandbox")
    assert "allow-same-origin" not in report.headers["Content-Security-Policy"]
    summary = page.client.get("/llm/last/summary.md")
    assert (summary.mimetype, summary.headers["X-Content-Type-Options"]) == (
        "text/plain",
        "nosniff",
    )
    records = page.client.get("/llm/last/profile_export.jsonl")
    assert records.headers["Content-Disposition"] == "attachment; filename=one-profile_export.jsonl"
    for path in (
        "one/secret.txt", "one/junit.xml", "two/report.html", "one/../../x", "..%2f..%2fetc/passwd",
        "one/%2e%2e/one/run.json", "%2e%2e/reports/one/report.html",
    ):  # fmt: skip
        assert page.client.get(f"/llm/runs/{path}").status_code == 404, path


def test_without_a_gate_no_table_has_a_row_of_its_waits(
    pages: Callable[..., Page], tmp_path: Path
) -> None:
    page, run = pages("-u", "9"), Run(tmp_path / "reports" / "one", prefill_concurrency=None)
    run.limit = None
    page.view.begins(run)  # type: ignore[arg-type]
    assert "Gate wait" not in [row["label"] for row in page.live()["table"]]
    page.view.change_limit(3)
    assert "Gate wait" in [row["label"] for row in page.live()["table"]]
    page.view.change_limit(None)  # there were waits
    assert "Gate wait" in [row["label"] for row in page.live()["table"]]


@pytest.mark.parametrize(
    "how", [{"data": {"limit": "2", "html_file": "x"}}, {"query_string": {"html_file": "x"}}]
)
def test_the_gate_has_no_other_field(how: dict[str, Any], on: tuple[Page, Any]) -> None:
    page, run = on
    answer = page.client.post("/llm/gate", **how)
    assert (answer.status_code, answer.get_json()["message"]) == (
        422,
        "the request must have the fields limit and ramp_s only, not 'html_file'",
    )
    assert run.turned == []
