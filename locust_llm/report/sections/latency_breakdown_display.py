"""Latency breakdown display: where slow requests spend their time, as sentences, tables and
bars."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from types import MappingProxyType
from typing import Final, NamedTuple

from markupsafe import Markup

from locust_llm.records.breakdown_labels import (
    CLIENT,
    CONNECT,
    GATE,
    HANDOVER,
    HELD,
    IN_SERVER,
    LATE,
    NAMES,
    NETWORK,
    PERMIT,
    PREFILL,
    QUEUE,
    RETRIES,
    SERVER,
    TO_DUE,
    TTFT,
    UNATTRIBUTED,
    USER,
    WITH_DECODE,
    WITH_PROXY,
    name_latency_part,
)
from locust_llm.report.document_blocks import Block, Heading, TableBlock, TextBlock
from locust_llm.report.sections.latency_breakdown import (
    HISTOGRAMS,
    MIN_GROUP,
    MIN_NAMED,
    REQUESTS,
    LatencyAttribution,
    LatencyBreakdown,
    LatencyPart,
    ServerClock,
    ServerHistogramMean,
    ServerHistogramMeans,
    ServerTime,
    SlowGroup,
    find_reported_parts,
    name_breakdown,
    name_breakdown_metric,
)
from locust_llm.text.format import (
    capitalise_sentence,
    clean_line,
    format_count,
    format_duration,
    format_number,
    format_signed,
    format_supported,
)

HEADING: Final = "Where slow requests spend their time"
BARS: Final = "Slow requests, part by part"
"""The heading of the charts."""
QUESTION: Final = "Queue or prefill?"
"""The sentence with the answer begins so, here and in the notes of older runs."""
MIN_REST: Final = 0.02
"""From this share of the time to a first token on, the sentence names the rest that is neither
queue nor prefill."""
MIN_OUTSIDE: Final = 0.1
"""From this share of the mean time in the server (measured here) on, the time outside the server's
clock is named."""
FAR_BEYOND: Final = 3.0
"""Beyond so many times the mean time in the server, the mean does not explain what is so slow."""
MORE: Final = 1.1
"""A server that counted more than this many times the run's requests served others too."""
COUNTS_DIFFER: Final = (
    "The means here are of {}. If the server counted more requests (a warmup, other clients, "
    "several choices) or fewer, its mean covers other requests, so no difference is shown."
)
NAMES_OF_MEANS: Final = {"ttft": "TTFT"}
RULES: Final = {
    USER: (
        "All users were busy when these requests were due: more users (-u) send them in time, "
        "unless requests then take longer."
    ),
    LATE: "The load generator sent late: its CPU was busy, or the locustfile blocked.",
    RETRIES: "Earlier attempts were refused; --max-retries limits the attempts.",
    GATE: (
        "With a higher prefill limit, more requests wait in the server instead: a sweep of the "
        "limit shows which total is smaller."
    ),
    PERMIT: (
        "Prefill slots were free, but the permits arrived late from another process: use fewer "
        "processes (--processes) or a machine with more CPU."
    ),
    CONNECT: (
        "Each request opens a new connection: keep connections open, or check the network and "
        "this machine's CPU."
    ),
    NETWORK: "Check the network, a proxy, the tokenizer and the HTTP server.",
    HANDOVER: (
        "The engine was in the middle of a step, or the server's processes had no CPU. A smaller "
        "token budget makes steps shorter."
    ),
    QUEUE: (
        "A lower prefill limit moves a part of this wait to the client: a sweep of the limit "
        "shows which total is smaller. Less load or more servers shorten it."
    ),
    PREFILL: (
        "Other requests awaited a first token too, and may have shared its steps. Shorter prompts "
        "or a prefix cache shorten it."
    ),
    HELD: (
        "These tokens were ready earlier: their chunks were gathered, or are hidden reasoning or a "
        "whole tool call."
    ),
    WITH_DECODE: (
        "These responses arrived whole, after their decode: their chunks were gathered, or are a "
        "whole tool call."
    ),
    CLIENT: (
        "First chunks were read together with later ones and may have arrived earlier: this "
        "machine's CPU was busy, or the server sent them together."
    ),
}
"""The advice for the part that grew most over typical requests."""
PREFILL_ALONE: Final = (
    "No other request of this run awaited a first token then: shorter prompts or a prefix cache "
    "make it shorter."
)
SECOND: Final = 0.5
"""A second part that grew by this share of the largest growth is named with it."""


