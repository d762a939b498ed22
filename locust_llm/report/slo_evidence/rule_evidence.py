"""Evidence of a stage about a rule, for the capacity of the sweep: by how much its figure is off
the limit, and of a share the requests beyond the limit."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from locust_llm.records.outcomes import FAILURES, OK
from locust_llm.records.run_facts import Run, Stage
from locust_llm.report.array_types import Floats
from locust_llm.report.outages import select_held_up
from locust_llm.settings.sweep_option import OVERLOADED
from locust_llm.slo.binomial_intervals import NORMAL_REACH, TAIL
from locust_llm.slo.capacity_search import RuleEvidence, StageEvidence
from locust_llm.slo.metric_definitions import (
    BY_WORD,
    LATENCY,
    OF_RUN,
    POOLED,
    RATE,
    TTFT,
    TTFT_FROM_DUE,
)
from locust_llm.slo.percentile import count_beyond, find_percentile
from locust_llm.slo.rules import FAIL, PASS, Rule, SloResult

from .censoring import bound_share_hits, measure_margins
from .confidence_intervals import (
    MIN_VALUES,
    STEADY,
    estimate_percentile_interval,
    estimate_share_interval,
    level_of_share,
    weigh_share,
)
from .long_run_error import measure_long_run
from .observed_rule_values import (
    Evaluation,
    ObservedValue,
    bound_rule_values,
    compute_rule_value,
    select_requests,
)

UNSURE: Final = 0.3
"""The standard error of a value's logarithm without an interval: a fact of a short stage."""
CERTAIN: Final = 0.02
"""The least standard error, as a server does not come back to a value more exactly."""
MOST_SURE: Final = 20.0
"""Requests far within a limit may count as at most so many times their number."""
FAR: Final = 3.0
"""The logarithm of a value over its limit where one of them is 0 or infinite."""
BEGIN: Final = 0.2
"""This share of a stage's requests shows the values that a much shorter stage would have."""
FEW_BEYOND: Final = 3.0
"""With fewer requests than this beyond a percentile, it is extrapolated."""
UNKNOWN: Final = (0.0, 0.0, 0.0)
CELL: Final = 5
"""So many requests in a row are one value of those that settle."""
MOST_UNSETTLED: Final = 0.75
"""At most this share of a stage is left out."""


def measure_stage_evidence(seen: Evaluation, results: Sequence[SloResult]) -> StageEvidence | None:
    """The evidence on the rules about all stages of a sweep. None: there is none.

    ``results`` are the stage's decisions. Where the load generator may have them wrong, the stage
    shows nothing.
    """
    stage = seen.run.stage
    if stage is None or seen.last_silence is not None:  # a crash is no load that is too high
        return None
    known = []
    for rule in seen.run.settings.rules.readable:
        result = next((one for one in results if one.rule == str(rule)), None)
        if rule.staged or rule.base or not rule.decides or result is None or result.voided:
            continue
        evidence = _certainly_broken(rule, seen.run, stage)
        if evidence is None:
            evidence = measure_rule_evidence(rule, seen, compute_rule_value(rule, seen))
        if evidence is not None:
            known.append(
                replace(
                    evidence,
                    passes=result.status == PASS,
                    fails=result.status == FAIL,
                    figure=_find_figure(result),
                )
            )
    if not known:
        return None
    measured_s = 0.0 if stage.measured_at is None else stage.ended_at - stage.measured_at
    saturated_at = None
    if stage.why == OVERLOADED and measured_s:
        saturated_at = seen.ended.outcome(OK, *FAILURES).size / measured_s
    return StageEvidence(
        level=stage.value, number=stage.number, measured_s=measured_s, saturated_at=saturated_at,
        rules=tuple(known),
    )  # fmt: skip


def mark_silence(evidence: StageEvidence | None, seen: Evaluation) -> StageEvidence | None:
    """The evidence of a stage with outages, marked where they touch what it is of."""
    counted = any(outage.seconds for outage in seen.outages)
    if evidence is None or not (counted or select_held_up(seen.main, seen.outages, seen.run).size):
        return evidence
    return replace(evidence, silent=True)


def _find_figure(result: SloResult) -> tuple[float, float, float] | None:
    """None: it has no interval that could be compared with another stage's."""
    low, value, high = result.low, result.observed, result.high
    if low is None or value is None or high is None or math.isinf(high):
        return None
    return (low, value, high) if 0 < low <= value <= high else None


