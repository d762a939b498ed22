"""Audit: checks which metrics of one load can be true together, whichever tool measured it.

A finding is the result of one rule for one load, with arithmetic that a reader can check.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import pairwise
from math import inf, isfinite
from typing import Final

import msgspec

from locust_llm.lab.interop.load_metrics import Distribution, Figures
from locust_llm.text.format import format_brief, format_count, format_duration


class AuditOutcome(StrEnum):
    IMPOSSIBLE = "impossible"
    """No run can have these values."""
    DOUBTFUL = "doubtful"
    """The values may be true, but do not mean what readers conclude from them."""
    HOLDS = "holds"


class Finding(msgspec.Struct, frozen=True):
    """The result of one rule for one load."""

    rule: str
    """The name of the rule."""
    verdict: AuditOutcome
    """``impossible``, ``doubtful`` or ``holds``."""
    arithmetic: str
    """The calculation as a sentence, with the values and their units."""


OFF: Final = 0.05
"""Two equal metrics may differ by this share, from rounding and different definitions of the
duration."""


def check_equal(rule: str, reported: float, must: float, words: str, off: float = OFF) -> Finding:
    """Checks that two equal metrics agree."""
    equal = abs(reported - must) <= off * max(abs(reported), abs(must))
    return Finding(rule, AuditOutcome.HOLDS if equal else AuditOutcome.IMPOSSIBLE, words)


def check_at_most(rule: str, reported: float, most: float, words: str, off: float = OFF) -> Finding:
    """Checks that a metric is at most another one."""
    return Finding(
        rule, AuditOutcome.HOLDS if reported <= most * (1 + off) else AuditOutcome.IMPOSSIBLE, words
    )


def format_seconds_or_ms(value: float) -> str:
    """Formats a time, such as ``1.23 s`` or ``45.6 ms``."""
    return format_duration(value, 4)


# -- flow ------------------------------------------------------------------------------------------

IDLE: Final = 0.7
"""A closed loop uses at least this share of its users. Below it something else than the server
limits the load."""
ROUNDS: Final = 5
"""From this many requests per user on, the begin and the end of a closed loop hardly matter."""
LATE: Final = 0.05
FAILED: Final = 0.05
LENGTH_OFF: Final = 0.2
"""The mean of (time per token x tokens) may differ from the product of both means by this share, as
longer answers may have faster or slower tokens."""


def check_request_count(figures: Figures) -> Iterator[Finding]:
    """Checks requests/s against the number of requests and the duration."""
    requests = figures.requests
    time_s = figures.duration_s
    rate = figures.requests_per_s
    if requests is not None and time_s and rate is not None:
        words = (
            f"{requests:,} requests in {format_seconds_or_ms(time_s)} are {format_brief(requests / time_s)}/s; reported: "
            f"{format_brief(rate)}/s"
        )
        yield check_equal("requests/s", rate, requests / time_s, words)


def check_token_throughput(figures: Figures) -> Iterator[Finding]:
    """Checks tokens/s against requests/s times tokens per request, where both are of the same
    requests."""
    rate = None if figures.goes_on_from_warmup else _rate(figures)
    out = figures.output_tokens_per_s
    each = figures.output_tokens.avg
    if rate is not None and out is not None and each is not None:
        words = (
            f"{format_brief(rate)} requests/s x {format_brief(each)} output tokens = {format_brief(rate * each)}/s; reported: "
            f"{format_brief(out)}/s"
        )
        yield check_equal("tokens/s", out, rate * each, words)
    total = figures.total_tokens_per_s
    prompt = figures.input_tokens.avg
    if rate is not None and total is not None and each is not None and prompt is not None:
        expected = rate * (each + prompt)
        words = (
            f"{format_brief(rate)} requests/s x ({format_brief(prompt)} + {format_brief(each)}) tokens = {format_brief(expected)}/s; "
            f"reported: {format_brief(total)}/s"
        )
        yield check_equal("all tokens/s", total, expected, words)


def check_token_counts(figures: Figures) -> Iterator[Finding]:
    """Compares the tool's own count of output tokens with the server's."""
    ours = figures.output_tokens.avg
    theirs = figures.server_output_tokens
    if ours is not None and theirs is not None:
        words = (
            f"{format_brief(ours)} tokens per response by the tool's tokenizer, {format_brief(theirs)} by the server's "
            "usage"
        )
        agree = abs(ours - theirs) <= OFF * max(ours, theirs)
        if not agree:
            words += ": times per token and tokens/s count other tokens than the model's"
        yield Finding("token counts", AuditOutcome.HOLDS if agree else AuditOutcome.DOUBTFUL, words)


def check_decode_time(figures: Figures) -> Iterator[Finding]:
    """Checks the latency against TTFT plus the time per token for each further token. The least and
    the largest time per token bound it. The product of both means is close if lengths are
    similar."""
    first = figures.ttft.avg
    last = figures.latency.avg
    each = figures.tpot
    if first is None or last is None or not each.avg or last < first:
        return
    decode_s = last - first
    known = figures.output_tokens.avg
    count = known if known is not None else figures.asked_output_tokens
    if count is None or count <= 1:
        return
    expected_s = each.avg * (count - 1)
    source = "output" if known is not None else "asked for"
    words = (
        f"{format_seconds_or_ms(last)} latency - {format_seconds_or_ms(first)} TTFT = "
        f"{format_seconds_or_ms(decode_s)} of decode; "
        f"{format_seconds_or_ms(each.avg)} a token x ({format_brief(count)} - 1) tokens {source} = "
        f"{format_seconds_or_ms(expected_s)}"
    )
    least = each.min or 0.0
    most = inf if each.max is None else each.max
    least_s = least * (count - 1) * (1 - OFF)
    most_s = most * (count - 1) * (1 + OFF)
    if known is not None and not least_s <= decode_s <= most_s:
        verdict = AuditOutcome.IMPOSSIBLE
    elif abs(decode_s - expected_s) > LENGTH_OFF * max(decode_s, expected_s):
        verdict = AuditOutcome.DOUBTFUL
    else:
        verdict = AuditOutcome.HOLDS
    if known is None and verdict is not AuditOutcome.HOLDS:
        words += f": the responses had {1 + decode_s / each.avg:.0f} tokens, or these values are from several runs"
    yield Finding("latency", verdict, words)


def check_littles_law(figures: Figures) -> Iterator[Finding]:
    """Checks Little's law, Operations Research 9 (1961): requests in flight on average = requests/s
    x mean latency."""
    rate = _rate(figures)
    latency = figures.latency.avg
    most = figures.concurrency
    if figures.most_in_flight is not None and most:
        words = f"{figures.most_in_flight:,} in flight at most, of {most:,} allowed"
        yield check_at_most("in flight", figures.most_in_flight, most, words, 0)
    if rate is None or latency is None or not most or figures.goes_on_from_warmup:
        return
    busy = rate * latency
    words = (
        f"{format_brief(rate)}/s x {format_seconds_or_ms(latency)} = {format_brief(busy)} requests in flight on "
        f"average; {most:,} allowed"
    )
    finding = check_at_most("Little's law", busy, most, words)
    requests = figures.requests or 0
    if (
        finding.verdict is AuditOutcome.HOLDS
        and figures.rate_per_s is None
        and not figures.in_blocks
        and requests >= ROUNDS * most
        and busy < IDLE * most
    ):
        words += (
            ". A closed loop keeps all of them in flight. So the load generator was the limit, the "
            "load had pauses, or the server did not respond for a time"
        )
        finding = Finding(finding.rule, AuditOutcome.DOUBTFUL, words)
    yield finding


def check_littles_law_of_prefills(figures: Figures) -> Iterator[Finding]:
    """Checks Little's law for the time to the first token, under a limit of requests before their
    first token."""
    rate = None if figures.goes_on_from_warmup else _rate(figures)
    first = figures.ttft.avg
    most = figures.prefill_concurrency
    if rate is not None and first is not None and most:
        waiting = f"{format_brief(rate * first)} requests awaiting their first token on average"
        words = f"{format_brief(rate)}/s x {format_seconds_or_ms(first)} TTFT = {waiting}; {most:,} allowed"
        yield check_at_most("Little's law of prefills", rate * first, most, words)


def check_stream_speed(figures: Figures) -> Iterator[Finding]:
    """Checks tokens/s against the streams at the least time per token of any request."""
    out = figures.output_tokens_per_s
    least = figures.tpot.min
    most = figures.concurrency
    if out is not None and least and most:
        tokens = figures.output_tokens.avg or figures.asked_output_tokens or 2.0
        fastest = most / least * tokens / max(tokens - 1, 1)
        words = (
            f"{most:,} streams at {format_seconds_or_ms(least)} a token at best are "
            f"{format_brief(fastest)} tokens/s; reported: {format_brief(out)}/s"
        )
        yield check_at_most("tokens/s of the streams", out, fastest, words)


def check_latency_within_run(figures: Figures) -> Iterator[Finding]:
    """Checks that no request takes longer than the run."""
    longest = figures.latency.max
    time_s = figures.duration_s
    if longest is not None and time_s:
        yield check_at_most(
            "within the run",
            longest,
            time_s,
            f"longest request {format_seconds_or_ms(longest)}, run {format_seconds_or_ms(time_s)}",
        )


def check_schedule(figures: Figures) -> Iterator[Finding]:
    """Checks whether the schedule was kept. n requests at a rate take n / rate, and the last answer
    comes a latency later. A Poisson schedule takes longer by at most two of its deviations."""
    rate = figures.rate_per_s
    answered = figures.requests
    time_s = figures.duration_s
    if not rate or not answered or not time_s or time_s < 1 or figures.in_blocks:
        return
    sent = answered + figures.failed + figures.unfinished
    last = figures.latency.max or (figures.latency.avg or 0.0) * 3
    at_most = sent / rate * (1 + 2 / answered**0.5) + last
    late = time_s > at_most * (1 + LATE)
    words = (
        f"{sent:,} requests at {format_brief(rate)}/s take {format_seconds_or_ms(sent / rate)}, the last "
        f"{format_seconds_or_ms(last)} more; took {format_seconds_or_ms(time_s)}"
    )
    busy = (_rate(figures) or 0.0) * (figures.latency.avg or 0.0)
    if late and figures.concurrency and busy > 0.9 * figures.concurrency:
        words += (
            f": the limit of {figures.concurrency:,} in flight decided, so this is a closed "
            f"loop, not a rate"
        )
    yield Finding("schedule", AuditOutcome.DOUBTFUL if late else AuditOutcome.HOLDS, words)


def check_failures(figures: Figures) -> Iterator[Finding]:
    """Checks how many requests failed, as metrics describe answered requests only."""
    if figures.requests is None:
        return
    ended = figures.requests + figures.failed + figures.unfinished
    requested = figures.asked_requests
    if not ended or (requested and not figures.requests):
        yield Finding(
            "answered",
            AuditOutcome.IMPOSSIBLE if figures.ttft.avg else AuditOutcome.DOUBTFUL,
            "no request was answered",
        )
        return
    if requested and ended > requested:
        words = f"{ended:,} requests ended, of {requested:,} that were sent"
        yield Finding("answered", AuditOutcome.IMPOSSIBLE, words)
        return
    share = (figures.failed + figures.unfinished) / ended
    cut = f" and {figures.unfinished:,} were cut" if figures.unfinished else ""
    words = f"{figures.failed:,} of {ended:,} requests failed{cut}, and are in no percentile"
    yield Finding(
        "answered", AuditOutcome.DOUBTFUL if share > FAILED else AuditOutcome.HOLDS, words
    )


def check_goodput(figures: Figures) -> Iterator[Finding]:
    good = figures.goodput_per_s
    rate = _rate(figures)
    if good is not None and rate is not None:
        yield check_at_most(
            "goodput",
            good,
            rate,
            f"goodput {format_brief(good)}/s <= {format_brief(rate)} requests/s",
        )


def check_client(figures: Figures) -> Iterator[Finding]:
    """Reports the tool's verdict on itself."""
    if figures.client:
        words = f"the load generator called itself {figures.client}"
        yield Finding(
            "client", AuditOutcome.HOLDS if figures.client == "OK" else AuditOutcome.DOUBTFUL, words
        )


