"""The history: what the index knows of folders, whatever was done to them or to it; the list, the
page, and compare."""

import json
import os
import re
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.axe import violations
from support.years import DAY_S, START, run_folder, year

from locust_llm.__main__ import main
from locust_llm.exit_status import ExitStatus
from locust_llm.lab.history import history_index
from locust_llm.lab.history.history_entry import (
    KEY_FIGURES,
    HistoryEntry,
    _measure_sent,
    key_figure_by_name,
)
from locust_llm.lab.history.history_index import INDEX, index_runs
from locust_llm.lab.history.select_runs import RunFilter, find_last_runs, put_in_front
from locust_llm.lab.history.workload_key import (
    SentLengths,
    WorkloadIdentity,
    key_of_figures,
    key_of_settings,
)
from locust_llm.lab.interop.load_metrics import Distribution, Figures
from locust_llm.records.journal import lock_file
from locust_llm.settings.run_options import Settings

AIPERF = {
    "request_latency": {"unit": "ms", "avg": 900.0, "p99": 1200.0},
    "time_to_first_token": {"unit": "ms", "p50": 200.0},
    "request_count": {"avg": 90}, "error_request_count": {"avg": 10},
    "start_time": "2026-01-05T00:00:00",
    "input_config": {"models": {"items": [{"name": "m"}]}, "phases": [{"concurrency": 8}]},
    "input_sequence_length": {"avg": 549.7},
}  # fmt: skip


def foreign(folder: Path, **more: object) -> None:
    folder.mkdir()
    (folder / "profile_export_aiperf.json").write_text(json.dumps({**AIPERF, **more}))


def test_what_is_known_of_a_run(tmp_path: Path) -> None:
    run_folder(tmp_path / "a", START, 2.0, {"label": ["gpu=h200"], "users": 30}, commit="ab" * 20)
    foreign(tmp_path / "b")
    ours, other = index_runs(tmp_path).entries
    assert (ours.folder, ours.started, ours.tool, ours.model) == (
        "a",
        START,
        "locust-llm",
        "llama-3.1-8b",
    )
    assert (ours.labels, ours.commit, ours.branch, ours.dirty) == (
        {"gpu": "h200"},
        "ab" * 20,
        "main",
        False,
    )
    assert (ours.slo, ours.client, ours.simulated, ours.left_out) == (
        "PASS",
        "OK",
        True,
        "",
    )
    assert "30 users" in ours.conditions
    assert ours.figures["ttft_p50"] == pytest.approx(2 * 0.143571)
    assert ours.figures["error_rate"] == 0
    assert ours.plus_minus["ttft_p50"] == pytest.approx(0.000885, abs=1e-6)
    assert {*ours.figures} == {figure.name for figure in KEY_FIGURES} - {"goodput"}
    assert (other.started, other.tool, other.model) == (START + 4 * DAY_S, "AIPerf", "m")
    assert other.figures == {"ttft_p50": 0.2, "request_latency_p99": 1.2, "error_rate": 0.1}
    assert other.workload != ours.workload


def test_arms_and_stages_are_not_mixed_into_one_row(tmp_path: Path) -> None:
    """Of two servers, or of loads of 1 and of 16 users, no server gave the mean."""
    stages = [{"number": 1}, {"number": 2}]
    run_folder(tmp_path / "ab", START, 1.0, {"candidate": "http://other:8000"})
    run_folder(tmp_path / "sweep", START + 1, 1.0, {"sweep": "concurrency=1..2"}, stages=stages)
    run_folder(tmp_path / "one", START + 2, 1.0, {"sweep": "concurrency=1..2"}, stages=stages[:1])
    prefill = {"sweep": "prefill-concurrency=1..2"}
    run_folder(tmp_path / "limits", START + 3, 1.0, prefill, limit_blocks=[{"round": 1}])
    ab, sweep, one, limits = index_runs(tmp_path).entries
    assert (ab.figures, ab.plus_minus, ab.note) == (
        {},
        {},
        "an A/B test: its report has the metrics of each",
    )
    assert (sweep.figures, sweep.note) == ({}, "2 stages: its report has the metrics of each")
    assert one.figures
    assert one.note == ""
    assert limits.figures == {}
    assert limits.note == "several prefill limits: its report has the metrics of each"


