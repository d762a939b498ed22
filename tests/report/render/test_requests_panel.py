"""What a reader does with the requests of a report in Chromium: filter, brush, sort, search, copy,
share a link, open a waterfall; by mouse and by keyboard."""

import csv
import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.axe import violations
from support.request_cases import make_records, the_run

from locust_llm.records.record import Record
from locust_llm.report.gate_occupancy import compute_occupancy
from locust_llm.report.load_records import collect_columns
from locust_llm.report.render import request_sample
from locust_llm.report.render.html_report import render_report_page
from locust_llm.report.summarise_metrics import summarise_run

pytestmark = pytest.mark.slow


def write_page(path: Path, records: list[Record] | None = None) -> Path:
    """110 measured requests of chat and rag, of which 4 failed; 10 of the warmup."""
    records, run = records or make_records(), the_run()
    columns = collect_columns(records)
    levels = compute_occupancy(columns.requests, run.limits)
    summary = summarise_run(columns, run, 0, records)
    path.write_text(render_report_page(summary, run, columns, levels, None, records=records))
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(tmp_path_factory.mktemp("page") / "report.html")


@contextmanager
def opened(browser: Any, path: Path, address: str = "", **more: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, **more)
    complaints: list[str] = []
    shown = context.new_page()
    shown.on("console", lambda message: complaints.append(message.text))
    shown.on("pageerror", lambda error: complaints.append(str(error)))
    shown.goto(f"{path.as_uri()}{address}")
    yield shown
    assert complaints == []
    context.close()


def tiles_of(shown: Any) -> dict[str, str]:
    tiles = shown.locator("#tiles li")
    return {
        tiles.nth(i).locator("> span").inner_text(): tiles.nth(i).locator("strong").inner_text()
        for i in range(tiles.count())
    }


def found(shown: Any) -> str:
    text: str = shown.locator(".found").inner_text()
    return text.partition(";")[0]


def choose(shown: Any, title: str, label: str) -> None:
    shown.locator("#view").get_by_label(title, exact=True).select_option(label)


def rows_of(shown: Any, place: str) -> list[str]:
    rows: list[str] = shown.locator(f"#{place} tbody th").all_inner_texts()
    return rows


def until(shown: Any, what: str) -> None:
    for _ in range(500):
        if shown.evaluate(what):
            return
        shown.wait_for_timeout(20)
    pytest.fail(f"not within 10 s: {what}")


def test_a_filter_computes_tiles_tables_and_charts_again(browser: Any, page: Path) -> None:
    """TTFT of rag is 500 to 584 ms, that of chat 20 to 50."""
    with opened(browser, page) as shown:
        before = tiles_of(shown)
        assert found(shown) == "110 of 120 requests"
        picture = "document.querySelector('.plot canvas').toDataURL()"
        unfiltered = shown.evaluate(picture)
        choose(shown, "Name", "rag")
        assert found(shown) == "36 of 120 requests"
        tiles = tiles_of(shown)
        assert tiles["TTFT from due p95"] == "834 ms"
        assert tiles["Failed"] == "2.78%"
        assert shown.evaluate(picture) != unfiltered
        assert shown.evaluate("location.hash") == "#name=rag"
        assert len(rows_of(shown, "requests")) == 15
        assert "TTFT of 35 requests." in shown.locator(".plot figcaption").first.inner_text()
        shown.locator("#view").get_by_role("button", name="Reset Name").click()
        assert tiles_of(shown) == before
        assert shown.evaluate("location.hash") in ("", "#")
        until(shown, f"{picture} === {unfiltered!r}")


def test_a_brush_chooses_a_time_and_rates_are_over_it(browser: Any, page: Path) -> None:
    with opened(browser, page) as shown:
        over = shown.locator(".u-over").first
        over.scroll_into_view_if_needed()
        box = over.bounding_box()
        shown.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50)
        shown.mouse.down()
        shown.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 60, steps=4)
        shown.mouse.up()
        until(shown, "location.hash.startsWith('#time=')")
        low, high = map(float, re.findall(r"[\d.]+", shown.evaluate("location.hash")))
        assert high - low == pytest.approx(15, abs=0.5)  # a quarter of 60 s
        # two requests a second, of which one in 29 failed
        assert float(tiles_of(shown)["Requests"]) == pytest.approx(2, abs=0.2)
        chosen = shown.locator("#view .time input")
        assert [float(chosen.nth(i).input_value()) for i in range(2)] == [low, high]
        shown.locator("#view").get_by_role("button", name="Reset time").click()
        assert found(shown) == "110 of 120 requests"