def _rate(figures: Figures) -> float | None:
    """Returns the reported requests/s, else count over duration."""
    if figures.requests_per_s is None and figures.requests is not None and figures.duration_s:
        return figures.requests / figures.duration_s
    return figures.requests_per_s


# -- shape -----------------------------------------------------------------------------------------

ROUNDED: Final = 2e-3
"""Printed values have at least three digits."""
FEW_BEYOND: Final = 5
"""A percentile with fewer values beyond it depends on a few single requests."""


def list_distributions(
    figures: Figures,
) -> Iterator[tuple[str, Distribution, Callable[[float], str]]]:
    yield "TTFT", figures.ttft, format_seconds_or_ms
    yield figures.tpot_name, figures.tpot, format_seconds_or_ms
    yield figures.itl_name, figures.itl, format_seconds_or_ms
    yield "latency", figures.latency, format_seconds_or_ms
    yield "input tokens", figures.input_tokens, "{:,.6g}".format
    yield "output tokens", figures.output_tokens, "{:,.6g}".format


def check_numbers(figures: Figures) -> Iterator[Finding]:
    """Checks that times, counts and rates are finite and not negative."""
    rates = {
        "requests/s": figures.requests_per_s, "output tokens/s": figures.output_tokens_per_s,
        "duration": figures.duration_s,
        "requests": figures.requests,
    }  # fmt: skip
    values = [(name, value) for name, value in rates.items() if value is not None]
    for name, distribution, _ in list_distributions(figures):
        statistics = [
            *distribution.points(),
            ("avg", distribution.avg),
            ("std", distribution.std),
        ]
        values += [(f"{name} {point}", value) for point, value in statistics if value is not None]
    wrong = [f"{name} = {value:g}" for name, value in values if not isfinite(value) or value < 0]
    if values:
        words = (
            ", ".join(wrong[:3]) if wrong else f"{len(values)} values are numbers and not below 0"
        )
        yield Finding("numbers", AuditOutcome.IMPOSSIBLE if wrong else AuditOutcome.HOLDS, words)


