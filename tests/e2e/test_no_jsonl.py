"""Runs without profile_export.jsonl: their records are in records/*.parquet, and every command
reads them; a killed run keeps what it had written."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.runs import Server, command, run, server

import locust_llm
from locust_llm.exit_status import ExitStatus
from locust_llm.records.profile_export_jsonl import RecordFile
from locust_llm.records.record_parts import RecordPart, list_record_parts
from locust_llm.records.run_facts import RECORDS

__all__ = ["server"]

pytestmark = pytest.mark.slow


def locust_llm_command(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "locust_llm", *words],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    return done.stdout


@pytest.fixture(scope="module")
def folder(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "columns"
    done = run(server, folder, "--no-jsonl", "-u", "3", "--request-count", "20")
    assert done.returncode == 0, done.stderr
    return folder


def test_the_records_are_in_one_part(folder: Path) -> None:
    assert (folder / RECORDS).read_bytes() == b""
    (path,) = list_record_parts(folder)
    assert RecordPart(path).rows == 20
    assert len(locust_llm.read(folder).requests) == 20
    assert "20" in (folder / "summary.md").read_text()


def test_commands_read_the_part(folder: Path) -> None:
    before = (folder / "profile_export_aiperf.json").read_bytes()
    locust_llm_command("report", str(folder))
    assert (folder / "profile_export_aiperf.json").read_bytes() == before
    locust_llm_command("figure", str(folder), "-o", str(folder.parent / "figure.svg"))
    assert "TTFT" in locust_llm_command("compare", str(folder), str(folder))
    assert "columns" in locust_llm_command("history", str(folder.parent))
    out = folder.parent / "requests.parquet"
    locust_llm_command("export", str(folder), "--format", "parquet", "--out", str(out))
    assert out.stat().st_size > 100
    locust_llm_command("upload", str(folder), f"file://{folder.parent / 'copies'}")
    assert len(list(RecordFile(folder.parent / "copies" / "columns" / RECORDS))) == 20


def test_a_killed_run_keeps_its_lines(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    process = subprocess.Popen(
        command(server, folder, "--no-jsonl", "-u", "3", "-t", "60s"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    lines = folder / "records" / "000001.jsonl"
    until = time.monotonic() + 60
    while not (lines.exists() and lines.read_bytes().count(b"\n") >= 5):
        assert time.monotonic() < until
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    written = lines.read_bytes().count(b"\n")
    done = subprocess.run([sys.executable, "-m", "locust_llm", "report", str(folder)], check=False)
    assert done.returncode in (ExitStatus.OK, ExitStatus.INCOMPLETE)
    assert (folder / "report.html").exists()
    assert len(locust_llm.read(folder).requests) >= written
