"""Paired: the difference of two arms from the differences of their pairs, with its 95 % interval.

A pair's two blocks see the same weather, so what the server, the machine and the network do over minutes cancels in their
ratio. The pairs' logarithms of ratios (of shares, and of what may be 0, the differences) are averaged, and Student's t says
how far that mean may be off (Student, The probable error of a mean, Biometrika 6, 1908). Within a block requests may depend
on each other as they like, as a block counts as one value. What is called better or worse has 0 outside of its interval.

The verdict is of all figures together: in each pair either arm could as well have been the other, were they equal, so the
signs of the pairs' differences are exchanged, of all figures alike, and the largest t counts (Westfall and Young,
Resampling-based multiple testing, 1993; Nichols and Holmes, Human Brain Mapping 15, 2002).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from locust_llm.records.run import Run
from locust_llm.report.compare.differences import possible_ends
from locust_llm.report.rows import SloResult
from locust_llm.report.sections.ab.model import (
    BROKEN,
    DIFFERENT,
    HOLDS,
    ISOLATION_ROOM,
    SAME,
    UNDECIDED,
    PairedComparison,
    PairedFigure,
)
from locust_llm.report.sections.ab.model import INCONCLUSIVE as OPEN
from locust_llm.report.selection import Floats, RequestSelection, has_too_few_values
from locust_llm.report.slo.client_error import ratio_errors, value_error_s
from locust_llm.report.slo.goodput import define_good_request
from locust_llm.report.slo.observed import Evaluation
from locust_llm.report.window import RateWindow
from locust_llm.settings.ab import BASE, CANDIDATE, LEAST
from locust_llm.slo.client_verdict import OK, ClientVerdict
from locust_llm.slo.grammar import FAIL, INCONCLUSIVE, PASS, Condition, Rule
from locust_llm.slo.measurement_bias import BOUNDED, OF_RECORDS, find_rule_error, find_touching_signals
from locust_llm.slo.metrics import BY_WORD, GIVEN, POOLED, RATE, SHARE, TIME
from locust_llm.slo.rules import POINT

from .blocks import (
    PairRequests,
    bound_pair_values,
    compute_pair_values,
    count_block_requests,
    find_complete_pairs,
    moved_to,
)

STATS: Final = ("avg", "p50", "p95", "p99")
LATENCIES: Final = ("ttft", "itl", "longest_stall", "request_latency")
LABELS: Final = {
    "ttft": "TTFT", "itl": "ITL", "longest_stall": "Longest Stall", "request_latency": "Request Latency",
    "ttft_from_due": "TTFT from Due",
    "requests_per_s": "Throughput (requests/s)", "output_tokens_per_s": "Output (tokens/s)",
    "error_rate": "Failures (%)", "attainment": "Attainment (%)", "goodput": "Goodput (requests/s)",
}  # fmt: skip
NORMAL: Final = 1.959963984540054
FLIPS: Final = 12
"""Up to so many pairs each way to exchange their signs is tried, of more a part."""
CHANCE: Final = 0.05
ALIKE: Final = 0.98
"""Of the same arrivals each arm gets at least this share of what the other gets."""
ISOLATED: Final = (
    ("ttft", "p50"), ("ttft", "p95"), ("itl", "p50"), ("request_latency", "p50"), ("request_latency", "p95"),
)  # fmt: skip
"""Latencies that say whether a tenant is isolated."""
BETTER: Final = "better"
WORSE: Final = "worse"
EQUAL: Final = "no difference to be seen"
UNSURE: Final = "not concluded"


class ArmDifference(NamedTuple):
    """Of two arms, from their pairs."""

    base: float
    candidate: float
    ratio: tuple[float, float, float] | None
    """candidate / base, and the ends of its interval; None: of a base of 0."""
    difference: tuple[float, float, float]
    """candidate - base, and its ends."""


class ArmError(NamedTuple):
    """What the load generator may have wrong in the figures of both arms."""

    off_s: float = 0.0
    """By how much their difference may be off either way; infinite: nobody knows."""
    reach: tuple[Floats, Floats] | None = None
    """The figures of the blocks at their least and at their most, where chunks came merged."""


def student_t_975(freedom: int) -> float:
    """97.5 % of Student's t (Abramowitz and Stegun 26.7.5; within 0.0003 from 9 degrees of freedom on)."""
    z, n = NORMAL, freedom
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )


