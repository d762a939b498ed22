"""A section that stands by itself: what it declares is all that a report needs."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from support.records import a_run, answered

from locust_llm.records.profile_export_jsonl import format_record_line
from locust_llm.report import report_document, write_report_files
from locust_llm.report.chart_data.plot_data import Plot, PlotAxis, PlotSeries
from locust_llm.report.document_blocks import Block, Heading, TableBlock
from locust_llm.report.render import html_report
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.sections.section import ReportMaterial, ReportSection
from locust_llm.report.sections.section_registry import REPORT_SECTIONS


class Names(msgspec.Struct, frozen=True):
    """How many requests have each name."""

    counts: dict[str, int]


def find(material: ReportMaterial) -> Names | None:
    names = [record.name for record in material.records]
    return Names({name: names.count(name) for name in names})


def make_blocks(found: Names) -> Iterator[Block]:
    yield Heading("Names")
    rows = tuple((name, str(count)) for name, count in found.counts.items())
    yield TableBlock(("Name", "requests"), rows)


def draw(found: Names, material: ReportMaterial) -> Iterator[Plot]:
    yield Plot(
        title="Requests by name", caption="", label="Requests by name",
        x=PlotAxis(label="name"), y=PlotAxis(label="requests"),
        series=(PlotSeries("requests", "ok", [1.0, 2.0], [2.0, 1.0]),),
    )  # fmt: skip


NAMES = ReportSection(
    name="names",
    subject="the names",
    finding=Names,
    find=find,
    make_blocks=make_blocks,
    chart_heading="Chart of names",
    draw=draw,
)


def write(
    folder: Path, section: "ReportSection[Names]", monkeypatch: pytest.MonkeyPatch
) -> Summary:
    """The reports of three requests, with this section beside the others."""
    for module in (write_report_files, report_document, html_report):
        monkeypatch.setattr(module, "REPORT_SECTIONS", (*REPORT_SECTIONS, section))
    records = (answered(10, 20, name=name, id=str(i)) for i, name in enumerate("aab"))
    lines = b"".join(format_record_line(record) + b"\n" for record in records)
    (folder / "profile_export.jsonl").write_bytes(lines)
    return write_report_files.write_reports(folder, a_run())


def test_its_finding_tables_and_charts_are_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = write(tmp_path, NAMES, monkeypatch)
    assert summary.unmade == ()
    assert json.loads((tmp_path / "run.json").read_bytes())["names"] == {"counts": {"a": 2, "b": 1}}
    assert "## Names" in (tmp_path / "summary.md").read_text()
    page = (tmp_path / "report.html").read_text()
    assert "Chart of names" in page
    assert "Requests by name" in page


def test_one_that_fails_is_a_note_and_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(material: ReportMaterial) -> None:
        raise ZeroDivisionError("of nothing")

    summary = write(tmp_path, NAMES._replace(find=fails), monkeypatch)
    (note,) = summary.unmade
    assert note.startswith("the names could not be computed: ZeroDivisionError: of nothing")
    assert json.loads((tmp_path / "run.json").read_bytes())["names"] is None
    assert summary.conditions.succeeded == 3


def test_each_has_a_name_of_its_own() -> None:
    names = [section.name for section in REPORT_SECTIONS]
    assert len(set(names)) == len(names)
    assert not {*names} & {*write_report_files.FACTS}