def test_an_imported_run_is_of_its_tool(tmp_path: Path) -> None:
    run_folder(
        tmp_path / "a",
        START,
        1.0,
        {"users": 4},
        imported="AIPerf 0.13.0",
        versions={"AIPerf": "0.13.0"},
    )
    run_folder(tmp_path / "b", START + 1, 1.0, {"users": 4}, imported="guidellm", versions={})
    run_folder(tmp_path / "c", START + 2, 1.0, {"users": 4})
    entries = index_runs(tmp_path).entries
    assert [one.tool for one in entries] == ["AIPerf", "guidellm", "locust-llm"]
    assert len({one.workload for one in entries}) == 3
    assert (
        entries[0].conditions
        == "llama-3.1-8b, 2.5 requests/s, 3 prefill limit, 3900 tokens in, 97 tokens out, by AIPerf"
    )
    assert entries[0].machine == "AIPerf 0.13.0"


def test_the_index_follows_the_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = year(tmp_path, [1.0, 1.1, 1.2])
    first = index_runs(tmp_path)
    assert (len(first.entries), first.unread, first.note) == (3, [], "")
    with sqlite3.connect(tmp_path / INDEX) as db:
        assert db.execute(
            "SELECT count(*), round(max(ttft_p50) / min(ttft_p50), 3) FROM runs"
        ).fetchone() == (3, 1.2)
    read = []
    entry_of = history_index.read_entry
    monkeypatch.setattr(
        history_index,
        "read_entry",
        lambda folder, name: read.append(name) or entry_of(folder, name),
    )
    assert index_runs(tmp_path) == first
    assert read == []
    run_folder(tmp_path / "new", START, 1.0)
    os.utime(folders[1] / "run.json", ns=(1, 1))
    (folders[2] / "run.json").unlink()
    (folders[2] / "profile_export_aiperf.json").unlink()
    again = index_runs(tmp_path)
    assert sorted(read) == ["new", "run-0001"]
    assert sorted(one.folder for one in again.entries) == ["new", "run-0000", "run-0001"]
    del read[:]
    assert index_runs(tmp_path) == again
    assert read == []


def test_links_list_no_run_twice_and_lead_into_no_loop(tmp_path: Path) -> None:
    year(tmp_path, [1.0, 1.1])
    names = [entry.folder for entry in index_runs(tmp_path).entries]
    (tmp_path / "latest").symlink_to(tmp_path / names[-1])
    (tmp_path / "0-earlier").symlink_to(tmp_path / names[0])
    for number in range(100):  # a hundred ways at each of four levels
        (tmp_path / f"again-{number}").symlink_to(tmp_path)
    assert [entry.folder for entry in index_runs(tmp_path).entries] == names


