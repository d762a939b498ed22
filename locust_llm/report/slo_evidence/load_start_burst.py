"""Load start burst: whether the requests that break a rule are those that were sent while the load
started. A longer run has as many of them; a warmup has them instead."""

import math
from typing import Final

import numpy as np
from msgspec.structs import replace

from locust_llm.records.outcomes import OK
from locust_llm.records.run_facts import Run
from locust_llm.report.measurement_window import find_users_started
from locust_llm.report.request_selection import RequestSelection
from locust_llm.slo.binomial_intervals import binomial_cdf
from locust_llm.slo.metric_definitions import BY_WORD, OF_RUN, POOLED, RATE
from locust_llm.slo.rules import Rule
from locust_llm.text.format import count_distinguishing_digits, format_brief, format_count

from .censoring import ValueBounds, bound_share_hits, find_send_times
from .confidence_intervals import MIN_VALUES
from .observed_rule_values import (
    Evaluation,
    ObservedValue,
    bound_rule_values,
    compute_rule_value,
    select_requests,
)

NEARLY_ALL: Final = 0.9
"""Of the requests that break the rule so many are of the start."""
CHANCE: Final = 0.05
"""As likely so many of them would be of the start if they were spread evenly over the run."""
DRAINED: Final = 0.5
"""Of the time with the load on; a queue at the gate that lasts longer is no matter of the start."""
INSTANT_S: Final = 1e-3
"""Who waits no longer at the gate does not wait."""
STEP_S: Final = 5
"""The warmup that is advised is a multiple of it."""


def describe_start_burst(rule: Rule, seen: Evaluation) -> str:
    """``all 9 requests beyond 2s were sent in the first 13 s, while the load started:
    --warmup-duration 15 leaves them out``. Empty: they were not, or the rule is about nothing that
    each request has."""
    started_at = _find_own_start(seen)
    broken = _find_broken(rule, seen)
    if broken is None or started_at is None:
        return ""
    is_early = broken.at <= started_at
    early = int((broken.low * is_early).sum())
    count = int(broken.low.sum())
    if not count or early < NEARLY_ALL * count:
        return ""
    if 1 - binomial_cdf(early - 1, count, float(is_early.mean())) > CHANCE:
        return ""
    later = _evaluate_after(rule, seen, started_at)
    if later.value is None or not rule.holds(later.value):
        return ""
    begin = float(seen.main["asked_at"].min())
    until_s = max(1, math.ceil(float(broken.at[(broken.low > 0) & is_early].max()) - begin))
    which = _name_broken(rule, count)
    if early < count:
        which = f"{early} of {which}"
    elif count > 1:
        which = f"all {which}"
    were, them = ("was", "it") if early == 1 else ("were", "them")
    early_requests = f"{which} {were} sent in the first {until_s} s, while the load started"
    return f"{early_requests}{_advise_warmup(seen.run, until_s, them)}"


def describe_decided_rest(rule: Rule, found: ObservedValue, seen: Evaluation) -> str:
    """``the requests sent after the first 16 s, when the load had started, keep the limit``. Empty:
    it does not decide the rule either. ``found``: the figure of the whole run."""
    started_at = _find_own_start(seen)
    if started_at is None or rule.base:
        return ""
    until_s = max(1, math.ceil(started_at - float(seen.main["asked_at"].min())))
    later = (
        f"the requests sent after the first {until_s} s, after the load had started, meet the limit"
    )
    rest = found.settled
    if BY_WORD[rule.metric].units is not RATE:
        rest = _evaluate_after(rule, seen, started_at)
    elif rest is not None and rest.value is not None:
        rate = rest.value * rule.factor
        shown = format_brief(rate, rule.unit, count_distinguishing_digits(rate, rule.number))
        later = f"without the start and the end of the load it is {shown}"
    if rest is None or rest.decides(rule) is not True:
        return ""
    return f"{later}{_advise_warmup(seen.run, until_s, 'the start')}"


def _find_own_start(seen: Evaluation) -> float | None:
    """None: no start is in the figures, or nobody knows."""
    run = seen.run
    if run.imported or run.warmup_went_on or run.limit_blocks or run.settings.compares:
        return None
    if run.stage is not None and run.stage.measured_at is not None:
        return None
    return find_started(seen.main, run)


def _advise_warmup(run: Run, until_s: int, what: str) -> str:
    """Empty: no warmup would go on into profiling."""
    warmup_s = math.ceil(until_s / STEP_S) * STEP_S
    if not replace(run.settings, warmup_duration=float(warmup_s)).warmup_goes_on:
        return ""
    return f": --warmup-duration {warmup_s} leaves {what} out"


def _name_broken(rule: Rule, count: int) -> str:
    if rule.metric == "error_rate":
        return format_count(count, "failed request")
    requests = format_count(count, "request")
    if rule.given:
        return f"{requests} beyond a limit"
    beyond = "beyond" if rule.op.startswith("<") else "below"
    return f"{requests} {beyond} {format_brief(rule.limit * rule.factor, rule.unit)}"


def _find_broken(rule: Rule, seen: Evaluation) -> ValueBounds | None:
    """1 for each request that is certainly beyond the limit, else 0, with its send. None: no
    request is by itself."""
    measure = BY_WORD[rule.metric]
    whole = rule.base or rule.metric in OF_RUN or measure.units is RATE
    if whole or measure.tag == POOLED:
        return None
    part = select_requests(rule, seen.main)
    rises = rule.op.startswith("<")
    if measure.metric is None:
        known = bound_share_hits(rule, part)
        if measure.flag:
            return None
        beyond = known.low if rule.less_is_better else 1 - known.high
        return known._replace(low=beyond)
    if rule.stat == "avg":
        return None
    known = bound_rule_values(rule, part, seen)
    values = known.low if rises else known.high
    beyond = np.where(rule.comparison(values, rule.limit), 0.0, 1.0)
    return known._replace(low=beyond)


def find_started(main: RequestSelection, run: Run) -> float | None:
    """When the load had started (Unix seconds): the last user had sent a request, and then one
    response time was over, or the gate had let through all that waited there. None: no request
    succeeded."""
    answered = main.outcome(OK)
    if not answered.size:
        return None
    begin = float(main["asked_at"].min())
    users_started = begin if run.settings.open_loop else find_users_started(run, begin)
    drained = _find_drained(main, users_started)
    last = float(find_send_times(main).max())
    if users_started < drained <= begin + DRAINED * (last - begin):
        return drained
    over = np.fmax(answered["closed_at"], answered["last_chunk_at"])
    return users_started + float(np.median(over - answered["asked_at"]))


def _find_drained(main: RequestSelection, at: float) -> float:
    """When all were sent that waited at the gate at this moment, and those that came meanwhile; the
    moment itself: none waited."""
    waits = main["admitted_at"] > main["asked_at"] + INSTANT_S
    asked = main["asked_at"][waits]
    order = np.argsort(asked, kind="stable")
    asked = asked[order]
    latest = np.fmax.accumulate(find_send_times(main)[waits][order])
    until = at
    while True:
        before = int(asked.searchsorted(until, side="right"))
        if not before or not latest[before - 1] > until:
            return until
        until = float(latest[before - 1])


def _evaluate_after(rule: Rule, seen: Evaluation, started_at: float) -> ObservedValue:
    """The figure of what was sent after the start."""
    later = seen.main.where(find_send_times(seen.main) > started_at)
    if later.size < MIN_VALUES or rule.metric in OF_RUN:
        return ObservedValue(None)
    return compute_rule_value(rule, seen._replace(main=later, ended=later, delivery=None))
