"""Access log: rows with named columns, in CSV or JSON, and the request that each tells of.

- azure_trace: ``TIMESTAMP``, ``ContextTokens``, ``GeneratedTokens``. AzurePublicDataset, LLM
  inference 2023 and 2024.
- burst_gpt_trace: ``Timestamp`` in seconds, ``Request tokens``, ``Response tokens``.
  HPMLL/BurstGPT; each row
  is a request by itself, as AIPerf 0.13 takes it.
- access_log: the columns that the caller names.

A time is ISO 8601, or a number of seconds unless it is clearly Unix time in ms, µs or ns.
"""

import csv
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from locust_llm.text.numbers import TOKENS, format_quoted_value, parse_finite_number

from . import dataset_formats
from .dataset_formats import (
    DatasetError,
    RowError,
    Turn,
    decode_row,
    locate_row_error,
    parse_time_s,
    read_row_id,
)

TABLES: Final[dict[str, dict[str, str]]] = {
    "azure_trace": {
        "timestamp": "TIMESTAMP",
        "input_tokens": "ContextTokens",
        "output_tokens": "GeneratedTokens",
    },
    "burst_gpt_trace": {
        "timestamp": "Timestamp",
        "input_tokens": "Request tokens",
        "output_tokens": "Response tokens",
    },
}
"""The columns of known traces. The caller names the columns of an ``access_log``."""
COLUMNS: Final = (
    "timestamp", "timestamp_ms", "input_tokens", "output_tokens", "session_id", "model", "prompt",
    "tenant",
)  # fmt: skip


class LogColumns(msgspec.Struct, frozen=True, kw_only=True):
    """How rows with columns are read."""

    columns: dict[str, str]
    """The file's column names by our names (of COLUMNS)."""
    header: tuple[str, ...] = ()
    """The header of a CSV file. Empty: each row is a JSON object, and a name may lead into it
    (``usage.prompt_tokens``)."""
    delimiter: str = ","


def parse_column_names(text: str) -> dict[str, str]:
    """``timestamp=ts,input_tokens=prompt_tokens`` as a mapping. Raises DatasetError."""
    columns: dict[str, str] = {}
    for part in text.split(","):
        ours, _, theirs = (piece.strip() for piece in part.partition("="))
        if ours not in COLUMNS or not theirs:
            raise DatasetError(
                f"--dataset-columns takes pairs such as timestamp=ts, and the first name is one of "
                f"{', '.join(COLUMNS)}; got {part!r}"
            )
        columns[ours] = theirs
    if not columns.keys() & {"input_tokens", "prompt"}:
        raise DatasetError(
            f"columns {text!r} name neither input_tokens nor prompt: there would be nothing to send"
        )
    return columns


def map_log_columns(kind: str, columns: Mapping[str, str], header: bytes | None) -> LogColumns:
    """How to read a file with this header (None: JSON rows). Raises RowError for a missing
    column."""
    if header is None:
        return LogColumns(columns=dict(columns))
    text = _decoded(header)
    delimiter = max(",;\t", key=text.count)
    names = tuple(name.strip() for name in split_csv_row(text, delimiter))
    for theirs in columns.values():
        if theirs not in names:
            raise RowError(
                f"{kind} needs the column {theirs!r}, but the header is {format_quoted_value(text)}"
            )
    return LogColumns(columns=dict(columns), header=names, delimiter=delimiter)


def recognise_csv(header: bytes) -> tuple[str, LogColumns]:
    """(kind, table) of a CSV file. Raises RowError for an unknown one."""
    for kind, columns in TABLES.items():
        try:
            return kind, map_log_columns(kind, columns, header)
        except RowError as wrong:
            if wrong.byte is not None:
                raise
    looked = "; ".join(f"{kind}: {', '.join(columns.values())}" for kind, columns in TABLES.items())
    raise RowError(
        f"neither JSON nor a known header (looked for {looked}); name your columns with "
        f"--dataset-columns"
    )


def read_log_session(table: LogColumns, row: bytes) -> str:
    """The session that a row names, or "". Raises RowError."""
    theirs = table.columns.get("session_id")
    return read_row_id(_lookup(read_log_fields(table, row), theirs)) if theirs else ""


