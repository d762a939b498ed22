"""Text report: the document of a run as console text or as GitHub's Markdown."""

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tabulate import tabulate

from locust_llm.records.run_facts import SIMULATED, Run
from locust_llm.report.document_blocks import (
    LABEL,
    Block,
    Charts,
    Heading,
    Headline,
    TableBlock,
    TextBlock,
)
from locust_llm.report.report_document import build_report_document
from locust_llm.report.sections.notes import format_incomplete_line
from locust_llm.report.sections.run_summary import Summary
from locust_llm.text.format import clean_line

WIDTH: Final = 120
_WORDS: Final = re.compile(r"([\s`|<>]+)")
_LIVE: Final = re.compile(r"://|\bwww\.|\bmailto:|@\w|[#!]\d|\bGH-\d", re.IGNORECASE)
"""A URL, an address, a mention, the number of an issue or of a merge request."""


def render_console(summary: Summary, run: Run, folder: Path | str = "", width: int = WIDTH) -> str:
    """The document as plain text, no wider than ``width`` where the numbers allow, with harmless
    control characters."""
    blocks = list(select_text_blocks(build_report_document(summary, run, folder)))
    if format_incomplete_line(summary, run) is not None:  # the first line, before the title
        blocks[:2] = blocks[1::-1]
    return render_plain_blocks(blocks, width)


def render_markdown(summary: Summary, run: Run, folder: Path | str = "") -> str:
    """The document as GitHub's Markdown. Text from outside can neither add markup nor break a
    table."""
    return render_markdown_blocks(select_text_blocks(build_report_document(summary, run, folder)))


def render_plain_blocks(blocks: Iterable[Block], width: int = WIDTH) -> str:
    """The blocks for the console."""
    return "\n\n".join(render_plain_block(block, width) for block in blocks) + "\n"


def render_markdown_blocks(blocks: Iterable[Block]) -> str:
    return (
        "\n\n".join(render_markdown_block(block, first=i == 0) for i, block in enumerate(blocks))
        + "\n"
    )


def select_text_blocks(blocks: Iterable[Block | Charts]) -> Iterator[Block]:
    """The blocks of a document that can be written as text."""
    return (block for block in blocks if not isinstance(block, Charts))


def render_plain_block(block: Block, width: int = WIDTH) -> str:
    """The block for the console."""
    match block:
        case Heading(text):
            return f"{clean_line(text)}\n{'=' * min(len(text), width)}"
        case Headline(text):
            return textwrap.fill(clean_line(text), width, break_on_hyphens=False)
        case TextBlock(text, loud):
            lines = textwrap.fill(
                clean_line(text), width, subsequent_indent="  ", break_on_hyphens=False
            )
            return f"{'!' * width}\n{lines}\n{'!' * width}" if loud and text == SIMULATED else lines
        case TableBlock():
            return _tabulate(block, "simple", clean_line, _rooms(block, width))


def _rooms(table: TableBlock, width: int) -> list[int | None]:
    """The width of each column. None: as it is. In a table of numbers the first column gets what
    the others leave, else the last one, within bounds."""
    rows = [[f"{title}  " for title in table.head], *table.rows]  # tabulate's own padding of titles
    widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
    free: list[int | None] = [None] * (len(widths) - 1)
    if table.numbers:
        return [min(table.label, max(LABEL // 2, width - sum(widths[1:]))), *free]
    return [*free, max(LABEL // 2, width - sum(widths[:-1]))]


def render_markdown_block(block: Block, first: bool) -> str:
    """``first``: a heading of the first level."""
    match block:
        case Heading(text):
            return f"{'#' if first else '##'} {_escaped(text)}"
        case Headline(text):
            return f"**{_escaped(text)}**"
        case TextBlock(text, loud):
            escaped = f"**{_escaped(text)}**" if loud else _escaped(text)
            # such a line is a command of GitLab's
            return f"\\{escaped}" if escaped.startswith("/") else escaped
        case TableBlock():
            return _tabulate(block, "pipe", _escaped)


def _escaped(text: str) -> str:
    """The text without markup. A link or a mention of GitHub or GitLab becomes code, which they
    leave alone."""
    return "".join(_escaped_word(word) for word in _WORDS.split(clean_line(text)))


def _escaped_word(word: str) -> str:
    if _LIVE.search(word):
        code = word.rstrip(".,;:)\"'?!")
        return f"`{code}`{_escaped_word(word[len(code) :])}"
    return re.sub(r"([\\`*_\[\]|~#>!])", r"\\\1", word.replace("&", "&amp;").replace("<", "&lt;"))


def _tabulate(
    table: TableBlock,
    style: str,
    cell: Callable[[str], str],
    widths: Sequence[int | None] | None = None,
) -> str:
    others = "right" if table.numbers else "left"
    sides = ["left", *[others] * (len(table.head) - 1)]
    return tabulate(
        [list(map(cell, row)) for row in table.rows],
        headers=list(map(cell, table.head)),
        tablefmt=style,
        disable_numparse=True,
        colalign=sides if table.rows else None,
        maxcolwidths=widths if table.rows else None,
    )
