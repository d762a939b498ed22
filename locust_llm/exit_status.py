"""Exit statuses: what each number means to the shell, and which one wins where several apply."""

import signal
import sys
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""A signal of these ends a command in order."""
ERROR_PREFIX: Final = "locust-llm: error: "


class ExitStatus(IntEnum):
    """Of every command here; docs/exit-status.md has the table for users."""

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
"""What is certain comes first: a failure on the records received is one with all of them too. A
pass, or an INCONCLUSIVE rule, on incomplete records is no result."""


def signal_exit_status(number: int) -> int:
    """Of a process that a signal ended before there was a run, as the shell has it: 130 for
    Ctrl-C."""
    return 128 + number


def end_in_order(number: int, frame: object) -> None:
    """A handler of ``ENDING_SIGNALS``: each ``finally`` on the way runs."""
    raise SystemExit(signal_exit_status(number))


def fail(message: str, status: ExitStatus = ExitStatus.REFUSED) -> int:
    """Print why a command ends without its result, as one line. Returns the status that it ends
    with."""
    print(f"{ERROR_PREFIX}{message}", file=sys.stderr, flush=True)
    return status


def worst_exit_status(statuses: Iterable[int]) -> int:
    """The one to end with. A number of the user's own (``--exit-code-on-error``) ranks as failed
    requests do."""

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
"""The words are those of slo/grammar.py, which this file does not import: whoever reports a status
imports it."""
BY_PROBE: Final = {"named": ExitStatus.OK, "untold": ExitStatus.INCONCLUSIVE}
"""The words are those of records/run.py. Of a probe whose server failed Locust decides."""
UNDECIDED: Final = ("INCONCLUSIVE", "untold")
"""Of rules, and of a probe."""


def tolerates_inconclusive(policy: str, *, close_to_limit: bool) -> bool:
    """Whether a run that is INCONCLUSIVE ends with 0. ``policy``: that of ``--inconclusive``, whose
    words are those of slo/rules.py."""
    return policy in ("warn", "pass") or (policy == "close" and close_to_limit)


class RunOutcome(NamedTuple):
    """All that decides the exit status of a run."""

    refused: bool = False
    """The run could not start."""
    has_rules: bool = False
    slo_status: str | None = None
    """What the rules say together; None: there is no report."""
    probe: str = ""
    """What the probe says; empty: the run is a load test."""
    close_to_limit: bool = False
    """The rules are INCONCLUSIVE, each of them close to its limit."""
    inconclusive: str = "fail"
    """``--inconclusive``."""
    not_valid: bool = False
    """The run is not valid by published rules, which ``--published-rules fail`` makes a
    condition."""
    incomplete: bool = False
    broke: bool = False
    """The control of the run failed."""
    greenlet_failed: bool = False
    """There was an error that no code caught."""
    failed: bool = False
    """Requests failed, or a task raised."""
    only_stopped: bool = False
    """Each request that failed was cut or cancelled, and no task raised."""
    failure_status: int = ExitStatus.FAILED_REQUESTS
    """``--exit-code-on-error``."""
    set_by_code: int | None = None
    """What Locust, or code of the user's, has set."""


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
    """Where there are rules, they alone decide. None: there is neither a rule nor a probe that says
    something."""
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
