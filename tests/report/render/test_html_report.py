"""The report's page: harmless whatever comes from outside, and in Chromium every plot is there:
light, dark, phone, paper.

The screenshots are kept in the directory that LOCUST_LLM_SCREENSHOTS names, to be looked at.
"""

import json
import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
from jinja2 import DictLoader, Environment
from msgspec.structs import replace
from support.axe import violations
from support.html_tags import Tags
from support.levels import level
from support.records import UNIX, a_run, answered, failed

from locust_llm.records.record import Record
from locust_llm.records.run_facts import Run, Stage
from locust_llm.report.chart_data.plot_data import Plot, PlotAxis, PlotSeries
from locust_llm.report.chart_data.timeline import find_scene
from locust_llm.report.document_blocks import TextBlock
from locust_llm.report.gate_occupancy import compute_occupancy
from locust_llm.report.load_records import collect_columns
from locust_llm.report.render.html_report import (
    PageSection,
    TemplateCode,
    arrange_sections,
    collect_slo_limits,
    render_report_page,
)
from locust_llm.report.report_document import LATENCY, SERVER
from locust_llm.report.sections.latency_breakdown import attribute_latencies
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.report.summary_rows import Knee, SweepSummary

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e\u0000"
RULES = (
    "ttft p95 < 800ms",
    "attainment >= 99% given ttft < 600ms and itl < 50ms",
    "error_rate < 1%",
)


def made(
    records: Sequence[Record],
    run: Run,
    change: Callable[[Summary], Summary] = lambda summary: summary,
    split: bool = False,
) -> str:
    """``split``: with the parts of the requests' time."""
    ordered = sorted(records, key=lambda record: record.closed_at)
    columns = collect_columns(ordered)

    def since(at: float) -> Iterator[Record]:
        return (record for record in ordered if record.closed_at + record.clock_offset_s >= at)

    levels = compute_occupancy(columns.requests, run.limits)
    parts = attribute_latencies(columns, {}, run, since) if split else None
    summary = change(replace(summarise_run(columns, run, 0, ordered), waterfall=parts))
    return render_report_page(summary, run, columns, levels, find_scene(columns, run, since))


def some(count: int = 300) -> list[Record]:
    """An open loop of 10 requests a second behind a gate: a warmup, a stretch of failures, some
    cancelled."""
    rng = random.Random(1)
    records = []
    for i in range(count):
        at = 5 + i * 0.1
        long = rng.random() < 0.15
        ttft = rng.uniform(400, 900) if long else rng.lognormvariate(4.5, 0.4)
        gaps = [
            rng.gammavariate(4, 5) + (400 if rng.random() < 0.004 else 0)
            for _ in range(rng.choice([20, 60]))
        ]
        if i % 23 == 7:
            records.append(
                answered(ttft, sent_at=at, outcome="cancelled", closed_at=at + 0.5, id=str(i))
            )
        elif 100 < i < 130 and rng.random() < 0.6:
            records.append(
                failed(
                    rng.choice(["http_status", "reset"]),
                    sent_at=at,
                    status=500,
                    error=HOSTILE,
                    id=str(i),
                )
            )
        else:
            records.append(
                answered(
                    *accumulate([ttft, *gaps]), sent_at=at, due_at=at - 0.1, asked_at=at - 0.1,
                    admitted_at=at, limit=4,
                    id=str(i), phase="warmup" if i < 20 else "profiling",
                    asked_input_tokens=500 if i % 2 else 8000,
                    input_tokens=rng.randint(4000, 16000) if long else rng.randint(100, 300),
                    user_class=HOSTILE,
                )
            )  # fmt: skip
    return records


def a_sweep(summary: Summary) -> Summary:
    levels = tuple(
        level(2.0**i, goodput_per_s=2.0**i, goodput_low=0.9 * 2**i, goodput_high=1.1 * 2**i,
            attainment=1 - 0.1 * i,
              client="OK" if i < 5 else "INVALID")
        for i in range(6)
    )  # fmt: skip
    knees = (
        Knee(rule="SLO", value=8.0, text="8."),
        Knee(rule="asymptotic", value=7.5, text="7.5."),
    )
    sweep = SweepSummary(
        axis="concurrency", unit="users", levels=levels, ended="all are done", knees=knees
    )
    return replace(summary, sweep=sweep)


