"""Owners: the parts of slow and typical requests as stacked bars, and the slowest requests as waterfalls that open."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from markupsafe import Markup, escape

from locust_llm.core.text import clean, duration, many
from locust_llm.report.results.waterfall import NAMES, Blame, InTheWay, Slowest, Waterfall, title

Parts = Sequence[tuple[str, float, str]]
"""(part, ms, source)."""
MIN_SHARE: Final = 0.002
"""Of the width: shorter parts are not drawn."""


class Owners(NamedTuple):
    """A drawing."""

    title: str
    caption: str
    label: str
    """What it shows, for who cannot see it."""
    drawn: Markup


def owners(found: Waterfall) -> Iterator[Owners]:
    """One of each blame, and one of the slowest requests."""
    for blame in found.blames:
        yield _bars(blame)
    if found.slowest:
        longest = max(one.total_ms for one in found.slowest)
        rows = Markup("").join(_waterfall(one, longest) for one in found.slowest)
        seen = dict.fromkeys(name for one in found.slowest for name, _, _ in one.parts)
        yield Owners(
            title=f"The slowest {len(found.slowest)}",
            caption="From due to the first token. Open one to see whose prefills stood in its way.",
            label=f"The {many(len(found.slowest), 'slowest request')}, part by part",
            drawn=_keys(seen) + rows,
        )


def _bars(blame: Blame) -> Owners:
    slow = [(part.name, part.slow_ms, part.source) for part in blame.parts]
    typical = [(part.name, part.typical_ms, part.source) for part in blame.parts]
    longest = max(sum(ms for _, ms, _ in parts) for parts in (slow, typical)) or 1.0
    named = (f"p{blame.percentile:g} and above", slow), ("typical", typical)
    rows = Markup("").join(
        Markup("<div class=owner><span>{}</span>{}<b>{}</b></div>").format(
            name, _bar(parts, longest), duration(sum(ms for _, ms, _ in parts) / 1e3)
        )
        for name, parts in named
    )
    return Owners(
        title=clean(title(blame)),
        caption=f"Mean of the {many(blame.slow, 'request')} at or above the percentile, and of the {blame.typical:,} around "
        "the median. Paler: estimated.",
        label=f"Parts of {clean(title(blame))}, slow beside typical requests",
        drawn=_keys(part.name for part in blame.parts) + rows,
    )


def _keys(names: Iterable[str]) -> Markup:
    order = list(NAMES)
    keys = Markup("").join(
        Markup('<span class=key><i class="part {}"></i>{}</span>').format(name, NAMES[name])
        for name in sorted(names, key=order.index)
    )
    return Markup("<div class=keys>{}</div>").format(keys)


def _bar(parts: Parts, longest_ms: float) -> Markup:
    """An SVG stretched to its width: each part a rectangle with its name and time as a tooltip."""
    drawn, at = list[Markup](), 0.0
    for name, ms, source in parts:
        share = ms / longest_ms
        if share >= MIN_SHARE:
            kind = f"part {name}" + (" guessed" if source == "estimated" else "")
            drawn.append(
                Markup('<rect class="{}" x="{:.2f}" width="{:.2f}" height="10"><title>{}</title></rect>').format(
                    kind, 1000 * at, 1000 * share, f"{NAMES[name]}: {duration(ms / 1e3)}, {source}"
                )
            )
        at += share
    return Markup('<svg class=bar viewBox="0 0 1000 10" preserveAspectRatio=none aria-hidden=true>{}</svg>').format(
        Markup("").join(drawn)
    )


def _waterfall(one: Slowest, longest_ms: float) -> Markup:
    tokens = "" if one.input_tokens is None else f", {one.input_tokens:,} tokens"
    head = Markup("<summary class=owner><span>{}</span>{}<b>{}</b></summary>").format(
        clean(one.id or "?"), _bar(one.parts, longest_ms), duration(one.total_ms / 1e3)
    )
    rows = Markup("").join(
        Markup("<tr><th scope=row>{}</th><td>{}</td><td>{}</td></tr>").format(NAMES[name], duration(ms / 1e3), source)
        for name, ms, source in one.parts
    )
    beside = Markup("").join(_beside(other, one.total_ms) for other in one.in_the_way)
    rest = one.others - len(one.in_the_way)
    more = escape(f"and {many(rest, 'more')}" if rest else "")
    way = Markup("<p>In its way, from send to first token:</p>{}<p class=hint>{}</p>").format(beside, more)
    about = f"Due {one.due_s:.2f} s after the start{tokens}, {clean(one.model)}"
    return Markup("<details class=slowest>{}<p>{}</p><table class=words><tbody>{}</tbody></table>{}</details>").format(
        head, about, rows, way if beside else ""
    )


def _beside(other: InTheWay, total_ms: float) -> Markup:
    """On the axis of the slow one, cut where it begins and ends."""
    start, end = (min(max(at / total_ms, 0.0), 1.0) * 1000 for at in (other.from_ms, other.to_ms))
    tokens = "" if other.input_tokens is None else f" ({other.input_tokens:,} tokens)"
    return Markup(
        "<div class=owner><span>{}</span><svg class=bar viewBox='0 0 1000 10' preserveAspectRatio=none aria-hidden=true>"
        '<rect class="part others" x="{:.2f}" width="{:.2f}" height="10"/></svg><b>{}</b></div>'
    ).format(
        clean(other.id or "?") + tokens, start, max(end - start, 2.0), duration((other.to_ms - other.from_ms) / 1e3)
    )