def test_a_time_is_chosen_without_a_pointer(browser: Any, page: Path) -> None:
    with opened(browser, page) as shown:
        shown.get_by_label("Time from, seconds").fill("20")
        shown.keyboard.press("Tab")
        shown.keyboard.type("40.25")
        shown.keyboard.press("Enter")
        until(shown, "location.hash === '#time=20-40.25'")
        assert found(shown) == "41 of 120 requests"


def test_an_address_shows_the_same_view_again(browser: Any, page: Path) -> None:
    address = "#name=chat&time=20-40.25&by=turn&sort=at&search=r4"
    with opened(browser, page, address) as shown:
        assert found(shown) == "28 of 120 requests"
        assert tiles_of(shown)["Requests"] == "1.38"
        assert shown.locator("#groups select").input_value() == "turn"
        assert rows_of(shown, "requests") == ["r40", "r41", "r43", "r44", "r46", "r47", "r49"]
        assert shown.evaluate("location.hash") == address
        shown.evaluate("location.hash = '#name=rag'")
        until(shown, "document.querySelector('.found').textContent.startsWith('36 of')")


def test_a_row_of_the_table_by_what_is_a_filter(browser: Any, page: Path) -> None:
    with opened(browser, page) as shown:
        groups = shown.locator("#groups")
        assert rows_of(shown, "groups") == ["100", "4k"]
        groups.get_by_role("button", name="4k").click()
        assert found(shown) == "36 of 120 requests"
        assert rows_of(shown, "groups") == ["100", "4k"]  # the others can be chosen instead
        pressed = groups.locator("button[aria-pressed=true]")
        assert pressed.all_inner_texts() == ["4k"]
        pressed.click()
        assert found(shown) == "110 of 120 requests"
        groups.locator("select").select_option("turn")
        assert rows_of(shown, "groups") == ["1", "2", "3", "4"]
        head = groups.get_by_role("button", name="requests", exact=True)
        head.click()
        assert head.locator("..").get_attribute("aria-sort") == "descending"
        head.click()
        assert head.locator("..").get_attribute("aria-sort") == "ascending"


def test_requests_are_sorted_and_searched(browser: Any, page: Path) -> None:
    with opened(browser, page) as shown:
        requests = shown.locator("#requests")
        slowest = rows_of(shown, "requests")
        assert slowest[:2] == ["r12", "r51"]  # 584 ms each
        requests.get_by_role("button", name="sent at").click()
        assert rows_of(shown, "requests")[0] == "r119"
        requests.get_by_role("button", name="sent at").click()
        assert rows_of(shown, "requests")[0] == "r10"
        requests.locator("input").fill("reset by peer")
        assert rows_of(shown, "requests") == ["r28", "r57", "r86", "r115"]
        assert "search=reset" in shown.evaluate("location.hash")
        assert requests.locator("input").evaluate("one => one === document.activeElement")
        requests.locator("input").fill("")
        requests.get_by_role("button", name="Show").click()
        assert len(rows_of(shown, "requests")) == 110


def test_tables_are_copied_as_csv(browser: Any, page: Path) -> None:
    with opened(browser, page, permissions=["clipboard-read", "clipboard-write"]) as shown:
        choose(shown, "Outcome", "reset")
        shown.locator("#requests").get_by_role("button", name="Copy CSV").click()
        until(shown, "document.querySelector('#requests .said').textContent === 'Copied.'")
        rows = list(csv.DictReader(io.StringIO(shown.evaluate("navigator.clipboard.readText()"))))
        assert sorted(row["request"] for row in rows) == ["r115", "r28", "r57", "r86"]
        assert {row["error"] for row in rows} == {"reset by peer"}
        shown.locator("#groups").get_by_role("button", name="Copy CSV").click()
        until(shown, "document.querySelector('#groups .said').textContent === 'Copied.'")
        rows = list(csv.DictReader(io.StringIO(shown.evaluate("navigator.clipboard.readText()"))))
        assert [row["Input length"] for row in rows] == ["100", "4k"]
        assert [row["requests"] for row in rows] == ["3", "1"]


