"""A run's folder: made, damaged, remade and read."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from support.html_tags import Tags
from support.records import UNIX, a_run, answered, failed
from support.stages import fill_sweep, steps

from locust_llm.exit_status import ExitStatus
from locust_llm.records.profile_export_jsonl import RecordFile, format_record_line
from locust_llm.records.record import Record
from locust_llm.records.run_facts import Run, write_run
from locust_llm.records.server_times import ServerTimes
from locust_llm.report import report_command as commands
from locust_llm.report import write_report_files as report
from locust_llm.report.render.text_report import render_console
from locust_llm.report.sections.headline import make_headline
from locust_llm.report.sections.notes import list_missing_parts
from locust_llm.report.write_report_files import read, remake_reports, write_reports

FILES = ["profile_export.jsonl", "profile_export_aiperf.csv", "profile_export_aiperf.json",
    "report.html", "run.json",
         "summary.md", "timeline.svg"]  # fmt: skip
RECORDS = (
    answered(200, 220, 300, admitted_at=9.9, asked_at=9.8, due_at=9.8),
    answered(100, 500, sent_at=11.0, admitted_at=11.0, id="b"),
    failed("http_status", sent_at=12.0, status=500, error="boom", id="c"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fill(tmp_path, RECORDS)
    return tmp_path


def fill(folder: Path, records: Iterable[Record], tail: bytes = b"") -> None:
    (folder / "profile_export.jsonl").write_bytes(
        b"".join(format_record_line(record) + b"\n" for record in records) + tail
    )


def test_every_file_is_there(folder: Path) -> None:
    summary = write_reports(folder, a_run(((0.0, 2),)))
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert summary.conditions.succeeded == 2
    said = json.loads((folder / "run.json").read_text())
    assert msgspec.convert(said["run"], Run) == a_run(((0.0, 2),))
    assert said["conditions"]["failed"] == 1
    assert said["failures"][0]["message"] == "boom"
    assert "TPOT" in said["definitions"]["Inter Token Latency"]


def test_remade_from_the_folder_alone(folder: Path) -> None:
    first = write_reports(folder, a_run())
    before = {name: (folder / name).read_bytes() for name in FILES}
    for name in FILES:
        if name not in ("run.json", "profile_export.jsonl"):
            (folder / name).unlink()
    assert remake_reports(folder)[0] == first
    assert {name: (folder / name).read_bytes() for name in FILES} == before


def test_records_that_are_gone_are_missed_until_they_are_back(folder: Path) -> None:
    """Of three records one is left, then none, then all are there again."""
    rule = "error_rate < 100%"
    assert write_reports(folder, a_run(slo=(rule,))).conditions.requests == 3
    file = folder / "profile_export.jsonl"
    whole = file.read_bytes()
    for count in (1, 1, 0):
        file.write_bytes(b"".join(whole.splitlines(keepends=True)[:count]))
        summary, run = remake_reports(folder)
        gone = f"profile_export.jsonl has {count} of the 3 records that run.json counted"
        assert list_missing_parts(summary, run) == (gone,)
        assert (summary.slos[0].status, summary.slos[0].reason) == (
            ("INCONCLUSIVE", gone) if count else ("INCONCLUSIVE", summary.slos[0].reason)
        )
        assert "No request was sent" not in make_headline(summary, run)
    assert make_headline(summary, run) == "No request has a record"
    file.write_bytes(whole)
    summary, run = remake_reports(folder)
    assert list_missing_parts(summary, run) == ()


def test_records_that_did_not_reach_the_master_are_added_once(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    write_reports(folder, msgspec.structs.replace(a_run(), records_lost=3))
    there = read(folder).run
    elsewhere = tmp_path_factory.mktemp("worker")
    (first, *_) = RecordFile(folder / "profile_export.jsonl")
    fill(
        elsewhere,
        [
            first,
            msgspec.structs.replace(first, id="kept 1"),
            msgspec.structs.replace(first, id="kept 2"),
        ],
    )
    words = [str(folder), "--records", str(elsewhere / "profile_export.jsonl")]
    for _ in range(2):
        commands.run_report_command(words)
        run = read(folder).run
        assert (run.records_lost, len(run.notes)) == (1, len(there.notes) + 1)
        assert (
            run.notes[-1] == "2 records that had not reached the master were added from other hosts"
        )
        ids = [record.id for record in RecordFile(folder / "profile_export.jsonl")]
        assert ids[-2:] == ["kept 1", "kept 2"]
        assert len(set(ids)) == len(ids)
    assert (
        commands.run_report_command([str(folder), "--records", "nowhere.jsonl"])
        == ExitStatus.REFUSED
    )
    assert "there is no nowhere.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize("hours", [-1, 1])
def test_records_of_another_run_are_refused(
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    hours: int,
) -> None:
    run = a_run()
    ended = run.ended_at or run.started_at + 60
    write_reports(folder, msgspec.structs.replace(run, ended_at=ended))
    elsewhere = tmp_path_factory.mktemp("worker")
    (first, *_) = RecordFile(folder / "profile_export.jsonl")
    away = msgspec.structs.replace(
        first, id="away", clock_offset_s=first.clock_offset_s + 3600 * hours
    )
    fill(elsewhere, [away])
    before = (folder / "profile_export.jsonl").read_bytes()
    words = [str(folder), "--records", str(elsewhere / "profile_export.jsonl")]
    assert commands.run_report_command(words) == ExitStatus.REFUSED
    assert "is of another run: some of its requests ended" in capsys.readouterr().err
    assert (folder / "profile_export.jsonl").read_bytes() == before


@pytest.mark.parametrize("damage", [None, b"", b'{"run": {"name": "half', b'{"other": 1}', b"\xff"])
def test_without_a_readable_run_json(folder: Path, damage: bytes | None) -> None:
    if damage is not None:
        (folder / "run.json").write_bytes(damage)
    summary, _ = remake_reports(folder)
    assert summary.conditions.succeeded == 2
    run = read(folder).run
    assert run.name == folder.name
    assert run.started_at == UNIX + 9.8
    assert "run.json" in render_console(summary, run)
    if damage is not None:
        assert (folder / "run.json.damaged").read_bytes() == damage
    again, _ = remake_reports(folder)  # the note has become part of the run
    assert again == summary
    assert read(folder).run.notes == run.notes


def test_half_a_line_and_rubbish_are_counted(tmp_path: Path) -> None:
    whole = format_record_line(RECORDS[0])
    fill(tmp_path, [*RECORDS], b"rubbish\n\n" + whole[: len(whole) // 2])
    summary = write_reports(tmp_path, a_run())
    assert summary.counts.broken_lines == 2
    assert summary.conditions.requests == 3
    assert "could not be read" in (tmp_path / "summary.md").read_text()
    assert read(tmp_path).broken_lines == 2


def test_a_last_line_without_its_newline_is_a_line(tmp_path: Path) -> None:
    fill(tmp_path, RECORDS[:1], format_record_line(RECORDS[1]))
    assert len(list(RecordFile(tmp_path / "profile_export.jsonl"))) == 2


@pytest.mark.parametrize(
    "records", [[], [failed(), failed("refused", sent_at=None)], [answered(5)]]
)
def test_runs_with_little_in_them(tmp_path: Path, records: list[Record]) -> None:
    if records:
        fill(tmp_path, records)
    write_reports(tmp_path, a_run(((0.0, 1),)))
    results = read(tmp_path)
    assert len(results.requests) == len(records)
    assert "ttft_s" in results.requests.columns


def test_read_gives_frames(folder: Path) -> None:
    write_reports(folder, a_run())
    results = read(str(folder))
    assert results.run == a_run()
    assert results.requests["ttft_s"].tolist()[:2] == [0.2, 0.1]
    assert results.requests["sent_at"].tolist() == [UNIX + 10, UNIX + 11, UNIX + 12]
    assert results.requests["outcome"].tolist() == ["ok", "ok", "http_status"]
    assert results.gaps["gap_s"].tolist() == [0.02, 0.08, 0.4]
    assert results.gaps["id"].tolist() == ["a", "a", "b"]


def test_a_report_that_fails_leaves_the_old_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_reports(folder, a_run())
    before = (folder / "run.json").read_bytes()

    def full(source: Path, target: Path) -> None:
        assert source.is_file()
        assert target.parent == folder
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    unmade = write_reports(folder, a_run(users=99)).unmade
    assert "report.html could not be made: No space left on device" in unmade
    assert len(unmade) == len(FILES) - 1  # all but the records
    assert (folder / "run.json").read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == FILES


def test_run_json_can_be_written_before_the_load(tmp_path: Path) -> None:
    write_run(tmp_path, a_run())
    fill(tmp_path, RECORDS)
    assert read(tmp_path).run == a_run()
    assert remake_reports(tmp_path)[0].conditions.requests == 3


def test_report_needs_no_locust(folder: Path) -> None:
    write_reports(folder, a_run())
    code = (
        "import sys; from locust_llm.report import write_report_files; write_report_files.remake_reports(sys.argv[1]); "
        "assert not {'locust', 'gevent', 'requests', 'flask'} & set(sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(folder)], check=True, cwd=Path(report.__file__).parents[2]
    )


def test_rules_are_judged_told_and_written(tmp_path: Path) -> None:
    """The two answers have three gaps: 20, 80 and 400 ms."""
    fill(tmp_path, [answered(200, 220, 300), answered(100, 500, sent_at=11.0), failed()])
    rules = ("icl max < 300ms", "error_rate < 1%", "ttft p50 < 1s")
    summary = write_reports(tmp_path, a_run(slo=rules))
    assert [(r.status, r.observed) for r in summary.slos[:1]] == [("FAIL", 400)]
    assert summary.counts.broken_lines == 0  # the second look at the records counts nothing twice
    said = json.loads((tmp_path / "run.json").read_text())
    assert said["slo_status"] == "FAIL"
    assert [r["rule"] for r in said["slos"]] == list(rules)
    assert b'name="icl max &lt; 300ms"' in (tmp_path / "junit.xml").read_bytes()
    assert "SLO FAIL" in (tmp_path / "summary.md").read_text()
    shown = Tags((tmp_path / "report.html").read_text())
    assert ("td", {"class": "loud"}) in shown.tags
    assert ("td", {"class": "open"}) in shown.tags
    assert (
        json.loads((tmp_path / "profile_export_aiperf.json").read_text())["locust_llm"][
            "slo_status"
        ]
        == "FAIL"
    )
    assert remake_reports(tmp_path)[0] == summary
    assert remake_reports(tmp_path)[0].slo_status == "FAIL"


def test_without_rules_there_is_no_junit_file(folder: Path) -> None:
    assert write_reports(folder, a_run(slo=("error_rate < 10%",))).slo_status == "INCONCLUSIVE"
    assert (folder / "junit.xml").exists()
    assert write_reports(folder, a_run()).slo_status is None
    assert not (folder / "junit.xml").exists()


# -- sweeps and repeats ----------------------------------------------------------------------------


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """TTFTs of up to 200, 400 and 600 ms; 40 requests each."""
    rules = ("ttft p50 < 300ms", "ttft{stage=4} max < 1s")
    fill_sweep(
        tmp_path,
        {1: steps(200), 2: steps(400), 4: steps(600)},
        slo=rules,
        goodput="time_to_first_token:300",
    )
    return tmp_path


def test_a_sweep_and_each_stage_has_every_file(sweep: Path) -> None:
    summary, run = remake_reports(sweep)
    assert files(sweep) == {*FILES, "junit.xml", "sweep.csv"}
    for number in "123":
        assert files(sweep / "stages" / number) == {*FILES, "junit.xml"}
    assert summary.sweep is not None
    assert [level.value for level in summary.sweep.levels] == [1, 2, 4]
    assert [level.slo_status for level in summary.sweep.levels] == ["PASS", "PASS", "INCONCLUSIVE"]
    assert [(r.rule, r.status) for r in summary.slos] == [
        ("ttft p50 < 300ms", "PASS"),
        ("ttft{stage=4} max < 1s", "PASS"),
    ]
    assert len(run.stages) == 3
    for name in ("run.json", "profile_export_aiperf.json"):
        said = json.loads((sweep / name).read_text())
        found = (said if name == "run.json" else said["locust_llm"])["sweep"]
        assert [level["value"] for level in found["levels"]] == [1, 2, 4]
    rules = (sweep / "junit.xml").read_text()
    assert rules.count("<testcase") == 2
    third = json.loads((sweep / "stages" / "3" / "run.json").read_text())
    assert [r["rule"] for r in third["slos"]] == ["ttft p50 < 300ms", "ttft{stage=4} max < 1s"]
    assert [
        r["rule"] for r in json.loads((sweep / "stages" / "1" / "run.json").read_text())["slos"]
    ] == ["ttft p50 < 300ms"]
    assert third["good"]["attainment"] == 0.5
    assert third["steady"]["in_flight"] == summary.sweep.levels[2].in_flight


def test_a_sweep_as_csv(sweep: Path) -> None:
    remake_reports(sweep)
    head, *rows = csv.reader((sweep / "sweep.csv").read_text().splitlines())
    assert len(rows) == 3
    table = [dict(zip(head, row, strict=True)) for row in rows]
    assert head[0] == "concurrency"
    assert [row["concurrency"] for row in table] == ["1", "2", "4"]
    assert [row["time_to_first_token_p50_ms"] for row in table] == ["102.5", "205", "307.5"]
    assert [row["slo_status"] for row in table] == ["PASS", "PASS", "INCONCLUSIVE"]
    # the last of 600 ms ends behind the measured time
    assert {row["requests_per_s"] for row in table} <= {"2", "1.95"}
    assert table[0]["client"] == "OK"
    assert table[0]["delivered"] == ""
    assert [row["silent_s"] for row in table] == ["0", "0", "0"]


def test_stages_that_are_up_to_date_are_left_as_they_are(sweep: Path) -> None:
    first, _ = remake_reports(sweep)
    pages = [sweep / "stages" / number / "report.html" for number in "123"]
    for path in pages:
        path.write_text("kept")
    newer = sweep / "stages" / "2" / "profile_export.jsonl"
    os.utime(newer, ns=(time := newer.stat().st_mtime_ns + 10**12, time))
    again, _ = remake_reports(sweep)
    assert again == first
    assert [path.read_text() == "kept" for path in pages] == [True, False, True]
    assert remake_reports(sweep, stages=True)[0] == first
    assert not any(path.read_text() == "kept" for path in pages)


def test_what_is_wrong_with_one_stage_is_said_and_the_others_count(sweep: Path) -> None:
    whole, _ = remake_reports(sweep)
    (sweep / "stages" / "1" / "run.json").write_bytes(b"{")
    (sweep / "stages" / "2" / "run.json").unlink()
    for _ in range(2):  # and it is not said twice
        summary, run = remake_reports(sweep)
        assert summary.sweep is not None
        assert whole.sweep is not None
        assert summary.sweep.levels == whole.sweep.levels[2:]
        assert [said.partition(":")[0] for said in summary.sweep.missing] == [
            "stage 1 (concurrency 1) is left out", "stage 2 (concurrency 2) is left out",
        ]  # fmt: skip
        assert "its run.json is missing" in summary.sweep.missing[1]
        assert str(sweep) not in "".join(summary.sweep.missing)
        assert run.notes == ()
        assert (sweep / "summary.md").read_text().count("is left out") == 2
    assert (sweep / "stages" / "1" / "run.json").read_bytes() == b"{"


def test_a_folder_of_something_else_is_no_stage(sweep: Path) -> None:
    write_run(sweep / "stages" / "2", a_run())
    summary, _ = remake_reports(sweep)
    assert summary.sweep is not None
    assert summary.sweep.missing == (
        "stage 2 (concurrency 2) is left out: its run.json cannot be read (it is not of a stage).",
    )


def test_a_sweep_that_ended_before_its_first_stage_passes_nothing(tmp_path: Path) -> None:
    fill_sweep(tmp_path, {}, slo=("ttft p50 < 300ms",))
    summary, _ = remake_reports(tmp_path)
    assert summary.slo_status == "INCONCLUSIVE"
    assert summary.sweep is not None
    assert summary.sweep.levels == ()


def test_a_sweep_without_rules_has_no_status(tmp_path: Path) -> None:
    fill_sweep(tmp_path, {1: steps(200), 2: []})
    summary, _ = remake_reports(tmp_path)
    assert summary.slo_status is None
    assert summary.sweep is not None
    assert [level.sound for level in summary.sweep.levels] == [True, False]
    assert "No SLO is given" in (tmp_path / "summary.md").read_text()


def test_repeats_have_their_spread_behind_the_pooled_tables(tmp_path: Path) -> None:
    stages = {1: steps(200), 2: steps(400)}
    fill_sweep(tmp_path, stages, sweep="", repeats=2, slo=("ttft p50 < 500ms",))
    summary, _ = remake_reports(tmp_path)
    assert summary.sweep is not None
    assert summary.sweep.repeats
    assert summary.conditions.requests == 80
    assert summary.slos[0].count == 80
    text = (tmp_path / "summary.md").read_text()
    assert (
        text.index("## Metrics")
        < text.index("## Repeats")
        < text.index("## Spread over the repeats")
    )
    assert (tmp_path / "sweep.csv").read_text().startswith("repeat,")


def test_a_page_of_a_sweep_is_one_that_asks_nothing(sweep: Path) -> None:
    remake_reports(sweep)
    for path in (sweep / "report.html", sweep / "stages" / "1" / "report.html"):
        assert "Stages by concurrency" in path.read_text() or path.parent.name == "1"


def test_the_parts_of_each_request_have_its_id(tmp_path: Path) -> None:
    """By pencil: due 0.1 s before the send; the second one was 50 ms at the gate, and its first
    attempt has no row."""
    told = ServerTimes(source="timings", queue_us=30_000, prefill_us=120_000)
    fill(tmp_path, [
        answered(200, 220, due_at=9.9, id="a", server=told, written_us=1000),
        failed("retried", sent_at=11.0, id="b"),
        answered(100, 500, sent_at=12.0, asked_at=11.95, admitted_at=12.0, due_at=11.0, id="b.2",
            attempt=2, limit=1),
    ])  # fmt: skip
    run = read(tmp_path)
    assert list(run.requests.id) == ["a", "b", "b.2"]
    assert list(run.waterfall.index) == [0, 2]
    first, second = (row for _, row in run.waterfall.iterrows())
    assert (first.id, second.id) == ("a", "b.2")
    assert first.reported == "timings"
    assert [first[f"{part}_s"] for part in ("late", "send", "queue", "network")] == pytest.approx(
        [0.1, 0.001, 0.03, 0.049]
    )
    assert first.prefill_s == pytest.approx(0.12)
    assert [second[f"{part}_s"] for part in ("total", "retries", "gate")] == pytest.approx(
        [1.1, 0.95, 0.05]
    )
    assert run.waterfall is run.waterfall
