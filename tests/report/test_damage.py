"""Damaged folders: each line that can be read is used, what cannot is counted, and there is always
a report."""

import os
from collections.abc import Iterable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support import damaged
from support.damaged import called, check_other_commands, check_reports
from support.records import UNIX, a_run, answered, failed
from support.stages import fill_sweep, steps

from locust_llm.exit_status import ExitStatus
from locust_llm.records import profile_export_jsonl
from locust_llm.records.profile_export_jsonl import RecordFile, format_record_line
from locust_llm.records.record import Record
from locust_llm.records.run_facts import RECORDS, RUN, Run, read_run, write_run
from locust_llm.report import timeline_figure as drawing
from locust_llm.report import write_report_files as report
from locust_llm.report.render import html_report as page
from locust_llm.web.past_runs import Archive

WHOLE = b"".join(format_record_line(record) + b"\n" for record in damaged.records(4))


def fill(path: Path, records: bytes | Iterable[Record], run: Run | None = None) -> Path:
    path.mkdir(exist_ok=True)
    lines = (
        records
        if isinstance(records, bytes)
        else b"".join(format_record_line(record) + b"\n" for record in records)
    )
    (path / RECORDS).write_bytes(lines)
    if run is not None:
        write_run(path, run)
    return path


# -- every way -------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [pytest.param(13, marks=pytest.mark.full), 999])
def test_records_cut_at_each_byte(tmp_path: Path, every: int) -> None:
    check_reports(
        tmp_path, islice(damaged.cut_records(*damaged.whole(tmp_path, 5)), 0, None, every)
    )


@pytest.mark.parametrize("every", [pytest.param(13, marks=pytest.mark.full), 999])
def test_a_run_json_cut_at_each_byte(tmp_path: Path, every: int) -> None:
    check_reports(tmp_path, islice(damaged.cut_run(*damaged.whole(tmp_path)), 0, None, every))


@pytest.mark.slow
@pytest.mark.parametrize("every", [pytest.param(5, marks=pytest.mark.full), 499])
def test_each_field_of_run_json_is_something_else(tmp_path: Path, every: int) -> None:
    check_reports(tmp_path, islice(damaged.run_fields(*damaged.whole(tmp_path)), 0, None, every))


@pytest.mark.slow
@pytest.mark.parametrize("every", [pytest.param(5, marks=pytest.mark.full), 499])
def test_each_field_of_a_record_is_something_else(tmp_path: Path, every: int) -> None:
    check_reports(tmp_path, islice(damaged.record_fields(*damaged.whole(tmp_path)), 0, None, every))


@pytest.mark.slow
@pytest.mark.parametrize("count", [pytest.param(500, marks=pytest.mark.full), 4])
def test_random_bytes(tmp_path: Path, count: int) -> None:
    lines, run = damaged.whole(tmp_path)
    check_reports(tmp_path, damaged.flipped(lines, run, count, 7))
    check_reports(tmp_path, damaged.spliced(lines, run, count, 8))


