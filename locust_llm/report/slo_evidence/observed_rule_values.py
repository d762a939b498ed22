"""Observed rule values: what an SLO rule is about, measured over the requests that it selects, and
its interval."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import msgspec
import numpy as np

from locust_llm.records.outcomes import CANCELLED, CUT, FAILURES, OK, RETRIED
from locust_llm.records.record import Record
from locust_llm.records.run_facts import Run
from locust_llm.report.answer_results import AnswersUnderLoad
from locust_llm.report.array_types import Floats
from locust_llm.report.cancelled_work import CancelledWork
from locust_llm.report.disruption_results import DisruptionEffects
from locust_llm.report.distribution_rows import order_around
from locust_llm.report.inter_token_gaps import GapCounts, merge_gap_counts
from locust_llm.report.load_records import earliest_chunks_us
from locust_llm.report.measurement_window import RateWindow
from locust_llm.report.metrics_by_group import estimate_input_lengths
from locust_llm.report.open_loop_delivery import Delivery
from locust_llm.report.outages import Outage
from locust_llm.report.request_selection import RequestSelection, sum_of_known
from locust_llm.report.request_table import TextColumn
from locust_llm.report.summary_rows import IN_NO_AVERAGE
from locust_llm.slo.binomial_intervals import Ends, count_needed_values
from locust_llm.slo.load_generator_health import ClientVerdict
from locust_llm.slo.metric_definitions import (
    BY_WORD,
    GHOST_TOKENS,
    GROWING,
    LATE,
    OF_ANSWERS,
    OF_DISRUPTIONS,
    OF_SCHEDULE,
    POOLED,
    RATE,
    TTFT_FROM_DUE,
    Metric,
)
from locust_llm.slo.percentile import find_percentile, has_too_few_values
from locust_llm.slo.rules import (
    COLUMNS,
    INPUT,
    NO_SCHEDULE,
    OPERATORS,
    Condition,
    Rule,
    make_predicates,
)
from locust_llm.text.format import format_count, format_duration
from locust_llm.trends.soak_findings import SoakFindings
from locust_llm.trends.soak_text import describe_soak
from locust_llm.trends.steady_growth import GrowthVerdict

from . import confidence_intervals
from .answer_rule_values import observe_answers
from .censoring import (
    COUNTED,
    ValueBounds,
    bound_failures,
    bound_metric,
    bound_rate_amounts,
    bound_share_hits,
    bound_values,
    measure_margins,
    value_of_failure,
)
from .confidence_intervals import MIN_VALUES, SHORT, ConfidenceInterval, ShareEvidence
from .disruption_rule_values import observe_disruptions
from .long_run_error import weigh_shapes
from .observed_value import ObservedValue as ObservedValue

TOO_FEW: Final = "too few samples"
"""Begins a reason that more requests may change."""
FEW_MOMENTS: Final = "clients left at too few moments for an interval: {needed} may have one"
STRETCHES: Final = 64
"""Of a run, for figures that are of no single request: pooled gaps."""
THIRDS: Final = 3
"""Of a run, whose figures show how fast a figure gets worse."""
MAX_BINS: Final = 512
PER_BIN: Final = 4
"""Of time, for rates: at most so many, of so many requests each."""
ENOUGH: Final = PER_BIN * MIN_VALUES
"""Of fewer requests nothing is left out of a rate's interval, and it is widened."""
DECIMALS: Final = 6
"""Of interpolated rates: their rounding errors are no trend."""
GAP_LEVELS: Final = 400
"""Between so many values of all gaps the ends of a percentile's interval are looked for, half of
them in the largest tenth."""
ENDLESS_US: Final = 10**18
"""A gap that has no end: 30,000 years."""
KINDS: Final = 10
"""How many user classes, names or models are listed."""