def check_percentile_order(figures: Figures) -> Iterator[Finding]:
    """Checks that percentiles do not fall."""
    for name, distribution, format_figure in list_distributions(figures):
        points = distribution.points()
        if len(points) < 2:
            continue
        shown = [f"{point} {format_figure(value)}" for point, value in points]
        verdict = AuditOutcome.HOLDS
        words = f"{name} {shown[0]} <= ... <= {shown[-1]}"
        for place, ((_, lower), (_, upper)) in enumerate(pairwise(points)):
            if upper < lower * (1 - ROUNDED):
                verdict = AuditOutcome.IMPOSSIBLE
                words = f"{name} {shown[place]} > {shown[place + 1]}"
                break
        yield Finding("order", verdict, words)


def check_mean(figures: Figures) -> Iterator[Finding]:
    """Checks the mean against the bounds by the percentiles: each piece of the distribution is at
    its lower, or at its upper end. Percentiles are interpolated, so one value more is allowed."""
    for name, distribution, format_figure in list_distributions(figures):
        if distribution.avg is None or not distribution.percentiles:
            continue
        least, most = _bounds(distribution)
        count = distribution.count or figures.requests or 100
        slack = max(
            ROUNDED * abs(distribution.avg),
            (distribution.points()[-1][1] - distribution.points()[0][1]) / count,
        )
        held = least - slack <= distribution.avg <= most + slack
        upper = f" <= {format_figure(most)}" if most < inf else ""
        words = f"{name}: by its percentiles {format_figure(least)} <= mean{upper}; it is {format_figure(distribution.avg)}"
        yield Finding("mean", AuditOutcome.HOLDS if held else AuditOutcome.IMPOSSIBLE, words)


