"""Audit: what must hold between the figures of one load, whoever measured it.

A finding is what one rule says of one load, with the arithmetic that a reader can check.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import pairwise
from math import inf, isfinite
from typing import Final, NamedTuple

from locust_llm.lab.interop.load_metrics import Distribution, Figures


class AuditOutcome(StrEnum):
    IMPOSSIBLE = "impossible"
    """No run can have had these figures."""
    DOUBTFUL = "doubtful"
    """They may be true, and do not say what they are read for."""
    HOLDS = "holds"


class Finding(NamedTuple):
    rule: str
    verdict: AuditOutcome
    arithmetic: str


OFF: Final = 0.05
"""By so much two figures that must be equal may differ: rounding, and what each tool counts to the
duration."""


def check_equal(rule: str, reported: float, must: float, words: str, off: float = OFF) -> Finding:
    """Checks that two figures which are one agree."""
    equal = abs(reported - must) <= off * max(abs(reported), abs(must))
    return Finding(rule, AuditOutcome.HOLDS if equal else AuditOutcome.IMPOSSIBLE, words)


def check_at_most(rule: str, reported: float, most: float, words: str, off: float = OFF) -> Finding:
    """Checks that a figure is at most another."""
    return Finding(
        rule, AuditOutcome.HOLDS if reported <= most * (1 + off) else AuditOutcome.IMPOSSIBLE, words
    )


def format_seconds_or_ms(value: float) -> str:
    """Writes a time as a reader would: ``1.23 s``, ``45.6 ms``."""
    return f"{value:.4g} s" if abs(value) >= 1 else f"{value * 1e3:.4g} ms"


# -- flow ------------------------------------------------------------------------------------------
# Counts, rates, times and requests in flight are tied together; Little's law and what a schedule
# asks for.

IDLE: Final = 0.7
"""Of a closed loop's places in use: with fewer something else than the server decides."""
ROUNDS: Final = 5
"""Requests a place, from which on begin and end of a closed loop weigh little."""
LATE: Final = 0.05
FAILED: Final = 0.05
LENGTH_OFF: Final = 0.2
"""Mean of (time a token x tokens) beside the product of both means: longer answers may be faster or
slower a token."""


def check_request_count(figures: Figures) -> Iterator[Finding]:
    """Requests over duration."""
    n, time_s, rate = figures.requests, figures.duration_s, figures.requests_per_s
    if n is not None and time_s and rate is not None:
        words = (
            f"{n:,} requests in {format_seconds_or_ms(time_s)} are {n / time_s:.4g}/s; said: "
            f"{rate:.4g}/s"
        )
        yield check_equal("requests/s", rate, n / time_s, words)


def check_token_throughput(figures: Figures) -> Iterator[Finding]:
    """Tokens a second are requests a second times tokens a request."""
    rate = _rate(figures)
    out = figures.output_tokens_per_s
    each = figures.output_tokens.avg
    if rate is not None and out is not None and each is not None:
        words = (
            f"{rate:.4g} requests/s x {each:.4g} output tokens = {rate * each:,.4g}/s; said: "
            f"{out:,.4g}/s"
        )
        yield check_equal("tokens/s", out, rate * each, words)
    whole, read = figures.total_tokens_per_s, figures.input_tokens.avg
    if rate is not None and whole is not None and each is not None and read is not None:
        both = rate * (each + read)
        words = (
            f"{rate:.4g} requests/s x ({read:.4g} + {each:.4g}) tokens = {both:,.4g}/s; said: "
            f"{whole:,.4g}/s"
        )
        yield check_equal("all tokens/s", whole, both, words)


def check_token_counts(figures: Figures) -> Iterator[Finding]:
    """Two counts of the same answers: a tool's with its tokenizer, and the server's."""
    ours, theirs = figures.output_tokens.avg, figures.server_output_tokens
    if ours is not None and theirs is not None:
        words = (
            f"{ours:.4g} tokens an answer by the tool's tokenizer, {theirs:.4g} by the "
            f"server's usage"
        )
        alike = abs(ours - theirs) <= OFF * max(ours, theirs)
        if not alike:
            words += ": times a token and tokens/s are of other tokens than the model's"
        yield Finding("token counts", AuditOutcome.HOLDS if alike else AuditOutcome.DOUBTFUL, words)


