"""Gateway page: one or several gateways side by side, as one HTML file that needs no network."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from locust_llm.lab.static_page import render_page
from locust_llm.report.chart_data.overlaid_runs import HUES
from locust_llm.report.chart_data.plot_data import (
    LOG_NOTE,
    Plot,
    PlotAxis,
    PlotMark,
    PlotSeries,
    choose_log_base,
    detect_doubling,
)
from locust_llm.text.format import format_brief, format_count, format_duration

from .cancel_delay import MOMENTS, CancelDelay
from .gateway_result import (
    CHANGES,
    FIRST_TOKEN,
    FURTHER_TOKEN,
    QUANTITIES,
    AddedLevel,
    AddedTime,
    GatewayResult,
    find_quantity,
)
from .gateway_text import name_load
from .headers_and_routing import (
    ADDED,
    CHANGED,
    DROPPED,
    PASSED,
    TO_CLIENT,
    TO_UPSTREAM,
    HeaderPassage,
    ReplicaDeath,
    SessionSpread,
)
from .hidden_failures import HIDDEN, KEPT, RETRIED, FaultVerdict, count_hidden
from .upstream_script import FAULTS

OWN: Final = """
body { display: block; max-width: 90rem; } .headline { font-size: 1.1rem; }
.plots { grid-template-columns: repeat(auto-fit, minmax(min(100%, 34rem), 1fr)); }
tbody th { position: sticky; left: 0; background: var(--back); }
td small { display: block; color: var(--muted); font-weight: 400; white-space: normal; }
.numbers td { min-width: 8rem; }
.words td { min-width: 8rem; max-width: 22rem; }
details summary { cursor: pointer; padding: .4rem 0; }
@media (max-width: 40rem) { .words td { min-width: 7rem; } tbody th { max-width: 8.5rem; } }
"""
TOKENS_IN_WORDS: Final = {FIRST_TOKEN: "the first token", FURTHER_TOKEN: "each further token"}
ONE_BY_ONE: Final = "one after the other"
"""The load of what is measured without any."""
EMPTY: Final = "-"
SECRETS: Final = {
    TO_UPSTREAM: "the client's secret reaches the upstream",
    TO_CLIENT: "the upstream's secret reaches the client",
}
LOUD: Final = "loud"
GOOD: Final = "pass"
OPEN: Final = "open"
NOT_MEASURED: Final = "not measured"
VERDICT_CLASSES: Final = {"PASS": GOOD, "FAIL": LOUD, "INCONCLUSIVE": OPEN}


class PageCell(NamedTuple):
    text: str
    note: str = ""
    style: str = ""


class PageTable(NamedTuple):
    """A table with a column for each gateway."""

    title: str
    rows: tuple[tuple[str, tuple[PageCell, ...]], ...]
    hint: str = ""
    numbers: bool = False
    more: tuple[tuple[str, tuple[PageCell, ...]], ...] = ()
    """Rows that the page folds up."""
    more_title: str = ""


def render_gateway_page(results: Sequence[GatewayResult]) -> str:
    """Renders the results in their order. There is one at least."""
    plots = list(_plot_added_time(results))
    names = [result.name for result in results]
    return render_page(
        "gateway.html",
        OWN,
        plots,
        title=f"Gateway{'s' * (len(results) > 1)} {', '.join(names)}",
        headlines=[describe_gateway(result) for result in results],
        names=names,
        notes=_list_notes(results),
        drawings=plots,
        tables=[table for table in list_tables(results) if table.rows or table.more],
    )


def _list_notes(results: Sequence[GatewayResult]) -> list[tuple[str, str]]:
    """(gateways, note), each note once."""
    notes = dict[str, list[str]]()
    for result in results:
        for note in result.notes:
            notes.setdefault(note, []).append(result.name)
    return [(", ".join(names), note) for note, names in notes.items()]


# -- sentences -------------------------------------------------------------------------------------


def describe_gateway(result: GatewayResult) -> str:
    """The most important findings in a few sentences."""
    sentences = [_describe_added(result)]
    if result.faults:
        hidden = count_hidden(result.faults)
        changed = sum(one.verdict == CHANGED for one in result.faults)
        sentences.append(
            f"Of {len(result.faults)} faults it hides {hidden or 'none'} and changes "
            f"{changed or 'none'}."
        )
        retried = sum(one.verdict == RETRIED for one in result.faults)
        if retried:
            sentences.append(f"It sends {format_count(retried, 'request')} again.")
    never = [MOMENTS[one.moment] for one in result.cancels if one.never]
    if never:
        sentences.append(f"It does not pass on that a client left {' or '.join(never)}.")
    return f"{result.name}: {' '.join(filter(None, sentences))}"


def _describe_added(result: GatewayResult) -> str:
    level = _find_last_within(result)
    if level is None:
        return ""
    parts = []
    for quantity, what in TOKENS_IN_WORDS.items():
        added = level.find(quantity)
        if added is not None:
            parts.append(f"{format_ms(added.p50_ms)} to {what} (p99 {format_ms(added.p99_ms)})")
    streams = format_count(level.streams, "stream")
    return f"With {streams} it adds {' and '.join(parts)}." if parts else ""


def _find_last_within(result: GatewayResult) -> AddedLevel | None:
    """The highest level of streams within the limit, else the lowest."""
    levels = [level for level in result.levels if level.streams]
    within = [level for level in levels if is_within(level, result.limit_ms)]
    if within:
        return within[-1]
    return levels[0] if levels else None


def is_within(level: AddedLevel, limit_ms: float) -> bool:
    """Whether p99 of both tokens' added time is below the limit."""
    values = [level.find(quantity) for quantity in TOKENS_IN_WORDS]
    return all(added is None or added.p99_ms <= limit_ms for added in values)


