"""Runs: the page of compared run folders, all beside the first, with the intervals of their
differences and the audit of each. Imported runs are such folders too."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from locust_llm.lab.page import render_page as rendered
from locust_llm.report.blocks import TextBlock
from locust_llm.report.comparison import (
    NOTES,
    Comparison,
    ComparisonLine,
    RunPair,
    format_line_cells,
    make_pair_blocks,
)
from locust_llm.report.sections.notes import SIMULATED
from locust_llm.text.format import clean_line

from . import registry
from .load_metrics import Figures
from .side_by_side import audit_columns, clean_rows, list_conditions, number_equal_titles

OWN: Final = """
body { display: block; max-width: 90rem; }
tbody th { position: sticky; left: 0; background: var(--back); }
td small { display: block; color: var(--muted); } td small.pass { color: var(--ok); } td small.loud { color: var(--fail); }
@media (max-width: 40rem) { .numbers tbody th { min-width: 5.5rem; } td small { white-space: normal; min-width: 6.5rem; } }
"""
TESTERS: Final = (
    "Several load testers measured these runs. All figures are made by the same definitions, but "
    "each tool takes its stamps "
    "in its own way and needs its own share of the machine: a difference may come from the tool, "
    "not from the server."
)
CLASSES: Final = {"better": "pass", "worse": "loud"}


class Cell(NamedTuple):
    """A figure of a run."""

    value: str
    difference: str = ""
    """From the base, with its interval, in the unit of the row."""
    percent: str = ""
    word: str = ""


def render_comparison_page(comparison: Comparison) -> str:
    """The whole page. A folder whose figures cannot be read has no conditions and no audit, and the
    page says so."""
    folders = [comparison.base, *(pair.folder for pair in comparison.runs)]
    names = number_equal_titles([Path(folder).name for folder in folders])
    figures, unread = _figures(folders, names)
    doubts, held = audit_columns(
        [
            (name, figures_of_run)
            for name, figures_of_run in zip(names, figures, strict=True)
            if figures_of_run is not None
        ]
    )
    return rendered(
        "runs.html",
        OWN,
        title="Runs beside each other",
        names=names,
        simulated=SIMULATED if comparison.simulated else "",
        testers=TESTERS
        if len({figure.title for figure in figures if figure is not None}) > 1
        else "",
        apart=[
            f"{name} had other work than {names[0]}: {pair.other_work}. So there are no "
            f"differences."
            for name, pair in zip(names[1:], comparison.runs, strict=True)
            if pair.other_work
        ],
        conditions=clean_rows(
            [
                ["load tester", *("-" if figure is None else figure.title for figure in figures)],
                *list_conditions(figures),
            ]
        ),
        measures=[*_rows(comparison.runs)],
        classes=CLASSES,
        warnings=_remarks(comparison, names, loud=True),
        remarks=_remarks(comparison, names, loud=False),
        notes=NOTES,
        doubts=[*unread, *doubts],
        held=held,
    )


def _figures(
    folders: Sequence[str], names: Sequence[str]
) -> tuple[list[Figures | None], list[str]]:
    """(of each folder, why not of some)."""
    figures_of_runs = list[Figures | None]()
    unread = list[str]()
    for folder, name in zip(folders, names, strict=True):
        try:
            figures_of_runs.append(registry.read_figures(Path(folder))[0])
        except (OSError, registry.UnknownFormat) as error:
            figures_of_runs.append(None)
            unread.append(f"{name}: not audited: {getattr(error, 'strerror', None) or error}")
    return figures_of_runs, unread


def _rows(pairs: Sequence[RunPair]) -> Iterator[tuple[str, list[Cell]]]:
    """A row for each figure that a pair has, the base's first."""
    each = [dict(_lines(pair)) for pair in pairs]
    for label in dict.fromkeys(label for lines in each for label in lines):
        finest = min((lines[label] for lines in each if label in lines), key=_reach)
        yield (
            label,
            [Cell(format_line_cells(finest)[0]), *(_cell(lines.get(label)) for lines in each)],
        )


def _reach(line: ComparisonLine) -> float:
    """Returns the reach of the interval: the narrowest allows the most digits."""
    return math.inf if line.low is None or line.high is None else line.high - line.low


def _lines(pair: RunPair) -> Iterator[tuple[str, ComparisonLine]]:
    """Lists the lines of a sweep by stage."""
    yield from ((line.label, line) for line in pair.lines)
    yield from (
        (f"{line.label}, {pair.axis} {stage.value:g}", line)
        for stage in pair.stages
        for line in stage.lines
    )


def _cell(line: ComparisonLine | None) -> Cell:
    if line is None:
        return Cell("-")
    _, value, difference, percent, interval, word = format_line_cells(line)
    known = difference if interval == "-" else f"{difference} ({interval})"
    return Cell(value, *("" if text == "-" else text for text in (known, percent, word)))


def _remarks(comparison: Comparison, names: Sequence[str], loud: bool) -> list[tuple[str, str]]:
    """(runs, what is to be known of all of them): ``loud`` warnings, or notes on figures; not what
    the page says anyway."""
    texts: dict[str, list[str]] = {
        f"WARNING: {warning}": [names[0]] for warning in comparison.warnings if loud
    }
    for name, pair in zip(names[1:], comparison.runs, strict=True):
        blocks = (
            block
            for block in make_pair_blocks(pair, (names[0], name))
            if isinstance(block, TextBlock)
        )
        for text in dict.fromkeys(block.text for block in blocks if block.loud == loud):
            if not text.startswith("Not compared, as") and not text.endswith("stage by stage:"):
                texts.setdefault(text, []).append(name)
    return [
        (", ".join(of), clean_line(text.removeprefix("WARNING: "))) for text, of in texts.items()
    ]
