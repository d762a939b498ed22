"""evalscope perf: reads the metrics of ``benchmark_summary.json`` and the requests of
``benchmark_data.db``.

The percentiles are in ``benchmark_percentile.json`` beside the summary. The requests are rows of a
SQLite file, with times in seconds on the clock of a process. The load is in
``benchmark_args.json``. The file keeps answers as pickles, which may run code when they are read,
so they stay unread.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from locust_llm.files.json_file import MAX_JSON_BYTES
from locust_llm.files.regular_file import read_regular
from locust_llm.files.sqlite_file import TIMEOUT_S, has_table, read_database
from locust_llm.lab.interop import imported_records
from locust_llm.lab.interop.imported_records import ImportedRun, UnusableResult
from locust_llm.lab.interop.json_fields import (
    Document,
    nested_value,
    read_distribution,
    read_finite_or_nan,
    read_text,
    read_whole,
)
from locust_llm.lab.interop.load_metrics import Distribution, Figures
from locust_llm.lab.interop.result_file import ResultFile, decode_json, read_result_file
from locust_llm.lab.interop.tool_format import FiguresReader, RequestsReader, ToolFormat
from locust_llm.records.record import Record

SUMMARY: Final = "benchmark_summary.json"
PERCENTILES: Final = "benchmark_percentile.json"


def _has_figures(document: Document) -> bool:
    return "Avg TTFT (ms)" in document and "Test Duration (s)" in document


def _read_figures(document: Document, path: Path) -> list[Figures]:
    """Reads the summary, and the percentiles of the file beside it if that is readable."""
    if path.name == SUMMARY:
        with suppress(OSError, ValueError):
            percentiles = decode_json(read_result_file(path.with_name(PERCENTILES)))
            document = {**document, PERCENTILES: percentiles}
    places = read_whole(document.get("Concurrency"))
    rate = read_finite_or_nan(document.get("Request Rate (req/s)"))
    return [
        Figures(
            tool="evalscope",
            requests=read_whole(document.get("Success Requests")),
            failed=read_whole(document.get("Failed Requests")) or 0,
            asked_requests=read_whole(document.get("Total Requests")),
            duration_s=read_finite_or_nan(document.get("Test Duration (s)")),
            concurrency=places if places and places > 0 else None,
            rate_per_s=rate if rate and rate > 0 else None,
            requests_per_s=read_finite_or_nan(document.get("Req Throughput (req/s)")),
            output_tokens_per_s=read_finite_or_nan(document.get("Output Throughput (tok/s)")),
            total_tokens_per_s=read_finite_or_nan(document.get("Total Throughput (tok/s)")),
            ttft=_read_distribution_of(document, "TTFT (ms)", 1e-3),
            tpot=_read_distribution_of(document, "TPOT (ms)", 1e-3),
            itl=_read_distribution_of(document, "ITL (ms)", 1e-3),
            latency=_read_distribution_of(document, "Latency (s)", 1.0),
            input_tokens=_read_distribution_of(document, "Input tokens", 1.0, "Avg Input Tokens"),
            output_tokens=_read_distribution_of(
                document, "Output tokens", 1.0, "Avg Output Tokens"
            ),
        )
    ]


def _read_distribution_of(
    document: Document, name: str, scale: float, mean: str = ""
) -> Distribution:
    return read_distribution(
        [("avg", document.get(mean or f"Avg {name}")), *_list_percentiles(document, name)], scale
    )


def _list_percentiles(document: Document, name: str) -> Iterator[tuple[str, object]]:
    rows = document.get(PERCENTILES)
    for row in rows if isinstance(rows, list) else ():
        label = nested_value(row, "Percentiles")
        if isinstance(label, str):
            yield (
                (f"p{label.removesuffix('%')}" if label.endswith("%") else label),
                nested_value(row, name),
            )


FILE: Final = "benchmark_data.db"
ARGUMENTS: Final = "benchmark_args.json"
HEAD: Final = b"SQLite format 3\0"
TABLE: Final = "result"
NEEDED: Final = ("start_time", "completed_time", "success", "latency", "first_chunk_latency")
MORE: Final = (
    "request",
    "inter_token_latencies",
    "prompt_tokens",
    "completion_tokens",
    "request_id",
    "is_stream",
)
"""The columns depend on the version. Versions before 1.4 have no gaps, versions before 1.14 have no
``request_id`` and no ``is_stream``."""
NO_WORDS: Final = "why requests failed"
MAX_GAPS_CHARS: Final = 2**23
"""Longer texts of an answer's gaps are skipped, as their JSON could fill the memory."""