def compute_arm_difference(values: Floats, *, relative: bool) -> ArmDifference:
    """Of (base, candidate) a row a pair, at least two. ``relative``: by their ratios, of values above 0."""
    each = np.log(values) if relative else values
    base, candidate = each.mean(axis=0)
    low, middle, high = _interval(each[:, 1] - each[:, 0])
    if relative:
        a, b = math.exp(base), math.exp(candidate)
        ratio = math.exp(middle), math.exp(low), math.exp(high)
        return ArmDifference(a, b, ratio, (b - a, a * (ratio[1] - 1), a * (ratio[2] - 1)))
    a, b = float(base), float(candidate)
    of_base = (b / a, 1 + low / a, 1 + high / a) if a > 0 else None
    return ArmDifference(a, b, of_base, (middle, low, high))


def _interval(deltas: Floats) -> tuple[float, float, float]:
    mean, n = float(deltas.mean()), len(deltas)
    reach = student_t_975(n - 1) * float(deltas.std(ddof=1)) / math.sqrt(n)
    return mean - reach, mean, mean + reach


def familywise_p_value(deltas: Floats) -> float:
    """How often equal arms would show so large a t in some figure. ``deltas``: a row a pair, a column a figure."""
    n, random = len(deltas), np.random.default_rng(1)
    if n <= FLIPS:
        signs = np.array([(1, *rest) for rest in product((1, -1), repeat=n - 1)], np.float64)
    else:
        signs = np.vstack([np.ones(n), random.choice((-1.0, 1.0), (2 ** (FLIPS - 1), n))])
    squares = (deltas**2).sum(axis=0)
    means = signs @ deltas[:, squares > 0] / n
    spread = np.sqrt(np.maximum(squares[squares > 0] / n - means**2, 1e-300))
    largest = np.abs(means / spread).max(axis=1, initial=0.0)
    return float((largest >= largest[0] * (1 - 1e-9)).mean())


# -- a run -------------------------------------------------------------------------------------------------------------


def compare_arms(
    everything: RequestSelection, run: Run, verdict: ClientVerdict | None
) -> tuple[PairedComparison, list[PairRequests]]:
    """All figures of the two arms of a run, and the pairs they are made of."""
    found = find_complete_pairs(everything.requests, run)
    few, blame = _too_few(len(found)), _blame(verdict)
    whole = Evaluation(everything, run, verdict, None, (), everything, RateWindow(everything.span()))
    figures, deltas = list[PairedFigure](), list[Floats]()
    for rule in list_compared_figures(run):
        figure, delta = _compared(rule, found, ArmError(math.inf) if few else _error(rule, found, whole))
        figures.append(figure)
        if delta is not None:
            deltas.append(delta)
    seen = familywise_p_value(np.column_stack(deltas)) if deltas and not few else None
    stands = seen is not None and seen <= CHANCE and any(figure.different for figure in figures)
    reason = (
        few or ("" if stands else blame) or ("" if deltas else "there is no figure that both arms have in each pair")
    )
    return PairedComparison(
        verdict=OPEN if reason or seen is None else DIFFERENT if seen <= CHANCE else SAME,
        reason=reason,
        chance=None if reason else seen,
        warning="; ".join(
            filter(None, (_uneven(found) if run.settings.open_loop else "", stands * _within_error(blame)))
        ),
        aa=run.settings.aa,
        isolated=run.settings.isolate or "",
        isolation=_isolation(figures, decided=not few and not blame) if run.settings.isolate else "",
        pairs=len(found),
        planned=run.settings.pairs,
        figures=tuple(figures),
    ), found


def _isolation(figures: Sequence[PairedFigure], *, decided: bool) -> str:
    """Of a tenant alone and beside others: holds, if each interval of its latencies ends below the room."""
    ends = [
        (figure.low_percent, figure.high_percent)
        for figure in figures
        if (figure.metric, figure.stat) in ISOLATED
        if figure.low_percent is not None and figure.high_percent is not None
    ]
    if not decided or not ends:
        return UNDECIDED
    if any(low > ISOLATION_ROOM for low, _ in ends):
        return BROKEN
    return HOLDS if all(high <= ISOLATION_ROOM for _, high in ends) else UNDECIDED


