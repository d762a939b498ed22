"""Charts over time: latencies, throughput and the gate of a run, all on one time axis."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Final

import msgspec
import numpy as np

from locust_llm.records.chart_mark_names import (
    MAX_CHANGE_MARKS,
    name_disruption,
    name_gate_change,
    name_rate_change,
    name_stage_start,
    name_users_change,
)
from locust_llm.records.outcomes import CUT, FAILURES, OK
from locust_llm.records.run_facts import LimitChange, Run, UserChange
from locust_llm.report.array_types import Bools, Floats
from locust_llm.report.gate_occupancy import Occupancy
from locust_llm.report.request_table import RequestTable
from locust_llm.settings.ab_arms import BASE, CANDIDATE
from locust_llm.text.format import format_brief, format_count, format_duration

from .gate_chart import plot_gate_over_time
from .plot_data import (
    HOLE,
    LOG_NOTE,
    MAX_POINTS,
    Limits,
    Plot,
    PlotAxis,
    PlotMark,
    PlotSeries,
    choose_log_base,
    make_dot_series,
    make_percentile_lines,
    round_values,
)
from .time_axis import TIME_GROUP, TimeAxis, make_steps

NEAR: Final = 0.03
"""Changes within this share of the time have one mark."""
FAILURE_BARS: Final = 120
"""The most bars of the strip of failures."""
INSTANT_S: Final = 1e-3
"""Requests that took no longer count at one moment."""
MIN_REQUESTS: Final = 5
"""The mean number of requests in a step of the throughput; but there are at least MIN_STEPS
steps."""
MIN_STEPS: Final = 10


def plot_latencies(requests: RequestTable, run: Run, limits: Limits) -> Iterator[Plot]:
    """TTFT and ITL. ``limits`` are the SLO's, by column."""
    marks = tuple(_marks(run, find_time_axis(requests, run), requests))
    shown = [("ttft_s", "Time to first token", "TTFT"), ("itl_s", "Inter-token latency", "ITL")]
    if not run.settings.generates:
        shown = [("latency_s", "Request latency", "latency")]
    plots = list[Plot]()
    for column, title, name in shown:
        marks_and_limits = marks + limits.get(column, ())
        plots += _latency(requests, run, column, (title, name), marks_and_limits)
    if run.stages and plots:
        which = (
            "start of each block, of the base (b) or the candidate (c)"
            if run.arms
            else "start of each stage"
        )
        caption = f"{plots[0].caption} Vertical lines: {which}."
        plots[0] = msgspec.structs.replace(plots[0], caption=caption)
    yield from plots


def plot_rates_over_time(requests: RequestTable, levels: Occupancy, run: Run) -> Iterator[Plot]:
    """Tokens and requests a second, the gate."""
    time = find_time_axis(requests, run)
    marks = tuple(_marks(run, time, requests))
    yield from _throughput(requests, run, time, marks)
    yield from plot_gate_over_time(levels, time, marks, generates=run.settings.generates)


def plot_backlog(requests: RequestTable, run: Run) -> Iterator[Plot]:
    """Requests due, completed and open over time: of an overload what matters first."""
    time = find_time_axis(requests, run)
    due_at = requests.floats("due_at")
    due = np.where(np.isnan(due_at), requests.floats("asked_at"), due_at) - time.origin
    closed = requests.floats("closed_at") - time.origin
    ok = requests.has("outcome", OK)
    edges = np.linspace(time.low, time.high, MAX_POINTS)
    offered = _count_until(edges, due)
    ended = _count_until(edges, closed)
    completed = _count_until(edges, closed[ok])
    in_system = offered - ended
    before_end = in_system[:-1]  # the end of the run cuts what is open
    most = float(before_end.max(initial=0.0))
    yield Plot(
        title="Offered, completed and in flight",
        caption=(
            "Requests due and completed so far. In flight: due but not finished. If it keeps "
            "growing, the load is higher than the server can handle."
        ),
        label=f"{int(offered[-1]):,} requests offered, {int(completed[-1]):,} completed, at most "
        f"{int(most):,} in flight",
        x=time.axis,
        y=PlotAxis(label="requests", whole=True),
        series=(
            PlotSeries(
                "in flight", "wait", round_values(edges[:-1], 6), round_values(before_end, 9), "fill"
            ),
            PlotSeries("offered", "p50", round_values(edges, 6), round_values(offered, 9)),
            PlotSeries("completed", "ok", round_values(edges, 6), round_values(completed, 9)),
        ),
        marks=tuple(_marks(run, time, requests)),
        group=TIME_GROUP,
    )  # fmt: skip


def _count_until(edges: Floats, moments: Floats) -> Floats:
    known = np.sort(moments[np.isfinite(moments)])
    return np.searchsorted(known, edges, side="right").astype(np.float64)