def format_ms(value: float) -> str:
    return format_duration(value / 1e3, digits=2)


# -- charts ----------------------------------------------------------------------------------------


def _plot_added_time(results: Sequence[GatewayResult]) -> Iterator[Plot]:
    for quantity in TOKENS_IN_WORDS:
        series = [
            _make_series(result, HUES[place % len(HUES)], quantity)
            for place, result in enumerate(results)
        ]
        series = [line for line in series if len(line.x) > 1]
        if not series:
            continue
        values = np.concatenate([np.array(line.y, np.float64) for line in series])
        log = choose_log_base(values) if (values > 0).all() else 0
        limits = {result.limit_ms for result in results}
        marks = tuple(
            PlotMark(text=f"limit {format_ms(limit)}", y=limit, hue="slo") for limit in limits
        )
        longest = max(series, key=lambda line: len(line.x))
        streams = [x for x in longest.x if x is not None]
        what = TOKENS_IN_WORDS[quantity]
        yield Plot(
            title=f"Added to {what}, p99",
            caption="Bars are 95% intervals over blocks." + (LOG_NOTE if log else ""),
            label=f"p99 of the time added to {what}: " + "; ".join(map(_tell_ends, series)),
            x=PlotAxis(label="streams", log=detect_doubling(streams), whole=True),
            y=PlotAxis(label="added", unit="ms", log=log, free=bool(log)),
            series=tuple(series),
            marks=marks,
        )


def _make_series(result: GatewayResult, hue: str, quantity: str) -> PlotSeries:
    points = [
        (float(level.streams), added)
        for level in result.levels
        if level.streams and (added := level.find(quantity)) is not None
    ]
    ends = [added.p99_interval_ms or (None, None) for _, added in points]
    return PlotSeries(
        result.name,
        hue,
        [streams for streams, _ in points],
        [added.p99_ms for _, added in points],
        low=[low for low, _ in ends],
        high=[high for _, high in ends],
    )


def _tell_ends(line: PlotSeries) -> str:
    first = line.y[0]
    last = line.y[-1]
    assert first is not None
    assert last is not None
    return (
        f"{line.name} {format_ms(first)} at {line.x[0]:g} and {format_ms(last)} at {line.x[-1]:g}"
    )


# -- tables ----------------------------------------------------------------------------------------


def list_tables(results: Sequence[GatewayResult]) -> Iterator[PageTable]:
    yield _make_rule_table(results)
    yield _make_added_table(results)
    yield _make_cost_table(results)
    yield _make_change_table(results)
    yield _make_fault_table(results)
    yield _make_cancel_table(results)
    yield _make_header_table(results, TO_UPSTREAM, "Headers to the upstream")
    yield _make_header_table(results, TO_CLIENT, "Headers to the client")
    yield _make_routing_table(results)