def _bounds(distribution: Distribution) -> tuple[float, float]:
    shares = [0.0, *(percent / 100 for percent in sorted(distribution.percentiles)), 1.0]
    values = [
        distribution.min or 0.0,
        *(value for _, value in sorted(distribution.percentiles.items())),
        inf if distribution.max is None else distribution.max,
    ]
    widths = [upper - lower for lower, upper in pairwise(shares)]
    least = sum(width * value for width, value in zip(widths, values[:-1], strict=True))
    most = sum(width * value for width, value in zip(widths, values[1:], strict=True) if width > 0)
    return least, most


def check_variance(figures: Figures) -> Iterator[Finding]:
    """Checks that the variance is at most (max - mean)(mean - min): Bhatia and Davis, The American
    Mathematical Monthly 107 (2000)."""
    for name, distribution, format_figure in list_distributions(figures):
        if (
            distribution.avg is None
            or distribution.std is None
            or distribution.min is None
            or distribution.max is None
        ):
            continue
        count = distribution.count or figures.requests or 2
        above = max(distribution.max - distribution.avg, 0)
        below = max(distribution.avg - distribution.min, 0)
        most = (above * below * count / max(count - 1, 1)) ** 0.5
        words = f"{name}: std {format_figure(distribution.std)} <= sqrt((max - mean)(mean - min)) = {format_figure(most)}"
        yield check_at_most("spread", distribution.std, most + ROUNDED * distribution.avg, words)