def swept() -> Run:
    run = a_run(((0.0, 4),), slo=RULES)
    stages = [
        Stage(number=i + 1, value=2.0**i, began_at=UNIX + 6 * i, ended_at=UNIX + 6 * i + 6)
        for i in range(6)
    ]
    return replace(run, stages=tuple(stages))


SCENES: dict[str, Callable[[], str]] = {
    "gate": lambda: made(
        some(), a_run(((0.0, 1), (10.0, 2), (20.0, 4)), slo=RULES, prefill_concurrency=4)
    ),
    "owners": lambda: made(
        some(), a_run(((0.0, 1), (20.0, 4)), slo=RULES, prefill_concurrency=4), split=True
    ),
    "sweep": lambda: made(some(), swept(), a_sweep),
    "failures": lambda: made(
        [failed("refused", sent_at=10.0 + i, error=HOSTILE) for i in range(30)], a_run()
    ),
    "one": lambda: made([answered(100, 120)], a_run()),
    "empty": lambda: made([], a_run(slo=RULES)),
}
PLOTS = {"gate": 13, "owners": 16, "sweep": 13, "failures": 3, "one": 9, "empty": 0}
"""How many each scene has."""
TIMELINES = {"gate": 1, "owners": 4, "sweep": 1, "failures": 1, "one": 1, "empty": 0}
"""Of them: those that are in the page already."""


# -- the text of the page --------------------------------------------------------------------------


def test_what_comes_from_outside_is_only_text() -> None:
    named = [replace(one, name=HOSTILE, tenant=f"{HOSTILE}{n % 2}") for n, one in enumerate(some())]
    text = made(
        named,
        replace(a_run(slo=RULES, host=HOSTILE), name=HOSTILE, model=HOSTILE, server=HOSTILE),
        split=True,
    )
    said = Tags(text)
    assert not {name for _, attrs in said.tags for name in attrs} & {
        "src",
        "style",
        "onerror",
        "onclick",
    }
    assert all(re.fullmatch(r"#s-[a-z0-9-]+", str(link["href"])) for link in said.named("a"))
    assert {(tag, attrs["href"]) for tag, attrs in said.tags if "href" in attrs and tag != "a"} == {
        ("link", "data:,")
    }
    assert {tag for tag, _ in said.tags} <= {
        "html", "head", "meta", "title", "style", "body", "header", "h1", "h2", "h3", "p", "ul",
        "li", "span", "strong",
        "small", "section", "div", "table", "thead", "tbody", "tr", "th", "td", "figure",
        "figcaption", "script", "noscript",
        "svg", "g", "rect", "path", "text", "output", "nav", "main", "details", "summary", "a",
        "link", "i", "b", "defs", "pattern", "polyline", "line", "circle",
    }  # fmt: skip
    assert "alert(1)" in said.words
    assert len(said.named("script")) == 5  # plots, requests, the figures of tiles, facts, the code
    assert "\u202e" not in text
    assert "\u0000" not in text
    assert "\\u0000" not in text
    for name in ("plots", "sample", "figures"):
        assert json.loads(text.split(f"id={name}>")[1].split("</script>")[0])


def test_only_the_pages_own_script_and_style_may_run() -> None:
    text = SCENES["one"]()
    policy = next(str(meta["content"]) for meta in Tags(text).named("meta") if "http-equiv" in meta)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "img-src data:" in policy  # the icon alone, else a browser asks the server for one
    assert "unsafe" not in policy
    assert "http" not in policy


