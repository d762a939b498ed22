"""Whose millisecond: the owners of the slow requests' time, as sentences and tables."""

from collections.abc import Iterator
from typing import Final

from locust_llm.core.text import duration, many, number, supported
from locust_llm.report.results.waterfall import (
    NAMES,
    Blame,
    Owner,
    OwnMean,
    OwnMeans,
    Part,
    ServerClock,
    Waterfall,
    measure,
    title,
)

from .blocks import Block, Heading, Table, Text

HEADING: Final = "Whose millisecond"
BARS: Final = "Slow requests, part by part"
"""The heading of the charts."""
SAID: Final = 0.05
"""Of the whole: smaller parts are not in the sentence."""
WAITS: Final = ("queue", "others")
GUESSED: Final = " (estimated)"
MOST: Final = 0.9
"""Of the requests of a run: a server that counted fewer has not ended the others."""
RULES: Final = {
    "late": "The load generator sent late: too few users, or too little CPU.",
    "retries": "Earlier attempts were refused; --max-retries decides how long one goes on.",
    "gate": "A higher prefill limit moves this to the server's queue, and the sum stays about the same.",
    "connect": "Each connection is opened anew: keep them open, or look at the network.",
    "network": "Neither queue nor prefill: look at the network, a proxy, the tokenizer and the HTTP server.",
    "handover": "The engine was in the middle of a step, or the server's processes had no CPU: a smaller token budget makes "
    "steps shorter.",
    "queue": "A lower prefill limit moves this to the gate, and the sum stays about the same; less load or more servers "
    "make it shorter.",
    "prefill": "Shorter prompts or a prefix cache make it shorter.",
    "others": "Other prompts and decodes shared its steps: a smaller token budget or fewer prompts at a time make it "
    "shorter.",
    "client": "Chunks lay unread on this machine: its CPU is short.",
    "stalls": "Others' prefills held up the decode: a lower prefill limit, or smaller chunks of prompts.",
    "preemption": "The server ran out of KV cache: fewer requests at a time, or a larger cache.",
    "open": "The server's spans tell them apart (--otlp-receiver); its /metrics do on average ('Queue or prefill?' below).",
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
    """``TTFT from Due p99 is 3.4 s. The 12 requests at or above it took 3.6 s on average (typical ones: 310 ms): 2.1 s the
    server's queue, 0.9 s its own prefill.``"""
    whole = sum(part.slow_ms for part in blame.parts)
    said = _longest(blame, ", which cannot be told apart here")
    parts = ", ".join(f"{duration(ms / 1e3)} {what}" for ms, what, _ in said)
    typical = duration(sum(part.typical_ms for part in blame.parts) / 1e3)
    who = "The slowest request" if blame.slow == 1 else f"The {blame.slow:,} requests at or above it"
    average = "" if blame.slow == 1 else " on average"
    rule = RULES.get(said[0][2], "") if said else ""
    return (
        f"{title(blame)} is {duration(blame.value_ms / 1e3)}. {who} took {duration(whole / 1e3)}{average} (typical ones: "
        f"{typical}): {parts}. {rule}"
    ).rstrip()


def _longest(blame: Blame, open_: str) -> list[tuple[float, str, str]]:
    """(ms, in words, name) of the parts that are said, the longest first. Those that cannot be told apart are one, with
    ``open_`` behind it."""
    whole = sum(part.slow_ms for part in blame.parts)
    said = [(part.slow_ms, f"{NAMES[part.name]}{_guessed(part)}", part.name) for part in blame.parts]
    if _open(blame):
        both = sum(ms for ms, _, name in said if name in WAITS)
        said = [one for one in said if one[2] not in WAITS]
        said.append((both, f"{' and '.join(map(NAMES.__getitem__, WAITS))}{open_}", "open"))
    said.sort(key=lambda one: -one[0])
    return [one for i, one in enumerate(said) if i == 0 or one[0] >= SAID * whole]


def _open(blame: Blame) -> bool:
    """Nothing says how much of the wait was queue: it is estimated to be between hardly anything and all of it."""
    parts = {part.name: part for part in blame.parts}
    queue, others = (parts.get(name) for name in WAITS)
    return (
        queue is not None
        and others is not None
        and queue.source == "estimated"
        and queue.low_ms < SAID * (both := queue.slow_ms + others.slow_ms)
        and queue.high_ms > (1 - SAID) * both
    )


def shares(found: Waterfall) -> Iterator[str]:
    """``TTFT from Due p99: 62% the server's queue, 27% its own prefill (estimated)``, of the first blame."""
    for blame in found.blames[:1]:
        whole = sum(part.slow_ms for part in blame.parts)
        said = _longest(blame, GUESSED)
        all_ = len(said) > 1 and all(what.endswith(GUESSED) for _, what, _ in said)
        parts = (f"{ms / whole:.0%} {what.removesuffix(GUESSED) if all_ else what}" for ms, what, _ in said)
        way = "; the way through the proxy is in them" * unknown_way(found)
        yield f"{title(blame)}: {', '.join(parts)}{' (all estimated)' * all_}{way}"


def unknown_way(found: Waterfall) -> bool:
    """There is a proxy, and requests of which the server reported nothing."""
    return bool(found.proxy) and sum(found.reported.values()) < found.requests


def _guessed(part: Part) -> str:
    return GUESSED if part.source == "estimated" else ""


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
        yield f"The server reported its own times for {sources} of {found.requests:,}."
    else:
        yield (
            "The server reported nothing of single requests: their queue, own prefill and others' work are estimated from "
            "this side's stamps."
        )
    if unknown_way(found):
        yield (
            f"The way through the proxy ({found.proxy}) is not known: it is part of the server's queue and of others' work "
            "here, where the server does not report its own times."
        )
    if found.server_clock is not None:
        yield _clock(found.server_clock)
    if found.impossible:
        yield f"For {many(found.impossible, 'request')} it reported more time than there was: left out."
    if found.price:
        yield f"A prefill alone is taken to last {found.price}."
    if not found.in_order and not found.reported:
        yield "First tokens overtook each other, so how much of a wait was queue is not known: half of it is assumed."
    if found.unattributed_share >= 0.0005:
        yield f"Unattributed: {found.unattributed_share:.1%} of all time to first tokens."
    yield from (f"Left out: {why}." for why in found.left_out)


def _clock(clock: ServerClock) -> str:
    within = duration(clock.within_s)
    if abs(clock.ahead_s) <= clock.within_s:
        return f"The server's clock agrees with this machine's within {within}."
    offset = supported(abs(clock.ahead_s), clock.within_s, " s", 13)
    way = "ahead of" if clock.ahead_s > 0 else "behind"
    return f"The server's clock is {offset} {way} this machine's (\N{PLUS-MINUS SIGN} {within}); no part depends on it."
