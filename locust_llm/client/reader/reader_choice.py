"""Reader choice: the stream reader of this process. It is made when it is first needed, again in
each forked child, and again after a failure."""

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from locust_llm.client.reader.open_streams import OpenStreams, ReaderFailed
from locust_llm.client.response_chunks import describe_exception

from . import native_reader
from .python_reader import PythonReader

if TYPE_CHECKING:
    from ._reader import Reader as NativeReader

kind: "type[NativeReader | PythonReader]" = native_reader.Reader or PythonReader
"""The class of the thread that reads."""
NO_READER: Final = "the reader of the responses cannot start"
_reader: OpenStreams | None = None
_unmade = ""
"""Why there is no reader."""


def _forget() -> None:
    """Stop the reader in a forked child, which has none of its parent's threads."""
    global _reader
    if _reader is not None:
        _reader.stop()
    _reader = None


os.register_at_fork(after_in_child=_forget)


def get_open_streams() -> OpenStreams:
    """The reader of this process; a forked child gets its own. Raises ReaderFailed if it cannot be
    made."""
    global _reader, _unmade
    if _reader is None:
        try:
            _reader = OpenStreams(kind())
        except Exception as error:
            _unmade = f"{NO_READER}: {describe_exception(error)}"
            raise ReaderFailed(_unmade) from error
    return _reader


def reader_kind() -> str:
    """The name of the reader in this process: native or python."""
    return "python" if kind is PythonReader else "native"


def reader_failure() -> str:
    """Why this process sends nothing more; empty while it can send."""
    return _reader.failure if _reader is not None else _unmade


def start_new_reader() -> None:
    """Replace a dead reader before a run begins. Where none can be made, ``reader_failure`` has the
    reason before anything is sent."""
    global _reader, _unmade
    if reader_failure():
        _reader, _unmade = None, ""
    with suppress(ReaderFailed):
        get_open_streams()


def reads_so_far() -> int:
    """The number of reads so far. Makes no reader."""
    return _reader.reads if _reader is not None else 0