def check_decode_time(figures: Figures) -> Iterator[Finding]:
    """Latency is TTFT, and the time a token for each further one: so much as the least and the
    largest such time allow. The product of both means is near it where lengths are alike."""
    first, last, each = figures.ttft.avg, figures.latency.avg, figures.tpot
    if first is None or last is None or not each.avg or last < first:
        return
    took = last - first
    known = figures.output_tokens.avg
    count = known if known is not None else figures.asked_output_tokens
    if count is None or count <= 1:
        return
    must = each.avg * (count - 1)
    source = "output" if known is not None else "asked for"
    words = (
        f"{format_seconds_or_ms(last)} latency - {format_seconds_or_ms(first)} TTFT = "
        f"{format_seconds_or_ms(took)} of decode; "
        f"{format_seconds_or_ms(each.avg)} a token x ({count:.4g} - 1) tokens {source} = "
        f"{format_seconds_or_ms(must)}"
    )
    least = each.min or 0.0
    most = inf if each.max is None else each.max
    if known is not None and not least * (count - 1) * (1 - OFF) <= took <= most * (count - 1) * (
        1 + OFF
    ):
        verdict = AuditOutcome.IMPOSSIBLE
    elif abs(took - must) > LENGTH_OFF * max(took, must):
        verdict = AuditOutcome.DOUBTFUL
    else:
        verdict = AuditOutcome.HOLDS
    if known is None and verdict is not AuditOutcome.HOLDS:
        words += f": the answers had {1 + took / each.avg:.0f} tokens, or these are not of one run"
    yield Finding("latency", verdict, words)


def check_littles_law(figures: Figures) -> Iterator[Finding]:
    """Little's law, Operations Research 9 (1961): requests in flight on average = requests/s x mean
    latency."""
    rate = _rate(figures)
    latency = figures.latency.avg
    most = figures.concurrency
    if figures.most_in_flight is not None and most:
        words = f"{figures.most_in_flight:,} in flight at most, of {most:,} allowed"
        yield check_at_most("in flight", figures.most_in_flight, most, words, 0)
    if rate is None or latency is None or not most:
        return
    busy = rate * latency
    words = (
        f"{rate:.4g}/s x {format_seconds_or_ms(latency)} = {busy:.4g} requests in flight on "
        f"average; {most:,} allowed"
    )
    finding = check_at_most("Little's law", busy, most, words)
    n = figures.requests or 0
    if (
        finding.verdict is AuditOutcome.HOLDS
        and figures.rate_per_s is None
        and not figures.in_blocks
        and n >= ROUNDS * most
        and busy < IDLE * most
    ):
        words += (
            ". A closed loop keeps them all: the load generator was the limit, the load had "
            "pauses, or the server gave no "
            "answer for a time"
        )
        finding = Finding(finding.rule, AuditOutcome.DOUBTFUL, words)
    yield finding


def check_littles_law_of_prefills(figures: Figures) -> Iterator[Finding]:
    """The same of the time to the first token, where requests before their first token are
    limited."""
    rate = _rate(figures)
    first = figures.ttft.avg
    most = figures.prefill_concurrency
    if rate is not None and first is not None and most:
        waiting = f"{rate * first:.4g} requests awaiting their first token on average"
        words = f"{rate:.4g}/s x {format_seconds_or_ms(first)} TTFT = {waiting}; {most:,} allowed"
        yield check_at_most("Little's law of prefills", rate * first, most, words)


def check_stream_speed(figures: Figures) -> Iterator[Finding]:
    """Streams at the least time a token that any request had."""
    out, least, most = figures.output_tokens_per_s, figures.tpot.min, figures.concurrency
    if out is not None and least and most:
        n = figures.output_tokens.avg or figures.asked_output_tokens or 2.0
        fastest = most / least * n / max(n - 1, 1)
        words = (
            f"{most:,} streams at {format_seconds_or_ms(least)} a token at best are "
            f"{fastest:,.4g} tokens/s; said: {out:,.4g}/s"
        )
        yield check_at_most("tokens/s of the streams", out, fastest, words)