def test_a_damaged_index_is_made_anew(tmp_path: Path) -> None:
    year(tmp_path, [1.0, 1.1])
    first = index_runs(tmp_path)
    sound = (tmp_path / INDEX).read_bytes()
    for damage in (
        b"",
        b"no database",
        sound[:5000],
        sound[: len(sound) // 2],
        sound[:100] + b"\xff" * (len(sound) - 100),
    ):
        (tmp_path / INDEX).write_bytes(damage)
        assert index_runs(tmp_path) == first, damage[:20]
        assert (tmp_path / INDEX).read_bytes()[:16] == b"SQLite format 3\0"
    for wrong in (
        "UPDATE runs SET labels = '['",
        "UPDATE runs SET started = 'x'",
        "DROP TABLE runs",
        "PRAGMA user_version = 7",
    ):
        with sqlite3.connect(tmp_path / INDEX) as db:
            db.execute(wrong)
        db.close()
        assert index_runs(tmp_path) == first, wrong
    (tmp_path / INDEX).unlink()
    (tmp_path / INDEX).mkdir()
    found = index_runs(tmp_path)
    assert found.entries == first.entries
    assert found.note.endswith("history.sqlite cannot be used (Is a directory)")
    assert not list(tmp_path.glob(".history*"))


def test_what_is_not_ours_or_not_to_be_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    year(tmp_path, [1.0])
    with sqlite3.connect(tmp_path / INDEX) as db:
        db.execute("CREATE TABLE theirs (a)")
    db.close()
    before = (tmp_path / INDEX).read_bytes()
    found = index_runs(tmp_path)
    assert len(found.entries) == 1
    assert "another program" in found.note
    assert (tmp_path / INDEX).read_bytes() == before
    (tmp_path / INDEX).unlink()

    def read_only(*words: object, **more: object) -> None:
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr(sqlite3, "connect", read_only)
    found = index_runs(tmp_path)
    assert len(found.entries) == 1
    assert "unable to open" in found.note


def test_bad_folders_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_folder(tmp_path / "good", START, 1.0)
    run_folder(tmp_path / "half", START + 1, 1.0)
    (tmp_path / "half" / "run.json").write_text('{"run": {"started_at": "soon"}}')
    for name, text in (
        ("cut", '{"run": {'),
        ("list", "[]"),
        ("deep", "[" * 100_000),
        ("nan", '{"run": {"started_at": NaN}}'),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
    os.mkdir(os.fsencode(tmp_path) + b"/\xff")
    (tmp_path / os.fsdecode(b"\xff") / "run.json").write_text("{}")
    foreign(
        tmp_path / "half a letter",
        request_count={"avg": float("nan")},
        start_time="0001-01-01T00:00:00",
    )
    file = tmp_path / "half a letter" / "profile_export_aiperf.json"
    file.write_text(file.read_text().replace('"name": "m"', '"name": "\\ud800"'))
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "run.json")
    (tmp_path / "line\nbreak").mkdir()
    (tmp_path / "line\nbreak" / "profile_export_aiperf.json").write_text("{}")
    foreign(
        tmp_path / "b\x1b[31m",
        time_to_first_token={"unit": "ms", "p50": float("nan"), "p99": 1e308},
    )
    assert main(["history", str(tmp_path)]) == ExitStatus.INCOMPLETE
    said = capsys.readouterr()
    assert "half: run.json cannot be read" in said.err
    assert "4 runs" in said.err
    assert "?: not read, its name is not valid text" in said.err
    assert sorted(line.partition(":")[0] for line in said.err.splitlines() if "not read" in line) == [
        "?", "cut", "deep", "line break", "list", "nan",
    ]  # fmt: skip
    assert "\x1b" not in said.out + said.err
    assert main(["history", str(tmp_path), "--json"]) == ExitStatus.INCOMPLETE
    assert "NaN" not in capsys.readouterr().out
    assert main(["history", str(tmp_path / "nowhere")]) == ExitStatus.REFUSED
    assert main(["history", str(tmp_path), "--metric", "speed"]) == ExitStatus.REFUSED
    assert main(["history", str(tmp_path), "--last", "0"]) == ExitStatus.REFUSED
    assert "Traceback" not in capsys.readouterr().err


def test_a_list_a_figure_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noise = [1 + 0.01 * ((i * 7) % 5 - 2) for i in range(30)]
    year(
        tmp_path / "main",
        [v * (1 if i < 15 else 1.2) for i, v in enumerate(noise)],
        server="vLLM 1",
    )
    (report := tmp_path / "main" / "run-0029" / "report.html").touch()
    run_folder(tmp_path / "<b>x", START, 1.0, {"users": 7}, model="<script>", simulated=False)
    assert main(["history", str(tmp_path)]) == ExitStatus.OK
    said = capsys.readouterr()
    assert "31 runs" in said.err
    assert "from main/run-0015 on worse: TTFT p50 +20.0%" in said.out
    (changes,) = (line for line in said.out.splitlines() if "from main/run-0015 on worse" in line)
    heads = [line for line in said.out.splitlines() if line.startswith("  started ")]
    changed = re.findall(r"([A-Z][\w/]* ?\w*) \+20", changes)
    assert "TTFT p95" in changed
    assert [label for label in changed if label not in heads[-1]] == []
    assert "with it: commit" in said.out
    assert "llama-3.1-8b, 2.5 requests/s" in said.out
    assert (
        main(
            [
                "history",
                str(tmp_path),
                "--metric",
                "latency_p99",
                "--last",
                "20",
                "--label",
                "branch=mai*",
            ]
        )
        == 0
    )
    said = capsys.readouterr()
    assert said.out.count("run-00") == 21
    assert "---- Latency p99 +20.0% (worse) from main/run-0015 on:" in said.out
    assert "30 of them selected" in said.err
    assert main(["history", str(tmp_path), "--json", "--model", "llama"]) == 0
    found = json.loads(capsys.readouterr().out)
    (workload,) = found["workloads"]
    assert len(workload["runs"]) == 30
    assert {(c["from"], c["better"]) for c in workload["changes"]} == {("main/run-0015", False)}
    page = tmp_path / "history.html"
    assert main(["history", str(tmp_path), "--html", str(page)]) == 0
    html = page.read_text()
    assert "&lt;b&gt;x" in html
    assert f'href="{report.relative_to(tmp_path)}"' in html
    plots = json.loads(html.split("id=plots>")[1].split("</script>")[0])
    ttft = next(plot for plot in plots if plot["title"] == "TTFT p50" and plot["marks"])
    assert [(mark["text"], mark["x"], mark["hue"]) for mark in ttft["marks"]] == [
        ("+20.0%", 14.5, "fail")
    ]
    levels, dots = ttft["series"]
    # the medians before and after the change, each from half a run before its first to after its last
    assert (levels["kind"], levels["x"]) == ("band", [-0.5, 14.5, 14.5, 29.5])
    assert levels["y"][2] == pytest.approx(1.2 * levels["y"][0])
    assert (len(dots["x"]), dots["tips"][-1][0]) == (30, "main/run-0029")
    assert dots["links"][-2:] == ["", str(report.relative_to(tmp_path))]


def test_each_run_of_several_addresses_has_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for i, host in enumerate(("http://a:8000", "http://b:8000")):
        run_folder(tmp_path / f"run-{i}", START + 100 * i, 1.0, {"host": host})
    assert main(["history", str(tmp_path)]) == ExitStatus.OK
    said = capsys.readouterr().out
    assert "2 runs, 2 addresses" in said
    lines = said.splitlines()
    assert "address" in next(line for line in lines if "started" in line)
    for i, host in enumerate(("http://a:8000", "http://b:8000")):
        assert host in next(line for line in lines if f"run-{i}" in line)
    assert main(["history", str(tmp_path), "--metric", "ttft_p50"]) == ExitStatus.OK
    assert capsys.readouterr().out.count("http://b:8000") == 1
    page = tmp_path / "history.html"
    assert main(["history", str(tmp_path), "--html", str(page)]) == ExitStatus.OK
    assert "<th scope=col>Address</th>" in page.read_text()
    run_folder(tmp_path / "one" / "run", START, 1.0)
    assert main(["history", str(tmp_path / "one")]) == ExitStatus.OK
    assert "address" not in capsys.readouterr().out


def test_a_run_of_which_many_requests_were_cut_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """204 of 295 were cut: the figures are of 91 survivors."""
    folder = run_folder(tmp_path / "overloaded", START, 1.0)
    document = json.loads((folder / "run.json").read_text())
    document["conditions"] |= {"succeeded": 91, "cut": 204}
    (folder / "run.json").write_text(json.dumps(document))
    assert main(["history", str(tmp_path)]) == ExitStatus.OK
    line = "overloaded: its latencies are of the answered requests, 204 of 295 were cut"
    assert line in capsys.readouterr().err


def test_a_run_in_which_nothing_came_for_a_while_is_named(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "frozen", START, 1.0)
    document = json.loads((folder / "run.json").read_text())
    document["outages"] = [{"began_s": 20.0, "seconds": 6.0, "in_flight": 1}]
    (folder / "run.json").write_text(json.dumps(document))
    (entry,) = index_runs(tmp_path).entries
    assert entry.note == "no token came for 6 s, which its rates count"


def test_a_run_whose_chunks_were_gathered_has_no_times_of_chunks(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "buffered", START, 1.0)
    document = json.loads((folder / "run.json").read_text())
    effect = "Time to First Token and all gaps describe the buffer, not the server."
    document["run"]["notes"] = [f"WARNING: BUFFERED STREAM: 9 of 9. {effect}"]
    (folder / "run.json").write_text(json.dumps(document))
    (entry,) = index_runs(tmp_path).entries
    assert entry.note == "the streams were buffered on the way, so it has no TTFT, ITL, ICL"
    assert not {"ttft_p50", "itl_p50", "icl_p99"} & entry.figures.keys()
    assert "request_latency_p99" in entry.figures


DELIVERY = {
    "duration_s": 15.0, "due": 36, "sent": 27, "completed": 26, "never_started": 0,
    "offered_per_s": 2.4, "sent_per_s": 1.8, "completed_per_s": 1.73, "share": 0.75, "users": 17,
    "completed_share": 0.72, "expected": 36.0, "in_flight": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "word", "note"),
    [
        ({"delivery": {**DELIVERY, "cause": "gate"}}, "NOT DELIVERED",
            "offered 2.4/s, sent 1.8/s, completed 1.7/s in the 15 s to the stop (arrivals waited for a prefill slot)"),
        ({"delivery": {**DELIVERY, "cause": "server", "overload": {
            "in_flight_middle": 9, "in_flight_end": 18, "by_chance": 3.0}}}, "OVERLOADED",
            "offered 2.4/s, completed 1.7/s in the 15 s to the stop, and requests piled up until "
            "the end"),
        # 36 - 34 = 2 are usual, and 2 + 2 x 3 = 8 may be by chance: 9 are more
        ({"delivery": {**DELIVERY, "expected": 34.0, "in_flight": 9}}, "BACKLOG",
            "9 of the 36 requests that were due were in flight at the stop, and a server that "
            "keeps up has about 2"),
        ({"counts": {"records_lost": 2}}, "INCOMPLETE",
            "2 requests have no record, so counts and rates may be too low"),
        ({"counts": {"records_lost": 1}}, "INCOMPLETE",
            "1 request has no record, so counts and rates may be too low"),
        ({"counts": {"broken_lines": 3}}, "INCOMPLETE",
            "3 lines of profile_export.jsonl could not be read"),
    ],
)  # fmt: skip
def test_a_load_that_was_not_delivered_and_lost_records_have_their_word(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: Mapping[str, Any],
    word: str,
    note: str,
) -> None:
    folder = run_folder(tmp_path / "short", START, 1.0, stopped_early="after 15 of 30 s")
    document = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**document, **more}))
    assert main(["history", str(tmp_path)]) == ExitStatus.OK
    printed = capsys.readouterr()
    assert f"{word}; stopped after 15 of 30 s\n" in printed.out
    assert f"short: {word}: {note}\n" in printed.err


