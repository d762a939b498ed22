"""Stalls: what a report says of requests that others disturbed by their prefill, as tables with a sentence each."""

from collections.abc import Iterator
from typing import Final

from locust_llm.core.text import number, title
from locust_llm.report.analysis.interference import COMPARED, ICL, ITL, TTFT, USUAL
from locust_llm.report.analysis.interference_result import Ahead, DisturbedGaps, Interference, Slope
from locust_llm.report.analysis.selection import scarce
from locust_llm.slo.client_verdict import OK

from .blocks import Block, Heading, Table, Text

EQUAL: Final = 0.05
"""A difference below this share is called none."""


def stalls(found: Interference, client: str = OK) -> Iterator[Block]:
    """Nothing where no request had another one in prefill beside it or ahead of it. ``client``: the client verdict; below
    OK the rows stand, but nothing is concluded from them."""
    if found.disturbed is not None:
        yield Heading("Gaps while other requests are in prefill (ms)")
        yield _gaps(found.rows)
        said = f"{_compared(found, found.disturbed)}{_uncompared(found, found.disturbed)}"
        yield Text(said if client == OK else _untold(client))
        yield Text(_legend(found))
    if len(found.ahead) > 1:
        yield Heading("TTFT by the prefills ahead (ms)")
        yield _queue(found.ahead)
        yield Text(
            "ahead: how many others were in prefill when a request was sent; tokens ahead: the median of their input tokens "
            "together; own tokens: the median of the requests' own"
            + (f". {_slope(found.slope)}" if found.slope is not None and client == OK else "")
        )


def _gaps(rows: tuple[DisturbedGaps, ...]) -> Table:
    def cells(row: DisturbedGaps) -> tuple[str, ...]:
        itl = (_marked(row.itl_ms, p, row.requests) for p in ITL)
        icl = (_marked(row.icl_ms, p, row.gaps) for p in ICL)
        slower = "-" if row.slowdown is None else f"{row.slowdown:.2f}"
        return (
            row.label, str(row.gaps), f"{row.share:.1%}", number(row.streams, 4), *itl, *icl, number(row.longest_ms, 4),
            slower,
        )  # fmt: skip

    head = (
        "in prefill", "gaps", "of time", "streams", f"ITL {title(ITL[0])}", *map(title, ITL[1:]),
        f"ICL {title(ICL[0])}", *map(title, ICL[1:]), "longest", "slower",
    )  # fmt: skip
    return Table(head, tuple(map(cells, rows)))


def _compared(found: Interference, disturbed: DisturbedGaps) -> str:
    calm = found.gaps - disturbed.gaps
    if disturbed.slowdown is None or disturbed.mean_ms is None or disturbed.usual_ms is None:
        if not calm:
            return "There is no undisturbed gap to compare with: in every one another request was in prefill."
        if disturbed.gaps < USUAL:
            return f"{disturbed.gaps} disturbed gaps are too few to compare (it takes {USUAL})."
        if disturbed.mean_ms is not None:
            return (
                f"What prefills cost the others is not given: only {disturbed.compared_share:.0%} of the disturbed gaps, by "
                f"number or by time, have a comparison ({USUAL} undisturbed ones at as many decoding streams or more). It "
                f"takes {COMPARED:.0%}: with less the figure was off by more than 10% on most simulated servers."
            )
        return (
            f"The {calm} undisturbed gaps are too few to compare with, or at fewer decoding streams (it takes {USUAL})."
        )
    times = f"({disturbed.mean_ms:.1f} against {disturbed.usual_ms:.1f} ms at as many decoding streams or more)"
    if abs(disturbed.slowdown - 1) < EQUAL:
        return f"A gap with another request in prefill took no longer than one without {times}."
    lost = ""
    if found.lost_share:
        lost = (
            f"; prefills cost {found.lost_share:.1%} of the decode time ({found.lost_s:.1f} of {found.decode_s:.1f} s)"
        )
    return f"A gap with another request in prefill took {disturbed.slowdown:.1f} times as long as one without {times}{lost}."


def _untold(client: str) -> str:
    return f"What prefills cost the others cannot be told: the client verdict is {client}, so gaps may be the client's own."


def _uncompared(found: Interference, disturbed: DisturbedGaps) -> str:
    left = 1 - disturbed.compared_share
    if disturbed.slowdown is None or left < EQUAL:
        return ""
    return (
        f" {left:.0%} of the disturbed gaps, by number or by time, have fewer than {USUAL} undisturbed ones at as many "
        "streams or more, and count for nothing in this."
    )


def _legend(found: Interference) -> str:
    sample = ""
    if found.requests < found.of_requests:
        which = f"{found.requests} of {found.of_requests} requests"
        sample = f" A sample: the gaps of {which}, in stretches spread evenly over the run."
    return (
        "in prefill: how many others waited for their first token during the gap; streams: how many requests decoded "
        "meanwhile; ITL: one number a request, the mean of its gaps of this row; slower: times as long as undisturbed gaps "
        f"at as many streams or more, - where under {COMPARED:.0%} of the gaps have such; * too few values.{sample}"
    )


def _queue(rows: tuple[Ahead, ...]) -> Table:
    def cells(row: Ahead) -> tuple[str, ...]:
        ttft = (_marked(row.ttft_ms, p, row.count) for p in TTFT)
        tokens = ("-" if value is None else f"{value:.0f}" for value in (row.tokens, row.own_tokens))
        return row.label, str(row.count), *ttft, *tokens

    head = ("ahead", "requests", f"TTFT {title(TTFT[0])}", *map(title, TTFT[1:]), "tokens ahead", "own tokens")
    return Table(head, tuple(map(cells, rows)))


def _slope(found: Slope) -> str:
    return (
        f"Each 1,000 tokens ahead add {found.ms_per_1k:.3g} ms to TTFT at the same own length "
        f"(95 % interval {found.low:.3g} to {found.high:.3g}; least squares, R2 {found.r2:.2f})."
    )


def _marked(percentiles: dict[float, float], p: float, count: int) -> str:
    return number(percentiles[p], 4) + ("*" if scarce(count, p) else "")
