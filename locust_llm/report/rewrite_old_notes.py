"""Rewrite old notes: notes of a run that its records also show are written again, in the words of
the present version."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from locust_llm.records.buffering import TAKEN_BACK, BufferingByArm, describe_cpu_shortage
from locust_llm.records.failure_kinds import describe_retries
from locust_llm.records.outcomes import RETRIED
from locust_llm.records.record import Record
from locust_llm.records.run_facts import (
    BUFFERED,
    TOGETHER_UNEXPLAINED,
    BrokenRule,
    Run,
    find_loaded_times,
)
from locust_llm.records.server_metrics_history import (
    BASE,
    SERVER,
    EngineHistory,
    describe_server_history,
)

OF_RECORDS: Final = re.compile(
    rf"{BUFFERED}|{TOGETHER_UNEXPLAINED}|{TAKEN_BACK}|"
    r"The alarm of a buffered stream was wrong|"
    r"\d+ attempts? (was|were) refused \(HTTP|\d+ requests? (was|were) sent again (at once|immediately)"
)
"""These notes begin so in every version."""
OF_SERVER: Final = re.compile(
    r"The (server|base)'s (own (figures|metrics) \(|KV cache was )|"
    r"WARNING: (the (server|base) preempted |\d+ readings? of the metrics of )"
)
"""The notes on the server's metrics begin so in every version."""
ENDED_EARLY: Final = re.compile(
    r"The run was ended early: (abort: .+) is broken: (.+)\.", re.DOTALL
)
"""An older version's note on the rule that ended a run."""


def renew_notes(run: Run, records: Iterable[Record], history: EngineHistory | None = None) -> Run:
    """``records`` has all records of the run, in the order in which they came. ``history`` has the
    server's metrics. A stage has the notes of the whole run, and not its records."""
    run = _find_broken_rule(run)
    if history is not None:
        run = renew_server_notes(run, history)
    old = [place for place, note in enumerate(run.notes) if OF_RECORDS.match(note)]
    if not old or run.stage is not None:
        return run
    buffering = BufferingByArm(run.settings)
    retried = 0
    resent = 0
    for record in records:
        resent += record.resent
        if record.outcome == RETRIED:
            retried += 1
        else:
            buffering.add(record)
    remarks = buffering.remarks(describe_cpu_shortage(run.health))
    return _replace_notes(run, old, [*remarks, *describe_retries(retried, resent)])


def renew_server_notes(run: Run, history: EngineHistory) -> Run:
    """The run with the notes on the server's metrics over its own time: a stage has the ones of the
    whole run until then."""
    old = [place for place, note in enumerate(run.notes) if OF_SERVER.match(note)]
    if not old or not history.engines:
        return run
    settings = run.settings
    whose = BASE if settings.candidate not in ("", settings.host) else SERVER
    end = run.stopping_at or run.ended_at or float("inf")
    loaded = find_loaded_times(run.stages, (run.profiling_at, end), BASE if whose == BASE else "")
    limit = max((change.limit for change in run.limits if change.limit is not None), default=None)
    made = describe_server_history(
        history, loaded, limit, whose=whose, simulated=run.simulated, of_stage=run.stage is not None
    )
    return _replace_notes(run, old, list(made))


def _replace_notes(run: Run, old: Sequence[int], new: Sequence[str]) -> Run:
    """``old`` has the places of the notes that the new ones replace, at the first of them."""
    kept_notes = [note for place, note in enumerate(run.notes) if place not in old]
    return replace(run, notes=(*kept_notes[: old[0]], *new, *kept_notes[old[0] :]))


def _find_broken_rule(run: Run) -> Run:
    """The rule that ended the run, where only a note names it."""
    matches = [ENDED_EARLY.fullmatch(note) for note in run.notes]
    broken = tuple(
        BrokenRule(rule=match[1], why=match[2]) for match in matches if match is not None
    )
    return replace(run, broken_rules=run.broken_rules or broken)