def check_latency_within_run(figures: Figures) -> Iterator[Finding]:
    """No request takes longer than the run."""
    longest, time_s = figures.latency.max, figures.duration_s
    if longest is not None and time_s:
        yield check_at_most(
            "within the run",
            longest,
            time_s,
            f"longest request {format_seconds_or_ms(longest)}, run {format_seconds_or_ms(time_s)}",
        )


def check_schedule(figures: Figures) -> Iterator[Finding]:
    """Whether it was kept: n requests at a rate are sent in n / rate, and the last answer comes a
    latency later. A Poisson schedule takes longer by two of its deviations at most."""
    rate, n, time_s = figures.rate_per_s, figures.requests, figures.duration_s
    if not rate or not n or not time_s or time_s < 1 or figures.in_blocks:
        return
    sent = n + figures.failed + figures.unfinished
    last = figures.latency.max or (figures.latency.avg or 0.0) * 3
    at_most = sent / rate * (1 + 2 / n**0.5) + last
    late = time_s > at_most * (1 + LATE)
    words = (
        f"{sent:,} requests at {rate:.4g}/s take {format_seconds_or_ms(sent / rate)}, the last "
        f"{format_seconds_or_ms(last)} more; took {format_seconds_or_ms(time_s)}"
    )
    busy = (_rate(figures) or 0.0) * (figures.latency.avg or 0.0)
    if late and figures.concurrency and busy > 0.9 * figures.concurrency:
        words += (
            f": the limit of {figures.concurrency:,} in flight decided, which is a closed "
            f"loop and no rate"
        )
    yield Finding("schedule", AuditOutcome.DOUBTFUL if late else AuditOutcome.HOLDS, words)


def check_failures(figures: Figures) -> Iterator[Finding]:
    """Figures are of the answered requests alone."""
    if figures.requests is None:
        return
    all_of_them = figures.requests + figures.failed + figures.unfinished
    asked = figures.asked_requests
    if not all_of_them or (asked and not figures.requests):
        yield Finding(
            "answered",
            AuditOutcome.IMPOSSIBLE if figures.ttft.avg else AuditOutcome.DOUBTFUL,
            "no request was answered",
        )
        return
    if asked and all_of_them > asked:
        words = f"{all_of_them:,} requests ended, of {asked:,} that were sent"
        yield Finding("answered", AuditOutcome.IMPOSSIBLE, words)
        return
    share = (figures.failed + figures.unfinished) / all_of_them
    cut = f" and {figures.unfinished:,} were cut" if figures.unfinished else ""
    words = f"{figures.failed:,} of {all_of_them:,} requests failed{cut}, and are in no percentile"
    yield Finding(
        "answered", AuditOutcome.DOUBTFUL if share > FAILED else AuditOutcome.HOLDS, words
    )


def check_goodput(figures: Figures) -> Iterator[Finding]:
    good = figures.goodput_per_s
    rate = _rate(figures)
    if good is not None and rate is not None:
        yield check_at_most("goodput", good, rate, f"goodput {good:.4g}/s <= {rate:.4g} requests/s")


def check_client(figures: Figures) -> Iterator[Finding]:
    """What the tool says of itself."""
    if figures.client:
        words = f"the load generator called itself {figures.client}"
        yield Finding(
            "client", AuditOutcome.HOLDS if figures.client == "OK" else AuditOutcome.DOUBTFUL, words
        )


def _rate(figures: Figures) -> float | None:
    """Requests a second: as said, else by count and duration."""
    if figures.requests_per_s is None and figures.requests is not None and figures.duration_s:
        return figures.requests / figures.duration_s
    return figures.requests_per_s


# -- shape -----------------------------------------------------------------------------------------
# What must hold within one distribution, and between one and a longer one of the same requests.

