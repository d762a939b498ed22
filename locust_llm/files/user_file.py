"""User files: files that a user names. Small ones are read whole, also from a pipe, within a bound
of bytes and time. Large ones must be regular files, as they are read more than once."""

import errno
import os
import select
import stat
import time
from typing import Final

from locust_llm.files.regular_file import decode_utf8

MAX_BYTES: Final = 4 << 20
TIMEOUT_S: Final = 10.0

_piped: dict[str, str] = {}
"""What came through a pipe, which can be read only once."""


def read_small_text(path: str, within_s: float = TIMEOUT_S, most_bytes: int = MAX_BYTES) -> str:
    """The text without a byte order mark. Raises OSError with a name and a reason, also for text
    that is not UTF-8."""
    if path in _piped:
        return _piped[path]
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        data = _read(path, file, time.monotonic() + within_s, most_bytes)
        try:
            text = decode_utf8(data)
        except ValueError as wrong:
            raise OSError(errno.EILSEQ, str(wrong)) from None
        if not stat.S_ISREG(os.fstat(file).st_mode):
            _piped[path] = text
        return text
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(file)


def _read(path: str, file: int, until: float, most_bytes: int) -> bytes:
    data = b""
    ready = select.poll()
    ready.register(file, select.POLLIN)
    while True:
        left_s = until - time.monotonic()
        if left_s <= 0 or not ready.poll(left_s * 1e3):
            raise OSError(errno.ETIMEDOUT, "a pipe that did not end in time", path)
        if not (block := os.read(file, 1 << 16)):
            return data
        data += block
        if len(data) > most_bytes:
            raise OSError(errno.EFBIG, f"holds more than {most_bytes >> 20} MB", path)


def explain_irregular_file(path: str) -> str:
    """Why a file cannot be read to its end more than once. Empty: it can be read, or is missing."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return ""
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # which the system itself refuses to read
        return ""
    kind = "a pipe" if stat.S_ISFIFO(mode) else "not a regular file"
    return f"{kind}: use a regular file, because it is read more than once"