def test_the_order_of_the_page() -> None:
    def headings(name: str) -> list[str]:
        return re.findall(r"<h[12][^>]*>(.*?)</h[12]>", SCENES[name]())

    assert headings("gate") == [
        "Load test by-hand", "Prefill limits of the ramp", "TTFT and ITL over time", "Failures", "By group", "Timeline",
        "Distributions", "Requests", "Notes", "Rules", "Metrics",
        "Latencies with every failure as +infinity; cancelled requests, their missing part estimated",
        "Conditions", "Measurement error", "Streaming smoothness",
        "Cancelled on purpose (13 requests, in the first table only in waits)",
        "Warmup (19 requests, only in metrics of the server)", "Client health",
        "Definitions",
    ]  # fmt: skip
    sweep = headings("sweep")
    order = [
        "Stage by stage",
        "Failures",
        "Stages by concurrency (latencies in ms)",
        "Knees",
        "TTFT and ITL over time",
        "Over time",
        "By group",
        "Requests",
        "Notes",
        "Rules",
    ]
    assert [heading for heading in sweep if heading in order] == order
    assert "Distributions" not in sweep  # of different loads together
    assert headings("empty") == [
        "Load test by-hand",
        "Notes",
        "Rules",
        "Metrics",
        "Conditions",
        "Definitions",
    ]


def test_server_series_that_never_change_are_a_line_of_text() -> None:
    def plot(title: str, *y: float, unit: str = "") -> Plot:
        series = PlotSeries("server", "p50", [float(x) for x in range(len(y))], list(y))
        return Plot(title, "", title, PlotAxis(), PlotAxis(unit=unit), (series,), group="time")

    moving = plot("Running in the server", 0.0, 3.0)
    charts = [(moving, None), (plot("Preemptions per second", 0.0, 0.0), None),
              (plot("Prefix cache hits", 25.0, 25.0, unit="%"), None)]  # fmt: skip
    own = PageSection(LATENCY, charts=[(plot("Time to first token", 1.0, 2.0), None)], column=True)
    server = PageSection(SERVER, charts=charts, column=True)
    one, _, _, notes = arrange_sections([own, server, PageSection("Notes")], True, swept=False)
    assert [block.text for block in one.blocks if isinstance(block, TextBlock)] == [
        "Constant in all readings: preemptions per second 0, prefix cache hits 25%."
    ]
    assert [drawing for drawing, _ in one.more] == [moving]
    assert notes.heading == "Notes"


def test_tables_that_by_what_replaces_are_not_on_the_page() -> None:
    gate = SCENES["gate"]()
    assert "By input length (ms)" not in gate


def test_headings_go_down_step_by_step() -> None:
    for name in SCENES:
        levels = [int(tag[1]) for tag, _ in Tags(SCENES[name]()).tags if re.fullmatch(r"h\d", tag)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))


def test_every_plot_says_what_it_shows_and_how_to_read_it() -> None:
    for name, count in PLOTS.items():
        text = SCENES[name]()
        said = Tags(text)
        assert len(said.named("figcaption")) == count, name
        images = [attrs for attrs in said.named("div") if attrs.get("role") in ("img", "group")]
        assert len(images) == count
        assert all(re.search(r"\d", str(attrs["aria-label"])) for attrs in images)
        assert (
            len(json.loads(text.split("id=plots>")[1].split("</script>")[0]))
            == count - TIMELINES[name]
        )


def test_what_people_ask_first_stands_on_top() -> None:
    gate = Tags(SCENES["gate"]()).words
    assert "SLO FAIL" in gate
    assert "client OK" in gate
    assert "Failed: share of good requests is 82.9%, limit 99%." in gate
    for words in ("TTFT, p95", "ITL, p95", "Longest stall, p90", "Output tokens", "Failed"):
        assert words in gate
    sweep = Tags(SCENES["sweep"]()).words
    assert "Knee: SLO" in sweep
    assert "client distorted 1 of 6 stages" in sweep
    # the stage with 3,200 may found nothing
    assert "Output tokens, best1,600per second, at 16 users; left out: concurrency 32" in sweep
    assert "TTFT, p95" not in sweep


def test_limits_of_rules_by_what_they_are_about() -> None:
    rules = (
        "ttft p95 < 1s", "ttft{class=A} p99 < 9s",
        "goodput >= 1/s given ttft < 500ms and itl < 50ms", "icl max < 1s",
        "error_rate < 1%", "output_tokens_per_s_per_user p50 >= 20/s", "ttft p95 < 1s",
    )  # fmt: skip
    run = a_run(slo=rules)
    limits = collect_slo_limits(
        summarise_run(collect_columns([answered(5, 6)]), run, 0, [answered(5, 6)]),
        run.settings.rules.by_text,
    )
    assert {
        column: [(mark.text, mark.y) for mark in marks] for column, marks in limits.items()
    } == {
        "ttft_s": [("ttft p95 < 1s", 1000.0), ("ttft < 500ms", 500.0)],
        "itl_s": [("itl < 50ms", 50.0)],
        "icl": [("icl max < 1s", 1000.0)],
    }