def check_ttft_within_latency(figures: Figures) -> Iterator[Finding]:
    """Checks that TTFT is within the latency, in all common statistics."""
    ttft = figures.ttft
    latency = figures.latency
    pairs = [
        ("mean", ttft.avg, latency.avg),
        ("min", ttft.min, latency.min),
        ("max", ttft.max, latency.max),
    ]
    pairs += [
        (f"p{percent:g}", value, latency.percentiles.get(percent))
        for percent, value in sorted(ttft.percentiles.items())
    ]
    known = [
        (name, first, last) for name, first, last in pairs if first is not None and last is not None
    ]
    if not known:
        return
    wrong = (pair for pair in known if pair[1] > pair[2] * (1 + ROUNDED))
    name, first, last = next(wrong, known[0])
    words = f"{name}: TTFT {format_seconds_or_ms(first)} <= latency {format_seconds_or_ms(last)}"
    yield check_at_most("TTFT within latency", first, last, words, ROUNDED)


def check_sample_count(figures: Figures) -> Iterator[Finding]:
    """Checks that enough requests lie beyond the highest percentile."""
    count = figures.requests
    percents = [*figures.ttft.percentiles, *figures.tpot.percentiles, *figures.latency.percentiles]
    if count is not None and percents:
        highest = max(percents)
        beyond = count * (1 - highest / 100)
        few = beyond < FEW_BEYOND * (1 - OFF)
        words = f"p{highest:g} of {format_count(count, 'request')}: {beyond:.3g} lie beyond it"
        if few:
            words += f", but a repeatable p{highest:g} needs {FEW_BEYOND}"
        yield Finding("samples", AuditOutcome.DOUBTFUL if few else AuditOutcome.HOLDS, words)


def check_merged_chunks(figures: Figures) -> Iterator[Finding]:
    """Checks whether half of the gaps are nearly 0. Chunks then came together, and the gaps describe
    reads instead of tokens."""
    middle = figures.itl.percentiles.get(50.0)
    avg = figures.itl.avg
    if middle is not None and avg:
        words = f"{figures.itl_name} p50 {format_seconds_or_ms(middle)} with a mean of {format_seconds_or_ms(avg)}"
        together = middle < 0.05 * avg
        yield Finding(
            "chunks apart",
            AuditOutcome.DOUBTFUL if together else AuditOutcome.HOLDS,
            f"{words}: half of the chunks came together with the one before" if together else words,
        )


# -- rules -----------------------------------------------------------------------------------------

Rule = Callable[[Figures], Iterator[Finding]]
RULES: Final[tuple[Rule, ...]] = (
    check_numbers, check_request_count, check_littles_law,
    check_littles_law_of_prefills, check_decode_time, check_token_throughput,
    check_token_counts, check_stream_speed,
    check_latency_within_run, check_ttft_within_latency, check_percentile_order,
    check_mean, check_variance, check_schedule, check_goodput, check_failures,
    check_client, check_merged_chunks, check_sample_count,
)  # fmt: skip


def audit_figures(figures: Figures) -> list[Finding]:
    """Applies RULES in order. If a number is invalid, the other rules are skipped."""
    findings = list(check_numbers(figures))
    if any(finding.verdict is AuditOutcome.IMPOSSIBLE for finding in findings):
        return findings
    for rule in RULES[1:]:
        findings += rule(figures)
    return findings
