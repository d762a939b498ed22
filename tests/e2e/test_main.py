"""Main: what the command does with the world around it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.records import a_run, answered

from locust_llm.records.profile_export_jsonl import format_record_line
from locust_llm.records.run_facts import write_run


@pytest.mark.slow
def test_a_report_that_nobody_reads_to_its_end_is_no_error(tmp_path: Path) -> None:
    """``locust-llm report DIR | head``: the files are made, and nothing is said of a pipe."""
    (tmp_path / "profile_export.jsonl").write_bytes(format_record_line(answered(100)) + b"\n")
    write_run(tmp_path, a_run())
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "locust_llm", "report", str(tmp_path)]
    done = subprocess.run(
        command, stdout=write, stderr=subprocess.PIPE, text=True, check=False, timeout=60
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "report.html").is_file()


def test_help_that_nobody_reads() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "locust_llm", "--help"],
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.full
def test_where_the_options_of_a_locustfile_are_listed() -> None:
    """Locust prints its help before it reads the file, so that no line of ours can be in it; the
    door has both."""
    options = ["-f", str(Path(__file__).parents[2] / "locustfiles" / "chat.py"), "--help"]
    texts = [
        subprocess.run(
            [sys.executable, "-m", *words, *options], capture_output=True, text=True, check=True
        ).stdout
        for words in (["locust"], ["locust_llm", "run"])
    ]
    assert ["--prefill-concurrency" in text for text in texts] == [False, True]