def find_time_axis(requests: RequestTable, run: Run) -> TimeAxis:
    """The axis from the start, or the first request, to the last end."""
    began = requests.earliest("asked_at")
    ended = requests.latest("closed_at")
    if not began <= ended:  # NaN: no requests
        return TimeAxis(run.started_at, 0.0, max((run.ended_at or 0.0) - run.started_at, 1.0))
    low = min(0.0, began - run.started_at)
    return TimeAxis(run.started_at, low, max(ended - run.started_at, low + 1e-3))


def _marks(run: Run, time: TimeAxis, requests: RequestTable) -> Iterator[PlotMark]:
    """Phases, stages and changes of the limit, where there are few."""
    warm = bool(requests.has("phase", "warmup").any())
    staged = run.settings.staged
    axis = "" if staged is None else staged.axis
    for stage in run.stages:
        text = stage.arm[:1] or name_stage_start(axis, stage.value)
        yield PlotMark(text, x=stage.began_at - time.origin, hue="stage")
    if warm and not run.stages:
        yield PlotMark("profiling", x=run.profiling_at - time.origin)
    if run.stopping_at is not None and run.stopping_at - time.origin < time.high:
        yield PlotMark("stop", x=run.stopping_at - time.origin)
    if not run.stages:
        yield from _limit_marks(run.limits, time)
        yield from _user_marks(run, time)
        if len(run.disruptions) <= MAX_CHANGE_MARKS:
            for number, disruption in enumerate(run.disruptions, 1):
                yield PlotMark(name_disruption(number), x=disruption.began_at - time.origin)
        for change in run.rates:
            yield PlotMark(name_rate_change(change.per_s), x=change.at - time.origin)


def _limit_marks(limits: Sequence[LimitChange], time: TimeAxis) -> Iterator[PlotMark]:
    """``limit 3``; a quick ramp has one mark: ``limit 1 to 3``. A limit that goes up and down, as in
    the blocks of a comparison of limits, is no ramp."""
    steps = [
        (before, change) for before, change in pairwise(limits) if change.limit != before.limit
    ]
    rises = [_is_rise(before.limit, change.limit) for before, change in steps]
    near = _group_near([change.at for _, change in steps], time)
    groups = list(chain.from_iterable(_split_by_direction(group, rises) for group in near))
    if len(groups) > MAX_CHANGE_MARKS:
        return
    for group in groups:
        before, last = steps[group[0]][0].limit, steps[group[-1]][1].limit
        ramp = before if len(group) > 1 else None
        yield PlotMark(name_gate_change(last, ramp), x=steps[group[0]][1].at - time.origin)


def _is_rise(before: int | None, limit: int | None) -> bool:
    """None: no limit, which is above each."""
    return limit is None or (before is not None and limit > before)


def _split_by_direction(group: Sequence[int], rises: Sequence[bool]) -> Iterator[list[int]]:
    part = list[int]()
    for place in group:
        if part and rises[place] != rises[part[-1]]:
            yield part
            part = []
        part.append(place)
    yield part


def _user_marks(run: Run, time: TimeAxis) -> Iterator[PlotMark]:
    """``40 users`` where their number changed after they had started, and before the stop. In an
    open loop it follows from the load."""
    if run.settings.open_loop:
        return
    stop = math.inf if run.stopping_at is None else run.stopping_at
    changes = [change for change in run.users if change.at < stop and change.users]
    groups = _group_near([change.at for change in changes], time)[1:]  # the first is their start
    if len(groups) > MAX_CHANGE_MARKS:
        return
    for group in groups:
        last: UserChange = changes[group[-1]]
        yield PlotMark(name_users_change(last.users), x=changes[group[0]].at - time.origin)


def _group_near(at: Sequence[float], time: TimeAxis) -> list[list[int]]:
    """The places of the changes, those together that follow each other closely."""
    groups: list[list[int]] = []
    for place, moment in enumerate(at):
        if groups and moment - at[place - 1] < NEAR * (time.high - time.low):
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups


