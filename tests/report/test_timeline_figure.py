"""The drawing of a timeline: what is where, what is marked, and that nothing from outside gets into
it."""

import importlib.util
import re
import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from support.examples import examples
from support.records import a_run, answered, failed

from locust_llm import __main__ as door
from locust_llm.records.outcomes import FAILURES
from locust_llm.records.profile_export_jsonl import format_record_line
from locust_llm.records.record import Record
from locust_llm.records.run_facts import Run, write_run
from locust_llm.report import timeline_figure as module
from locust_llm.report import write_report_files as report
from locust_llm.report.chart_data.timeline import find_scene
from locust_llm.report.load_records import collect_columns
from locust_llm.report.timeline_figure import (
    HEIGHT,
    LEFT,
    PNG_SCALE,
    RIGHT,
    WIDTH,
    convert_svg_to_png,
    draw_timeline_svg,
)

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</text><script>alert(1)</script>\"'&\u202e\x00]]>"
INNER = WIDTH - LEFT - RIGHT
needs_png = pytest.mark.skipif(
    importlib.util.find_spec("resvg_py") is None, reason="without the extra figure (resvg_py)"
)


def drawn(
    *records: Record,
    run: Run | None = None,
    span: tuple[float, float] | None = None,
    most: int = 60,
    title: str = "",
) -> str:
    ordered = sorted(records, key=lambda record: record.closed_at)

    def since(at: float) -> list[Record]:
        return [record for record in ordered if record.closed_at + record.clock_offset_s >= at]

    run = run or a_run()
    found = find_scene(collect_columns(ordered), run, since, span, most)
    assert found is not None
    return draw_timeline_svg(found, run, title)


class Shown:
    """A drawing, read."""

    def __init__(self, svg: str) -> None:
        self.root = ElementTree.fromstring(svg)
        self.texts = [text.text or "" for text in self.root.iter(f"{SVG}text")]

    def group(self, name: str) -> list[ElementTree.Element]:
        return list(next((g for g in self.root.iter() if g.get("id") == name), []))

    def bars(self, name: str) -> list[tuple[float, float, float]]:
        """(left, right, middle)"""
        return [
            (r["x"], r["x"] + r["width"], r["y"] + r["height"] / 2)
            for r in ({k: float(v) for k, v in rect.items()} for rect in self.group(name))
        ]

    def dots(self) -> list[list[tuple[float, float]]]:
        """Of each line that has some: (first, last) x of each stroke; a dot has one x."""
        found = []
        for path in self.group("chunks"):
            x, strokes = 0.0, []
            for command, dx in re.findall(r"([Mmh])(-?[\d.e+]+)", path.get("d", "")):
                before, x = x, float(dx) + (0.0 if command == "M" else x)
                if command == "h":
                    strokes.append((round(before, 1), round(x, 1)))
            found.append(strokes)
        return found


def two() -> tuple[Record, Record]:
    """
    second  10        11        12        13        14
    stream  |prefill  .    .    .                   .
    long              |wait|prefill            |.
    """
    stream = answered(1000, 1500, 2000, 4000, sent_at=10.0, id="stream")
    long = answered(
        2000,
        2100,
        asked_at=11.0,
        admitted_at=11.5,
        sent_at=11.5,
        limit=1,
        input_tokens=16_000,
        id="long",
    )
    return stream, long


def at(second: float) -> float:
    """From second 10 to 14 the plot reaches."""
    return LEFT + (second - 10) / 4 * INNER


