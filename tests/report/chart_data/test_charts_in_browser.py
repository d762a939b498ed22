"""Charts in Chromium: what a reader can do with them, on a page with three plots by hand."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from locust_llm.report.chart_data.plot_data import Plot, PlotAxis, PlotMark, PlotSeries
from locust_llm.report.render.inline_assets import (
    CHART_SCRIPTS,
    embed_json,
    make_policy,
    read_static,
)

TIME = PlotAxis(label="time since the start", unit="s", low=0.0, high=120.0)
DOTS = PlotSeries("request", "dot", [10.0, 50.0, 60.0, 100.0], [100.0, 200.0, 900.0, 300.0], "dots")
LINE = PlotSeries("p50", "p50", [10.0, 50.0, 100.0], [100.0, 200.0, 300.0])
STRIP = PlotSeries("failed", "fail", [0.0, 60.0, 120.0], [3.0, 12.0, 0.0], "strip")
CLOSE = tuple(PlotMark(text, x=at) for text, at in (
    ("gate 1", 60.0), ("gate 8", 60.5), ("40 users", 61.0), ("gate 5", 61.5)))  # fmt: skip
PLOTS = (
    Plot("Time to first token", "", "TTFT", TIME, PlotAxis("TTFT", "ms"), (DOTS, LINE, STRIP),
         (*CLOSE, PlotMark("ttft < 250ms", y=250.0), PlotMark("ttft < 260ms", y=260.0)), group="time"),
    Plot("Readings", "", "Readings", TIME, PlotAxis("requests"),
         (PlotSeries("waiting", "wait", [0.0, 1.0, 2.0, 14.0, 15.0], [1.0, 2.0, 3.0, 4.0, 5.0]),),
         group="time", gap=4.0),
    Plot("In flight", "", "In flight", TIME, PlotAxis("requests"), (
        PlotSeries("prefill", "prefill", [0.0, 60.0, 120.0], [2.0, 4.0, 4.0], "stack"),
        PlotSeries("decode", "decode", [0.0, 60.0, 120.0], [10.0, 20.0, 20.0], "stack"),
    ), group="time"),
)  # fmt: skip
SCRIPT = """
"use strict";
window.clicked = [];
window.ranges = [];
const boxes = document.querySelectorAll(".canvas");
JSON.parse(document.getElementById("plots").textContent).forEach((plot, i) => {
  const chart = charts.draw(boxes[i], plot);
  chartTools.attach(chart, i ? {} : {
    tip: ({ series, index, y }) => [`${series.name} ${index}`, ["TTFT", chartFormat.writeValue("ms", y)]],
    click: ({ series, index }) => clicked.push(`${series.name} ${index}`),
  });
  chartTools.addButtons(boxes[i].closest("figure"), chart);
});
charts.group("time").onRange((range) => ranges.push(range));
chartTools.addChip(document.getElementById("chips"), charts.group("time"));
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    script = read_static(CHART_SCRIPTS) + SCRIPT
    style = read_static(("uPlot.min.css", "plots.css"))
    figures = "".join(
        f'<figure class=plot><h3>{plot.title}</h3><div class=canvas role=img aria-label="{plot.label}"></div>'
        f"</figure>" for plot in PLOTS
    )  # fmt: skip
    page = (
        f"<!doctype html><html lang=en><meta charset=utf-8>"
        f'<meta http-equiv=Content-Security-Policy content="{make_policy(script, style)}">'
        f"<title>charts</title><style>{style}</style><div id=chips></div>{figures}"
        f"<script type=application/json id=plots>{embed_json(PLOTS)}</script><script>{script}</script>"
    )
    file = tmp_path_factory.mktemp("charts") / "charts.html"
    file.write_text(page)
    return file


@pytest.fixture
def shown(browser: Any, path: Path) -> Iterator[Any]:
    """The page. What it complains about fails the test."""
    context = browser.new_context(viewport={"width": 1000, "height": 1000}, accept_downloads=True)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(path.as_uri())
    yield page
    context.close()
    assert complaints == []


def place(page: Any, x: float, y: float | None = None, chart: int = 0) -> tuple[float, float]:
    """Where this value is on the page; without ``y`` the middle of the plot."""
    spot = page.evaluate(
        """([chart, x, y]) => {
        const { uplot } = charts.list()[chart], over = uplot.over.getBoundingClientRect();
        const top = y === null ? over.height / 2 : uplot.valToPos(y, "y");
        return [over.left + uplot.valToPos(x, "x"), over.top + top];
        }""",
        [chart, x, y],
    )
    return spot[0], spot[1]


def brush(page: Any, low: float, high: float, chart: int = 0) -> None:
    (left, top), (right, _) = place(page, low, chart=chart), place(page, high, chart=chart)
    page.mouse.move(left, top)
    page.mouse.down()
    page.mouse.move(right, top + 5, steps=4)
    page.mouse.up()


