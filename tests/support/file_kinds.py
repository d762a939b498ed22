"""Kinds of files: puts unusual files into a run folder, and runs a command in a process with limits
of time and memory."""

import io
import multiprocessing
import os
import resource
import shutil
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, NamedTuple

from locust_llm.commands import load_command
from locust_llm.exit_status import ExitStatus
from locust_llm.records.profile_export_jsonl import format_record_line
from locust_llm.records.record_parts import WaitingRows, name_part, write_part
from locust_llm.records.run_facts import RECORDS, write_run
from support.damaged import a_whole_run, records
from support.evalscope import a_database
from support.stages import fill_sweep, steps

PATIENCE_S: Final = 60.0
"""A command takes a second, but the machine may be busy."""
MOST_MEGABYTES: Final = 700
"""A command, including its packages, uses at most this memory."""
TWIN: Final = Path(__file__).parents[1] / "data" / "twin" / "vllm.toml"


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        here = os.open(path.parent, os.O_RDONLY)  # the path of a socket has at most 107 bytes
        one.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)


def write_sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 10 << 30)


def write_beginning_of(path: Path) -> None:
    """Writes a sparse file after the beginning of JSON."""
    path.write_bytes(b'{"run": {"metadata": 1, ')
    os.truncate(path, 10 << 30)


KINDS: Final[dict[str, Callable[[Path], object]]] = {
    "pipe": os.mkfifo,
    "socket": bind,
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "device that waits": lambda path: path.symlink_to("/dev/ptmx"),
    "endless view of the kernel": lambda path: path.symlink_to("/proc/self/pagemap"),
    "folder": lambda path: path.mkdir(),
    "link loop": lambda path: path.symlink_to(path),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "link to the folder above": lambda path: path.symlink_to(".."),
    "sparse": write_sparse,
    "sparse JSON": write_beginning_of,
    "deep JSON": lambda path: path.write_bytes(b'{"run":' * 100_000),
    "deep list": lambda path: path.write_bytes(b"[" * 100_000 + b"]" * 100_000),
    "deep TOML": lambda path: path.write_bytes(
        b"version = 1\na = " + b"[" * 100_000 + b"]" * 100_000
    ),
    "NUL": lambda path: path.write_bytes(b"\0" * (8 << 20)),
    "a line without end": lambda path: path.write_bytes(b"{" * (8 << 20)),
}
"""Each entry makes one kind of file."""

FILES: Final = (
    "one/profile_export.jsonl", "one/run.json", "one/server_metrics.jsonl", "one/spans.jsonl",
    "one/report.html",
    "one/profile_export_aiperf.json", "one/profile_export_aiperf.csv", "one/summary.md",
    "one/timeline.svg",
    "one/junit.xml", "one/journal", "one/stages", "one/canary.jsonl",
    "one/records", "one/records/000001.parquet", "one/records/000002.jsonl",
    "columns/records", "columns/records/000001.parquet", "columns/records/000002.jsonl",
    "sweep/run.json", "sweep/profile_export.jsonl", "sweep/sweep.csv", "sweep/stages",
    "sweep/stages/1",
    "sweep/stages/1/run.json", "sweep/stages/1/profile_export.jsonl", "sweep/stages/1/report.html",
    "twin.toml", "history.sqlite", "history.sqlite-journal", "more.jsonl",
    "evalscope/benchmark_data.db", "evalscope/benchmark_data.db-journal",
    "evalscope/benchmark_args.json",
    "evalscope/benchmark_summary.json",
)  # fmt: skip
"""Each of these files is replaced."""

COMMANDS: Final = (
    "report one", "report columns", "report sweep", "report sweep --stages", "report one --spans more.jsonl",
    "report one --records more.jsonl", "figure one", "compare one sweep", "compare one whole", "compare columns whole",
    "compare whole one",
    "compare more.jsonl one/profile_export_aiperf.json", "compare --last 2 --runs .",
    "pareto sweep", "history .",
    "audit one", "audit one/profile_export_aiperf.json", "audit more.jsonl",
    "import more.jsonl --report-dir new",
    "import evalscope --report-dir new", "export one --format vllm-bench",
    "export one --format pytorch",
    "export one --format benchmark-report", "export one --format parquet", "export columns --format parquet", "comment one",
    "comment whole --base one",
    "upload one file:///{here}/store", "twin fit one sweep", "twin drift twin.toml sweep",
    "twin drift twin.toml one",
    "plan twin.toml --arrivals 1/s --slo ttft\xa0p95<1s",
    "plan twin.toml --arrivals more.jsonl --slo ttft\xa0p95<1s",
)  # fmt: skip
"""Each entry has a command's words. Words may have non-breaking blanks."""


NO_RUNS: Final = ("twin.toml", "more.jsonl", "evalscope")