def make_latency_parts_blocks(attribution: LatencyAttribution) -> Iterator[Block]:
    """The sentence and table of each breakdown, the groups, and the sources of the values."""
    yield Heading(HEADING)
    reported = find_reported_parts(attribution)
    for breakdown in attribution.breakdowns:
        yield TextBlock(describe_slow_requests(breakdown, attribution))
        yield TableBlock(
            (
                f"Part of {name_breakdown(breakdown)}",
                "slow (ms)",
                "typical (ms)",
                "all (ms)",
                "from",
            ),
            tuple(_format_part_row(part, reported) for part in breakdown.parts),
            numbers=False,
        )
    if (
        grouped := next(
            (breakdown for breakdown in attribution.breakdowns if breakdown.groups), None
        )
    ) is not None:
        yield TableBlock(
            (
                "Requests",
                "count",
                name_breakdown_metric(grouped),
                "largest part of slow requests",
                "share",
            ),
            tuple(_format_group_row(group, reported) for group in grouped.groups),
            numbers=False,
        )
        counts = Counter[str]()
        for group in grouped.groups:
            counts[group.by] += group.count
        if min(counts.values()) < attribution.requests:
            yield TextBlock(f"Groups of fewer than {MIN_GROUP} requests are left out.")
    if answer := describe_server_time(attribution):
        yield TextBlock(answer)
    for own in attribution.own_means:
        yield from _make_histogram_blocks(own, attribution)
    yield TextBlock(" ".join(_describe_sources(attribution)))


# -- the server ------------------------------------------------------------------------------------


def describe_server_time(attribution: LatencyAttribution) -> str:
    """How the time in the server is divided on average. Empty: single requests show it, and the
    parts have it."""
    server = attribution.server
    if server.basis == REQUESTS:
        return ""
    if server.basis == HISTOGRAMS:
        others = " It served other requests too." if _has_served_others(attribution) else ""
        least = f"{server.least} to " if 0 < server.least < server.count else ""
        whole = "of queue and prefill" if server.unsplit_of else "to a first token"
        return (
            f"{_divide_first_token(attribution, whole)}, means of {least}"
            f"{_format_request_count(server.count, attribution)}.{others}{_describe_unsplit_time(server)}"
            f"{_describe_standstill_in_means(attribution)}{_beyond_means(attribution)}"
        )
    means_ms = attribution.means_ms
    longest = max((SERVER, WITH_DECODE), key=lambda name: means_ms.get(name, 0.0))
    where = name_latency_part(longest, find_reported_parts(attribution))
    known = "A metrics page or tracing"
    if attribution.own_means:
        known = "The metrics page does not split it: tracing"
    if split := sum(_count_histogram_requests(own, "prefill") for own in attribution.own_means):
        known = f"The metrics page splits it for {split:,} of {attribution.requests:,} requests only: tracing"
    return (
        f"From the send to the first token: {format_duration(server.server_ms / 1e3)} {where}, on "
        f"average. {known} (--otlp-receiver) would split "
        f"it.{_describe_standstill_in_means(attribution)}"
    )


def _describe_standstill_in_means(attribution: LatencyAttribution) -> str:
    """That a standstill is in the means, where it is much of them. Empty: it is not."""
    stood_still_ms = attribution.stood_still_ms or 0.0
    if not stood_still_ms or stood_still_ms < MIN_NAMED * attribution.means_ms[TTFT]:
        return ""
    requests = format_count(attribution.stood_still_of or 0, "request")
    return (
        f" No token came for a while as {requests} awaited the first token: "
        f"{_format_ms(stood_still_ms)} of the mean is that, whatever the server counts it as."
    )


