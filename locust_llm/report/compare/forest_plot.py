"""Forest plot: the differences of two runs, or two arms, as a sentence, and as a plot with a row
for each metric: its difference in %, the interval, and a line at no difference.

The scale is of ratios: twice and half as much are as far from the line. Better is always to the
left, whether less or more of a metric is better.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from markupsafe import Markup

from locust_llm.slo.metric_definitions import BY_WORD, TIME
from locust_llm.text.format import clean_line, format_brief, format_signed

BETTER: Final = "better"
WORSE: Final = "worse"
NOT_SIGNIFICANT: Final = "no significant difference"
NO_WORD: Final = "-"
LEAST_RATIO: Final = 1.2
"""The scale goes to this ratio at least."""
MOST_RATIO: Final = 8.0
"""What is further off is an arrow at the edge."""
MOST_PERCENT: Final = 1000.0
"""From this percentage on a difference is written as a factor."""
MIDDLE: Final = 50.0
EDGE: Final = 46.0
"""The place of no difference, and how far the scale goes to both sides, in % of the width."""
FIRST_TOKEN: Final = "ttft"
FROM_DUE: Final = "ttft_from_due"
SUMMARISED: Final = (
    (FROM_DUE, ("p95", "p99", "p50")),
    (FIRST_TOKEN, ("p95", "p50", "p99")),
    ("itl", ("p50", "p95", "p99")),
    ("longest_stall", ("p95", "p99")),
    ("request_latency", ("p50", "p95", "p99")),
    ("output_tokens_per_s", ("",)),
)
"""The metrics of the sentence, each with its statistics in the order of choice."""
MAX_SUMMARISED: Final = 3
TWICE: Final = 2.0
"""From this ratio on the sentence has times, below it a percentage."""
MARKS: Final = {BETTER: ("\N{CHECK MARK}", "pass"), WORSE: ("\N{BALLOT X}", "loud")}
ROW: Final = Markup(
    "<li class={kind}><span class=mark aria-hidden=true>{mark}</span><span>{label}</span>"
    '<svg class=scale aria-hidden=true><line class=zero x1="50%" x2="50%" y1=0 y2=18 />'
    "{drawn}</svg><b>{value} <small>{interval}</small><span class=unseen>, {word}</span></b></li>"
)
REACH: Final = Markup('<line class=reach x1="{low}%" x2="{high}%" y1=9 y2=9 />')
DOT: Final = Markup('<circle cx="{at}%" cy=9 r=4.5 />')
PLOT: Final = Markup(
    "<ul class=forest><li class=sides aria-hidden=true><span></span><span></span>"
    "<span class=sides><span>\N{LEFTWARDS ARROW} better</span><span>worse \N{RIGHTWARDS ARROW}"
    "</span></span><b></b></li>{rows}</ul>"
)


class Difference(NamedTuple):
    """One metric of two runs, relative to the first of them."""

    metric: str
    stat: str
    label: str
    percent: float
    low: float | None
    high: float | None
    """The ends of the 95 % interval, in %. None: not known."""
    word: str
    """better, worse, or why neither."""
    where: str = ""
    """The stage: ``concurrency 8``."""
    is_bound: bool = False
    """The difference is at least so large: cut requests leave one of the two values open."""

    @property
    def differs(self) -> bool:
        return self.word in (BETTER, WORSE)


# -- the sentence ----------------------------------------------------------------------------------


def describe_differences(
    name: str, differences: Sequence[Difference], has_waits: bool = False
) -> str:
    """``chatB: ITL p50 3.2 times as long; TTFT: no significant difference.`` Empty: nothing is comparable.
    ``has_waits``: requests waited before their send, which TTFT from due includes, even if nothing
    is known of its difference."""
    parts = list[str]()
    open_parts = list[str]()
    has_waits = has_waits or any(one.metric == FROM_DUE for one in differences)
    for metric, stats in SUMMARISED:
        if metric == FIRST_TOKEN and has_waits:
            continue  # a wait may have moved from the server to the client, which TTFT leaves out
        known = [one for one in differences if one.metric == metric and one.stat in stats]
        known.sort(key=lambda one: stats.index(one.stat))
        sure = next((one for one in known if one.differs), None)
        if sure is not None:
            parts.append(describe_ratio(sure))
        elif known:
            open_parts.append(f"{BY_WORD[metric].spoken_name}: {name_open_word(known)}")
    shown = [*parts, *open_parts][:MAX_SUMMARISED]
    return f"{name}: {'; '.join(shown)}." if shown else ""


def name_open_word(known: Sequence[Difference]) -> str:
    """The word of statistics of which none differs, as the table has it: *no significant difference*
    holds only where no other word stands there, as *not concluded*."""
    others = [one.word for one in known if one.word not in (NOT_SIGNIFICANT, NO_WORD)]
    return others[0] if others else NOT_SIGNIFICANT


def describe_ratio(one: Difference) -> str:
    """``ITL p50 3.2 times as long``, ``TTFT p95 12% shorter``, or ``at least`` so."""
    is_time = BY_WORD[one.metric].units is TIME
    ratio = 1 + one.percent / 100
    where = f" at {one.where}" if one.where else ""
    name = f"{BY_WORD[one.metric].spoken_name} {one.stat}".rstrip()
    name += " at least" if one.is_bound else ""
    if ratio >= TWICE:
        times = format_brief(ratio, digits=2)
        return f"{name} {times} times as {'long' if is_time else 'high'}{where}"
    more, less = ("longer", "shorter") if is_time else ("higher", "lower")
    size = format_brief(abs(one.percent), "%", 2)
    return f"{name} {size} {more if one.percent > 0 else less}{where}"


# -- the plot --------------------------------------------------------------------------------------


def draw_forest(differences: Sequence[Difference]) -> Markup:
    """A list with a row for each difference."""
    most = _find_scale(differences)
    return PLOT.format(rows=Markup("").join(_draw_row(one, most) for one in differences))


def describe_forest(differences: Iterable[Difference]) -> str:
    """For screen readers."""
    return "; ".join(
        f"{one.label} {format_signed(one.percent, 1)}%, {one.word}" for one in differences
    )


def _find_scale(differences: Sequence[Difference]) -> float:
    """The logarithm of the ratio at the edges."""
    triples = ((one.percent, one.low, one.high) for one in differences)
    ends = [
        abs(math.log(1 + end / 100))
        for end in chain.from_iterable(triples)
        if end is not None and -100 < end < math.inf
    ]
    return min(max([*ends, math.log(LEAST_RATIO)]), math.log(MOST_RATIO))


def _draw_row(one: Difference, most: float) -> Markup:
    mark, kind = MARKS.get(one.word, ("\N{EN DASH}", "open"))
    bound = "\N{LESS-THAN OR EQUAL TO} " if one.percent < 0 else "\N{GREATER-THAN OR EQUAL TO} "
    value = _format_times(one.percent)
    if one.percent < MOST_PERCENT:
        value = format_signed(one.percent, 1, "%")
    return ROW.format(
        kind=kind,
        mark=mark,
        label=clean_line(one.label),
        drawn=Markup("").join(_draw_shapes(one, most)),
        value=bound * one.is_bound + value,
        interval="" if one.low is None or one.high is None else f"[{_format_end(one.low)}, {_format_end(one.high)}]",
        word=one.word,
    )  # fmt: skip


def _format_times(percent: float) -> str:
    """``x13,000``: so many times as much, by two digits."""
    digits = 2 - len(f"{percent / 100:.0f}")
    return f"\N{MULTIPLICATION SIGN}{round(percent / 100 + 1, min(digits, 0)):,.0f}"


def _format_end(percent: float) -> str:
    """The end of an interval, which beyond every percentage that says something is a factor."""
    if percent >= MOST_PERCENT:
        return _format_times(percent)
    return format_signed(percent, 0 if abs(percent) >= 10 else 1)


def _draw_shapes(one: Difference, most: float) -> Iterator[Markup]:
    if one.low is not None and one.high is not None:
        low, high = sorted((_place(one.low, one, most), _place(one.high, one, most)))
        yield REACH.format(low=low, high=high)
    yield DOT.format(at=_place(one.percent, one, most))


def _place(percent: float, one: Difference, most: float) -> float:
    """The place of a difference, in % of the width: worse to the right."""
    ratio = 1 + percent / 100
    share = 1.0 if math.isinf(ratio) else -1.0
    if 0 < ratio < math.inf:
        share = min(max(math.log(ratio) / most, -1.0), 1.0)
    side = 1 if BY_WORD[one.metric].less_is_better else -1
    return round(MIDDLE + EDGE * share * side, 1)
