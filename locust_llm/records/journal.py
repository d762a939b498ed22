"""Journal: the lines of a worker's records on the disk, until the master has them; and the lock on a
run's records."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from locust_llm.files.regular_file import open_regular

from .profile_export_jsonl import MAX_RECORD_BYTES, decode_record
from .record import Record

JOURNALS: Final = "journal"
"""The name of the folder of journals, in the folder of a run."""
EMPTY_AT: Final = 1 << 22
"""From so many bytes on, a file whose content is all delivered is emptied."""
MAX_REQUESTS: Final = 1 << 40
"""No worker sends so many: a count above it is not believed."""
_COUNTS: Final = Struct("<QQQ")
_CHECKSUM: Final = Struct("<I")
_HEAD_BYTES: Final = _COUNTS.size + _CHECKSUM.size
_FRAME_HEAD: Final = Struct("<II")


class Journal:
    """The end that writes. Raises OSError when it is made, and when the disk is full."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._end = _HEAD_BYTES
        self._counts = JournalCounts(0, 0, 0)
        os.pwrite(self._file, _format_head(self._counts), 0)

    def count(self, admitted: int, begun: int, ended: int) -> None:
        if (admitted, begun, ended) != self._counts:
            self._counts = JournalCounts(admitted, begun, ended)
            os.pwrite(self._file, _format_head(self._counts), 0)

    def add(self, serial: int, line: bytes) -> None:
        frame = _FRAME_HEAD.pack(serial, len(line)) + line
        if os.pwrite(self._file, frame, self._end) < len(frame):
            raise OSError("no space left for a record")
        self._end += len(frame)

    def delivered(self) -> None:
        """Note that all its content is delivered."""
        if self._end > EMPTY_AT:
            os.ftruncate(self._file, _HEAD_BYTES)
            self._end = _HEAD_BYTES

    def close(self, *, keep: bool) -> None:
        """``keep``: something in it is not delivered."""
        os.close(self._file)
        if not keep:
            self.path.unlink(missing_ok=True)
            with suppress(OSError):
                self.path.parent.rmdir()  # when it was the last


class JournalCounts(NamedTuple):
    """The requests that the gate admitted, and the sessions that have begun and ended."""

    admitted: int
    begun: int
    ended: int


def _format_head(counts: JournalCounts) -> bytes:
    packed = _COUNTS.pack(*counts)
    return packed + _CHECKSUM.pack(crc32(packed))


def read_journal_head(path: Path) -> JournalCounts:
    """Raises OSError, and ValueError where it is damaged: a machine without power may leave an
    empty file."""
    with open_regular(path) as file:
        head = file.read(_HEAD_BYTES)
    if not head:
        raise ValueError("it is empty")
    if len(head) < _HEAD_BYTES:
        raise ValueError("it ends in its head")
    counts = JournalCounts(*_COUNTS.unpack_from(head))
    if head != _format_head(counts) or max(counts) > MAX_REQUESTS:
        raise ValueError("its counts are damaged")
    return counts


def read_journal_counts(path: Path) -> JournalCounts | None:
    """None: there is no journal, or its head cannot be read."""
    with suppress(OSError, ValueError):
        return read_journal_head(path)
    return None


def read_journal_frames(path: Path) -> Iterator[tuple[int, bytes]]:
    """(serial, line) of each whole record that a journal holds when it is opened.

    They come one at a time: a worker that was cut off for hours has written more than should lie in
    memory.
    """
    with suppress(OSError), open_regular(path) as file:
        end = os.fstat(file.fileno()).st_size
        at = file.seek(_HEAD_BYTES)
        while len(head := file.read(_FRAME_HEAD.size)) == _FRAME_HEAD.size:
            serial, length = _FRAME_HEAD.unpack(head)
            at += _FRAME_HEAD.size + length
            if not length or length > MAX_RECORD_BYTES or at > end:
                return
            line = file.read(length)
            if len(line) < length:
                return
            yield serial, line


def lock_file(path: Path) -> int | None:
    """The lock of a file, which lasts until the descriptor is closed or the process ends. None:
    another process has it, or there is no such file.

    The process with the lock of a run's records is its control.
    """
    if not path.is_file():  # to open a device may already do something
        return None
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file


def is_locked(path: Path) -> bool:
    """Whether some process has the lock of a file: of a run's records, that the run is on."""
    try:
        file = open_regular(path)
    except OSError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return False


def read_journal_records(path: Path) -> Iterator[Record]:
    """The records of a journal up to the first invalid one: a machine that stopped may have written
    half of it."""
    for _, line in read_journal_frames(path):
        try:
            record, _ = decode_record(line)
        except ValueError:
            return
        yield record
