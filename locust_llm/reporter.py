"""The reporter: a process of its own makes the reports of a folder; what it came to is read back from its files."""

import logging
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

logger = logging.getLogger("locust_llm")

TRIES: Final = 2
"""One that was killed, say for want of memory while the load generator still had all of its own, may live the next time."""

_working: subprocess.Popen[str] | None = None
_given_up = False


def make_reports(folder: Path) -> str:
    """What the console shall show. In a process of its own: pandas and all the records would weigh on the load generator,
    and a reporter that dies must not take a run with it. The loop goes on meanwhile."""
    global _working, _given_up
    command, reason = f"locust-llm report {shlex.quote(str(folder))}", ""
    _given_up = False
    for _ in range(TRIES):
        try:
            _working = subprocess.Popen(
                [sys.executable, "-m", "locust_llm", "report", str(folder)], stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, encoding="utf-8", start_new_session=True,
            )  # fmt: skip
            out, err = _working.communicate()
            status = _working.returncode
        except OSError as error:
            reason = str(error)
            continue
        finally:
            _working = None
        if not status:
            return out
        if _given_up:
            logger.error(f"No reports were made; the records are safe: {command}")
            return ""
        reason = err.strip() or f"exit status {status}"
    logger.error(f"The report failed; the records are safe: {command}\n{reason}")
    return ""


def give_up() -> None:
    """Do not wait for reports that are being made. Ctrl-C does not reach their process, as it has a session of its own."""
    global _given_up
    if _working is not None:
        _given_up = True
        _working.kill()