def test_the_nearest_point_has_a_tip_and_a_click(shown: Any) -> None:
    tip = shown.locator(".chart-tip")
    x, y = place(shown, 60, 900)
    shown.mouse.move(x + 6, y - 4)
    assert tip.inner_text() == "request 2\nTTFT 900 ms"
    shown.mouse.click(x + 6, y - 4)
    assert shown.evaluate("clicked") == ["request 2"]
    x, y = place(shown, 30, 700)
    shown.mouse.move(x, y)
    assert not tip.is_visible()
    shown.mouse.click(x, y)
    assert shown.evaluate("clicked") == ["request 2"]


def test_a_tip_stays_in_the_window(shown: Any) -> None:
    shown.set_viewport_size({"width": 420, "height": 700})
    for _ in range(500):  # the charts follow a moment later
        if shown.evaluate("document.querySelector('canvas').clientWidth <= 420"):
            break
        shown.wait_for_timeout(20)
    shown.mouse.move(*place(shown, 100, 300))
    box = shown.locator(".chart-tip").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 420


def test_a_brush_chooses_a_time_for_all_charts_of_the_group(shown: Any) -> None:
    before = shown.evaluate("charts.list()[0].uplot.scales.y.max")
    brush(shown, 80, 110, chart=1)
    ((low, high),) = shown.evaluate("ranges")
    assert low == pytest.approx(80, abs=0.5)
    assert high == pytest.approx(110, abs=0.5)
    scales = shown.evaluate(
        "charts.list().map(({ uplot }) => [uplot.scales.x.min, uplot.scales.x.max])"
    )
    assert scales == [[low, high]] * 3
    # y follows: 300 ms is the highest in sight, 900 ms was
    assert before > 900
    assert 300 < shown.evaluate("charts.list()[0].uplot.scales.y.max") < 400
    chip = shown.locator(".chip")
    assert chip.inner_text() == "1:20 \u2013 1:50 \u00d7"
    chip.click()
    assert shown.evaluate("ranges.at(-1)") is None
    assert not chip.is_visible()
    assert shown.evaluate("charts.list()[0].uplot.scales.y.max") == before


def test_a_double_click_and_escape_show_all_again(shown: Any) -> None:
    for reset in (
        lambda: shown.mouse.dblclick(*place(shown, 90)),
        lambda: (shown.locator(".canvas").first.focus(), shown.keyboard.press("Escape")),
    ):
        brush(shown, 80, 110)
        assert shown.locator(".chip").is_visible()
        reset()
        assert not shown.locator(".chip").is_visible()
        assert shown.evaluate("charts.list()[1].uplot.scales.x.max") == 120


def test_arrow_keys_go_from_point_to_point_and_are_spoken(shown: Any) -> None:
    box, spoken = shown.locator(".canvas").first, shown.locator(".canvas + .unseen").first
    box.focus()
    for key, told in (
        ("ArrowRight", "request 0, TTFT 100 ms"), ("ArrowRight", "request 1, TTFT 200 ms"),
        ("End", "request 3, TTFT 300 ms"), ("ArrowDown", "p50 2, TTFT 300 ms"),
        ("ArrowLeft", "p50 1, TTFT 200 ms"),
    ):  # fmt: skip
        shown.keyboard.press(key)
        assert spoken.text_content() == told
        assert shown.locator(".chart-tip").is_visible()
    # the crosshair stands at second 50 in the other charts too
    lefts = shown.evaluate(
        "charts.list().map(({ uplot }) => uplot.posToVal(uplot.cursor.left, 'x'))"
    )
    assert lefts == pytest.approx([50] * 3, abs=0.5)
    shown.keyboard.press("Enter")
    assert shown.evaluate("clicked") == ["p50 1"]
    shown.keyboard.press("Escape")
    assert not shown.locator(".chart-tip").is_visible()


def test_the_legend_has_each_value_in_its_own_unit(shown: Any) -> None:
    """At second 90: p50 of second 100, and twelve failures from second 60 on."""
    shown.mouse.move(*place(shown, 90))
    keys = shown.locator(".plot").first.locator("button.key").all_inner_texts()
    assert [key.split(maxsplit=1) for key in keys] == [
        ["request"], ["p50", "300 ms"], ["failed", "12"],
    ]  # fmt: skip
    assert shown.locator(".plot").first.locator("output.key").inner_text() == "at 1:30"


def test_a_hole_in_the_readings_is_a_hole(shown: Any) -> None:
    x, y = shown.evaluate("charts.list()[1].uplot.data.slice(0, 2)")
    readings = dict(zip(x, y, strict=True))
    assert readings[8] is None
    assert (readings[2], readings[14]) == (3, 4)


def test_stacked_series_stand_on_each_other_and_say_their_own_values(shown: Any) -> None:
    assert shown.evaluate("charts.list()[2].heights().map(({ y }) => y[1])") == [4, 24]
    shown.mouse.move(*place(shown, 90, chart=2))
    keys = shown.locator(".plot").nth(2).locator("button.key").all_inner_texts()
    assert [key.split() for key in keys] == [["prefill", "4"], ["decode", "20"]]