@pytest.mark.parametrize("every", [pytest.param(97, marks=pytest.mark.full), None])
def test_other_commands_answer_too(tmp_path: Path, every: int | None) -> None:
    """A picture, a comparison and the list of runs."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    lines, run = damaged.whole(whole)
    flipped = damaged.flipped(lines, run, 500 if every else 3, 3)
    fields = (damaged.run_fields, damaged.record_fields) if every else ()
    cut = (damaged.cut_records, damaged.cut_run) if every else ()
    for name, records, facts, _ in islice(
        chain(flipped, *(ways(lines, run) for ways in (*cut, *fields))), 0, None, every
    ):
        damaged.fill(broken, records, facts)
        check_other_commands(whole, broken, name)


# -- lines -----------------------------------------------------------------------------------------

LATE = "chunk_us is before the send, or months after it"
A, B, C = (format_record_line(answered(5, 9, id=name)) for name in "abc")
FIELDS = b'"chunk_us":[5000,9000]'


@pytest.mark.parametrize(
    ("data", "ids", "unread"),
    [
        (A + b"\n" + B + C + b"\n", "abc", []),
        (A[:300] + B + b"\n" + C, "bc", [(1, "it ends in the middle")]),
        (A[:-40] + B + b"\n" + C, "bc", [(1, "it ends in the middle")]),
        (A + b"\n" + B[:-1], "a", [(2, "Input data was truncated")]),
        (b"\0" * 999 + A + b"\n" + B + b"\0\0\n" + b"\0" * 99, "ab",
            [(1, "NUL bytes"), (2, "NUL bytes"), (3, "NUL bytes")]),
        (A + b"rubbish\n\n" + B, "ab", [(1, "it does not begin like a record")]),
        (b"[" * 99_999 + b"\n" + A, "a", [(1, "it does not begin like a record")]),
        (b'{"record":' + b'{"a":' * 99_999 + b"}\n" + A, "a", [(1, "JSON nested too deeply")]),
        (A.replace(FIELDS, b'"chunk_us":[9000,5000]') + b"\n" + B, "b",
            [(1, "chunk_us is not rising")]),
        (A.replace(FIELDS, b'"chunk_us":[-1,5000]'), "", [(1, LATE)]),
        (A.replace(FIELDS, b'"chunk_us":[5,1' + b"0" * 30 + b"]"), "", [(1, LATE)]),
        (A.replace(FIELDS, FIELDS + b',"merged":[[2,5]]'), "",
            [(1, "merged has an index beyond the last chunk")]),
        (A.replace(b'"first_output":0', b'"first_output":2'), "",
            [(1, "first_output is beyond the last chunk")]),
        (A.replace(FIELDS + b",", b""), "", [(1, "indices of chunks without a chunk")]),
        (A.replace(b'"closed_at":10.009', b'"closed_at":5'), "",
            [(1, "it ended -5 s after it began")]),
        (A.replace(b'"due_at":10.0', b'"due_at":1e10'), "", [(1, "its stamps are months apart")]),
        (A.replace(b'"tokens_from"', b'"outcome":"new","tokens_from"'), "",
         [(1, "outcome 'new' is unknown to this version")]),
        (A.replace(b'"tokens_from"', b'"outcome":"reset","tokens_from"'), "",
         [(1, "its outcome 'reset' and its error contradict each other")]),
        (A.replace(b'"tokens_from"', b'"phase":"new","tokens_from"'), "",
         [(1, "phase 'new' is unknown to this version")]),
        (A.replace(b'"tokens_from"', b'"later_version":{"x":[1]},"tokens_from"'), "a", []),
    ],
)  # fmt: skip
def test_each_line_that_can_be_read_is_used(
    tmp_path: Path, data: bytes, ids: str, unread: list[tuple[int, str]]
) -> None:
    file = RecordFile(fill(tmp_path, data) / RECORDS)
    assert "".join(record.id for record in file) == ids
    assert list(file.unread.first) == unread
    assert file.unread.count == len(unread)
    assert "".join(record.id for record in file.since(0.0)) == ids


def test_stamps_of_another_century_are_refused(tmp_path: Path) -> None:
    for number, value in enumerate((b"1e18", b"1e300", b"null", b"NaN", b'"10"', b"true", b"[]")):
        file = RecordFile(
            fill(tmp_path, A.replace(b'"closed_at":10.009', b'"closed_at":' + value) + b"\n" + B)
            / RECORDS
        )
        assert [record.id for record in file] == ["b"], number
        assert file.unread.count == 1


def test_a_line_without_end_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_export_jsonl, "HEAD_BYTES", 1 << 12)
    monkeypatch.setattr(profile_export_jsonl, "MAX_LINE_BYTES", 1 << 13)
    monkeypatch.setattr(profile_export_jsonl, "MIN_BISECTED_BYTES", 1000)
    long = (b"x" * 50_000, b"\0" * 50_000, b'{"metadata":' + b"x" * 50_000)
    file = RecordFile(fill(tmp_path, b"\n".join([A, *long, B, b"rubbish\n"])) / RECORDS)
    assert [record.id for record in file] == ["a", "b"]
    rubbish = "it does not begin like a record"
    assert file.unread.first == (
        (2, rubbish),
        (3, "NUL bytes"),
        (4, "longer than 0 MB"),
        (6, rubbish),
    )
    assert [record.id for record in file.since(0.0)] == ["a", "b"]
    size = file.path.stat().st_size
    for cut in range(0, size, 997):
        halves = [RecordFile(file.path, 0, cut), RecordFile(file.path, cut, size)]
        assert [record.id for half in halves for record in half] == ["a", "b"], cut
        both = halves[0].unread + halves[1].unread
        assert (both.count, both.lines, both.first) == (4, 6, file.unread.first), cut


# -- run.json --------------------------------------------------------------------------------------


def test_a_run_json_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.json")
    with pytest.raises(OSError, match=r"run\.json is a pipe"):
        read_run(tmp_path)


def test_of_a_damaged_run_json_what_can_be_read_is_used(tmp_path: Path) -> None:
    """One field is null, and the rules are still there."""
    run = a_run(slo=("ttft p50 < 1s",))
    data = fill(tmp_path, [answered(5, 9)], run).joinpath(RUN).read_bytes()
    (tmp_path / RUN).write_bytes(
        data.replace(b'"endpoint": "/v1/chat/completions"', b'"endpoint": null')
    )
    status, said, _ = called("report", "--verbose", tmp_path)
    assert status == ExitStatus.INCOMPLETE
    why = "INCOMPLETE: settings.endpoint of run.json cannot be read (Expected `str`, got `null`)."
    assert " ".join(said.split()).startswith(why)  # however wide the terminal is
    assert "ttft p50 < 1s" in said
    assert (tmp_path / f"{RUN}.damaged").exists()
    # it has been written anew, without what was lost
    again, said_again, _ = called("report", "--verbose", tmp_path)
    assert (again, said_again.splitlines()[0]) == (status, said.splitlines()[0])
    assert report.read(tmp_path).run.settings == run.settings


def test_facts_that_cannot_be_used_do_not_hide_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong with them."""
    real = report.summarise_run

    def breaks(columns: object, run: Run, *more: object) -> object:
        if run.settings.model == "m":
            raise KeyError("surprise")
        return real(columns, run, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(report, "summarise_run", breaks)
    fill(tmp_path, [answered(5, 9), answered(7, 8)], a_run())
    before = (tmp_path / RUN).read_bytes()
    status, said, _ = called("report", "--verbose", tmp_path)
    assert status == ExitStatus.INCOMPLETE
    assert said.startswith("INCOMPLETE: run.json cannot be used (KeyError: 'surprise'")
    assert "2 succeeded" in said
    assert (tmp_path / f"{RUN}.damaged").read_bytes() == before


# -- extras ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "name", "file", "there"),
    [
        (drawing, "draw_timeline_svg", "timeline.svg could not be made",
            ("report.html", "summary.md", "junit.xml")),
        (report, "find_scene", "the timeline could not be drawn", ("report.html", "summary.md", "junit.xml")),
        (report.junit, "export_junit_xml", "junit.xml could not be made",
            ("report.html", "timeline.svg")),
        (report.aiperf_export, "export_summary_csv", "profile_export_aiperf.csv could not be made",
            ("report.html", "junit.xml")),
        (page, "plot_rates_over_time", "the plots of Over time could not be drawn",
            ("report.html", "junit.xml")),
        (page, "plot_distributions", "the plots of Distributions could not be drawn",
            ("report.html", "timeline.svg")),
        (report, "render_report_page", "report.html could not be made",
            ("summary.md", "junit.xml")),
        (report, "measure_interference", "the interference of prefills with decodes could not",
            ("report.html", "junit.xml")),
    ],
)  # fmt: skip
def test_an_extra_that_fails_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: object,
    name: str,
    file: str,
    there: tuple[str, ...],
) -> None:
    def breaks(*_: object, **__: object) -> object:
        raise ZeroDivisionError("float division by zero")

    monkeypatch.setattr(module, name, breaks)
    fill(tmp_path, [answered(5, 9)], a_run(slo=("ttft p50 < 1s",)))
    status, said, _ = called("report", "--verbose", tmp_path)
    assert status == ExitStatus.INCOMPLETE
    assert said.startswith(f"INCOMPLETE: {file}")
    assert "ZeroDivisionError" in said
    for path in there:
        assert (tmp_path / path).is_file(), path
    for path in {"report.html", "summary.md"} & {p.name for p in tmp_path.iterdir()}:
        text = (tmp_path / path).read_text().replace("\\", "")
        assert f"WARNING: {file}" in text, path