def test_colours_can_be_read() -> None:
    """At least 4.5 to 1 for text (WCAG 2.2, 1.4.3), 3 to 1 for what is drawn (1.4.11), on light and
    on dark."""
    css = (Path(__file__).parents[3] / "locust_llm/static/plots.css").read_text()
    light, dark = (dict(re.findall(r"--(\w+): (#\w{6})", part)) for part in css.split("@media")[:2])
    for colours in (light, dark):
        for name in ("ink", "muted", "ok", "warn", "fail", "mark", "stage", "slo", "knee"):
            assert contrast(colours[name], colours["back"]) >= 4.5, name
        for name in ("p50", "p95", "p99", "prefill", "decode", "limit", "stall", "dot"):
            assert contrast(colours[name], colours["back"]) >= 3, name
        for a, b in (("p50", "p95"), ("p95", "p99"), ("p50", "p99")):  # in greyscale
            assert contrast(colours[a], colours[b]) >= 1.4, (a, b)


def contrast(a: str, b: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted([luminance(a), luminance(b)])
    return (high + 0.05) / (low + 0.05)


# -- in Chromium -----------------------------------------------------------------------------------

SIZES = {"light": (1280, 900), "dark": (1280, 900), "phone": (390, 844)}
BLANK = """() => [...document.querySelectorAll('.plot canvas')].filter((canvas) => {
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const colours = new Set();
  for (let i = 0; i < data.length && colours.size < 8; i += 4) colours.add(data.slice(i, i + 4).join());
  return colours.size < 8;
}).length"""
"""How many canvases have hardly a colour."""
LETTERS = """window.letters = [];
const fillText = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (...texts) {
  window.letters.push(parseFloat(this.font.match(/[0-9.]+(?=px)/)[0]) / devicePixelRatio);
  return fillText.apply(this, texts);
};"""
"""Notes how high the letters on a canvas are, CSS pixels."""
SMALL_TEXTS = """() => [...document.querySelectorAll('.plot *')].filter((one) =>
  [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())
  && !['TITLE', 'title'].includes(one.tagName) && parseFloat(getComputedStyle(one).fontSize) < 14
).map((one) => `${one.tagName} ${one.textContent}`)"""
"""Texts of charts under 14 pixels."""
FIRST_CHART = "document.querySelector('.plot, section').getBoundingClientRect().top + scrollY"
EQUAL = """() => [...document.querySelectorAll('.plots:not(.column)')].every((row) =>
  new Set([...row.querySelectorAll('canvas')].map((canvas) => canvas.clientHeight)).size <= 1)"""
MOST_ABOVE = {"light": 700, "dark": 700, "phone": 1400}
"""Pixels from the top to the first chart, in pages with every warning there is."""


@pytest.fixture(scope="module")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(
        os.environ.get("LOCUST_LLM_SCREENSHOTS") or tmp_path_factory.mktemp("screenshots")
    )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    paths = {name: folder / f"{name}.html" for name in SCENES}
    for name, path in paths.items():
        path.write_text(SCENES[name]())
    return paths


@contextmanager
def opened(browser: Any, path: Path, look: str = "light", **more: Any) -> Iterator[Any]:
    """The page; that it complained or asked for anything fails the test."""
    width, height = SIZES[look]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if look == "dark" else "light",
        **more,
    )
    complaints: list[str] = []
    shown = context.new_page()
    shown.on("console", lambda message: complaints.append(message.text))
    shown.on("pageerror", lambda error: complaints.append(str(error)))
    shown.on("dialog", lambda dialog: complaints.append(dialog.message))
    asked: list[str] = []
    shown.on("request", lambda request: asked.append(request.url))
    shown.add_init_script(LETTERS)
    shown.goto(path.as_uri())
    yield shown
    assert complaints == []
    assert asked == [path.as_uri()]
    context.close()


OVER_TIME = 1
"""The place of TTFT over time on the page of a ramp, behind TTFT by limit."""