@pytest.mark.parametrize(
    "more",
    [
        # 2 + 2 x 2.6 = 7.3 may be by chance
        {"delivery": {**DELIVERY, "expected": 34.0, "in_flight": 7}},
        {"delivery": {"due": "of another version"}},
        {"delivery": None, "counts": {"records_lost": 0}},
    ],
)
def test_a_delivered_load_has_no_word(tmp_path: Path, more: Mapping[str, Any]) -> None:
    folder = run_folder(tmp_path / "whole", START, 1.0)
    document = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**document, **more}))
    (entry,) = index_runs(tmp_path).entries
    assert (entry.ended, entry.note) == ("", "")


def test_the_end_of_a_run_is_not_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(tmp_path / "stopped", START, 1.0, stopped_early="after 5.4 of 30 s")
    document = json.loads((folder / "run.json").read_text())
    document["conditions"] |= {"succeeded": 0, "cut": 1234}
    (folder / "run.json").write_text(json.dumps(document))
    assert main(["history", str(tmp_path)]) == ExitStatus.OK
    assert "stopped after 5.4 of 30 s; 1,234 requests cut\n" in capsys.readouterr().out


def test_a_run_that_is_on_is_still_running(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its process has the lock of its records; where that ends without an end of the run, the run
    did not end."""
    folder = run_folder(tmp_path / "on", START, 1.0)
    document = json.loads((folder / "run.json").read_text())
    document["run"]["stopping_at"] = None
    (folder / "run.json").write_text(json.dumps(document))
    (folder / "profile_export_aiperf.json").unlink()
    (folder / "profile_export.jsonl").touch()
    lock = lock_file(folder / "profile_export.jsonl")
    assert lock is not None
    (entry,) = index_runs(tmp_path).entries
    assert (entry.ended, entry.left_out) == ("still running", "it is still running")
    assert entry.note == ""
    assert main(["history", str(tmp_path)]) == ExitStatus.OK
    printed = capsys.readouterr().out
    assert "still running" in printed
    assert "no metrics" not in printed
    os.close(lock)
    (entry,) = index_runs(tmp_path).entries
    assert (entry.ended, entry.left_out) == ("did not end", "it did not end")


def test_a_run_without_an_answer_has_no_latencies_of_answered_requests(tmp_path: Path) -> None:
    cut = run_folder(tmp_path / "cut", START, 1.0)
    document = json.loads((cut / "run.json").read_text())
    document["conditions"] |= {"succeeded": 0, "cut": 312}
    (cut / "run.json").write_text(json.dumps(document))
    (entry,) = index_runs(tmp_path).entries
    assert entry.note == "no request was answered, 312 were cut"


def test_rows_of_runs_that_did_not_come_to_their_end_are_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the list, on the page, and where one figure is drawn; whole runs alone have no column."""
    run_folder(tmp_path / "whole", START, 1.0)
    assert main(["history", str(tmp_path)]) == ExitStatus.OK
    assert "ended" not in capsys.readouterr().out
    broken = [{"rule": "abort: ttft p95 < 2s", "why": "all of 128"}]
    run_folder(tmp_path / "by-hand", START + 1, 1.0, stopped_early="after 6.9 of 60 s")
    run_folder(tmp_path / "by-rule", START + 2, 1.0, broken_rules=broken)
    run_folder(tmp_path / "by-stage", START + 3, 1.0, broken_rules=[{**broken[0], "stage": 2}])
    killed = run_folder(tmp_path / "killed", START + 4, 1.0)
    document = json.loads((killed / "run.json").read_text())
    document["run"]["stopping_at"] = None
    (killed / "run.json").write_text(json.dumps(document))
    cut = run_folder(tmp_path / "cut", START + 5, 1.0)
    document = json.loads((cut / "run.json").read_text())
    document["conditions"] |= {"succeeded": 91, "cut": 204}
    (cut / "run.json").write_text(json.dumps(document))
    marks = {
        "whole": "",
        "by-hand": "stopped after 6.9 of 60 s",
        "by-rule": "ended by abort: ttft p95 < 2s",
        "by-stage": "",
        "killed": "did not end",
        "cut": "204 requests cut",
    }
    assert {one.folder: one.ended for one in index_runs(tmp_path).entries} == marks
    assert main(["history", str(tmp_path)]) == ExitStatus.OK
    lines = capsys.readouterr().out.splitlines()
    for name, mark in marks.items():
        (line,) = [line for line in lines if f" {name} " in line]
        assert line.endswith(mark or "OK"), name
    assert main(["history", str(tmp_path), "--metric", "ttft_p50"]) == ExitStatus.OK
    drawn = capsys.readouterr().out
    assert "stopped after 6.9 of 60 s" in drawn
    assert "did not end  not counted" not in drawn  # one of the two is enough
    page = tmp_path / "history.html"
    assert main(["history", str(tmp_path), "--html", str(page)]) == ExitStatus.OK
    html = page.read_text()
    assert "<th scope=col>Ended</th>" in html
    assert html.count("<td>ended by abort: ttft p95 &lt; 2s</td>") == 1


def test_last_five_on_main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tmp_path / "reports"
    year(runs, [1.0] * 4)
    for i in range(3):
        run_folder(runs / f"pr-{i}", START + 100 * DAY_S + i, 1.0, {"label": ["pr=7"]})
    run_folder(runs / "other-load", START + 200 * DAY_S, 1.0, {"users": 9}, commit="c" * 40)
    main_only = RunFilter(labels=(("branch", "main"),))
    names = lambda paths: [path.name for path in paths]  # noqa: E731
    assert names(find_last_runs(runs, 2, main_only, [runs / "pr-2"])) == ["run-0002", "run-0003"]
    assert names(find_last_runs(runs, 9, main_only)) == [
        "other-load"
    ]  # of the workload of the latest
    assert names(find_last_runs(runs, 9, RunFilter(labels=(("pr", "?"),)), [runs / "pr-2"])) == [
        "pr-0",
        "pr-1",
    ]
    assert names(find_last_runs(runs, 9, RunFilter(commit="ccc"))) == ["other-load"]
    monkeypatch.chdir(tmp_path)
    words = put_in_front(["--last", "2", "--label", "branch=main", "reports/pr-2", "--verbose"])
    assert words == ["reports/run-0002", "reports/run-0003", "reports/pr-2", "--verbose"]
    assert put_in_front(["a", "b", "--json", "f"]) == ["a", "b", "--json", "f"]
    for wrong in (
        ["--label", "a=b", "x"],
        ["--last", "0"],
        ["--last", "2", "--label", "x=y"],
        ["--last", "1", "--runs", "no"],
    ):
        with pytest.raises(ValueError, match=r".+"):
            put_in_front(wrong)
    assert (
        main(["compare", "--last", "1", "--host", "nobody", "reports/pr-2"]) == ExitStatus.REFUSED
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"users": 1}, "m, 1 user, 550 / 128 tokens"),
        ({"users": 2, "streaming": False}, "m, 2 users, 550 / 128 tokens, not streamed"),
        # an embedding has no tokens of output, and is never streamed
        (
            {"users": 3, "streaming": False, "endpoint_type": "embeddings"},
            "m, 3 users, 550 tokens, endpoint-type embeddings",
        ),
    ],
)
def test_a_workload_in_words(changes: Mapping[str, Any], words: str) -> None:
    settings: Mapping[str, Any] = msgspec.to_builtins(Settings(**changes))
    assert key_of_settings(settings, "m", False, False).words == words