def _has_requests(file: ResultFile) -> bool:
    """Recognises the file by its name or its first bytes. Raises OSError."""
    return file.head.startswith(HEAD) or file.path.name == FILE


def _read_requests(file: ResultFile) -> list[ImportedRun]:
    """Reads the requests. Raises OSError, and UnusableResult for a damaged or unknown file."""
    path = file.path
    if not path.stat().st_size:
        raise UnusableResult(
            "it is empty: evalscope was stopped before its first request, or the file is cut"
        )
    try:
        with read_database(path) as database:
            records, unread = _select_requests(database, path.stat().st_mtime)
    except sqlite3.Error as error:
        slow = f"it takes longer than {TIMEOUT_S:.0f} s"
        raise UnusableResult(
            f"SQLite cannot read it ({slow if str(error) == 'interrupted' else error})"
        ) from None
    arguments = _read_document_beside(path.with_name(ARGUMENTS))
    summary = _read_document_beside(path.with_name(SUMMARY))
    users = read_whole(nested_value(arguments, "parallel"))
    rate = read_finite_or_nan(nested_value(arguments, "rate"))
    open_loop = nested_value(arguments, "open_loop") is True and rate is not None and rate > 0
    return [
        ImportedRun(
            tool="evalscope",
            model=read_text(nested_value(arguments, "model"))
            or next(filter(None, (record.model for record in records)), ""),
            records=tuple(records),
            users=None if open_loop else users,
            rate_per_s=rate if open_loop else None,
            arrivals="poisson" if open_loop else "",
            asked=read_whole(nested_value(summary, "Total Requests")),
            unread=tuple(unread),
            lacks=imported_records.list_missing_data(
                records,
                imported_records.NO_DATE,
                *([NO_WORDS] if any(record.failed for record in records) else []),
            ),
        )
    ]


def _select_requests(
    database: sqlite3.Connection, written_s: float
) -> tuple[list[Record], list[str]]:
    """Returns the requests in the order of their starts, and the reasons why others are missing.
    ``written_s`` is the Unix time of the file in seconds. A file that is being written lacks its
    last rows. Raises UnusableResult and sqlite3.Error."""
    database.row_factory = sqlite3.Row
    database.text_factory = lambda raw: raw.decode("utf-8", "replace")
    columns: set[str] = set()
    if has_table(database, TABLE):
        columns = {
            str(row["name"]).lower() for row in database.execute(f"PRAGMA table_info({TABLE})")
        }
    if not columns:
        raise UnusableResult(
            f"it is a SQLite file without a table {TABLE!r}: evalscope did not write it"
        )
    if missing := [name for name in NEEDED if name not in columns]:
        raise UnusableResult(
            f"its table {TABLE!r} has no {', '.join(missing)}, which all known versions of "
            f"evalscope write"
        )
    if (
        database.execute(f"SELECT count(*) FROM {TABLE}").fetchone()[0]
        > imported_records.MAX_REQUESTS
    ):
        raise UnusableResult(f"it has more than {imported_records.MAX_REQUESTS:,} requests")
    ended_s = 0.0
    for stamps in database.execute(f"SELECT start_time, completed_time FROM {TABLE}"):
        for stamp_s in map(read_finite_or_nan, stamps):
            if stamp_s is not None and abs(stamp_s) < 1e11:
                ended_s = max(ended_s, stamp_s)
    chosen = ", ".join(name if name in columns else f"NULL AS {name}" for name in (*NEEDED, *MORE))
    records = list[Record]()
    unread = list[str]()
    order = [row[0] for row in database.execute(f"SELECT rowid FROM {TABLE} ORDER BY start_time")]
    # row by row: SQLite would keep all of them, texts included, to sort them
    for place, rowid in enumerate(order, 1):
        row = database.execute(f"SELECT {chosen} FROM {TABLE} WHERE rowid = ?", (rowid,)).fetchone()
        if row is None:
            raise UnusableResult("it is damaged: its rows are not where its index has them")
        try:
            records.append(_make_record(dict(row), place, written_s - ended_s))
        except UnusableResult as error:
            unread.append(f"request {place}: {error}")
    return records, unread


