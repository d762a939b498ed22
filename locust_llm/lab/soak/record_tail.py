"""Record tail: the records that a run has written since the last look, while it goes on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from locust_llm.files.regular_file import open_regular
from locust_llm.records.outcomes import RETRIED
from locust_llm.records.profile_export_jsonl import parse_record_line
from locust_llm.records.record import Record
from locust_llm.records.run_facts import RECORDS

MOST_BYTES: Final = 1 << 25
"""So much is read at one look."""


class RecordTail:
    def __init__(self, folder: Path) -> None:
        self._path = folder / RECORDS
        self._read = 0

    def read_new(self) -> Iterator[Record]:
        """Yields the whole records that are new. A line that is not whole waits for the next look."""
        try:
            with open_regular(self._path) as file:
                file.seek(self._read)
                data = file.read(MOST_BYTES)
        except OSError:
            return  # the run has not begun
        end = data.rfind(b"\n") + 1
        self._read += end
        for line in data[:end].splitlines():
            try:
                record = parse_record_line(line)
            except ValueError:
                continue
            if record.outcome != RETRIED:
                yield record