def test_a_click_on_a_dot_opens_its_waterfall_with_its_neighbours(browser: Any, page: Path) -> None:
    """The dot of the slowest request is alone at the upper edge."""
    with opened(browser, page, "#request=r12") as shown:
        dialog = shown.locator("#waterfall")
        assert "Request r12" in dialog.inner_text()
        shown.keyboard.press("Escape")
        assert not dialog.is_visible()
        assert "request=" not in shown.evaluate("location.hash")
        dot = shown.evaluate(
            "() => { const chart = charts.of(document.querySelector('.canvas'));"
            " const point = chartTools.listPoints(chart).find((one) => one.series.rows);"
            " const box = chart.uplot.over.getBoundingClientRect();"
            " return [box.left + point.left, box.top + point.top]; }"
        )
        shown.mouse.move(*dot)
        until(shown, "document.querySelector('.chart-tip:not([hidden])')")
        tip = shown.locator(".chart-tip").inner_text()
        assert re.match(r"r\d+, sent at 0:\d\d", tip)
        shown.mouse.click(*dot)
        name = tip.partition(",")[0]
        assert f"Request {name}" in dialog.inner_text()
        assert f"request={name}" in shown.evaluate("location.hash")
        neighbour = dialog.locator(".owner .pick").first
        other = neighbour.inner_text()
        neighbour.click()
        assert f"Request {other}" in dialog.inner_text()


def test_all_of_it_by_the_keyboard(browser: Any, page: Path) -> None:
    with opened(browser, page) as shown:
        select = shown.locator("#view").get_by_label("Name", exact=True)
        select.focus()
        shown.keyboard.press("ArrowDown")
        until(shown, "location.hash === '#name=chat'")
        shown.locator("#requests .pick").first.focus()
        shown.keyboard.press("Enter")
        assert shown.locator("#waterfall").is_visible()
        shown.keyboard.press("Escape")
        until(shown, "!document.getElementById('waterfall').open")
        shown.locator(".canvas").first.focus()
        shown.keyboard.press("ArrowRight")
        until(shown, "document.querySelector('.chart-tip:not([hidden])')")
        shown.keyboard.press("Enter")
        assert shown.locator("#waterfall").is_visible()


def test_what_a_filter_does_not_change_says_so(browser: Any, page: Path) -> None:
    words = """() => [...document.querySelectorAll('section > h2')].filter((head) =>
      getComputedStyle(head, '::after').content.includes('whole run')).map((head) => head.textContent)"""
    with opened(browser, page) as shown:
        assert shown.evaluate(words) == []
        choose(shown, "Name", "rag")
        assert shown.evaluate(words) == ["Failures", "Notes"]


def test_contents_keep_the_view(browser: Any, page: Path) -> None:
    with opened(browser, page, "#name=rag") as shown:
        shown.locator("#contents").get_by_text("Conditions", exact=True).click()
        assert shown.locator("#s-conditions table").is_visible()
        assert shown.evaluate("location.hash") == "#name=rag"