def _read_document_beside(path: Path) -> Document:
    """Reads a JSON object, or an empty one if the file is unreadable."""
    try:
        document = json.loads(read_regular(path, MAX_JSON_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


class _StreamOptions(msgspec.Struct):
    include_usage: Any = False


class _Body(msgspec.Struct):
    model: str = ""
    stream_options: _StreamOptions | None = None


def _decode_body(row: Mapping[str, object]) -> _Body:
    try:
        return msgspec.json.decode(str(row["request"]), type=_Body)
    except (ValueError, RecursionError):  # older versions kept a pickle
        return _Body()


def _make_record(row: Mapping[str, object], place: int, base_s: float) -> Record:
    sent_s = imported_records.read_finite(row["start_time"], "start time")
    closed_s = imported_records.read_finite(row["completed_time"], "end")
    body = _decode_body(row)
    fields: dict[str, Any] = {
        "id": read_text(row["request_id"]) or f"request-{place}", "worker": "evalscope",
        "base_s": base_s,
        "sent_s": sent_s, "closed_s": closed_s, "model": body.model[:200],
    }  # fmt: skip
    if row["success"] != 1:
        return imported_records.make_imported_record(
            **fields, **imported_records.outcome_fields(None, "failed"), stamps=(), whole=True
        )
    options = body.stream_options
    counted = (options is not None and bool(options.include_usage)) or row["is_stream"] == 0
    fields |= imported_records.token_fields(
        row["prompt_tokens"], row["completion_tokens"], "usage" if counted else "tokenizer"
    )
    if row["is_stream"] == 0:
        return imported_records.make_imported_record(**fields, stamps=(), whole=True)
    stamps, complete = _read_stamps(row)
    return imported_records.make_imported_record(**fields, stamps=stamps, whole=complete)


def _read_stamps(row: Mapping[str, object]) -> tuple[tuple[int, ...], bool]:
    """Returns the chunk stamps in microseconds, and whether these are all. The latency ends with
    the last event, which may carry the usage only, so the gaps may end before it."""
    first = imported_records.read_duration(row["first_chunk_latency"], "TTFT")
    latency = imported_records.read_duration(row["latency"], "latency")
    written = str(row["inter_token_latencies"])
    try:
        gaps = json.loads(written) if len(written) <= MAX_GAPS_CHARS else None
    except (ValueError, RecursionError):
        gaps = None
    if not isinstance(gaps, list):
        return imported_records.first_and_last_chunk_us(first, latency)
    known = [gap for gap in map(read_finite_or_nan, gaps) if gap is not None and gap >= 0]
    last = first + sum(known) if len(known) == len(gaps) else latency
    return imported_records.stamp_chunks(first, gaps, min(last, latency))


FORMAT: Final = ToolFormat(
    "evalscope",
    FiguresReader(_has_figures, _read_figures, SUMMARY),
    RequestsReader(_has_requests, _read_requests, FILE, SUMMARY),
)
