"""What prefills do to other requests, as tables with a sentence each."""

from collections.abc import Iterator
from typing import Final

from locust_llm.report.blocks import Block, Heading, TableBlock, TextBlock, mark_scarce
from locust_llm.report.sections.interference.analysis import ICL, ITL, MIN_COMPARED, MIN_COMPARED_SHARE, TTFT
from locust_llm.report.sections.interference.model import (
    DisturbedGaps,
    PrefillInterference,
    PrefillSlope,
    RequestsAhead,
)
from locust_llm.slo.client_verdict import OK
from locust_llm.text.format import format_brief, format_count, format_duration, format_number, name_percentile

MIN_LOST_SHARE: Final = 0.01
"""Of the decode time; a loss that is no smaller is given whatever the difference."""
MIN_DIFFERENCE: Final = 0.05
"""Share; a smaller difference is reported as none."""


def make_interference_blocks(found: PrefillInterference, client: str = OK) -> Iterator[Block]:
    """Nothing where no request had another one in prefill beside it or ahead of it. ``client``: the client verdict; below
    OK the rows are shown, without a conclusion."""
    if found.disturbed is not None:
        yield Heading("Gaps while other requests await their first token (ms)")
        yield _gaps(found.rows)
        conclusion = f"{_compared(found, found.disturbed)}{_uncompared(found, found.disturbed)}"
        yield TextBlock(conclusion if client == OK else _no_conclusion(client))
        yield TextBlock(_legend(found))
    if len(found.ahead) > 1:
        yield Heading("TTFT by the prefills ahead (ms)")
        yield _queue(found.ahead)
        yield TextBlock(
            "ahead: other requests that awaited their first token when a request was sent; tokens ahead: median of their "
            "summed input tokens; own tokens: median input tokens of the requests"
            + (f". {_slope(found.slope)}" if found.slope is not None and client == OK else "")
        )


def _gaps(rows: tuple[DisturbedGaps, ...]) -> TableBlock:
    def cells(row: DisturbedGaps) -> tuple[str, ...]:
        itl = (_marked(row.itl_ms, p, row.requests) for p in ITL)
        icl = (_marked(row.icl_ms, p, row.gaps) for p in ICL)
        slower = "-" if row.slowdown is None else f"{row.slowdown:.2f}"
        return (
            row.label, str(row.gaps), f"{row.share:.1%}", format_number(row.streams, 4), *itl, *icl, format_number(row.longest_ms, 4),
            slower,
        )  # fmt: skip

    head = (
        "awaiting", "gaps", "of time", "streams", f"ITL {name_percentile(ITL[0])}", *map(name_percentile, ITL[1:]),
        f"ICL {name_percentile(ICL[0])}", *map(name_percentile, ICL[1:]), "longest", "slower",
    )  # fmt: skip
    return TableBlock(head, tuple(map(cells, rows)))


def _compared(found: PrefillInterference, disturbed: DisturbedGaps) -> str:
    calm = found.gaps - disturbed.gaps
    lost = ""
    if found.lost_share is not None and found.lost_s is not None:
        lost = f"ecode time lost to prefill: {found.lost_share:.1%} ({found.lost_s:.1f} of {found.decode_s:.1f} s)"
        if disturbed.slowdown is None:
            return f"D{lost}."
    if disturbed.slowdown is None or disturbed.mean_ms is None or disturbed.usual_ms is None:
        if found.hidden_share is not None:
            return (
                f"What prefills cost the others is not reported: {found.hidden_share:.0%} of the time before first "
                "tokens lies beside gaps that count as undisturbed, as a prompt takes less than half of a gap, and gaps "
                "vary too much by themselves to separate what it adds."
            )
        if not calm:
            return (
                "No gap was undisturbed, so there is nothing to compare with: another request always awaited its first "
                "token."
            )
        if disturbed.gaps < MIN_COMPARED:
            return f"{format_count(disturbed.gaps, 'disturbed gap')}: too few to compare (it takes {MIN_COMPARED})."
        if disturbed.mean_ms is not None:
            return (
                f"What prefills cost the others is not reported: only {disturbed.compared_share:.0%} of the disturbed gaps, "
                f"by number or by time, have a comparison ({MIN_COMPARED} undisturbed ones at as many streams or more). It "
                f"takes {MIN_COMPARED_SHARE:.0%}: with less the figure was off by more than 10% on most simulated servers."
            )
        return (
            f"{format_count(calm, 'undisturbed gap')}: too few to compare with, or at fewer decoding streams (it takes "
            f"{MIN_COMPARED})."
        )
    times = f"({format_duration(disturbed.mean_ms / 1e3)} against {format_duration(disturbed.usual_ms / 1e3)} at as many streams or more)"
    if abs(disturbed.slowdown - 1) < MIN_DIFFERENCE and (found.lost_share or 0.0) < MIN_LOST_SHARE:
        return f"A gap while another request awaited its first token took no longer than one without {times}."
    more = f"; d{lost}" if found.lost_share else ""
    return (
        f"A gap while another request awaited its first token took {disturbed.slowdown:.1f} times as long as one without "
        f"{times}{more}."
    )


def _no_conclusion(client: str) -> str:
    return f"No conclusion: the client verdict is {client}, so the load generator may have caused these gaps."


def _uncompared(found: PrefillInterference, disturbed: DisturbedGaps) -> str:
    left = 1 - disturbed.compared_share
    if disturbed.slowdown is None or left < MIN_DIFFERENCE:
        return ""
    return (
        f" Left out: {left:.0%} of the disturbed gaps, by number or by time, which have fewer than {MIN_COMPARED} "
        "undisturbed ones at as many streams or more."
    )


def _legend(found: PrefillInterference) -> str:
    sample = ""
    if found.requests < found.of_requests:
        which = f"{found.requests} of {found.of_requests} requests"
        sample = f" A sample: the gaps of {which}, evenly over the run."
    return (
        "awaiting: other requests that awaited their first token during the gap; streams: requests that decoded then; ITL: "
        "one value per request, the mean of its gaps in this row; slower: mean gap / mean undisturbed gap at as many "
        "streams or more, - "
        f"where under {MIN_COMPARED_SHARE:.0%} of the gaps have such; * too few values.{sample}"
    )


def _queue(rows: tuple[RequestsAhead, ...]) -> TableBlock:
    def cells(row: RequestsAhead) -> tuple[str, ...]:
        ttft = (_marked(row.ttft_ms, p, row.count) for p in TTFT)
        tokens = ("-" if value is None else f"{value:.0f}" for value in (row.tokens, row.own_tokens))
        return row.label, str(row.count), *ttft, *tokens

    head = (
        "ahead",
        "requests",
        f"TTFT {name_percentile(TTFT[0])}",
        *map(name_percentile, TTFT[1:]),
        "tokens ahead",
        "own tokens",
    )
    return TableBlock(head, tuple(map(cells, rows)))


def _slope(found: PrefillSlope) -> str:
    return (
        f"Each 1,000 tokens ahead add {format_brief(found.ms_per_1k, digits=3)} ms to TTFT at the same own length (95% interval "
        f"{format_brief(found.low, digits=3)} to {format_brief(found.high, digits=3)}; least squares, R2 {found.r2:.2f})."
    )


def _marked(percentiles: dict[float, float], p: float, count: int) -> str:
    return format_number(percentiles[p], 4) + mark_scarce(count, p)
