"""Report: a folder of records made into a run's files; the same again from yesterday's folder, or as DataFrames."""

import os
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from . import export, junit, tables
from .columns import Columns, collect, frames
from .folder import RECORDS, RUN, RecordFile, read_run, replace, write_run
from .metrics import DEFINITIONS, summarise
from .occupancy import occupancy
from .page import page
from .run import Run
from .settings import Settings
from .summary import Summary


@dataclass(frozen=True)
class Results:
    """A run as DataFrames; ``columns.frames`` says what they hold."""

    requests: pd.DataFrame
    gaps: pd.DataFrame
    run: Run
    broken_lines: int


def write(folder: Path | str, run: Run) -> Summary:
    """Make every file of a run's folder from its profile_export.jsonl and what is known of the run."""
    folder = Path(folder)
    file = RecordFile(folder / RECORDS)
    return _write(folder, run, collect(file), file.broken)


def remake(folder: Path | str) -> tuple[Summary, Run]:
    """Make them again, from run.json and the records. Without a readable run.json the records alone must do; what was
    there is kept as run.json.damaged."""
    folder = Path(folder)
    file = RecordFile(folder / RECORDS)
    columns = collect(file)
    run, damage = _run(folder, columns.requests)
    if damage and (folder / RUN).exists():
        os.replace(folder / RUN, folder / f"{RUN}.damaged")
    return _write(folder, run, columns, file.broken), run


def read(folder: Path | str) -> Results:
    """The records of a run's folder as DataFrames. Writes nothing."""
    folder = Path(folder)
    file = RecordFile(folder / RECORDS)
    requests, gaps = frames(file)
    return Results(requests=requests, gaps=gaps, run=_run(folder, requests)[0], broken_lines=file.broken)


def _write(folder: Path, run: Run, columns: Columns, broken_lines: int) -> Summary:
    summary = summarise(columns, run, broken_lines, RecordFile(folder / RECORDS))
    write_run(
        folder,
        run,
        conditions=summary.conditions,
        client=summary.client,
        evidence=summary.evidence,
        counts=summary.counts,
        gate=summary.gate,
        delivery=summary.delivery,
        breakdowns=summary.breakdowns,
        cancelled=summary.cancelled,
        failures=summary.failures,
        slos=summary.slos,
        slo_status=summary.slo_status,
        definitions=DEFINITIONS,
    )
    replace(folder / "profile_export_aiperf.json", export.summary_json(summary, run))
    replace(folder / "profile_export_aiperf.csv", export.summary_csv(summary).encode())
    if summary.slos:
        replace(folder / "junit.xml", junit.xml(summary, run))
    else:
        (folder / "junit.xml").unlink(missing_ok=True)  # of rules that the run no longer has
    replace(folder / "summary.md", tables.markdown(summary, run, folder).encode())
    levels = occupancy(columns.requests, run.limits)
    replace(folder / "report.html", page(summary, run, columns.requests, levels).encode())
    return summary


def _run(folder: Path, requests: pd.DataFrame) -> tuple[Run, bool]:
    """What run.json says, or what can be told without it, and whether that was so."""
    try:
        return read_run(folder), False
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
