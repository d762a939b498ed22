"""A comment on a pull request: what a run came to, its rules, and its figures against a base; ``locust-llm comment``."""

import argparse
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from locust_llm.core.run import Run
from locust_llm.core.storage import RECORDS
from locust_llm.core.text import say
from locust_llm.exit_status import ExitStatus
from locust_llm.report import build, comparison
from locust_llm.report.analysis.summary import Summary
from locust_llm.report.document.blocks import Block, Heading, Text
from locust_llm.report.document.document import opening, rules_table
from locust_llm.report.document.figures import figures
from locust_llm.report.document.paired import side_by_side
from locust_llm.report.document.sweep import curves
from locust_llm.report.text import markdown_block

from .post import NotPosted, place_of, post

MAX_CHARACTERS: Final = 60_000
"""GitHub takes 65,536."""
NAMES: Final = ("base", "this run")
REST: Final = "The rest is in the report."


def body(summary: Summary, run: Run, base: Path | None, folder: Path, name: str = "") -> str:
    """GitHub's Markdown, which GitLab reads too. It begins with the mark by which the next run finds it."""
    said = _written([*opening(summary, run), *rules_table(summary, run)])
    more = _written(_figures(summary, run)) if base is None else _against(base, folder)
    text = "\n\n".join([mark(name), f"## {title(summary, name)}", *said, *more])
    if len(text) > MAX_CHARACTERS:
        text = f"{text[:MAX_CHARACTERS].rpartition(chr(10))[0]}\n\n{REST}"
    return f"{text}\n"


def mark(name: str) -> str:
    """A comment of HTML, which nobody sees. One for each ``name``, so that several jobs have a comment each."""
    return f"<!-- locust-llm {re.sub(r'[^A-Za-z0-9_. -]', '_', name).replace('--', '__') or 'comment'} -->"


def title(summary: Summary, name: str) -> str:
    shown = markdown_block(Text(name), first=False) if name else "Load test"
    return f"{shown}: SLO {summary.slo_status}" if summary.slo_status else shown


def _written(blocks: Iterable[Block]) -> Iterator[str]:
    return (markdown_block(block, first=False) for block in blocks)


def _figures(summary: Summary, run: Run) -> Iterator[Block]:
    """Its own."""
    if summary.paired is not None:
        yield from side_by_side(summary.paired)
    elif summary.sweep is not None and summary.swept:
        yield from curves(summary.sweep)
    elif summary.examination is None:
        yield from figures(summary, run)


def _against(base: Path, folder: Path) -> Iterator[str]:
    """What is said of single figures is folded away; of stages it stands between their tables."""
    yield from _written([Heading("Against the base")])
    try:
        (pair,) = comparison.compared([base, folder]).runs
    except (OSError, ValueError) as error:  # the first run of a branch has none yet
        yield from _written([Text(f"There is no base to compare with: {build.reason(error)}.")])
        return
    blocks = [*comparison.against(pair, NAMES), Text(comparison.NOTES[0])]
    notes = [] if pair.axis else [block for block in blocks if isinstance(block, Text) and not block.loud]
    yield from _written(block for block in blocks if block not in notes)
    if notes:
        yield from ("<details><summary>Notes</summary>", *_written(notes), "</details>")


def command(words: list[str]) -> int:
    """``locust-llm comment DIR``; the exit status."""
    parser = argparse.ArgumentParser(
        prog="locust-llm comment",
        description="Print what a run came to as Markdown, or post it on the pull request (GitHub) or merge request "
        "(GitLab) that this job is of; a second one takes the place of the first.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument(
        "--base", type=Path, metavar="DIR", help="folder of the run to compare with; there may be none yet"
    )
    parser.add_argument("--name", default="", help="of this load test, where a pull request has comments of several")
    parser.add_argument(
        "--post", action="store_true", help="post it, with the token in GITHUB_TOKEN, of GitLab in GITLAB_TOKEN"
    )
    given = parser.parse_args(words)
    try:
        place = place_of(os.environ) if given.post else None
        if not (given.folder / RECORDS).is_file():
            raise ValueError(f"{given.folder} holds no run: it has no {RECORDS}")
    except (OSError, ValueError) as error:
        print(f"locust-llm: error: {error}", file=sys.stderr)
        return ExitStatus.REFUSED
    try:
        text = body(*build.remake(given.folder), given.base, given.folder, given.name)
        say(text if place is None else f"{post(place, mark(given.name), text)}\n")
    except NotPosted as error:
        print(f"locust-llm: error: the comment was not posted: {error}", file=sys.stderr)
        return ExitStatus.INCOMPLETE
    except Exception as error:
        print(f"locust-llm: error: {given.folder}: {build.reason(error)}", file=sys.stderr)
        return ExitStatus.INCOMPLETE
    return ExitStatus.OK