def _make_rows(
    results: Sequence[GatewayResult],
    labels: Iterable[str],
    cell: Callable[[GatewayResult, str], PageCell],
) -> tuple[tuple[str, tuple[PageCell, ...]], ...]:
    def row(label: str) -> tuple[str, tuple[PageCell, ...]]:
        return label, tuple(cell(result, label) for result in results)

    return tuple(map(row, labels))


def _list_labels(
    results: Sequence[GatewayResult], of: Callable[[GatewayResult], Iterable[str]]
) -> list[str]:
    """The labels of all results, each once, in their order."""
    labels = dict[str, None]()
    for result in results:
        labels |= dict.fromkeys(of(result))
    return list(labels)


def _make_rule_table(results: Sequence[GatewayResult]) -> PageTable:
    def cell(result: GatewayResult, label: str) -> PageCell:
        found = next((one for one in result.rules if one.rule == label), None)
        if found is None:
            return PageCell(EMPTY)
        return PageCell(found.verdict, found.value, VERDICT_CLASSES.get(found.verdict, ""))

    labels = _list_labels(results, lambda result: (one.rule for one in result.rules))
    return PageTable("Rules", _make_rows(results, labels, cell))


def _make_added_table(results: Sequence[GatewayResult]) -> PageTable:
    """The lowest and the highest load of all, and behind them the others."""
    names = _list_labels(results, lambda result: map(name_load, result.levels))
    shown = [*names[:1], *names[1:][-1:]]
    if any(result.without_load for result in results):
        shown.append(ONE_BY_ONE)
    rows = {name: tuple(_list_added_rows(results, name)) for name in {*names, *shown}}
    others = [name for name in names if name not in shown]
    return PageTable(
        "Added time",
        tuple(chain.from_iterable(rows[name] for name in shown)),
        "p50 / p99 in ms, behind them the 95% interval of p99, or the number of values. "
        "Direct: the same time without the gateway, which is already taken off. The error is how exactly one value was measured.",
        numbers=True,
        more=tuple(chain.from_iterable(rows[name] for name in others)),
        more_title=f"{format_count(len(others), 'more load')}",
    )


def _list_added_rows(
    results: Sequence[GatewayResult], name: str
) -> Iterator[tuple[str, tuple[PageCell, ...]]]:
    for quantity, what in QUANTITIES.items():
        found = [_find_added(result, name, quantity) for result in results]
        if any(added is not None for added in found):
            yield f"{what}, {name}", tuple(map(_tell_added, found))


def _find_level(result: GatewayResult, name: str) -> AddedLevel | None:
    return next((one for one in result.levels if name_load(one) == name), None)


def _find_added(result: GatewayResult, name: str, quantity: str) -> AddedTime | None:
    if name == ONE_BY_ONE:
        return find_quantity(result.without_load, quantity)
    level = _find_level(result, name)
    return None if level is None else level.find(quantity)


def _tell_added(added: AddedTime | None) -> PageCell:
    if added is None:
        return PageCell(EMPTY)
    digits = [format_brief(value, digits=2) for value in (added.p50_ms, added.p99_ms)]
    if added.p99_interval_ms is None:
        notes = [f"of {format_count(added.samples, 'value')}"]
    else:
        low, high = added.p99_interval_ms
        notes = [f"{format_brief(low, digits=2)} to {format_brief(high, digits=2)}"]
    notes.append(
        f"direct {format_brief(added.direct_p50_ms, digits=2)} / "
        f"{format_brief(added.direct_p99_ms, digits=2)}"
    )
    notes.append(f"error {format_brief(added.error_ms, digits=1)}")
    return PageCell(" / ".join(digits), "; ".join(notes))


COSTS: Final[dict[str, Callable[[AddedLevel], str]]] = {
    "CPU per request (ms)": lambda level: _tell_cpu(level, level.cpu_ms_per_request),
    "CPU per token (µs)": lambda level: _tell_cpu(level, level.cpu_us_per_token),
    "memory (MB)": lambda level: _tell_number(level.memory_mb),
}


def _make_cost_table(results: Sequence[GatewayResult]) -> PageTable:
    rows = []
    for name in _list_labels(results, lambda result: map(name_load, result.levels)):
        for label, read in COSTS.items():
            levels = [_find_level(result, name) for result in results]
            values = [EMPTY if level is None else read(level) for level in levels]
            if {*values} != {EMPTY}:
                rows.append((f"{label}, {name}", tuple(map(PageCell, values))))
    return PageTable("CPU and memory of the gateway", tuple(rows), numbers=True)