def _describe_unsplit_time(server: ServerTime) -> str:
    """How much of the time to the first tokens is in neither queue nor prefill. The server's means
    do not show how much of it belongs to requests that it never counted. Empty: none."""
    share = _find_unsplit_share(server)
    if not share:
        return ""
    whole_ms = server.unsplit_of * server.unsplit_ms
    return (
        f" {format_count(server.unsplit_of, 'first token')} arrived within the time of these "
        f"readings, after {_format_ms(server.unsplit_ms)} on average and {_format_ms(whole_ms)} in "
        f"sum. Queue and prefill of the {format_count(server.count, 'counted request')} are "
        f"{_format_ms((1 - share) * whole_ms)} of this sum, and {share:.0%} are other work, or "
        "belong to requests that the server has not counted. A server counts queue and prefill "
        "only when a request ends, and many servers never count cancelled requests."
    )


def _find_unsplit_share(server: ServerTime) -> float:
    """The share of the time to all first tokens that is in no counted queue or prefill. 0: none."""
    whole_ms = server.unsplit_of * server.unsplit_ms
    split_ms = server.count * (server.queue_ms + server.prefill_ms)
    return 1 - split_ms / whole_ms if split_ms < whole_ms else 0.0


def _divide_first_token(attribution: LatencyAttribution, whole: str) -> str:
    """Queue, prefill and the rest. Where chunks were gathered, the decode before the first one is a
    part of its own. So is much time outside the server's clock, as of a stopped process."""
    server = attribution.server
    held_ms = _held_ms(attribution)
    outside_ms = _outside_ms(attribution)
    whole_ms = server.ttft_ms
    name, share = server.largest
    rest_ms = server.rest_ms
    rest = f", {_format_ms(rest_ms)} neither" if rest_ms >= MIN_REST * whole_ms else ""
    if held_ms or outside_ms:
        whole_ms = attribution.means_ms[TTFT]
        whole = "to a first token here"
        share *= server.ttft_ms / whole_ms
        rest += f", {_format_ms(held_ms)} {NAMES[HELD]}" * bool(held_ms)
        where = "the proxy" if attribution.proxy else "a proxy"
        counted = max(attribution.choices or attribution.requests, 1)
        least = "at least " * (server.count > counted)
        rest += (
            f", {least}{_format_ms(outside_ms)} outside the server's measurement (sending, its socket and "
            f"front end, {where}, the network or late reading)"
        ) * bool(outside_ms)
        for other, ms in ((NAMES[HELD], held_ms), ("outside the server's measurement", outside_ms)):
            if ms > share * whole_ms:
                name = other
                share = ms / whole_ms
    of = " of queue and prefill" * bool(_find_unsplit_share(server))
    return (
        f"{QUESTION} {capitalise_sentence(name)}, {share:.0%}{of} on average, by the server's own histograms "
        f"({server.engine}): of {_format_ms(whole_ms)} {whole} {_format_ms(server.queue_ms)} are queue, "
        f"{_format_ms(server.prefill_ms)} prefill{rest}"
    )


def _held_ms(attribution: LatencyAttribution) -> float:
    """The mean decode before the first chunk. 0: it is little, or the means have no common whole."""
    server = attribution.server
    if server.unsplit_of or _has_served_others(attribution):
        return 0.0
    return server.held_ms if server.held_ms >= MIN_NAMED * server.server_ms else 0.0


def _outside_ms(attribution: LatencyAttribution) -> float:
    """The part of the mean TTFT (measured here) that the server's clock cannot have had, even if it
    counted only these requests. 0: it is little, or other requests ended than began."""
    server, here_ms = attribution.server, attribution.means_ms[TTFT]
    if server.unsplit_of or _has_served_others(attribution):
        return 0.0
    counted = max(attribution.choices or attribution.requests, 1)
    counted_ms = server.ttft_ms * max(server.count / counted, 1.0)
    outside_ms = here_ms - counted_ms - _held_ms(attribution)
    return outside_ms if outside_ms >= MIN_OUTSIDE * here_ms else 0.0