def test_workloads_that_are_kept_apart() -> None:
    def of(
        model: str = "m", simulated: bool = False, proxied: bool = False, **changes: object
    ) -> str:
        settings: Mapping[str, Any] = msgspec.to_builtins(Settings(**{"users": 4, **changes}))  # type: ignore[arg-type]
        return key_of_settings(settings, model, simulated, proxied).hash

    same = of()
    assert same == of(
        host="http://b",
        random_seed=3,
        run_time_s=60.0,
        slo=("ttft p95 < 1s",),
        report_dir="x",
        label=("a=b",),
    )
    # of another version
    assert same == key_of_settings({"users": 4, "unknown": 1}, "m", False, False).hash
    others = [
        of(model="n"), of(simulated=True), of(proxied=True), of(users=5), of(request_rate=2.0),
        of(streaming=False),
        of(synthetic_input_tokens_mean=600.0), of(output_tokens_mean=5.0),
        of(prefill_concurrency=2),
        of(sweep="concurrency=1..4"),
        of(input_file="a.jsonl"), of(seq_dist="1,2:100"), of(tenant_mix="a=1,b=1"),
        of(endpoint_type="messages"),
    ]  # fmt: skip
    assert len({same, *others}) == len(others) + 1
    assert of(input_file="/x/a.jsonl") == of(input_file="/y/a.jsonl")
    theirs = Figures(tool="t", model="m", concurrency=8, input_tokens=Distribution(avg=549.7))
    assert (
        key_of_figures(theirs).hash
        == key_of_figures(
            msgspec.structs.replace(theirs, input_tokens=Distribution(avg=551.2))
        ).hash
    )
    assert key_of_figures(theirs).words == "m, 8 users, 550 tokens in, by t"
    assert (
        key_of_figures(theirs).hash
        != key_of_figures(msgspec.structs.replace(theirs, concurrency=9)).hash
    )