def _tell_number(value: float | None) -> str:
    return EMPTY if value is None else format_brief(value, digits=3)


def _tell_cpu(level: AddedLevel, value: float | None) -> str:
    """Of few ticks it is known only how much it was at most."""
    bound = level.cpu_is_most and value is not None
    return f"{'at most ' * bound}{_tell_number(value)}"


def _make_change_table(results: Sequence[GatewayResult]) -> PageTable:
    def cell(result: GatewayResult, label: str) -> PageCell:
        found = next((one for one in result.changes if one.what == label), None)
        if found is None:
            known = CHANGES in result.parts or not result.parts  # an older result
            return PageCell("no", style=GOOD) if known else PageCell(NOT_MEASURED)
        notes = "; ".join(filter(None, (found.noticed, found.example)))
        return PageCell(f"{found.seen} of {found.of}", notes, OPEN)

    labels = _list_labels(results, lambda result: (one.what for one in result.changes))
    return PageTable(
        "Changed answers",
        _make_rows(results, labels, cell),
        "The answers that had the change, of those that could have it, and what a client library "
        "makes of it.",
    )


def _label_fault(one: FaultVerdict) -> str:
    what = FAULTS[one.fault].what if one.fault in FAULTS else one.fault
    return f"{what}, {one.mode}{', first time only' if one.heals else ''}"


def _make_fault_table(results: Sequence[GatewayResult]) -> PageTable:
    def cell(result: GatewayResult, label: str) -> PageCell:
        found = next((one for one in result.faults if _label_fault(one) == label), None)
        return PageCell(NOT_MEASURED) if found is None else _tell_verdict(found)

    labels = _list_labels(results, lambda result: map(_label_fault, result.faults))
    every_fault = list(chain.from_iterable(result.faults for result in results))
    special = {_label_fault(one) for one in every_fault if not _is_plainly_kept(one)}
    # a gateway that did not recover has no verdict on the faults behind
    measured = [result for result in results if result.faults]
    for result in measured:
        special |= {*labels} - {*map(_label_fault, result.faults)}
    everywhere = [label for label in labels if label not in special]
    others = [label for label in labels if label in special]
    return PageTable(
        "Failures of the upstream, as clients see them",
        _make_rows(results, others, cell),
        "Kept: a client sees the same with and without the gateway. Hidden: the failure came as a "
        "success. Each fault was sent several times.",
        more=_make_rows(results, everywhere, cell),
        more_title=_title_passed_on(len(everywhere), "fault", measured, results),
    )


def _title_passed_on(
    count: int, noun: str, measured: Sequence[GatewayResult], results: Sequence[GatewayResult]
) -> str:
    """Names the gateways where the part was measured, unless it was at all of them."""
    who = "every gateway passes on"
    if len(measured) < len(results):
        passes = "passes on" if len(measured) == 1 else "pass on"
        who = f"{', '.join(result.name for result in measured)} {passes}"
    return f"{format_count(count, noun)} that {who}"


def _is_plainly_kept(one: FaultVerdict) -> bool:
    return one.verdict == KEPT and one.requests <= 1 and one.blocked_s == 0.0


STYLES: Final = {KEPT: GOOD, RETRIED: OPEN, HIDDEN: LOUD}


def _tell_verdict(one: FaultVerdict) -> PageCell:
    notes = []
    text = one.verdict
    if one.verdict != KEPT:
        text = f"{one.verdict}: {one.through}"
        notes.append(f"direct: {one.direct}")
        if one.agreed < one.trials:
            notes.append(f"{one.agreed} of {one.trials} times")
    if one.requests > 1:
        notes.append(f"sent to the upstream {one.requests} times")
    if one.blocked_s is None:
        notes.append("afterwards the gateway answered no good request any more")
    elif one.blocked_s:
        notes.append(f"afterwards good requests failed for {one.blocked_s:.1f} s")
    style = STYLES.get(one.verdict, OPEN) if one.blocked_s == 0.0 else LOUD
    return PageCell(text, "; ".join(notes), style)


