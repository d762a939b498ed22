"""Recover journals: a run has no end in its run.json, as its control was killed, say. The records in
its workers' journals are added to its own. What is lost is counted, and a journal that cannot be read
is named."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from locust_llm.records.journal import (
    JOURNALS,
    lock_file,
    read_journal_head,
    read_journal_records,
)
from locust_llm.records.profile_export_jsonl import RecordAppender, RecordFile
from locust_llm.records.record import Record
from locust_llm.records.run_facts import NO_END, RECORDS, Run, read_run, write_run
from locust_llm.text.format import clean_line, format_count

WARNING: Final = "WARNING: "
CANNOT_BE_READ: Final = " cannot be read ("
"""A text on a journal that is damaged begins with its name and this."""


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
    run = None
    with suppress(OSError, ValueError):  # the report names what is wrong with it
        run = read_run(folder)
    journals = _Journals(folder)
    with ExitStack() as opened:
        files = _RecordFiles(folder, opened)
        for path in journals.paths:
            new = sum(files.add(record) for record in read_journal_records(path))
            journals.added[path.name] = new
    if run is None or run.imported or run.stage is not None:
        return
    changed = (
        _add_late(run, journals) if run.ended_at is not None else _add_losses(run, folder, journals)
    )
    if changed != run:
        write_run(folder, changed)


class _Journals:
    """The journals of a run by their names, which are those of its workers."""

    def __init__(self, folder: Path) -> None:
        self.paths: list[Path] = []
        self.admitted: dict[str, int] = {}
        """The requests that a worker had sent."""
        self.unread: list[str] = []
        """A text on each that cannot be read."""
        self.added = Counter[str]()
        """The new records."""
        try:
            self.paths = sorted((folder / JOURNALS).iterdir())
        except FileNotFoundError:
            return
        except OSError as error:
            self.unread.append(f"{JOURNALS}{CANNOT_BE_READ}{_explain(error)})")
        for path in self.paths:
            try:
                self.admitted[path.name] = read_journal_head(path).admitted
            except (OSError, ValueError) as error:
                self.unread.append(f"{_begin_unread(path.name)}{_explain(error)})")


def _begin_unread(name: str) -> str:
    return f"{JOURNALS}/{clean_line(name)}{CANNOT_BE_READ}"


def _explain(error: OSError | ValueError) -> str:
    return clean_line(getattr(error, "strerror", None) or str(error))


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


def _add_late(run: Run, journals: _Journals) -> Run:
    """The run, after records came late. Its master had counted what was lost."""
    added = journals.added.total()
    unread = (f"{WARNING}{text}: its records were not added" for text in journals.unread)
    return replace(
        run,
        records_lost=max(0, run.records_lost - added),
        notes=_add_new(_note_added(_drop_read(run.notes, journals), added), unread),
    )


def _add_losses(run: Run, folder: Path, journals: _Journals) -> Run:
    """The run, which lost more than its master had counted: what its last workers had sent and has
    no record."""
    lost = run.records_lost
    unread = _drop_read(run.unread, journals)
    uncounted = journals.admitted
    if run.has_no_end:  # a report before has counted all but the journals that it could not read
        uncounted = {
            name: admitted
            for name, admitted in journals.admitted.items()
            if _is_unread(name, run.unread)
        }
        late = journals.admitted.keys() - uncounted.keys()
        lost = max(0, lost - sum(journals.added[name] for name in late))
    else:
        unread = (*unread, NO_END)
    if uncounted:
        lost += _count_unrecorded(folder, uncounted)
    news = (
        f"{text}: how many requests of its worker are lost is unknown" for text in journals.unread
    )
    return replace(
        run,
        records_lost=lost,
        unread=_add_new(unread, news),
        notes=_note_added(run.notes, journals.added.total()),
    )


def _count_unrecorded(folder: Path, admitted: Mapping[str, int]) -> int:
    """The requests without a record of the workers that had sent so many."""
    recorded = Counter(
        record.worker for record in RecordFile(folder / RECORDS) if record.admitted_at is not None
    )
    return sum(max(0, count - recorded[worker]) for worker, count in admitted.items())


def _is_unread(name: str, texts: Iterable[str]) -> bool:
    """Whether one of the texts is that a journal cannot be read."""
    return any(text.startswith(_begin_unread(name)) for text in texts)


def _drop_read(texts: Iterable[str], journals: _Journals) -> tuple[str, ...]:
    """The texts without those on journals that can be read now."""
    begins = tuple(map(_begin_unread, journals.admitted))
    return tuple(text for text in texts if not text.removeprefix(WARNING).startswith(begins))


def _add_new(texts: Sequence[str], more: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*texts, *more)))


def _note_added(notes: tuple[str, ...], added: int) -> tuple[str, ...]:
    if not added:
        return notes
    return (
        *notes,
        f"{format_count(added, 'record')} that had not reached the master were found in the "
        "journals of its workers",
    )