def until(shown: Any, what: str) -> None:
    """Playwright's own way to wait for something is forbidden by the page's policy."""
    for _ in range(500):
        if shown.evaluate(what):
            return
        shown.wait_for_timeout(20)
    pytest.fail(f"not within 10 s: {what[:200]}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "look"),
    [
        pytest.param(name, look, marks=() if name == "gate" or look == "light" else pytest.mark.full)
        for name in SCENES for look in SIZES
    ],
)  # fmt: skip
def test_every_plot_is_drawn(
    browser: Any, files: dict[str, Path], shots: Path, name: str, look: str
) -> None:
    with opened(browser, files[name], look) as shown:
        assert shown.locator(".plot canvas").count() == PLOTS[name] - TIMELINES[name]
        assert shown.locator(".plot .lines .row").count() >= TIMELINES[name]
        assert shown.evaluate(BLANK) == 0
        assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
            "it is wider than the window"
        )
        if look == "phone":
            assert shown.evaluate(SMALL_TEXTS) == []
            assert min(shown.evaluate("window.letters"), default=14) >= 14
        assert shown.evaluate(FIRST_CHART) <= MOST_ABOVE[look]
        assert shown.evaluate(EQUAL), "charts beside each other differ in height"
        shown.screenshot(path=shots / f"{name}-{look}.png", full_page=True)


def test_the_message_of_a_failure_is_in_sight_on_a_phone(
    browser: Any, files: dict[str, Path]
) -> None:
    """It stands below the other cells of its row, where a table would be wider than the screen."""
    with opened(browser, files["failures"], "phone") as shown:
        row = shown.locator("#s-failures tbody tr").first
        cells = row.locator("th, td").evaluate_all(
            "all => all.map(one => one.getBoundingClientRect().toJSON())"
        )
        *others, message = [(box["left"], box["right"], box["top"]) for box in cells]
        assert message[0] >= 0
        assert message[1] <= SIZES["phone"][0]
        assert all(message[2] > top for _, _, top in others)
        assert "alert(1)" in row.inner_text()


@pytest.mark.slow
def test_contents_stay_at_the_side_and_are_folded_on_a_phone(
    browser: Any, files: dict[str, Path]
) -> None:
    """A section that one goes to is unfolded."""
    with opened(browser, files["gate"]) as shown:
        contents, conditions = shown.locator("#contents"), shown.locator("#s-conditions table")
        assert not conditions.is_visible()
        contents.get_by_text("Conditions", exact=True).click()
        assert conditions.is_visible()
        assert contents.get_by_text("Metrics", exact=True).is_visible()
        shown.set_viewport_size({"width": 400, "height": 800})
        until(shown, "!document.getElementById('contents').open")
        contents.locator("summary").click()
        contents.get_by_text("Metrics", exact=True).click()
        until(shown, "!document.getElementById('contents').open")
        assert shown.evaluate("location.hash") == "#s-metrics"


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("gate", marks=pytest.mark.full), "sweep"])
def test_the_main_sections_are_on_paper(
    browser: Any, files: dict[str, Path], shots: Path, name: str
) -> None:
    """From a dark window: on paper the plots are as wide as it is, and dark on white. What is
    folded stays away, but for the conditions; there are at most eight pages."""
    with opened(browser, files[name], "dark") as shown:
        before = shown.evaluate("document.querySelector('.plot canvas').clientWidth")
        shown.evaluate(
            "addEventListener('beforeprint', () => setTimeout(() => { window.seen = {"
            " widths: [...document.querySelectorAll('.plot canvas')].map((canvas) => "
            "canvas.clientWidth),"
            " ink: getComputedStyle(document.documentElement).getPropertyValue('--ink').trim() }; }))"
        )
        paper = shown.pdf(format="A4", path=shots / f"{name}.pdf")
        assert paper.startswith(b"%PDF")
        assert len(paper) > 100_000
        assert len(re.findall(rb"/Type\s*/Page\b(?!s)", paper)) <= 8
        assert shown.evaluate("dispatchEvent(new Event('beforeprint')), 0") == 0
        assert shown.locator("section details[open]").count() == 1
        assert shown.locator("#s-conditions details[open]").count() == 1
        until(shown, "window.seen")
        seen = shown.evaluate("window.seen")
        assert set(seen["widths"]) == {680}
        assert seen["ink"] == "#1b2026"
        shown.evaluate("dispatchEvent(new Event('afterprint'))")
        assert shown.evaluate("document.querySelector('.plot canvas').clientWidth") == before
        assert shown.locator("section details[open]").count() == 0


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "look"),
    [("owners", "light"), ("owners", "dark"), ("owners", "phone"), ("sweep", "phone")],
)
def test_axe_finds_nothing(browser: Any, files: dict[str, Path], name: str, look: str) -> None:
    """Nothing at all, with all sections unfolded."""
    with opened(browser, files[name], look) as shown:
        shown.evaluate(
            "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
        )
        assert violations(shown) == []


