"""Dataset head: tells from the beginning of a file whether it can be a dataset.

The form lists no other files of a folder, and refuses other uploads at once. The whole file is
checked when a run starts (form_dataset_check.py).
"""

import gzip
import json
import os
import re
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Final

from locust_llm.workload.access_log import split_csv_row
from locust_llm.workload.dataset_formats import RowError, recognise_row
from locust_llm.workload.dataset_rows import GZIP
from locust_llm.workload.traces.trace_formats import recognise_trace

HEAD_BYTES: Final = 1 << 16
"""The bytes that are read, after unpacking. Of a longer first row only its kind is known."""
MAX_KNOWN_FILES: Final = 4096
NO_ROWS: Final = "its first row is neither JSON nor the names of columns"
LEAST_COLUMNS: Final = 2
"""A time and a number of tokens."""
_COLUMN_NAME: Final = re.compile(r"[A-Za-z_][^{}<>=]{0,60}")


def explain_no_dataset(path: Path) -> str:
    """Why a file cannot be a dataset, as part of a sentence. Empty: it can be one. Raises
    OSError."""
    status = os.stat(path)
    return _explain_known_file(path, status.st_mtime_ns, status.st_size)


@lru_cache(MAX_KNOWN_FILES)
def _explain_known_file(path: Path, _changed_ns: int, _size: int) -> str:
    """The page lists files for each visitor, so each version of a file is read once."""
    try:
        head = _read_head(path)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return "it cannot be unpacked"
    cut = len(head) > HEAD_BYTES
    try:
        text = head[:HEAD_BYTES].decode("utf-8-sig", "ignore" if cut else "strict").strip()
    except UnicodeDecodeError:
        return "it is not UTF-8 text"
    if not text:
        return "it is empty"
    if text[0] in "{[":
        return _explain_json(text, cut=cut)
    return _explain_table(text.splitlines(), cut=cut)


def _read_head(path: Path) -> bytes:
    with path.open("rb") as file:
        packed = file.read(len(GZIP)) == GZIP
    with gzip.open(path) if packed else path.open("rb") as stream:
        return stream.read(HEAD_BYTES + 1)


def _explain_json(text: str, *, cut: bool) -> str:
    """``text`` has the first row, or the begin of a list of rows."""
    begin = 0
    if text[0] == "[":
        begin = len(text) - len(text[1:].lstrip())
        if text[begin : begin + 1] != "{":
            return "its first row is not a JSON object"
    try:
        row, end = json.JSONDecoder().raw_decode(text, begin)
    except (ValueError, RecursionError):
        return "" if cut else "its first row is broken JSON"
    data = text[begin:end].encode()
    try:
        if recognise_trace(data) is None:
            recognise_row(data)
    except RowError as wrong:
        has_numbers = any(isinstance(value, int | float) for value in row.values())
        in_lines = text[0] == "{" and "\n" not in text[begin:end]
        # a log with other names, which --dataset-columns can give
        return "" if has_numbers and in_lines else f"its first row has {wrong}"
    return ""


def _explain_table(lines: list[str], *, cut: bool) -> str:
    """The first row of a table has the names of its columns, and the next one as many cells."""
    delimiter = max(",;\t", key=lines[0].count)
    try:
        names, *more = [split_csv_row(line, delimiter) for line in lines[:2]]
    except RowError:
        return NO_ROWS
    known = all(_COLUMN_NAME.fullmatch(name.strip()) for name in names)
    if len(names) < LEAST_COLUMNS or not known:
        return NO_ROWS
    if more and len(more[0]) != len(names) and not (cut and len(lines) == LEAST_COLUMNS):
        return NO_ROWS
    return ""