def _too_few(count: int) -> str:
    """Why nothing may be concluded from so few pairs; empty: there are enough."""
    return f"too few pairs: {count} came to their end, and {LEAST} are needed" if count < LEAST else ""


def _blame(verdict: ClientVerdict | None) -> str:
    """Why differences within the error of the load generator are not concluded; empty: it has none that counts."""
    if verdict is None or verdict.level == OK:
        return ""
    why = f"the client verdict is {verdict.level}: {'; '.join(verdict.reasons)}"
    return f"{why}; arms are compared where it is OK{f': {verdict.advice}' * bool(verdict.advice)}".rstrip(".")


def _within_error(blame: str) -> str:
    return f"{blame.partition(':')[0]}: differences within its error are not concluded" if blame else ""


def _error(rule: Rule, found: Sequence[PairRequests], seen: Evaluation) -> ArmError:
    """What the load generator may have wrong in this figure."""
    if seen.verdict is None or find_rule_error(seen.verdict, rule) is None:
        return ArmError()
    measure = BY_WORD[rule.metric]
    if rule.metric in GIVEN:
        return _error_of_conditions(rule, found, seen)
    each = value_error_s(rule.metric, seen, of_records=False) if measure.units is TIME else None
    if each is None:
        return ArmError(math.inf)
    merged = find_touching_signals(seen.verdict, rule) & {*OF_RECORDS}
    if not merged or measure.metric is None or rule.metric not in BOUNDED:
        return ArmError(2 * each)
    return ArmError(2 * each, bound_pair_values(rule, measure.metric, found))


def _error_of_conditions(rule: Rule, found: Sequence[PairRequests], seen: Evaluation) -> ArmError:
    """How many requests meet the conditions, where each limit is moved by as much as a value may be off."""
    assert seen.verdict is not None
    if BY_WORD[rule.metric].units is RATE and find_rule_error(seen.verdict, _rule("requests_per_s")) is not None:
        return ArmError(math.inf)
    nearer, further, merged = list[Condition](), list[Condition](), list[Condition]()
    for condition in rule.given:
        units = BY_WORD[condition.metric].units
        off_s = value_error_s(condition.metric, seen, of_records=False) if units is TIME else None
        if off_s is None:
            return ArmError(math.inf)
        off = off_s * units[condition.unit]
        step = -off if condition.op.startswith("<") else off
        nearer.append(replace(condition, number=condition.number + step))
        further.append(replace(condition, number=condition.number - step))
        if find_touching_signals(seen.verdict, Rule(condition.metric, "<", 0.0, condition.unit)) & {*OF_RECORDS}:
            merged.append(condition)
    least = compute_pair_values(replace(rule, given=tuple(nearer)), moved_to(merged, found, best=False))
    most = compute_pair_values(replace(rule, given=tuple(further)), moved_to(merged, found, best=True))
    return ArmError(0.0, (least, most))


def _widened(one: ArmDifference, values: Floats, reach: tuple[Floats, Floats] | None) -> ArmDifference:
    """With each end as much further out as the mean over the pairs may be off: with the candidate at its least beside the
    base at its most, and the other way round. The spread of the pairs stays as it was measured."""
    if reach is None:
        return one
    least, most = reach
    if np.array_equal(least, values) and np.array_equal(most, values):
        return one
    lowest, highest = np.column_stack((most[:, 0], least[:, 1])), np.column_stack((least[:, 0], most[:, 1]))
    if one.ratio is not None and all((each > 0).all() for each in (values, lowest, highest)):
        middle, low, high = (float(np.diff(np.log(each)).mean()) for each in (values, lowest, highest))
        ratio = one.ratio[0], one.ratio[1] * math.exp(low - middle), one.ratio[2] * math.exp(high - middle)
        change = one.difference[0], one.base * (ratio[1] - 1), one.base * (ratio[2] - 1)
        return ArmDifference(one.base, one.candidate, ratio, change)
    middle, low, high = (float(np.diff(each).mean()) for each in (values, lowest, highest))
    change = one.difference[0], one.difference[1] + low - middle, one.difference[2] + high - middle
    of_base = (one.candidate / one.base, 1 + change[1] / one.base, 1 + change[2] / one.base) if one.base > 0 else None
    return ArmDifference(one.base, one.candidate, of_base, change)