class Evaluation(NamedTuple):
    """What the rules are held against."""

    main: RequestSelection
    """The requests of the profiling phase."""
    run: Run
    verdict: ClientVerdict | None
    delivery: Delivery | None
    records: Iterable[Record]
    """Those that ``main.requests`` was made of, in its order, to be read again: only for rules
    about pooled gaps."""
    ended: RequestSelection
    """The requests of which rates are made: of a stage those that ended in its measured time, else
    ``main``."""
    time: RateWindow
    """What these rates are over."""
    last_silence: Outage | None = None
    """The outage that lasted to the end of the run. None: the server answered to the end."""
    outages: tuple[Outage, ...] = ()
    answers: AnswersUnderLoad | None = None
    """What the checks of answers found. None: there were none."""
    disruptions: DisruptionEffects | None = None
    """What the commands of ``--disrupt`` did. None: there were none."""
    cancelled_work: CancelledWork | None = None
    """None: the run does not check cancellations."""
    soak: SoakFindings | None = None
    """None: the run has no ``--soak``."""
    settled: RateWindow | None = None
    """``time`` without the start and the end of the load. None: they are not in it, or too little
    is left without them."""
    broken_lines: int = 0
    """The records that could not be read."""


def compute_rule_value(rule: Rule, seen: Evaluation) -> ObservedValue:
    """The figure of a rule; what stands in no column and in no count says so in its note."""
    measure = BY_WORD[rule.metric]
    if rule.metric in OF_ANSWERS:
        return observe_answers(rule.metric, seen.answers)
    if rule.metric in OF_DISRUPTIONS:
        return observe_disruptions(rule.metric, seen.disruptions)
    if rule.metric == GHOST_TOKENS:
        return _observe_ghost_tokens(seen.cancelled_work)
    if rule.metric == GROWING:
        return _observe_growing(seen.soak)
    if rule.metric in OF_SCHEDULE:
        if (d := seen.delivery) is None:
            return ObservedValue(None, note=NO_SCHEDULE.format(rule.metric))
        value = d.share if rule.metric == "delivered" else d.completed_share
        counted = d.due if rule.metric == "delivered" else d.due - d.cancelled
        why = "requests last as long as half of the run"
        if d.by_chance is not None:
            why = "the measured time is too short for its requests"
        if not counted:
            why = "all requests were cancelled on purpose"
        return ObservedValue(value, None, counted, note=why if value is None else "")
    part = select_requests(rule, seen.main)
    looks = len(seen.run.settings.looks) or 1
    # what was cancelled on purpose counts with what it had
    waits = measure.metric is not None and measure.metric.censored and rule.stat != "avg"
    if not part.outcome(*COUNTED, *([CANCELLED] if waits else [])).size:
        return ObservedValue(None, note=_nobody(rule, seen.main))
    if measure.tag == POOLED:
        return _pooled(rule, part.outcome(OK, CUT), seen, looks)
    if measure.metric is not None:
        unsent = 0 if rule.where else count_unsent_arrivals(measure.metric, seen.delivery)
        return _distribution(
            rule, part, measure.metric, bound_rule_values(rule, part, seen), unsent, looks
        )
    if measure.units is RATE:
        return _find_unanswered(rule, part, seen) or _rate(
            rule, select_requests(rule, seen.ended), seen, looks
        )
    return _share(rule, part, looks)


def _observe_ghost_tokens(work: CancelledWork | None) -> ObservedValue:
    if work is None:
        return ObservedValue(None, note="cancellations were not checked")
    if work.ghost_tokens is None:
        return ObservedValue(None, count=work.cancelled, note=work.problem)
    if work.interval is None:
        return ObservedValue(
            work.ghost_tokens, count=work.cancelled, note=FEW_MOMENTS.format(needed=work.needed)
        )
    low, high = work.interval
    if work.still_running:
        note = "the server still ran requests at the end"
        return ObservedValue(work.ghost_tokens, (low, None), work.cancelled, note)
    return ObservedValue(work.ghost_tokens, (low, high), work.cancelled)


def _observe_growing(soak: SoakFindings | None) -> ObservedValue:
    if soak is None:
        return ObservedValue(None, note="no reading was taken: no request ended")
    growing = sum(one.verdict == GrowthVerdict.GROWS for one in soak.quantities)
    if not growing and soak.verdict == GrowthVerdict.OPEN:
        return ObservedValue(None, note=describe_soak(soak).rstrip("."))
    return ObservedValue(float(growing), None, soak.requests)


