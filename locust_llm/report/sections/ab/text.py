"""The section of two arms: their verdict in a sentence, each figure with the interval of its difference."""

from collections.abc import Iterator
from typing import Final

from locust_llm.records.run import Run
from locust_llm.report.blocks import Block, Heading, TableBlock, TextBlock, format_flags
from locust_llm.report.sections.ab.analysis import ISOLATED
from locust_llm.report.sections.ab.model import DIFFERENT, INCONCLUSIVE, ISOLATION_ROOM, PairedComparison, PairedFigure
from locust_llm.text.format import ComparedTexts, format_comparison, format_count

HEAD: Final = ("Metric", "base", "candidate", "difference", "%", "95% interval", "")
FIRST: Final = 5
"""So many figures that differ are named in the sentence."""
NOTE: Final = (
    "Base and candidate: the mean over the blocks of what a block came to (geometric, where the interval is one of a "
    "percentage). Difference: from base to candidate, averaged over the pairs; 95% interval: Student's t over the pairs. "
    "No difference to be seen: 0 lies inside. Percentiles count each failure as +infinity; averages and rates are of "
    "successful requests. Of 20 figures of two equal arms one is called better or worse by chance."
)


def describe_paired_verdict(found: PairedComparison) -> str:
    """In one sentence or two."""
    if found.isolated:
        return describe_isolation(found)
    name = "A/A" if found.aa else "A/B"
    if found.verdict == INCONCLUSIVE:
        return f"{name} {found.verdict}: {found.reason}."
    together = f"all figures together: p {found.chance:.2g}" if found.chance is not None else ""
    said = f"{name} {found.verdict} ({format_count(found.pairs, 'pair')}; {together})."
    called = f"{found.different} of {found.known} figures are called different"
    if found.aa:
        return f"{said} {called}, where {0.05 * found.known:.2g} are expected of equal arms (5%)."
    if found.verdict != DIFFERENT:
        return f"{said} {called}; of equal arms {0.05 * found.known:.2g} would be."
    named = [format_paired_difference(figure) for figure in found.figures if figure.different]
    more = f"; and {len(named) - FIRST} more" if len(named) > FIRST else ""
    return f"{said} {called}: {'; '.join(named[:FIRST])}{more}."


def describe_isolation(found: PairedComparison) -> str:
    """What the others cost the tenant, in one sentence or two."""
    who = f"Isolation of {found.isolated} {found.isolation}"
    if found.reason:
        return f"{who}: {found.reason}."
    named = [
        f"{figure.label.removesuffix(' (ms)')} {1 + figure.percent / 100:.3g} times ({_times(figure)})"
        for figure in found.figures
        if (figure.metric, figure.stat) in ISOLATED and figure.percent is not None
    ]
    return (
        f"{who} ({format_count(found.pairs, 'pair')}; at most {ISOLATION_ROOM:g}% longer beside the others is isolated). Beside "
        f"them, against alone: {'; '.join(named) or 'no latency is known in each block'}."
    )


def _times(figure: PairedFigure) -> str:
    if figure.low_percent is None or figure.high_percent is None:
        return "-"
    return f"{1 + figure.low_percent / 100:.3g} to {1 + figure.high_percent / 100:.3g}"


def make_paired_head(found: PairedComparison) -> tuple[str, ...]:
    """Of the table of its figures."""
    return ("Metric", "alone", "beside", *HEAD[3:]) if found.isolated else HEAD


def make_paired_table(found: PairedComparison) -> Iterator[Block]:
    """Each figure of both arms."""
    if found.isolated:
        yield Heading(f"Isolation: {found.isolated} beside the others against alone")
    else:
        yield Heading("A/A: base against itself" if found.aa else "A/B: candidate against base")
    rows = tuple(format_paired_cells(figure) for figure in found.figures)
    yield TableBlock(make_paired_head(found), rows)
    for note in dict.fromkeys(figure.note for figure in found.figures if figure.note):
        labels = ", ".join(figure.label for figure in found.figures if figure.note == note)
        few = any(figure.few for figure in found.figures if figure.note == note)
        yield TextBlock(f"{'* ' * few}{labels}: {note}.")
    alone = f"Base and candidate: {found.isolated} alone, and beside the others. "
    yield TextBlock(alone * bool(found.isolated) + NOTE)


def describe_arms(run: Run) -> Iterator[tuple[str, str]]:
    """As conditions of the run."""
    s = run.settings
    for arm in run.arms:
        server = arm.host + (f" ({arm.server})" if arm.server else "")
        yield arm.name, ", ".join((server, arm.model or "-", *arm.changes))
        if arm.server_flags:
            yield f"{arm.name} flags", format_flags(arm.server_flags)
    done = len({stage.pair for stage in run.stages if stage.pair})
    yield (
        "pairs",
        f"{done} of {s.pairs}, of two blocks of {s.block_duration:g} s in random order; in no figure: the first pair, and "
        f"the first {s.washout_s:g} s of each block (washout)",
    )


def format_paired_difference(figure: PairedFigure) -> str:
    """``TTFT p95 (ms) -12.3% (better)``"""
    by = f"{figure.percent:+.1f}%" if figure.percent is not None else _digits(figure).difference
    return f"{figure.label} {by} ({figure.word})"


def format_paired_cells(figure: PairedFigure) -> tuple[str, ...]:
    """Under ``HEAD``."""
    shown = _digits(figure)
    percent = "-" if figure.percent is None else f"{figure.percent:+.1f}%"
    few = "*" * figure.few
    return figure.label, shown.base + few, shown.value + few, shown.difference, percent, _reach(figure), figure.word


def _digits(figure: PairedFigure) -> ComparedTexts:
    return format_comparison(figure.base, figure.candidate, figure.low, figure.high)


def _reach(figure: PairedFigure) -> str:
    if figure.relative and figure.low_percent is not None and figure.high_percent is not None:
        return f"{figure.low_percent:+.1f}% to {figure.high_percent:+.1f}%"
    if figure.low is None or figure.high is None:
        return "-"
    shown = _digits(figure)
    return f"{shown.low} to {shown.high}"