JSON = st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(),
    lambda inner: (
    st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["hosts", "host", "label",
        "users", "seq_dist"]), inner)
))  # fmt: skip


@given(
    st.dictionaries(
        st.sampled_from(
            ["users", "input_file", "request_rate", "seq_dist", "prefill_concurrency", "sweep"]
        ),
        JSON,
    )
)
def test_settings_of_any_kind_have_words(settings: dict[str, object]) -> None:
    assert key_of_settings(settings, "m", False, False).words.startswith("m")


def test_names_of_figures() -> None:
    assert key_figure_by_name("TTFT p99").name == "ttft_p99"
    assert key_figure_by_name("tpot_p99").name == "itl_p99"
    assert key_figure_by_name("ttft_p50").format_value(0.0123) == "12.3 ms"
    assert key_figure_by_name("error_rate").format_value(0.005) == "0.5%"
    with pytest.raises(ValueError, match="ttft_p50"):
        key_figure_by_name("ttft_p42")


def test_what_does_not_count() -> None:
    """Runs that did not end, and those whose load generator was too slow, are shown and in no
    change."""
    from locust_llm.lab.history.run_series import find_figure_changes, group_series

    entries = [
        HistoryEntry(
            folder=str(i), started=float(i), workload="w",
            figures={"ttft_p99": 9.0 if i % 3 == 0 else 1 + i % 5 / 100},
            left_out="it did not end" * (i % 3 == 0),
        )
        for i in range(60)
    ]  # fmt: skip
    (series,) = group_series(entries)
    assert len(series.of(key_figure_by_name("ttft_p99"))) == 40
    assert find_figure_changes(series, key_figure_by_name("ttft_p99")) == []


