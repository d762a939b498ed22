"""Report: a folder of records made into a run's files; the same again from yesterday's folder, or as DataFrames.

The stages of a sweep have folders of their own, ``stages/<number>``, each like that of a run. What they came to is made
again from their records, so that the sweep needs nothing else of them; their files only where they are not up to date.
"""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pandas as pd

from . import drawing, export, junit, tables
from .columns import Columns, frames
from .disturbance import Interference
from .folder import RECORDS, RUN, RecordFile, read_run, replace, write_run
from .harvest import harvest
from .interference import interference, sampled_share
from .metrics import DEFINITIONS, summarise
from .occupancy import Occupancy, occupancy
from .page import page
from .run import Run
from .settings import Settings
from .shots import Seen, seen
from .summary import Summary, SweepSummary
from .sweeps import axis_of, sweep_summary
from .timeline import ROWS, scene

PAGE: Final = "report.html"
DRAWING: Final = "timeline.svg"


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
    return _write(folder, run, *harvest(folder / RECORDS))


def remake(folder: Path | str, *, stages: bool = False) -> tuple[Summary, Run]:
    """Make them again, from run.json and the records. Without a readable run.json the records alone must do; what was
    there is kept as run.json.damaged. ``stages``: also those of stages that are up to date."""
    folder = Path(folder)
    columns, broken = harvest(folder / RECORDS)
    run, damage = _run(folder, columns.requests)
    if damage and (folder / RUN).exists():
        os.replace(folder / RUN, folder / f"{RUN}.damaged")
    return _write(folder, run, columns, broken, stages=stages), run


def read(folder: Path | str) -> Results:
    """The records of a run's folder as DataFrames. Writes nothing."""
    folder = Path(folder)
    file = RecordFile(folder / RECORDS)
    requests, gaps = frames(file)
    return Results(requests=requests, gaps=gaps, run=_run(folder, requests)[0], broken_lines=file.broken)


def draw(
    folder: Path | str, start: float | None = None, end: float | None = None, rows: int = ROWS, title: str = ""
) -> str:
    """A timeline of the run as SVG: around its longest stall, or between two moments, in seconds after its start. Raises
    ValueError of one sentence where there is nothing to draw. Writes nothing."""
    folder = Path(folder)
    if not 1 <= rows <= drawing.MOST:
        raise ValueError(f"{rows} requests cannot be shown: 1 to {drawing.MOST} can")
    if not (folder / RECORDS).is_file():
        raise ValueError(f"{folder} holds no run: there is no {RECORDS} in it")
    columns, _ = harvest(folder / RECORDS)
    if columns.requests.empty:
        raise ValueError(f"{folder} holds an empty run: there is no record in its {RECORDS}")
    run, _ = _run(folder, columns.requests)
    span = None if start is None and end is None else _span(columns.requests, run, start, end)
    shown = scene(columns, run, RecordFile(folder / RECORDS).since, span, rows)
    if shown is None or not shown.records:
        raise ValueError(f"there is nothing to draw in {folder}: no request of its profiling phase was sent")
    return drawing.drawing(shown, run, title)


def _span(requests: pd.DataFrame, run: Run, start: float | None, end: float | None) -> tuple[float, float]:
    """What was not said is where the run begins or ends."""
    first, last = (
        float(requests["asked_at"].min()) - run.started_at,
        float(requests["closed_at"].max()) - run.started_at,
    )
    start, end = first if start is None else start, last if end is None else end
    if not (math.isfinite(start) and math.isfinite(end) and start < end):
        raise ValueError(
            f"nothing lies between second {start:g} and {end:g}: this run is from {first:.2f} to {last:.2f}"
        )
    return start, end


def _write(folder: Path, run: Run, columns: Columns, broken_lines: int, *, stages: bool = False) -> Summary:
    sweep = _sweep(folder, run, stages) if run.stages or (run.settings.sweep and run.stage is None) else None
    levels = occupancy(columns.requests, run.limits)
    shots = _shots(folder)
    beside = None if shots or (sweep is not None and not sweep.repeats) else _interference(folder, columns, levels)
    summary = summarise(columns, run, broken_lines, RecordFile(folder / RECORDS), sweep, levels, beside, shots)
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
        good=summary.good,
        steady=summary.steady,
        interference=summary.interference,
        examination=summary.examination,
        sweep=summary.sweep,
        definitions=DEFINITIONS,
    )
    replace(folder / "profile_export_aiperf.json", export.summary_json(summary, run))
    replace(folder / "profile_export_aiperf.csv", export.summary_csv(summary).encode())
    if sweep is not None:
        replace(folder / "sweep.csv", export.sweep_csv(sweep).encode())
    if summary.slos:
        replace(folder / "junit.xml", junit.xml(summary, run))
    else:
        (folder / "junit.xml").unlink(missing_ok=True)  # of rules that the run no longer has
    replace(folder / "summary.md", tables.markdown(summary, run, folder).encode())
    shown = scene(columns, run, RecordFile(folder / RECORDS).since)
    if shown is not None and shown.records:
        replace(folder / DRAWING, drawing.drawing(shown, run).encode())
    else:
        (folder / DRAWING).unlink(missing_ok=True)
    replace(folder / PAGE, page(summary, run, columns, levels, shown).encode())
    return summary


def _sweep(folder: Path, run: Run, again: bool) -> SweepSummary:
    """From the folders of the stages. What is wrong with one is said, and the others count."""
    found, missing = [], []
    for stage in run.stages:
        try:
            found.append(_stage(folder / "stages" / str(stage.number), again))
        except FileNotFoundError:
            why = "its run.json is missing"
        except (OSError, ValueError) as error:
            why = f"its run.json cannot be read ({getattr(error, 'strerror', None) or error})"
        else:
            continue
        missing.append(f"stage {stage.number} ({axis_of(run)} {stage.value:g}) is left out: {why}.")
    return sweep_summary(run, found, missing)


def _stage(folder: Path, again: bool) -> tuple[Run, Summary]:
    """What is known of a stage, and what it came to; its files are made if they are older than that. Raises OSError, and
    ValueError for what is no stage."""
    run = read_run(folder)
    if run.stage is None:
        raise ValueError("it is of no stage")
    columns, broken = harvest(folder / RECORDS)
    if again or not _up_to_date(folder):
        return run, _write(folder, run, columns, broken)
    levels = occupancy(columns.requests, run.limits)
    beside = _interference(folder, columns, levels)
    return run, summarise(columns, run, broken, RecordFile(folder / RECORDS), None, levels, beside)


def _interference(folder: Path, columns: Columns, levels: Occupancy) -> Interference | None:
    """From the records, read a second time: which gap is disturbed is known only when all prefills are."""
    return interference(columns, levels, RecordFile(folder / RECORDS).evenly(sampled_share(columns)))


def _shots(folder: Path) -> list[Seen]:
    """All requests of a probe; of another run nothing but its first record is read."""
    records = RecordFile(folder / RECORDS)
    first = next(iter(records), None)
    if first is None or seen(first) is None:
        return []
    return [shot for record in records if (shot := seen(record)) is not None]


def _up_to_date(folder: Path) -> bool:
    """The page, which is made last, is no older than what it is made of."""
    try:
        made = (folder / PAGE).stat().st_mtime_ns
        return all((folder / name).stat().st_mtime_ns <= made for name in (RECORDS, RUN))
    except OSError:
        return False


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