def test_each_moment_is_where_a_pencil_puts_it() -> None:
    shown = Shown(drawn(*two(), span=(10.0, 14.0)))
    (first, second), (wait,) = shown.bars("prefill"), shown.bars("wait")
    assert first[:2] == pytest.approx((at(10), at(11)), abs=0.1)
    assert second[:2] == pytest.approx((at(11.5), at(13.5)), abs=0.1)
    assert wait == pytest.approx((at(11), at(11.5), second[2]), abs=0.1)
    assert second[2] > first[2]  # who came later is below
    stream, long = shown.dots()
    assert stream == [pytest.approx((at(s), at(s)), abs=0.1) for s in (11, 11.5, 12, 14)]
    assert long == [pytest.approx((at(s), at(s)), abs=0.1) for s in (13.5, 13.6)]
    stall = next(e for e in shown.root.iter() if e.get("id") == "stall")
    left, width = float(stall.get("x", 0)), float(stall.get("width", 0))
    assert (left, left + width) == pytest.approx((at(12), at(14)), abs=0.2)
    assert "longest stall here 2 s" in " ".join(shown.texts).replace("2.00", "2").replace(
        "2.0", "2"
    )
    assert {"100", "16,000", "10.0", "14.0", "by-hand: 2 requests, second 10.00 to 14.00"} <= set(
        shown.texts
    )
    assert "m \N{MIDDLE DOT} 2 users" in " ".join(" ".join(shown.texts).split())


@pytest.mark.parametrize(
    ("span", "band"),
    [((12.5, 13.0), (0.0, 1.0)), ((11.0, 13.0), (0.5, 1.0)), ((13.0, 17.0), (0.0, 0.25))],
    ids=["within the stall", "its begin", "its end"],
)
def test_of_a_stall_that_part_is_shaded_which_is_shown(
    span: tuple[float, float], band: tuple[float, float]
) -> None:
    """It is from second 12 to 14."""
    shown = Shown(drawn(two()[0], span=span))
    stall = next(e for e in shown.root.iter() if e.get("id") == "stall")
    left, width = float(stall.get("x", 0)), float(stall.get("width", 0))
    assert (left, left + width) == pytest.approx([LEFT + share * INNER for share in band], abs=0.2)


def test_dots_that_touch_are_one_stroke_and_a_gap_is_still_a_gap() -> None:
    """5,000 chunks a millisecond each, a pause of 5 s, and 5,000 more: two strokes."""
    many = answered(*range(1, 5001), *range(10_000, 15_001), sent_at=10.0)
    ((before, after),) = Shown(drawn(many, span=(10.0, 25.0))).dots()
    assert before == pytest.approx((LEFT, LEFT + INNER / 3), abs=0.5)
    assert after == pytest.approx((LEFT + INNER * 2 / 3, LEFT + INNER), abs=0.5)


def test_256_chunks_beside_each_other_are_256_dots() -> None:
    (line,) = Shown(drawn(answered(*range(10, 2570, 10), sent_at=10.0), span=(10.0, 12.56))).dots()
    assert len(line) == 256
    assert all(start == end for start, end in line)
    gaps = [b[0] - a[0] for a, b in pairwise(line)]
    assert gaps == pytest.approx([INNER / 256] * 255, abs=0.11)


def test_ends_are_marked_by_what_became_of_a_request() -> None:
    shown = Shown(
        drawn(
            answered(100, 500, sent_at=10.0),
            failed("reset", sent_at=10.2, closed_at=10.9, id="b"),
            answered(100, 200, sent_at=10.3, outcome="cancelled", closed_at=10.6, id="c"),
            failed("refused", sent_at=None, asked_at=10.4, closed_at=10.5, id="d"),
            span=(10.0, 11.0),
        )
    )
    assert len(shown.group("ends")) == 4
    assert len(shown.bars("prefill")) == 3  # who was never sent had none
    # to its end, without a chunk
    assert shown.bars("prefill")[1][1] == pytest.approx(LEFT + 0.9 * INNER, abs=0.1)
    assert {"end", "failed", "cancelled"} <= set(shown.texts)
    assert "cut" not in shown.texts


def test_of_a_simulator_it_says_so() -> None:
    real, stub = two(), [msgspec.structs.replace(record, simulated=True) for record in two()]
    assert "SIMULATED" not in Shown(drawn(*real)).texts
    assert "SIMULATED" in Shown(drawn(*stub, title="x" * 500)).texts
    assert (
        "SIMULATED"
        in Shown(drawn(*real, run=msgspec.structs.replace(a_run(), simulated=True))).texts
    )


