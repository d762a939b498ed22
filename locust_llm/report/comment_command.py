"""Command ``locust-llm comment DIR``: prints a run's result for a pull request. The CI's own
program posts it: see deploy/ci."""

import argparse
from pathlib import Path
from typing import Final

from locust_llm.exit_status import ExitStatus, fail
from locust_llm.records.run_facts import RECORDS
from locust_llm.text.format import print_safely

from . import write_report_files
from .pull_request_comment import make_comment_body

NO_POST: Final = (
    "comment --post was removed: print the comment and post it with gh or glab, as in "
    "docs/how-to/ci.md"
)


def run_comment_command(words: list[str]) -> int:
    """Run ``locust-llm comment DIR`` and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="locust-llm comment",
        description=(
            "Print the result of a run as Markdown, for a comment on a pull request. It begins "
            "with a hidden marker, by which the next run can update it."
        ),
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="run folder")
    parser.add_argument(
        "--base",
        type=Path,
        metavar="DIR",
        help="run folder to compare with. It may not exist yet",
    )
    parser.add_argument(
        "--name",
        default="",
        help="name of this load test, if a pull request has several",
    )
    if "--post" in words:
        return fail(NO_POST)
    given = parser.parse_args(words)
    if not (given.folder / RECORDS).is_file():
        return fail(f"{given.folder} is not a run folder: it has no {RECORDS}")
    try:
        print_safely(
            make_comment_body(
                *write_report_files.remake_reports(given.folder),
                given.base,
                given.folder,
                given.name,
            )
        )
    except Exception as error:
        return fail(
            f"{given.folder}: {write_report_files.describe_failure(error)}", ExitStatus.INCOMPLETE
        )
    return ExitStatus.OK