def _find_unanswered(rule: Rule, part: RequestSelection, seen: Evaluation) -> ObservedValue | None:
    """A rate of a run without any answer, which is below each limit; None: of another, or of a
    stage, which may be shorter than its requests."""
    if part.outcome(OK).size or seen.run.stage is not None or rule.holds(0.0):
        return None
    why = f"no request was answered in {format_duration(seen.time.seconds)}"
    return ObservedValue(0.0, None, part.size, note=why)


def select_requests(rule: Rule, main: RequestSelection) -> RequestSelection:
    """The requests that a rule is about."""
    part = main
    for column, holds in make_predicates(rule.where):
        if column == INPUT:
            part = RequestSelection(
                main.requests, part.chosen & main.where(holds(estimate_input_lengths(main))).chosen
            )
        else:
            values = main.requests.columns[column]
            if isinstance(values, TextColumn):
                part = part.only(values.select(holds))
            else:
                part = part.only(holds(main.requests.values(column)))
    return part


def _nobody(rule: Rule, main: RequestSelection) -> str:
    """No request for this rule: what there would have been."""
    if not rule.where:
        return "no request succeeded or failed"
    there = ""
    for key, _ in rule.where:
        if key in COLUMNS and main.size:
            kinds = main.requests.texts(COLUMNS[key]).rows(main.chosen).count_rows()
            there += (
                f"; the {key} is one of {', '.join(kind or '-' for kind in sorted(kinds)[:KINDS])}"
            )
    return f"no request has {', '.join(f'{key}={value}' for key, value in rule.where)}{there}"


# -- figures ---------------------------------------------------------------------------------------


def count_unsent_arrivals(metric: Metric, delivery: Delivery | None) -> int:
    """Arrivals of an open loop that were due and never sent: they waited too, and nothing says how
    long."""
    counts = metric in (TTFT_FROM_DUE, LATE) and delivery is not None and delivery.cause
    return delivery.due - delivery.sent if delivery is not None and counts else 0


def bound_rule_values(rule: Rule, part: RequestSelection, seen: Evaluation) -> ValueBounds:
    """Of a number that each request has, in the order of the sends."""
    metric, longest_s = BY_WORD[rule.metric].metric, seen.run.settings.request_timeout_s
    assert metric is not None  # it is no figure of the whole run
    longest_s = longest_s if rule.stat == "avg" else math.inf
    return bound_values(part, metric, value_of_failure(rule), longest_s).in_order


def _distribution(
    rule: Rule, part: RequestSelection, metric: Metric, known: ValueBounds, unsent: int, looks: int
) -> ObservedValue:
    """Percentiles as in the tables: linear without failures, else nearest rank."""
    counted = part.outcome(*FAILURES).size if metric.censored else 0
    if not len(known.low):
        answered = part.outcome(OK).size
        note = "no request succeeded" if counted and not answered else _none(rule.metric)
        return ObservedValue(None, note=note)
    trend = confidence_intervals.detect_trend(known.low[~known.cut])
    cancelled = part.outcome(CANCELLED).size if metric.censored else 0
    if rule.stat == "avg":
        note = (
            f"{_count_with_verb(counted, 'failure')} {IN_NO_AVERAGE}: a rule on error_rate counts "
            f"{'it' if counted == 1 else 'them'}"
            if counted
            else ""
        )
        average = _at_both(rule, known, lambda some: _average(rule, some, note, looks))
        return replace(average, trend=trend, cancelled=cancelled)
    if unsent:
        known = known.with_unknown(unsent).in_order
    found = _at_both(rule, known, lambda some: _quantile(rule, some, counted, looks))
    note = f"{unsent} arrivals were due and never sent" if unsent and not found.note else found.note
    infinite = counted if rule.percentile is not None else 0
    return replace(
        found, note=note, trend=trend, never_sent=unsent, infinite=infinite, cancelled=cancelled
    )


def _at_both(
    rule: Rule, known: ValueBounds, found: Callable[[Floats], ObservedValue]
) -> ObservedValue:
    """The figure at the best and at the worst of what is not known, and an interval that reaches
    over both."""
    low = found(known.low)
    high = low if known.known else found(known.high)
    open_ = known.low != known.high
    if BY_WORD[rule.metric].metric is not None and rule.stat != "avg" and not rule.base:
        within = OPERATORS[rule.op]  # each value tells by itself on which side of the limit it is
        open_ = within(known.low, rule.limit) != within(known.high, rule.limit)
    return _between(rule, low, high, int(known.cut.sum()), int((open_ & known.cut).sum()))