def test_no_mark_loses_its_text(shown: Any) -> None:
    """Four changes within two seconds, and two limits within ten milliseconds."""
    texts = shown.evaluate(
        """async () => {
        const texts = [], { uplot } = charts.list()[0], { fillText } = CanvasRenderingContext2D.prototype;
        uplot.ctx.fillText = function (text, x, y) {
          texts.push([text, x, y, this.measureText(text).width, this.textAlign]);
          fillText.call(this, text, x, y);
        };
        uplot.redraw();
        await new Promise(requestAnimationFrame);
        return texts;
        }"""
    )
    names = {"gate 1", "gate 8", "40 users", "gate 5", "ttft < 250ms", "ttft < 260ms"}
    marks = [text for text in texts if set(text[0].split(", ")) & names]
    assert set(", ".join(text for text, *_ in marks).split(", ")) == names
    for i, (text, x, y, width, _) in enumerate(marks):
        for other, left, top, wide, _ in marks[:i]:
            apart = abs(y - top) >= 12 or x >= left + wide or left >= x + width
            assert apart, f"{text} covers {other}"


def test_the_text_of_a_limit_leaves_points_free(shown: Any) -> None:
    """The last point of a curve of stages lies on the limit, at the edge where its text would be;
    the one before has an interval across it."""
    limit, points = shown.evaluate(
        """async () => {
        const y = [10, 20, 90, 100], x = [100, 200, 850, 1000];
        const plot = {
          x: { unit: "", low: 0 }, y: { unit: "ms", low: 0 }, marks: [{ y: 100, text: "limit 100 ms", hue: "slo" }],
          series: [{ name: "by load", hue: "dot", kind: "path", x, y, labels: ["1", "2", "4", "8"] },
            { name: "fails", hue: "fail", kind: "rings", x: x.slice(2), y: y.slice(2), low: [80, 100], high: [110, 105] }],
        };
        const { uplot } = charts.draw(document.querySelector(".canvas"), plot), { fillText } = CanvasRenderingContext2D.prototype;
        let limit = null;
        uplot.ctx.fillText = function (text, left, top) {
          if (text === "limit 100 ms") limit = [left, left + this.measureText(text).width];
          fillText.call(this, text, left, top);
        };
        uplot.redraw();
        await new Promise(requestAnimationFrame);
        return [limit, x.slice(2).map((value) => uplot.valToPos(value, "x", true))];
        }"""
    )
    assert all(not limit[0] <= point <= limit[1] for point in points)


def test_a_chart_is_saved_as_a_picture_and_as_values(shown: Any) -> None:
    figure = shown.locator(".plot").first
    figure.hover()
    with shown.expect_download() as saved:
        figure.get_by_role("button", name="Save the values").click()
    lines = Path(saved.value.path()).read_text().splitlines()
    assert saved.value.suggested_filename == "time-to-first-token.csv"
    assert lines[0] == "time since the start (s),request (ms),p50 (ms),failed"
    assert lines[2:4] == ["10,100,100,", "50,200,200,"]
    with shown.expect_download() as saved:
        figure.get_by_role("button", name="Save as an image").click()
    assert Path(saved.value.path()).read_bytes().startswith(b"\x89PNG")


def test_the_scale_can_be_logarithmic(shown: Any) -> None:
    figure = shown.locator(".plot").first
    figure.hover()
    button = figure.get_by_role("button", name="Logarithmic scale")
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    low, log = shown.evaluate(
        "[charts.list()[0].uplot.scales.y.min, charts.list()[0].uplot.scales.y.distr]"
    )
    assert (log, 50 < low < 100) == (3, True)
    button.click()
    assert shown.evaluate("charts.list()[0].uplot.scales.y.min") == 0


def test_new_values_keep_what_is_zoomed(shown: Any) -> None:
    """As on the live page, each second."""
    brush(shown, 20, 80)
    before = shown.evaluate("charts.list()[1].uplot.scales.x")
    shown.evaluate(
        """() => { const chart = charts.list()[1], { plot } = chart, [series] = plot.series;
        chart.update({ ...plot, series: [{ ...series, x: [...series.x, 16], y: [...series.y, 6] }] }); }"""
    )
    after = shown.evaluate("charts.list()[1].uplot.scales.x")
    assert (after["min"], after["max"]) == (before["min"], before["max"])
    assert shown.evaluate("charts.list()[1].uplot.data[1].at(-2)") == 6
    assert (
        json.loads(
            shown.evaluate(
                "JSON.stringify(charts.list()[1].valueAt(charts.list()[1].plot.series[0], 16))"
            )
        )
        == 6
    )


def test_new_values_are_drawn_once(shown: Any) -> None:
    drawings = shown.evaluate(
        """async () => {
        const chart = charts.list()[0];
        let count = 0;
        chart.uplot.hooks.draw.push(() => count++);
        chart.update({ ...chart.plot, marks: [{ x: 5, text: "gate 3" }] });
        await new Promise((done) => setTimeout(done, 50));
        return count;
        }"""
    )
    assert drawings == 1
