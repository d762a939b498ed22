"""Whose millisecond: the owners of the slow requests' time, as sentences and tables."""

from collections.abc import Iterator
from typing import Final

from locust_llm.core.text import duration, many, number
from locust_llm.report.results.waterfall import NAMES, Blame, Owner, OwnMean, OwnMeans, Part, Waterfall, measure, title

from .blocks import Block, Heading, Table, Text

HEADING: Final = "Whose millisecond"
BARS: Final = "Slow requests, part by part"
"""The heading of the charts."""
SAID: Final = 0.05
"""Of the whole: smaller parts are not in the sentence."""
MOST: Final = 0.9
"""Of the requests of a run: a server that counted fewer has not ended the others."""
RULES: Final = {
    "late": "The schedule was late: too few users, or a load generator without CPU.",
    "retries": "Earlier attempts were refused; --max-retries decides how long one goes on.",
    "gate": "A higher prefill limit moves the gate's part into the server's queue; it does not shorten the sum.",
    "connect": "Each connection is opened anew: keep them open, or look at the way to the server.",
    "network": "Neither queue nor prefill: look at the network, a proxy, the tokenizer and the HTTP server.",
    "queue": "A lower prefill limit moves the queue's part to the gate; it does not shorten the sum. Less load does, or "
    "more servers.",
    "prefill": "Its own prompt: shorter prompts shorten it, or a prefix cache.",
    "others": "Prompts and decodes that shared its steps: a smaller token budget, or fewer prompts at a time.",
    "client": "Chunks lay unread in this machine: its CPU is short.",
    "stalls": "Others' prefills stopped the decode: a lower prefill limit, or smaller chunks of prompts.",
    "preemption": "The server took its memory away: fewer requests at a time, or a larger KV cache.",
}
"""What follows from the longest part."""


def whose(found: Waterfall) -> Iterator[Block]:
    """Sentence and table of each blame, the owners by group, and where the figures are from."""
    yield Heading(HEADING)
    for one in found.blames:
        yield Text(sentence(one))
        yield Table(
            (f"Part of {title(one)}", "slow (ms)", "between", "typical (ms)", "from"),
            tuple(map(_row, one.parts)),
            numbers=False,
        )
    if (grouped := next((one for one in found.blames if one.owners), None)) is not None:
        yield Table(
            ("Requests", "count", measure(grouped), "longest part of the slow ones", "of"),
            tuple(map(_owner, grouped.owners)),
            numbers=False,
        )
    for own in found.own_means:
        yield from _own(own, found)
    yield Text(" ".join(_from(found)))


def _own(own: OwnMeans, found: Waterfall) -> Iterator[Block]:
    """Sentence and table; where the server counted far fewer requests than there are here, that too."""
    means = ", ".join(f"{mean.name} {duration(mean.server_ms / 1e3)}" for mean in own.means)
    count = max(mean.count for mean in own.means)
    server = f"{own.engine}, {own.source}" if own.source else own.engine
    few = (
        " It counts a request when it ends: these are the first ones of many." if count < MOST * found.requests else ""
    )
    yield Text(
        f"By its own histograms, over all requests of the server ({server}) that ended in this time: mean {means} of "
        f"{many(count, 'request')}.{few} Its prefill is the own one with others' work in between."
    )
    head = f"Mean over all requests ({server})", "server (ms)", "here (ms)", "apart", "from"
    yield Table(head, tuple(_beside(mean, found) for mean in own.means), numbers=False)


def _beside(mean: OwnMean, found: Waterfall) -> tuple[str, ...]:
    here = mean.here_ms
    apart = "-" if here is None or not mean.server_ms else f"{here / mean.server_ms - 1:+.1%}"
    word = "reported" if sum(found.reported.values()) >= found.requests / 2 else "estimated"
    return mean.name, number(mean.server_ms, 4), number(here, 4), apart, "measured" if mean.name == "decode" else word


def sentence(blame: Blame) -> str:
    """``Of the 3.4 s (mean of the 12 slowest), 2.1 s are the server's queue, 0.9 s its own prefill.``"""
    whole = sum(part.slow_ms for part in blame.parts)
    longest = sorted(blame.parts, key=lambda part: -part.slow_ms)
    said = [part for i, part in enumerate(longest) if i == 0 or part.slow_ms >= SAID * whole]
    parts = ", ".join(
        f"{duration(part.slow_ms / 1e3)}{' are' if i == 0 else ''} {NAMES[part.name]}{_guessed(part)}"
        for i, part in enumerate(said)
    )
    typical = duration(sum(part.typical_ms for part in blame.parts) / 1e3)
    rule = RULES.get(longest[0].name, "") if longest else ""
    slow = many(blame.slow, "request")
    return (
        f"{title(blame)}, {duration(blame.value_ms / 1e3)}: of the {duration(whole / 1e3)} that the {slow} at or above it "
        f"took on average (typical: {typical}), {parts}. {rule}"
    ).rstrip()


def shares(found: Waterfall) -> Iterator[str]:
    """``TTFT from Due p99: 62% the server's queue, 27% its own prefill (estimated)``, of the first blame."""
    for blame in found.blames[:1]:
        whole = sum(part.slow_ms for part in blame.parts)
        said = sorted((part for part in blame.parts if part.slow_ms >= SAID * whole), key=lambda part: -part.slow_ms)
        all_ = len(said) > 1 and all(part.source == "estimated" for part in said)
        parts = (f"{part.slow_ms / whole:.0%} {NAMES[part.name]}{'' if all_ else _guessed(part)}" for part in said)
        yield f"{title(blame)}: {', '.join(parts)}{' (all estimated)' * all_}"


def _guessed(part: Part) -> str:
    return " (estimated)" if part.source == "estimated" else ""


def _row(part: Part) -> tuple[str, ...]:
    between = (
        "-"
        if part.source != "estimated" or part.low_ms == part.high_ms
        else f"{number(part.low_ms, 4)} to {number(part.high_ms, 4)}"
    )
    return NAMES[part.name], number(part.slow_ms, 4), between, number(part.typical_ms, 4), part.source


def _owner(owner: Owner) -> tuple[str, ...]:
    name, ms = owner.longest
    whole = sum(ms for _, ms, _ in owner.parts)
    return (
        f"{owner.by} {owner.label}", f"{owner.count:,}", f"p{owner.percentile:g} {duration(owner.value_ms / 1e3)}",
        f"{NAMES[name]}, {duration(ms / 1e3)}", f"{ms / whole:.0%}",
    )  # fmt: skip


def _from(found: Waterfall) -> Iterator[str]:
    if found.reported:
        sources = " and ".join(f"{many(count, 'request')} ({name})" for name, count in found.reported.items())
        yield f"The server reported its own times of {sources}, of {found.requests:,}."
    else:
        yield (
            "The server reported nothing of single requests: their queue, own prefill and others' work are estimated from "
            "this side's stamps."
        )
    if found.impossible:
        yield f"Of {many(found.impossible, 'request')} it reported more time than there was: left out."
    if found.price:
        yield f"Price of a prompt: {found.price}."
    if not found.in_order and not found.reported:
        yield "First tokens overtook each other, so how much of a wait was queue is open: half, between nothing and all."
    if found.unattributed_share >= 0.0005:
        yield f"Unattributed: {found.unattributed_share:.1%} of all time to first tokens."
    yield from (f"Left out: {why}." for why in found.left_out)
