"""Breakdown: the parts of slow and typical requests as stacked bars, and the slowest requests as
their parts, which open."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from types import MappingProxyType
from typing import Final, NamedTuple

from markupsafe import Markup

from locust_llm.report.sections.latency_parts.model import (
    NAMES,
    LatencyAttribution,
    LatencyBreakdown,
    OverlappingRequest,
    SlowRequest,
    find_reported_parts,
    name_breakdown,
    name_breakdown_metric,
    name_latency_part,
)
from locust_llm.text.format import clean_line, format_count, format_duration

Parts = Sequence[tuple[str, float, str]]
"""(part, ms, source)."""
MIN_SHARE: Final = 0.002
"""Of the width: shorter parts are not drawn."""
NO_TIMES: Final[Mapping[str, float]] = MappingProxyType({})


class BarDrawing(NamedTuple):
    """A drawing."""

    title: str
    caption: str
    label: str
    """What it shows, for who cannot see it."""
    drawn: Markup


def draw_breakdown_bars(found: LatencyAttribution) -> Iterator[BarDrawing]:
    """One of each breakdown, one of the groups, and one of the slowest requests."""
    reported = find_reported_parts(found)
    for one in found.breakdowns:
        yield _bars(one, reported)
    if (grouped := next((one for one in found.breakdowns if one.groups), None)) is not None:
        yield _groups(grouped, reported)
    if found.slowest:
        longest = max(one.total_ms for one in found.slowest)
        label = f"The {format_count(len(found.slowest), 'slowest request')}, part by part"
        rows = Markup("").join(_draw_slow_request(one, longest, reported) for one in found.slowest)
        yield BarDrawing(
            title=f"The slowest {len(found.slowest)}",
            caption="From due to the first token. Open one: its parts one after the other, and the "
            "requests that waited for "
            "a first token at the same time, on one axis.",
            label=label,
            drawn=_keys(_shown((one.parts for one in found.slowest), longest), reported)
            + _framed("group", label, rows),
        )


def _bars(one: LatencyBreakdown, reported: Collection[str]) -> BarDrawing:
    slow = [(part.name, part.slow_ms, part.source) for part in one.parts]
    typical = [(part.name, part.typical_ms, part.source) for part in one.parts]
    longest = max(_whole(slow), _whole(typical)) or 1.0
    rows = _row(f"p{one.percentile:g} and above", slow, longest, reported) + _row(
        "typical", typical, longest, reported
    )
    label = (
        f"{clean_line(name_breakdown(one))}: slow requests {_said(slow, longest, reported)}; "
        f"typical ones {_said(typical, longest, reported)}"
    )
    return BarDrawing(
        title=clean_line(name_breakdown(one)),
        caption=f"Mean of the {format_count(one.slow, 'request')} at or above the percentile "
        f"(their times are in the keys) and of "
        f"the {one.typical:,} around the median.",
        label=label,
        drawn=_keys(_shown([slow, typical], longest), reported, {name: ms for name, ms, _ in slow})
        + _framed("img", label, rows),
    )


def _groups(one: LatencyBreakdown, reported: Collection[str]) -> BarDrawing:
    longest = max(_whole(group.parts) for group in one.groups) or 1.0
    drawn = Markup("")
    for by, some in groupby(one.groups, lambda group: (group.by, group.percentile)):
        rows = Markup("").join(_row(group.label, group.parts, longest, reported) for group in some)
        drawn += Markup("<p class=by>By {}, p{} and above</p>{}").format(by[0], f"{by[1]:g}", rows)
    each = "; ".join(
        f"{clean_line(group.label)} {_said(group.parts, longest, reported)}" for group in one.groups
    )
    label = f"{clean_line(name_breakdown_metric(one))} of the slow requests of each group: {each}"
    return BarDrawing(
        title=f"{clean_line(name_breakdown_metric(one))} by group",
        caption="Mean of the slow requests of each group; where groups are small, above a lower "
        "percentile.",
        label=label,
        drawn=_keys(_shown((group.parts for group in one.groups), longest), reported)
        + _framed("img", label, drawn),
    )


def _framed(role: str, label: str, rows: Markup) -> Markup:
    return Markup('<div role={} aria-label="{}">{}</div>').format(role, label, rows)


def _said(parts: Parts, longest_ms: float, reported: Collection[str]) -> str:
    """``3.2 s: the gate 2.7 s, connecting 0.3 s``, of what is drawn."""
    shown = [(name, ms) for name, ms, _ in parts if ms >= MIN_SHARE * longest_ms]
    each = (
        f"{name_latency_part(name, reported)} {format_duration(ms / 1e3)}" for name, ms in shown
    )
    return f"{format_duration(_whole(parts) / 1e3)}: {', '.join(each)}"


def _whole(parts: Parts) -> float:
    return sum(ms for _, ms, _ in parts)


def _shown(several: Iterable[Parts], longest_ms: float) -> set[str]:
    """The parts that are long enough to be drawn in one of these bars."""
    every = chain.from_iterable(several)
    return {name for name, ms, _ in every if ms >= MIN_SHARE * longest_ms}


def _keys(
    names: Iterable[str], reported: Collection[str], times_ms: Mapping[str, float] = NO_TIMES
) -> Markup:
    shown = set(names)
    order = list(NAMES)
    keys = Markup("").join(
        Markup('<span class=key><i class="part {}"></i>{}{}</span>').format(
            name, name_latency_part(name, reported), _time_of(times_ms.get(name))
        )
        for name in sorted(shown, key=order.index)
    )
    return Markup("<div class=keys>{}</div>").format(keys)


def _time_of(ms: float | None) -> Markup:
    return (
        Markup("")
        if ms is None
        else Markup("<small>{}</small>").format(format_duration(round(ms / 1e3, 5)))
    )


def _row(label: str, parts: Parts, longest_ms: float, reported: Collection[str]) -> Markup:
    return Markup("<div class=owner><span>{}</span>{}<b>{}</b></div>").format(
        clean_line(label), _bar(parts, longest_ms, reported), format_duration(_whole(parts) / 1e3)
    )


def _bar(parts: Parts, longest_ms: float, reported: Collection[str], at_ms: float = 0.0) -> Markup:
    """An SVG stretched to its width, from ``at_ms`` on: each part a rectangle with its name and
    time as a tooltip."""
    drawn = list[Markup]()
    for name, ms, source in parts:
        share = ms / longest_ms
        if share >= MIN_SHARE or len(parts) == 1:
            drawn.append(
                Markup('<rect class="part {}" x="{:.2f}" width="{:.2f}" '
                    'height="10"><title>{}</title></rect>').format(
                    name, 1000 * at_ms / longest_ms, 1000 * max(share, MIN_SHARE),
                    f"{name_latency_part(name, reported)}: {format_duration(ms / 1e3)}, {source}",
                )
            )  # fmt: skip
        at_ms += ms
    return Markup(
        '<svg class=bar viewBox="0 0 1000 10" preserveAspectRatio=none aria-hidden=true>{}</svg>'
    ).format(Markup("").join(drawn))


def _draw_slow_request(
    request: SlowRequest, longest_ms: float, reported: Collection[str]
) -> Markup:
    tokens = "" if request.input_tokens is None else f", {request.input_tokens:,} tokens"
    head = Markup("<summary class=owner><span>{}</span>{}<b>{}</b></summary>").format(
        clean_line(request.id or "?"),
        _bar(request.parts, longest_ms, reported),
        format_duration(request.total_ms / 1e3),
    )
    rows = Markup("")
    at_ms = 0.0
    for part in request.parts:
        name, ms, source = part
        rows += Markup(
            "<div class=owner><span>{} <small>{}</small></span>{}<b>{}</b></div>"
        ).format(
            name_latency_part(name, reported),
            source,
            _bar([part], request.total_ms, reported, at_ms),
            format_duration(ms / 1e3),
        )
        at_ms += ms
    rest = request.others - len(request.overlapping)
    more = f" The longest {len(request.overlapping)} of {request.others}:" if rest else ""
    way = Markup("<p>Waiting for a first token at the same time, on the same axis.{}</p>").format(
        more
    )
    beside = Markup("").join(_beside(other, request.total_ms) for other in request.overlapping)
    about = f"Due {request.due_s:.2f} s after the start{tokens}, {clean_line(request.model)}."
    return Markup("<details class=slowest>{}<p>{}</p>{}{}{}</details>").format(
        head, about, rows, way if beside else "", beside
    )


def _beside(other: OverlappingRequest, total_ms: float) -> Markup:
    """On the axis of the slow one, cut where it begins and ends."""
    start, end = (min(max(at / total_ms, 0.0), 1.0) * 1000 for at in (other.from_ms, other.to_ms))
    tokens = "" if other.input_tokens is None else f"{other.input_tokens:,} tokens"
    return Markup(
        "<div class=owner><span>{} <small>{}</small></span>"
        "<svg class=bar viewBox='0 0 1000 10' preserveAspectRatio=none aria-hidden=true>"
        '<rect class="part overlapping" x="{:.2f}" width="{:.2f}" '
        'height="10"/></svg><b>{}</b></div>'
    ).format(
        clean_line(other.id or "?"),
        tokens,
        start,
        max(end - start, 2.0),
        format_duration((other.to_ms - other.from_ms) / 1e3),
    )
