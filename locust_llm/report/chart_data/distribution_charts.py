"""Distribution charts: latencies by percentile and by input length, and the lengths.

A percentile spectrum has 1 / (1 - p) on a logarithmic axis, as HdrHistogram's plots: each nine
takes as much room as the one before, so that the tail is seen as well as the middle.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from locust_llm.records.outcomes import FAILURES, OK
from locust_llm.report.array_types import Floats
from locust_llm.report.inter_token_gaps import GapCounts
from locust_llm.report.load_records import RequestColumns
from locust_llm.report.request_table import RequestTable
from locust_llm.text.format import format_duration

from .plot_data import (
    LOG_NOTE,
    Limits,
    Plot,
    PlotAxis,
    PlotMark,
    PlotSeries,
    choose_log_base,
    round_values,
)

SPECTRUM_POINTS: Final = 150
TICKS: Final = (
    (1.0, "0%"), (2.0, "50%"), (10.0, "90%"), (100.0, "99%"), (1e3, "99.9%"), (1e4, "99.99%"),
    (1e5, "99.999%"),
    (1e6, "99.9999%"), (1e7, "99.99999%"),
)  # fmt: skip
BINS: Final = 50
LOG_LENGTH_RATIO: Final = 30
"""The ratio of the longest to the shortest length from which lengths have a logarithmic axis."""
MIN_REQUESTS: Final = 5
"""A point of the median needs so many requests of about one length."""

Mask = NDArray[np.bool_]


WHOLE: Final = {
    "ttft_s": ("Time to first token", "TTFT"),
    "latency_s": ("Request latency", "latency"),
}
"""The names of what is drawn first."""


def plot_distributions(columns: RequestColumns, open_loop: bool, limits: Limits) -> Iterator[Plot]:
    """TTFT, ITL, ICL and the longest stall; TTFT by input length; lengths. All are of the profiling
    phase. Where nothing is generated the request latency replaces TTFT."""
    requests = columns.requests
    main = requests.has("phase", "profiling")
    ok = main & requests.has("outcome", OK)
    failed = int((main & requests.has("outcome", *FAILURES)).sum())
    share = failed / (failed + int(ok.sum())) if failed else 0.0
    waits = ["gate_wait_s"] if (~np.isnan(requests.floats("limit"))).any() else []
    names = {name: what for name, (_, what) in WHOLE.items()}
    names |= {"gate_wait_s": "gate wait", "ttft_from_due_s": "TTFT from due"}
    column = "latency_s" if (~np.isnan(requests.floats("inputs"))).any() else "ttft_s"
    chosen = [column, *waits]
    if column == "ttft_s" and (open_loop or waits):
        chosen.append("ttft_from_due_s")
    first = [
        (names[name], hue, _ms(requests, name, ok))
        for name, hue in zip(chosen, ("p50", "wait", "p95"), strict=False)
    ]
    marks = _limits_of(chosen, limits)
    key = "spectrum-first" if column == "ttft_s" else "spectrum-whole"
    yield from plot_spectrum(f"{WHOLE[column][0]}, by percentile", first, marks, share, key)
    between: list[tuple[str, str, Floats | GapCounts]] = [
        ("ITL", "p50", _ms(requests, "itl_s", ok)),
        ("ICL", "decode", columns.gaps.get("profiling", GapCounts())),
        ("longest stall", "p99", _ms(requests, "longest_stall_s", ok)),
    ]
    marks = _limits_of(("itl_s", "icl", "longest_stall_s"), limits)
    yield from plot_spectrum(
        "Between tokens, by percentile", between, marks, key="spectrum-between"
    )
    yield from _by_length(requests, ok, column, limits.get(column, ()))
    yield from _lengths(requests, ok)


def _limits_of(names: Iterable[str], limits: Limits) -> tuple[PlotMark, ...]:
    return tuple(chain.from_iterable(limits.get(name, ()) for name in names))


def _ms(requests: RequestTable, column: str, ok: Mask) -> Floats:
    values = requests.floats(column)[ok] * 1e3
    return values[~np.isnan(values)]


def plot_spectrum(
    title: str,
    values: Sequence[tuple[str, str, Floats | GapCounts]],
    marks: tuple[PlotMark, ...],
    failed: float = 0.0,
    key: str = "",
) -> Iterator[Plot]:
    """A line for each (name, colour, values). ``failed`` is the share of failures. The first series also has a line with these as
    +infinity."""
    series, figures, everything = [], [], []
    most = 10.0
    for name, hue, these in values:
        count = these.count if isinstance(these, GapCounts) else len(these)
        if not count:
            continue
        x, y = compute_spectrum(these, count)
        most = max(most, float(count))
        everything.append(y)
        series.append(PlotSeries(name, hue, round_values(x), round_values(np.maximum(y, 1e-3))))
        middle, tail = np.interp([2.0, 100.0], x, y).tolist()
        figures.append(
            f"{name} median {format_duration(middle / 1e3)}"
            + (f", p99 {format_duration(tail / 1e3)}" if count >= 100 else "")
        )
        if failed and len(series) == 1:
            # of all requests; beyond the last lie the failures
            ranks = np.append(1 - 1 / x[:-1], 1.0) * (1 - failed)
            worse = 1 / (1 - ranks)
            series.append(
                PlotSeries(
                    f"{name}, failures as infinity",
                    "fail",
                    round_values(worse),
                    round_values(y),
                    dashed=True,
                )
            )
            marks = (*marks, PlotMark(f"{failed:.2%} failed", x=1 / failed, hue="fail"))
    if not series:
        return
    y = np.concatenate(everything)
    base = choose_log_base(y)
    yield Plot(
        title=title,
        caption=(
            "The value at each percentile. The tail on the right is stretched; each line ends at "
            "the highest value."
        ) + (" The dashed line counts every failure as infinite." if failed else "") + (LOG_NOTE if base else ""),
        label=f"{title}: {'; '.join(figures)}" + (f"; {failed:.2%} of the requests failed" if failed else ""),
        x=PlotAxis(label="percentile", log=10, low=1.0, high=most,
            ticks=tuple(t for t in TICKS if t[0] <= most)),
        y=PlotAxis(unit="ms", log=base),
        series=tuple(series),
        marks=marks,
        key=key,
    )  # fmt: skip


def compute_spectrum(values: Floats | GapCounts, count: int) -> tuple[Floats, Floats]:
    """(1 / (1 - p), the p-quantile) at ``count`` points from the lowest value to the highest."""
    x = np.unique(np.append(np.geomspace(1.0, max(count, 2), SPECTRUM_POINTS), [2.0, 10.0, 100.0]))
    x = x[x < max(count, 2)]
    percents = (1 - 1 / x) * 100
    if isinstance(values, GapCounts):
        y = np.array(values.percentiles_ms(percents.tolist()), np.float64)
        highest = values.max_ms or 0.0
    else:
        y = np.percentile(values, percents)
        highest = float(values.max())
    return np.append(x, max(count, 2)), np.append(y, highest)


def _by_length(
    requests: RequestTable, ok: Mask, column: str, limits: tuple[PlotMark, ...]
) -> Iterator[Plot]:
    name, brief = WHOLE[column]
    length = requests.floats("input_tokens")
    ms = requests.floats(column) * 1e3
    known = ok & ~np.isnan(length) & ~np.isnan(ms)
    length, ms = length[known], ms[known]
    different = np.unique(length)
    if len(different) < 2:
        return
    wide = 10 if different[-1] > LOG_LENGTH_RATIO * max(different[0], 1) else 0
    base = choose_log_base(ms)
    at, median = compute_running_medians(length, ms)
    lines = (
        (PlotSeries("median", "p50", round_values(at), round_values(median)),)
        if len(at) > 1
        else ()
    )
    ends = (
        np.interp([different[0], different[-1]], at, median).tolist()
        if len(at)
        else [np.nan, np.nan]
    )
    yield Plot(
        title=f"{name} by input length",
        caption=(
            "Each dot is a request. The line is the median of requests of similar length (at "
            f"least {MIN_REQUESTS})."
        ) + (LOG_NOTE if base else ""),
        label=f"{brief} by input length, {different[0]:,.0f} to {different[-1]:,.0f} tokens: "
            f"median "
        f"{format_duration(ends[0] / 1e3)} for the shortest, {format_duration(ends[1] / 1e3)} "
            f"for the longest",
        x=PlotAxis(label="input tokens", unit="tokens", log=wide),
        y=PlotAxis(label=brief, unit="ms", log=base),
        series=lines,
        marks=limits,
        key="length",
        of=column.removesuffix("_s"),
    )  # fmt: skip


def compute_running_medians(
    length: Floats, value: Floats, ratio: float = 1.1
) -> tuple[Floats, Floats]:
    """(mean length, median) of the requests between each two powers of ``ratio``, where there are
    MIN_REQUESTS."""
    power = np.floor(np.log(np.maximum(length, 1)) / np.log(ratio) + 1e-9).astype(np.int16)
    order = np.argsort(power, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(power[order])) + 1)
    enough = [part for part in parts if len(part) >= MIN_REQUESTS]
    return np.array([length[part].mean() for part in enough]), np.array(
        [np.median(value[part]) for part in enough]
    )


def _lengths(requests: RequestTable, ok: Mask) -> Iterator[Plot]:
    """How many requests had each length, and asked for it, where they differ."""
    for title, column in (("Input", "input_tokens"), ("Output", "output_tokens")):
        delivered, asked = (requests.floats(name)[ok] for name in (column, f"asked_{column}"))
        delivered, asked = delivered[~np.isnan(delivered)], asked[~np.isnan(asked)]
        if len(np.unique(delivered)) < 2:
            continue
        least = delivered.min()
        most = max(delivered.max(), asked.max(initial=0.0)) + 1
        wide = most > LOG_LENGTH_RATIO * max(least, 1.0)
        least = min(least, asked.min(initial=least)) if wide else 0.0
        edges = (
            np.geomspace(max(least, 1.0), most, BINS + 1)
            if wide
            else np.linspace(0.0, most, BINS + 1)
        )
        series = [_outline("delivered", "p50", delivered, edges)]
        different = np.unique(asked)
        if len(different) > 1:  # else a spike that would make the rest small
            series.append(_outline("asked for", "p95", asked, edges))
        each = f" Every request had a limit of {different[0]:g}." if len(different) == 1 else ""
        yield Plot(
            title=f"{title} length",
            caption=f"Requests in each of {BINS} "
            f"{'ranges of equal ratio' if wide else 'equal ranges'} of "
            f"{title.lower()} tokens, as the server counted them.{each}",
            label=f"{title} length: {delivered.min():,.0f} to {delivered.max():,.0f} tokens, mean "
            f"{delivered.mean():,.0f}" + (f", asked for {asked.mean():,.0f}" if len(asked) else ""),
            x=PlotAxis(label=f"{title.lower()} tokens", unit="tokens", log=10 if wide else 0),
            y=PlotAxis(label="requests"),
            series=tuple(series),
        )


def _outline(name: str, hue: str, values: Floats, edges: Floats) -> PlotSeries:
    counts = np.histogram(values, edges)[0]
    return PlotSeries(
        name,
        hue,
        round_values(edges),
        round_values(np.append(counts, 0.0)),
        kind="area" if hue == "p50" else "steps",
    )
