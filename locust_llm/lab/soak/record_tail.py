"""Record tail: the records that a run has written since the last look, while it goes on."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from locust_llm.files.regular_file import open_regular
from locust_llm.records.outcomes import RETRIED
from locust_llm.records.profile_export_jsonl import parse_record_line
from locust_llm.records.record import Record
from locust_llm.records.record_parts import LINES, RecordPart, name_part
from locust_llm.records.run_facts import RECORDS

MOST_BYTES: Final = 1 << 25
"""So much is read at one look."""


class RecordTail:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = LineTail(folder / RECORDS)
        self._number = 1
        """The part that is read, where the run writes no profile_export.jsonl."""
        self._lines = self._open_lines()
        self._copies = False
        """The parts have the records of profile_export.jsonl."""

    def read_new(self) -> Iterator[Record]:
        """Yields the whole records that are new. A line that is not whole waits for the next look."""
        for record in self._read_all():
            if record.outcome != RETRIED:
                yield record

    def _read_all(self) -> Iterator[Record]:
        yield from self._file.read_new()
        if not self._copies:
            yield from self._lines.read_new()
        while not self._copies and name_part(self._folder, self._number).exists():
            part = RecordPart(name_part(self._folder, self._number))
            self._copies = part.lines_end > 0
            if not self._copies:
                yield from part.records(range(self._lines.count, part.rows))
                self._number += 1
                self._lines = self._open_lines()
                yield from self._lines.read_new()

    def _open_lines(self) -> "LineTail":
        return LineTail(name_part(self._folder, self._number).with_suffix(LINES))


class LineTail:
    """The new lines of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.count = 0
        """The lines so far."""

    def read_new(self) -> Iterator[Record]:
        try:
            with open_regular(self._path) as file:
                file.seek(self._read)
                data = file.read(MOST_BYTES)
        except OSError:
            return  # the run has not begun
        end = data.rfind(b"\n") + 1
        self._read += end
        for line in data[:end].splitlines():
            self.count += 1
            with suppress(ValueError):
                yield parse_record_line(line)