EXAMPLE = json.loads((Path(__file__).parents[3] / "reports" / "example" / "run.json").read_text())
PLACES = [
    ("run", name)
    for name in ("settings", "versions", "commit", "proxy", "machine", "model", "stopping_at")
]
PLACES += [
    ("settings", name)
    for name in (
        "users",
        "label",
        "hosts",
        "host",
        "input_file",
        "request_rate",
        "sweep",
        "seq_dist",
    )
]
PLACES += [("", name) for name in ("client", "slo_status", "plus_minus")]


@given(st.lists(st.tuples(st.sampled_from(PLACES), JSON), min_size=1, max_size=3))
def test_any_run_json_is_read_or_named(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[tuple[str, str], Any]]
) -> None:
    """And then it can be kept, listed, drawn."""
    document = json.loads(json.dumps(EXAMPLE))
    for (where, name), value in changes:
        part = (
            document["run"]["settings"]
            if where == "settings"
            else document["run"]
            if where
            else document
        )
        if isinstance(part, dict):
            part[name] = value
    folder = tmp_path_factory.mktemp("any")
    run_folder(folder / "a", START, 1.0)
    (folder / "a" / "run.json").write_text(json.dumps(document))
    assert main(["history", str(folder), "--html", str(folder / "page.html")]) == 0
    found = index_runs(folder)
    assert (len(found.entries), found.note) == (1, "")
    (folder / INDEX).unlink()
    assert index_runs(folder) == found


def test_a_mix_of_prompts_has_the_mean_of_all_that_were_sent() -> None:
    """Of 10 prompts one has the 300 tokens that were requested, and the others have 20: 48."""
    requested = SentLengths(300.0, 300.0, 12.0)
    load = Figures(tool="locust-llm", input_tokens=Distribution(avg=48.0))
    sent = _measure_sent(requested, load)
    assert sent == SentLengths(300.0, 48.0, 12.0)
    key = key_of_settings({"users": 6, "locustfile": "mixed.py"}, "m", False, False, sent)
    assert key.words == "m, 6 users, mixed.py prompts of 48 / 12 tokens on average"
    assert _measure_sent(requested, None) == requested


