"""Recover journals: a run has no end in its run.json, as its control was killed, say. The records in
its workers' journals are added to its own."""

import os
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

from msgspec.structs import replace

from locust_llm.records.journal import (
    JOURNALS,
    lock_file,
    read_journal_counts,
    read_journal_records,
)
from locust_llm.records.profile_export_jsonl import RecordAppender, RecordFile
from locust_llm.records.record import Record
from locust_llm.records.run_facts import NO_END, RECORDS, Run, read_run, write_run
from locust_llm.text.format import format_count


def add_journaled(folder: Path) -> None:
    """Complete the records of a run whose control is dead, from its workers' journals in its
    folder. A run that is complete, or goes on, stays as it is. Each record counts once, however
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
    counts_of = {path.name: read_journal_counts(path) for path in journals}
    admitted = {name: counts.admitted for name, counts in counts_of.items() if counts is not None}
    with ExitStack() as opened:
        files = _RecordFiles(folder, opened)
        added = 0
        for path in journals:
            added += sum(files.add(record) for record in read_journal_records(path))
    if run is None or run.imported or run.stage is not None:
        return
    changed = (
        _ended(run, added)
        if run.ended_at is not None
        else _add_losses(run, folder, added, admitted)
    )
    if changed != run:
        write_run(folder, changed)


class _RecordFiles:
    """The existing record files of a run and of its stages."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        self._folder, self._opened = folder, opened
        self._appenders: dict[Path, RecordAppender] = {}

    def add(self, record: Record) -> bool:
        """False: the run had it."""
        if record.stage:
            self._append(self._folder / "stages" / str(record.stage) / RECORDS, record)
        return self._append(self._folder / RECORDS, record)

    def _append(self, path: Path, record: Record) -> bool:
        if path not in self._appenders:
            if not path.is_file():
                return False
            self._appenders[path] = self._opened.enter_context(RecordAppender(path))
        return self._appenders[path].add(record)


def _ended(run: Run, added: int) -> Run:
    """The run, after records came late."""
    return (
        replace(run, records_lost=max(0, run.records_lost - added), notes=_notes(run, added))
        if added
        else run
    )


def _add_losses(run: Run, folder: Path, added: int, admitted: dict[str, int]) -> Run:
    """The run, which lost more than its master had counted: what its last workers had sent and has
    no record."""
    if run.has_no_end:  # this was done before
        return _ended(run, added)
    recorded = Counter(
        record.worker for record in RecordFile(folder / RECORDS) if record.admitted_at is not None
    )
    lost = run.records_lost + sum(
        max(0, count - recorded[worker]) for worker, count in admitted.items()
    )
    return replace(run, records_lost=lost, unread=(*run.unread, NO_END), notes=_notes(run, added))


def _notes(run: Run, added: int) -> tuple[str, ...]:
    if not added:
        return run.notes
    return (
        *run.notes,
        f"{format_count(added, 'record')} that had not reached the master were found in the "
        "journals of its workers",
    )
