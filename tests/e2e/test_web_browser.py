"""The pages in a browser: a run from the form to its report, and the gate, whose effect the
simulator knows."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from support.axe import violations
from support.web_ui import LOGIN, ROOT, Web, fill, start, until

TRACE = ROOT / "locustfiles" / "traces" / "sample.jsonl"
FIRST_CHART = "document.querySelector('#panels .plot').getBoundingClientRect().top + scrollY"
"""Pixels from the top to it."""


def turn(web: Web, live: Any, limit: int | None, ramp: str = "") -> None:
    """From the page; back when Locust has said yes."""
    with live.expect_response("**/llm/gate") as answer:
        if limit is None:
            live.get_by_role("button", name="No limit").click()
        else:
            live.locator("#limit").fill(str(limit))
            live.get_by_label("Ramp, seconds").fill(ramp)
            live.get_by_role("button", name="Set", exact=True).click()
    assert answer.value.ok
    live.locator("#answer").get_by_text("prefill limit changed by hand").wait_for()


def the_gate_follows(web: Web, live: Any) -> None:
    """Up, down, away and back, as the server sees it. That it takes less than two seconds is
    nothing to assert on a machine that may be busy: the server has ten to get there, and from then
    on never more than the limit."""

    def now() -> float:
        return float(web.truth()["now"])

    for limit in (9, 2, None, 3):
        turn(web, live, limit)
        most = 24 if limit is None else limit
        until(lambda most=most: web.most_in_prefill(now()) <= most, 10)
        since = now()
        until(lambda since=since, most=most: web.most_in_prefill(since) >= min(most, 13), 10)
        until(lambda since=since: now() > since + 0.5, 10)  # some seven prefills
        assert web.most_in_prefill(since) <= most


def the_drain_counts_requests(locust: Web) -> None:
    """After the stop six requests go on, and nothing can be changed any more."""
    page = locust.open("/llm")
    drain = {"state": "ending", "where": "6 requests still running", "decoding": 6}

    def answer(route: Any) -> None:
        real = route.fetch()
        route.fulfill(response=real, json=real.json() | drain)

    page.route(re.compile("/llm/live"), answer)
    page.locator("#clock").get_by_text("6 requests still running").wait_for()
    assert not page.locator("#steer").is_visible()
    assert page.locator("#stop").is_disabled()
    page.close()


def the_list_of_runs_sorts_and_compares(locust: Web) -> None:
    """The older one is the base, whichever was ticked first."""
    page = locust.open("/llm/past")
    names = page.locator("tbody th")
    names.nth(1).wait_for()
    assert names.all_inner_texts() == ["run-2", "run"]  # the last one first
    page.get_by_role("button", name="Run", exact=True).click()
    assert names.all_inner_texts() == ["run", "run-2"]
    sorted_by = page.locator("th[aria-sort]")
    assert (sorted_by.inner_text(), sorted_by.get_attribute("aria-sort")) == ("Run", "ascending")
    assert page.evaluate("document.activeElement.textContent") == "Run"
    page.set_viewport_size({"width": 1280, "height": 900})
    results = page.locator("td:is(.pass, .loud, .open)")
    assert results.count() >= 3  # a rule failed or is open, and both client verdicts
    assert results.evaluate_all(
        "all => all.every(one => getComputedStyle(one).whiteSpace === 'nowrap')"
    )
    compare = page.locator("#compare")
    assert compare.get_attribute("aria-disabled") == "true"
    page.get_by_label("Compare run-2", exact=True).check()
    page.get_by_label("Compare run", exact=True).check()
    assert compare.get_attribute("href") == "compare?run=run&run=run-2"
    page.close()


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "profile_export.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_run_from_the_form_to_its_report_and_a_second_one(web: Callable[..., Web]) -> None:
    locust = web("--slo", "error_rate < 90%")
    page = locust.open("/")
    page.get_by_role("heading", name="New run").wait_for()
    assert page.locator('[name="slo"]').input_value() == "error_rate < 90%"
    assert not page.locator('[name="prefill_concurrency_ramp_duration"]').is_visible()
    start(page, prefill_concurrency="25")
    page.get_by_text(
        "--prefill-concurrency 25 is above the 24 users (-u): at most 24 requests can run at the "
        "same time"
    ).wait_for()
    assert page.evaluate("document.activeElement.name") == "prefill_concurrency"
    assert page.locator('[name="prefill_concurrency_ramp_duration"]').is_visible()
    locust.picture(page, "refused")
    start(page, prefill_concurrency="4", slo="error_rate < 90%\nttft p50 < 1us")
    page.wait_for_url("**/llm")
    tab = locust.open("/?tab=llm")
    tab.get_by_role("cell", name="TTFT", exact=True).wait_for()
    locust.picture(tab, "tab")
    tab.get_by_role("tab", name="Download Data").click()
    assert (
        tab.get_by_role(
            "link", name="LLM live page: charts and the prefill concurrency limit"
        ).get_attribute("href")
        == "./llm"
    )
    tab.get_by_role("button", name="Edit", exact=True).click()
    fill(tab, userCount="20")
    # all else is as it was typed into our form
    tab.get_by_role("button", name="Update", exact=True).click()
    until(lambda: locust.status()["users"] == 20, 10)
    assert locust.status()["refusal"] == ""

    alone = locust.open("/llm")
    # TTFT is there
    alone.locator("#panels .plot").first.get_by_text(re.compile(r"^\d+ ms$|\d s$")).first.wait_for()
    alone.get_by_role("heading", name="Output tokens per second").wait_for()
    alone.locator("#cards").get_by_text(re.compile("broken so far|cannot pass")).wait_for()
    alone.locator("#alerts").get_by_text(
        re.compile("TTFT p50 (is clearly beyond its limit|can no longer pass)")
    ).wait_for(state="attached")
    assert alone.evaluate(FIRST_CHART) <= 200
    until(lambda: locust.truth()["max_prefilling"] == 4, 10)
    alone.locator("#requests .row").nth(3).hover()
    alone.locator("#requests .chosen-line").get_by_text("TTFT").wait_for()
    alone.mouse.move(0, 0)
    alone.locator("#parts .keys").get_by_text("waiting for a prefill slot").wait_for()
    assert "from due to the first token: " in (
        alone.locator("#parts .owner").first.get_attribute("aria-label") or ""
    )
    the_gate_follows(locust, alone)
    locust.picture(alone, "turned")
    begun = locust.status()["points"][0][0]
    alone.reload()
    alone.get_by_role("heading", name="TTFT from due").wait_for()
    history = locust.status()
    assert history["points"][0][0] == begun  # kept over a reload, from the start
    gates = [text for _, text, kind, _ in history["marks"] if kind == "gate"]
    assert gates == ["limit 9", "limit 2", "no limit", "limit 3"]
    the_drain_counts_requests(locust)
    alone.get_by_role("button", name="Stop").click()
    alone.get_by_text("ended", exact=True).first.wait_for()
    # the latter on a machine that is too busy
    alone.get_by_text(re.compile("^SLO (FAIL|INCONCLUSIVE)$")).wait_for()
    alone.get_by_text("All latencies, the server's metrics over time, terms").click()
    names = alone.locator("#server-plots h3").all_inner_texts()
    assert names == ["Running in the server", "Waiting in the server", "KV cache in use",
        "Preemptions per second",
                     "Prefix cache hits"]  # fmt: skip
    first_charts = alone.locator("#server-plots figure").element_handles()
    locust.picture(alone, "ended")

    ok = [record for record in records(locust.folder / "run") if record["error"] is None]
    count = (
        alone.locator("#figures")
        .get_by_role("row", name="TTFT", exact=False)
        .first.get_by_role("cell")
        .last.inner_text()
    )
    assert int(count.replace(",", "")) == len(ok)
    said = json.loads((locust.folder / "run" / "run.json").read_text())["run"]
    assert [change["limit"] for change in said["limits"]] == [4, 9, 2, None, 3]
    assert sum("prefill limit changed by hand" in note for note in said["notes"]) == 4
    assert alone.locator("#headline").inner_text()
    report = locust.context.request.get(
        alone.get_by_role("link", name="Report", exact=True).evaluate("link => link.href")
    )
    assert (report.status, "<!doctype html>" in report.text()) == (200, True)
    runs = locust.context.new_page()
    runs.goto(alone.get_by_role("link", name="Runs", exact=True).evaluate("link => link.href"))
    runs.locator("tbody summary").first.click()
    with runs.expect_download() as saved:
        runs.get_by_role("link", name="figures (JSON)").click()
    assert json.loads(Path(saved.value.path()).read_text())["benchmark_id"] == "run"
    runs.get_by_label("Search").fill("no such run")
    assert runs.locator("#count").inner_text() == "0 of 1 runs"
    runs.get_by_label("Search").fill("")
    runs.get_by_role("link", name="Run again").click()
    assert runs.locator("[name=prefill_concurrency]").input_value() == "4"
    runs.close()

    page.get_by_role("link", name="New run").click()
    start(page, prefill_concurrency="2", slo="", run_time="3s")
    until(lambda: (locust.folder / "run-2" / "report.html").exists(), 30)  # -t of the form ended it
    until(lambda: locust.status()["state"] == "over", 10)
    assert locust.status()["name"] == "run-2"
    assert 2 < locust.status()["seconds"] < 12
    assert [
        entry["name"] for entry in requests.get(locust.base + "/llm/runs", timeout=5).json()["runs"]
    ] == [
        "run-2",
        "run",
    ]
    second = json.loads((locust.folder / "run-2" / "run.json").read_text())
    assert (second["run"]["settings"]["slo"], second["run"]["settings"]["run_time_s"]) == ([], 3)
    alone.get_by_role("heading", name="run-2").wait_for()
    assert not any(chart.evaluate("chart => chart.isConnected") for chart in first_charts)
    locust.picture(alone, "second")
    beside = alone.get_by_role("link", name="Compare with the last one")
    compared = locust.context.new_page()
    compared.goto(beside.evaluate("link => link.href"), timeout=60_000)
    assert compared.locator("h1").inner_text() == "Compared with run"
    compared.close()
    the_list_of_runs_sorts_and_compares(locust)
    assert locust.errors == []


@pytest.mark.full
@pytest.mark.parametrize(
    "words", [("--processes", "2"), ("--processes", "2", "--web-base-path", "/deep/er")]
)
def test_the_gate_is_turned_over_two_workers(
    web: Callable[..., Web], words: tuple[str, ...]
) -> None:
    locust = web(*words)
    until(
        lambda: (
            len(requests.get(locust.base + "/stats/requests", timeout=2).json()["workers"]) == 2
        ),
        20,
    )
    page = locust.open("/")
    start(page, prefill_concurrency="4")
    until(lambda: locust.status()["ok"] > 20, 20)
    live = locust.open("/llm")
    the_gate_follows(locust, live)
    locusts = locust.open("/?tab=stats")
    locusts.get_by_role("button", name="Edit", exact=True).click()
    fill(locusts, prefillConcurrency="6")
    locusts.get_by_role("button", name="Update", exact=True).click()
    until(lambda: locust.status()["limit"] == 6, 5)
    live.get_by_role("button", name="Stop").click()
    live.get_by_text("ended", exact=True).first.wait_for(timeout=30_000)
    locust.picture(live, "ended")
    ids = [record["metadata"]["x_request_id"] for record in records(locust.folder / "run")]
    assert len(ids) == len(set(ids)) == locust.status()["ok"] + locust.status()["failed"]
    page.get_by_role("link", name="New run").wait_for()
    assert locust.errors == []


@pytest.mark.full
def test_everything_is_behind_the_login(web: Callable[..., Web], tmp_path: Path) -> None:
    (tmp_path / "login.py").write_text(LOGIN)
    locust = web("--web-login", locustfile=tmp_path / "login.py")
    page = locust.open("/llm")
    page.get_by_label("Password").wait_for()
    assert (
        requests.post(
            locust.base + "/llm/gate", data={"limit": 3}, timeout=5, allow_redirects=False
        ).status_code
        == 302
    )
    fill(page, username="me", password="right")
    page.get_by_role("button", name="Login").click()
    start(page, prefill_concurrency="4")
    live = locust.open("/llm")
    turn(locust, live, 7)
    locust.picture(live, "signed-in")
    live.get_by_role("button", name="Stop").click()
    live.get_by_text("ended", exact=True).first.wait_for()
    assert locust.errors == []


@pytest.mark.full
def test_a_sweep_from_the_form(web: Callable[..., Web]) -> None:
    locust = web()
    page = locust.open("/")
    start(page, sweep="concurrency=1,2", stage_duration="2..3", stage_requests="5")
    live = locust.open("/llm")
    live.get_by_text("Findings of the sweep").wait_for(timeout=60_000)
    locust.picture(live, "swept")
    assert "concurrency 2" in [mark[1] for mark in locust.status()["marks"]]
    rows = live.locator("#stages tbody tr")
    assert [rows.nth(i).locator("td").first.inner_text() for i in range(2)] == ["1", "2"]
    assert live.locator("#curve canvas").is_visible()
    assert (locust.folder / "run" / "stages" / "2" / "report.html").exists()
    assert locust.errors == []


@pytest.mark.full
def test_the_form_keeps_what_was_typed_and_leads_to_what_was_refused(
    web: Callable[..., Web],
) -> None:
    locust = web()
    page = locust.open("/llm/new")
    page.locator("#of-model").fill("gpt-nope")
    page.locator("#start").click()
    page.locator("#of-model[aria-invalid=true]").wait_for()
    assert page.evaluate("document.activeElement.name") == "model"
    page.close()

    page = locust.open("/llm/new")
    assert page.locator("#answer").inner_text() == ""
    page.locator("#of-seq_dist").evaluate("field => { field.closest('details').open = true; }")
    page.locator("#of-model").fill("m")
    page.locator("#of-seq_dist").fill("200,128:80;4000,512:10")
    page.locator("#start").click()
    page.locator("#of-seq_dist[aria-invalid=true]").wait_for()
    page.locator("#of-seq_dist").fill("")
    page.reload()
    assert page.locator("#of-model").input_value() == "m"

    page.locator("#of-scenario").select_option("rag")
    page.wait_for_url("**/llm/new?scenario=rag")
    assert page.locator("#of-model").input_value() == "m"
    assert page.locator("#of-shared_system_prompt_length").input_value() == "500"
    page.locator("#command").click()
    page.locator("#shown").wait_for()
    assert "--scenario rag --model m" in page.locator("#words").inner_text()
    page.get_by_role("button", name="Close").click()

    page.locator("#file").set_input_files(
        {"name": "x.jsonl", "mimeType": "text/plain", "buffer": b"<html>"}
    )
    assert "x.jsonl is not a dataset" in page.locator("#uploaded.loud").inner_text()
    page.locator("#forget").click()
    page.wait_for_url("**/llm/new")
    assert page.locator("#of-model").input_value() == ""


SHORT_STAGES = {"run_time": "60", "stage_duration": "2..3"}
GOALS = {
    "look": ({"user_count": "3", "run_time": "60", "prefill_concurrency": "2"},
             {"users": 3, "run_time_s": 60, "prefill_concurrency": 2, "sweep": None}),
    "look by rate": ({"request_rate": "4", "run_time": "60"},
                     {"request_rate": 4, "run_time_s": 60, "users": None}),
    "capacity": ({**SHORT_STAGES, "sweep": "concurrency=1..4"},
                 {"sweep": "concurrency=1..4", "find_max": True, "stage_duration": "2..3",
                  "slo": ["ttft p95 < 9s"]}),
    "curve": ({**SHORT_STAGES, "sweep": "request-rate=2,4"},
              {"sweep": "request-rate=2,4", "find_max": False, "users": None}),
    "limit": ({"sweep": "prefill-concurrency=1,2", "user_count": "4", "run_time": "60"},
              {"sweep": "prefill-concurrency=1,2", "users": 4, "objective": "tokens"}),
    "replay": ({"replay_speedup": "2"},
               {"fixed_schedule": True, "replay_speedup": 2, "sweep": None}),
}  # fmt: skip
"""What is typed for each goal, and the settings of its run."""


@pytest.mark.full
@pytest.mark.parametrize("what", GOALS)
def test_each_goal_of_the_form_is_a_run_with_these_settings(
    what: str, web: Callable[..., Web], tmp_path: Path
) -> None:
    locust = web()
    goal, _, load = what.partition(" by ")
    page = locust.open("/llm/new")
    page.locator(f"[name=goal][value={goal}]").check()
    if load:
        page.locator(f"[name=load][value={load}]").check()
    if goal == "replay":
        page.get_by_role("button", name="Start").click()
        page.get_by_text("Choose or upload the trace to replay.").wait_for()
        assert page.evaluate("document.activeElement.name") == "dataset"
        rows = ({"timestamp": 500 * i, "input_length": 64, "output_length": 4} for i in range(80))
        page.locator("#file").set_input_files(
            {"name": "trace.jsonl", "mimeType": "text/plain",
             "buffer": "\n".join(map(json.dumps, rows)).encode()}
        )  # fmt: skip
        page.locator("#uploaded.pass").wait_for()
    elif goal == "capacity":
        page.get_by_role("button", name="Start").click()
        page.get_by_text(
            "Add an SLO: the largest load is the highest one that meets it."
        ).wait_for()
        page.keyboard.press("Enter")
        page.get_by_label("Limit of SLO 1").fill("9")
        page.get_by_label("Unit of SLO 1").select_option("s")
    elif goal == "limit":
        page.locator("#of-objective").select_option("tokens")
    typed, wanted = GOALS[what]
    for name, text in typed.items():
        if name == "sweep":
            axis, _, values = text.partition("=")
            if goal != "limit":
                page.locator(".axis").select_option(axis)
            page.locator(".values").fill(values)
        else:
            field = page.locator(f"[data-section] #of-{name}")
            field.fill(text)
    page.get_by_role("button", name="Start", exact=True).click()
    page.wait_for_url("**/llm")
    until(lambda: locust.status()["ok"] > 0, 60)
    requests.post(locust.base + "/stop", timeout=60)
    until(lambda: (locust.folder / "run" / "run.json").exists(), 60)
    settings = json.loads((locust.folder / "run" / "run.json").read_text())["run"]["settings"]
    assert {name: settings[name] for name in wanted} == wanted
    assert locust.errors == []


@pytest.mark.full
def test_a_comparison_of_two_arms_is_a_command_that_the_page_cannot_start(
    web: Callable[..., Web],
) -> None:
    locust = web()
    page = locust.open("/llm/new")
    page.locator("[name=goal][value=compare]").check()
    assert page.get_by_role("button", name="Start", exact=True).count() == 0
    show = page.get_by_role("button", name="Show the command that starts it")
    page.locator("#of-candidate_set").fill("nonsense")
    show.click()
    page.locator("#of-candidate_set[aria-invalid=true]").wait_for()
    page.locator("#of-candidate_set").fill("body.temperature=0")
    page.locator("#of-user_count").fill("2")
    page.locator("#of-run_time").fill("10m")
    page.get_by_role("button", name="Add an SLO").click()
    page.get_by_label("Operator of SLO 1").select_option("within")
    page.get_by_label("Limit of SLO 1").fill("5")
    assert page.locator(".rule code").inner_text() == "ttft p95 within 5% of base"
    page.reload()
    assert page.locator("#of-candidate_set").input_value() == "body.temperature=0"
    show.click()
    page.locator("#shown").wait_for()
    assert page.locator("#words").inner_text() == (
        f"locust-llm ab -f chat.py --base {locust.server} -u 2 -t 600 -s 5 --candidate-set "
        "body.temperature=0 --slo 'ttft p95 within 5% of base'"
    )
    assert locust.errors == []


@pytest.mark.full
def test_rules_are_rows_with_their_mistakes_beside_them(web: Callable[..., Web]) -> None:
    locust = web("--slo", "ttft p95 < 1s", "--slo", "warn: itl p95 < 9ms")
    page = locust.open("/llm/new")
    assert page.locator(".rule code").all_inner_texts() == ["ttft p95 < 1s", ""]
    assert page.get_by_label("Text of SLO 2").input_value() == "warn: itl p95 < 9ms"
    page.get_by_label("Metric of SLO 1").select_option("error_rate")
    assert page.locator(".rule code").first.inner_text() == "error_rate < 1%"
    page.get_by_role("button", name="Add an SLO").click()
    page.get_by_role("button", name="Start").click()
    page.get_by_text("Give a limit.").wait_for()
    assert page.evaluate("document.activeElement.ariaLabel") == "Limit of SLO 3"
    page.get_by_role("button", name="Remove SLO 3").click()
    assert page.locator("#answer").inner_text() == ""
    page.get_by_label("Text of SLO 2").fill("ttff p95 < 1s")
    page.get_by_role("button", name="Start").click()
    page.locator(".rule").nth(1).get_by_text("unknown metric ttff (did you mean ttft").wait_for()
    assert page.evaluate("document.activeElement.ariaLabel") == "Text of SLO 2"
    assert violations(page) == []
    page.get_by_role("button", name="Edit as text").click()
    assert page.locator("#of-slo").input_value() == "error_rate < 1%\nttff p95 < 1s"
    page.locator("#of-slo").fill("itl p99 <= 40ms")
    page.get_by_role("button", name="Edit as text").click()
    page.reload()
    assert page.locator(".rule code").all_inner_texts() == ["itl p99 <= 40ms"]
    page.locator("#command").click()
    page.locator("#shown").wait_for()
    assert page.locator("#words").inner_text().endswith(" --slo 'itl p99 <= 40ms'")


@pytest.mark.full
def test_every_option_is_found_and_set_where_it_is_found(web: Callable[..., Web]) -> None:
    locust = web()
    page = locust.open("/llm/new")
    page.locator("#search").focus()
    page.keyboard.type("prefix")
    found = page.locator("#all .field:visible label")
    assert set(found.all_inner_texts()) == {
        "Number of prefix prompts",
        "Prefix cache hit rate, percent",
        "Working set, tokens",
        "Cache block size, tokens",
        "Cache tokens",
        "Random seed",
    }
    page.get_by_text(
        "Prefix prompt length, tokens --prefix-prompt-length has no effect without"
    ).wait_for()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.textContent") == "Number of prefix prompts"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.name") == "num_prefix_prompts"
    page.keyboard.type("3")
    assert page.locator("#of-prefix_prompt_length").is_visible()
    page.locator("#of-prefix_prompt_length").fill("100")
    page.locator("#search").fill("api-key")
    page.get_by_text("--api-key-file File with the API key").wait_for()
    assert not page.locator("#all .field:visible").count()
    page.locator("#search").focus()
    page.keyboard.press("Escape")
    assert page.locator("#also .field:visible label").all_inner_texts() == [
        "Number of prefix prompts",
        "Prefix prompt length, tokens",
    ]
    page.locator("#command").click()
    page.locator("#shown").wait_for()
    assert (
        "--num-prefix-prompts 3 --prefix-prompt-length 100" in page.locator("#words").inner_text()
    )
    assert locust.errors == []


@pytest.mark.full
def test_the_form_is_for_phones_and_keyboards_and_the_dark(web: Callable[..., Web]) -> None:
    locust = web("--slo", "ttft p95 < 1s", "--input-file", str(TRACE))
    for width, scheme in ((400, "light"), (768, "dark"), (1280, "light"), (1440, "dark")):
        page = locust.open("/llm/new")
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        for goal in ("look", "capacity", "curve", "limit", "compare", "replay"):
            page.locator(f"[name=goal][value={goal}]").check()
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert violations(page) == []
            locust.picture(page, f"{goal}-{width}-{scheme}")
        page.close()
    page = locust.open("/llm/new")
    page.locator("[name=goal][value=look]").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("[name=goal]:checked").get_attribute("value") == "capacity"
    assert page.evaluate("document.activeElement.value") == "capacity"
    page.keyboard.press("ArrowUp")
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.ariaLabel || document.activeElement.id"))
    assert reached >= {
        "of-scenario", "of-user_count", "of-run_time", "of-host", "Metric of SLO 1",
        "Limit of SLO 1", "Remove SLO 1", "search", "start", "command",
    }  # fmt: skip


@pytest.mark.full
def test_the_live_page_is_for_phones_and_keyboards_and_the_dark(
    web: Callable[..., Web], browser: Any
) -> None:
    locust = web("-u", "24")
    form = {"user_count": 24, "spawn_rate": 100, "prefill_concurrency": 4, "output_tokens_mean": 20,
            "slo": "ttft p95 < 10s\nattainment >= 80% given ttft < 2s and itl < 60ms"}  # fmt: skip
    assert requests.post(locust.base + "/swarm", data=form, timeout=20).json()["success"]
    until(lambda: locust.status()["ok"] > 20, 20)
    for width, scheme in ((360, "light"), (390, "dark"), (1600, "dark")):
        page = locust.open("/llm")
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)
        page.get_by_role("button", name="p99").first.wait_for()
        page.wait_for_timeout(1500)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert violations(page) == []
        locust.picture(page, f"{width}-{scheme}")
    page.locator("#limit").focus()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("6")
    page.keyboard.press("Enter")
    until(lambda: locust.status()["limit"] == 6, 5)
    key = page.get_by_role("button", name="p50").first
    key.focus()
    page.keyboard.press("Space")
    assert key.get_attribute("aria-pressed") == "false"
    for _ in range(40):  # every control is reached
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "No limit":
            break
    else:
        raise AssertionError("the keyboard does not reach the gate")
    requests.post(locust.base + "/stop", timeout=30)
