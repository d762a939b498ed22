"""Notes of a run that the records tell as well, in the words of the version that makes the report."""

import re
from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from locust_llm.records.buffering import TAKEN_BACK, Buffering
from locust_llm.records.failures import describe_retries
from locust_llm.records.record import RETRIED, Record
from locust_llm.records.run import BrokenRule, Run

OF_RECORDS: Final = re.compile(
    rf"WARNING: BUFFERED STREAM|{TAKEN_BACK}|"
    r"\d+ attempts? (was|were) refused \(HTTP|\d+ requests? (was|were) sent again at once"
)
"""How these notes begin, in every version."""
ENDED_EARLY: Final = re.compile(
    r"The run was ended early: (abort: .+) is broken: (.+)\.", re.DOTALL
)
"""What an older version kept of the rule that ended a run."""


def renew_notes(run: Run, records: Iterable[Record]) -> Run:
    """``records``: all of the run, in the order in which they came. A stage has the notes of the
    whole run, and not its records."""
    run = _find_broken_rule(run)
    old = [place for place, note in enumerate(run.notes) if OF_RECORDS.match(note)]
    if not old or run.stage is not None:
        return run
    buffering = Buffering()
    retried = 0
    resent = 0
    for record in records:
        resent += record.resent
        if record.outcome == RETRIED:
            retried += 1
        else:
            buffering.add(record)
    kept_notes = [note for place, note in enumerate(run.notes) if place not in old]
    renewed = [*buffering.remarks(), *describe_retries(retried, resent)]
    return replace(run, notes=(*kept_notes[: old[0]], *renewed, *kept_notes[old[0] :]))


def _find_broken_rule(run: Run) -> Run:
    """The rule that ended the run, where only a note has it."""
    matches = [ENDED_EARLY.fullmatch(note) for note in run.notes]
    broken = tuple(
        BrokenRule(rule=match[1], why=match[2]) for match in matches if match is not None
    )
    return replace(run, broken_rules=run.broken_rules or broken)
