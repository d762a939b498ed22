"""The journal: records of a worker on its own disk until they are delivered, so that they outlive the process.

A file: three counts (requests that the gate let through, sessions of the phase that were begun, and that have ended; 8
bytes each, little endian), then a frame a record: its serial and its length (4 bytes each), and the packed record. What
was written is with the kernel, so only a crash of the machine can lose it.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

FOLDER: Final = "journal"
"""In the folder of a run."""
EMPTY_AT: Final = 1 << 22
"""Bytes from which on a file is cut, once all in it is delivered."""
_COUNTS: Final = Struct("<QQQ")
_HEAD: Final = Struct("<II")


class Journal:
    """The owner's end. Raises OSError when it is made, and when the disk is full."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._end = _COUNTS.size
        self._counts = (0, 0, 0)
        os.pwrite(self._file, _COUNTS.pack(0, 0, 0), 0)

    def count(self, admitted: int, begun: int, ended: int) -> None:
        """Requests and sessions so far."""
        if (admitted, begun, ended) != self._counts:
            self._counts = admitted, begun, ended
            os.pwrite(self._file, _COUNTS.pack(admitted, begun, ended), 0)

    def add(self, serial: int, packed: bytes) -> None:
        """A record."""
        frame = _HEAD.pack(serial, len(packed)) + packed
        if os.pwrite(self._file, frame, self._end) < len(frame):
            raise OSError("no space left for a record")
        self._end += len(frame)

    def delivered(self) -> None:
        """All that is in it."""
        if self._end > EMPTY_AT:
            os.ftruncate(self._file, _COUNTS.size)
            self._end = _COUNTS.size

    def close(self, *, keep: bool) -> None:
        """``keep``: something in it was not delivered."""
        os.close(self._file)
        if not keep:
            self.path.unlink(missing_ok=True)
            with suppress(OSError):
                self.path.parent.rmdir()  # when it was the last


class Journaled(NamedTuple):
    """What a journal holds."""

    admitted: int
    begun: int
    ended: int
    frames: list[tuple[int, bytes]]
    """(serial, packed record), up to the first that is not whole."""


def read(path: Path) -> Journaled | None:
    """None where there is none."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) < _COUNTS.size:
        return Journaled(0, 0, 0, [])
    frames, at = [], _COUNTS.size
    while at + _HEAD.size <= len(data):
        serial, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if not length or at + length > len(data):
            break
        frames.append((serial, data[at : at + length]))
        at += length
    admitted, begun, ended = _COUNTS.unpack_from(data)
    return Journaled(admitted, begun, ended, frames)


def lock(path: Path) -> int | None:
    """The lock of a file, which lasts until what is given is closed, or the process ends. None where another has it, or
    there is no such file. Who has that of a run's records is its control."""
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
