"""Gateway text: the table of a gateway's result on the console."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from locust_llm.text.format import format_count, format_duration

from .cancel_delay import MOMENTS
from .gateway_result import (
    FIRST_TOKEN,
    FURTHER_TOKEN,
    QUANTITIES,
    WHOLE_ANSWER,
    AddedLevel,
    AddedTime,
    GatewayResult,
)
from .headers_and_routing import DROPPED, PASSED, TO_UPSTREAM
from .hidden_failures import HIDDEN, VERDICTS

COLUMNS: Final = (FIRST_TOKEN, FURTHER_TOKEN, WHOLE_ANSWER)
MOST_CHANGES: Final = 8
MOST_NAMES: Final = 6


def format_gateway_table(result: GatewayResult) -> str:
    """Ten to thirty lines, each with its line end."""
    lines = [f"{result.name} at {result.url}"]
    lines += _tell_levels(result.levels)
    lines += map(_tell_without_load, result.without_load)
    lines += _tell_changes(result)
    lines += _tell_faults(result)
    lines += _tell_cancels(result)
    lines += _tell_headers(result)
    lines += [f"note: {note}" for note in result.notes]
    lines += [f"SLO {one.verdict}: {one.rule} ({one.value})" for one in result.rules]
    return "".join(f"{line}\n" for line in lines)


def _tell_levels(levels: Sequence[AddedLevel]) -> Iterator[str]:
    if not levels:
        return
    head = ("load", "added to first token p50", "p99", "to further tokens p50", "p99",
        "to the whole answer p50", "p99")  # fmt: skip
    rows = [head, *(tuple(_make_row(level)) for level in levels)]
    columns = zip(*rows, strict=True)
    widths = [max(map(len, column)) for column in columns]
    for row in rows:
        yield "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
    times = chain.from_iterable(level.added for level in levels)
    error_ms = max((added.error_ms for added in times), default=0.0)
    yield f"times in ms; the error of one value is up to {format_duration(error_ms / 1e3)}"
    costs = [level for level in levels if level.cpu_ms_per_request is not None]
    if costs:
        highest = costs[-1]
        tokens = "" if highest.cpu_us_per_token is None else (
            f", {highest.cpu_us_per_token:.0f} µs per token")  # fmt: skip
        memory = "" if highest.memory_mb is None else f", {highest.memory_mb:.0f} MB"
        assert highest.cpu_ms_per_request is not None
        cpu = format_duration(highest.cpu_ms_per_request / 1e3)
        most = "at most " * highest.cpu_is_most
        yield f"CPU of the gateway: {most}{cpu} per request{tokens}{memory}"


def _tell_without_load(added: AddedTime) -> str:
    p50, p99 = (format_duration(ms / 1e3) for ms in (added.p50_ms, added.p99_ms))
    return f"added to {QUANTITIES[added.quantity]}, one after the other: {p50} (p99 {p99})"


def name_load(level: AddedLevel) -> str:
    if level.streams:
        return format_count(level.streams, "stream")
    return f"{level.requests_per_s:g} requests/s"


def _make_row(level: AddedLevel) -> Iterator[str]:
    yield name_load(level)
    for quantity in COLUMNS:
        added = level.find(quantity)
        yield "" if added is None else f"{added.p50_ms:.3f}"
        yield "" if added is None else _tell_p99(added)


def _tell_p99(added: AddedTime) -> str:
    if added.p99_interval_ms is None:
        return f"{added.p99_ms:.3f}"
    low, high = added.p99_interval_ms
    return f"{added.p99_ms:.3f} ({low:.3f} to {high:.3f})"


def _tell_changes(result: GatewayResult) -> Iterator[str]:
    for one in result.changes[:MOST_CHANGES]:
        noticed = f"; a client sees: {one.noticed}" if one.noticed else ""
        yield f"changed: {one.what}: {one.seen} of {one.of} ({one.example}){noticed}"
    if len(result.changes) > MOST_CHANGES:
        more = format_count(len(result.changes) - MOST_CHANGES, "more kind")
        yield f"changed: {more}, see the page"
    if result.direct_changes:
        kinds = ", ".join(one.what for one in result.direct_changes)
        yield f"note: without the gateway there were changes too, so the machine is too busy: {kinds}"


def _tell_faults(result: GatewayResult) -> Iterator[str]:
    if not result.faults:
        return
    counts = Counter(one.verdict for one in result.faults)
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    yield f"failures of the upstream: {told}"
    for one in result.faults:
        if one.verdict == HIDDEN:
            yield f"hidden: {one.fault.replace('_', ' ')} ({one.mode}) came as {one.through}"


def _tell_cancels(result: GatewayResult) -> Iterator[str]:
    for one in result.cancels:
        seen = "" if one.median_ms is None else f"seen after {format_duration(one.median_ms / 1e3)}"
        never = f"never seen in {one.never} of {one.sent}" if one.never else ""
        known = ", ".join(filter(None, (seen, never))) or "not measured"
        yield f"client left {MOMENTS[one.moment]}: {known}"


def _tell_headers(result: GatewayResult) -> Iterator[str]:
    dropped = [
        one.name
        for one in result.headers
        if one.verdict == DROPPED and one.direction == TO_UPSTREAM
    ]
    if dropped:
        more = f" and {len(dropped) - MOST_NAMES} more" if len(dropped) > MOST_NAMES else ""
        yield f"headers that do not reach the upstream: {', '.join(dropped[:MOST_NAMES])}{more}"
    passed = [
        one.name
        for one in result.headers
        if one.secret and one.verdict == PASSED and one.direction == TO_UPSTREAM
    ]
    if passed:
        yield f"secrets of the client that reach the upstream: {', '.join(passed)}"