def test_the_theme_can_change_while_one_looks(browser: Any, files: dict[str, Path]) -> None:
    picture = "document.querySelector('.plot canvas').toDataURL()"
    with opened(browser, files["gate"]) as shown:
        light = shown.evaluate(picture)
        shown.emulate_media(color_scheme="dark")
        until(shown, f"{picture} !== {json.dumps(light)}")
        shown.emulate_media(color_scheme="light")
        until(shown, f"{picture} === {json.dumps(light)}")


@pytest.mark.slow
def test_plots_follow_the_width_of_the_window(browser: Any, files: dict[str, Path]) -> None:
    with opened(browser, files["gate"]) as shown:
        shown.set_viewport_size({"width": 600, "height": 800})
        until(
            shown,
            "[...document.querySelectorAll('.plot canvas')].every((c) => c.clientWidth <= 600)",
        )
        assert shown.evaluate(BLANK) == 0


@pytest.mark.slow
def test_keys_hide_and_show_what_they_name(browser: Any, files: dict[str, Path]) -> None:
    """With the keyboard too."""
    picture = f"document.querySelectorAll('.plot canvas')[{OVER_TIME}].toDataURL()"
    with opened(browser, files["gate"]) as shown:
        for name in ("p50", "request", "failed"):  # a line, dots and ticks
            key = shown.locator(".plot").nth(OVER_TIME).get_by_role("button", name=name, exact=True)
            before = shown.evaluate(picture)
            key.focus()
            shown.keyboard.press("Enter")
            assert key.get_attribute("aria-pressed") == "false"
            until(shown, f"{picture} !== {json.dumps(before)}")
            key.click()
            assert key.get_attribute("aria-pressed") == "true"
            shown.mouse.move(0, 0)
            until(shown, f"{picture} === {json.dumps(before)}")


@pytest.mark.slow
def test_the_cursor_tells_values_in_all_plots_of_a_group(
    browser: Any, files: dict[str, Path]
) -> None:
    with opened(browser, files["gate"]) as shown:
        over = shown.locator(".u-over").nth(OVER_TIME)
        over.scroll_into_view_if_needed()
        box = over.bounding_box()
        shown.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
        key = shown.locator(".plot").nth(OVER_TIME).get_by_role("button", name="p50")
        assert re.fullmatch(r"p50\s[\d.]+ ms", key.inner_text())
        other = (
            shown.locator(".plot").nth(OVER_TIME + 2).get_by_role("button", name="output tokens/s")
        )
        assert re.fullmatch(r"output tokens/s\s[\d.,]+k?", other.inner_text())


@pytest.mark.slow
def test_a_drag_zooms_all_plots_of_a_group_and_a_double_click_ends_it(
    browser: Any, files: dict[str, Path]
) -> None:
    places = [OVER_TIME, OVER_TIME + 2]
    pictures = (
        f"{places}.map((i) => document.querySelectorAll('.plot canvas')[i].toDataURL()).join()"
    )
    with opened(browser, files["gate"]) as shown:
        over = shown.locator(".u-over").nth(OVER_TIME)
        over.scroll_into_view_if_needed()
        box, before = over.bounding_box(), shown.evaluate(pictures)
        shown.mouse.move(box["x"] + 200, box["y"] + 50)
        shown.mouse.down()
        shown.mouse.move(box["x"] + 400, box["y"] + 60, steps=4)
        shown.mouse.up()
        first, third = before.split(",data:")
        until(shown, f"!{pictures}.startsWith({json.dumps(first)})")
        until(shown, f"!{pictures}.endsWith({json.dumps(third)})")
        shown.mouse.dblclick(box["x"] + 300, box["y"] + 50)
        until(shown, f"{pictures} === {json.dumps(before)}")