def _has_served_others(attribution: LatencyAttribution) -> bool:
    own = max(attribution.choices or attribution.requests, attribution.sent)
    return attribution.server.count > MORE * own


def _beyond_means(attribution: LatencyAttribution) -> str:
    """The remark that a mean shows nothing of requests that took far longer."""
    mean_ms = attribution.server.server_ms
    slow = next(iter(attribution.breakdowns), None)
    if slow is None or not mean_ms:
        return ""
    slow_ms = sum(part.slow_ms for part in slow.parts if part.name in IN_SERVER)
    if slow_ms < FAR_BEYOND * mean_ms:
        return ""
    where = WITH_PROXY[NAMES[SERVER]] if attribution.proxy else NAMES[SERVER]
    return (
        f" The requests at or above {name_breakdown(slow)} were {format_duration(slow_ms / 1e3)} "
        f"{where} on average, {slow_ms / mean_ms:.0f} times the mean, so means do not explain them."
    )


def _format_ms(ms: float) -> str:
    """Not finer than 0.01 ms: the mean of an empty queue means nothing with three digits."""
    return format_duration(round(ms / 1e3, 5))


def _make_histogram_blocks(
    own: ServerHistogramMeans, attribution: LatencyAttribution
) -> Iterator[Block]:
    """A server counts a first token when it comes, and other times when a request has ended. So
    each mean may cover another number of requests."""
    counts = [mean.count for mean in own.means]
    count = max(counts)
    same_requests = {*counts} == {attribution.requests}
    server = f"{own.engine}, {own.source}" if own.source else own.engine
    whose = f" of {_format_request_count(count, attribution)}" if same_requests else ""
    head = (
        f"Mean{whose} by the server's histograms ({server})", "server (ms)",
        *([] if same_requests else ["requests"]), "here (ms)", "difference (ms)", "from",
    )  # fmt: skip
    rows = tuple(
        tuple(_format_histogram_row(mean, attribution.requests, same_requests))
        for mean in own.means
    )
    yield TableBlock(head, rows, numbers=False)
    if not same_requests:
        yield TextBlock(COUNTS_DIFFER.format(format_count(attribution.requests, "request")))
    if count < attribution.requests / MORE:
        yield TextBlock(
            "A server counts most times when a request ends. It counted fewer requests than there "
            "are here."
        )
    elif count < attribution.requests:
        yield TextBlock(
            "No reading of its metrics includes the rest: they ended before the first reading, "
            "after the last one, or just before a restart."
        )


def _count_histogram_requests(own: ServerHistogramMeans, name: str) -> int:
    return sum(mean.count for mean in own.means if mean.name == name)


def _format_request_count(count: int, attribution: LatencyAttribution) -> str:
    """``50 requests``, or ``49 of 50 requests`` where the others ended outside the server's
    readings."""
    missed = f" of {attribution.requests}" if count < attribution.requests else ""
    return f"{count}{missed} request{'s' if count != 1 or missed else ''}"


def _format_histogram_row(
    mean: ServerHistogramMean, requests: int, same_requests: bool
) -> Iterator[str]:
    """``same_requests``: all means cover the same requests, and no cell has their number."""
    yield NAMES_OF_MEANS.get(mean.name, mean.name)
    yield format_number(mean.server_ms, 4)
    if not same_requests:
        yield f"{mean.count:,}"
    here_ms = mean.here_ms
    if here_ms is None:
        yield from ("-", "-", "-")
        return
    yield format_number(here_ms, 4)
    yield format_signed(here_ms - mean.server_ms, 2) if mean.count == requests else "-"
    yield "reported" if mean.name in (QUEUE, PREFILL) else "measured"


# -- slow requests ---------------------------------------------------------------------------------


