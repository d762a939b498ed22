"""Pull request comment: a run's result as text, with its rules, and its values against a base."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from locust_llm.records.run_facts import Run
from locust_llm.report import run_comparison
from locust_llm.report.document_blocks import Block, Heading, TextBlock
from locust_llm.report.render.text_report import render_markdown_block
from locust_llm.report.report_document import make_opening
from locust_llm.report.sections.ab_comparison import make_paired_table
from locust_llm.report.sections.metric_tables import make_main_tables
from locust_llm.report.sections.prefill_limit_comparison import make_limit_blocks
from locust_llm.report.sections.rules_table import make_rules_table
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.sections.sweep.sweep_text import make_sweep_tables

MAX_CHARACTERS: Final = 60_000
"""GitHub accepts 65,536."""
NAMES: Final = ("base", "this run")
REST: Final = "The rest is in the report."


def make_comment_body(
    summary: Summary, run: Run, base: Path | None, folder: Path, name: str = ""
) -> str:
    """The comment in GitHub's Markdown, which GitLab reads too. It begins with the mark by which
    the next run finds it."""
    opening = _written([*make_opening(summary, run), *make_rules_table(summary, run)])
    more = _written(_figures(summary, run)) if base is None else _against(base, folder)
    text = "\n\n".join(
        [make_comment_mark(name), f"## {make_comment_title(summary, name)}", *opening, *more]
    )
    if len(text) > MAX_CHARACTERS:
        text = f"{text[:MAX_CHARACTERS].rpartition(chr(10))[0]}\n\n{REST}"
    return f"{text}\n"


def make_comment_mark(name: str) -> str:
    """An invisible HTML comment. Each ``name`` has its own, so that several jobs have a comment
    each."""
    return (
        f"<!-- locust-llm "
        f"{re.sub(r'[^A-Za-z0-9_. -]', '_', name).replace('--', '__') or 'comment'} -->"
    )


def make_comment_title(summary: Summary, name: str) -> str:
    shown = render_markdown_block(TextBlock(name), first=False) if name else "Load test"
    return f"{shown}: SLO {summary.slo_status}" if summary.slo_status else shown


def _written(blocks: Iterable[Block]) -> Iterator[str]:
    return (render_markdown_block(block, first=False) for block in blocks)


def _figures(summary: Summary, run: Run) -> Iterator[Block]:
    """The values of the run itself."""
    if summary.paired is not None:
        yield from make_paired_table(summary.paired)
    elif summary.limits is not None:
        yield from make_limit_blocks(summary.limits)
    elif summary.sweep is not None and summary.swept:
        yield from make_sweep_tables(summary.sweep)
    elif summary.examination is None:
        yield from make_main_tables(summary, run)


def _against(base: Path, folder: Path) -> Iterator[str]:
    """Notes on single values are folded away. Notes on stages stand between their tables."""
    yield from _written([Heading("Against the base")])
    try:
        (pair,) = run_comparison.compare_folders([base, folder]).runs
    except (OSError, ValueError) as error:  # the first run of a branch has none yet
        why = getattr(error, "strerror", None) or error
        yield from _written([TextBlock(f"There is no base to compare with: {why}.")])
        return
    blocks = [*run_comparison.make_pair_blocks(pair, NAMES), TextBlock(run_comparison.NOTES[0])]
    notes = (
        []
        if pair.axis
        else [block for block in blocks if isinstance(block, TextBlock) and not block.loud]
    )
    yield from _written(block for block in blocks if block not in notes)
    if notes:
        yield from ("<details><summary>Notes</summary>", *_written(notes), "</details>")