def _between(
    rule: Rule, low: ObservedValue, high: ObservedValue, cut: int, undecided: int
) -> ObservedValue:
    """One of two figures, between which the true one lies."""
    if low.value is None or high.value is None:
        return low
    best, worst = (low, high) if rule.op.startswith("<") else (high, low)
    ends: Ends | None
    if low.ends is None or high.ends is None:
        ends = None if low.value == high.value else (low.value, high.value)
    else:
        ends = low.ends[0], high.ends[1]
    sizes = [size for size in (low.size, high.size) if size is not None]
    is_low = rule.percentile is not None and rule.percentile < 50
    return replace(
        best,
        worst=None if low.value == high.value else worst.value,
        ends=ends,
        cut=cut,
        undecided=undecided,
        later=worst.later,
        settled=best.settled if low.value == high.value else None,
        size=min(sizes, default=None),
        extrapolated=(
            high if rule.percentile is not None and rule.percentile >= 50 else low
        ).extrapolated,
        basis=(low if is_low else high).basis,
        slowest=(low if is_low else high).slowest,
    )


def _quantile(rule: Rule, values: Floats, failures: int, looks: int) -> ObservedValue:
    """A percentile, the smallest or the largest value."""
    ordered = np.sort(values)
    percentile = rule.percentile
    if percentile is None:
        value = float(ordered[0] if rule.stat == "min" else ordered[-1])
        later = _extrapolate_values(rule, values, np.min if rule.stat == "min" else np.max)
        return ObservedValue(value, None, len(ordered), _landed(rule, value, failures), later=later)
    nearest = bool(failures)
    value = find_percentile(ordered, percentile, nearest=nearest)
    found = _with(
        value,
        confidence_intervals.estimate_percentile_interval(
            values, percentile, looks=looks, ordered=ordered
        ),
        len(ordered),
        _landed(rule, value, failures),
        percentile,
    )
    later = _extrapolate_values(
        rule,
        values,
        lambda some: find_percentile(order_around(some, [percentile]), percentile, nearest=nearest),
        # few values make a far percentile of a third, more make its median
        lambda some: find_percentile(order_around(some, [50]), 50, nearest=nearest),
    )
    return replace(found, later=later)


def _extrapolate_values(
    rule: Rule, values: Floats, *figures: Callable[[Floats], float]
) -> float | None:
    """Of values in the order of time, and the first of these figures; the others show too how fast
    it gets worse."""
    if len(values) < MIN_VALUES:
        return None
    thirds = np.array_split(values, THIRDS)
    courses = list[list[float]]()
    for figure in figures:
        courses.append([float(figure(third)) for third in thirds])
    return _extrapolate(rule, *courses)


def _extrapolate(rule: Rule, course: Sequence[float], *others: Sequence[float]) -> float:
    """What a figure with this course over the thirds of a run comes to in as much time again, if it
    goes on to get worse as fast as from the middle third to the last, or as over all of them,
    whichever is faster."""
    last = course[-1]
    if math.isinf(last):
        return last
    worse = 1.0 if rule.op.startswith("<") else -1.0
    fastest = 0.0
    for begin, middle, end in (course, *others):
        for step in (worse * (end - middle), worse * (end - begin) / 2):
            if step > fastest:  # of two infinite medians it is no number
                fastest = step
    return last + worse * THIRDS * fastest


def _with(
    value: float,
    interval: ConfidenceInterval,
    count: int,
    note: str = "",
    percentile: float | None = None,
) -> ObservedValue:
    if interval is confidence_intervals.NONE:
        return ObservedValue(value, count=count, note=note or _few(count, percentile))
    if count < MIN_VALUES and not note:
        note = _few(count, percentile)
    low, high = interval.ends  # an interpolated percentile may lie beside its nearest ranks
    ends = (None if low is None else min(low, value)), (None if high is None else max(high, value))
    return ObservedValue(
        value, ends, count, note, size=interval.size, extrapolated=interval.extrapolated,
        basis=interval.basis, slowest=interval.slowest,
    )  # fmt: skip


def _landed(rule: Rule, value: float, failures: int) -> str:
    lands = failures and math.isinf(value)
    return f"{rule.stat} lands on one of {failures} failed requests" if lands else ""


