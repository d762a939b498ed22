"""Select runs: chooses runs of a folder by label, model, host and commit, such as "last 5 on
main"."""

import argparse
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from .history_entry import HistoryEntry, read_entry
from .history_index import index_runs


class RunFilter(NamedTuple):
    """Selects runs. An empty field allows any value."""

    labels: tuple[tuple[str, str], ...] = ()
    """Each pair has a key and a value. In the value * matches any letters and ? matches one
    letter."""
    model: str = ""
    host: str = ""
    """The server's address contains this text."""
    commit: str = ""
    """The commit's hash begins with this text."""

    def takes(self, entry: HistoryEntry) -> bool:
        return (
            all(fnmatchcase(entry.value_of(key) or "", value) for key, value in self.labels)
            and self.model in entry.model
            and self.host in entry.host
            and entry.commit.startswith(self.commit)
        )


def add_run_filter_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that every command with a choice of runs takes."""
    parser.add_argument(
        "--label", action="append", default=[], type=_label, metavar="KEY=VALUE",
        help=(
            "select runs with this label (repeatable); * matches any text. branch, commit, "
            "model, host and tool are labels too"
        ),
    )  # fmt: skip
    parser.add_argument(
        "--model", default="", metavar="M", help="select runs by part of the model's name"
    )
    parser.add_argument(
        "--host",
        default="",
        metavar="H",
        help="select runs by part of the server's address",
    )
    parser.add_argument(
        "--commit", default="", metavar="C", help="select runs by the start of the commit"
    )


def parse_run_filter(options: argparse.Namespace) -> RunFilter:
    return RunFilter(tuple(options.label), options.model, options.host, options.commit)


def _label(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def put_in_front(words: Sequence[str]) -> list[str]:
    """Replaces ``--last N`` and the filters by the folders that they select. These come first, the
    oldest of them first. Raises ValueError and OSError."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, prog="locust-llm compare")
    parser.add_argument(
        "--last", type=int, metavar="N",
        help="compare the last N runs of the same workload; the oldest is the base",
    )  # fmt: skip
    parser.add_argument(
        "--runs", type=Path, default=Path("reports"), metavar="DIR",
        help="folder that contains these runs (default: %(default)s)",
    )  # fmt: skip
    add_run_filter_arguments(parser)
    options, rest = parser.parse_known_args(words)
    choice = parse_run_filter(options)
    if options.last is None:
        if choice != RunFilter():
            raise ValueError(
                "--label, --model, --host and --commit select from the last runs: add --last N"
            )
        return rest
    if options.last < 1:
        raise ValueError("--last must be at least 1")
    given = [Path(word) for word in rest if not word.startswith("-") and Path(word).is_dir()]
    chosen = find_last_runs(options.runs, options.last, choice, given)
    if len(chosen) + len(given) < 2:
        raise ValueError(f"{options.runs} has one such run, but a comparison needs two")
    return [*map(str, chosen), *rest]


def find_last_runs(
    runs: Path, count: int, choice: RunFilter, beside: Sequence[Path] = ()
) -> list[Path]:
    """Returns the folders of the last ``count`` selected runs, the oldest first. They have the
    workload of the first run of ``beside``, which are left out themselves. Without ``beside`` they
    have the workload of the last selected run. Raises ValueError and OSError."""
    if not runs.is_dir():
        raise ValueError(f"{runs} is not a folder: use --runs to name the folder of the runs")
    there = {path.resolve() for path in beside}
    meant = [
        entry
        for entry in index_runs(runs).entries
        if choice.takes(entry) and (runs / entry.folder).resolve() not in there
    ]
    if not meant:
        raise ValueError(f"{runs} has no such run: locust-llm history {runs} lists its runs")
    like = read_entry(beside[0], beside[0].name) if beside else meant[-1]
    of_same = [entry for entry in meant if entry.workload == like.workload]
    if not of_same:
        raise ValueError(f"no run in {runs} has the workload of {beside[0]}: {like.conditions}")
    return [runs / entry.folder for entry in of_same[-count:]]