def _latency(
    requests: RequestTable,
    run: Run,
    column: str,
    names: tuple[str, str],
    marks: tuple[PlotMark, ...],
) -> Iterator[Plot]:
    title, what = names
    time = find_time_axis(requests, run)
    ms = requests.floats(column) * 1e3
    known = requests.has("outcome", OK) & ~np.isnan(ms)
    main = known & requests.has("phase", "profiling")
    at = requests.floats("sent_at") - time.origin
    if not known.any():
        return
    shown = main if main.any() else known
    if run.arms:
        drawn, caption = _of_arms(requests.rows(shown), at[shown], ms[shown], run)
    else:
        drawn, made_of = make_percentile_lines(at[shown], ms[shown])
        caption = f"Each dot is a request, drawn at its send time.{made_of}"
    failures, lost = _failures(requests, time)
    cut = int(requests.has("outcome", CUT).sum())
    if cut and column != "itl_s":
        lost += f" Rings: of {format_count(cut, 'request')} unfinished at the end, without a value."
    highest = float(ms[shown].max())
    base = choose_log_base(ms[shown])
    p50, p99 = np.percentile(ms[shown], (50, 99)).tolist()
    yield Plot(
        title=title,
        caption=caption + lost + (LOG_NOTE if base else ""),
        label=f"{what} over time: median {format_duration(p50 / 1e3)}, p99 "
            f"{format_duration(p99 / 1e3)}, "
        f"highest {format_duration(highest / 1e3)}",
        x=time.axis,
        y=PlotAxis(label=what, unit="ms", log=base),
        series=(*drawn, *failures),
        marks=marks,
        group=TIME_GROUP,
        gap=0.0 if run.arms else HOLE,
        key="" if run.arms else column.removesuffix("_s"),
    )  # fmt: skip


def _of_arms(
    requests: RequestTable, at: Floats, ms: Floats, run: Run
) -> tuple[list[PlotSeries], str]:
    """(for each arm its requests and a line through the medians of its blocks; the caption). One
    line for both would lead from block to block of the two."""
    dots = list[PlotSeries]()
    lines = list[PlotSeries]()
    for _, name, hue, of_arm in _list_arms(requests, run):
        dots.append(make_dot_series(at[of_arm], ms[of_arm], f"{name}, request", hue)[0])
        pair = requests.floats("pair")
        blocks = [of_arm & (pair == number) for number in np.unique(pair[of_arm])]
        middles = np.array([(np.median(at[block]), np.median(ms[block])) for block in blocks])
        lines.append(
            PlotSeries(
                f"{name}, p50 of each block",
                hue,
                round_values(middles[:, 0], 6),
                round_values(middles[:, 1]),
            )
        )
    drawn = sum(len(series.x) for series in dots)
    which = (
        f"{len(at):,} in all"
        if drawn == len(at)
        else f"{drawn:,} of {len(at):,} shown, the slowest among them"
    )
    return [*dots, *lines], (
        f"Each dot is a request of one variant ({which}), drawn at its send time. A line joins the "
        "medians of its blocks."
    )


def _list_arms(requests: RequestTable, run: Run) -> Iterator[tuple[str, str, str, Bools]]:
    """(arm, its name in the charts, its colour, which requests are its own) of each arm with
    requests."""
    names = ("alone", "with the others") if run.settings.isolate else (BASE, CANDIDATE)
    for arm, name, hue in zip((BASE, CANDIDATE), names, ("p50", "p95"), strict=True):
        of_arm = requests.has("arm", arm)
        if of_arm.any():
            yield arm, name, hue, of_arm


def _failures(requests: RequestTable, time: TimeAxis) -> tuple[list[PlotSeries], str]:
    """(bars with the number of failures in each stretch of time; a sentence for the caption)."""
    failed = requests.has("outcome", *FAILURES)
    at = requests.floats("closed_at")[failed] - time.origin
    if not len(at):
        return [], ""
    strip, seconds = make_strip("failed", at, time)
    share = format_brief(100 * len(at) / len(requests), "%", 3)
    return [strip], (
        f" Bars above the plot: failed requests in each {seconds:g} s, {len(at):,} in all, {share} "
        f"of all requests."
    )


def make_strip(name: str, at: Floats, time: TimeAxis) -> tuple[PlotSeries, float]:
    """(bars above a plot: how many of these moments lie in each stretch of time; the seconds of a
    stretch)."""
    edges = choose_round_edges(time.low, time.high, FAILURE_BARS * MIN_REQUESTS, FAILURE_BARS)
    counts = np.histogram(np.clip(at, time.low, time.high), edges)[0].astype(np.float64)
    series = PlotSeries(
        name, "fail", round_values(edges, 6), round_values(np.append(counts, 0.0)), kind="strip"
    )
    return series, float(np.median(np.diff(edges)))


