"""Client error: how far a figure may be off by what the load generator did, and so whether the
decision of a rule stands.

Stamps may be off by what the certificate of the machine says, chunks that came merged by what the
stamps around them leave open, and any latency by as much as the load generator itself was late.
What none of these bounds is not known.
"""

import math
from dataclasses import replace
from typing import Final

import msgspec
import numpy as np

from locust_llm.records.accuracy import (
    ErrorBounds,
    combine_accuracies,
    largest_error_ms,
    percentile_error_ends,
    spread_over_tokens,
)
from locust_llm.records.record import CUT, OK
from locust_llm.report.gaps import GapCounts
from locust_llm.report.occupancy import permit_lag_s
from locust_llm.report.selection import RequestSelection, ratio_of_sums
from locust_llm.slo.client_verdict import GAPS_OFF, OFF_MS, SEND_LAG, TTFT_OFF, ClientVerdict
from locust_llm.slo.grammar import Condition, Rule
from locust_llm.slo.intervals import Ends
from locust_llm.slo.measurement_bias import (
    BOUNDED,
    BOUNDING,
    DELAYS,
    OF_RECORDS,
    find_touching_signals,
)
from locust_llm.slo.metrics import BY_WORD, GIVEN, PER_USER, RATE, TIME

from .censoring import bound_coalesced_metric, count_later_tokens
from .observed import (
    ENDLESS_US,
    Evaluation,
    ObservedValue,
    bound_rule_values,
    collect_gaps,
    compute_rule_value,
    select_requests,
)

ICL: Final = "icl"
ITL: Final = "itl"
BEYOND_P99: Final = 10.0
"""So many times the p99 of a delay is taken for its largest, where only the p99 is known."""
UNCERTIFIED: Final = ErrorBounds(
    count=1, p50_ms=OFF_MS[1], p95_ms=OFF_MS[1], p99_ms=OFF_MS[1], max_ms=OFF_MS[1]
)
"""Without a certificate: a stamp that is further off would have made the verdict INVALID."""


def widen_by_client_error(
    rule: Rule, found: ObservedValue, seen: Evaluation
) -> ObservedValue | None:
    """The figure with an interval that reaches as far as the load generator may be wrong; None:
    nobody knows how far."""
    if seen.verdict is None or found.value is None or rule.base:
        return None
    signals = find_touching_signals(seen.verdict, rule)
    measure = BY_WORD[rule.metric]
    if rule.metric in GIVEN and measure.units is not RATE:
        return _of_conditions(rule, found, seen)
    if rule.metric in BOUNDED:
        if signals - {*BOUNDING, *DELAYS}:
            return None
        wide = _by_stamps(rule, found, seen) if signals & {*BOUNDING} else found
        delay_s = largest_client_delay_s(seen) if signals & {*DELAYS} else 0.0
        return _not_below_zero(_widened(wide, delay_s))
    if measure.units is RATE and measure.metric is None and rule.metric not in GIVEN:
        return _with_late_sends(found, seen) if signals == {SEND_LAG} else None
    if measure.units is TIME or measure.metric is PER_USER:
        per_user = measure.metric is PER_USER  # 1 / ITL: as far off as that
        off_s = value_error_s(ITL if per_user else rule.metric, seen)
        if off_s is None:
            return None
        return _of_paces(found, off_s) if per_user else _not_below_zero(_widened(found, off_s))
    return None


def _not_below_zero(wide: ObservedValue) -> ObservedValue:
    """No time is below 0, however far a stamp may be off."""
    if wide.ends is None or wide.ends[0] is None:
        return wide
    return replace(wide, ends=(max(wide.ends[0], 0.0), wide.ends[1]))


def _with_late_sends(found: ObservedValue, seen: Evaluation) -> ObservedValue | None:
    """Of a rate: without the time in which requests waited for their sends there had been at most
    as many more."""
    assert found.value is not None
    main = seen.main
    share = ratio_of_sums(main["send_delay_s"], main["closed_at"] - main["admitted_at"])
    if share is None or share >= 1:
        return None
    high = max(filter(None, (found.value, *(found.ends or ()))))
    return _widened(found, 0.0, high * share / (1 - share))


def widen_by_both_errors(
    rule: Rule, found: ObservedValue, base: Evaluation, seen: Evaluation
) -> ObservedValue | None:
    """The same for how much worse a figure is than that of a base, with what both runs may have
    wrong."""
    if BY_WORD[rule.metric].units is not TIME or found.value is None:
        return None
    before_s = value_error_s(rule.metric, base)
    here_s = value_error_s(rule.metric, seen)
    if before_s is None or here_s is None:
        return None
    if rule.unit != "%":
        return _widened(found, before_s + here_s)
    of_base = compute_rule_value(rule, base).value
    return (
        None
        if not of_base
        else _widened(found, *ratio_errors(of_base, 1 + found.value, before_s, here_s))
    )


