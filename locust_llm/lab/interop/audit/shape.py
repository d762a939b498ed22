"""Shape: what must hold within one distribution, and between one and a longer one of the same
requests."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from math import inf, isfinite
from typing import Final

from locust_llm.lab.interop.load_metrics import Distribution, Figures

from .finding import OFF, AuditOutcome, Finding, check_at_most, format_seconds_or_ms

ROUNDED: Final = 2e-3
"""Figures are printed with three digits or more."""
NAMES: Final = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "latency": "latency"}
FEW_BEYOND: Final = 5
"""A percentile with fewer values beyond it is that of some single requests."""


def measures(figures: Figures) -> Iterator[tuple[str, Distribution, Callable[[float], str]]]:
    for field, name in NAMES.items():
        yield name, getattr(figures, field), format_seconds_or_ms
    yield "input tokens", figures.input_tokens, "{:,.6g}".format
    yield "output tokens", figures.output_tokens, "{:,.6g}".format


def real(figures: Figures) -> Iterator[Finding]:
    """Times, counts and rates are numbers, and none is below 0."""
    rates = {
        "requests/s": figures.requests_per_s, "output tokens/s": figures.output_tokens_per_s,
        "duration": figures.duration_s,
        "requests": figures.requests,
    }  # fmt: skip
    values = [(name, value) for name, value in rates.items() if value is not None]
    for name, of, _ in measures(figures):
        ends = [
            *of.points(),
            *(("avg", of.avg),) * (of.avg is not None),
            *(("std", of.std),) * (of.std is not None),
        ]
        values += [(f"{name} {point}", value) for point, value in ends if value is not None]
    wrong = [f"{name} = {value:g}" for name, value in values if not isfinite(value) or value < 0]
    if values:
        words = (
            ", ".join(wrong[:3]) if wrong else f"{len(values)} figures are numbers and not below 0"
        )
        yield Finding("numbers", AuditOutcome.IMPOSSIBLE if wrong else AuditOutcome.HOLDS, words)


def check_percentile_order(figures: Figures) -> Iterator[Finding]:
    """Percentiles do not fall, and a mean lies between the least and the largest value."""
    for name, of, said in measures(figures):
        points = of.points()
        fall = [(a, b) for a, b in pairwise(points) if b[1] < a[1] * (1 - ROUNDED)]
        if len(points) > 1:
            words = f"{name} " + (
                f"{fall[0][0][0]} {said(fall[0][0][1])} > {fall[0][1][0]} {said(fall[0][1][1])}"
                if fall
                else f"{points[0][0]} {said(points[0][1])} <= ... <= {points[-1][0]} "
                f"{said(points[-1][1])}"
            )
            yield Finding("order", AuditOutcome.IMPOSSIBLE if fall else AuditOutcome.HOLDS, words)


def check_mean(figures: Figures) -> Iterator[Finding]:
    """Between the least and the largest mean that values with these percentiles can have: each
    piece of the distribution at its lower, and at its upper end. Percentiles are interpolated: one
    value's worth of slack."""
    for name, of, said in measures(figures):
        if of.avg is None or not of.percentiles:
            continue
        least, most = _bounds(of)
        count = of.count or figures.requests or 100
        slack = max(ROUNDED * abs(of.avg), (of.points()[-1][1] - of.points()[0][1]) / count)
        held = least - slack <= of.avg <= most + slack
        upper = f" <= {said(most)}" if most < inf else ""
        words = f"{name}: by its percentiles {said(least)} <= mean{upper}; it is {said(of.avg)}"
        yield Finding("mean", AuditOutcome.HOLDS if held else AuditOutcome.IMPOSSIBLE, words)


def _bounds(of: Distribution) -> tuple[float, float]:
    shares = [0.0, *(p / 100 for p in sorted(of.percentiles)), 1.0]
    values = [
        of.min or 0.0,
        *(v for _, v in sorted(of.percentiles.items())),
        inf if of.max is None else of.max,
    ]
    widths = [b - a for a, b in pairwise(shares)]
    least = sum(width * value for width, value in zip(widths, values[:-1], strict=True))
    most = sum(width * value for width, value in zip(widths, values[1:], strict=True) if width > 0)
    return least, most


def check_variance(figures: Figures) -> Iterator[Finding]:
    """Variance at most (max - mean)(mean - min): Bhatia and Davis, The American Mathematical
    Monthly 107 (2000)."""
    for name, of, said in measures(figures):
        if of.avg is None or of.std is None or of.min is None or of.max is None:
            continue
        count = of.count or figures.requests or 2
        most = (
            max(of.max - of.avg, 0) * max(of.avg - of.min, 0) * count / max(count - 1, 1)
        ) ** 0.5
        words = f"{name}: std {said(of.std)} <= sqrt((max - mean)(mean - min)) = {said(most)}"
        yield check_at_most("spread", of.std, most + ROUNDED * of.avg, words)


def check_ttft_within_latency(figures: Figures) -> Iterator[Finding]:
    """The first token comes before the end: so do all percentiles of both."""
    ttft, latency = figures.ttft, figures.latency
    pairs = [
        ("mean", ttft.avg, latency.avg),
        ("min", ttft.min, latency.min),
        ("max", ttft.max, latency.max),
    ]
    pairs += [
        (f"p{p:g}", value, latency.percentiles.get(p))
        for p, value in sorted(ttft.percentiles.items())
    ]
    known = [
        (name, first, last) for name, first, last in pairs if first is not None and last is not None
    ]
    for name, first, last in [one for one in known if one[1] > one[2] * (1 + ROUNDED)][:1] or known[
        :1
    ]:
        words = (
            f"{name}: TTFT {format_seconds_or_ms(first)} <= latency {format_seconds_or_ms(last)}"
        )
        yield check_at_most("TTFT within latency", first, last, words, ROUNDED)


def check_sample_count(figures: Figures) -> Iterator[Finding]:
    """Percentiles of fewer requests than they need."""
    count = figures.requests
    ps = [
        max(of.percentiles)
        for of in (figures.ttft, figures.tpot, figures.latency)
        if of.percentiles
    ]
    if count is not None and ps:
        p = max(ps)
        beyond = count * (1 - p / 100)
        few = beyond < FEW_BEYOND * (1 - OFF)
        words = f"p{p:g} of {count:,} requests: {beyond:.3g} lie beyond it"
        words += f", and a p{p:g} that another run would repeat takes {FEW_BEYOND}" if few else ""
        yield Finding("samples", AuditOutcome.DOUBTFUL if few else AuditOutcome.HOLDS, words)


def check_chunks_apart(figures: Figures) -> Iterator[Finding]:
    """Where half of the gaps are nearly 0 chunks came together: ITL is then of reads, not of
    tokens."""
    middle = figures.itl.percentiles.get(50.0)
    avg = figures.itl.avg
    if middle is not None and avg:
        words = (
            f"ITL p50 {format_seconds_or_ms(middle)} beside a mean of {format_seconds_or_ms(avg)}"
        )
        together = middle < 0.05 * avg
        yield Finding(
            "chunks apart",
            AuditOutcome.DOUBTFUL if together else AuditOutcome.HOLDS,
            f"{words}: half of the chunks came together with the one before" if together else words,
        )
