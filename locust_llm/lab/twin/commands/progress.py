"""Progress: a line on a terminal of how far long work is, gone when it is done."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

CLEAR = "\r\x1b[K"


@contextmanager
def show_counted_progress(
    what: str, out: TextIO | None = None
) -> Iterator[Callable[[int, int], None]]:
    """To be told how many are done, and of how many. Writes nothing where ``out``, standard error,
    is no terminal."""
    out = sys.stderr if out is None else out
    lives = out.isatty() and os.environ.get("TERM") != "dumb"

    def told(done: int, most: int) -> None:
        if lives:
            said = f"{done:,} of {most:,} {what}"
            out.write(CLEAR + said[: shutil.get_terminal_size().columns - 1])
            out.flush()

    try:
        yield told
    finally:
        if lives:
            out.write(CLEAR)
            out.flush()