def describe_slow_requests(breakdown: LatencyBreakdown, attribution: LatencyAttribution) -> str:
    """``TTFT from Due p99 is 3.4 s. The 12 requests at or above it took 3.6 s on average (typical
    ones: 310 ms): 2.1 s the server's queue, 0.9 s prefill.``"""
    whole_ms = sum(part.slow_ms for part in breakdown.parts)
    largest = _list_largest_parts(breakdown, find_reported_parts(attribution))
    parts = ", ".join(f"{format_duration(ms / 1e3)} {name}" for ms, name, _ in largest)
    typical = format_duration(sum(part.typical_ms for part in breakdown.parts) / 1e3)
    who = (
        "The slowest request"
        if breakdown.slow == 1
        else f"The {breakdown.slow:,} requests at or above it"
    )
    average = "" if breakdown.slow == 1 else " on average"
    return (
        f"{name_breakdown(breakdown)} is {format_duration(breakdown.value_ms / 1e3)}. {who} took "
        f"{format_duration(whole_ms / 1e3)}{average} "
        f"(typical ones: {typical}): {parts}. {' '.join(_advise(breakdown, attribution))}"
    ).rstrip()


def _advise(breakdown: LatencyBreakdown, attribution: LatencyAttribution) -> Iterator[str]:
    """The advice for the part that grew most over typical requests. It is named where it is not the
    largest one. Another part that grew by half as much is named, too."""
    stood_still_ms = breakdown.stood_still_ms or 0.0
    if stood_still_ms >= MIN_NAMED * sum(part.slow_ms for part in breakdown.parts):
        yield (
            f"{format_duration(stood_still_ms / 1e3)} of it is a standstill, when no token "
            f"came{_count_who_met_it(breakdown)}."
        )
    if stood_still_ms > sum(map(_growth_ms, breakdown.parts)) / 2:
        return  # what makes a part shorter does not end a standstill
    grown = sorted(breakdown.parts, key=_growth_ms, reverse=True)
    most_ms = max(map(_growth_ms, grown), default=0.0)
    causes = [
        part for part in grown if _growth_ms(part) > 0 and _growth_ms(part) >= SECOND * most_ms
    ][:2]
    largest = max(breakdown.parts, key=lambda part: part.slow_ms, default=None)
    if not causes and largest is not None:
        causes = [largest]
    elif len(causes) == 1 and causes[0] is largest:
        yield _advise_on_part(largest, breakdown, attribution)
        return
    reported = find_reported_parts(attribution)
    for part in causes:
        if (growth_ms := _growth_ms(part)) > 0:
            yield (
                f"{format_duration(growth_ms / 1e3)} more than in typical ones is "
                f"{name_latency_part(part.name, reported)}."
            )
        yield _advise_on_part(part, breakdown, attribution)


def _count_who_met_it(breakdown: LatencyBreakdown) -> str:
    """``, which 1 of these 4 requests met``. Empty: all did, or it is not known."""
    met = breakdown.stood_still_of or breakdown.slow
    return f", which {met:,} of these {breakdown.slow:,} requests met" * (met < breakdown.slow)


def _growth_ms(part: LatencyPart) -> float:
    return part.slow_ms - part.typical_ms


def _advise_on_part(
    part: LatencyPart, breakdown: LatencyBreakdown, attribution: LatencyAttribution
) -> str:
    """The network is no cause where the kernel's round trip is a small share of the part. Through a
    proxy, the round trip is not the way to the server."""
    round_trip_ms = breakdown.round_trip_ms
    if (
        part.name == NETWORK
        and not attribution.proxy
        and round_trip_ms is not None
        and round_trip_ms < MIN_NAMED * part.slow_ms
    ):
        return (
            f"The network's round trip is {format_duration(round_trip_ms / 1e3)} at most: check "
            "the tokenizer, the HTTP server or a proxy in front of the server."
        )
    if part.name == PREFILL and breakdown.no_other_prefill is True:
        return PREFILL_ALONE
    return RULES.get(part.name, "")


