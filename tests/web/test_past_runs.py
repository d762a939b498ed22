"""The archive: every run is listed with its files, and nothing else of this machine can be had by
any name."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from locust_llm.web.past_runs import FILES, Archive


def a_run(folder: Path, started_at: float = 1000.0, **facts: Any) -> Path:
    folder.mkdir(parents=True)
    run = {"name": folder.name, "started_at": started_at, "model": "m"}
    (folder / "run.json").write_bytes(msgspec.json.encode({"run": run, **facts}))
    for name in ("report.html", "profile_export.jsonl", "secret.txt", ".hidden"):
        (folder / name).write_text(name)
    return folder


def test_runs_are_listed_the_last_first(tmp_path: Path) -> None:
    a_run(tmp_path / "reports" / "one", 1000.0, slo_status="PASS")
    a_run(tmp_path / "reports" / "two", 2000.0)
    (tmp_path / "reports" / "no-run").mkdir()
    own = a_run(tmp_path / "elsewhere" / "mine", 3000.0)
    archive = Archive(tmp_path / "reports")
    assert archive.last == ""
    archive.add(own)
    assert [(entry.name, entry.at, entry.status) for entry in archive.entries()] == [
        ("mine", 3000.0, ""), ("two", 2000.0, ""), ("one", 1000.0, "PASS"),
    ]  # fmt: skip
    assert archive.last == "mine"
    files = (
        ("report.html", "report"),
        ("run.json", "settings and facts"),
        ("profile_export.jsonl", "requests"),
    )
    assert archive.entries()[0].files == files


def test_there_may_be_none(tmp_path: Path) -> None:
    assert Archive(tmp_path / "reports").entries() == []


def test_of_a_folder_with_a_name_only_its_runs_are_listed(tmp_path: Path) -> None:
    for name in ("nightly", "nightly-2", "nightly-old", "other"):
        a_run(tmp_path / name)
    assert {entry.name for entry in Archive(tmp_path, "nightly").entries()} == {
        "nightly",
        "nightly-2",
    }


def test_a_run_that_changes_is_read_again(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "one")
    archive = Archive(tmp_path)
    assert archive.entries()[0].status == ""
    (folder / "run.json").write_bytes(
        msgspec.json.encode({"run": {"started_at": 1.0}, "slo_status": "FAIL"})
    )
    os.utime(folder / "run.json", ns=(0, 12345))
    (folder / "summary.md").write_text("")
    assert archive.entries()[0].status == "FAIL"
    assert ("summary.md", "summary") in archive.entries()[0].files


def test_a_damaged_run_is_listed_by_its_age(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "one")
    (folder / "run.json").write_text("{")
    os.utime(folder / "run.json", (77, 77))
    assert [(entry.name, entry.at) for entry in Archive(tmp_path).entries()] == [("one", 77.0)]


def test_stages_come_behind_in_their_order(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "one")
    for number in ("10", "2", "x"):
        a_run(folder / "stages" / number)
    files = [path for path, _ in Archive(tmp_path).entries()[0].files]
    assert [path for path in files if path.endswith("report.html")] == [
        "report.html", "stages/2/report.html", "stages/10/report.html",
    ]  # fmt: skip


def test_a_file_of_a_run_is_found(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "reports" / "one")
    a_run(folder / "stages" / "1")
    archive = Archive(tmp_path / "reports")
    assert archive.file("one", "report.html") == folder / "report.html"
    assert archive.file("one", "stages/1/report.html") == folder / "stages" / "1" / "report.html"


OUTSIDE = [
    ("one", "secret.txt"), ("one", ".hidden"), ("one", "summary.md"), ("one", ""),
    ("", "report.html"),
    ("two", "report.html"), ("one", "../outside/report.html"), ("one", "stages/../report.html"),
    ("one", "/etc/passwd"), ("..", "report.html"),
    ("../outside", "report.html"), (".", "report.html"), ("one/", "report.html"),
    ("one", "./report.html"),
    ("one", "report.html/"), ("one", "stages/1/secret.txt"), ("one", "stages/0x1/report.html"),
    ("one", "REPORT.HTML"),
    ("one", "report.html\0"), ("outside", "report.html"),
]  # fmt: skip


@pytest.mark.parametrize(("run", "path"), OUTSIDE, ids=[f"{run} {path}" for run, path in OUTSIDE])
def test_nothing_else_is_found(run: str, path: str, tmp_path: Path) -> None:
    a_run(a_run(tmp_path / "reports" / "one") / "stages" / "1")
    a_run(tmp_path / "outside")
    assert Archive(tmp_path / "reports").file(run, path) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(run=st.text(max_size=30), path=st.text(alphabet="./\\ones12tag-rph~", max_size=30))
def test_whatever_is_found_is_a_known_file_of_a_run(run: str, path: str, tmp_path: Path) -> None:
    folder = tmp_path / "reports" / "one"
    if not folder.exists():
        a_run(folder)
    for name in (run, "one"):
        found = Archive(tmp_path / "reports").file(name, path)
        assert found is None or (
            found.name in FILES and found.parent in (folder, folder / "stages" / "1")
        )


def test_a_run_is_listed_with_its_main_figures(tmp_path: Path) -> None:
    """Latencies of all stages of a sweep together mean nothing, and are left out."""
    conditions = {
        "loop": "closed",
        "users": 8,
        "duration_s": 60.5,
        "failure_rate": 0.25,
        "client_verdict": "OK",
    }
    figures = {
        "time_to_first_token": {"p95": 120.5},
        "inter_token_latency": {"p95": 9.5},
        "output_token_throughput": {"avg": 431.0},
    }
    for name, asked in (("one", {}), ("two", {"sweep": "concurrency=1,2"})):
        folder = a_run(tmp_path / name, conditions=conditions)
        run = msgspec.json.decode((folder / "run.json").read_bytes())
        run["run"]["settings"] = asked
        (folder / "run.json").write_bytes(msgspec.json.encode(run))
        (folder / "profile_export_aiperf.json").write_bytes(msgspec.json.encode(figures))
    archive = Archive(tmp_path)
    found = {entry.name: entry for entry in archive.entries()}
    one = found["one"]
    assert (one.load, one.duration_s, one.failure_rate, one.client) == ("8 users", 60.5, 0.25, "OK")
    assert (one.ttft_p95_ms, one.itl_p95_ms, one.tokens_per_s) == (120.5, 9.5, 431.0)
    assert (found["two"].load, found["two"].ttft_p95_ms) == ("sweep concurrency=1,2", None)
    assert archive.settings("two") == {"sweep": "concurrency=1,2"}
    assert archive.settings("nobody") == {}
