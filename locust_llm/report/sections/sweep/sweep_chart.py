"""The stages of a sweep as curves over its axis, with its knees."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from locust_llm.report.array_types import Floats
from locust_llm.report.chart_data.plot_data import (
    LOG_NOTE,
    LOG_RATIO,
    Limits,
    Plot,
    PlotAxis,
    PlotMark,
    PlotSeries,
    choose_log_base,
    detect_doubling,
    round_values,
)
from locust_llm.report.sections.sweep.best_points import (
    CurvePoint,
    find_pace_limits,
    mark_best_points,
)
from locust_llm.report.sections.sweep.knee import format_knee
from locust_llm.report.summary_rows import Knee, LoadLevel, SweepSummary
from locust_llm.slo.metric_definitions import BY_WORD, ITL, PER_USER, TTFT
from locust_llm.slo.percentile import has_too_few_values
from locust_llm.slo.rules import FAIL, INCONCLUSIVE, PASS, STAGES, Rule
from locust_llm.text.format import format_brief, format_duration

MAIN_VISITS_NOTE: Final = " Of several stages at one load the one with the most requests is shown."
TOGETHER_NOTE: Final = " Several stages at one load count together."
UNSOUND_NOTE: Final = " Hollow points: stages that the load generator distorted."
PASSES: Final = "passes"
OPEN: Final = "not decided"
FAILS: Final = "fails"
DISTORTED: Final = "distorted by the client"
UNJUDGED: Final = "stage"
RESULTS: Final = (
    (UNJUDGED, "decode", "dots"),
    (PASSES, "ok", "dots"),
    (OPEN, "warn", "rings"),
    (FAILS, "fail", "rings"),
    (DISTORTED, "mark", "rings"),
)
"""(result of a stage, its colour, its kind): filled points, then rings, squares and diamonds."""
P95: Final = 95.0


class LatencyAxis(NamedTuple):
    """The latency that the throughput stands against."""

    tag: str
    name: str
    column: str
    percentile: float
    rule: Rule | None
    """It is judged by this rule. None: no rule is about it."""


def plot_stages(sweep: SweepSummary, limits: Limits, rules: Sequence[Rule] = ()) -> Iterator[Plot]:
    """Throughput against latency; TTFT and ITL, throughput, goodput and attainment over the value
    of each stage; tokens a second against what a user gets. ``rules``: their percentiles are those
    of TTFT and ITL. Nothing of fewer than two stages."""
    if len(sweep.levels) < 2:
        return
    yield from _throughput_against_latency(sweep, limits, rules)
    main = replace(sweep, levels=select_main_visits(sweep.levels))
    again = len(main.levels) < len(sweep.levels)
    note = MAIN_VISITS_NOTE * again
    for plot in _plot_main_visits(main, limits, rules):
        yield replace(plot, caption=f"{plot.caption}{note}")
    yield from _attainment(sweep, again=again)
    for plot in _pareto(main, rules):
        yield replace(plot, caption=f"{plot.caption}{note}")


def _plot_main_visits(sweep: SweepSummary, limits: Limits, rules: Sequence[Rule]) -> Iterator[Plot]:
    """The charts with one point for each load."""
    x = _axis(sweep)
    knees = tuple(_knees(sweep.knees))
    titles = (
        (TTFT, "Time to first token", "TTFT", "ttft_s"),
        (ITL, "Inter-token latency", "ITL", "itl_s"),
    )
    for metric, title, name, column in titles:
        asked = [rule for rule in rules if BY_WORD[rule.metric].tag == metric.tag]
        yield from _latency(
            sweep, x, (metric.tag, title, name), knees + limits.get(column, ()), asked
        )
    yield from _throughput(sweep, x, knees)
    yield from _good(sweep, x, knees)


# -- throughput against latency --------------------------------------------------------------------


def name_result(level: LoadLevel) -> str:
    """``passes``, ``not decided``, ``fails``; without a result whether its figures can be used."""
    results = {PASS: PASSES, FAIL: FAILS}
    if level.slo_status in results:
        return results[level.slo_status]
    if level.died:
        return UNJUDGED
    if not level.sound and not level.silence:
        return DISTORTED
    return OPEN if level.slo_status == INCONCLUSIVE else UNJUDGED


def select_main_visits(levels: Sequence[LoadLevel]) -> tuple[LoadLevel, ...]:
    """A search may visit a load several times: of each the visit with the most requests."""
    best = dict[float, LoadLevel]()
    for level in levels:
        known = best.setdefault(level.value, level)
        if level.succeeded > known.succeeded:
            best[level.value] = level
    return tuple(best.values())


def _throughput_against_latency(
    sweep: SweepSummary, limits: Limits, rules: Sequence[Rule]
) -> Iterator[Plot]:
    """What more load brings, and what it costs: the knee and the limit in one picture."""
    axis = _choose_latency(rules)
    unit = "output tokens/s"
    if not any(level.output_tokens_per_s for level in sweep.levels):
        unit = "requests/s"
    points = [
        (level, throughput, latency)
        for level in sweep.levels
        if (latency := _percentile(axis.tag, axis.percentile, axis.rule, level)) is not None
        and np.isfinite(latency)
        and (throughput := _throughput_of(level, unit)) is not None
    ]
    if len({level.value for level, _, _ in points}) < 2:
        return
    name = f"{axis.name} p{axis.percentile:g}"
    marks = limits.get(axis.column, ())
    base = _choose_scale(np.array([latency for _, _, latency in points]), marks)
    main = select_main_visits([level for level, _, _ in points])
    named = [point for point in points if point[0] in main]
    path = PlotSeries(
        f"by {sweep.axis}", "faint",
        round_values(np.array([x for _, x, _ in named])),
        round_values(np.array([y for _, _, y in named])),
        kind="path", labels=tuple(f"{level.value:g}" for level, _, _ in named),
    )  # fmt: skip
    results = list[PlotSeries]()
    for result in RESULTS:
        with_it = [point for point in points if name_result(point[0]) == result[0]]
        results.append(_of_result(sweep, axis, unit, result, with_it))
    shown = [series for series in results if series.x]
    highs = chain.from_iterable(series.high for series in shown)
    intervals = any(high is not None for high in highs)
    yield Plot(
        title=f"Throughput against {name}",
        caption=(
            f"One point per stage, labelled with its {sweep.axis}. Right: more throughput. Down: "
            f"shorter {axis.name}."
        )
        + " Vertical bars: 95% intervals." * intervals + (LOG_NOTE if base else ""),
        label="; ".join(
            f"{level.value:g}: {x:,.0f} {unit}, {format_duration(y / 1e3)}, {name_result(level)}"
            for level, x, y in points
        ),
        x=PlotAxis(label=unit, unit="/s", low=0.0, high=1.08 * max(x for _, x, _ in points) or 1.0),
        y=PlotAxis(label=name, unit="ms", log=base),
        series=(path, *shown),
        marks=tuple(mark for mark in marks if mark.y is not None),
    )  # fmt: skip


def _choose_latency(rules: Sequence[Rule]) -> LatencyAxis:
    """That of the first rule on all requests of a stage, TTFT before ITL."""
    for metric, name, column in ((TTFT, "TTFT", "ttft_s"), (ITL, "ITL", "itl_s")):
        for rule in rules:
            is_of_metric = BY_WORD[rule.metric].tag == metric.tag
            if is_of_metric and rule.percentile and not rule.base and _whole(rule):
                return LatencyAxis(metric.tag, name, column, rule.percentile, rule)
    return LatencyAxis(TTFT.tag, "TTFT", "ttft_s", P95, None)


def _throughput_of(level: LoadLevel, unit: str) -> float | None:
    return level.output_tokens_per_s if unit.startswith("output") else level.requests_per_s


def _of_result(
    sweep: SweepSummary,
    axis: LatencyAxis,
    unit: str,
    result: tuple[str, str, str],
    points: Sequence[tuple[LoadLevel, float, float]],
) -> PlotSeries:
    """The stages with one result, each with its interval."""
    name, hue, kind = result
    ends = [_interval_of(axis, level) for level, _, _ in points]
    return PlotSeries(
        name,
        hue,
        round_values(np.array([x for _, x, _ in points], np.float64)),
        round_values(np.array([y for _, _, y in points], np.float64)),
        kind=kind,
        low=[low for low, _ in ends],
        high=[high for _, high in ends],
        tips=tuple(
            (
                f"{sweep.axis} {level.value:g}: {name}",
                f"{axis.name} p{axis.percentile:g} {format_duration(y / 1e3)}{_between(*end)}",
                *([f"{format_brief(x, digits=3)} {unit}"] if x != level.value else ()),
                f"{level.requests:,} requests",
            )
            for (level, x, y), end in zip(points, ends, strict=True)
        ),
    )


def _between(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return ""
    return f" (95% interval {format_duration(low / 1e3)} to {format_duration(high / 1e3)})"


def _interval_of(axis: LatencyAxis, level: LoadLevel) -> tuple[float | None, float | None]:
    """In ms, as the rule judged it; else as in the row of the stage. An unknown or unbounded end is
    None."""
    for result in level.slos:
        if axis.rule is not None and result.rule == str(axis.rule):
            return _finite_ms(result.low, axis.rule), _finite_ms(result.high, axis.rule)
    row = level.latencies.get(axis.tag)
    ends = None if row is None else row.intervals.get(axis.percentile)
    return (None, None) if ends is None else ends


def _finite_ms(value: float | None, rule: Rule) -> float | None:
    return None if value is None or not np.isfinite(value) else value / rule.factor * 1e3


def _choose_scale(values: Floats, marks: Sequence[PlotMark]) -> int:
    """10 also where the highest value is so far above a limit that the limit would lie on the
    axis."""
    limits = [mark.y for mark in marks if mark.y]
    if len(values) and any(float(values.max()) > LOG_RATIO * limit for limit in limits):
        return 10
    return choose_log_base(values)


# -- over the value of the stages ------------------------------------------------------------------


def _axis(sweep: SweepSummary) -> PlotAxis:
    values = sorted(level.value for level in sweep.levels)
    base = detect_doubling(values)
    few = len(values) <= 12
    margin = (1.15, 1 / 1.15)
    span = (values[-1] - values[0]) * 0.04 or 1.0
    return PlotAxis(
        label=f"{sweep.axis} ({sweep.unit})" if sweep.unit else sweep.axis,
        log=base,
        low=values[0] * margin[1] if base else values[0] - span,
        high=values[-1] * margin[0] if base else values[-1] + span,
        ticks=tuple((value, f"{value:g}") for value in values) if few else (),
    )


def _knees(knees: Sequence[Knee]) -> Iterator[PlotMark]:
    """One mark for all rules that found the same."""
    knees_at: dict[float, list[Knee]] = {}
    for knee in knees:
        if knee.value is not None:
            knees_at.setdefault(knee.value, []).append(knee)
    for value, knees_here in sorted(knees_at.items()):
        rules = ", ".join(knee.rule for knee in knees_here)
        yield PlotMark(f"{format_knee(knees_here[0])}: {rules}", x=value, hue="knee")


def _curve(
    name: str,
    hue: str,
    levels: Sequence[LoadLevel],
    value: Callable[[LoadLevel], float | None],
    dashed: bool = False,
) -> PlotSeries:
    x = list[float]()
    y = list[float]()
    for level in levels:
        height = value(level)
        if height is not None and np.isfinite(height):
            x.append(level.value)
            y.append(height)
    return PlotSeries(
        name, hue, round_values(np.array(x)), round_values(np.array(y)), dashed=dashed
    )


def _unsound(levels: Sequence[LoadLevel], *curves: PlotSeries) -> list[PlotSeries]:
    """Rings over the points of stages that the load generator distorted."""
    bad = {level.value for level in levels if not level.sound and not level.silence}
    rings = PlotSeries(DISTORTED, "fail", [], [], kind="rings")
    for curve in curves:
        for x, y in zip(curve.x, curve.y, strict=True):
            if x in bad:
                rings.x.append(x)
                rings.y.append(y)
    return [rings] if rings.x else []


def _latency(
    sweep: SweepSummary,
    x: PlotAxis,
    names: tuple[str, str, str],
    marks: tuple[PlotMark, ...],
    rules: Sequence[Rule],
) -> Iterator[Plot]:
    tag, title, name = names
    judged = {
        rule.percentile: rule
        for rule in rules
        if rule.percentile and not rule.base and _whole(rule)
    }
    percentiles = sorted({50.0, *judged, *(() if max(judged, default=0.0) > 50 else (99.0,))})
    drawn = {
        p: curve
        for p, hue in zip(percentiles, _hues(percentiles), strict=True)
        if (
            curve := _curve(
                f"p{p:g}", hue, sweep.levels, partial(_percentile, tag, p, judged.get(p))
            )
        ).x
    }
    if not drawn:
        return
    curves = [*drawn.values()]
    main = max((p for p in judged if p in drawn), default=max(drawn))
    results = _results(sweep, LatencyAxis(tag, name, "", main, judged.get(main)))
    values = np.concatenate([np.array(curve.y, np.float64) for curve in curves])
    base = _choose_scale(values, marks)
    points = list(zip(curves[-1].x, curves[-1].y, strict=True))
    figures = ", ".join(
        f"{format_duration(None if y is None else y / 1e3)} at {at:g}"
        for at, y in points
        if at is not None
    )
    rings = [] if results else _unsound(sweep.levels, *curves)
    which = f"{' and '.join(curve.name for curve in curves)} of each stage"
    coloured = f" The points of p{main:g} have the result of their stage." if results else ""
    highs = chain.from_iterable(series.high for series in results)
    intervals = any(high is not None for high in highs)
    bars = " Vertical bars: 95% intervals." if intervals else ""
    yield Plot(
        title=title,
        caption=f"{name} of successful requests: {which}.{coloured}{bars}"
        + _scarce(sweep, tag, percentiles[-1]) + (UNSOUND_NOTE if rings else "") + (LOG_NOTE if base else ""),
        label=f"{curves[-1].name} of {name}: {figures}",
        x=x,
        y=PlotAxis(label=name, unit="ms", log=base),
        series=(*curves, *results, *rings),
        marks=marks,
    )  # fmt: skip


def _results(sweep: SweepSummary, axis: LatencyAxis) -> list[PlotSeries]:
    """The stages as points by their result, over the value of each. Nothing of a sweep without
    rules."""
    points = [
        (level, level.value, latency)
        for level in sweep.levels
        if (latency := _percentile(axis.tag, axis.percentile, axis.rule, level)) is not None
        and np.isfinite(latency)
    ]
    if not any(level.slo_status for level, _, _ in points):
        return []
    series = list[PlotSeries]()
    for result in RESULTS:
        with_it = [point for point in points if name_result(point[0]) == result[0]]
        series.append(_of_result(sweep, axis, sweep.unit, result, with_it))
    return [one for one in series if one.x]


def _whole(rule: Rule) -> bool:
    """It is about all requests of a stage."""
    return all(key in STAGES for key, _ in rule.where)


def _hues(percentiles: Sequence[float]) -> Iterator[str]:
    for percentile in percentiles:
        if percentile <= 50:
            yield "p50"
        else:
            yield "p95" if percentile < 99 else "p99"


def _percentile(tag: str, percentile: float, rule: Rule | None, level: LoadLevel) -> float | None:
    """In ms, from the row of the stage; else, as judged by the rule."""
    row = level.latencies.get(tag)
    if row is not None and percentile in row.percentiles:
        return row.percentiles[percentile]
    judged = next(
        (r.observed for r in level.slos if rule is not None and r.rule == str(rule)), None
    )
    return None if rule is None or judged is None else judged / rule.factor * 1e3


def _scarce(sweep: SweepSummary, tag: str, percentile: float) -> str:
    rows = [(level.value, level.latencies.get(tag)) for level in sweep.levels]
    few = [
        f"{value:g}"
        for value, row in rows
        if row and row.count and has_too_few_values(row.count, percentile)
    ]
    if not few:
        return ""
    return (
        f" Under {100 / (100 - percentile):.0f} requests, too few for a p{percentile:g}, at "
        f"{', '.join(few)}."
    )


def _throughput(sweep: SweepSummary, x: PlotAxis, knees: tuple[PlotMark, ...]) -> Iterator[Plot]:
    curve = _curve(
        "output tokens/s", "decode", sweep.levels, lambda level: level.output_tokens_per_s
    )
    unit = "output tokens/s"
    if not curve.x:
        unit = "requests/s"
        curve = _curve(unit, "decode", sweep.levels, lambda level: level.requests_per_s)
    if not curve.x:
        return
    most = max(y for y in curve.y if y is not None)
    yield Plot(
        title="Throughput",
        caption="Successful requests. Where the curve is flat, more load only adds waiting.",
        label=f"{unit}: at most {most:,.0f}",
        x=x,
        y=PlotAxis(label=unit, unit="/s"),
        series=(curve, *_unsound(sweep.levels, curve)),
        marks=knees,
    )


def _good(sweep: SweepSummary, x: PlotAxis, knees: tuple[PlotMark, ...]) -> Iterator[Plot]:
    measured = [level for level in sweep.levels if level.goodput_per_s is not None]
    if measured:
        curve = _curve("good requests/s", "ok", measured, lambda level: level.goodput_per_s)
        ends = [(level.goodput_low, level.goodput_high) for level in measured]
        good = PlotSeries(
            curve.name, curve.hue, curve.x, curve.y,
            low=[None if low is None else low for low, _ in ends], high=[high for _, high in ends],
        )  # fmt: skip
        everything = _curve(
            "all requests/s", "faint", sweep.levels, lambda level: level.requests_per_s, dashed=True
        )
        best = max(measured, key=lambda level: level.goodput_per_s or 0.0)
        yield Plot(
            title="Goodput",
            caption=(
                f"Good requests per second, with their 95% interval{_conditions(sweep)}, and all "
                "successful requests. Where they diverge, responses are too slow."
            ),
            label=f"goodput: best {format_brief(best.goodput_per_s, digits=3)} per second at "
            f"{best.value:g}",
            x=x,
            y=PlotAxis(label="requests/s", unit="/s"),
            series=(everything, good, *_unsound(sweep.levels, curve)),
            marks=knees,
        )


def _attainment(sweep: SweepSummary, *, again: bool) -> Iterator[Plot]:
    """``again``: a load had several stages."""
    main = select_main_visits(sweep.levels)
    met = _curve("attainment", "ok", main, partial(_measure_attainment, sweep.levels))
    if met.x:
        figures = ", ".join(
            f"{format_brief(y)}% at {at:g}"
            for at, y in zip(met.x, met.y, strict=True)
            if y is not None
        )
        yield Plot(
            title="Attainment",
            caption=f"Share of good requests{_conditions(sweep)}. A failed request is not good."
            + TOGETHER_NOTE * again,
            label=f"attainment: {figures}",
            x=_axis(sweep),
            y=PlotAxis(label="attainment", unit="%", low=0.0, high=100.0),
            series=(met, *_unsound(sweep.levels, met)),
            marks=tuple(_knees(sweep.knees)),
        )


def _measure_attainment(levels: Sequence[LoadLevel], at: LoadLevel) -> float | None:
    """The share of good requests of all stages at this load, in percent. None: none is known."""
    shares = [
        (level.attainment, level.requests)
        for level in levels
        if level.value == at.value and level.attainment is not None
    ]
    count = sum(requests for _, requests in shares)
    return 100 * sum(share * requests for share, requests in shares) / count if count else None


def _conditions(sweep: SweepSummary) -> str:
    return f" ({sweep.conditions})" if sweep.conditions else ""


def _pareto(sweep: SweepSummary, rules: Sequence[Rule]) -> Iterator[Plot]:
    points = [
        (level, user, level.output_tokens_per_s)
        for level in sweep.levels
        if (row := level.latencies.get(PER_USER.tag)) and (user := row.percentiles.get(50.0)) is not None
        and level.output_tokens_per_s is not None
    ]  # fmt: skip
    if len(points) < 2:
        return
    least = min(x for _, x, _ in points)
    most = max(x for _, x, _ in points)
    room = (most - least) * 0.08 or 1.0
    curve = PlotSeries(
        "stages", "decode", round_values(np.array([x for _, x, _ in points])),
        round_values(np.array([y for _, _, y in points])),
        kind="path", labels=tuple(f"{level.value:g}" for level, _, _ in points),
    )  # fmt: skip
    bad = [(x, y) for level, x, y in points if not level.sound and not level.silence]
    rings = (
        [PlotSeries(DISTORTED, "fail", [x for x, _ in bad], [y for _, y in bad], kind="rings")]
        if bad
        else []
    )
    places = [
        CurvePoint(
            value=level.value, per_user=x, per_gpu=y, client=level.client, silence=level.silence
        )
        for level, x, y in points
    ]
    best = sorted((p.per_user, p.per_gpu) for p in mark_best_points(places) if p.best)
    room_left = max(least - room, 0.0)
    steps = PlotSeries(  # each holds down to the pace of the next slower one
        "best", "p50", round_values(np.array([room_left, *(x for x, _ in best)])),
        round_values(np.array([*(y for _, y in best), *(y for _, y in best[-1:])])), kind="steps",
    )  # fmt: skip
    asked = [
        PlotMark(f"SLO {limit.rule}", x=limit.per_user, hue="slo")
        for limit in find_pace_limits(rules)
    ]
    yield Plot(
        title="Throughput of the server against throughput per user",
        caption=(
            f"One point per stage, labelled with its {sweep.axis}. Right: users get tokens faster "
            "(median). Up: the server has more throughput. The steps join the best stages. "
            "locust-llm pareto draws this chart per GPU and for several runs."
        ),
        label="; ".join(
            f"{level.value:g}: {y:,.0f} tokens/s, {format_brief(x, digits=3)} per user"
            for level, x, y in points
        ),
        x=PlotAxis(
            label="output tokens/s per user (median)", unit="/s", low=room_left, high=most + room
        ),
        y=PlotAxis(label="output tokens/s", unit="/s"),
        series=(curve, *([steps] if best else []), *rings),
        marks=tuple(
            mark for mark in asked if mark.x is not None and room_left <= mark.x <= most + room
        ),
    )