def _list_largest_parts(
    breakdown: LatencyBreakdown, reported: Collection[str]
) -> list[tuple[float, str, str]]:
    """(ms, words, part) of the named parts, the largest first."""
    whole_ms = sum(part.slow_ms for part in breakdown.parts)
    named_parts = sorted(
        (
            (part.slow_ms, name_latency_part(part.name, reported), part.name)
            for part in breakdown.parts
        ),
        key=lambda part_named: -part_named[0],
    )
    return [
        part_named
        for i, part_named in enumerate(named_parts)
        if i == 0 or part_named[0] >= MIN_NAMED * whole_ms
    ]


def summarise_latency_parts(attribution: LatencyAttribution, *, in_table: bool = True) -> str:
    """For the console: ``TTFT from Due p99: 62% the server's queue, 27% prefill.`` for the first
    breakdown, and what else is known of the time in the server. ``in_table``: a table has TTFT from
    Due too."""
    return " ".join(
        filter(
            None,
            (
                *(
                    _summarise_breakdown(breakdown, attribution, in_table)
                    for breakdown in attribution.breakdowns[:1]
                ),
                describe_server_time(attribution),
            ),
        )
    )


def _summarise_breakdown(
    breakdown: LatencyBreakdown, attribution: LatencyAttribution, in_table: bool
) -> str:
    """The value of TTFT from Due stands here where it is in no table."""
    whole_ms = max(sum(part.slow_ms for part in breakdown.parts), 1e-9)
    parts = ", ".join(
        f"{ms / whole_ms:.0%} {name}"
        for ms, name, _ in _list_largest_parts(breakdown, find_reported_parts(attribution))
    )
    stood_still = (breakdown.stood_still_ms or 0.0) / whole_ms
    if stood_still >= MIN_NAMED:
        parts += f"; the server stood still for {stood_still:.0%} of this time{_count_who_met_it(breakdown)}"
    value = ""
    if not in_table and breakdown.metric == TO_DUE:
        value = f" is {format_duration(breakdown.value_ms / 1e3)}"
    return f"{name_breakdown(breakdown)}{value}: {parts}."


def _format_part_row(part: LatencyPart, reported: Collection[str]) -> tuple[str, ...]:
    means = (format_number(ms, 4) for ms in (part.slow_ms, part.typical_ms, part.all_ms))
    return name_latency_part(part.name, reported), *means, part.source


def _format_group_row(group: SlowGroup, reported: Collection[str]) -> tuple[str, ...]:
    name, ms = group.longest
    part = name_latency_part(name, reported)
    whole_ms = sum(ms for _, ms, _ in group.parts)
    stood_still_ms = group.stood_still_ms or 0.0
    if stood_still_ms > ms / 2:
        part, ms = "the server stood still", stood_still_ms
    return (
        f"{group.by} {group.label}",
        f"{group.count:,}",
        f"p{group.percentile:g} {format_duration(group.value_ms / 1e3)}",
        f"{part}, {format_duration(ms / 1e3)}",
        f"{ms / whole_ms:.0%}",
    )


def _describe_sources(attribution: LatencyAttribution) -> Iterator[str]:
    if attribution.reported:
        sources = " and ".join(
            f"{format_count(count, 'request')} ({name})"
            for name, count in attribution.reported.items()
        )
        few = (
            ""
            if attribution.server.basis == REQUESTS
            else ", too few to separate the time in the server"
        )
        yield f"The server reported its own times for {sources} of {attribution.requests:,}{few}."
    else:
        yield "The server did not report times of single requests."
    if attribution.proxy:
        yield (
            f"Requests pass through a proxy ({attribution.proxy}). What it took is unknown: its "
            "time is in one part with the server's or the network's."
        )
    if attribution.server_clock is not None:
        yield _describe_server_clock(attribution.server_clock)
    if attribution.impossible:
        yield (
            f"For {format_count(attribution.impossible, 'request')} the server reported more time "
            "than had passed; they are left out."
        )
    yield from (f"Left out: {why}." for why in attribution.left_out)