def _make_cancel_table(results: Sequence[GatewayResult]) -> PageTable:
    def cell(result: GatewayResult, label: str) -> PageCell:
        found = next((one for one in result.cancels if MOMENTS[one.moment] == label), None)
        return PageCell(NOT_MEASURED) if found is None else _tell_delay(found)

    labels = _list_labels(results, lambda result: (MOMENTS[one.moment] for one in result.cancels))
    return PageTable(
        "Cancellations",
        _make_rows(results, labels, cell),
        "The time from the client's disconnect until the upstream sees it: median, and longest. "
        "Until then the server goes on generating.",
    )


def _tell_delay(one: CancelDelay) -> PageCell:
    if one.never:
        share = f"{one.never} of {one.sent}, in {one.waited_s:g} s"
        return PageCell("never seen", share, LOUD)
    if one.median_ms is None or one.longest_ms is None:
        return PageCell(NOT_MEASURED)
    return PageCell(format_ms(one.median_ms), f"longest {format_ms(one.longest_ms)}")


def _make_header_table(results: Sequence[GatewayResult], direction: str, title: str) -> PageTable:
    def find(result: GatewayResult, label: str) -> HeaderPassage | None:
        return next(
            (one for one in result.headers if (one.direction, one.name) == (direction, label)), None
        )

    def cell(result: GatewayResult, label: str) -> PageCell:
        if not result.headers:
            return PageCell(NOT_MEASURED)
        found = find(result, label)
        return PageCell(EMPTY) if found is None else _tell_passage(found)

    labels = _list_labels(
        results, lambda result: (one.name for one in result.headers if one.direction == direction)
    )
    measured = [result for result in results if result.headers]

    def is_passed_by_all(label: str) -> bool:
        return all(_is_plainly_passed(find(result, label)) for result in measured)

    passed = list(filter(is_passed_by_all, labels))
    return PageTable(
        title,
        _make_rows(results, [label for label in labels if label not in passed], cell),
        more=_make_rows(results, passed, cell),
        more_title=_title_passed_on(len(passed), "header", measured, results),
    )


def _is_plainly_passed(one: HeaderPassage | None) -> bool:
    return one is not None and one.verdict == PASSED and not one.secret


def _tell_passage(one: HeaderPassage) -> PageCell:
    if one.verdict == PASSED:
        return PageCell("passed", SECRETS[one.direction] if one.secret else "")
    style = {ADDED: OPEN, CHANGED: OPEN, DROPPED: OPEN}.get(one.verdict, "")
    return PageCell(one.verdict, one.value, style)


def _make_routing_table(results: Sequence[GatewayResult]) -> PageTable:
    rows = list[tuple[str, tuple[PageCell, ...]]]()
    for by in _list_labels(results, lambda result: (one.by for one in result.spread)):
        spreads = [_find_spread(result, by) for result in results]
        rows.append((f"sessions with {by}", tuple(map(_tell_spread, spreads))))
    deaths = [result.death for result in results]
    if any(deaths):
        rows.append(("streams of a replica that died", tuple(map(_tell_death, deaths))))
        rows.append(("requests after its death", tuple(map(_tell_recovery, deaths))))
    return PageTable("Replicas", tuple(rows))


def _find_spread(result: GatewayResult, by: str) -> SessionSpread | None:
    return next((one for one in result.spread if one.by == by), None)


def _tell_spread(one: SessionSpread | None) -> PageCell:
    if one is None:
        return PageCell(NOT_MEASURED)
    return PageCell(
        f"{one.sticky:.0%} at one replica",
        f"{one.expected:.0%} at random; requests of the replicas: {', '.join(map(str, one.replicas))}",
    )


def _tell_death(one: ReplicaDeath | None) -> PageCell:
    if one is None:
        return PageCell(NOT_MEASURED)
    if not one.open_streams:
        return PageCell("none was open")
    seen = "; ".join(f"{count} x {what}" for what, count in one.seen)
    again = f"{one.sent_again} sent to another replica" if one.sent_again else ""
    hidden = any(what.startswith("success") for what, _ in one.seen) and not one.sent_again
    return PageCell(seen, again, LOUD if hidden else "")


def _tell_recovery(one: ReplicaDeath | None) -> PageCell:
    if one is None:
        return PageCell(NOT_MEASURED)
    share = f"{one.after_failed} of {one.after} failed"
    if one.recovered_s is None:
        return PageCell(share, "until the end", LOUD)
    return PageCell(share, f"the last after {one.recovered_s:.1f} s" if one.after_failed else "")