def test_nothing_from_outside_becomes_part_of_it() -> None:
    run = msgspec.structs.replace(a_run(), name=HOSTILE, model=HOSTILE, server=HOSTILE)
    for title in ("", HOSTILE + "\udcff"):  # the last: a byte on the command line that is no UTF-8
        svg = drawn(
            *two(),
            answered(9, name=HOSTILE, error=HOSTILE, outcome=HOSTILE, id="h"),
            run=run,
            title=title,
        )
        names = {element.tag for element in Shown(svg).root.iter()}
        assert names <= {
            SVG + name for name in ("svg", "title", "desc", "rect", "path", "g", "text")
        }
        assert not {"\u202e", "\x00", "\udcff"} & set(svg)


moments = st.floats(-1e6, 1e6) | st.floats(0, 100)


@st.composite
def records(draw: Any) -> Record:
    """Any order of moments: clocks may be wrong."""
    chunk_us = sorted(draw(st.lists(st.integers(0, 10**9) | st.integers(0, 10**5), max_size=12)))
    return answered(
        *(us / 1e3 for us in chunk_us),
        sent_at=draw(st.none() | moments) if not chunk_us else draw(moments),
        asked_at=draw(moments), admitted_at=draw(st.none() | moments), closed_at=draw(moments),
        outcome=draw(st.sampled_from(["ok", "cut", "cancelled", *sorted(FAILURES)]) | st.text()),
        input_tokens=draw(st.none() | st.integers(0, 2**40)), name=draw(st.text()),
        id=draw(st.text()),
    )  # fmt: skip


@examples(60)
@given(st.lists(records(), min_size=1, max_size=8), st.text(), st.booleans())
@example(  # who was sent ended before that: a window that would end before it begins
    [
        answered(sent_at=None, asked_at=0.0, closed_at=1.0),
        answered(0, 0, sent_at=1.0, asked_at=0.0, closed_at=0.0),
    ],
    "",
    False,
)
def test_whatever_the_records_it_is_xml_within_its_frame(
    some: list[Record], text: str, spanned: bool
) -> None:
    run = msgspec.structs.replace(a_run(), name=text, model=text)
    span = (-1e7, 1e7) if spanned else None

    def since(at: float) -> list[Record]:
        return some

    try:
        found = find_scene(collect_columns(some), run, since, span, 5)
    except ValueError as error:
        assume("in flight" not in str(error))  # it ended before it began
        raise
    if found is None:
        return
    svg = draw_timeline_svg(found, run, text)
    assert svg == draw_timeline_svg(found, run, text)
    shown = Shown(svg)
    for left, right, middle in (*shown.bars("wait"), *shown.bars("prefill")):
        assert LEFT <= left <= right <= WIDTH - RIGHT + 1.1
        assert 0 < middle < HEIGHT
    assert all(
        LEFT - 0.1 <= x <= WIDTH - RIGHT + 0.1
        for strokes in shown.dots()
        for stroke in strokes
        for x in stroke
    )