ROUNDED: Final = 2e-3
"""Figures are printed with three digits or more."""
NAMES: Final = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "latency": "latency"}
FEW_BEYOND: Final = 5
"""A percentile with fewer values beyond it is that of some single requests."""


def list_distributions(
    figures: Figures,
) -> Iterator[tuple[str, Distribution, Callable[[float], str]]]:
    for field, name in NAMES.items():
        yield name, getattr(figures, field), format_seconds_or_ms
    yield "input tokens", figures.input_tokens, "{:,.6g}".format
    yield "output tokens", figures.output_tokens, "{:,.6g}".format


def check_numbers(figures: Figures) -> Iterator[Finding]:
    """Times, counts and rates are numbers, and none is below 0."""
    rates = {
        "requests/s": figures.requests_per_s, "output tokens/s": figures.output_tokens_per_s,
        "duration": figures.duration_s,
        "requests": figures.requests,
    }  # fmt: skip
    values = [(name, value) for name, value in rates.items() if value is not None]
    for name, of, _ in list_distributions(figures):
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
    for name, of, format_figure in list_distributions(figures):
        points = of.points()
        fall = [(a, b) for a, b in pairwise(points) if b[1] < a[1] * (1 - ROUNDED)]
        if len(points) > 1:
            words = f"{name} " + (
                f"{fall[0][0][0]} {format_figure(fall[0][0][1])} > {fall[0][1][0]} {format_figure(fall[0][1][1])}"
                if fall
                else f"{points[0][0]} {format_figure(points[0][1])} <= ... <= {points[-1][0]} "
                f"{format_figure(points[-1][1])}"
            )
            yield Finding("order", AuditOutcome.IMPOSSIBLE if fall else AuditOutcome.HOLDS, words)


def check_mean(figures: Figures) -> Iterator[Finding]:
    """Between the least and the largest mean that values with these percentiles can have: each
    piece of the distribution at its lower, and at its upper end. Percentiles are interpolated: one
    value's worth of slack."""
    for name, of, format_figure in list_distributions(figures):
        if of.avg is None or not of.percentiles:
            continue
        least, most = _bounds(of)
        count = of.count or figures.requests or 100
        slack = max(ROUNDED * abs(of.avg), (of.points()[-1][1] - of.points()[0][1]) / count)
        held = least - slack <= of.avg <= most + slack
        upper = f" <= {format_figure(most)}" if most < inf else ""
        words = f"{name}: by its percentiles {format_figure(least)} <= mean{upper}; it is {format_figure(of.avg)}"
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
    for name, of, format_figure in list_distributions(figures):
        if of.avg is None or of.std is None or of.min is None or of.max is None:
            continue
        count = of.count or figures.requests or 2
        most = (
            max(of.max - of.avg, 0) * max(of.avg - of.min, 0) * count / max(count - 1, 1)
        ) ** 0.5
        words = f"{name}: std {format_figure(of.std)} <= sqrt((max - mean)(mean - min)) = {format_figure(most)}"
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
    for name, first, last in [figure for figure in known if figure[1] > figure[2] * (1 + ROUNDED)][
        :1
    ] or known[:1]:
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


# -- rules -----------------------------------------------------------------------------------------
# All of them, in the order in which a reader asks.

Rule = Callable[[Figures], Iterator[Finding]]
RULES: Final[tuple[Rule, ...]] = (
    check_numbers, check_request_count, check_littles_law,
    check_littles_law_of_prefills, check_decode_time, check_token_throughput,
    check_token_counts, check_stream_speed,
    check_latency_within_run, check_ttft_within_latency, check_percentile_order,
    check_mean, check_variance, check_schedule, check_goodput, check_failures,
    check_client, check_chunks_apart, check_sample_count,
)  # fmt: skip


def audit_figures(figures: Figures) -> list[Finding]:
    """What can be checked, in the order of RULES. Where a figure is no number nothing else is."""
    (first, *rest) = RULES
    findings = list(first(figures))
    if any(finding.verdict is AuditOutcome.IMPOSSIBLE for finding in findings):
        return findings
    return [*findings, *(finding for rule in rest for finding in rule(figures))]
