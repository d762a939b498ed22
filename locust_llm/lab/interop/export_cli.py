"""Command: ``locust-llm export DIR --format F``."""

import argparse
import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec

from locust_llm.exit_status import ExitStatus, fail
from locust_llm.records import storage
from locust_llm.report import parquet
from locust_llm.text.format import clean_line, print_safely

from . import benchmark_report
from .measured import MeasuredRun, NotExported, measure_run
from .vllm_bench import export as vllm_bench

FILES: Final = {
    "vllm-bench": "vllm_bench.json",
    "pytorch": "vllm_bench.pytorch.json",
    "benchmark-report": "benchmark_report.json",
    "parquet": "records.parquet",
}
"""In the run folder, by format."""
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
    out: Path = options.out or folder / FILES[options.format]
    try:
        more = dict(_pair(word) for word in options.set)
        if options.format == "parquet":
            _parquet(folder, out)
        else:
            data = msgspec.json.format(
                msgspec.json.encode(_document(folder, options, more)), indent=2
            )
            storage.replace_file(out, data + b"\n")
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
    parser.add_argument("--format", choices=[*FILES], required=True)
    names = ", ".join(FILES.values())
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


def _document(folder: Path, options: argparse.Namespace, more: dict[str, object]) -> object:
    if stages := _stages(folder):
        raise NotExported(f"it is a sweep: export one of its stages, such as {stages[0]}")
    writers: dict[str, Callable[[MeasuredRun], Any]] = {
        "vllm-bench": lambda found: vllm_bench.build_vllm_bench_result(
            found, more, detailed=options.detailed
        ),
        "pytorch": lambda found: vllm_bench.pytorch(found, more),
        "benchmark-report": benchmark_report.build_benchmark_report,
    }
    return writers[options.format](measure_run(folder))


def _stages(folder: Path) -> Sequence[Path]:
    """Folders of a sweep's stages, in their order."""
    found = [path for path in (folder / "stages").glob("*") if (path / storage.RECORDS).is_file()]
    return sorted(found, key=lambda path: (len(path.name), path.name))


def _parquet(folder: Path, out: Path) -> None:
    """All at once, or nothing."""
    facts = measure_run(folder).run
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        parquet.write_parquet(draft, storage.RecordFile(folder / storage.RECORDS), facts)
        os.replace(draft, out)
    finally:
        draft.unlink(missing_ok=True)
