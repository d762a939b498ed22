"""The stream reader of this process: made when it is first needed, one in each forked child, a new one after a failure."""

import os

from . import native
from .native_reader import NativeReader
from .reader import StreamReader

kind: type[StreamReader] = StreamReader if native.Reader is None else NativeReader
_reader: StreamReader | None = None


def _forget() -> None:
    """In a forked child, which has none of its parent's threads."""
    global _reader
    if _reader is not None:
        _reader.stop()
    _reader = None


os.register_at_fork(after_in_child=_forget)


def stream_reader() -> StreamReader:
    """The reader of this process; a forked child gets its own."""
    global _reader
    if _reader is None:
        _reader = kind()
    return _reader


def reader_kind() -> str:
    """What reads the answers in this process."""
    return "python" if kind is StreamReader else "native"


def reader_failure() -> str:
    """Why this process sends nothing more; empty while it can."""
    return _reader.failure if _reader is not None else ""


def new_reader() -> None:
    """A dead one has no place in the run that begins."""
    global _reader
    if reader_failure():
        _reader = None


def reads_so_far() -> int:
    """Of the reader of this process; makes none."""
    return _reader.reads if _reader is not None else 0
