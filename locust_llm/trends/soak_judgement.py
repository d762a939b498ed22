"""Soak judgement: each quantity of a soak grows, is stable, or cannot be told yet. All functions are
pure."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Final

from msgspec.structs import replace

from locust_llm.slo.binomial_intervals import TAIL
from locust_llm.text.format import format_count

from .change_points import find_level_changes
from .slope_interval import fit_slope
from .soak_findings import SoakChange, SoakFindings, SoakQuantity, SoakSlope
from .soak_readings import (
    METRICS_SOURCE,
    SoakPoint,
    SoakQuantityRule,
    SoakReading,
    is_restart,
    list_points,
    list_rules,
)
from .steady_growth import (
    BLOCKS,
    Growth,
    GrowthVerdict,
    find_visible_slope,
    judge_growth,
    reduce_to_blocks,
)

PARTS: Final = 10
CHANGE_POINTS: Final = 60
"""Changes are searched in so many points."""
LEAST_CHANGE: Final = 0.02


def make_soak_findings(
    readings: Sequence[SoakReading], *, searches: bool = True
) -> SoakFindings | None:
    """None: there are no readings. ``searches``: for the smallest slope that would have shown, which
    takes 0.2 s."""
    if not readings:
        return None
    last = readings[-1]
    quantities = tuple(judge_soak(readings, last.memory_limit_bytes))
    if searches:
        quantities = tuple(_add_visible_slopes(quantities, readings))
    restarts = sum(is_restart(*pair) for pair in pairwise(readings))
    return SoakFindings(
        verdict=find_worst_verdict(quantities),
        hours=last.hours,
        requests=last.requests,
        tokens=last.tokens,
        failed=sum(one.failed for one in readings),
        restarts=restarts,
        memory_source=last.memory_source,
        memory_limit_bytes=last.memory_limit_bytes,
        quantities=quantities,
        notes=tuple(_list_notes(readings, restarts)),
    )


def _add_visible_slopes(
    quantities: Sequence[SoakQuantity], readings: Sequence[SoakReading]
) -> Iterator[SoakQuantity]:
    rules = {rule.name: rule for rule in list_rules(readings)}
    for one in quantities:
        rule = rules[one.name]
        points = list_points(readings, rule)
        grown = one.per_hour.value if one.per_hour and one.verdict == GrowthVerdict.GROWS else 0.0
        sign = -1.0 if rule.falls else 1.0
        hours = [point.hours for point in points]
        values = [sign * (point.value - grown * point.hours) for point in points]
        least = _measure_least(rule, [point.value for point in points])
        visible = find_visible_slope(hours, values, least, minima=rule.minima)
        yield replace(one, visible_per_hour=visible)


def _measure_least(rule: SoakQuantityRule, values: Sequence[float]) -> float:
    """A smaller slope does not matter."""
    return max(rule.least_per_hour * (median(values) if rule.relative else 1.0), 1e-12)


def _list_notes(readings: Sequence[SoakReading], restarts: int) -> Iterator[str]:
    if not any(one.memory_bytes is not None for one in readings):
        yield (
            "WARNING: memory was not read: the server's metrics have none. Give --pid or "
            "--memory-command."
        )
    elif readings[-1].memory_source == METRICS_SOURCE:
        yield (
            "Memory is of the process that serves the metrics page. Engines in other processes need "
            "--pid."
        )
    failed_looks = sum(one.failed_looks for one in readings)
    if failed_looks:
        failure = next(one.failure for one in readings if one.failed_looks)
        yield (
            f"WARNING: memory could not be read {format_count(failed_looks, 'time')}: {failure}."
        )
    if restarts:
        yield (
            f"WARNING: the server started anew {format_count(restarts, 'time')}. Memory, open files and "
            f"KV cache are judged from the last start on."
        )


def judge_soak(
    readings: Sequence[SoakReading], memory_limit_bytes: float | None = None
) -> Iterator[SoakQuantity]:
    """Judges each quantity that was read."""
    for rule in list_rules(readings):
        points = list_points(readings, rule)
        if points:
            yield judge_quantity(points, rule, memory_limit_bytes)


def judge_quantity(
    points: Sequence[SoakPoint], rule: SoakQuantityRule, memory_limit_bytes: float | None = None
) -> SoakQuantity:
    sign = -1.0 if rule.falls else 1.0
    hours = [point.hours for point in points]
    values = [point.value for point in points]
    signed = [sign * value for value in values]
    by_hours = judge_growth(hours, signed, _measure_least(rule, values), minima=rule.minima)
    growth = by_hours
    with_work = None
    if by_hours.verdict is not GrowthVerdict.GROWS:
        with_work = _find_growth_with_work(points, signed, rule)
        growth = with_work or by_hours
    tenth = max(len(values) // PARTS, 1)
    last = median(values[-tenth:])
    room = measure_remaining_capacity(rule, last, memory_limit_bytes)
    work = [point.requests for point in points], [point.tokens for point in points]
    per_work = [_fit(axis, signed, growth, rule) if rule.per_work else None for axis in work]
    per_hour = _fit(hours, signed, growth, rule)
    if with_work is not None and per_work[0] is not None:
        first = points[growth.begin]
        load = (points[-1].requests - first.requests) / (points[-1].hours - first.hours)
        per_hour = _scale(per_work[0], load)
    rates = _list_rates(growth, per_hour)
    length = hours[-1] - hours[0]
    return SoakQuantity(
        name=rule.name,
        label=rule.label,
        unit=rule.unit,
        verdict=growth.verdict,
        reason=growth.reason,
        first=median(values[:tenth]),
        last=last,
        from_hours=hours[growth.begin],
        per_hour=per_hour,
        per_request=per_work[0],
        per_token=per_work[1],
        needed_hours=None if growth.longer is None else growth.longer * length,
        full_in_hours=room / rates[0] if rates and room is not None else None,
        full_at_earliest_hours=room / rates[1] if rates and room is not None else None,
        changes=tuple(_find_changes(hours, values, growth, rule)),
    )


def _scale(slope: SoakSlope, factor: float) -> SoakSlope:
    return SoakSlope(value=slope.value * factor, low=slope.low * factor, high=slope.high * factor)


def _find_growth_with_work(
    points: Sequence[SoakPoint], signed: Sequence[float], rule: SoakQuantityRule
) -> Growth | None:
    """The growth along the requests: a leak per request does not grow steadily with the time where
    the load varies. None: there is none."""
    if not rule.per_work:
        return None
    try:
        growth = judge_growth(
            [one.requests for one in points], signed, math.inf, minima=rule.minima
        )
    except ValueError:  # requests came in a part of the time alone
        return None
    return growth if growth.verdict is GrowthVerdict.GROWS else None


def _fit(
    axis: Sequence[float], signed: Sequence[float], growth: Growth, rule: SoakQuantityRule
) -> SoakSlope | None:
    """The slope along an axis, from where the growth was judged on."""
    if growth.slope is None:
        return None
    begin = growth.begin
    try:
        slope = fit_slope(
            *reduce_to_blocks(axis[begin:], signed[begin:], BLOCKS, minima=rule.minima)
        )
    except ValueError:  # there were no requests, or no tokens
        return None
    if rule.falls:
        return SoakSlope(value=-slope.value, low=-slope.high(TAIL), high=-slope.low(TAIL))
    return SoakSlope(value=slope.value, low=slope.low(TAIL), high=slope.high(TAIL))


def _list_rates(growth: Growth, per_hour: SoakSlope | None) -> tuple[float, ...]:
    """The rate of growth, and the highest rate of its interval. Empty: it does not grow."""
    if growth.verdict is not GrowthVerdict.GROWS or per_hour is None:
        return ()
    return abs(per_hour.value), max(abs(per_hour.low), abs(per_hour.high))


def measure_remaining_capacity(
    rule: SoakQuantityRule, last: float, memory_limit_bytes: float | None
) -> float | None:
    """What is left of memory or KV cache. None: it is unknown, or the quantity has no limit."""
    if rule.name == "kv_free":
        return last
    if rule.name == "memory" and memory_limit_bytes is not None:
        return max(memory_limit_bytes - last, 0.0)
    return None


def _find_changes(
    hours: Sequence[float], values: Sequence[float], growth: Growth, rule: SoakQuantityRule
) -> Iterator[SoakChange]:
    if growth.verdict is GrowthVerdict.GROWS:
        return
    blocks = min(CHANGE_POINTS, len(values))
    at, level = reduce_to_blocks(hours, values, blocks, minima=rule.minima and not rule.falls)
    for change in find_level_changes(level, LEAST_CHANGE):
        if math.isfinite(change.shift):
            yield SoakChange(hours=at[change.at], before=change.before, after=change.after)


def find_worst_verdict(quantities: Sequence[SoakQuantity]) -> str:
    """Growth is the worst, then what cannot be told."""
    found = {one.verdict for one in quantities}
    for verdict in (GrowthVerdict.GROWS, GrowthVerdict.OPEN, GrowthVerdict.STABLE):
        if verdict in found:
            return verdict
    return GrowthVerdict.OPEN
