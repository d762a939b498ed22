"""Dataset rows: a file of JSONL, CSV or one JSON list, plain or gzip, as rows with their places:
streamed, or by an index.

A stream holds one row at a time. For a JSON list it maps the file and holds 65 bytes a row. gzip is
unpacked to a temporary file where rows are needed by their place.
"""

import codecs
import gzip
import os
import re
import tempfile
import zlib
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from mmap import ACCESS_READ, mmap
from typing import BinaryIO, Final, NamedTuple, cast
from weakref import finalize

import msgspec

from locust_llm.files.regular_file import UTF_MARKS
from locust_llm.files.user_file import explain_irregular_file

from .dataset_formats import DatasetError, locate_row_error

MAX_ROW_BYTES: Final = 64 << 20
"""A longer line means a file without line ends."""
MAX_BLANK_BYTES: Final = 1 << 20
"""So many blanks beyond the bytes of earlier rows mean a file without rows. Each blank line costs
time, and gzip packs a million of them into a thousand bytes."""
UNPACKED_BYTES: Final = 1 << 30
PACKED_RATIO: Final = 500
"""gzip beyond both limits is not unpacked to disk. Text is packed to a 3rd to a 20th, and at most
1,032 times smaller."""
GZIP: Final = b"\x1f\x8b"
_BLOCK: Final = 1 << 20
_GAP: Final = re.compile(rb"[\s,\[]*")
_END: Final = re.compile(rb"[\r\n]\s*\Z")
_OVER_LINES: Final = re.compile(rb'\s*\{[ \t]*\r?\n\s*"')
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class FileRow(NamedTuple):
    offset: int
    """The offset of its first byte in the unpacked file."""
    line: int
    data: bytes
    """The row without the line's end."""


class RowIndex(NamedTuple):
    """The places of rows, 12 bytes each. ``offsets`` has one more, the end of the last row."""

    offsets: "array[int]"
    lines: "array[int]"


