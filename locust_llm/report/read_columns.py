"""Reading of columns: the records of a file as columns, by several processes where it is large."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Final

from locust_llm.records.machine import usable_cores
from locust_llm.records.storage import RecordFile, UnreadLines
from locust_llm.slo.reading_pace import ReadingPace

from .columns import READER, RequestColumns, collect_columns, join_columns
from .readability import load_reading_pace

PART: Final = 100 * 2**20
"""Bytes that are worth a process of their own: about a second."""
PROCESSES: Final = 4
"""Each takes some 100 MB."""


def read_columns(
    path: Path, reader: ReadingPace | None = None
) -> tuple[RequestColumns, UnreadLines]:
    """(the columns of the records of this file, the lines that cannot be read). Raises OSError.
    ``reader``: None: that of the run.json beside it."""
    reader = reader or load_reading_pace(path.parent)
    begins = list(split_file(path.stat().st_size if path.exists() else 0))
    with ExitStack() as stack:
        others = [stack.enter_context(_reader(path, *part, reader)) for part in begins[1:]]
        found = [read_file_part(path, *begins[0], reader)]
        for part, other in zip(begins[1:], others, strict=True):
            found.append(_result(other) or read_file_part(path, *part, reader))
    if len(found) == 1:
        return found[0]
    return join_columns([columns for columns, _ in found]), sum(
        (unread for _, unread in found), UnreadLines()
    )


def split_file(size: int, cores: int | None = None) -> Iterator[tuple[int, int]]:
    """(begin, end) in bytes of about equal parts."""
    cores = cores or usable_cores()
    count = max(1, min(cores, PROCESSES, size // PART))
    ends = [size * i // count for i in range(count + 1)]
    return pairwise(ends)


def read_file_part(
    path: Path, begin: int, end: int, reader: ReadingPace = READER
) -> tuple[RequestColumns, UnreadLines]:
    file = RecordFile(path, begin, end)
    return collect_columns(file, reader), file.unread


def _reader(path: Path, begin: int, end: int, reader: ReadingPace) -> "subprocess.Popen[bytes]":
    """A process that reads a part. A fresh one: a fork would take along what else this one does."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__, str(path), str(begin), str(end), *map(str, reader)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def _result(reader: "subprocess.Popen[bytes]") -> tuple[RequestColumns, UnreadLines] | None:
    """None: it failed, whatever the reason; the part can be read here."""
    assert reader.stdout is not None
    try:
        found: tuple[RequestColumns, UnreadLines] = pickle.load(reader.stdout)
    except Exception:  # of half a pickle anything can come
        return None
    return found


if __name__ == "__main__":
    whom = ReadingPace(*map(float, sys.argv[4:]))
    pickle.dump(
        read_file_part(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), whom),
        sys.stdout.buffer,
        protocol=5,
    )