@pytest.mark.parametrize("place", ["directory", "missing/folder", "/dev/full", "pipe", "file"])
def test_a_step_summary_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    run = fill(tmp_path / "run", [answered(5, 9)], a_run())
    target = tmp_path / place
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")  # nobody reads it
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(target))
    status, said, _ = called("report", "--verbose", run)
    assert status == ExitStatus.OK
    assert ("WARNING: GITHUB_STEP_SUMMARY and GITHUB_OUTPUT could not be written" in said) == (
        place != "file"
    )
    assert (run / "report.html").is_file()


@pytest.mark.parametrize(
    "name", ["report.html", "summary.md", "run.json", "junit.xml", "timeline.svg"]
)
def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path, name: str) -> None:
    """There is a folder of that name, with something in it."""
    fill(tmp_path, [answered(5, 9)], None if name == RUN else a_run(slo=("ttft p50 < 1s",)))
    (tmp_path / name / "more").mkdir(parents=True)
    (tmp_path / f"{name}.damaged" / "more").mkdir(parents=True)
    status, said, _ = called("report", "--verbose", tmp_path)
    assert status == ExitStatus.INCOMPLETE
    assert f"{name} could not be made: Is a directory" in said
    assert "1 succeeded" in said


def test_a_hundred_thousand_percentiles(tmp_path: Path) -> None:
    run = a_run(percentiles=(50.0, 99.0) * 50_000)
    status, said, _ = called(
        "report", "--verbose", fill(tmp_path, [answered(5, 9), answered(6, 9)], run)
    )
    assert status == ExitStatus.OK
    assert max(map(len, said.splitlines())) < 200
    run = a_run(percentiles=tuple(i / 2000 for i in range(1, 100_000)))
    status, said, _ = called(
        "report", "--verbose", fill(tmp_path, [answered(5, 9), answered(6, 9)], run)
    )
    assert status == ExitStatus.OK
    assert "The tables show 50 of the 99999 requested percentiles" in said


