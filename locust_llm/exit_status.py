"""Exit statuses: what each number means to the shell, and which one wins where several apply."""

import ctypes
import os
import signal
import sys
from collections.abc import Iterable, MutableMapping
from contextlib import suppress
from enum import IntEnum
from typing import Final, NamedTuple

ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""One of these signals ends a command in order."""
ERROR_PREFIX: Final = "locust-llm: error: "
PARENT: Final = "LOCUST_LLM_PARENT"
"""The environment variable by which a command that starts another one names its own process."""
_PR_SET_PDEATHSIG: Final = 1


class ExitStatus(IntEnum):
    """The statuses of every command here. docs/reference/exit-status.md has the table for users."""

    OK = 0
    """No request failed; with rules, all of them passed."""
    FAILED_REQUESTS = 1
    """Requests failed, or a task raised: Locust's rule, and another number with
    ``--exit-code-on-error``. `check`: a problem prevents a run."""
    BROKEN = 2
    """The load generator itself broke, or a flag of Locust's was used wrongly."""
    RULE_FAILED = 3
    """An SLO rule failed."""
    INCONCLUSIVE = 4
    """A rule is INCONCLUSIVE; a probe cannot name the scheduler."""
    REFUSED = 5
    """The run cannot start; no load was sent."""
    INCOMPLETE = 6
    """The result is incomplete: records are missing, a report could not be made, or no request was
    answered."""


PRECEDENCE: Final = (
    ExitStatus.REFUSED, ExitStatus.BROKEN, ExitStatus.RULE_FAILED, ExitStatus.FAILED_REQUESTS,
    ExitStatus.INCOMPLETE,
    ExitStatus.INCONCLUSIVE, ExitStatus.OK,
)  # fmt: skip
"""Certain results come first: a failure on the received records is a failure with all of them. A
pass or an INCONCLUSIVE rule on incomplete records is no result."""


def signal_exit_status(number: int) -> int:
    """The status of a process that a signal ended before there was a run, as shells have it: 130
    for Ctrl-C."""
    return 128 + number


def end_with_parent(number: int) -> None:
    """The kernel sends this signal to this process when its parent ends; 0: none. It does so on
    Linux alone."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_PDEATHSIG, number)


def follow_parent(environment: MutableMapping[str, str]) -> None:
    """A load that another command began ends in order when that command is killed, as nobody would
    watch it any more."""
    parent = environment.pop(PARENT, "")
    if not parent:
        return
    end_with_parent(signal.SIGTERM)
    if str(os.getppid()) != parent:  # it has ended in between
        os.kill(os.getpid(), signal.SIGTERM)


def end_in_order(number: int, frame: object) -> None:
    """A handler of ``ENDING_SIGNALS``: each ``finally`` on the way runs."""
    raise SystemExit(signal_exit_status(number))


def report_early_end(number: int) -> None:
    """Write the line of a run that a signal ends before its load. A handler of signals may call
    it."""
    line = (
        f"locust-llm: {signal.Signals(number).name} ended the run before its load, so nothing was "
        "measured\n"
    )
    with suppress(OSError):  # nobody reads it
        os.write(2, line.encode())


def end_before_load(number: int, frame: object) -> None:
    """``end_in_order`` for a run that has not begun."""
    report_early_end(number)
    end_in_order(number, frame)


def leave_before_load(number: int, frame: object) -> None:
    """``end_before_load`` where an exception would be swallowed: the process ends at once."""
    report_early_end(number)
    os._exit(signal_exit_status(number))


def fail(message: str, status: ExitStatus = ExitStatus.REFUSED) -> int:
    """Print on one line why a command ends without its result. Returns its exit status."""
    print(f"{ERROR_PREFIX}{message}", file=sys.stderr, flush=True)
    return status


def worst_exit_status(statuses: Iterable[int]) -> int:
    """The worst status. A user's own number (``--exit-code-on-error``) ranks as failed requests
    do."""

    def rank(status: int) -> int:
        known = {int(known_status): place for place, known_status in enumerate(PRECEDENCE)}
        return known.get(status, PRECEDENCE.index(ExitStatus.FAILED_REQUESTS))

    return min(statuses, key=rank, default=ExitStatus.OK)


# -- of a run --------------------------------------------------------------------------------------

BY_RULES: Final = {
    "PASS": ExitStatus.OK,
    "FAIL": ExitStatus.RULE_FAILED,
    "INCONCLUSIVE": ExitStatus.INCONCLUSIVE,
}
"""The words are from slo/rules.py. This file does not import it, but whoever reports a status
does."""
BY_PROBE: Final = {"named": ExitStatus.OK, "untold": ExitStatus.INCONCLUSIVE}
"""The words are from records/run_facts.py. If the server of a probe failed, Locust decides."""
UNDECIDED: Final = ("INCONCLUSIVE", "untold")
"""Words of rules, and of a probe."""


def tolerates_inconclusive(policy: str, *, close_to_limit: bool) -> bool:
    """Whether an INCONCLUSIVE run ends with 0. ``policy`` is the value of ``--inconclusive``, in
    the words of slo/rules.py."""
    return policy in ("warn", "pass") or (policy == "close" and close_to_limit)


class RunOutcome(NamedTuple):
    """What decides the exit status of a run."""

    refused: bool = False
    has_rules: bool = False
    slo_status: str | None = None
    """The status of all rules together. None: there is no report."""
    probe: str = ""
    """The result of the probe. Empty: the run is a load test."""
    close_to_limit: bool = False
    """The rules are INCONCLUSIVE, each of them close to its limit."""
    inconclusive: str = "fail"
    """The value of ``--inconclusive``."""
    not_valid: bool = False
    """The run breaks published rules, and ``--published-rules fail`` makes this a failure."""
    incomplete: bool = False
    broke: bool = False
    """The control of the run failed."""
    greenlet_failed: bool = False
    """An error occurred that no code caught."""
    failed: bool = False
    """Requests failed, or a task raised."""
    only_stopped: bool = False
    """Each request that failed was cut or cancelled, and no task raised."""
    failure_status: int = ExitStatus.FAILED_REQUESTS
    """The value of ``--exit-code-on-error``."""
    set_by_code: int | None = None
    """The status that Locust or user code has set."""


def decide_exit_status(run: RunOutcome) -> int | None:
    """The exit status of a run. None: Locust decides, by whether requests failed."""
    if run.refused:
        return ExitStatus.REFUSED
    status = _decide_by_result(run)
    if status is None:
        status = ExitStatus.OK if run.only_stopped and run.set_by_code is None else run.set_by_code
    worse = [ExitStatus.INCOMPLETE] * run.incomplete
    worse += [ExitStatus.INCONCLUSIVE] * run.not_valid
    worse += [ExitStatus.BROKEN] * run.greenlet_failed
    if not worse:
        return status
    if status is None:
        status = run.failure_status if run.failed else ExitStatus.OK
    return worst_exit_status((status, *worse))


def _decide_by_result(run: RunOutcome) -> int | None:
    """Where there are rules, they alone decide. None: neither a rule nor a probe has a result."""
    if run.broke:
        return ExitStatus.BROKEN
    says = run.slo_status if run.has_rules else run.probe
    if says in UNDECIDED and tolerates_inconclusive(
        run.inconclusive, close_to_limit=run.close_to_limit
    ):
        return ExitStatus.OK
    if run.has_rules:
        return BY_RULES.get(says or "", ExitStatus.INCONCLUSIVE)  # no verdict on rules is no pass
    return BY_PROBE.get(run.probe)