def test_a_locustfile_of_ones_own_is_another_workload_than_the_prompts_that_the_flags_ask_for() -> (
    None
):
    """Both ran with the same flags, and the flags say 550 / 128 tokens."""
    flags, drawn = {"users": 4}, SentLengths(550.0, 551.2, 128.0)

    def of(locustfile: str, *sent: float | None) -> WorkloadIdentity:
        return key_of_settings(
            {**flags, "locustfile": locustfile}, "m", False, False, SentLengths(*sent)
        )

    default = key_of_settings({**flags, "locustfile": "run.py"}, "m", False, False, drawn)
    assert default == key_of_settings(flags, "m", False, False)
    assert default.words == "m, 4 users, 550 / 128 tokens"
    mine = of("mine.py", None, 212.0, 40.0)
    assert mine.words == "m, 4 users, mine.py prompts of 210 / 40 tokens on average"
    assert mine.hash != default.hash
    assert of("mine.py", None, 207.0, 40.0).hash == mine.hash  # no two runs have the same mean
    assert of("mine.py", None, 2_100.0, 40.0).hash != mine.hash
    assert of("mine.py", None, 212.0, 400.0).hash != mine.hash
    assert of("other.py", None, 212.0, 40.0).hash != mine.hash
    # a file of the same name as ours sends what no flag asked for
    assert of("run.py", None, 212.0, 40.0).hash not in (default.hash, mine.hash)
    assert (
        of("run.py", None, 212.0, 40.0).words
        == "m, 4 users, own prompts of 210 / 40 tokens on average"
    )
    assert of("run.py", None, None, None).hash == default.hash  # nothing was answered


def test_a_row_for_each_workload_that_opens_its_charts(browser: Any, tmp_path: Path) -> None:
    """By keyboard alone; links have the colour of the page; what needs five runs is absent below;
    runs of one minute have its time once."""
    factors = [1.0] * 15 + [1.2] * 15
    wobble = [factor * (1 + 0.001 * (i % 5)) for i, factor in enumerate(factors)]
    year(tmp_path / "long", wobble)
    for i in range(3):
        folder = run_folder(tmp_path / f"few-{i}", START + 10 * i, 1.0, {"users": 7})
        (folder / "report.html").touch()
    run_folder(tmp_path / "broken", START - 10, 1.0, {"users": 9})
    document = json.loads((tmp_path / "broken" / "run.json").read_text())
    document["run"]["stopping_at"] = None
    (tmp_path / "broken" / "run.json").write_text(json.dumps(document))
    file = tmp_path / "history.html"
    assert main(["history", str(tmp_path), "--html", str(file)]) == ExitStatus.OK
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    errors = list[str]()
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(file.as_uri())
    long, few, broken = page.locator(".workload").all()
    assert "no run counts" in broken.locator("summary").first.inner_text()
    assert "+20.0% worse" in long.locator("summary").first.inner_text()
    assert "TTFT p50, simulated" in long.locator("summary").first.inner_text()
    assert "too few runs for a change" in few.locator("summary").first.inner_text()
    assert [row.locator("polyline").count() for row in (long, few)] == [1, 1]
    arrow = few.locator("h2").evaluate("head => getComputedStyle(head, '::before').content")
    assert arrow == '"\N{BLACK RIGHT-POINTING SMALL TRIANGLE}"'
    assert page.locator("canvas").count() == 0
    few.locator("summary").first.press("Enter")
    few.locator("canvas").first.wait_for()
    assert few.locator("canvas").count() == few.locator("figure").count()
    assert long.locator("canvas").count() == 0
    plots = few.locator(".canvas").evaluate_all("all => all.map(box => charts.of(box).plot)")
    assert [plot["x"]["ticks"] for plot in plots] == [[[0, "00:00"]]] * len(plots)
    assert not any(series["kind"] == "band" for plot in plots for series in plot["series"])
    few.locator("summary").last.press("Enter")
    link = few.get_by_role("link", name="few-2")
    assert link.get_attribute("href") == "few-2/report.html"
    for scheme, width, blue in (
        ("light", 1440, "rgb(23, 105, 196)"),
        ("dark", 400, "rgb(44, 146, 250)"),
    ):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        assert link.evaluate("link => getComputedStyle(link).color") == blue
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert violations(page) == []
    assert errors == []
    page.close()


def test_a_short_series_names_how_many_runs_a_change_requires(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    year(tmp_path, [1.0] * 3)
    main(["history", str(tmp_path), "--metric", "ttft_p99"])
    said = " ".join(capsys.readouterr().out.split())
    assert "3 runs of TTFT p99: finding a change requires at least 14" in said
    assert "of them after" not in said
