"""Record writer: writes the records of a run, or of a stage, as lines of JSON and as parts of
Parquet.

Each record is a line first. With profile_export.jsonl, the lines stay. Without it they go into a
file for each part, which is removed when the part is whole; profile_export.jsonl is then empty, as
its lock shows that the run is on, and as records that are found later are added to it.
"""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from locust_llm.files.buffered_file import BufferedFile

from .profile_export_jsonl import EncodedRecord
from .record_parts import LINES, PARTS, WaitingRows, name_part, write_part
from .run_facts import RECORDS


def _go_on() -> None:
    """No pause is needed."""


class RecordWriter:
    """Raises OSError only when it is made."""

    def __init__(self, folder: Path, *, jsonl: bool) -> None:
        """``jsonl``: write profile_export.jsonl."""
        self._folder, self._jsonl = folder, jsonl
        self._next = 1
        """The number of the next part."""
        self._lines = BufferedFile(folder / RECORDS)
        """The lines of the records that are in no part yet, and with ``jsonl`` of all others."""
        if not jsonl:
            self._lines.close()
            (folder / PARTS).mkdir(exist_ok=True)
            self._lines = BufferedFile(self._name_lines())
        self._rows = WaitingRows()
        self._begin = self._end = 0
        """The bytes in profile_export.jsonl where the lines of the waiting rows begin and end."""
        self._packing = False
        self.without_parts = ""
        """Why no more parts are written. Empty: they are."""

    @property
    def lines(self) -> BufferedFile:
        """The file of lines that is written now."""
        return self._lines

    @property
    def closed(self) -> bool:
        return self._lines.closed

    @property
    def empty(self) -> bool:
        """No record was written."""
        return not self._end

    def write(self, encoded: EncodedRecord) -> None:
        """Never raises for the disk: what it does not take waits."""
        record, line = encoded
        self._lines.write(line)
        self._end += len(line) + 1
        if not self.without_parts:
            self._rows.add(record)

    def flush(self) -> bool:
        """Whether all lines are on the disk, as far as the kernel knows."""
        return self._lines.flush()

    def pack_rows(self, pause: Callable[[], object] = _go_on, *, last: bool = False) -> None:
        """Make a part of the waiting rows, if they are enough for one. ``last``: no more come, so a
        run with parts, or without profile_export.jsonl, has all its records in them. ``pause`` is
        called after each millisecond's work; records may be written meanwhile."""
        enough = self._rows.full or (last and len(self._rows) > 0 and self._has_parts)
        if self.without_parts or self._packing or not enough or not self._lines.flush():
            return
        rows, lines = self._rows, self._lines
        span = self._begin, self._end
        path = name_part(self._folder, self._next)
        self._packing = True
        try:
            self._begin_next(path)
            write_part(path, rows, span if self._jsonl else (0, 0), pause)
            if not self._jsonl:
                lines.path.unlink(missing_ok=True)
        except (OSError, ValueError, OverflowError) as error:
            # the lines have these records
            self.without_parts = getattr(error, "strerror", None) or str(error)
            self._rows = WaitingRows()
        finally:
            self._packing = False

    def _begin_next(self, path: Path) -> None:
        """What comes from now on belongs to the part after this one."""
        path.parent.mkdir(exist_ok=True)
        self._rows = WaitingRows()
        self._begin = self._end
        self._next += 1
        if not self._jsonl:
            following = BufferedFile(self._name_lines())
            self._lines.close()
            self._lines = following

    @property
    def _has_parts(self) -> bool:
        return not self._jsonl or self._next > 1

    def _name_lines(self) -> Path:
        return name_part(self._folder, self._next).with_suffix(LINES)

    def restore(self) -> bool:
        """Whether the lines had been deleted. Then they are made anew, from what the kernel still
        has of them. Raises OSError, also where parts are lost."""
        restored = self._lines.restore()
        if restored and not self._jsonl and self._next > 1:
            raise OSError(f"only those since part {self._next - 1} are left")
        return restored

    def close(self) -> None:
        self._lines.close()
        if not self._jsonl and not len(self._rows) and not self.without_parts:
            with suppress(OSError):
                self._lines.path.unlink()  # it is empty


def remove_records(folder: Path) -> None:
    """Remove all records of a folder. Raises OSError."""
    (folder / RECORDS).unlink(missing_ok=True)
    if (folder / PARTS).exists():
        shutil.rmtree(folder / PARTS)