def read_log_tenant(table: LogColumns, row: bytes) -> str:
    """The tenant that a row names, or "". Raises RowError."""
    theirs = table.columns.get("tenant")
    return read_row_id(_lookup(read_log_fields(table, row), theirs)) if theirs else ""


def find_column_byte(table: LogColumns, row: bytes, column: str) -> int:
    """Where the value of one of our columns begins in a row, in bytes."""
    theirs = table.columns.get(column, column)
    if not table.header:
        return dataset_formats.find_field_byte(row, theirs.rpartition(".")[2])
    byte = 0
    quoted = False
    left = table.header.index(theirs)
    while left and byte < len(row):
        quoted ^= row[byte] == ord('"')
        left -= not quoted and row[byte] == ord(table.delimiter)
        byte += 1
    return byte


def parse_log_row(table: LogColumns, row: bytes, line: int) -> tuple[str, list[Turn]]:
    """(the name of its session or "", its turn). Raises RowError.

    There is no turn where its tokens are zero or missing, which is how logs mark a failed request
    (BurstGPT; vLLM and AIPerf leave these out too).
    """
    fields = read_log_fields(table, row)
    value = {ours: _lookup(fields, theirs) for ours, theirs in table.columns.items()}
    tokens = {
        name: _count(value[name], name)
        for name in ("input_tokens", "output_tokens")
        if name in value
    }
    prompt = value.get("prompt")
    if prompt is not None and not isinstance(prompt, str):
        raise RowError(f"prompt is not text: {format_quoted_value(prompt)}", field="prompt")
    at_s = None
    if "timestamp" in value:
        at_s = parse_time_s(
            value["timestamp"], "timestamp", unit_s=guess_time_unit(value["timestamp"])
        )
    elif "timestamp_ms" in value:
        at_s = parse_time_s(value["timestamp_ms"], "timestamp_ms", unit_s=1e-3)
    name = read_row_id(value.get("session_id"))
    if 0 in tokens.values() or ("prompt" in value and not prompt):
        return name, []
    turn = Turn(
        messages=[{"role": "user", "content": prompt}] if prompt else None,
        whole=True,  # a log's prompt tokens count what was said before
        input_tokens=tokens.get("input_tokens"),
        output_tokens=tokens.get("output_tokens"),
        at_s=at_s,
        body={"model": value["model"]}
        if isinstance(value.get("model"), str) and value["model"]
        else {},
        row=line,
    )
    return name, [turn]


def split_csv_row(text: str, delimiter: str = ",") -> list[str]:
    """The cells of one row of CSV (RFC 4180). Raises RowError."""
    try:
        return next(csv.reader([text], delimiter=delimiter, strict=True), [])
    except csv.Error as wrong:
        raise RowError(f"broken CSV: {wrong}") from None


def read_log_fields(table: LogColumns, row: bytes) -> dict[str, Any]:
    """The values of a CSV or JSON row by name. Raises RowError."""
    if not table.header:
        return decode_row(row)
    values = split_csv_row(_decoded(row), table.delimiter)
    if len(values) != len(table.header):
        raise RowError(f"{len(values)} columns, but the header has {len(table.header)}")
    return dict(zip(table.header, values, strict=True))


def guess_time_unit(value: Any) -> float:
    """The unit of a time in seconds. Numbers too great for seconds (1e11 s is the year 5138) are
    ms, µs or ns."""
    size = parse_finite_number(value) or 0.0
    return next(
        (unit_s for above, unit_s in ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3)) if size > above),
        1.0,
    )


def _decoded(row: bytes) -> str:
    try:
        return row.decode()
    except UnicodeDecodeError as wrong:
        raise locate_row_error(wrong, row) from None


def _lookup(fields: Mapping[str, Any], name: str) -> Any:
    """A field, or a field inside others: ``usage.prompt_tokens``."""
    if name in fields:
        return fields[name]
    value: Any = fields
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _count(value: Any, name: str) -> int:
    if value in (None, ""):
        return 0
    count = parse_finite_number(value)
    if count is None or count < 0 or count != int(count):
        raise RowError(
            f"{name} is not a whole number of tokens: {format_quoted_value(value)}", field=name
        )
    if count > TOKENS:
        raise RowError(f"{name} must be at most {TOKENS}: {format_quoted_value(value)}", field=name)
    return int(count)
