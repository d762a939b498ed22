"""Command ``locust-llm history [DIR]`` lists runs and their changes."""

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec

from locust_llm.exit_status import ExitStatus, fail
from locust_llm.files.json_file import replace_file
from locust_llm.lab.history.history_entry import KEY_FIGURES, KeyFigure, key_figure_by_name
from locust_llm.text.format import describe_error, print_safely

from . import history_page, history_text
from .change_points import LEAST
from .history_index import IndexedRuns, index_runs
from .run_series import FigureChange, RunSeries, find_figure_changes, group_series
from .select_runs import add_run_filter_arguments, parse_run_filter

LAST = 20
"""At most this many runs of each workload are shown."""


def run_history(words: list[str]) -> int:
    """Returns status 5 if DIR is not a folder, 6 if a run in it is unreadable."""
    options = _parser().parse_args(words)
    try:
        figure = key_figure_by_name(options.metric) if options.metric else None
        if (options.last is not None and options.last < 1) or not 0 <= options.least < 100:
            raise ValueError("--last must be at least 1, and --least from 0 up to 100")
        runs = index_runs(options.folder)
        meant = list(filter(parse_run_filter(options).takes, runs.entries))
        series = group_series(meant)
        if options.html:
            link = history_page.link_from(options.html, options.folder)
            made = history_page.render_history_page(
                series, options.folder.resolve().name, link, options.least / 100, options.last
            )
            replace_file(options.html, made.encode())
    except (OSError, ValueError) as error:
        return fail(describe_error(error))
    last = options.last or LAST
    least = options.least / 100
    if options.json:
        print_safely(msgspec.json.encode(_data(runs, series, options.last, least)).decode() + "\n")
    elif options.html:
        print_safely(f"{options.html}\n")
    else:
        print_safely(
            history_text.format_history_plots(series, figure, last, least)
            if figure is not None
            else history_text.format_history(series, last, least)
        )
    sys.stdout.flush()
    print(
        history_text.format_history_summary(runs, len(meant), str(options.folder)),
        end="",
        file=sys.stderr,
    )
    return ExitStatus.INCOMPLETE if runs.unread else ExitStatus.OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="locust-llm history",
        description="The runs below a folder, workload by workload: their key figures, and where "
        "these changed for good.",
    )
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=Path("reports"),
        metavar="DIR",
        help="folder of runs (default: reports)",
    )
    add_run_filter_arguments(parser)
    parser.add_argument(
        "--metric",
        metavar="F",
        help=f"draw one figure over the runs: {', '.join(figure.name for figure in KEY_FIGURES)}",
    )
    parser.add_argument(
        "--last", type=int, metavar="N",
        help=f"show the last N runs of each workload (default: {LAST}, with --html and --json "
            f"all); changes are of all runs",
    )  # fmt: skip
    parser.add_argument(
        "--least",
        type=float,
        default=LEAST * 100,
        metavar="P",
        help="least change that is marked, in %% (default: 2)",
    )
    parser.add_argument("--json", action="store_true", help="print runs and changes as JSON")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write a page with plots, in one file"
    )
    return parser


def _data(
    runs: IndexedRuns, series: list[RunSeries], last: int | None, least: float
) -> dict[str, Any]:
    return {
        "schema": 1,
        "workloads": [_workload_data(workload, last, least) for workload in series],
        "unread": dict(runs.unread),
    }


def _workload_data(series: RunSeries, last: int | None, least: float) -> dict[str, Any]:
    changes = []
    for figure in KEY_FIGURES:
        changes += [
            _change_data(figure, turn) for turn in find_figure_changes(series, figure, least)
        ]
    return {
        "workload": series.workload,
        "conditions": series.conditions,
        "runs": series.entries[-last:] if last else series.entries,
        "changes": changes,
    }


def _change_data(figure: KeyFigure, turn: FigureChange) -> dict[str, Any]:
    return {
        "metric": figure.name,
        "from": turn.first.folder,
        "better": turn.better,
        "relative": turn.change.relative,
        **turn.change._asdict(),
        "beside": list(turn.list_other_changes()),
    }
