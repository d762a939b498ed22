"""Files that came from a run folder or from a user, opened with care.

A pipe, a device, a socket or an endless file may lie where a file is expected: each of them would
hang the program or fill its memory. ``open_regular`` and ``read_regular`` take nothing but regular
files, and raise an OSError of one sentence.
"""

import codecs
import errno
import io
import os
import re
import stat
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

KINDS: Final = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
UTF_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
"""Byte order marks of texts other than UTF-8. The longer marks come first, as UTF-32's begins like
UTF-16's."""
MANY_PARTS: Final = re.compile(r"""(?:\.[ \t]*(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*){20}""")
"""A dotted TOML key with more parts than anybody writes. Each part takes the time of all before
it."""
MAX_HOLE_BYTES: Final = 2**26
"""A file may have so many bytes that were never written. A killed machine may leave a few."""
MAX_EXTENTS: Final = 1000
"""At most so many extents of a file with holes are checked."""
NO_WAITING: Final = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def irregular_kind(mode: int) -> str:
    """The kind of a file with this mode, in words. Empty: it is a regular file or a directory."""
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return ""
    return next((words for is_one, words in KINDS if is_one(mode)), "not a file")


def open_regular(path: Path | str) -> BinaryIO:
    """A regular file, opened for binary reading. Raises OSError, also where most of the file is a
    hole."""
    # before it is opened: to open a device may already do something
    _require_regular(os.stat(path).st_mode, path)
    file = os.open(path, os.O_RDONLY | NO_WAITING)
    try:
        status = os.fstat(file)
        _require_regular(status.st_mode, path)
        if not status.st_size and os.pread(file, 1, 0):  # such as /proc/self/pagemap, of 256 GB
            raise OSError(
                errno.EINVAL,
                f"{Path(path).name} is a kernel file: use a regular file",
                str(path),
            )
        if status.st_size > MAX_HOLE_BYTES and _hole_bytes(file, status.st_size) > max(
            MAX_HOLE_BYTES, status.st_size // 2
        ):
            raise OSError(
                errno.EINVAL,
                f"{Path(path).name} is a sparse file: most of it is empty",
                str(path),
            )
        return open(file, "rb")
    except BaseException:
        os.close(file)
        raise


def read_regular(path: Path | str, most_bytes: int) -> bytes:
    """The content of a regular file when it is opened. Raises OSError, also where it has more than
    ``most_bytes``."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise OSError(
                errno.EFBIG,
                f"{Path(path).name} is larger than {most_bytes / 2**20:,.0f} MB",
                str(path),
            )
        return file.read(size)


def decode_utf8(data: bytes) -> str:
    """Decode UTF-8 with or without a byte order mark. Raises ValueError of a few words for anything
    else."""
    for mark, name in UTF_MARKS:
        if data.startswith(mark):
            raise ValueError(f"is {name} text: convert it to UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as wrong:
        raise ValueError(f"is not UTF-8 text (byte {wrong.start})") from None


def describe_syntax_error(error: Exception) -> str:
    """Why a text is no valid JSON or TOML, in a few words."""
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def decode_toml(text: str) -> dict[str, Any]:
    """Raises ValueError of a few words, also for keys with so many parts that tomllib would take
    minutes and gigabytes."""
    if MANY_PARTS.search(text):
        raise ValueError("nested too deeply")
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(describe_syntax_error(error)) from None


def open_to_append(path: Path | str) -> int:
    """The descriptor of a file, which is created if it is missing. A device such as /dev/null takes
    any output.

    Raises OSError, also for a pipe, which would wait for a reader.
    """
    with suppress(FileNotFoundError):
        _require_writable(os.stat(path).st_mode, path)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | NO_WAITING, 0o666)
    try:
        _require_writable(os.fstat(file).st_mode, path)
    except OSError:
        os.close(file)
        raise
    return file


def _require_writable(mode: int, path: Path | str) -> None:
    if not stat.S_ISCHR(mode):
        _require_regular(mode, path)


def _require_regular(mode: int, path: Path | str) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if kind := irregular_kind(mode):
        raise OSError(errno.EINVAL, f"{Path(path).name} is {kind}: use a regular file", str(path))


def _hole_bytes(file: int, size: int) -> int:
    """The bytes that were never written, as far as the file system reports them."""
    holes = at = 0
    try:
        for _ in range(MAX_EXTENTS):
            data = os.lseek(file, at, os.SEEK_DATA)
            holes += data - at
            at = os.lseek(file, data, os.SEEK_HOLE)
            if at >= size:
                break
    except OSError as error:
        if error.errno == errno.ENXIO:  # no data from here to the end
            holes += size - at
    finally:
        os.lseek(file, 0, io.SEEK_SET)
    return holes