def _throughput(
    requests: RequestTable, run: Run, time: TimeAxis, marks: tuple[PlotMark, ...]
) -> Iterator[Plot]:
    ok = requests.has("outcome", OK)
    failed = requests.has("outcome", *FAILURES)
    if not (ok | failed).any():
        return
    edges = choose_round_edges(time.low, time.high, int((ok | failed).sum()))
    width = np.diff(edges)
    each = f"Each step is {np.median(width):g} s"
    of_arms = " Base and candidate have separate lines." if run.arms else ""
    first, last, closed = (
        requests.floats(name) - time.origin
        for name in ("first_chunk_at", "last_chunk_at", "closed_at")
    )
    tokens = requests.floats("output_tokens")
    counted = ok & ~np.isnan(tokens)
    first = np.where(np.isnan(first), closed, first)
    last = np.where(np.isnan(last), closed, last)

    def rate_tokens(those: Bools) -> Floats:
        chosen = counted & those
        return spread_amounts(first[chosen], last[chosen], tokens[chosen], edges) / width

    def rate_finished(those: Bools) -> Floats:
        return np.asarray(np.histogram(closed[ok & those], edges)[0] / width)

    everything = np.ones(len(requests), np.bool_)
    if counted.any():
        rates = rate_tokens(everything)
        drawn = (
            _steps_of_arms(requests, run, time, edges, rate_tokens)
            if run.arms
            else [make_steps("output tokens/s", "decode", edges, rates, "area")]
        )
        yield Plot(
            title="Output tokens per second",
            caption=f"{each}. Tokens of successful requests, spread evenly between the first and "
            f"the last chunk of each.{of_arms}",
            label=f"Output tokens per second over time: at most {rates.max():,.0f}",
            x=time.axis,
            y=PlotAxis(label="output tokens/s", unit="/s"),
            series=tuple(drawn),
            marks=marks,
            group=TIME_GROUP,
            low=True,
            key="" if run.arms else "tokens",
        )
    done = rate_finished(everything)
    lost = np.histogram(closed[failed], edges)[0] / width
    series = (
        _steps_of_arms(requests, run, time, edges, rate_finished)
        if run.arms
        else [make_steps("finished", "ok", edges, done)]
    )
    if failed.any():
        series.append(make_steps("failed", "fail", edges, lost))
    yield Plot(
        title="Requests per second",
        caption=f"{each}; a request counts when it ends.{of_arms}",
        label=f"Requests finished per second over time: at most "
        f"{format_brief(done.max(), digits=3)}"
        + (
            f"; failed at most {format_brief(lost.max(), digits=3)}"
            if failed.any()
            else ", none failed"
        ),
        x=time.axis,
        y=PlotAxis(label="requests/s", unit="/s"),
        series=tuple(series),
        marks=marks,
        group=TIME_GROUP,
        low=True,
        key="" if run.arms else "rates",
    )


def _steps_of_arms(
    requests: RequestTable,
    run: Run,
    time: TimeAxis,
    edges: Floats,
    rate_of: Callable[[Bools], Floats],
) -> list[PlotSeries]:
    """The rate of each arm, with a hole where the other one has its block: an arm that is not
    loaded has no rate, and 0 would look as if it had answered nothing."""
    drawn = list[PlotSeries]()
    for arm, name, hue, of_arm in _list_arms(requests, run):
        rate = rate_of(of_arm)
        is_loaded = rate > 0
        for stage in run.stages:
            if stage.arm == arm:
                begins = stage.began_at - time.origin
                ends = stage.ended_at - time.origin
                is_loaded |= (edges[1:] > begins) & (edges[:-1] < ends)
        drawn.append(make_steps(name, hue, edges, np.where(is_loaded, rate, np.nan)))
    return drawn


def choose_round_edges(low: float, high: float, count: int, most: int = MAX_POINTS) -> Floats:
    """The ends of stretches of 1, 2 or 5 times a power of ten seconds: at most ``most``, with
    MIN_REQUESTS of ``count`` each. The first and the last are as short as the time is, or half as
    long again."""
    least = (high - low) / max(min(most, count // MIN_REQUESTS), MIN_STEPS)
    power = 10.0 ** math.floor(math.log10(least))
    width = next(power * m for m in (1, 2, 5, 10) if power * m >= least * (1 - 1e-9))
    inner = np.arange(math.floor(low / width) + 1, math.ceil(high / width)) * width
    inner = inner[(inner - low >= width / 2) & (high - inner >= width / 2)]
    return np.array([low, *inner, high])


def spread_amounts(first: Floats, last: Floats, amount: Floats, edges: Floats) -> Floats:
    """The amounts between each two edges, where each amount is spread evenly from ``first`` to
    ``last``."""
    slow = last - first > INSTANT_S
    at_once = np.histogram(last[~slow], edges, weights=amount[~slow])[0]
    first, last = first[slow], last[slow]
    rate = amount[slow] / (last - first)

    def begun(at: Floats) -> Floats:
        """The amount up to each edge, if it went on at ``rate`` for ever from ``at`` on."""
        order = np.argsort(at, kind="stable")  # fast, as they are nearly in order
        before = np.searchsorted(at[order], edges, side="right")
        rates, starts = (
            np.append(0.0, np.cumsum(values[order]))[before] for values in (rate, rate * at)
        )
        return np.asarray(edges * rates - starts)

    return np.asarray(np.maximum(np.diff(begun(first) - begun(last)), 0.0) + at_once)