def _average(rule: Rule, values: Floats, note: str, looks: int) -> ObservedValue:
    """Of values in the order of their sends."""
    found = _with(
        float(values.mean()),
        confidence_intervals.estimate_mean_interval(values, looks=looks),
        len(values),
        note,
    )
    return replace(found, later=_extrapolate_values(rule, values, np.mean))


def _share(rule: Rule, part: RequestSelection, looks: int) -> ObservedValue:
    if absent := _absent(part, rule.given):
        return ObservedValue(None, note=absent)
    known = bound_share_hits(rule, part).in_order
    if not len(known.low):
        return ObservedValue(None, note=_none(rule.metric))
    trend = confidence_intervals.detect_trend(known.low[~known.cut])
    margins = measure_margins(rule, part) if rule.given else None
    most = _bound_unfailed_share(part, looks) if rule.given else 1.0

    def found(ones: Floats) -> ObservedValue:
        known_margins = None if margins is None else _fit_margins(margins, ones)
        interval = confidence_intervals.estimate_share_interval(
            ones, margins=known_margins, looks=looks
        )
        if interval.low is not None:
            interval = interval._replace(low=min(interval.low, most))
        later = _extrapolate_values(rule, ones, np.mean)
        return replace(_with(float(ones.mean()), interval, len(ones)), later=later)

    both = replace(_at_both(rule, known, found), trend=trend)
    settled = known.low == known.high
    if both.ends is None or settled.all() or settled.sum() < MIN_VALUES:
        return both
    chosen = None if margins is None else margins[settled]
    most = _bound_unfailed_share(part.outcome(OK, *FAILURES), looks) if rule.given else 1.0
    ends = _bound_by_known(known.only(settled), len(known.low), chosen, most, looks)
    return replace(both, ends=_narrow(both.ends, ends))


def _bound_by_known(
    known: ValueBounds, count: int, margins: Floats | None, most: float, looks: int
) -> Ends:
    """The interval of a share by those of ``count`` requests of which it is known, with all others
    at their worst and at their best (Manski). That the others are the last ones is because the run
    ended, and shows no slow phase. ``most``: ``_bound_unfailed_share``."""
    ones = known.low
    fitted = None if margins is None else _fit_margins(margins, ones)
    found = confidence_intervals.estimate_share_interval(ones, margins=fitted, looks=looks)
    part = len(ones) / count
    low = None if found.low is None else min(found.low, most) * part
    high = None if found.high is None else 1 - (1 - found.high) * part
    return low, high


def _narrow(ends: Ends, others: Ends) -> Ends:
    """The part that two intervals share; an end that one lacks is the other's."""
    lows = [low for low in (ends[0], others[0]) if low is not None]
    highs = [high for high in (ends[1], others[1]) if high is not None]
    return max(lows, default=None), min(highs, default=None)


def _bound_unfailed_share(part: RequestSelection, looks: int) -> float:
    """What the upper end of the error rate leaves of all: a request that fails meets no condition,
    and how values spread says nothing of failures."""
    failed = bound_failures(part).in_order.high
    if not len(failed):
        return 1.0
    return 1 - (confidence_intervals.estimate_share_interval(failed, looks=looks).high or 0.0)


def _fit_margins(margins: Floats, ones: Floats) -> Floats:
    """At most 1 where a request counts as a good one, and above where not: nobody knows how far, of
    one that was cut."""
    good: Floats = np.where(
        ones > 0, np.minimum(margins, 1.0), np.where(margins > 1, margins, math.inf)
    )
    return good


