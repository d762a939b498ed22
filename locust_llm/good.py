"""Good: what a good request is, by the rules of a run, and how many there were."""

from typing import Final

from .figures import Seen, figure, meets
from .measures import BY_WORD, POOLED, TIME
from .record import FAILURES, OK
from .settings import Settings
from .slo import Condition, Rule, goodput, parse, texts
from .summary import Good, Row

MOST: Final = 90.0
"""From this percentile on a limit is meant for nearly every request: one on the median is not."""


def good_request(settings: Settings) -> tuple[tuple[Condition, ...], str]:
    """What each request must meet to be good, and where that is said; nothing where nobody says.

    That of ``--goodput``; else of the first rule that gives conditions; else the limits of the rules that say at most how
    long something may take nearly every request (p90 and above, or max), the lowest for each latency.
    """
    try:
        if settings.goodput:
            return goodput(settings.goodput), "--goodput"
        rules = [parse(text) for text in texts(settings.slo, settings.slo_preset)]
    except ValueError:
        return (), ""
    given = next((rule.given for rule in rules if rule.given), ())
    if given:
        return given, "the first rule that says what a good request is"
    lowest: dict[str, Condition] = {}
    for rule in filter(_for_each, rules):
        condition = Condition(rule.metric, rule.op, rule.number, rule.unit)
        if rule.metric not in lowest or condition.limit < lowest[rule.metric].limit:
            lowest[rule.metric] = condition
    return tuple(lowest.values()), "the rules on latencies, each held against every request" if lowest else ""


def _for_each(rule: Rule) -> bool:
    measure, percentile = BY_WORD[rule.metric], rule.percentile
    at_most = measure.metric is not None and measure.units is TIME and measure.tag != POOLED and rule.op.startswith("<")
    most = rule.stat == "max" or (percentile is not None and percentile >= MOST)
    return at_most and most and rule.decides and not rule.where


def good(seen: Seen) -> Good | None:
    """How many of these requests were good; None where nothing says what that is, or it cannot be told of them."""
    conditions, said_by = good_request(seen.run.settings)
    if not conditions:
        return None
    share = figure(Rule("attainment", ">=", 0.0, "", given=conditions), seen)
    rate = figure(Rule("goodput", ">=", 0.0, "/s", given=conditions), seen)
    if share.value is None or rate.value is None:
        return None
    low, high = rate.ends or (None, None)
    words = " and ".join(map(str, conditions))
    return Good(
        conditions=f"{words} ({said_by})",
        attainment=share.value,
        goodput_per_s=rate.value,
        low=low,
        high=high,
    )


def goodput_rows(seen: Seen) -> list[Row]:
    """AIPerf's goodput, good_request_count and good_request_fraction for its ``--goodput``; nothing without one."""
    text = seen.run.settings.goodput
    try:
        given = goodput(text) if text else ()
    except ValueError:
        return []
    if not given:
        return []
    ok, counted = seen.main.outcome(OK), seen.main.outcome(OK, *FAILURES).size
    count, seconds = int(meets(ok, given).sum()), seen.time.seconds
    through = int(meets(seen.ended.outcome(OK), given).sum())
    rows = (
        ("Goodput", "goodput", "requests/s", through / seconds if seconds > 0 else None),
        ("Good Requests", "good_request_count", "requests", float(count)),
        ("Good Request Fraction", "good_request_fraction", "ratio", count / max(counted, 1)),
    )
    return [Row(label=label, tag=tag, unit=unit, avg=value) for label, tag, unit, value in rows]
