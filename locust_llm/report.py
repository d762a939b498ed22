"""Report: a folder of records made into a run's files; the same again from yesterday's folder, or as DataFrames."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pandas as pd

from . import export, tables
from .columns import Columns, collect, frames
from .metrics import DEFINITIONS, summarise
from .occupancy import occupancy
from .page import page
from .record import Record
from .run import Run
from .settings import Settings
from .summary import Summary

RECORDS: Final = "profile_export.jsonl"
RUN: Final = "run.json"


@dataclass(frozen=True)
class Results:
    """A run as DataFrames; ``columns.frames`` says what they hold."""

    requests: pd.DataFrame
    gaps: pd.DataFrame
    run: Run
    broken_lines: int


class RecordFile:
    """The records of a profile_export.jsonl, one by one. A line that holds none (half-written when the process was
    killed, damaged) is passed over; ``broken`` counts them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.broken = 0

    def __iter__(self) -> Iterator[Record]:
        if not self.path.exists():
            return
        with self.path.open("rb") as lines:
            for line in lines:
                try:
                    yield export.parse_line(line)
                except ValueError:
                    self.broken += bool(line.strip())


def write(folder: Path | str, run: Run) -> Summary:
    """Make every file of a run's folder from its profile_export.jsonl and what is known of the run."""
    folder = Path(folder)
    file = RecordFile(folder / RECORDS)
    return _write(folder, run, collect(file), file.broken)


def remake(folder: Path | str) -> Summary:
    """Make them again, from run.json and the records. Without a readable run.json the records alone must do; what was
    there is kept as run.json.damaged."""
    folder = Path(folder)
    file = RecordFile(folder / RECORDS)
    columns = collect(file)
    run, damage = _run(folder, columns.requests)
    if damage and (folder / RUN).exists():
        os.replace(folder / RUN, folder / f"{RUN}.damaged")
    return _write(folder, run, columns, file.broken)


def read(folder: Path | str) -> Results:
    """The records of a run's folder as DataFrames. Writes nothing."""
    folder = Path(folder)
    file = RecordFile(folder / RECORDS)
    requests, gaps = frames(file)
    return Results(requests=requests, gaps=gaps, run=_run(folder, requests)[0], broken_lines=file.broken)


def write_run(folder: Path | str, run: Run, **more: Any) -> None:
    """run.json: the run under ``run``, and ``more``. Worth writing before the load, in case nothing comes after it."""
    data = msgspec.json.encode({"run": run, **more})
    _replace(Path(folder) / RUN, msgspec.json.format(data, indent=2) + b"\n")


def _write(folder: Path, run: Run, columns: Columns, broken_lines: int) -> Summary:
    summary = summarise(columns, run, broken_lines)
    write_run(
        folder,
        run,
        conditions=summary.conditions,
        counts=summary.counts,
        gate=summary.gate,
        failures=summary.failures,
        definitions=DEFINITIONS,
    )
    _replace(folder / "profile_export_aiperf.json", export.summary_json(summary, run))
    _replace(folder / "profile_export_aiperf.csv", export.summary_csv(summary).encode())
    _replace(folder / "summary.md", tables.markdown(summary, run, folder).encode())
    levels = occupancy(columns.requests, run.limits)
    _replace(folder / "report.html", page(summary, run, columns.requests, levels).encode())
    return summary


def _run(folder: Path, requests: pd.DataFrame) -> tuple[Run, bool]:
    """What run.json says, or what can be told without it, and whether that was so."""
    try:
        return msgspec.json.decode((folder / RUN).read_bytes(), type=_RunFile).run, False
    except FileNotFoundError:
        why = "run.json is missing"
    except (OSError, ValueError) as error:
        why = f"run.json cannot be read ({error})"
    began = float(requests["asked_at"].min()) if len(requests) else 0.0
    models = requests["model"].astype(str).unique().tolist()
    run = Run(
        name=folder.resolve().name,
        settings=Settings(),
        started_at=began,
        profiling_at=began,
        model=" ".join(models),
        notes=(f"WARNING: {why}: settings, server and limits of this run are unknown, the figures are not.",),
    )
    return run, True


class _RunFile(msgspec.Struct):
    run: Run


def _replace(path: Path, data: bytes) -> None:
    """All of it or nothing: whoever reads the file sees the old one or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(data)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