def _describe_server_clock(clock: ServerClock) -> str:
    within = format_duration(clock.within_s)
    if abs(clock.ahead_s) <= clock.within_s:
        return f"The server's clock agrees with this machine's within {within}."
    offset = format_supported(abs(clock.ahead_s), clock.within_s, " s", 13)
    way = "ahead of" if clock.ahead_s > 0 else "behind"
    return (
        f"The server's clock is {offset} {way} this machine's (\N{PLUS-MINUS SIGN} {within}); "
        f"no part depends on it."
    )


# -- bars ------------------------------------------------------------------------------------------

Parts = Sequence[tuple[str, float, str]]
"""(part, ms, source)."""
MIN_SHARE: Final = 0.002
"""Parts below this share of the width are not drawn."""
ESTIMATED: Final = frozenset((CLIENT, UNATTRIBUTED, WITH_DECODE))
"""The length of these parts is not known: they may be shorter, or belong to others."""
HATCH: Final = Markup(
    "<svg class=unseen aria-hidden=true><defs><pattern id=hatch width=5 height=5 "
    'patternUnits=userSpaceOnUse patternTransform="rotate(-45)"><path d="M0 2.5H5"/></pattern>'
    "</defs></svg>"
)
"""The strokes over an estimate, once for a page."""
NO_TIMES: Final[Mapping[str, float]] = MappingProxyType({})


class BarDrawing(NamedTuple):
    title: str
    caption: str
    label: str
    """What it shows, for screen readers."""
    drawn: Markup


def draw_breakdown_bars(attribution: LatencyAttribution) -> Iterator[BarDrawing]:
    """A drawing for each breakdown, and for the groups."""
    reported = find_reported_parts(attribution)
    for number, breakdown in enumerate(attribution.breakdowns):
        bars = _draw_breakdown(breakdown, reported)
        yield bars if number else bars._replace(drawn=HATCH + bars.drawn)
    if (
        grouped := next(
            (breakdown for breakdown in attribution.breakdowns if breakdown.groups), None
        )
    ) is not None:
        yield _draw_groups(grouped, reported)


def _draw_breakdown(breakdown: LatencyBreakdown, reported: Collection[str]) -> BarDrawing:
    slow = [(part.name, part.slow_ms, part.source) for part in breakdown.parts]
    typical = [(part.name, part.typical_ms, part.source) for part in breakdown.parts]
    longest = max(_sum_ms(slow), _sum_ms(typical)) or 1.0
    rows = _draw_row(f"p{breakdown.percentile:g} and above", slow, longest, reported) + _draw_row(
        "typical", typical, longest, reported
    )
    label = (
        f"{clean_line(name_breakdown(breakdown))}: slow requests {_describe_bar(slow, longest, reported)}; "
        f"typical ones {_describe_bar(typical, longest, reported)}"
    )
    return BarDrawing(
        title=clean_line(name_breakdown(breakdown)),
        caption=(
            f"Mean of the {format_count(breakdown.slow, 'request')} at or above the percentile "
            f"(values in the legend) and of the {breakdown.typical:,} around the median."
        ),
        label=label,
        drawn=_draw_keys(
            _find_drawn_parts([slow, typical], longest),
            reported,
            {name: ms for name, ms, _ in slow},
        )
        + _frame_rows("img", label, rows),
    )


def _draw_groups(breakdown: LatencyBreakdown, reported: Collection[str]) -> BarDrawing:
    longest = max(_sum_ms(group.parts) for group in breakdown.groups) or 1.0
    drawn = Markup("")
    for by, groups in groupby(breakdown.groups, lambda group: (group.by, group.percentile)):
        rows = Markup("").join(
            _draw_row(group.label, group.parts, longest, reported) for group in groups
        )
        drawn += Markup("<p class=by>By {}, p{} and above</p>{}").format(by[0], f"{by[1]:g}", rows)
    each = "; ".join(
        f"{clean_line(group.label)} {_describe_bar(group.parts, longest, reported)}"
        for group in breakdown.groups
    )
    label = (
        f"{clean_line(name_breakdown_metric(breakdown))} of the slow requests of each group: {each}"
    )
    return BarDrawing(
        title=f"{clean_line(name_breakdown_metric(breakdown))} by group",
        caption="Mean of the slow requests of each group. Small groups use a lower percentile.",
        label=label,
        drawn=_draw_keys(
            _find_drawn_parts((group.parts for group in breakdown.groups), longest), reported
        )
        + _frame_rows("img", label, drawn),
    )