def ratio_errors(
    base_s: float, ratio: float, base_error_s: float, error_s: float
) -> tuple[float, float]:
    """By how much a ratio to the figure of a base may be lower, and higher, where both may be
    off."""
    here_s = ratio * base_s
    low = ratio - max(here_s - error_s, 0.0) / (base_s + base_error_s)
    return low, math.inf if base_s <= base_error_s else (here_s + error_s) / (
        base_s - base_error_s
    ) - ratio


def is_bounded_by_stamps(rule: Rule, verdict: ClientVerdict) -> bool:
    """Whether stamps alone may be wrong, so that the interval may be shown; delays are bounded by
    their largest, far out."""
    return not find_touching_signals(verdict, rule) & {*DELAYS}


def value_error_s(word: str, seen: Evaluation, *, of_records: bool = True) -> float | None:
    """By how much one value of a metric may be off at most; None: nobody knows. ``of_records``:
    with what the stamps around merged chunks leave open, which differs from request to request."""
    if seen.verdict is None:
        return 0.0
    signals = find_touching_signals(
        seen.verdict, Rule(word, "<", 0.0, next(iter(BY_WORD[word].units)))
    )
    metric, off_s = BY_WORD[word].metric, 0.0
    if metric is None or signals - {*BOUNDING, *DELAYS}:
        return None
    ttft, gap = _certificates(seen)
    if TTFT_OFF in signals:
        off_s += ttft.max_ms / 1e3
    if GAPS_OFF in signals:
        off_s += gap.max_ms / 1e3
    if signals & {*OF_RECORDS}:
        if word not in BOUNDED or word == ICL:
            return None
        ok = seen.main.outcome(OK)
        least, most = bound_coalesced_metric(ok, metric)
        known = ~np.isnan(least) & ~np.isnan(most)
        off_s += ttft.max_ms / 1e3 + (
            float((most - least)[known].max(initial=0.0)) if of_records else 0.0
        )
    return off_s + (largest_client_delay_s(seen) if signals & {*DELAYS} else 0.0)


def largest_client_delay_s(seen: Evaluation) -> float:
    """How late the load generator was at most: its sends, its reads, its permits, its event
    loop."""
    main = seen.main
    known = [main["send_delay_s"], main["read_lag_us"] / 1e6]
    known.append(permit_lag_s(main.requests, seen.run.limits)[main.chosen])
    largest = [float(values[~np.isnan(values)].max(initial=0.0)) for values in known]
    loop_ms = max((health.loop_lag_p99_ms for health in seen.run.health), default=0.0)
    return max(*largest, BEYOND_P99 * loop_ms / 1e3, OFF_MS[1] / 1e3)


def _certificates(seen: Evaluation) -> tuple[ErrorBounds, ErrorBounds]:
    """(of times from a send to a chunk, of gaps)."""
    return combine_accuracies([health.certificate for health in seen.run.health]) or (
        UNCERTIFIED,
        UNCERTIFIED,
    )


def _widened(found: ObservedValue, off: float, off_above: float | None = None) -> ObservedValue:
    """Each end further out by as much as any value may be off. ``off_above``: above, where that
    differs."""
    assert found.value is not None
    off_above = off if off_above is None else off_above
    if not off and not off_above:
        return found
    values = [found.value] if found.worst is None else [found.value, found.worst]
    low, high = (min(values), max(values)) if found.ends is None else found.ends
    low = None if low is None else min(low, *values) - off
    high = None if high is None else max(high, *values) + off_above
    return replace(found, ends=(low, high))


def _of_paces(found: ObservedValue, off_s: float) -> ObservedValue | None:
    """Of tokens a second of one user, each of which is 1 / ITL."""
    low, high = (found.value, found.value) if found.ends is None else found.ends
    if found.value is None or found.worst is not None:
        return None

    def slower(pace: float | None) -> float | None:
        return None if pace is None else pace / (1 + off_s * pace)

    def faster(pace: float | None) -> float | None:
        return None if pace is None or off_s * pace >= 1 else pace / (1 - off_s * pace)

    return replace(found, ends=(slower(low), faster(high)))


