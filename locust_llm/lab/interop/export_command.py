"""Command ``locust-llm export DIR --format F`` writes a run in the format of another tool."""

import argparse
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from locust_llm.exit_status import ExitStatus, fail
from locust_llm.records.run_facts import SIMULATED, read_run
from locust_llm.text.format import clean_line, print_json, print_safely

from .measured_requests import NotExported
from .tool_format import ExportOptions
from .tool_registry import list_export_formats

REMOVED: Final = {
    "inferencex": "--format inferencex was removed: its process_result.py makes rows of --format "
    "vllm-bench",
}
"""Each format of an earlier version has an explanation of its replacement."""


class ExportedFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file that ``locust-llm export`` wrote."""

    file: str
    """The path of the file."""
    format: str
    """The format of the file, as ``--format`` names it."""


def run_export(words: list[str]) -> int:
    """Returns status 5 if the file cannot be written."""
    if why := _explain_removed(words):
        return fail(why)
    options = _parser().parse_args(words)
    folder: Path = options.folder
    chosen = list_export_formats()[options.format]
    out: Path = options.out or folder / chosen.file
    try:
        more = dict(_parse_pair(word) for word in options.set)
        chosen.write(folder, out, ExportOptions(more, options.detailed))
    except (OSError, NotExported) as error:
        why = clean_line(str(getattr(error, "strerror", None) or error))
        return fail(f"{_name_failed_file(error, folder, out)}: {why}")
    if not chosen.marks_simulated and read_run(folder).simulated:
        print(f"WARNING: {options.format} has no place for this: {SIMULATED}", file=sys.stderr)
    if options.json:
        print_json(ExportedFile(file=str(out), format=options.format))
    else:
        print_safely(f"{out}\n")
    return ExitStatus.OK


def _name_failed_file(error: Exception, folder: Path, out: Path) -> Path:
    """Returns the path that failed. ``out`` is first written under another name."""
    name = getattr(error, "filename", None)
    if name is None:
        return folder
    return out if Path(name).name.startswith(f".{out.name}.") else Path(name)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="locust-llm export",
        description=(
            "Export a run to the format of another tool. Data that the format cannot hold is left "
            "out. (Every run folder already contains AIPerf's files.)"
        ),
    )
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="run folder, or the folder of one stage of a sweep"
    )
    formats = list_export_formats()
    parser.add_argument("--format", choices=[*formats], required=True, help="format of the file")
    names = ", ".join(each.file for each in formats.values())
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help=f"file to write (default, in the run folder: {names})",
    )
    parser.add_argument(
        "--detailed",
        action="store_true",
        help="vllm-bench: also write one value per request",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="vllm-bench, pytorch: additional field, such as hw=h200 (repeatable)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the path and format as JSON")
    return parser


def _explain_removed(words: Sequence[str]) -> str:
    """Explains the replacement of a removed format. Empty: none was requested."""
    requested = [after for word, after in pairwise(words) if word == "--format"]
    requested += [word.removeprefix("--format=") for word in words if word.startswith("--format=")]
    return next((REMOVED[name] for name in requested if name in REMOVED), "")


def _parse_pair(word: str) -> tuple[str, object]:
    name, equals, value = word.partition("=")
    if not equals or not name.strip():
        raise NotExported(f"--set takes KEY=VALUE, got {word!r}")
    try:
        return name.strip(), msgspec.json.decode(value)
    except (ValueError, RecursionError):
        return name.strip(), value