def _certainly_broken(rule: Rule, run: Run, stage: Stage) -> RuleEvidence | None:
    """The evidence that was seen while the stage ran: it was ended early, or arrivals queue up
    without end."""
    ended = any(
        broken.rule == str(rule) and broken.stage == stage.number for broken in run.broken_rules
    )
    waits = rule.metric in (TTFT.word, TTFT_FROM_DUE.word, LATENCY.word)
    if ended or (stage.why == OVERLOADED and waits):
        return RuleEvidence(rule=str(rule), excess=1.0, error=UNSURE)
    return None


def measure_rule_evidence(
    rule: Rule, seen: Evaluation, found: ObservedValue
) -> RuleEvidence | None:
    """``found`` is the rule's value. None: the stage shows nothing about the rule."""
    measure = BY_WORD[rule.metric]
    if rule.base or rule.metric in OF_RUN or measure.tag == POOLED or measure.units is RATE:
        return _of_figure(rule, found)
    part = select_requests(rule, seen.main)
    if measure.metric is None:
        known = bound_share_hits(rule, part).in_order
        hits = (known.low + known.high) / 2
        margins = measure_margins(rule, part) if rule.given else None
        beyond = hits if rule.less_is_better else 1 - hits
        allowed = rule.limit if rule.less_is_better else 1 - rule.limit
        return _of_share(str(rule), beyond, allowed, margins)
    if rule.percentile is None:
        return _of_figure(rule, found)
    bounds = bound_rule_values(rule, part, seen)
    broken = np.stack([_find_broken(rule, bounds.low), _find_broken(rule, bounds.high)])
    rises = rule.op.startswith("<")
    with np.errstate(divide="ignore", invalid="ignore"):
        margins = bounds.high / rule.limit if rises else rule.limit / bounds.low
    share = rule.percentile / 100
    return _of_share(str(rule), broken.mean(axis=0), 1 - share if rises else share, margins)


def _of_share(
    name: str, beyond: Floats, allowed: float, margins: Floats | None, *, may_fail: bool = False
) -> RuleEvidence | None:
    if not len(beyond) or not 0 < allowed < 1:
        return None
    return make_share_evidence(name, beyond, allowed, margins, may_fail=may_fail)


def _find_broken(rule: Rule, values: Floats) -> Floats:
    """1 for each value that breaks the rule, else 0."""
    return np.where(rule.comparison(values, rule.limit), 0.0, 1.0)


def make_share_evidence(
    name: str,
    beyond: Floats,
    allowed: float,
    margins: Floats | None,
    *,
    may_fail: bool = False,
) -> RuleEvidence:
    """The evidence of requests in the order of their sends: 1 for each ``beyond`` the limit.

    ``margins``: how far each request is, 1 at the limit. ``may_fail``: a failure is beyond the limit
    as well, and they show nothing about failures.
    """
    if may_fail or margins is None or np.isnan(margins).any():
        return _weigh_share(name, beyond, allowed, None if may_fail else margins)
    whole = _weigh_margins(name, beyond, allowed, margins)
    if len(margins) < 2 * MIN_VALUES:
        return whole
    with np.errstate(divide="ignore"):
        logs = np.clip(np.log(margins), -FAR, FAR)
    cut = find_settled(logs)
    rise, error = _measure_rise(logs, cut)
    start = np.sort(margins[: int(BEGIN * len(margins))])
    return replace(
        whole,
        rise=rise,
        rise_error=error,
        begin=_log_over(find_percentile(start, 100 * (1 - allowed)), 1.0),
        settled=_weigh_margins(name, beyond[cut:], allowed, margins[cut:]),
    )


def _measure_rise(logs: Floats, cut: int) -> tuple[float, float]:
    """(how much larger the values are from a cut on, the standard error)."""
    if cut < MIN_VALUES:
        return 0.0, measure_long_run(logs).deviation / math.sqrt(len(logs))
    parts = logs[:cut], logs[cut:]
    errors = (measure_long_run(part).deviation / math.sqrt(len(part)) for part in parts)
    return float(parts[1].mean() - parts[0].mean()), math.hypot(*errors)