def _of_conditions(rule: Rule, found: ObservedValue, seen: Evaluation) -> ObservedValue | None:
    """Of a share of requests that meet conditions: each limit is moved either way by as much as its
    values may be off."""
    nearer = list[Condition]()
    further = list[Condition]()
    for condition in rule.given:
        off_s = value_error_s(condition.metric, seen, of_records=False)
        if off_s is None or BY_WORD[condition.metric].units is not TIME:
            return None
        off = off_s * BY_WORD[condition.metric].units[condition.unit]
        step = -off if condition.op.startswith("<") else off
        nearer.append(msgspec.structs.replace(condition, number=condition.number + step))
        further.append(msgspec.structs.replace(condition, number=condition.number - step))
    both = [
        compute_rule_value(
            msgspec.structs.replace(rule, given=tuple(given)), _with_merged(rule, seen, best=best)
        )
        for given, best in ((nearer, False), (further, True))
    ]
    reached = [end for one in both for end in (one.ends or (one.value, one.value))]
    values = [value for one in both for value in (one.value, one.worst) if value is not None]
    if not values or None in reached:
        return None
    known = [*values, *(end for end in reached if end is not None)]
    return replace(found, ends=(min(known), max(known)))


def _with_merged(rule: Rule, seen: Evaluation, *, best: bool) -> Evaluation:
    """The requests with the values that chunks which came merged leave open, as they meet the
    conditions best, or least."""
    requests = seen.main.requests.copy()
    every = RequestSelection(requests, np.ones(len(requests), np.bool_))
    assert seen.verdict is not None
    for condition in rule.given:
        metric = BY_WORD[condition.metric].metric
        word = Rule(condition.metric, "<", 0.0, condition.unit)
        if metric is None or not find_touching_signals(seen.verdict, word) & {*OF_RECORDS}:
            continue
        least, most = bound_coalesced_metric(every, metric)
        requests[metric.column] = (
            least if best == condition.op.startswith("<") else most
        ) / metric.base
    return seen._replace(main=RequestSelection(requests, seen.main.chosen))


# -- by the stamps ---------------------------------------------------------------------------------


def _by_stamps(rule: Rule, found: ObservedValue, seen: Evaluation) -> ObservedValue:
    """As far as merged chunks can have come sooner than their stamps, and as the certificate says
    that stamps may be off."""
    assert found.value is not None
    seen = seen._replace(merged=True)
    wide = compute_rule_value(rule, seen)
    part = select_requests(rule, seen.main)
    bounds, gap = _certificates(seen)
    figures = [value for value in (found.value, wide.value, wide.worst) if value is not None]
    low, high = wide.ends or (min(figures), max(figures))
    if rule.metric in (ICL, ITL):
        later = count_later_tokens(part.outcome(OK))
        bounds = (
            gap
            if rule.metric == ICL
            else spread_over_tokens(gap, later[np.isfinite(later)].tolist())
        )
    if rule.percentile is None:
        off_s = largest_error_ms(bounds, found.count, average=rule.stat == "avg") / 1e3
        low = None if low is None else low - off_s
        high = None if high is None else high + off_s
    else:
        low, high = _certified(low, high, _extremes(rule, part, seen), bounds)
    low = None if low is None else min(low, *figures)
    high = None if high is None else max(high, *figures)
    return replace(found, ends=(low, high), size=wide.size, extrapolated=wide.extrapolated)


def _certified(
    low: float | None, high: float | None, between: tuple[GapCounts, GapCounts], bounds: ErrorBounds
) -> Ends:
    """The interval of a percentile, each end as much wider as the percentile may be off that it is
    of all values at their least, or at their most."""
    least, most = between
    if low is not None and math.isfinite(low):  # infinite: it lies on a failure
        at = max(least.within(math.floor(low * 1e6)) - 1, 0)
        low -= _off_ms(least, at, low * 1e3, bounds)[0] / 1e3
    if high is not None and math.isfinite(high):
        at = min(most.within(math.ceil(high * 1e6) - 1), most.count - 1)
        high += _off_ms(most, at, high * 1e3, bounds)[1] / 1e3
    return low, high


def _off_ms(values: GapCounts, at: int, end_ms: float, bounds: ErrorBounds) -> tuple[float, float]:
    """(below, above) of the value with ``at`` smaller ones."""

    def quantile(percentile: float) -> float | None:
        return values.percentiles_ms([percentile])[0]

    percentile = 100 * at / max(values.count - 1, 1)
    return percentile_error_ends(
        percentile, values.count, quantile, lambda _: end_ms, quantile, bounds.pairs
    )


def _extremes(rule: Rule, part: RequestSelection, seen: Evaluation) -> tuple[GapCounts, GapCounts]:
    """All values of a rule's metric at their least, and at their most."""
    least = GapCounts()
    most = GapCounts()
    if rule.metric == ICL:
        low, high, _ = collect_gaps(part.outcome(OK, CUT), seen)
        for all_, some in ((least, low), (most, high)):
            for one in some:
                all_.merge(one)
    else:
        known = bound_rule_values(rule, part, seen)
        for all_, values, whole in ((least, known.low, np.floor), (most, known.high, np.ceil)):
            all_.add(whole(np.clip(values * 1e6, 0, ENDLESS_US)).astype(np.int64))
    return least, most
