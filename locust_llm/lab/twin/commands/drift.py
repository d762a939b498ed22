"""Command: ``locust-llm twin drift``: a minute on the server, or a folder of one, held against its
twin."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Final, NoReturn

from locust_llm.exit_status import ExitStatus, fail
from locust_llm.lab.twin import drift, file
from locust_llm.lab.twin.child_runs import (
    Stopped,
    add_server_options,
    environment,
    run_locust_llm,
    server_words,
    split_host_and_folders,
    started_in,
)
from locust_llm.lab.twin.drift import lines, others
from locust_llm.lab.twin.folders import Folder, read_folder_loads
from locust_llm.lab.twin.model import Twin
from locust_llm.text.format import describe_error, print_safely

from .fit import parse_duration_s

MINUTE_S: Final = 60.0
LEAST_STAGE_S: Final = 5.0


class DriftRefused(ValueError):
    """There can be no check, and why."""


def run_drift(words: list[str]) -> int:
    """0: the same server; 3: it has drifted, or is another one by name; 4: not one load can be
    used; 5: refused."""
    try:
        options = _drift_parser().parse_args(words)
        twin = file.read_twin(options.twin)
        users = drift.loads_of(twin)
        given = split_host_and_folders(options, [options.folder] if options.folder else [])
        folder = Folder(given[0] if given else _measure_loads(options, twin, users))
        found = read_folder_loads(folder)
    except Stopped as error:
        return error.status
    except (OSError, ValueError) as error:
        return fail(describe_error(error))
    names = others(twin.origin, folder)
    known = {one.users for one in twin.reference}
    stages = [stage for stage in found.stages if stage.users in known]
    told = [f"Note: {note}." for note in found.notes]
    if not stages:
        undecided = f"Not decided: no load of {folder.path} can be held against the twin."
        print_safely("\n".join([*names, undecided, *told]) + "\n")
        return ExitStatus.RULE_FAILED if names else ExitStatus.INCONCLUSIVE
    unchanged = drift.null(twin, stages, drift.REPLAYS)
    result = drift.check_drift(unchanged, stages)
    print_safely("\n".join([*lines(result, unchanged, stages, names), *told]) + "\n")
    return ExitStatus.RULE_FAILED if result.drifted or names else ExitStatus.OK


def _measure_loads(options: argparse.Namespace, twin: Twin, users: Sequence[int]) -> Path:
    """The folder of a short sweep over these. Raises ValueError, Stopped, OSError."""
    options.host = options.host or twin.origin.host
    if not options.host:
        raise DriftRefused(
            "twin drift takes --host URL: the twin does not say of what server it is"
        )
    folder = started_in(
        options.report_dir or Path("reports") / time.strftime("drift-%Y%m%d-%H%M%S")
    )
    prompts = [one for one, _ in twin.lengths]
    outputs = [one for _, one in twin.lengths]
    share_s = options.time / len(users)
    words = [
        "run", *server_words(options), "--headless",
        f"--sweep=concurrency={','.join(map(str, users))}",
        f"--run-time={options.time:.0f}s",
        f"--stage-duration={min(LEAST_STAGE_S, share_s / 2):g}..{share_s:g}",
        f"--synthetic-input-tokens-mean={fmean(prompts):.0f}",
        f"--synthetic-input-tokens-stddev={pstdev(prompts):.0f}",
        f"--output-tokens-mean={fmean(outputs):.0f}",
        f"--output-tokens-stddev={pstdev(outputs):.0f}",
        f"--report-dir={folder}",
    ]  # fmt: skip
    log = folder.with_name(f"{folder.name}.log")
    status = run_locust_llm(words, environment(options, os.environ), log, _tell)
    if not (folder / "profile_export.jsonl").exists():
        raise DriftRefused(f"the run has no requests, exit status {status}: {log} has its log")
    return folder


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class _DriftParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise DriftRefused(f"{message}: locust-llm twin drift --help has all options")


def _drift_parser() -> argparse.ArgumentParser:
    parser = _DriftParser(
        prog="locust-llm twin drift", allow_abbrev=False,
        usage="locust-llm twin drift TWIN [DIR] [options]",
        description="Is a server still the one that a twin was fitted to? Three loads of its "
            "sweep, a minute together, are "
        "held against the twin. Exit status 0: it is; 3: it has drifted; 4: not decided.",
        epilog="example: locust-llm twin drift twin.toml --host localhost:8000",
    )  # fmt: skip
    add_drift_arguments(parser)
    add_server_options(parser)
    return parser


def add_drift_arguments(parser: argparse.ArgumentParser) -> None:
    """Its own; those that reach the server come beside them."""
    add = parser.add_argument
    add("twin", type=Path, metavar="TWIN", help="of locust-llm twin fit")
    add(
        "folder",
        nargs="?",
        metavar="DIR",
        help="a run of such loads that is there (default: one is made)",
    )
    add(
        "--time",
        type=parse_duration_s,
        default=MINUTE_S,
        metavar="TIME",
        help="of the run (default: 1m)",
    )
    add(
        "--report-dir",
        type=Path,
        metavar="DIR",
        help="where the run goes (default: reports/drift-<time>)",
    )
