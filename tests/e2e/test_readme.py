"""The README: its order and length, and that its commands print what it shows."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from locust_llm.demo_command import start_simulator

ROOT: Final = Path(__file__).parents[2]
TEXT: Final = (ROOT / "README.md").read_text("utf-8")
SECTIONS: Final = (
    "Try it in a minute", "Test your server", "Four jobs", "Can you trust the values?", "How it compares",
    "A workload in Python", "Documentation", "Status and limits",
)  # fmt: skip
NUMBER: Final = re.compile(r"(?<![\w.-])\d[\d.,]*")
FIGURE: Final = re.compile(r"(?<![\w.])-?\d[\d.,]*\*?")
SHORT: Final = ("--request-count", "12", "--no-probe", "-s", "5")


def list_job_commands() -> Iterator[tuple[str, str]]:
    """Each command that has a line of its output as a comment, and that line."""
    for block in re.findall(r"^```sh\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE):
        command, _, output = block.partition("\n# ")
        if output:
            yield command, output.strip()


JOBS: Final = dict(list_job_commands())


def test_the_sections_are_in_order_and_the_file_is_short() -> None:
    assert tuple(re.findall(r"^## (.*)$", TEXT, re.MULTILINE)) == SECTIONS
    assert len(TEXT.splitlines()) < 120
    picture = TEXT.index("](reports/example/timeline.svg)")
    assert TEXT.index("locust-llm load-tests") < picture < TEXT.index("## Try it in a minute")
    assert len(JOBS) == 4
    locustfile = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    assert [len(block.splitlines()) for block in locustfile] == [12]


def test_no_sentence_has_more_than_two_numbers() -> None:
    prose = re.sub(r"^```.*?^```$|^\|.*$|^#.*$", "", TEXT, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)", "", prose)
    sentences = re.split(r"(?<=[.:?])\s", prose)
    assert [text for text in sentences if len(NUMBER.findall(text)) > 2] == []
    assert "p-value" not in TEXT


def test_its_test_command_is_the_one_that_the_checks_run() -> None:
    checks = (ROOT / ".ci" / "run").read_text("utf-8")
    assert "`make test`" in TEXT
    assert re.search(r"^for target in test\b", checks, re.MULTILINE)
    assert "make $target" in checks


def test_the_picture_of_errors_is_that_of_the_report() -> None:
    """The rows of 200 streams in its first table, with two digits or whole milliseconds."""
    report = (ROOT / "benchmarks" / "tools-on-one-server.md").read_text("utf-8")
    table = re.search(r"^\| streams .*?\n\n", report, re.DOTALL | re.MULTILINE)
    assert table is not None
    measured = [
        float(line.split("|")[7].partition(" of")[0])
        for line in table[0].splitlines()
        if line.startswith("| 200 |")
    ]
    text = re.search(r"!\[TTFT p99 too high by: ([^]]+)\]\(docs/images/peers\.svg\)", TEXT)
    assert text is not None
    shown = re.findall(r" ([\d.]+)(?: ms)?(?:, |$)", text[1])
    assert shown == [f"{value:.2f}" if value < 1 else f"{value:.0f}" for value in sorted(measured)]
    assert len(shown) == 7


def shape(line: str) -> str:
    """The line with a # in place of each number."""
    return FIGURE.sub("#", line).strip()


@pytest.mark.slow
def test_a_run_prints_lines_of_the_shape_that_is_shown(tmp_path: Path) -> None:
    command = next(text for text in JOBS if "--slo" in text and "-u 10 -t 60" in text)
    with start_simulator("--ttft-ms", "20", "--itl-ms", "1") as url:
        words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', command)]
        words = [url if word == "localhost:8000" else word for word in words]
        done = subprocess.run(
            [sys.executable, "-m", "locust_llm", *words[1:], *SHORT],
            capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False,
        )  # fmt: skip
    assert done.returncode in (0, 4), done.stderr  # 4: a busy machine may leave the rule open
    verdict, _, told = JOBS[command].partition(": ")
    assert verdict == "SLO PASS"
    assert re.search(r"^SLO (PASS|INCONCLUSIVE): ", done.stdout, re.MULTILINE)
    if done.returncode == 0:
        flat = " ".join(done.stdout.split())
        assert shape(told) in shape(flat)


def label(line: str) -> str:
    """The first cell of a row, or a sentence."""
    cells = re.split(r"\s{2,}", line.strip(" |")) if "|" not in line else line.split("|")[1:]
    return cells[0].strip()


@pytest.mark.slow
def test_the_demo_prints_the_lines_that_are_shown(tmp_path: Path) -> None:
    """A shorter demo, with all three limits."""
    shown = re.findall(r"^```text\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    assert len(shown) == 1
    lines = shown[0].splitlines()
    assert len(lines) == 8
    more = ("-t", "15s", "--prefill-concurrency-ramp-duration", "9", "--report-dir", "out")
    done = subprocess.run(
        [sys.executable, "-m", "locust_llm", "demo", *more],
        capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False,
        env={**os.environ, "COLUMNS": "120"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # on a busy machine remarks take the place of the table by limit, which summary.md has
    tables = (tmp_path / "out" / "summary.md").read_text("utf-8")
    printed = {label(line) for line in (*done.stdout.splitlines(), *tables.splitlines()) if line}
    assert [line for line in lines if label(line) not in printed] == []
