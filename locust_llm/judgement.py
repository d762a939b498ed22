"""Judgement: the SLO rules of a run against its requests; PASS, FAIL or INCONCLUSIVE, each with its reason.

A rule is decided where its figure and both ends of that figure's 95 % interval (intervals.py) lie on one side of the
limit. Percentiles of numbers that each request has: order statistics. Shares: exact binomial. Rates, averages and pooled
gaps: ten stretches of the run. The smallest and the largest value, and what was delivered of a schedule, are facts of the
run and have no interval. A failure counts as a value that breaks the rule, whichever way that points (a latency of
+infinity, as in the ``adj_`` rows), but in averages: there it is left out, and the reason says so.
"""

from collections.abc import Sequence

from .delivery import CLIENT
from .figures import Found, Seen, figure, meets
from .intervals import needed
from .measures import BY_WORD, GIVEN
from .parts import Part
from .record import FAILURES, OK
from .slo import ABORT, FAIL, INCONCLUSIVE, PASS, Rule, goodput, ready, texts
from .summary import Row, SloResult
from .verdict import INVALID
from .verdict import OK as FINE


def judge_rules(seen: Seen) -> tuple[SloResult, ...]:
    """A result for each rule of the run, and for each that cannot be read (by another version, say)."""
    settings = seen.run.settings
    try:
        found = texts(settings.slo, settings.slo_preset)
    except ValueError as error:
        found = settings.slo
        lost = [SloResult(rule=settings.slo_preset or "", status=INCONCLUSIVE, reason=str(error))]
    else:
        lost = []
    return (*(_judged(text, seen) for text in found), *lost)


def overall(results: Sequence[SloResult]) -> str | None:
    """FAIL if a rule that decides failed, else INCONCLUSIVE if one was, else PASS; None without rules."""
    if not results:
        return None
    found = {result.status for result in results if result.decides}
    return FAIL if FAIL in found else INCONCLUSIVE if INCONCLUSIVE in found else PASS


def goodput_rows(main: Part, text: str | None) -> list[Row]:
    """AIPerf's goodput, good_request_count and good_request_fraction for its ``--goodput``; nothing without one."""
    try:
        given = goodput(text) if text else ()
    except ValueError:
        return []
    ok, failed = main.outcome(OK), main.outcome(*FAILURES).size
    start, end = main.span()
    count = int(meets(ok, given).sum())
    rows = (
        ("Goodput", "goodput", "requests/s", count / (end - start) if end > start else None),
        ("Good Requests", "good_request_count", "requests", float(count)),
        ("Good Request Fraction", "good_request_fraction", "ratio", count / max(ok.size + failed, 1)),
    )
    return [Row(label=label, tag=tag, unit=unit, avg=value) for label, tag, unit, value in rows] if given else []


# -- a rule ------------------------------------------------------------------------------------------------------------


def _judged(text: str, seen: Seen) -> SloResult:
    try:
        rule = ready(text, seen.run.settings.goodput)
    except ValueError as error:
        return SloResult(rule=text, status=INCONCLUSIVE, reason=str(error))
    found = figure(rule, seen)
    status, reason = _decided(rule, found, seen)
    factor = BY_WORD[rule.metric].units[rule.unit]

    def shown(value: float | None) -> float | None:
        return None if value is None else value * factor

    low, high = found.ends or (None, None)
    return SloResult(
        rule=str(rule),
        status=status,
        decides=rule.decides,
        abort=rule.kind == ABORT,
        observed=shown(found.value),
        limit=rule.number,
        unit=rule.unit,
        low=shown(low),
        high=shown(high),
        count=found.count,
        reason=reason,
    )


def _decided(rule: Rule, found: Found, seen: Seen) -> tuple[str, str]:
    """(status, reason)."""
    if found.value is None:
        return INCONCLUSIVE, found.note
    if blame := _blame(rule, seen):
        return INCONCLUSIVE, blame
    holds = found.decides(rule)
    if holds is False:
        if rule.metric == "delivered" and seen.delivery is not None and seen.delivery.cause == CLIENT:
            return INCONCLUSIVE, "the load generator held the load back, not the server"
        return FAIL, found.note
    if holds:
        lost = seen.run.records_lost
        return (INCONCLUSIVE, f"records of workers that never arrived: {lost}") if lost else (PASS, found.note)
    return INCONCLUSIVE, _undecided(rule, found)


def _undecided(rule: Rule, found: Found) -> str:
    """Why a figure that is there does not decide."""
    if found.ends == (None, None) and found.note:
        return found.note
    percentile = rule.percentile
    if percentile is not None and found.ends is not None and None in found.ends:
        return (
            f"too few samples: the interval of {rule.stat} takes {needed(percentile)} requests, there are {found.count}"
        )
    return "; ".join(filter(None, ("its 95 % interval crosses the limit, a longer run may tell", found.note)))


def _blame(rule: Rule, seen: Seen) -> str:
    """Why the load generator forbids a judgement; empty if it does not. Errors and the schedule are what they are."""
    if seen.verdict is None or seen.verdict.level == FINE or rule.metric in ("error_rate", "delivered"):
        return ""
    timed = BY_WORD[rule.metric].metric is not None or rule.metric in GIVEN
    if not timed and seen.verdict.level != INVALID:
        return ""
    return f"the client verdict is {seen.verdict.level}: {'; '.join(seen.verdict.reasons)}"
