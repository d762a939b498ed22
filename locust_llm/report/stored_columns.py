"""Stored columns: the columns of many requests are in temporary files, and take memory only while
something is computed with them."""

import os
import pickle
from io import BytesIO
from tempfile import TemporaryFile
from typing import IO, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

STORED_BYTES: Final = 2**20
"""A column of fewer bytes stays in memory."""
PLACE_BYTES: Final = 8
"""At the end of a sent file is the place of its pickle, in so many bytes."""


class StoredColumn:
    """Values in a file without a name, which ends with its last column."""

    def __init__(self, file: IO[bytes], begin: int, kind: str, count: int) -> None:
        self._file = file
        self._place = begin, kind, count

    def __len__(self) -> int:
        return self._place[2]

    @property
    def values(self) -> NDArray[Any]:
        """They are read from the file again each time, as far as the kernel does not have it."""
        begin, kind, count = self._place
        return np.memmap(self._file, kind, "r", begin, count).view(np.ndarray)


NumberColumn: TypeAlias = NDArray[Any] | StoredColumn


def read_column(column: NumberColumn) -> NDArray[Any]:
    return column.values if isinstance(column, StoredColumn) else column


class GrowingColumn:
    """Values that come block by block. As long as all are equal they take the memory of one."""

    def __init__(self, kind: str) -> None:
        self._kind = np.dtype(kind)
        self._only: NDArray[Any] = np.empty(0, kind)
        """The value that all have so far."""
        self._differ = False
        self._count = 0
        self._waiting = bytearray()
        self._file: IO[bytes] | None = None
        self._stored = 0
        """So many bytes are in the file."""
        self._has_room = True

    def extend(self, values: NDArray[Any]) -> None:
        block = np.ascontiguousarray(values, self._kind)
        if not self._count:
            self._only = block[:1].copy()
        if not self._differ and not _are_all(block, self._only):
            self._differ = True
            self._write(np.repeat(self._only, self._count))
        self._count += len(block)
        if self._differ:
            self._write(block)

    def _write(self, block: NDArray[Any]) -> None:
        self._waiting += block.data
        if self._has_room and len(self._waiting) >= STORED_BYTES:
            self._store()

    def _store(self) -> None:
        """Where no file can be written, the column goes on in memory."""
        try:
            self._file = self._file or open_unnamed()
            self._file.write(self._waiting)
            self._file.flush()
        except OSError:
            self._has_room = False
            if self._file is not None and self._stored:
                stored = os.pread(self._file.fileno(), self._stored, 0)
                self._waiting[:0] = stored
            self._file = None
        else:
            self._stored += len(self._waiting)
            self._waiting.clear()

    def result(self) -> NumberColumn:
        """The column is used up."""
        if not self._differ:
            return np.broadcast_to(self._only, self._count)
        if self._file is not None:
            self._store()
        if self._file is None:
            return np.frombuffer(bytes(self._waiting), self._kind)
        return StoredColumn(self._file, 0, self._kind.str, self._count)


def open_unnamed() -> IO[bytes]:
    """A file that is gone once nobody has it."""
    return TemporaryFile()


def store_column(values: NDArray[Any]) -> NumberColumn:
    column = GrowingColumn(values.dtype.str)
    column.extend(values)
    return column.result()


def _are_all(block: NDArray[Any], value: NDArray[Any]) -> bool:
    """Whether all are this value. NaN is one."""
    return bool((block == value).all() or ((block != block).all() and (value != value).all()))


# -- from process to process -----------------------------------------------------------------------


class _Sender(pickle.Pickler):
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.head = BytesIO()
        super().__init__(self.head, 5)

    def persistent_id(self, value: object) -> tuple[int, str, int] | None:
        if not isinstance(value, StoredColumn):
            return None
        values = value.values
        begin = self._file.tell()
        self._file.write(values.data)
        return begin, values.dtype.str, len(values)


class _Receiver(pickle.Unpickler):
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        super().__init__(file)

    def persistent_load(self, place: tuple[int, str, int]) -> StoredColumn:
        return StoredColumn(self._file, *place)


def send_with_columns(value: object, file: IO[bytes]) -> None:
    """Write it to a file, its stored columns first, so that they stay in this file."""
    sender = _Sender(file)
    sender.dump(value)
    place = file.tell()
    file.write(sender.head.getbuffer())
    file.write(place.to_bytes(PLACE_BYTES, "little"))
    file.flush()


def receive_with_columns(file: IO[bytes]) -> Any:
    """What another process sent. Raises whatever a pickle that is not whole does."""
    file.seek(-PLACE_BYTES, 2)
    file.seek(int.from_bytes(file.read(PLACE_BYTES), "little"))
    return _Receiver(file).load()
