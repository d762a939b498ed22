"""The outbox: records of a worker on their way to the master; numbered, kept until acknowledged, sent again if not.

Locust's messages may be dropped without a word, so every record has a serial, they leave in batches, and the master takes
each once. Packed, a record is its fields without the chunk stamps (msgpack), and the stamps, 4 bytes each.
"""

import fcntl
import logging
import os
import time
from array import array
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple

import msgspec

from locust_llm.core.record import Record
from locust_llm.run.protocol import Records

# -- the journal -----------------------------------------------------------------------------------------------------

FOLDER: Final = "journal"
"""In the folder of a run."""
EMPTY_AT: Final = 1 << 22
"""Bytes from which on a file is cut, once all in it is delivered."""
_COUNTS: Final = Struct("<QQQ")
_FRAME_HEAD: Final = Struct("<II")


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
        frame = _FRAME_HEAD.pack(serial, len(packed)) + packed
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
    while at + _FRAME_HEAD.size <= len(data):
        serial, length = _FRAME_HEAD.unpack_from(data, at)
        at += _FRAME_HEAD.size
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


logger = logging.getLogger("locust_llm")

BATCH_RECORDS: Final = 200
RESEND_AFTER_S: Final = 3.0
_HEAD: Final = Struct("<IB")
"""How long the fields are, and the type of the stamps."""
_TYPES: Final = b"IQ"
"""Of 4 bytes: up to 71 minutes in microseconds; of 8: of any length."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Record).decode


def pack(record: Record) -> bytes:
    try:
        stamps = array("I", record.chunk_us)
    except OverflowError:
        stamps = array("Q", record.chunk_us)
    fields = _encode(msgspec.structs.replace(record, chunk_us=()))
    return _HEAD.pack(len(fields), ord(stamps.typecode)) + fields + stamps.tobytes()


def unpack(packed: bytes) -> Record:
    """Raises ValueError for what is no record."""
    if len(packed) < _HEAD.size:
        raise ValueError("cut short")
    length, kind = _HEAD.unpack_from(packed)
    at = _HEAD.size + length
    if kind not in _TYPES or at > len(packed):
        raise ValueError("no packed record")
    record = _decode(packed[_HEAD.size : at])
    if at < len(packed):
        stamps = array(chr(kind))
        stamps.frombytes(packed[at:])
        msgspec.structs.force_setattr(record, "chunk_us", tuple(stamps))  # nobody else has it yet
    return record


class Outbox:
    """Of one worker. ``send`` sends a message to the master, which may get lost."""

    def __init__(self, send: Callable[[Records], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._send = send
        self._clock = clock
        self.begin(None)

    def begin(self, journal: Journal | None) -> None:
        """A run begins. ``journal``: what records are kept in until they are delivered."""
        self.journal = journal
        self.kept: Path | None = None
        """Where records are that were not delivered."""
        self._packed: list[bytes] = []
        self._serial = 0
        self._unacknowledged: dict[int, tuple[float, Records]] = {}

    def add(self, record: Record) -> None:
        packed = pack(record)
        self._packed.append(packed)
        self._serial += 1
        if self.journal is not None:
            self._journaled(self.journal.add, self._serial, packed)
        if len(self._packed) >= BATCH_RECORDS:
            self.flush()

    def count(self, admitted: int, begun: int, ended: int) -> None:
        """Requests that the gate let through, and sessions that were begun and have ended, so far."""
        if self.journal is not None:
            self._journaled(self.journal.count, admitted, begun, ended)

    def _journaled(self, write: Callable[..., None], *what: Any) -> None:
        try:
            write(*what)
        except OSError as error:
            logger.warning(f"this worker keeps no more copies of records on disk, so some are lost if it dies: {error}")
            self.journal = None

    def close(self, *, keep: bool) -> None:
        """The run is over. ``keep``: records that were not delivered stay on the disk."""
        if self.journal is not None:
            self.journal.close(keep=keep)
            self.kept = self.journal.path if keep else None
            self.journal = None

    def flush(self) -> None:
        """Send what is there; send again what was not acknowledged in time."""
        now = self._clock()
        if self._packed:
            first = self._serial - len(self._packed) + 1
            batch = Records(first, self._packed)
            self._packed = []
            self._unacknowledged[first] = (now, batch)
            self._send(batch)
        for number, (sent_at, batch) in list(self._unacknowledged.items()):
            if now - sent_at > RESEND_AFTER_S:
                self._unacknowledged[number] = (now, batch)
                self._send(batch)

    def acknowledged(self, number: int) -> None:
        if self._unacknowledged.pop(number, None) is not None and self.journal is not None and not self.waiting:
            self.journal.delivered()

    @property
    def waiting(self) -> int:
        """Records that the master is not known to have."""
        return len(self._packed) + sum(len(batch.packed) for _, batch in self._unacknowledged.values())

    def undelivered(self) -> list[Record]:
        """They themselves."""
        batches = (batch.packed for _, (_, batch) in sorted(self._unacknowledged.items()))
        return [unpack(packed) for batch in (*batches, self._packed) for packed in batch]


class Inbox:
    """The other end: each record of each worker once."""

    def __init__(self) -> None:
        self._below: dict[str, int] = {}
        """By worker: every serial below is here."""
        self._apart: dict[str, set[int]] = {}
        """Those that came before their turn."""

    def take(self, worker: str, frames: Iterable[tuple[int, bytes]]) -> list[Record]:
        """(serial, packed record) of a batch or of a journal: the records that were not here. Raises ValueError for what
        is no record; then none was taken."""
        below, apart = self._below.get(worker, 1), self._apart.setdefault(worker, set())
        came = {serial: unpack(packed) for serial, packed in frames if serial >= below and serial not in apart}
        apart.update(came)
        while below in apart:
            apart.remove(below)
            below += 1
        self._below[worker] = below
        return list(came.values())


def records_of(frames: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Those of a journal up to the first that is no record: a machine that stopped may have written half of it."""
    whole = []
    for serial, packed in frames:
        try:
            unpack(packed)
        except ValueError:
            break
        whole.append((serial, packed))
    return whole


def frames(batch: Records) -> Iterable[tuple[int, bytes]]:
    """Those of a batch."""
    return enumerate(batch.packed, batch.number)
