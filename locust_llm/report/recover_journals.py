"""A run that was killed with its control: what its workers had kept in their journals is added to
its records."""

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from locust_llm.records.journal import (
    JOURNALS,
    lock_file,
    read_journal,
    select_intact_records,
    unpack_record,
)
from locust_llm.records.record import Record
from locust_llm.records.run import Run
from locust_llm.records.storage import RECORDS, RecordFile, add_records, read_run, write_run
from locust_llm.text.format import format_count

KILLED: Final = "the run has no end, as its load generator was killed"


def add_journaled(folder: Path) -> None:
    """Complete the records of a run whose control is dead, as far as its workers' journals are in
    its folder; one that is complete, or goes on, stays as it is. Each record counts once, however
    often this is done. Raises OSError."""
    held = lock_file(folder / RECORDS)
    if held is None:  # its control lives, or a worker adds its own
        return
    try:
        _add(folder)
    finally:
        os.close(held)


def _add(folder: Path) -> None:
    journals = sorted(path for path in (folder / JOURNALS).glob("*") if path.is_file())
    run = None
    with suppress(OSError, ValueError):  # the report names what is wrong with it
        run = read_run(folder)
    admitted, journaled = Counter[str](), list[Record]()
    for path in journals:
        found = read_journal(path)
        if found is not None:
            admitted[path.name] = found.admitted
            journaled += [
                unpack_record(packed) for _, packed in select_intact_records(found.frames)
            ]
    added = add_records(folder / RECORDS, journaled) if journaled else 0
    for number in {record.stage for record in journaled if record.stage}:
        stage = folder / "stages" / str(number) / RECORDS
        if stage.is_file():
            add_records(stage, (record for record in journaled if record.stage == number))
    if run is None or run.imported or run.stage is not None:
        return
    changed = (
        _ended(run, added) if run.ended_at is not None else _killed(run, folder, added, admitted)
    )
    if changed != run:
        write_run(folder, changed)


def _ended(run: Run, added: int) -> Run:
    """Records came after all."""
    return (
        replace(run, records_lost=max(0, run.records_lost - added), notes=_notes(run, added))
        if added
        else run
    )


def _killed(run: Run, folder: Path, added: int, admitted: Counter[str]) -> Run:
    """Beside what its master had counted until then it has lost what its last workers had sent, and
    has no record."""
    if KILLED in run.unread:  # this was done before
        return _ended(run, added)
    recorded = Counter(
        record.worker for record in RecordFile(folder / RECORDS) if record.admitted_at is not None
    )
    lost = run.records_lost + sum(
        max(0, count - recorded[worker]) for worker, count in admitted.items()
    )
    return replace(run, records_lost=lost, unread=(*run.unread, KILLED), notes=_notes(run, added))


def _notes(run: Run, added: int) -> tuple[str, ...]:
    if not added:
        return run.notes
    return (
        *run.notes,
        f"{format_count(added, 'record')} that had not reached the master were found in its "
        f"workers' journals",
    )