def find_settled(logs: Floats) -> int:
    """The number of values before a series of logarithms settles: without them the error of its
    mean is least (White, An effective truncation heuristic for bias reduction in simulation output,
    Simulation 69, 1997)."""
    cells = [cell.mean() for cell in np.array_split(logs, max(len(logs) // CELL, 1))]
    values = np.array(cells)
    most = int(MOST_UNSETTLED * len(values))
    errors = [values[cut:].std() / math.sqrt(len(values) - cut) for cut in range(most + 1)]
    return int(np.argmin(errors)) * len(logs) // len(values)


def _weigh_margins(name: str, beyond: Floats, allowed: float, margins: Floats) -> RuleEvidence:
    """The allowed share of requests is beyond a percentile of the margins. It shows more than the
    requests beyond the limit, which may be few, or none."""
    share = _weigh_share(name, beyond, allowed, margins)
    agrees = np.where(beyond == 1, margins >= 1, (beyond == 0) & (margins <= 1)).all()
    low, value, high = _find_percentile(margins, allowed) if agrees else UNKNOWN
    if not 0 < low <= value <= high < math.inf:
        return share
    return RuleEvidence(
        rule=name,
        count=float(len(margins)),
        excess=_log_over(value, 1.0),
        error=max(math.log(value / low), STEADY),
        error_above=max(math.log(high / value), STEADY),
        share=share,
    )


def _find_percentile(margins: Floats, allowed: float) -> tuple[float, float, float]:
    """The value that the allowed share of requests is beyond, between the values one standard error
    lower and higher."""
    count = len(margins)
    if count < MIN_VALUES:
        return UNKNOWN
    ordered = np.sort(margins)
    value = level_of_share(ordered, 1 - allowed)
    if count_beyond(count, allowed) < FEW_BEYOND:  # it may lie beyond all values
        low, high = estimate_percentile_interval(margins, 100 * (1 - allowed)).ends
        ends = (low or 0.0, math.inf if high is None else high)
        if not 0 < value < math.inf:
            return UNKNOWN
        lower, higher = ((end / value) ** (1 / NORMAL_REACH) for end in ends)
        return value * lower, value, value * higher
    size = count / weigh_share((margins > value).astype(np.float64)).inflation
    factor = 1 + math.sqrt((1 - allowed) / (allowed * size))
    lower_share = 1 - min(allowed * factor, 1.0)
    return (
        level_of_share(ordered, lower_share),
        value,
        level_of_share(ordered, 1 - allowed / factor),
    )


def _weigh_share(name: str, beyond: Floats, allowed: float, margins: Floats | None) -> RuleEvidence:
    count = len(beyond)
    share = float(beyond.mean())
    evidence = RuleEvidence(rule=name, beyond=share, allowed=allowed, count=float(count))
    if count < MIN_VALUES:
        # how correlated so few are is not known: those beyond may have one cause
        return replace(evidence, inflation=max(float(beyond.sum()), 1.0) if share < 1 else 1.0)
    if 0 < share < 1:
        variance = measure_long_run(beyond).deviation ** 2
        return replace(evidence, inflation=max(variance / (share * (1 - share)), 1.0))
    if share == 1 or (margins is not None and np.isnan(margins).any()):
        margins = None
    ones = 1 - beyond if share == 0 else beyond
    low = estimate_share_interval(ones, margins=margins).low or 0.0
    if low >= 1:
        return replace(evidence, count=MOST_SURE * count)
    size = math.log(TAIL) / math.log(low) if low > 0 else 1.0
    return replace(evidence, count=min(size, MOST_SURE * count))


def _of_figure(rule: Rule, found: ObservedValue) -> RuleEvidence | None:
    if found.value is None:
        return None
    rises = rule.op.startswith("<")
    low, high = found.ends or (None, None)
    excess = _log_over(found.value, rule.limit)
    if low is None or high is None or min(low, high, found.value) <= 0 or math.isinf(high):
        error = UNSURE
    else:
        error = max(math.log(high / low) / (2 * NORMAL_REACH), CERTAIN)
    return RuleEvidence(
        rule=str(rule),
        excess=excess if rises else -excess,
        error=error,
        needs_load=not rises and BY_WORD[rule.metric].units is RATE,
    )


def _log_over(value: float, limit: float) -> float:
    if value <= 0 or limit <= 0 or math.isinf(value):
        return FAR if value > limit else -FAR
    return min(max(math.log(value / limit), -FAR), FAR)
