"""Command: ``locust-llm export DIR --format F``."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from locust_llm.exit_status import ExitStatus, fail
from locust_llm.lab.interop import vllm_bench
from locust_llm.records import storage
from locust_llm.report import parquet
from locust_llm.text.format import clean_line, print_safely

from . import benchmark_report
from .measured import MeasuredRun, NotExported, measure_run

REMOVED: Final = {
    "inferencex": "--format inferencex was removed: its process_result.py makes rows of --format "
    "vllm-bench",
}
"""Formats of earlier versions, and what takes their place."""


def run_export(words: list[str]) -> int:
    """5 where it cannot be written."""
    if why := _removed(words):
        return fail(why)
    options = _parser().parse_args(words)
    folder: Path = options.folder
    chosen = EXPORT_FORMATS[options.format]
    out: Path = options.out or folder / chosen.file
    try:
        more = dict(_pair(word) for word in options.set)
        chosen.write(folder, out, ExportOptions(more, options.detailed))
    except (OSError, NotExported, parquet.PyarrowMissing) as error:
        why = clean_line(str(getattr(error, "strerror", None) or error))
        return fail(f"{folder}: {why}")
    print_safely(f"{out}\n")
    return ExitStatus.OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="locust-llm export",
        description="Write a run in the format of another tool. What the format cannot say is left "
        "out. (AIPerf's files are "
        "in each run folder anyway.)",
    )
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="the folder of a run, or of one stage of a sweep"
    )
    parser.add_argument("--format", choices=[*EXPORT_FORMATS], required=True)
    names = ", ".join(each.file for each in EXPORT_FORMATS.values())
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"default: in the folder, {names}")
    parser.add_argument(
        "--detailed",
        action="store_true",
        help="vllm-bench: lists with a value for each request too",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="vllm-bench, pytorch: a field that the run does not know, such as hw=h200; may be "
            "repeated",
    )  # fmt: skip
    return parser


def _removed(words: Sequence[str]) -> str:
    """What takes the place of a format that was removed; empty: none is asked for."""
    asked = [after for word, after in pairwise(words) if word == "--format"]
    asked += [word.removeprefix("--format=") for word in words if word.startswith("--format=")]
    return next((REMOVED[name] for name in asked if name in REMOVED), "")


def _pair(word: str) -> tuple[str, object]:
    name, equals, value = word.partition("=")
    if not equals or not name.strip():
        raise NotExported(f"--set takes KEY=VALUE, got {word!r}")
    try:
        return name.strip(), msgspec.json.decode(value)
    except (ValueError, RecursionError):
        return name.strip(), value


def explain_coalesced_gaps(found: MeasuredRun) -> str:
    """A line where the file has gaps that the report leaves out; else nothing."""
    coalesced, every = found.coalesced_gaps
    if not (coalesced and found.gaps_known):
        return ""
    return (
        f"{coalesced:,} of {every:,} gaps have a chunk that came in one read with others. The "
        f"format's inter-token latency counts them, the report's Inter Chunk Latency does not.\n"
    )


def _stages(folder: Path) -> Sequence[Path]:
    """Folders of a sweep's stages, in their order."""
    found = [path for path in (folder / "stages").glob("*") if (path / storage.RECORDS).is_file()]
    return sorted(found, key=lambda path: (len(path.name), path.name))


# -- formats ---------------------------------------------------------------------------------------


class ExportOptions(NamedTuple):
    """What else the command line asks for."""

    more: Mapping[str, object]
    """Fields that the run does not know."""
    detailed: bool


class ExportFormat(NamedTuple):
    """One format."""

    file: str
    """Its name in the run folder."""
    write: Callable[[Path, Path, ExportOptions], None]
    """Takes the run folder and the file; raises OSError and NotExported."""


def _write_json(
    build: Callable[[MeasuredRun, ExportOptions], Any],
) -> Callable[[Path, Path, ExportOptions], None]:
    """``build``: makes what the file holds, of one run or one stage."""

    def write(folder: Path, out: Path, options: ExportOptions) -> None:
        if stages := _stages(folder):
            raise NotExported(f"it is a sweep: export one of its stages, such as {stages[0]}")
        found = measure_run(folder)
        document = msgspec.json.encode(build(found, options))
        storage.replace_file(out, msgspec.json.format(document, indent=2) + b"\n")
        sys.stderr.write(explain_coalesced_gaps(found))

    return write


def _write_parquet(folder: Path, out: Path, options: ExportOptions) -> None:
    """All at once, or nothing."""
    facts = measure_run(folder).run
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        parquet.write_parquet(draft, storage.RecordFile(folder / storage.RECORDS), facts)
        os.replace(draft, out)
    finally:
        draft.unlink(missing_ok=True)


EXPORT_FORMATS: Final = {
    "vllm-bench": ExportFormat(
        "vllm_bench.json",
        _write_json(
            lambda found, options: vllm_bench.build_vllm_bench_result(
                found, options.more, detailed=options.detailed
            )
        ),
    ),
    "pytorch": ExportFormat(
        "vllm_bench.pytorch.json",
        _write_json(lambda found, options: vllm_bench.pytorch(found, options.more)),
    ),
    "benchmark-report": ExportFormat(
        "benchmark_report.json",
        _write_json(lambda found, options: benchmark_report.build_benchmark_report(found)),
    ),
    "parquet": ExportFormat("records.parquet", _write_parquet),
}
