"""Buffered file: lines on their way to a file; what the disk does not take stays in memory, and is
tried again.

A flush that is broken off by a full disk goes on at the byte where it stopped, so there is never
more than one line that is not whole, the last one.
"""

import os
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Final

from locust_llm.files.regular_file import open_to_append

AT_ONCE_BYTES: Final = 1 << 16
"""So many bytes are written at once, without waiting for a flush."""


class BufferedFile:
    """Appends to ``path`` and creates it. Raises OSError only where that fails."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.error = ""
        """Why the last flush did not get everything onto the disk; empty when it did."""
        self._file = open_to_append(path)
        self._waiting = bytearray()
        self._flush_at = AT_ONCE_BYTES

    def write(self, line: bytes) -> None:
        """``line`` has no newline at its end. Never raises."""
        self._waiting += line
        self._waiting += b"\n"
        if len(self._waiting) >= self._flush_at:
            self.flush()
            # a full disk is not tried again at every line
            self._flush_at = len(self._waiting) + AT_ONCE_BYTES

    def flush(self) -> bool:
        """Whether all that waits is on the disk, as far as the kernel knows."""
        waiting, written = self._waiting, 0
        try:
            with memoryview(waiting) as view:
                while written < len(view):
                    written += os.write(self._file, view[written:])
            self.error = ""
        except OSError as error:
            self.error = error.strerror or str(error)
        del waiting[:written]
        return not waiting

    @property
    def waiting(self) -> int:
        """The lines that are not on the disk, or not whole there."""
        return self._waiting.count(b"\n")

    def rescue(self) -> Path:
        """Write what is left to a file elsewhere: appended to ``path``, it completes it. Raises
        OSError."""
        file, name = tempfile.mkstemp(suffix=".jsonl", prefix="locust-llm-")
        with os.fdopen(file, "wb") as rest:
            rest.write(self._waiting)
        return Path(name)

    def close(self) -> None:
        """Flush and close the file. What could not be written stays for ``rescue``."""
        if self._file >= 0:
            self.flush()
            os.close(self._file)
            self._file = -1

    def restore(self) -> bool:
        """Whether the file had been deleted. Then it is made anew, from what the kernel still has
        of it. Raises OSError."""
        if self._file < 0 or os.fstat(self._file).st_nlink:
            return False
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(f"/proc/self/fd/{self._file}", "rb") as old, self.path.open("xb") as new:
            shutil.copyfileobj(old, new)
        os.close(self._file)
        self._file = open_to_append(self.path)
        return True

    @property
    def closed(self) -> bool:
        return self._file < 0


def explain_unwritten_lines(spool: BufferedFile) -> str:
    """A line on what to do about a file that was not written to its end: the rest is in another
    file."""
    lines = spool.waiting
    folder = shlex.quote(str(spool.path.parent))
    try:
        rest = shlex.quote(str(spool.rescue()))
    except OSError as error:
        return (
            f"{lines} records are lost: they could not be written ({spool.error}), not even to "
            f"another place ({error.strerror})"
        )
    return (
        f"{lines} records could not be written ({spool.error}); they are in {rest}. After freeing "
        f"disk space: cat {rest} >> {shlex.quote(str(spool.path))} && locust-llm report {folder}"
    )
