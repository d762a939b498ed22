"""The reporter: a process of its own makes the reports of a folder; what it came to is read back from its files."""

import logging
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

import gevent

from .exit_status import ExitStatus
from .folder import RECORDS

logger = logging.getLogger("locust_llm")

TRIES: Final = 2
"""One that was killed, say for want of memory while the load generator still had all of its own, may live the next time."""
PATIENCE_S: Final = 600.0
BYTES_PER_S: Final = 500_000
"""A reporter that takes longer than this, and so much for its records, hangs. It reads some 20 MB a second."""
PROGRESS_S: Final = 15.0
"""How often it is said that reports are being made."""

_working: subprocess.Popen[str] | None = None
_given_up = False


class Made(NamedTuple):
    """``text``: what the console shall show."""

    text: str
    missing: str = ""
    """Why there are no reports, or that they are of an incomplete run; empty: nothing is missing."""
    told: bool = False
    """``text`` begins with what is missing."""


def make_reports(folder: Path) -> Made:
    """In a process of its own: pandas and all the records would weigh on the load generator, and a reporter that dies must
    not take a run with it. The loop goes on meanwhile."""
    global _working, _given_up
    reason = ""
    _given_up = False
    for _ in range(TRIES):
        late: gevent.Greenlet | None = None
        try:
            _working = subprocess.Popen(
                [sys.executable, "-m", "locust_llm", "report", str(folder)], stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace", start_new_session=True,
            )  # fmt: skip
            late = gevent.spawn(_attend, _working, _patience_s(folder))
            out, err = _working.communicate()
            status = _working.returncode
        except OSError as error:
            reason = str(error)
            continue
        finally:
            _working = None
            if late is not None:
                late.kill(block=False)
        if status in (ExitStatus.OK, ExitStatus.INCOMPLETE):
            return Made(out, "the records are incomplete" if status else "", told=bool(status))
        if _given_up or isinstance(late.value, str):
            return _unmade(folder, late.value if isinstance(late.value, str) else "No reports were made", "")
        reason = err.strip() or f"exit status {status}"
        if status == ExitStatus.REFUSED:  # there are no records, or no folder: another time would find none either
            break
    return _unmade(folder, "The report failed", reason)


def _unmade(folder: Path, what: str, reason: str) -> Made:
    line = f"{what}; {whereabouts(folder)}"
    logger.error(f"{line}\n{reason}" if reason else line)
    return Made("", line)


def whereabouts(folder: Path) -> str:
    """Where the records of a run are that has no reports, or that they are nowhere."""
    try:
        size = (folder / RECORDS).stat().st_size
    except OSError as error:
        return f"and its records are not there: {folder / RECORDS}: {error.strerror}"
    if not size:
        return f"and there are no records: {folder / RECORDS} is empty"
    return f"the records are safe: locust-llm report {shlex.quote(str(folder))}"


def _patience_s(folder: Path) -> float:
    try:
        return PATIENCE_S + (folder / RECORDS).stat().st_size / BYTES_PER_S
    except OSError:
        return PATIENCE_S


def _attend(process: "subprocess.Popen[str]", patience_s: float) -> str:
    """The greenlet that says how long it takes, and ends it when that is too long; why then."""
    began = time.monotonic()
    while (taken := time.monotonic() - began) < patience_s:
        gevent.sleep(min(PROGRESS_S, patience_s - taken))
        if time.monotonic() - began < patience_s:
            logger.info(f"The reports have been in the making for {taken + PROGRESS_S:.0f} s; Ctrl-C gives them up")
    process.kill()
    return f"The reports were given up after {patience_s:.0f} s"


def give_up() -> None:
    """Do not wait for reports that are being made. Ctrl-C does not reach their process, as it has a session of its own."""
    global _given_up
    if _working is not None:
        _given_up = True
        _working.kill()