def test_a_sample_says_so_and_has_the_figures_of_all(
    browser: Any, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the requests, of which the five slowest of each kind."""
    monkeypatch.setattr(request_sample, "MAX_SAMPLE", 60)
    monkeypatch.setattr(request_sample, "MAX_SLOWEST", 5)
    cells = (
        "[...document.querySelectorAll('#groups tbody td')].map((one) => one.textContent).join()"
    )
    with opened(browser, page) as shown:
        of_all, tiles = shown.evaluate(cells), tiles_of(shown)
    with opened(browser, write_page(tmp_path / "sample.html")) as shown:
        assert "This page holds" in shown.locator(".hint").first.inner_text()
        assert found(shown) == "110 of 120 requests"
        assert shown.evaluate(cells) == of_all
        assert tiles_of(shown) == tiles
        choose(shown, "Name", "rag")
        assert found(shown).startswith("about ")


# -- the report as a whole -------------------------------------------------------------------------


def test_the_chosen_requests_are_saved_as_json(browser: Any, page: Path) -> None:
    with opened(browser, page, "#name=rag", accept_downloads=True) as shown:
        with shown.expect_download() as saved:
            shown.locator("#tools").get_by_role("button", name="JSON").click()
        content = json.loads(Path(saved.value.path()).read_text())
        assert saved.value.suggested_filename == "by-hand.json"
        assert content["name"] == "by-hand"
        assert content["chosen"]["requests"] == len(content["requests"]) == 36
        assert {request["by_name"] for request in content["requests"]} == {"rag"}


def test_the_page_turns_dark_and_light_again(browser: Any, page: Path) -> None:
    """Charts too; and another report remembers it."""
    back = "getComputedStyle(document.body).backgroundColor"
    picture = "document.querySelector('.plot canvas').toDataURL()"
    with opened(browser, page) as shown:
        light, drawn = shown.evaluate(back), shown.evaluate(picture)
        shown.locator("#tools").get_by_role("button", name="Dark").click()
        assert shown.evaluate(back) != light
        until(shown, f"{picture} !== {drawn!r}")
        assert violations(shown) == []
        shown.reload()
        assert shown.evaluate(back) != light
        shown.locator("#tools").get_by_role("button", name="Light").click()
        assert shown.evaluate(back) == light


def test_another_report_is_laid_beside_it(browser: Any, page: Path, tmp_path: Path) -> None:
    """TTFT of rag is 500 to 584 ms here, and 100 ms longer there."""
    records = [
        msgspec.structs.replace(record, chunk_us=tuple(us + 100_000 for us in record.chunk_us))
        for record in make_records()
    ]
    other = write_page(tmp_path / "other.html", records)
    with opened(browser, page, "#name=rag") as shown:
        shown.locator("#tools").get_by_role("button", name="Compare").click()
        dialog = shown.get_by_role("dialog")
        dialog.locator("input[type=file]").set_input_files(str(page.parent / "report.html"))
        row = dialog.get_by_role("row", name="TTFT p50", exact=False).first
        assert row.locator("td").last.inner_text() == "+0%"
        dialog.locator("input[type=file]").set_input_files(str(other))
        until(
            shown, "document.querySelector('#comparison tbody td:last-child').innerText !== '+0%'"
        )
        cells = dialog.locator("tbody tr", has_text=re.compile("^TTFT p50")).locator("td")
        own, beside = (float(cells.nth(i).inner_text().removesuffix(" ms")) for i in (0, 1))
        assert beside - own == pytest.approx(100, abs=1)
        assert dialog.locator("canvas").count() == 2
        assert violations(shown) == []
        strange = tmp_path / "strange.html"
        strange.write_text("<p>nothing</p>")
        dialog.locator("input[type=file]").set_input_files(str(strange))
        dialog.get_by_text("not a report of locust-llm").wait_for()
        assert dialog.locator("canvas").count() == 0
        shown.keyboard.press("Escape")
        assert not dialog.is_visible()


def test_a_term_tells_what_it_means_by_pointer_key_and_touch(browser: Any, page: Path) -> None:
    with opened(browser, page) as shown:
        term, tip = shown.locator("#tiles .term").first, shown.locator(".term-tip")
        assert term.inner_text() == "TTFT from due"
        means = "the wait of a real user"
        assert means in shown.locator(f"#{term.get_attribute('aria-describedby')}").text_content()
        term.hover()
        assert means in tip.inner_text()
        tip.hover()  # a tip stays while the pointer is over it
        shown.wait_for_timeout(400)
        assert tip.is_visible()
        shown.mouse.move(0, 0)
        until(shown, "document.querySelector('.term-tip').hidden")
        term.focus()
        assert tip.is_visible()
        shown.keyboard.press("Escape")
        assert not tip.is_visible()
        assert shown.locator("[title]").count() == 0
    with opened(browser, page, has_touch=True) as shown:
        shown.locator("#tiles .term").first.tap()
        assert means in shown.locator(".term-tip").inner_text()


def test_tiles_of_a_filter_have_their_terms_too(browser: Any, page: Path) -> None:
    with opened(browser, page) as shown:
        count = shown.locator("#tiles .term").count()
        choose(shown, "Name", "rag")
        assert shown.locator("#tiles .term").count() >= count >= 4
        assert shown.locator("#groups thead .term").count() >= 3


def test_a_finger_brushes_a_time_and_a_tap_does_not(browser: Any, page: Path) -> None:
    with opened(browser, page, has_touch=True) as shown:
        over = shown.locator(".u-over").first
        over.scroll_into_view_if_needed()
        box = over.bounding_box()
        touch = shown.context.new_cdp_session(shown)

        def send(kind: str, *places: tuple[float, float]) -> None:
            points = [{"x": box["x"] + x * box["width"], "y": box["y"] + y} for x, y in places]
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

        send("touchStart", (0.2, 40))
        send("touchEnd")
        assert shown.evaluate("location.hash") == ""
        send("touchStart", (0.5, 50))
        for step in (0.55, 0.65, 0.75):
            send("touchMove", (step, 52))
        send("touchEnd")
        until(shown, "location.hash.startsWith('#time=')")
        low, high = map(float, re.findall(r"[\d.]+", shown.evaluate("location.hash")))
        assert high - low == pytest.approx(15, abs=0.5)  # a quarter of 60 s


@pytest.mark.parametrize("look", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_axe_finds_nothing(browser: Any, page: Path, look: str, width: int) -> None:
    with opened(browser, page, "#name=rag&time=20-40", color_scheme=look) as shown:
        shown.set_viewport_size({"width": width, "height": 900})
        shown.evaluate(
            "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
        )
        assert violations(shown) == []
        assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
        shown.locator("#requests .pick").first.click()
        assert violations(shown) == []