# -- little in them --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "incomplete"),
    [
        ([answered(0)], False),
        ([answered(0, 0)], False),
        ([answered(1e-3, 2e-3)], False),  # a window of 2 µs: once a division by zero
        ([answered(streamed=False)], False),
        ([failed(closed_at=10.0)], False),
        ([failed(sent_at=None, closed_at=10.0)], False),
        ([answered(5, phase="warmup")], True),
        ([failed("retried", status=429)], True),
        ([], True),
        ([replace(answered(5), clock_offset_s=9e10)], False),
        ([answered(5), replace(answered(5), clock_offset_s=-9e10)], False),
        ([answered(5, 6, 7, input_tokens=2**52, output_tokens=2**52)], False),
    ],
)
def test_little_or_odd_records(tmp_path: Path, records: list[Record], incomplete: bool) -> None:
    status, said, _ = called("report", "--verbose", fill(tmp_path, records, a_run(((0, 1),))))
    assert "could not" not in said
    assert status == (ExitStatus.INCOMPLETE if incomplete else ExitStatus.OK)
    assert "Conditions" in said
    if incomplete:
        assert said.startswith("INCOMPLETE: no request was recorded in the profiling phase.")
        assert (tmp_path / "report.html").read_text().count("INCOMPLETE: ") == 1
        for command, words in (("figure", [tmp_path]), ("compare", [tmp_path, tmp_path])):
            status, said, error = called(command, *words)
            if not (command == "compare" and records and records[0].phase == "warmup"):
                assert (status, said, error.count("\n")) == (ExitStatus.REFUSED, "", 1), command


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    for command, words in (
        ("report", [tmp_path]),
        ("figure", [tmp_path]),
        ("compare", [tmp_path, tmp_path]),
    ):
        status, _, error = called(command, *words)
        assert (status, error.count("\n")) == (ExitStatus.REFUSED, 1)
        assert "is not a run folder" in error


def test_records_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> object:
        raise PermissionError(13, "Permission denied")

    fill(tmp_path, [answered(5)], a_run())
    monkeypatch.setattr(profile_export_jsonl, "open_regular", denied)
    for command, words in (
        ("report", [tmp_path]),
        ("figure", [tmp_path]),
        ("compare", [tmp_path, tmp_path]),
    ):
        status, _, error = called(command, *words)
        assert status == (ExitStatus.INCOMPLETE if command == "report" else ExitStatus.REFUSED)
        assert error.count("\n") == 1
        assert "Permission denied" in error


def test_a_picture_of_a_moment_too_short_to_be_seen(tmp_path: Path) -> None:
    fill(tmp_path, [answered(5, 9)], a_run())
    status, _, error = called("figure", tmp_path, "--from", "10.001", "--to", "10.00100001")
    assert (status, error) == (ExitStatus.OK, "")