def _uneven(found: Sequence[PairRequests]) -> str:
    """Of an open loop: that one arm got fewer of the same arrivals."""
    sizes = {arm: sum(getattr(pair, arm).counted.size for pair in found) for arm in (BASE, CANDIDATE)}
    fewer, more = sorted(sizes, key=lambda arm: sizes[arm])
    if sizes[fewer] >= ALIKE * sizes[more]:
        return ""
    return (
        f"the {fewer} got {sizes[fewer]} of the {sizes[more]} requests that the {more} got: arrivals found no free user "
        "until their block was over, and those that would have waited longest are in no latency"
    )


def list_compared_figures(run: Run) -> Iterator[Rule]:
    """About each figure that is shown; their limits say nothing."""
    s = run.settings
    latencies = (*LATENCIES, "ttft_from_due") if s.open_loop or run.limits else LATENCIES
    shown = [_rule(word, stat) for word in latencies for stat in STATS]
    shown += [_rule(word) for word in ("requests_per_s", "output_tokens_per_s", "error_rate")]
    good, _ = define_good_request(s.rules)
    if good:
        shown += [_rule(word, given=good) for word in ("attainment", "goodput")]
    # what a rule compares is compared: else the rule could call better what the arms do not differ in
    known = {(rule.metric, rule.stat, rule.where, rule.given) for rule in shown}
    compared = (rule for rule in s.rules.by_text.values() if rule.base == BASE and BY_WORD[rule.metric].tag != POOLED)
    for rule in compared:
        if (rule.metric, rule.stat, rule.where, rule.given) not in known:
            shown.append(replace(_rule(rule.metric, rule.stat, rule.given), where=rule.where))
    yield from shown


def _rule(word: str, stat: str = "", given: tuple[Condition, ...] = ()) -> Rule:
    unit = "ms" if BY_WORD[word].units is TIME else next(iter(BY_WORD[word].units))
    rule = Rule(word, "<=", 0.0, unit, stat, given=given)
    return replace(rule, op="<=" if rule.less_is_better else ">=")


def _compared(rule: Rule, found: Sequence[PairRequests], error: ArmError) -> tuple[PairedFigure, Floats | None]:
    """The figure, and the differences of the pairs."""
    measure, values = BY_WORD[rule.metric], compute_pair_values(rule, found)
    label = _label(rule)
    relative = measure.units is not SHARE and bool((values > 0).all())
    figure = PairedFigure(metric=rule.metric, stat=rule.stat, label=label, unit=rule.unit, relative=relative)
    if why := _absent(values):
        return replace(figure, note=why), None
    one, factor = compute_arm_difference(values, relative=relative), rule.factor
    _, least, most = (end * factor for end in _widened(one, values, error.reach).difference)
    change, low, high = (end * factor for end in one.difference)
    seen_low, seen_high = possible_ends((one.difference[1], one.difference[2]), one.base, rule)
    percent, low_percent, high_percent = (
        (None, None, None) if one.ratio is None or measure.units is SHARE else [(r - 1) * 100 for r in one.ratio]
    )
    figure = replace(
        figure,
        base=one.base * factor,
        candidate=one.candidate * factor,
        difference=change,
        low=None if seen_low is None else seen_low * factor,
        high=None if seen_high is None else seen_high * factor,
        percent=percent,
        low_percent=low_percent,
        high_percent=high_percent,
        word=_word(rule, (low, high), (least - error.off_s * factor, most + error.off_s * factor)),
        note=_few(rule, found),
        pairs=tuple((float(a) * factor, float(b) * factor) for a, b in values),
    )
    each = np.log(values) if relative else values
    return figure, each[:, 1] - each[:, 0]


def _label(rule: Rule) -> str:
    measure = BY_WORD[rule.metric]
    label = LABELS.get(rule.metric) or (rule.metric if measure.metric is None else measure.metric.label)
    if measure.metric is not None:
        label = f"{label} {rule.stat} ({rule.unit})"
    where = ", ".join(f"{key}={value}" for key, value in rule.where)
    return f"{label}, {where}" if where else label