class Case(NamedTuple):
    """Is one replaced file and a command."""

    file: str
    kind: str
    command: str

    def __str__(self) -> str:
        return f"{self.file} is {self.kind}: {self.command}"


class Ending(NamedTuple):
    """Describes how a command ended."""

    status: int | None
    """None: it did not end."""
    out: str
    err: str
    megabytes: float


def cases() -> Iterator[Case]:
    """Lists every command with each file that it may read."""
    for command in COMMANDS:
        words = command.replace("/", " ").split()
        reads_all = bool({"history", "--last"} & {*words})  # each folder with a run
        for file in FILES:
            folder = file.partition("/")[0]
            if folder in words or (reads_all and folder not in NO_RUNS):
                yield from (Case(file, kind, command) for kind in KINDS)


def make_whole(home: Path) -> None:
    """Makes the undamaged folders and files of the commands."""
    for name in ("one", "whole"):
        (home / name).mkdir()
        write_run(home / name, a_whole_run())
        (home / name / RECORDS).write_bytes(
            b"".join(format_record_line(record) + b"\n" for record in records(40))
        )
        write_records_part(home / name, (0, (home / name / RECORDS).stat().st_size))
    (home / "columns").mkdir()
    write_run(home / "columns", a_whole_run())
    (home / "columns" / RECORDS).touch()  # as of a run with --no-jsonl
    write_records_part(home / "columns", (0, 0))
    (home / "sweep").mkdir()
    fill_sweep(
        home / "sweep", {1: steps(200), 2: steps(400), 4: steps(600)}, slo=("ttft p50 < 300ms",)
    )
    (home / "evalscope").mkdir()
    row = {
        "start_time": 70.0,
        "completed_time": 70.5,
        "success": 1,
        "latency": 0.5,
        "first_chunk_latency": 0.25,
    }
    a_database(home / "evalscope" / "benchmark_data.db", [row], ())
    shutil.copy(TWIN, home / "twin.toml")
    shutil.copy(home / "one" / RECORDS, home / "more.jsonl")
    for words in (["report", "one"], ["report", "sweep"], ["history", "."]):
        ending = ending_of(home, words)
        assert ending.status in (ExitStatus.OK, ExitStatus.INCOMPLETE, ExitStatus.RULE_FAILED), (
            ending
        )


def write_records_part(folder: Path, lines: tuple[int, int]) -> None:
    """Writes 40 records as columns. ``lines``: their bytes in the file of lines."""
    rows = WaitingRows()
    for record in records(40):
        rows.add(record)
    part = name_part(folder, 1)
    part.parent.mkdir()
    write_part(part, rows, lines, lambda: None)


def replace_file(home: Path, case: Case) -> None:
    path = home / case.file
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    KINDS[case.kind](path)


def words_of(case: Case, home: Path) -> list[str]:
    return [
        word.replace("\xa0", " ").replace("/{here}", str(home)) for word in case.command.split(" ")
    ]


_processes: Final = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(
    [__name__, "locust_llm.report.report_command", "locust_llm.lab.interop.comparison_page"]
)


def ending_of(home: Path, words: list[str]) -> Ending:
    """Runs a command in a process of its own, in the folder ``home``."""
    ours, theirs = _processes.Pipe(duplex=False)
    child = _processes.Process(target=_call, args=(theirs, str(home), words))
    child.start()
    theirs.close()
    try:
        if not ours.poll(PATIENCE_S):
            return Ending(None, "", "", 0.0)
        return Ending(*ours.recv())
    except EOFError:
        child.join()
        return Ending(None, "", f"it ended without a word: {child.exitcode}", 0.0)
    finally:
        child.kill()
        child.join()


def _call(answer: Connection, home: str, words: list[str]) -> None:
    os.chdir(home)
    out = io.StringIO()
    err = io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = load_command(words[0])(words[1:])
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 1
        except BaseException:
            traceback.print_exc()
            status = 1
    sys.stdout.flush()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    answer.send((int(status), out.getvalue(), err.getvalue(), most))


def wrong_with(ending: Ending) -> str:
    """Describes forbidden behaviour of a command, or returns an empty text."""
    if ending.status is None:
        return ending.err or f"it was not over after {PATIENCE_S:.0f} s"
    if "Traceback" in ending.err + ending.out or "Error: " in ending.err + ending.out:
        return f"a traceback: {(ending.err + ending.out)[-1500:]}"
    if ending.status in (ExitStatus.FAILED_REQUESTS, ExitStatus.BROKEN):
        return f"status {ending.status}: {ending.err[-300:]}"
    if ending.status == ExitStatus.REFUSED and (
        ending.err.count("\n") != 1 or not ending.err.startswith("locust-llm: error: ")
    ):
        return f"not one line: {ending.err[:1500]!r}"
    if ending.megabytes > MOST_MEGABYTES:
        return f"{ending.megabytes:.0f} MB"
    return ""