@pytest.mark.slow
def test_a_wide_part_of_a_bar_has_its_name_in_it(browser: Any, files: dict[str, Path]) -> None:
    """And none is wider than its part."""
    with opened(browser, files["owners"]) as shown:
        until(shown, "document.querySelector('.owner .bar text')")
        found = shown.evaluate(
            """() => [...document.querySelectorAll('.owner .bar')].flatMap((bar) =>
              [...bar.querySelectorAll('text')].map((text) => {
                const part = [...bar.querySelectorAll('rect.part')].find((one) =>
                  one.getAttribute('x') === text.getAttribute('x'));
                return [part.querySelector('title').textContent.startsWith(text.textContent + ': '),
                  text.getComputedTextLength() <= part.getBoundingClientRect().width];
              }))"""
        )
        assert found
        assert all(is_name and fits for is_name, fits in found)
        assert (
            shown.locator(".owner .bar").first.locator("text").last.text_content()
            == "in the server"
        )


@pytest.mark.slow
def test_a_request_of_the_timeline_says_who_it_is(browser: Any, files: dict[str, Path]) -> None:
    with opened(browser, files["gate"]) as shown:
        plot = shown.locator(".plot", has=shown.locator(".chosen-line"))
        said = plot.locator(".chosen-line")
        plot.locator(".canvas").focus()
        shown.keyboard.press("ArrowDown")
        first = said.inner_text()
        assert "TTFT" in first
        shown.keyboard.press("ArrowDown")
        assert said.inner_text() != first
        plot.locator(".lines").hover(position={"x": 300, "y": 60})
        assert said.inner_text() not in ("", first)


@pytest.mark.slow
def test_a_plot_takes_the_place_of_the_one_before_it(browser: Any, files: dict[str, Path]) -> None:
    """As when the window becomes narrow."""
    with opened(browser, files["gate"]) as shown:
        shown.evaluate(
            "() => { const all = JSON.parse(document.getElementById('plots').textContent);"
            " document.querySelectorAll('.canvas:not(.lines)').forEach((box, i) => charts.draw(box, "
            "all[i])); }"
        )
        assert shown.locator(".plot canvas").count() == PLOTS["gate"] - 1
        assert shown.locator(".plot .keys").count() == PLOTS["gate"]


def test_without_scripts_the_tables_say_it_all(browser: Any, files: dict[str, Path]) -> None:
    with opened(browser, files["gate"], java_script_enabled=False) as shown:
        assert shown.locator("noscript .callout").is_visible()
        shown.locator("#s-metrics summary").click()  # to unfold needs no script
        assert shown.get_by_text("Time to First Token (ms)").first.is_visible()
        assert shown.locator(".lines .row").count() > 50


@pytest.mark.slow
def test_lines_of_the_timeline_are_as_wide_as_their_box(
    browser: Any, files: dict[str, Path]
) -> None:
    """Its last tick label and its strokes too, at any width."""
    inside = """() => { const box = document.querySelector('.lines').getBoundingClientRect();
      return [...document.querySelectorAll('.lines :is(.stretched rect, .axis text:not(.fine))')].every((one) => {
        const { left, right } = one.getBoundingClientRect();
        return left >= box.left && right <= box.right + 1; }); }"""
    with opened(browser, files["gate"]) as shown:
        for width in (400, 800, 1600):
            shown.set_viewport_size({"width": width, "height": 800})
            assert shown.evaluate(inside), width


def test_a_template_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def render(folder: Path) -> str:
        pages = DictLoader({"page": "{{ 1 + 1 }}"})
        environment = Environment(loader=pages, bytecode_cache=TemplateCode(str(folder)))
        return environment.get_template("page").render()

    assert [render(tmp_path), render(tmp_path / "not there")] == ["2", "2"]
    monkeypatch.setattr(Environment, "compile", lambda *_, **__: pytest.fail("compiled again"))
    assert render(tmp_path) == "2"