def _absent(values: Floats) -> str:
    """Why there is nothing to compare."""
    if len(values) < 2:
        return "there are no two pairs"
    if np.isnan(values).any():
        empty = f"{int(np.isnan(values).sum())} of {values.size} blocks have no request that counts for it"
        return f"{empty}, longer blocks (--block-duration) have more requests"
    if np.isinf(values).any():
        return f"it lands on a failure in {int(np.isinf(values).sum())} of {values.size} blocks"
    return ""


def _few(rule: Rule, found: Sequence[PairRequests]) -> str:
    least = min(count_block_requests(rule, found), default=0)
    if rule.percentile is None or not has_too_few_values(least, rule.percentile):
        return ""
    takes = math.ceil(100 / (100 - rule.percentile))
    return f"a block has {least} requests at least, and {rule.stat} takes {takes}: it is little more than the slowest"


def _word(rule: Rule, ends: tuple[float, float], widest: tuple[float, float]) -> str:
    """``widest``: the ends with what the load generator may have wrong."""
    low, high = ends
    if widest != ends and widest[0] <= 0 <= widest[1]:
        return UNSURE
    if low <= 0 <= high:
        return EQUAL
    return WORSE if (low > 0) == rule.less_is_better else BETTER


# -- rules against the base --------------------------------------------------------------------------------------------


def judge_paired_rules(
    results: Iterable[SloResult], seen: Evaluation, compared: PairedComparison, found: Sequence[PairRequests]
) -> tuple[SloResult, ...]:
    """The results with those of rules against the base made anew, from the pairs."""
    settings, few = seen.run.settings, _too_few(compared.pairs)
    rules = {text: rule for text, rule in settings.rules.by_text.items() if rule.base == BASE}
    judged_anew = []
    for result in results:
        rule = rules.get(result.rule)
        if rule is not None:
            error = ArmError(math.inf) if few else _error(rule, found, seen)
            blame = few or _blame(seen.verdict)
            result = _judged(rule, result, blame, error, found, by_point=settings.slo_mode == POINT)
        judged_anew.append(result)
    return tuple(judged_anew)


def _judged(
    rule: Rule, result: SloResult, blame: str, error: ArmError, found: Sequence[PairRequests], *, by_point: bool
) -> SloResult:
    """``blame``: why it is not decided where an error reaches the limit."""
    rule = replace(rule, op="<=" if rule.less_is_better else ">=")
    values = compute_pair_values(rule, found)
    if why := _absent(values):
        return replace(result, status=INCONCLUSIVE, count=len(found), reason=why)
    relative = BY_WORD[rule.metric].units is not SHARE and bool((values > 0).all())
    one = compute_arm_difference(values, relative=relative)
    if rule.unit == "%" and one.ratio is None:
        why = "it is 0 at the base, and there is no percentage of 0: give the tolerance in another unit"
        return replace(result, status=INCONCLUSIVE, count=len(found), reason=why)
    value, low, high = _worse(rule, one)
    ends = (value, value) if by_point else (low, high)
    _, least, most = _worse(rule, _widened(one, values, error.reach))
    widest = (value + least - low, value + most - high) if by_point else (least, most)
    off = (error.off_s, error.off_s)
    if rule.unit == "%" and one.ratio is not None and math.isfinite(error.off_s):
        off = ratio_errors(one.base, one.ratio[0], error.off_s / 2, error.off_s / 2)
    furthest = widest[0] - off[0], widest[1] + off[1]
    held = {end <= rule.limit for end in ends}
    stands = len({*held, *(end <= rule.limit for end in furthest)}) == len(held)
    status = INCONCLUSIVE if len(held) > 1 or not stands else PASS if held.pop() else FAIL
    reason = "" if status != INCONCLUSIVE else "its 95% interval crosses the limit, more pairs may tell"
    return replace(
        result,
        status=status,
        observed=value * rule.factor,
        low=low * rule.factor,
        high=high * rule.factor,
        worst=None,
        count=len(found),
        reason=reason if stands else blame.partition(":")[0],  # the verdict of the arms has it in full
    )


def _worse(rule: Rule, one: ArmDifference) -> tuple[float, float, float]:
    """By how much the candidate is worse, and the ends of the interval: a share of the base, or in the rule's unit."""
    value, low, high = one.difference
    if rule.unit == "%":
        value, low, high = [ratio - 1 for ratio in one.ratio or (math.nan, math.nan, math.nan)]
    return (value, low, high) if rule.less_is_better else (-value, -high, -low)
