"""Command ``locust-llm compare A B``: compares runs, and results of other tools, with the first of
them."""

import argparse
from pathlib import Path
from typing import Final

import msgspec

from locust_llm.exit_status import ExitStatus, fail
from locust_llm.files.json_file import STANDARD_OUTPUT, replace_file
from locust_llm.records.run_facts import RECORDS
from locust_llm.text.format import print_safely

from .history import select_runs
from .interop import side_by_side

WEATHER: Final = """\
These runs were made one after the other. A change of the server, the machine or the network in between looks like a
difference between the runs, and no interval covers it. locust-llm ab avoids this by alternating short blocks."""

USAGE: Final = """\
%(prog)s BASE DIR [DIR ...] [options]
       %(prog)s --last N [DIR ...] [options]"""
COMPARED: Final = """\
Compare runs with the first one (the base): differences with their intervals. If a result comes from another tool
(AIPerf, vllm bench, guidellm, ...), all results are shown in one table."""
CHOSEN: Final = """\
instead of folders:
  --last N     compare the last N runs of the same workload; the oldest of them is the base
  --runs DIR   folder that contains these runs (default: reports)
  --label KEY=VALUE, --model M, --host H, --commit C
               select the runs, as in locust-llm history: --last 5 --label branch=main"""


def run_compare(words: list[str]) -> int:
    """Compares runs with the first of them. Results of other tools, which have no records, become
    one table."""
    try:
        words = select_runs.put_in_front(words)
    except (OSError, ValueError) as error:
        return fail(str(error))
    if side_by_side.names_result_files(words):
        return side_by_side.compare_results(words)
    return _compare_folders(_compare_parser().parse_args(words))


def _compare_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="locust-llm compare", usage=USAGE, description=COMPARED, epilog=CHOSEN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "base",
        type=Path,
        metavar="BASE",
        help="run folder of the base",
    )
    parser.add_argument(
        "runs", type=Path, metavar="DIR", nargs="+", help="run folder to compare with the base"
    )
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="also write the comparison as an HTML page",
    )
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="also write the comparison as Markdown"
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="also write the values to this file; - prints them in place of the tables",
    )
    parser.add_argument("--verbose", action="store_true", help="print all metrics")
    return parser


def _compare_folders(options: argparse.Namespace) -> int:
    from locust_llm.report import (  # late: numpy and all sections take long to import
        console_summary,
        run_comparison,
        write_report_files,
    )

    from .history.between_runs import add_run_spread
    from .interop.comparison_page import OverlaidRuns, render_comparison_page

    folders = [options.base, *options.runs]
    for folder in folders:
        if folder.is_dir() and not (folder / RECORDS).is_file():
            return fail(
                f"{folder} is not a run folder: it has no {RECORDS}. To compare a result of another tool, "
                "name its file"
            )
    overlaid = OverlaidRuns(folders) if options.html else None
    try:
        compared = run_comparison.compare_folders(folders, *([overlaid.add] if overlaid else []))
        compared = add_run_spread(compared)
        if overlaid:
            page = render_comparison_page(compared, overlaid.plots(compared))
            replace_file(options.html, page.encode())
        if options.markdown:
            replace_file(
                options.markdown, run_comparison.render_comparison_markdown(compared).encode()
            )
        if options.json:
            values = msgspec.json.format(msgspec.json.encode(compared), indent=2) + b"\n"
            if options.json == STANDARD_OUTPUT:
                print_safely(values.decode())
                return ExitStatus.OK
            replace_file(options.json, values)
        width = console_summary.find_console_width()
        text = (
            f"{run_comparison.render_comparison_console(compared, width)}\n{WEATHER}\n"
            if options.verbose
            else console_summary.format_comparison_ending(compared, width)
        )
    except (OSError, ValueError) as error:
        return fail(str(error))
    except Exception as error:
        return fail(f"these runs cannot be compared: {write_report_files.describe_failure(error)}")
    print_safely(text)
    return ExitStatus.OK
