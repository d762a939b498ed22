"""The page of compared run folders: figures with their intervals, why some have no difference, the
audit of each."""

import json
import re
from html import unescape
from pathlib import Path

import msgspec
import pytest
from support.evalscope import a_database

from locust_llm.__main__ import main
from locust_llm.exit_status import ExitStatus
from locust_llm.lab.interop import import_command
from locust_llm.lab.interop.comparison_page import render_comparison_page
from locust_llm.report.run_comparison import Comparison, RunPair, compare_folders


def imported(path: Path, slower: float = 1.0, **values: object) -> Path:
    """A run of 100 requests, one a second: TTFT around 100 ms, then two gaps of 50 ms; all of them
    so many times slower."""
    body = json.dumps({"model": "tiny", "stream_options": {"include_usage": True}})

    def one(at: int) -> dict[str, object]:
        first, gap = (0.1 + 0.01 * (at * 7 % 10)) * slower, 0.05 * slower
        return {
            "request": body, "start_time": 50.0 + at, "completed_time": 50.0 + at + first + 2 * gap,
            "success": 1,
            "latency": first + 2 * gap, "first_chunk_latency": first,
            "inter_token_latencies": json.dumps([gap, gap]),
            "prompt_tokens": 100, "completion_tokens": 3, "is_stream": 1, **values,
        }  # fmt: skip

    a_database(path.with_suffix(".db"), [one(at) for at in range(100)])
    assert (
        import_command.run_import([str(path.with_suffix(".db")), "--report-dir", str(path)])
        == ExitStatus.OK
    )
    return path


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    place = tmp_path_factory.mktemp("runs")
    longer = imported(place / "longer", prompt_tokens=200)
    return compare_folders([imported(place / "base"), imported(place / "<b>slow", 2.0), longer])


def rows(html: str) -> dict[str, list[str]]:
    """Cells by the first of their row, the lines of a cell with a bar between."""
    found = {}
    for row in re.findall(r"<tr><th scope=row>(.*?)</th>(.*?)</tr>", html, re.S):
        cells = [
            re.sub(r"<small[^>]*>", "|", cell) for cell in re.findall(r"<td>(.*?)</td>", row[1])
        ]
        found[unescape(row[0])] = [unescape(re.sub(r"<[^>]*>", "", cell)) for cell in cells]
    return found


def test_each_run_beside_the_first(found: Comparison) -> None:
    """TTFT from 100 to 190 ms: its median lies between 140 and 150, twice as much in the slow
    one."""
    html = render_comparison_page(found)
    cells = rows(html)
    base, slow, longer = cells["TTFT p50 (ms)"]
    assert (base, longer) == ("145", "145")
    assert re.fullmatch(r"290\|\+145 \(\+\d+\.\d to \+\d+\.\d\)\|\+100\.0% worse", slow)
    assert cells["load tester"] == ["evalscope"] * 3
    assert cells["input tokens"] == ["100", "100", "200"]
    assert (
        "longer had another workload than base: input tokens 200 instead of 100 on average. So no differences are shown."
        in html
    )
    assert "&lt;b&gt;slow" in html
    assert "<b>slow" not in html
    assert "<small class=loud>+100.0% worse</small>" in html
    assert "&lt;b&gt;slow: TTFT p95 2 times as long; ITL p50 2 times as long" in html
    assert len(re.findall(r"<ul class=forest>", html)) == 1  # the other run had other work
    assert html.count("client verdict: not judged in both") == 1  # of both runs, said once
    assert "<b>&lt;b&gt;slow, longer</b>: client verdict" in html
    assert re.search(r"Checks of the audit that hold: base: \d+ of \d+; ", html)


def test_a_folder_without_figures_is_named(found: Comparison, tmp_path: Path) -> None:
    damaged = imported(tmp_path / "damaged")
    (damaged / "profile_export_aiperf.json").write_text("{")
    html = render_comparison_page(compare_folders([Path(found.base), damaged]))
    assert "damaged: not audited: it is not JSON" in unescape(html)
    assert rows(html)["load tester"] == ["evalscope", "-"]
    assert rows(html)["TTFT p50 (ms)"][0] == "145"


def test_sweeps_have_a_row_for_each_stage(found: Comparison) -> None:
    stages = tuple(
        {"value": number, "lines": pair.lines[:2], "warnings": (f"of {number}",)}
        for number, pair in enumerate(found.runs, 1)
    )
    pair = msgspec.convert(
        {"folder": "b", "warnings": (), "lines": (), "axis": "concurrency", "stages": stages,
            "alone": ("4 only in b",)},
        RunPair, from_attributes=True,
    )  # fmt: skip
    html = render_comparison_page(msgspec.structs.replace(found, runs=(pair,)))
    cells = rows(html)
    assert cells["TTFT p50 (ms), concurrency 2"] == ["145", "145"]
    assert cells["TTFT p50 (ms), concurrency 1"][1].endswith("worse")
    assert "Not compared: 4 only in b." in html
    assert "<b>b</b>: concurrency 2: of 2" in html


def test_the_command_writes_it(
    found: Comparison, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", found.base, found.runs[0].folder]
    assert main([*words, "--html", str(tmp_path / "x.html")]) == ExitStatus.OK
    assert rows((tmp_path / "x.html").read_text())["TTFT p50 (ms)"][0] == "145"
    capsys.readouterr()
    assert main([*words, "--html", str(tmp_path / "no" / "x.html")]) == ExitStatus.REFUSED
    assert "error" in capsys.readouterr().err
