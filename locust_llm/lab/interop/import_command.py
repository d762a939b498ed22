"""Command ``locust-llm import FILE`` makes a run folder of another tool's result."""

import argparse
from pathlib import Path

import msgspec
from msgspec.structs import replace

from locust_llm.exit_status import ExitStatus, fail
from locust_llm.files.json_file import replace_file
from locust_llm.records.profile_export_jsonl import format_record_line
from locust_llm.records.run_facts import RECORDS, Run, make_run_folder, write_run
from locust_llm.report import console_summary, write_report_files
from locust_llm.report.sections.notes import list_missing_parts
from locust_llm.settings.run_options import Settings
from locust_llm.text.format import clean_line, format_count, print_json, print_safely

from . import read_foreign_results
from .imported_records import ImportedRun, UnusableResult

MAX_UNREAD = 3


class ImportedFolder(msgspec.Struct, frozen=True, kw_only=True):
    """The run folder that ``locust-llm import`` made of another tool's result."""

    folder: str
    """The path of the run folder."""
    tool: str
    """The tool that measured, with its version where the file names it."""
    model: str
    """The model that the requests were sent to. Empty: the file does not name it."""
    requests: int
    """The number of requests that were imported."""
    missing: tuple[str, ...]
    """What is missing of the run, such as unreadable requests. Empty: the exit status is 0."""
    notes: tuple[str, ...]
    """The origin of the run, and data that the tool does not keep."""


def run_import(words: list[str]) -> int:
    """Returns 5 if nothing can be imported, 6 if some requests cannot."""
    parser = argparse.ArgumentParser(
        prog="locust-llm import",
        description=(
            "Convert the result of another load tester to a run folder, so that report, compare "
            "and audit can read it. The result must contain its requests. Supported: "
            f"{read_foreign_results.name_importable_tools()}."
        ),
    )
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="file with the requests, or its folder"
    )
    parser.add_argument(
        "--report-dir",
        default="",
        metavar="DIR",
        help="folder to write to (default: reports/<date>-<model>)",
    )
    parser.add_argument(
        "--load",
        type=int,
        metavar="N",
        help="number of the load to import, if the file has several (from 1)",
    )
    parser.add_argument("--json", action="store_true", help="print the folder and notes as JSON")
    options = parser.parse_args(words)
    try:
        imported_run = _choose_load(
            read_foreign_results.read_imported_runs(options.file), options.load
        )
        folder = make_run_folder(
            Settings(report_dir=options.report_dir), imported_run.model or None
        )
        facts = write_imported_run(imported_run, options.file, folder)
        summary = write_report_files.write_reports(folder, facts)
    except (OSError, UnusableResult) as error:
        why = clean_line(str(getattr(error, "strerror", None) or error))
        return fail(f"{options.file}: {why}")
    missing = list_missing_parts(summary, facts)
    if options.json:
        print_json(
            ImportedFolder(
                folder=str(folder),
                tool=facts.imported,
                model=facts.model,
                requests=len(imported_run.records),
                missing=missing,
                notes=facts.notes,
            )
        )
    else:
        width = console_summary.find_console_width()
        print_safely(console_summary.format_ending(summary, facts, folder, width, ends_run=False))
    return ExitStatus.INCOMPLETE if missing else ExitStatus.OK


def _choose_load(loads: list[ImportedRun], number: int | None) -> ImportedRun:
    if number is None and len(loads) > 1:
        raise UnusableResult(
            f"it has {len(loads)} loads: choose one with --load 1 to --load {len(loads)}"
        )
    if not 1 <= (number or 1) <= len(loads):
        raise UnusableResult(f"--load takes 1 to {len(loads)}")
    return loads[(number or 1) - 1]


def write_imported_run(imported_run: ImportedRun, source: Path, folder: Path) -> Run:
    """Writes the records and run.json. Raises OSError."""
    records = sorted(imported_run.records, key=lambda record: record.closed_at)
    replace_file(
        folder / RECORDS, b"".join(format_record_line(record) + b"\n" for record in records)
    )
    run = _make_run(imported_run, source, folder)
    write_run(folder, run)
    return run


def _make_run(imported_run: ImportedRun, source: Path, folder: Path) -> Run:
    sent = [record.sent_unix_s for record in imported_run.records]
    measured = [
        at
        for at, record in zip(sent, imported_run.records, strict=True)
        if record.phase == "profiling"
    ]
    closed = max(record.closed_unix_s for record in imported_run.records)
    rate = (
        imported_run.rate_per_s
        if imported_run.rate_per_s and 0 < imported_run.rate_per_s < 1e9
        else None
    )
    blank = Run(name=folder.name, settings=Settings(), started_at=0.0, profiling_at=0.0)
    settings = replace(
        blank.settings,
        model=imported_run.model or None,
        users=imported_run.users if imported_run.users and 0 < imported_run.users < 2**31 else None,
        prefill_concurrency=imported_run.prefills
        if imported_run.prefills and 0 < imported_run.prefills < 2**31
        else None,
        request_rate=rate,
        arrival_pattern=imported_run.arrivals or "(the file does not name the distribution)",
    )
    lost = max(0, imported_run.asked - len(imported_run.records)) if imported_run.asked else 0
    run = replace(
        blank,
        settings=settings,
        started_at=max(0.0, min(sent)),
        profiling_at=max(0.0, min(measured or sent)),
        stopping_at=max(0.0, *sent),
        ended_at=max(0.0, closed),
        imported=imported_run.measured_by,
        simulated=imported_run.simulated,
        model=imported_run.model,
        workers=tuple(sorted({record.worker for record in imported_run.records})),
        records_lost=max(lost, len(imported_run.unread)),
        versions={imported_run.tool: imported_run.version} if imported_run.version else {},
        notes=tuple(map(clean_line, _make_notes(imported_run, source, lost))),
    )
    return msgspec.convert(msgspec.to_builtins(run), Run)


def _make_notes(imported_run: ImportedRun, source: Path, lost: int) -> list[str]:
    """Lists the origin of the run, its missing data and unreadable requests."""
    own = any(record.tokens_from == "tokenizer" for record in imported_run.records)
    origin = f"{imported_run.title} measured this with its own clock"
    if imported_run.own:
        origin = f"locust-llm measured this, and exported it to the format of {imported_run.title}"
    notes = [
        f"Imported from {source.name}: {origin}. The metrics are computed from its requests, as for "
        "a run of locust-llm.",
        *(f"{imported_run.title} does not keep {what}." for what in imported_run.lacks),
    ]
    if own:
        notes.append(
            f"Output tokens come from {imported_run.tool}'s own tokenizer, where the server did not count."
        )
    if lost:
        notes.append(
            f"The file counts {format_count(imported_run.asked or 0, 'request')}, but contains "
            f"{len(imported_run.records)} of them."
        )
    if imported_run.cut:
        notes.append(
            f"WARNING: {source.name} ends in the middle of {imported_run.cut}, which was not read."
        )
    if imported_run.unread:
        shown = "; ".join(imported_run.unread[:MAX_UNREAD]) + (
            "; ..." if len(imported_run.unread) > MAX_UNREAD else ""
        )
        notes.append(
            f"WARNING: {format_count(len(imported_run.unread), 'request')} of the file could not be read "
            f"({shown})."
        )
    return notes
