"""Report process: makes the reports of a run in a process of its own, waits for it, and reads its
result."""

import logging
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

import gevent
import msgspec

from locust_llm.exit_status import ExitStatus
from locust_llm.records.record_parts import count_record_bytes
from locust_llm.records.report_result import ReportResult
from locust_llm.records.run_facts import (
    RECORDS,
)
from locust_llm.text.console import terminal_width_variable

logger = logging.getLogger("locust_llm")

TRIES: Final = 2
"""The tries of the report process. A killed one, perhaps for lack of memory, may succeed the next
time."""
PATIENCE_S: Final = 600.0
"""A report process that takes longer, with the time for its records, hangs."""
BYTES_PER_S: Final = 500_000
"""The records add a second for so many bytes; the process reads some 20 MB a second."""
PROGRESS_S: Final = 15.0
"""The interval of log lines while reports are being made."""
ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1"}
"""numpy would start a thread for each core, which wait by computing and find no work."""
_working: subprocess.Popen[str] | None = None
_given_up = False


class ReportOutcome(NamedTuple):
    """The answer of the report process."""

    result: ReportResult | None
    """None: there are no reports."""
    missing: str = ""
    """Why there are no reports, or why they are of an incomplete run. Empty: nothing is missing."""


def make_reports(folder: Path) -> ReportOutcome:
    """Make the reports in a process of its own, as numpy and all the records would weigh on the
    load generator. A reporter that dies must not take a run with it. The loop goes on meanwhile."""
    global _working, _given_up
    _given_up, reason = False, ""
    for _ in range(TRIES):
        late: gevent.Greenlet | None = None
        try:
            _working = subprocess.Popen(
                [sys.executable, "-m", "locust_llm", "report", "--json", "--ends-run", str(folder)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace",
                start_new_session=True,
                env=os.environ | ONE_THREAD | terminal_width_variable(),
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
        unreadable = ""
        if status in (ExitStatus.OK, ExitStatus.INCOMPLETE):
            try:
                result = msgspec.json.decode(out, type=ReportResult)
            except ValueError as error:
                unreadable = f"its result cannot be read: {error}"
            else:
                missing = "the records are incomplete" if result.incomplete else ""
                return ReportOutcome(result, missing)
        if _given_up or isinstance(late.value, str):
            return _unmade(
                folder, late.value if isinstance(late.value, str) else "No reports were created", ""
            )
        reason = err.strip() or unreadable or f"exit status {status}"
        # there are no records, or no folder: another time would find none either
        if status == ExitStatus.REFUSED:
            break
    return _unmade(folder, "The report failed", reason)


def _unmade(folder: Path, what: str, reason: str) -> ReportOutcome:
    line = f"{what}; {locate_records(folder)}"
    logger.error(f"{line}\n{reason}" if reason else line)
    return ReportOutcome(None, line)


def locate_records(folder: Path) -> str:
    """Where the records of a run without reports are, or that they are nowhere."""
    try:
        size = count_record_bytes(folder)
    except OSError as error:
        return f"and its records are missing: {folder / RECORDS}: {error.strerror}"
    if not size:
        return f"and there are no records: {folder / RECORDS} is empty"
    return (
        "the records are saved: create the reports with locust-llm report "
        f"{shlex.quote(str(folder))}"
    )


def _patience_s(folder: Path) -> float:
    try:
        return PATIENCE_S + count_record_bytes(folder) / BYTES_PER_S
    except OSError:
        return PATIENCE_S


def _attend(process: "subprocess.Popen[str]", patience_s: float) -> str:
    """Log in a greenlet how long the process takes, and end it when that is too long. Returns
    why."""
    began = time.monotonic()
    while (taken := time.monotonic() - began) < patience_s:
        gevent.sleep(min(PROGRESS_S, patience_s - taken))
        if time.monotonic() - began < patience_s:
            logger.info(
                f"Writing the reports ({taken + PROGRESS_S:.0f} s so far); Ctrl-C skips them"
            )
    process.kill()
    return f"The reports were stopped after {patience_s:.0f} s"


def give_up_reports() -> None:
    """Stop waiting for reports. Ctrl-C does not reach their process, as it has a session of its
    own."""
    global _given_up
    if _working is not None:
        _given_up = True
        _working.kill()
