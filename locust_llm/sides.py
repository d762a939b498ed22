"""Sides: runs that are to be compared, as far as their folders can be read."""

from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from .columns import collect
from .delivery import delivery
from .figures import Seen
from .folder import RECORDS, RUN, RecordFile, decoded, read_run
from .parts import Part
from .run import Run, Stage
from .settings import Settings
from .steady import Time, ended_in, measured, pauses
from .verdict import Verdict

SCHEMA: Final = 1
"""Of run.json, the one that this program writes."""
FIRST: Final = 3
"""Of so many lines that cannot be read it is said why."""


class Side(NamedTuple):
    """A run to be compared."""

    folder: Path
    seen: Seen
    known: bool = True
    """Its run.json could be read: else nothing but its records is known of it."""
    notes: tuple[str, ...] = ()
    """What is wrong with it."""


class _Facts(msgspec.Struct):
    run: Run
    client: Verdict | None = None


def load(folder: Path) -> Side:
    """A run from its folder, as far as it can be read. Raises ValueError of one sentence where there are no records."""
    file = RecordFile(folder / RECORDS)
    if not file.path.is_file():
        raise ValueError(f"{folder} holds no run: there is no {RECORDS} in it")
    columns, notes = collect(file), list[str]()
    if columns.requests.empty:
        raise ValueError(f"{folder} holds an empty run: there is no record in its {RECORDS}")
    if file.unread.count:
        first = "; ".join(file.unread.said[:FIRST])
        notes.append(f"lines of {RECORDS} that could not be read, and are left out: {file.unread.count} ({first})")
    everything = Part(columns.requests, np.ones(len(columns.requests), np.bool_))
    main = everything.only(columns.requests["phase"] == "profiling")
    try:
        facts, known = decoded(folder / RUN, _Facts), True
    except (OSError, ValueError) as error:
        why = f"cannot be read ({getattr(error, 'strerror', None) or error})"
        if isinstance(error, FileNotFoundError):
            why = "is missing"
        notes.append(f"{RUN} {why}: its settings and its client verdict are unknown")
        facts, known = _Facts(Run(name=folder.name, settings=Settings(), started_at=0.0, profiling_at=0.0)), False
    run = facts.run
    if run.schema != SCHEMA:
        notes.append(f"{RUN} is of schema {run.schema}, this program knows {SCHEMA}: something may be misread")
    if known and run.stopping_at is None:
        notes.append("the run did not end in order: what was still running is missing")
    notes += run.unread
    if run.records_lost:
        notes.append(f"records of workers that never arrived: {run.records_lost}")
    if (within := measured(run)) is None:
        time, ended = Time(main.span(), tuple(pauses(main, run)) if run.settings.repeats > 1 else ()), main
    else:
        time, ended = Time(within), ended_in(everything, within)
    seen = Seen(main, run, facts.client, delivery(main, run, facts.client), RecordFile(file.path), ended, time)
    return Side(folder, seen, known, tuple(notes))


def partner(folder: Path, run: Run) -> Side | None:
    """Of a run in the folder of its base: all of it, or where that has stages, the one of the same value; None: it has
    none. Raises ValueError of one sentence for what cannot be a base."""
    if run.stage is not None and (stages := _stages(folder)):
        numbers = [stage.number for stage in stages if stage.value == run.stage.value]
        if not numbers:
            return None
        folder = folder / "stages" / str(numbers[0])
    return _base(folder, *((folder / name).stat().st_mtime_ns for name in (RECORDS, RUN) if (folder / name).exists()))


def _stages(folder: Path) -> tuple[Stage, ...]:
    try:
        return read_run(folder).stages
    except (OSError, ValueError):  # what is wrong with it is said when it is loaded
        return ()


@lru_cache(maxsize=2)
def _base(folder: Path, *_changed_at: int) -> Side:
    side = load(folder)
    if side.notes:
        raise ValueError(f"{folder}: {side.notes[0]}")
    return side