class RowFile:
    """A file of rows. Blank lines are no rows; the header of a CSV file is one. Raises DatasetError
    wherever it reads."""

    def __init__(self, path: str) -> None:
        self.path = path
        if why := explain_irregular_file(path):
            raise DatasetError(f"{path}: is {why}")
        with _readable(path), _open(path) as stream:
            head = stream.read(4)
            for mark, name in UTF_MARKS:
                if head.startswith(mark):
                    raise DatasetError(
                        f"{path}, line 1, column 1: {name} text: convert it to UTF-8"
                    )
            self._start = len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0
            stream.seek(self._start)
            block = b" "
            while block and not block.strip():
                if stream.tell() > MAX_BLANK_BYTES:
                    raise DatasetError(
                        f"{path}, line 1, column 1: over {MAX_BLANK_BYTES >> 20} MB of white space"
                    )
                block = stream.read(_BLOCK)
        if not block:
            raise DatasetError(f"{path}: the file is empty")
        first = block.strip()[:1]
        self.is_list = first == b"["
        self._is_one = _OVER_LINES.match(block) is not None
        """The file is one object over several lines: the only row."""
        self.is_json = first in (b"[", b"{")

    def __iter__(self) -> Iterator[FileRow]:
        with _readable(self.path):
            if self.is_list:
                yield from self._list_rows()
            elif self._is_one:
                yield from self._one_row()
            else:
                yield from self._line_rows()

    def mentions(self, text: bytes) -> bool:
        """Whether the file contains these bytes."""
        with _readable(self.path), _open(self.path) as stream:
            end = b""
            while block := stream.read(_BLOCK):
                if text in end + block:
                    return True
                end = (end + block)[-len(text) :]
        return False

    def at(self, index: RowIndex, number: int) -> FileRow:
        """A row by its number in an index."""
        start, end = index.offsets[number], index.offsets[number + 1]
        with _readable(self.path):
            data = os.pread(self._disk.fileno(), end - start, start)
        # behind a value of a list there may be a comma; behind a line blank ones; a comma or a tab
        # at its end is a cell
        data = data.rstrip(b" \t\r\n,") if self.is_list else _END.sub(b"", data)
        return FileRow(start, index.lines[number], data)

    def error(self, row: FileRow, what: object, byte: int = 0) -> DatasetError:
        """The error for a byte of a row."""
        before = row.data[:byte]
        line_at = before.rfind(b"\n") + 1
        column = len(before[line_at:].decode("utf-8", "replace")) + 1
        if self.is_list and not line_at:
            column += row.offset - self._line_start(row.offset)
        return DatasetError(
            f"{self.path}, line {row.line + before.count(10)}, column {column}: {what}"
        )

    @cached_property
    def _disk(self) -> BinaryIO:
        """The file, unpacked, with byte positions."""
        stream = open(self.path, "rb")  # noqa: SIM115
        finalize(self, stream.close)
        if stream.read(2) != GZIP:
            return stream
        unpacked = tempfile.TemporaryFile()  # noqa: SIM115
        finalize(self, unpacked.close)
        allowed = max(UNPACKED_BYTES, PACKED_RATIO * os.fstat(stream.fileno()).st_size)
        with _open(self.path) as packed:
            while block := packed.read(_BLOCK):
                unpacked.write(block)
                if unpacked.tell() > allowed:
                    raise DatasetError(
                        f"{self.path}: unpacks to over {allowed >> 20} MB, {PACKED_RATIO} times "
                        f"its size"
                    )
        unpacked.flush()
        return cast(BinaryIO, unpacked)

    def _one_row(self) -> Iterator[FileRow]:
        with _open(self.path) as stream:
            stream.seek(self._start)
            data = stream.read(MAX_ROW_BYTES + 1)
        if len(data) > MAX_ROW_BYTES:
            raise DatasetError(
                f"{self.path}, line 1, column 1: a row of over {MAX_ROW_BYTES >> 20} MB"
            )
        blank = len(data) - len(data.lstrip())
        yield FileRow(self._start + blank, 1 + data[:blank].count(b"\n"), data.strip())

    def _line_rows(self) -> Iterator[FileRow]:
        at, line = self._start, 1
        blanks = -MAX_BLANK_BYTES  # less the bytes of rows
        with _open(self.path) as stream:
            stream.seek(at)
            while data := stream.readline(MAX_ROW_BYTES + 1):
                more = data
                # a cell in quotes may hold line ends: then the row goes on
                odd = not self.is_json and data.count(b'"') % 2 == 1
                while (
                    odd
                    and len(data) <= MAX_ROW_BYTES
                    and (more := stream.readline(MAX_ROW_BYTES + 1))
                ):
                    data += more
                    odd = more.count(b'"') % 2 == 0
                if len(data) > MAX_ROW_BYTES:
                    raise DatasetError(
                        f"{self.path}, line {line}, column 1: a row of over {MAX_ROW_BYTES >> 20} MB"
                    )
                if not data.isspace():
                    yield FileRow(at, line, data.rstrip(b"\r\n"))
                    blanks -= len(data)
                else:
                    blanks += len(data)
                    if blanks > 0:
                        raise DatasetError(
                            f"{self.path}, line {line}, column 1: more blank lines than rows, over "
                            f"{MAX_BLANK_BYTES >> 20} MB of them"
                        )
                at += len(data)
                line += data.count(b"\n")

    def _list_rows(self) -> Iterator[FileRow]:
        """The values of the list. A mistake between them (such as a missing comma) makes all of
        them unusable."""
        view = mmap(self._disk.fileno(), 0, access=ACCESS_READ)
        try:
            values = _decode_list(memoryview(view)[self._start :])
        except (msgspec.DecodeError, RecursionError) as wrong:
            error_found = locate_row_error(wrong, b"")
            byte = self._start + error_found.byte if error_found.byte else len(view)
            line_start = self._line_start(byte)
            line = 1 + sum(
                view[at : min(at + _BLOCK, byte)].count(b"\n") for at in range(0, byte, _BLOCK)
            )
            raise DatasetError(
                f"{self.path}, line {line}, column {byte - line_start + 1}: {error_found}"
            ) from None
        at, line = self._start, 1
        for value in values:
            start = cast("re.Match[bytes]", _GAP.match(view, at)).end()
            line += view[at:start].count(b"\n")
            data = bytes(value)
            yield FileRow(start, line, data)
            at = start + len(data)
            line = line + data.count(b"\n")

    def _line_start(self, offset: int) -> int:
        with mmap(self._disk.fileno(), 0, access=ACCESS_READ) as view:
            return max(self._start, view.rfind(b"\n", 0, offset) + 1)


def _open(path: str) -> BinaryIO:
    stream = open(path, "rb")  # noqa: SIM115
    if stream.read(2) == GZIP:
        stream.close()
        return cast(BinaryIO, gzip.open(path, "rb"))
    stream.seek(0)
    return stream


@contextmanager
def _readable(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, zlib.error) as wrong:
        why = wrong.strerror if isinstance(wrong, OSError) and wrong.strerror else str(wrong)
        raise DatasetError(f"{path}: cannot be read: {why}") from None