# -- stages, the list of runs ----------------------------------------------------------------------


def test_what_is_lost_of_a_stage_is_said(tmp_path: Path) -> None:
    fill_sweep(tmp_path, {1: steps(200), 2: steps(400), 4: steps(600)}, slo=("ttft p50 < 300ms",))
    place = tmp_path / "stages" / "2" / RECORDS
    place.write_bytes(place.read_bytes()[:-10])
    (tmp_path / "stages" / "3" / RUN).write_bytes(b'{"run": {"schema": 9')
    status, said, _ = called("report", "--verbose", tmp_path)
    assert status == ExitStatus.INCOMPLETE
    assert said.startswith("INCOMPLETE: stages or parts of stages are missing.")
    words = " ".join(said.split())  # however wide the terminal is
    assert (
        "stage 2 (concurrency 2): 1 line of profile_export.jsonl could not be read (line 40: it "
        "ends in the" in words
    )
    assert "stage 3 (concurrency 4) is left out" in words
    assert "INCOMPLETE: 1 line" in (tmp_path / "stages" / "2" / "summary.md").read_text().replace(
        "\\", ""
    )


@pytest.mark.parametrize(
    ("end", "records", "ended", "status", "words"),
    [
        ("its time was up after 60 s", [], {"why": "stopped"}, 4,
            "its time was up after 60 s (-t), in stage 3 (concurrency 4), of which no "
            "request was measured"),
        ("its time was up after 60 s", [], {"why": "time", "measured_at": None}, 4,
            "its time was up after 60 s (-t), in stage 3 (concurrency 4), of which no "
            "request was measured"),
        ("all stages ran", [], {"why": "time", "measured_at": None}, 4,
            "No request was measured in 1 stage, at concurrency 4: the time was too short for it."),
        ("its time was up after 60 s", steps(600), {"why": "stopped"}, 4,
            "its time was up after 60 s (-t), in stage 3 (concurrency 4)."),
        ("the run was stopped", [], {"why": "stopped"}, 6, "stage 3 (concurrency 4): no request was recorded in the "
            "profiling phase."),
    ],
)  # fmt: skip
def test_a_stage_for_which_the_time_of_the_sweep_did_not_reach_is_no_loss(
    tmp_path: Path, end: str, records: list[Record], ended: dict[str, Any], status: int, words: str
) -> None:
    run = fill_sweep(
        tmp_path,
        {1: steps(200), 2: steps(400), 4: records},
        slo=("ttft p99 < 900ms",),
        run_time_s=60.0,
    )
    last = replace(run.stages[2], **ended)
    write_run(tmp_path, replace(run, stages=(*run.stages[:2], last), sweep_end=end))
    place = tmp_path / "stages" / "3"
    write_run(place, replace(read_run(place), stage=last))
    found, said, _ = called("report", tmp_path)
    assert (found == ExitStatus.INCOMPLETE, said.startswith("INCOMPLETE")) == (
        status == 6,
        status == 6,
    )
    text = (tmp_path / "summary.md").read_text().replace("\\", "")
    assert words in " ".join(text.split())
    assert ("WARNING: stage 3" in text) == (status == 6)


def test_broken_folders_are_listed_too(tmp_path: Path) -> None:
    for name, data in {
        "half": b'{"run"',
        "year": b'{"run":{"started_at":1e300}}',
        "deep": b"[" * 9999,
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / RUN).write_bytes(data)
    (tmp_path / os.fsdecode(b"\xff")).mkdir()
    (tmp_path / os.fsdecode(b"\xff") / RUN).write_bytes(b"{}")
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / RUN).mkdir()
    entries = Archive(tmp_path).entries()
    assert {entry.name for entry in entries} == {"half", "year", "deep", "?"}
    assert all(entry.at < 1e11 for entry in entries)
    assert entries[0].at > UNIX


def test_a_run_that_is_deleted_meanwhile_is_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / RUN).write_bytes(b"{}")
    archive, there = Archive(tmp_path), Archive._folders

    def deletes(self: Archive) -> dict[str, Path]:
        found = there(self)
        (tmp_path / "one" / RUN).unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Archive, "_folders", deletes)
    assert [entry.name for entry in archive.entries()] == ["two"]