def _frame_rows(role: str, label: str, rows: Markup) -> Markup:
    return Markup('<div role={} aria-label="{}">{}</div>').format(role, label, rows)


def _describe_bar(parts: Parts, longest_ms: float, reported: Collection[str]) -> str:
    """``3.2 s: the gate 2.7 s, connecting 0.3 s`` for the drawn parts."""
    shown = [(name, ms) for name, ms, _ in parts if ms >= MIN_SHARE * longest_ms]
    each = (
        f"{name_latency_part(name, reported)} {format_duration(ms / 1e3)}" for name, ms in shown
    )
    return f"{format_duration(_sum_ms(parts) / 1e3)}: {', '.join(each)}"


def _sum_ms(parts: Parts) -> float:
    return sum(ms for _, ms, _ in parts)


def _find_drawn_parts(several: Iterable[Parts], longest_ms: float) -> set[str]:
    """The parts that are long enough in one of these bars."""
    every = chain.from_iterable(several)
    return {name for name, ms, _ in every if ms >= MIN_SHARE * longest_ms}


def _draw_keys(
    names: Iterable[str], reported: Collection[str], times_ms: Mapping[str, float] = NO_TIMES
) -> Markup:
    shown = set(names)
    order = list(NAMES)
    keys = Markup("").join(
        Markup('<span class=key><i class="{}"></i>{}{}</span>').format(
            _name_classes(name),
            name_latency_part(name, reported),
            _format_key_time(times_ms.get(name)),
        )
        for name in sorted(shown, key=order.index)
    )
    return Markup("<div class=keys>{}</div>").format(keys)


def _format_key_time(ms: float | None) -> Markup:
    return (
        Markup("")
        if ms is None
        else Markup("<small>{}</small>").format(format_duration(round(ms / 1e3, 5)))
    )


def _draw_row(label: str, parts: Parts, longest_ms: float, reported: Collection[str]) -> Markup:
    return Markup("<div class=owner><span>{}</span>{}<b>{}</b></div>").format(
        clean_line(label),
        _draw_bar(parts, longest_ms, reported),
        format_duration(_sum_ms(parts) / 1e3),
    )


def _draw_bar(parts: Parts, longest_ms: float, reported: Collection[str]) -> Markup:
    """An SVG as wide as its place. Each part is a rectangle with its name and time as a tooltip; an
    estimate is hatched."""
    drawn = list[Markup]()
    at_ms = 0.0
    for name, ms, source in parts:
        share = ms / longest_ms
        if share >= MIN_SHARE or len(parts) == 1:
            tip = f"{name_latency_part(name, reported)}: {format_duration(ms / 1e3)}, {source}"
            drawn.append(_draw_part(name, at_ms / longest_ms, share, tip))
        at_ms += ms
    return Markup("<svg class=bar aria-hidden=true>{}</svg>").format(Markup("").join(drawn))


def _draw_part(name: str, start: float, share: float, tip: str) -> Markup:
    """``start`` and ``share`` are of the width of the bar."""
    place = Markup('x="{:.2f}%" width="{:.2f}%" height="100%"').format(
        100 * start, 100 * max(share, MIN_SHARE)
    )
    drawn = Markup('<rect class="{}" {}><title>{}</title></rect>').format(
        _name_classes(name), place, tip
    )
    if name in ESTIMATED:
        drawn += Markup('<rect fill="url(#hatch)" pointer-events=none {}/>').format(place)
    return drawn


def _name_classes(name: str) -> str:
    return f"part {name}{' estimated' if name in ESTIMATED else ''}"