def _rate(rule: Rule, part: RequestSelection, seen: Evaluation, looks: int) -> ObservedValue:
    """What successful requests amount to a second of the phase; in its stretches each counts where
    it was over. Its interval is made of what it was between the start and the end of the load, and
    holds that rate too."""
    ok = part.outcome(OK)
    time = seen.time
    counted = part.outcome(*COUNTED) if rule.metric == "goodput" else part.outcome(OK, *FAILURES)
    if not time.seconds > 0:
        return ObservedValue(None, note="the phase took no time")
    if absent := _absent(part, rule.given):
        return ObservedValue(None, note=absent)
    if ok.size and any(
        sum_of_known(ok[column]) is None for column in BY_WORD[rule.metric].sums or ()
    ):
        return ObservedValue(None, note="no request has a count of its tokens")
    known = bound_rate_amounts(rule, part)
    count, settled = counted.size, seen.settled
    if settled is not None:
        if (within := _count_ended(counted, settled)) >= ENOUGH:
            count, time = within, settled
        else:
            settled = None
    bins = min(MAX_BINS, max(count // PER_BIN, min(count, MIN_VALUES)))

    def found(through: Floats) -> ObservedValue:
        value = float(through.sum()) / seen.time.seconds
        if bins < MIN_VALUES:
            return ObservedValue(value, count=count, note=_few(count))
        make_rates = _count_rates if settled is None else _interpolate_rates
        rates = make_rates(through, known.at, time, bins)
        interval = confidence_intervals.estimate_rate_interval(rates, looks=looks)
        own = float(rates.mean())
        if count < ENOUGH:
            interval = confidence_intervals.widen_rate_of_few(interval, value, ok.size)
        measured = replace(
            _with(value, interval, counted.size),
            size=None,
            trend=confidence_intervals.detect_trend(rates),
            later=_extrapolate_values(rule, rates, np.mean),
        )
        if settled is None:
            return measured
        return _reach_settled(measured, replace(measured, value=own, ends=interval.ends))

    return _at_both(rule, known, found)


def _count_ended(part: RequestSelection, window: RateWindow) -> int:
    return int(window.holds(np.fmax(part["closed_at"], part["last_chunk_at"])).sum())


def find_seconds_for_rate(seen: Evaluation) -> float | None:
    """So long a run has enough requests between the start and the end of its load that the
    interval of its rate leaves both out. None: this run has, or it is not known."""
    if seen.settled is None:
        return None
    within = _count_ended(seen.main.outcome(OK, *FAILURES), seen.settled)
    if not 0 < within < ENOUGH:
        return None
    return seen.time.seconds + (ENOUGH / within - 1) * seen.settled.seconds


def _count_rates(through: Floats, at: Floats, time: RateWindow, bins: int) -> Floats:
    """Of equal stretches of ``time``, one after the other."""
    bin_of = np.clip((time.of(at) / time.seconds * bins).astype(np.int64), 0, bins - 1)
    rates: Floats = np.bincount(bin_of, through, bins) / (time.seconds / bins)
    return rates


def _interpolate_rates(through: Floats, at: Floats, time: RateWindow, bins: int) -> Floats:
    """The same of a part of the run. What each request adds is spread over the time since the one
    before: of one a second a stretch of 4.5 s has 4.5, and not 4 or 5."""
    there = ~time.pauses_at(at)
    order = np.argsort(at[there], kind="stable")
    seconds = time.of(at[there][order])
    total = np.cumsum(through[there][order])
    reached = np.interp(np.linspace(0.0, time.seconds, bins + 1), seconds, total, left=0.0)
    rates: Floats = np.round(np.diff(reached) / (time.seconds / bins), DECIMALS)
    return rates


def _reach_settled(found: ObservedValue, settled: ObservedValue) -> ObservedValue:
    """A rate with the interval of what it was between the start and the end of the load. It reaches
    as far from either of the two."""
    assert found.value is not None
    assert settled.value is not None
    assert settled.ends is not None
    low, high = settled.ends
    beside = found.value - settled.value
    ends = (
        None if low is None else max(0.0, min(low, low + beside)),
        None if high is None else max(high, high + beside),
    )
    return replace(found, ends=ends, settled=settled)


def _pooled(rule: Rule, part: RequestSelection, seen: Evaluation, looks: int) -> ObservedValue:
    """Of the sharp gaps of all these requests, in stretches of as many requests each, by the time
    of their send. The silence in which a request was cut is a gap too, at least as long."""
    low, high, silences = collect_gaps(part, seen)
    least, most = (_of_stretches(rule, stretches, part.size, looks) for stretches in (low, high))
    return _between(rule, least, most, part.outcome(CUT).size, silences)


def _of_stretches(
    rule: Rule, stretches: Sequence[GapCounts], requests: int, looks: int
) -> ObservedValue:
    gaps = merge_gap_counts(stretches)
    value = _of_gaps(rule, gaps)
    percentile = rule.percentile
    if value is None:
        return ObservedValue(None, note="no request has two chunks with exact timestamps")
    if rule.stat in ("min", "max"):
        return ObservedValue(value, None, gaps.count)
    counts = np.array([stretch.count for stretch in stretches], np.float64)
    if (counts > 0).sum() < MIN_VALUES:
        return ObservedValue(value, count=gaps.count, note=_few(requests, percentile))
    if percentile is not None and has_too_few_values(gaps.count, percentile):
        some = f"{format_count(gaps.count, 'gap')} of {format_count(requests, 'request')}"
        return ObservedValue(value, count=gaps.count, note=f"{TOO_FEW}: {rule.stat} of {some}")
    if math.isinf(value):
        return ObservedValue(value, (value, value), gaps.count)
    sums = np.array([stretch.sum_ms / 1e3 for stretch in stretches])
    trend = confidence_intervals.detect_trend(sums[counts > 0] / counts[counts > 0])
    later = _extrapolate_gaps(rule, stretches)
    if percentile is None:
        found = confidence_intervals.estimate_ratio_interval(sums, counts, looks=looks)
        return replace(_with(value, found, gaps.count), size=None, trend=trend, later=later)

    found = _gap_percentile_interval(gaps, requests, stretches, counts, percentile, looks)
    # its size would be one of stretches
    seen = _with(value, found, gaps.count)
    return replace(seen, size=None, trend=trend, later=later, gaps_of=requests)


def _extrapolate_gaps(rule: Rule, stretches: Sequence[GapCounts]) -> float | None:
    """As of the values of requests; None: some third has no gaps."""
    course, medians = [], []
    for places in np.array_split(np.arange(len(stretches)), THIRDS):
        gaps = merge_gap_counts([stretches[place] for place in places.tolist()])
        figure = _of_gaps(rule, gaps)
        median = _gap_percentile(gaps, 50)
        if figure is None or median is None:
            return None
        course.append(figure)
        medians.append(median)
    return _extrapolate(rule, course, medians)


def _gap_percentile_interval(
    gaps: GapCounts,
    requests: int,
    stretches: Sequence[GapCounts],
    counts: Floats,
    percentile: float,
    looks: int,
) -> ConfidenceInterval:
    """As of a percentile of ``requests``; the share within a level is a ratio of the counts of the
    stretches."""
    if percentile < 50:
        return confidence_intervals.NONE
    near = np.linspace(0, 90, GAP_LEVELS // 2, endpoint=False)
    far = 100 - np.geomspace(10, 100 / gaps.count, GAP_LEVELS // 2)
    places = np.unique(np.concatenate([near, far, [percentile, 100.0]]))
    levels = np.array([_seconds(ms) for ms in gaps.percentiles_ms(places.tolist())], np.float64)

    sums = np.array([stretch.sum_ms for stretch in stretches])
    shown = weigh_shapes(sums - sums.sum() / counts.sum() * counts)

    def weigh(level_s: float) -> ShareEvidence:
        level_us = round(level_s * 1e6) if math.isfinite(level_s) else 2 * ENDLESS_US
        within = np.array([stretch.within(level_us) for stretch in stretches], np.float64)
        return confidence_intervals.weigh_ratio(within, counts, looks, shown)

    def level_at(share: float) -> float:
        return _gap_percentile(gaps, min(100 * share, 100.0)) or 0.0

    at = int(np.searchsorted(places, percentile))
    room = confidence_intervals.find_room(requests, looks)
    seen = confidence_intervals.ValueLevels(gaps.count, weigh, level_at, room)
    return confidence_intervals.search_percentile(levels, at, percentile / 100, seen)


def collect_gaps(
    part: RequestSelection, seen: Evaluation, *, merged: bool = False
) -> tuple[list[GapCounts], list[GapCounts], int]:
    """(by stretch, the same with each silence at the end without end, how many silences). The
    records are read again: the columns do not keep which gap belongs to whom. ``merged``: with
    those beside merged chunks, at their least and at their most."""
    silence_us = np.round((part["closed_at"] - part["last_chunk_at"]) * 1e6)
    running = part.requests.has("outcome", CUT)[part.chosen]
    rows = np.flatnonzero(part.chosen)
    there = (part["chunks"] > 1) | (running & (part["chunks"] > 0))
    silences = dict(
        zip(
            rows[running & there].tolist(),
            silence_us[running & there].astype(np.int64).tolist(),
            strict=True,
        )
    )
    rows = rows[there]
    order = rows[np.argsort(part.requests.floats("sent_at")[rows], kind="stable")]
    stretch_of = np.full(len(part.requests), -1, np.int8)
    for i, some in enumerate(np.array_split(order, STRETCHES)):
        stretch_of[some] = i
    low = [GapCounts() for _ in range(STRETCHES)]
    high = [GapCounts() for _ in range(STRETCHES)] if silences or merged else low
    # as the columns have it
    finished = (record for record in seen.records if record.outcome != RETRIED)
    for row, (i, record) in enumerate(zip(stretch_of.tolist(), finished, strict=False)):
        if i < 0:
            continue
        gaps_us = record.sharp_gaps_us
        blurred = _merged_gaps_us(record) if merged else ()
        known = [*gaps_us, *(least for least, _ in blurred)]
        low[i].add(np.array([*known, silences[row]] if row in silences else known, np.int64))
        if high is not low:
            known = [*gaps_us, *(most for _, most in blurred)]
            high[i].add(np.array([*known, ENDLESS_US] if row in silences else known, np.int64))
    return low, high, len(silences)


def _merged_gaps_us(record: Record) -> tuple[tuple[int, int], ...]:
    return msgspec.structs.replace(record, merged=tuple(earliest_chunks_us(record))).blurred_gaps_us


def _of_gaps(rule: Rule, gaps: GapCounts) -> float | None:
    if rule.percentile is not None:
        return _gap_percentile(gaps, rule.percentile)
    return _seconds({"avg": gaps.avg_ms, "min": gaps.min_ms, "max": gaps.max_ms}[rule.stat])


def _gap_percentile(gaps: GapCounts, percentile: float) -> float | None:
    return _seconds(gaps.percentiles_ms([percentile])[0])


def _seconds(ms: float | None) -> float | None:
    if ms is None:
        return None
    endless = ms >= ENDLESS_US / 1e9  # one of them in an average of a million
    return math.inf if endless else ms / 1e3


def _absent(part: RequestSelection, given: Sequence[Condition]) -> str:
    """Why the conditions cannot be judged: a metric that no successful request has; empty if they
    can."""
    ok = part.outcome(OK)
    for condition in given:
        metric = BY_WORD[condition.metric].metric
        if ok.size and metric is not None and np.isnan(bound_metric(ok, metric)[0]).all():
            return _none(condition.metric)
    return ""


def _none(word: str) -> str:
    return f"it is absent: no request has a value of {word}"


def shows_correlation(found: ObservedValue) -> bool:
    """Fewer requests have no effective sample size that a reader could use: the one that their
    interval is made of is a guess for the worst."""
    return found.count >= SHORT


def explain_missing_end(found: ObservedValue) -> str:
    """Why an end of its interval is not there."""
    if found.gaps_of:
        some = f"{found.count:,} gaps of {format_count(found.gaps_of, 'request')}"
        return f"{some} vary too much over the run"
    correlated = (
        shows_correlation(found) and found.size is not None and round(found.size) < found.count
    )
    effective = f", an effective sample size of {found.size:,.0f}" if correlated else ""
    return (
        f"the run is too short for an interval with both ends: there "
        f"{'is' if found.count == 1 else 'are'} {found.count:,}{effective}"
    )


def _few(count: int, percentile: float | None = None) -> str:
    """A percentile has an interval within the measured values of far more requests than a mean."""
    are = "is" if count == 1 else "are"
    if percentile is None:
        return f"{TOO_FEW}: its interval takes {MIN_VALUES} requests, there {are} {count}"
    needed = max(MIN_VALUES, count_needed_values(percentile))
    return (
        f"{TOO_FEW}: an interval of p{percentile:g} needs {needed:,} requests, there {are} {count}"
    )


def _count_with_verb(count: int, noun: str) -> str:
    """``1 failure is``, ``2 failures are``"""
    return f"{format_count(count, noun)} {'is' if count == 1 else 'are'}"
