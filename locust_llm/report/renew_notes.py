"""Notes of a run that the records tell as well, in the words of the version that makes the report."""

import re
from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from locust_llm.records.buffering import TAKEN_BACK, Buffering
from locust_llm.records.failures import describe_retries
from locust_llm.records.record import RETRIED, Record
from locust_llm.records.run import Run

OF_RECORDS: Final = re.compile(
    rf"WARNING: BUFFERED STREAM|{TAKEN_BACK}|"
    r"\d+ attempts? (was|were) refused \(HTTP|\d+ requests? (was|were) sent again at once"
)
"""How these notes begin, in every version."""


def renew_notes(run: Run, records: Iterable[Record]) -> Run:
    """``records``: all of the run, in the order in which they came. A stage has the notes of the
    whole run, and not its records."""
    old = [place for place, note in enumerate(run.notes) if OF_RECORDS.match(note)]
    if not old or run.stage is not None:
        return run
    buffering, retried, resent = Buffering(), 0, 0
    for record in records:
        resent += record.resent
        if record.outcome == RETRIED:
            retried += 1
        else:
            buffering.add(record)
    kept = [note for place, note in enumerate(run.notes) if place not in old]
    renewed = [*buffering.remarks(), *describe_retries(retried, resent)]
    return replace(run, notes=(*kept[: old[0]], *renewed, *kept[old[0] :]))
