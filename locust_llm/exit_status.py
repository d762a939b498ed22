"""Exit statuses: what each number means to the shell, and which one wins where several apply."""

import signal
import sys
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""A signal of these ends a command in order."""


class ExitStatus(IntEnum):
    """Of every command here; docs/exit-status.md has the table for users."""

    OK = 0
    """No request failed; with rules, all of them passed."""
    FAILED_REQUESTS = 1
    """Requests failed, or a task raised: Locust's rule, and another number with ``--exit-code-on-error``. `check`: a problem
    prevents a run."""
    BROKEN = 2
    """The load generator itself broke, or a flag of Locust's was used wrongly."""
    RULE_FAILED = 3
    """An SLO rule failed."""
    INCONCLUSIVE = 4
    """A rule could not be decided; a probe cannot name the scheduler."""
    REFUSED = 5
    """The run cannot start; no load was sent."""
    INCOMPLETE = 6
    """The result is incomplete: records are missing, a report could not be made, or no request was answered."""


PRECEDENCE: Final = (
    ExitStatus.REFUSED, ExitStatus.BROKEN, ExitStatus.RULE_FAILED, ExitStatus.FAILED_REQUESTS, ExitStatus.INCOMPLETE,
    ExitStatus.INCONCLUSIVE, ExitStatus.OK,
)  # fmt: skip
"""What is certain comes first: a failure on the records received is one with all of them too. A pass, or an
undecided rule, on incomplete records is no result."""


def of_signal(number: int) -> int:
    """Of a process that a signal ended before there was a run, as the shell has it: 130 for Ctrl-C."""
    return 128 + number


def end_in_order(number: int, frame: object) -> None:
    """A handler of ``ENDING_SIGNALS``: each ``finally`` on the way runs."""
    raise SystemExit(of_signal(number))


def fail(message: str, status: ExitStatus = ExitStatus.REFUSED) -> int:
    """Print why a command ends without its result, as one line. Returns the status that it ends with."""
    print(f"locust-llm: error: {message}", file=sys.stderr)
    return status


def worst(statuses: Iterable[int]) -> int:
    """The one to end with. A number of the user's own (``--exit-code-on-error``) ranks as failed requests do."""

    def rank(status: int) -> int:
        known = {int(one): place for place, one in enumerate(PRECEDENCE)}
        return known.get(status, PRECEDENCE.index(ExitStatus.FAILED_REQUESTS))

    return min(statuses, key=rank, default=ExitStatus.OK)
