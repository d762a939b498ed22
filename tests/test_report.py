"""A run's folder: made, damaged, remade and read."""

import json
import subprocess
import sys
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from handmade import UNIX, a_run, answered, failed

from locust_llm import page, report
from locust_llm.folder import RecordFile, write_run
from locust_llm.jsonl import line
from locust_llm.record import Record
from locust_llm.report import read, remake, write
from locust_llm.run import Run
from locust_llm.tables import console

FILES = ["profile_export.jsonl", "profile_export_aiperf.csv", "profile_export_aiperf.json", "report.html", "run.json",
         "summary.md"]  # fmt: skip
RECORDS = (
    answered(200, 220, 300, admitted_at=9.9, asked_at=9.8, due_at=9.8),
    answered(100, 500, sent_at=11.0, admitted_at=11.0, id="b"),
    failed("http_status", sent_at=12.0, status=500, message="boom", id="c"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fill(tmp_path, RECORDS)
    return tmp_path


def fill(folder: Path, records: Iterable[Record], tail: bytes = b"") -> None:
    (folder / "profile_export.jsonl").write_bytes(b"".join(line(record) + b"\n" for record in records) + tail)


def test_every_file_is_there(folder: Path) -> None:
    summary = write(folder, a_run(((0.0, 2),)))
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert summary.conditions.succeeded == 2
    said = json.loads((folder / "run.json").read_text())
    assert msgspec.convert(said["run"], Run) == a_run(((0.0, 2),))
    assert said["conditions"]["failed"] == 1
    assert said["failures"][0]["message"] == "boom"
    assert "TPOT" in said["definitions"]["Inter Token Latency"]


def test_remade_from_the_folder_alone(folder: Path) -> None:
    first = write(folder, a_run())
    before = {name: (folder / name).read_bytes() for name in FILES}
    for name in FILES:
        if name not in ("run.json", "profile_export.jsonl"):
            (folder / name).unlink()
    assert remake(folder)[0] == first
    assert {name: (folder / name).read_bytes() for name in FILES} == before


@pytest.mark.parametrize("damage", [None, b"", b'{"run": {"name": "half', b'{"other": 1}', b"\xff"])
def test_without_a_readable_run_json(folder: Path, damage: bytes | None) -> None:
    if damage is not None:
        (folder / "run.json").write_bytes(damage)
    summary, _ = remake(folder)
    assert summary.conditions.succeeded == 2
    run = read(folder).run
    assert run.name == folder.name
    assert run.started_at == UNIX + 9.8
    assert "run.json" in console(summary, run)
    if damage is not None:
        assert (folder / "run.json.damaged").read_bytes() == damage
    again, _ = remake(folder)  # the note has become part of the run
    assert again == summary
    assert read(folder).run.notes == run.notes


def test_half_a_line_and_rubbish_are_counted(tmp_path: Path) -> None:
    whole = line(RECORDS[0])
    fill(tmp_path, [*RECORDS], b"rubbish\n\n" + whole[: len(whole) // 2])
    summary = write(tmp_path, a_run())
    assert summary.counts.broken_lines == 2
    assert summary.conditions.requests == 3
    assert "could not be read" in (tmp_path / "summary.md").read_text()
    assert read(tmp_path).broken_lines == 2


def test_a_last_line_without_its_newline_is_a_line(tmp_path: Path) -> None:
    fill(tmp_path, RECORDS[:1], line(RECORDS[1]))
    assert len(list(RecordFile(tmp_path / "profile_export.jsonl"))) == 2


@pytest.mark.parametrize("records", [[], [failed(), failed("refused", sent_at=None)], [answered(5)]])
def test_runs_with_little_in_them(tmp_path: Path, records: list[Record]) -> None:
    if records:
        fill(tmp_path, records)
    write(tmp_path, a_run(((0.0, 1),)))
    results = read(tmp_path)
    assert len(results.requests) == len(records)
    assert "ttft_s" in results.requests.columns


def test_read_gives_frames(folder: Path) -> None:
    write(folder, a_run())
    results = read(str(folder))
    assert results.run == a_run()
    assert results.requests["ttft_s"].tolist()[:2] == [0.2, 0.1]
    assert results.requests["sent_at"].tolist() == [UNIX + 10, UNIX + 11, UNIX + 12]
    assert results.requests["outcome"].tolist() == ["ok", "ok", "http_status"]
    assert results.gaps["gap_s"].tolist() == [0.02, 0.08, 0.4]
    assert results.gaps["id"].tolist() == ["a", "a", "b"]


def test_a_report_that_fails_leaves_the_old_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, a_run())
    before = (folder / "run.json").read_bytes()

    def full(path: Path, data: bytes) -> int:
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        write(folder, a_run(users=99))
    assert (folder / "run.json").read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == FILES


def test_run_json_can_be_written_before_the_load(tmp_path: Path) -> None:
    write_run(tmp_path, a_run())
    fill(tmp_path, RECORDS)
    assert read(tmp_path).run == a_run()
    assert remake(tmp_path)[0].conditions.requests == 3


class Page(HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_page_asks_nothing_and_escapes_everything(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
    fill(tmp_path, [*RECORDS, failed("stream_error", message=hostile, name=hostile)])
    write(tmp_path, a_run(((0.0, 1), (11.0, 2)), model=hostile, host=hostile))
    said = Page((tmp_path / "report.html").read_text())
    assert {tag for tag, _ in said.tags} <= {
        "html", "head", "meta", "title", "style", "body", "h2", "p", "div", "table", "tr", "th", "td", "figure",
        "figcaption", "span", "svg", "path", "text", "circle", "polyline",
    }  # fmt: skip
    assert not {name for _, attrs in said.tags for name in attrs} & {"src", "href", "style", "onerror"}
    assert "alert(1)" in said.words
    assert [tag for tag, _ in said.tags].count("svg") == 4  # one of them the output lengths
    assert "Definitions" in said.words


def test_plots_show_what_happened(folder: Path) -> None:
    write(folder, a_run(((0.0, 2),)))
    said = Page((folder / "report.html").read_text())
    dots = [attrs for tag, attrs in said.tags if tag == "circle"]
    assert len(dots) == 4  # two requests, in the plots of TTFT and ITL
    bottom = page.HEIGHT - page.BOTTOM
    first, second = (float(dot["cy"] or 0) for dot in dots[:2])
    assert (bottom - first) / (bottom - second) == pytest.approx(2.0, rel=0.01)  # 200 ms and 100 ms


def test_lengths_are_drawn_where_there_are_several(tmp_path: Path) -> None:
    """Three of 10 tokens, one of 40: of bins of 41 / 50 tokens the one with 10 is three times as high."""
    fill(tmp_path, [answered(100, asked_input_tokens=25, input_tokens=tokens) for tokens in (10, 10, 10, 40)])
    write(tmp_path, a_run())
    text = (tmp_path / "report.html").read_text()
    said = Page(text)
    assert "Input length: requests, 25 asked for" in said.words
    assert "Output length" not in said.words
    assert "Time to First Token (ms) by input length" in said.words
    drawn = text[text.index("Input length: requests") :]
    outline = drawn[drawn.index("<polyline class=a points=") :].split('"')[1]
    heights = [page.HEIGHT - page.BOTTOM - float(point.split(",")[1]) for point in outline.split()]
    tops = sorted({round(height, 1) for height in heights if height > 0.05})
    assert len(tops) == 2
    assert tops[1] / tops[0] == pytest.approx(3, rel=0.01)


def test_many_requests_become_quantiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "DOTS", 20)
    fill(tmp_path, [answered(100 + i % 7, 900, sent_at=10 + i / 10) for i in range(300)])
    write(tmp_path, a_run())
    dots = [tag for tag, _ in Page((tmp_path / "report.html").read_text()).tags].count("circle")
    assert dots == 2 * (20 // 5) * 5


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0, 0.03, [0, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03]),
        (0, 0, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 43, [0, 10, 20, 30, 40, 50]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert page.ticks(low, high) == expected


def test_report_needs_no_locust(folder: Path) -> None:
    write(folder, a_run())
    code = (
        "import sys; from locust_llm import report; report.remake(sys.argv[1]); "
        "assert not {'locust', 'gevent', 'requests', 'flask'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, cwd=Path(report.__file__).parent.parent)


def test_rules_are_judged_told_and_written(tmp_path: Path) -> None:
    """The two answers have three gaps: 20, 80 and 400 ms."""
    fill(tmp_path, [answered(200, 220, 300), answered(100, 500, sent_at=11.0), failed()])
    rules = ("icl max < 300ms", "error_rate < 1%", "ttft p50 < 1s")
    summary = write(tmp_path, a_run(slo=rules))
    assert [(r.status, r.observed) for r in summary.slos[:1]] == [("FAIL", 400)]
    assert summary.counts.broken_lines == 0  # the second look at the records counts nothing twice
    said = json.loads((tmp_path / "run.json").read_text())
    assert said["slo_status"] == "FAIL"
    assert [r["rule"] for r in said["slos"]] == list(rules)
    assert b'name="icl max &lt; 300ms"' in (tmp_path / "junit.xml").read_bytes()
    assert "SLO FAIL" in (tmp_path / "summary.md").read_text()
    shown = Page((tmp_path / "report.html").read_text())
    assert ("td", {"class": "loud"}) in shown.tags
    assert ("td", {"class": "open"}) in shown.tags
    assert json.loads((tmp_path / "profile_export_aiperf.json").read_text())["locust_llm"]["slo_status"] == "FAIL"
    assert remake(tmp_path)[0] == summary
    assert remake(tmp_path)[0].slo_status == "FAIL"


def test_without_rules_there_is_no_junit_file(folder: Path) -> None:
    assert write(folder, a_run(slo=("error_rate < 1%",))).slo_status == "INCONCLUSIVE"
    assert (folder / "junit.xml").exists()
    assert write(folder, a_run()).slo_status is None
    assert not (folder / "junit.xml").exists()
