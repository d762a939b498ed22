"""Measurement uncertainty: how far the true percentile of a latency may lie from the reported one,
by the certificate of the machine.

The certificate says that at most a share of all differences lies beyond a bound
(records/accuracy.py). Then so many of the values may be anywhere, and every other is within the
bound: the true percentile lies between the reported ones that many ranks below and above, less and
plus the bound. Of the shares that are known the one serves that leaves least room. What came more
than one to a read is between the bounds that its record has, whatever the certificate says.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from locust_llm.records.accuracy import (
    Ends,
    ErrorBounds,
    Quantile,
    combine_accuracies,
    combine_sentinel_errors,
    percentile_error_ends,
    spread_over_tokens,
)
from locust_llm.records.record import OK
from locust_llm.records.run import Run
from locust_llm.report.columns import CoalescedGaps, RequestColumns
from locust_llm.report.gaps import GapCounts
from locust_llm.report.selection import Floats, RequestSelection
from locust_llm.report.summary import Summary
from locust_llm.slo.metrics import ITL, POOLED, TTFT, TTFT_FROM_DUE


def add_measurement_errors(summary: Summary, columns: RequestColumns, run: Run) -> Summary:
    """The summary with the plus-minus of its latencies; or with why there is none, where one was to
    be expected."""
    found = [health.certificate for health in run.health if health.certificate is not None]
    if (both := combine_accuracies(found)) is None:
        return replace(summary, uncertified=next((one.missing for one in found if one.missing), ""))
    ttft, gap = both
    requests = columns.requests
    profiling = RequestSelection(requests, (requests["phase"] == "profiling").to_numpy(np.bool_))
    gaps, blurred = columns.gaps.get("profiling", GapCounts()), columns.blurred.get("profiling")
    rows = {row.tag: row for row in summary.rows if row.count}
    known = {
        tag: _of_values(least, reported, most, bounds.pairs, list(rows[tag].percentiles))
        for tag, least, reported, most, bounds in _per_request(profiling.outcome(OK), ttft, gap)
        if tag in rows and len(reported)
    }
    if POOLED in rows:
        known[POOLED] = _of_gaps(gaps, blurred, gap.pairs, list(rows[POOLED].percentiles))
    return replace(
        summary,
        rows=tuple(replace(row, plus_minus=known.get(row.tag, {})) for row in summary.rows),
        sentinels=sum(one.chunks for one in found),
        sentinel_errors=combine_sentinel_errors(found),
    )


def _per_request(
    ok: RequestSelection, ttft: ErrorBounds, gap: ErrorBounds
) -> Iterator[tuple[str, Floats, Floats, Floats, ErrorBounds]]:
    """(tag, the least that each value can be, the value, the most, the bounds that apply), in
    ms."""
    first, soonest = ok["ttft_s"] * 1e3, ok["ttft_soonest_s"] * 1e3
    early, due = first - soonest, ok["ttft_from_due_s"] * 1e3
    last = ok["latency_s"] * 1e3
    if not np.isnan(first).any():  # the end of an answer that was not streamed is no chunk
        yield "request_latency", *_known(last, last, last), ttft
    yield TTFT.tag, *_known(soonest, first, first), ttft
    ttfo = ok["ttfo_s"] * 1e3
    yield (
        "time_to_first_output_token",
        *_known(np.where(ttfo == first, soonest, ttfo), ttfo, ttfo),
        ttft,
    )
    yield TTFT_FROM_DUE.tag, *_known(due - early, due, due), ttft
    itl = ok["itl_s"] * 1e3
    with np.errstate(divide="ignore", invalid="ignore"):
        later = (last - first) / itl
        most = np.where(later > 0, itl + early / later, itl)
    yield (
        ITL.tag,
        *_known(itl, itl, most),
        spread_over_tokens(gap, later[np.isfinite(later)].tolist()),
    )


def _known(least: Floats, reported: Floats, most: Floats) -> tuple[Floats, Floats, Floats]:
    there = ~np.isnan(reported)
    return least[there], reported[there], most[there]


def _of_values(
    least: Floats,
    reported: Floats,
    most: Floats,
    pairs: Sequence[Ends],
    percentiles: Sequence[float],
) -> dict[float, Ends]:
    def quantile(values: Floats) -> Quantile:
        ordered = np.sort(values)
        return lambda p: float(np.percentile(ordered, p))

    return {
        p: percentile_error_ends(
            p, len(reported), quantile(least), quantile(reported), quantile(most), pairs
        )
        for p in percentiles
    }


def _of_gaps(
    gaps: GapCounts,
    blurred: CoalescedGaps | None,
    pairs: Sequence[Ends],
    percentiles: Sequence[float],
) -> dict[float, Ends]:
    def quantile(more: GapCounts | None) -> Quantile:
        every = GapCounts()
        every.merge(gaps)
        if more is not None:
            every.merge(more)
        return lambda p: every.percentiles_ms([p])[0]

    least, most = (None, None) if blurred is None else (blurred.least, blurred.most)
    count = gaps.count + (0 if least is None else least.count)
    return {
        p: percentile_error_ends(p, count, quantile(least), quantile(None), quantile(most), pairs)
        for p in percentiles
    }
