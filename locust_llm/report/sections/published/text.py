"""Published rules: whether a run is valid by those of its scenario, as a sentence and a table."""

from collections.abc import Iterator
from typing import Final

from locust_llm.report.blocks import Block, Heading, TableBlock, TextBlock
from locust_llm.report.sections.energy import Energy
from locust_llm.report.sections.published.model import PublishedCheck, Validity
from locust_llm.text.format import format_count

PUBLISHED: Final = "Published rules"


def format_broken_rules(found: Validity | None) -> str | None:
    """``not valid by MLPerf Endpoints v1.0 draft: 300 s, the rules ask 1,200 at 64 users (and 2 more rules)``; None where it
    is, or there are no such rules."""
    if found is None or found.valid:
        return None
    first, *others = found.broken
    more = f" (and {format_count(len(others), 'more rule')})" if others else ""
    return f"not valid by {found.rules}: {first.text}{more}"


def make_validity_table(found: Validity) -> Iterator[Block]:
    """Each rule and what was found."""
    what = "curve" if found.curve else "point"
    yield Heading(PUBLISHED)
    if (line := format_broken_rules(found)) is not None:
        yield TextBlock(f"{line.replace('not valid', 'NOT VALID', 1)}.", loud=True)
    else:
        yield TextBlock(f"Valid by the rules of {found.rules} that are checked here, as a {what}.")
    if found.note:
        yield TextBlock(found.note)
    if rows := tuple(map(_cells, found.checks)):
        yield TableBlock(("Rule", "Found", "Result"), rows, numbers=False)
    if not found.curve:
        yield TextBlock("One point: what the rules ask of a whole curve is checked of a sweep.")
    if found.unchecked:
        yield TextBlock(f"Not checked here: {'; '.join(found.unchecked)}.")
    yield TextBlock("Published rules say whether a result may stand beside others. They change no verdict of the SLO.")


def _cells(check: PublishedCheck) -> tuple[str, ...]:
    others = f"; {format_count(check.others, 'more point')} too" if check.others else ""
    return check.rule, f"{check.text}{others}", "met" if check.met else "not met"


def format_energy(found: Energy) -> str:
    """``3.21 J an output token; 4,120 W on average over 8 GPUs``"""
    each = "" if found.joules_per_output_token is None else f"{found.joules_per_output_token:.3g} J an output token; "
    gpus = "1 GPU" if found.gpus == 1 else f"{found.gpus} GPUs"
    return f"{each}{found.watts:,.0f} W on average over {gpus}"
