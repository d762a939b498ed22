"""Console: standard output and error that nobody reads any more, or on a full disk. A run goes on
and its status stays."""

import atexit
import os
import select
import sys
from typing import TextIO


def write_console(text: str, out: TextIO | None = None) -> bool:
    """Write and flush to ``out`` (default: standard output). False: the text is discarded, and so
    is all later output."""
    out = sys.stdout if out is None else out
    if out is None:  # closed from the start
        return False
    try:
        out.write(text)
        out.flush()
    except (OSError, ValueError):
        discard_output(out)
        return False
    return True


def discard_output(out: TextIO) -> None:
    """Discard the output that is still to be written: Python would try once more at its end, and
    fail with status 120."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, out.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass


def discard_if_unread() -> None:
    """Discard output where the reader of a pipe is gone, as each later line would raise an
    error."""
    for out in (sys.stdout, sys.stderr):
        try:
            poll = select.poll()
            poll.register(out.fileno(), 0)
            gone = any(what & (select.POLLERR | select.POLLNVAL) for _, what in poll.poll(0))
        except (AttributeError, OSError, ValueError):  # none, or no file
            continue
        if gone:
            discard_output(out)


def terminal_width_variable() -> dict[str, str]:
    """The terminal's width as the variable that a child process reads. Empty: there is no
    terminal."""
    try:
        return {"COLUMNS": str(os.get_terminal_size(sys.stdout.fileno()).columns or 80)}
    except (AttributeError, OSError, ValueError):
        return {}


def settle_output() -> None:
    """Write the output before Python's own last flush."""
    for out in (sys.stdout, sys.stderr):
        if out is not None:
            write_console("", out)


def settle_output_at_exit() -> None:
    """Settle the output at exit. A stream that was closed from the start is opened to nowhere, so
    that no file or socket of the run gets its number."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
    atexit.unregister(settle_output)
    atexit.register(settle_output)