@needs_png
def test_a_png_has_two_pixels_for_one_and_text_in_it() -> None:
    image = convert_svg_to_png(drawn(*two()))
    assert image[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", image[16:24]) == (WIDTH * PNG_SCALE, HEIGHT * PNG_SCALE)
    assert convert_svg_to_png(drawn(*two())) == image
    assert convert_svg_to_png(drawn(*two(), title="another title")) != image


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "run"
    found.mkdir()
    (found / "profile_export.jsonl").write_bytes(
        b"".join(format_record_line(record) + b"\n" for record in reversed(two()))
    )
    write_run(found, a_run())
    return found


def test_a_picture_of_yesterdays_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert door.main(["figure", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder / 'timeline.svg'}\n"
    before = (folder / "timeline.svg").read_bytes()
    assert Shown(before.decode()).texts[0] == "by-hand: 2 requests around the longest stall"
    report.remake_reports(folder)
    assert (folder / "timeline.svg").read_bytes() == before  # the report's is the same


@needs_png
def test_both_forms_at_once(folder: Path) -> None:
    out = folder.parent / "a.SVG", folder.parent / "a.png"
    words = ["--from", "10.5", "--to", "12", "--requests", "1", "--title", "<A talk>"]
    assert door.main(["figure", str(folder), "-o", str(out[0]), "-o", str(out[1]), *words]) == 0
    assert Shown(out[0].read_text()).texts[0] == "<A talk>"
    assert out[1].read_bytes()[:4] == b"\x89PNG"
    assert sorted(path.name for path in folder.iterdir()) == ["profile_export.jsonl", "run.json"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["-o", "a.pdf"], "a.pdf: the name must end in .svg or .png"),
        (["-o", "no/such/folder/a.svg"],
            "no/such/folder/a.svg cannot be written: No such file or directory"),
        (["--requests", "0"], "--requests takes 1 to 150, got 0"),
        (["--requests", "151"], "--requests takes 1 to 150, got 151"),
        (
            ["--from", "20", "--to", "30"],
            "no request was in flight between second 20 and 30: the requests are from second 10.00 "
                "to 14.00",
        ),
        (["--from", "12", "--to", "11"],
            "nothing lies between 12 s and 11 s: this run goes from 10.00 s to 14.00 s"),
        (["--from", "nan"], "nothing lies between nan s and 14 s: this run goes from 10.00 s to "
            "14.00 s"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(
    folder: Path,
    words: list[str],
    why: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder.parent)
    assert door.main(["figure", str(folder), *words]) == 5
    assert capsys.readouterr().err == f"locust-llm: error: {why}\n"
    assert sorted(path.name for path in folder.iterdir()) == ["profile_export.jsonl", "run.json"]


def test_no_run_an_empty_one_and_one_that_never_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for content, why in (
        (None, "is not a run folder: it has no profile_export.jsonl"),
        (b"", "is an empty run: its profile_export.jsonl has no record"),
        (b"{\n", "is an empty run: its profile_export.jsonl has no record"),
        (
            format_record_line(failed("refused", sent_at=None)),
            "no request of the profiling phase was sent",
        ),
    ):
        if content is not None:
            (tmp_path / "profile_export.jsonl").write_bytes(content)
        assert door.main(["figure", str(tmp_path)]) == 5
        said = capsys.readouterr().err
        assert why in said
        assert said.count("\n") == 1


def test_without_the_extra_a_png_says_what_to_install(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    assert door.main(["figure", str(folder), "-o", str(folder / "a.png")]) == 5
    assert "pip install 'locust-llm[figure]'" in capsys.readouterr().err
    assert door.main(["figure", str(folder), "-o", str(folder / "a.svg")]) == 0


@needs_png
def test_without_a_font_a_png_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be without a word."""
    import resvg_py

    def bare(**words: Any) -> bytes:
        return bytes(resvg_py.svg_to_bytes(**words, skip_system_fonts=True))

    monkeypatch.setattr(
        module, "import_module", lambda _: type("library", (), {"svg_to_bytes": staticmethod(bare)})
    )
    with pytest.raises(ValueError, match="needs a font"):
        convert_svg_to_png(drawn(*two()))


def test_the_same_records_give_the_same_bytes_in_another_process(folder: Path) -> None:
    code = (
        "import sys; from locust_llm.report.write_report_files import draw_timeline; "
        "sys.stdout.buffer.write(draw_timeline(sys.argv[1]).encode())"
    )
    other = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        capture_output=True,
        check=True,
        env={"PYTHONHASHSEED": "1"},
    )
    assert other.stdout == report.draw_timeline(folder).encode()


def test_the_figure_fits_into_a_narrow_window() -> None:
    """It is as large as a slide, and a smaller window shows all of it."""
    svg = drawn(*two(), span=(10.0, 14.0))
    assert f'style="max-width:100%;height:auto" width="{WIDTH}" height="{HEIGHT}"' in svg
