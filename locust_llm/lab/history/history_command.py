"""Command ``locust-llm history [DIR]`` lists runs and their changes."""

import argparse
import sys
from pathlib import Path
from typing import Final

import msgspec

from locust_llm.exit_status import ExitStatus, fail
from locust_llm.files.json_file import replace_file
from locust_llm.lab.history.history_entry import (
    KEY_FIGURES,
    HistoryEntry,
    KeyFigure,
    key_figure_by_name,
)
from locust_llm.text.format import describe_error, print_json, print_safely
from locust_llm.trends.change_points import LEAST

from . import history_page, history_text
from .history_index import IndexedRuns, index_runs
from .run_series import FigureChange, RunSeries, find_figure_changes, group_series
from .select_runs import add_run_filter_arguments, parse_run_filter

LAST = 20
"""At most this many runs of each workload are shown."""
HISTORY_SCHEMA: Final = 1


class HistoryChange(msgspec.Struct, frozen=True, kw_only=True):
    """A lasting change of one key figure. Times are in seconds, rates per second, and shares from 0
    to 1."""

    metric: str
    """The name of the key figure, such as ``ttft_p95``."""
    first_run: str = msgspec.field(name="from")
    """The folder of the first run after the change, relative to the folder of runs."""
    better: bool
    """The figure moved in the direction that is better for users."""
    relative: float | None
    """The shift as a share of the median before the change. null: that median is 0."""
    at: int
    """The number of the first run after the change, counted from 0 among the runs that have the
    figure."""
    before: float
    """The median of the runs between the previous change and this one, in the figure's unit."""
    after: float
    """The median of the runs between this change and the next one, in the figure's unit."""
    shift: float
    """The median difference of a run after the change and a run before it, in the figure's unit."""
    low: float
    """The lower end of the shift's 95 % interval, in the figure's unit."""
    high: float
    """The upper end of the shift's 95 % interval, in the figure's unit."""
    beside: tuple[str, ...]
    """What else changed between these two runs, such as the commit or the server."""


class HistoryWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of one workload, the oldest first, and their lasting changes."""

    workload: str
    """The hash of the workload. Only runs with equal hashes are compared."""
    conditions: str
    """The workload in words."""
    runs: tuple[HistoryEntry, ...]
    """The runs, the oldest first; with ``--last N`` the last N of them."""
    changes: tuple[HistoryChange, ...]
    """The lasting changes of all runs, figure by figure."""


class HistoryResult(msgspec.Struct, frozen=True, kw_only=True):
    """The output of ``locust-llm history --json``."""

    schema: int = HISTORY_SCHEMA
    """The version of this format."""
    workloads: tuple[HistoryWorkload, ...]
    """Each workload has one entry; the workload with the latest run comes last."""
    unread: dict[str, str]
    """The folders that could not be read, each with the reason."""


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
        print_json(_collect_history(runs, series, options.last, least))
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
        description=(
            "List the runs in a folder by workload, with their key metrics, and mark lasting "
            "changes."
        ),
    )
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=Path("reports"),
        metavar="DIR",
        help="folder that contains the runs (default: reports)",
    )
    add_run_filter_arguments(parser)
    parser.add_argument(
        "--metric",
        metavar="F",
        help=f"plot one metric over the runs: {', '.join(figure.name for figure in KEY_FIGURES)}",
    )
    parser.add_argument(
        "--last", type=int, metavar="N",
        help=(
            f"show the last N runs of each workload (default: {LAST}, with --html and --json all). "
            "Changes are computed from all runs"
        ),
    )  # fmt: skip
    parser.add_argument(
        "--least",
        type=float,
        default=LEAST * 100,
        metavar="P",
        help="smallest change to mark, in %% (default: 2)",
    )
    parser.add_argument("--json", action="store_true", help="print runs and changes as JSON")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write an HTML page with plots, in one file"
    )
    return parser


def _collect_history(
    runs: IndexedRuns, series: list[RunSeries], last: int | None, least: float
) -> HistoryResult:
    return HistoryResult(
        workloads=tuple(_collect_workload(workload, last, least) for workload in series),
        unread=dict(runs.unread),
    )


def _collect_workload(series: RunSeries, last: int | None, least: float) -> HistoryWorkload:
    changes = list[HistoryChange]()
    for figure in KEY_FIGURES:
        changes += [
            _describe_figure_change(figure, turn)
            for turn in find_figure_changes(series, figure, least)
        ]
    return HistoryWorkload(
        workload=series.workload,
        conditions=series.conditions,
        runs=series.entries[-last:] if last else series.entries,
        changes=tuple(changes),
    )


def _describe_figure_change(figure: KeyFigure, turn: FigureChange) -> HistoryChange:
    return HistoryChange(
        metric=figure.name,
        first_run=turn.first.folder,
        better=turn.better,
        relative=turn.change.relative,
        **turn.change._asdict(),
        beside=tuple(turn.list_other_changes()),
    )
