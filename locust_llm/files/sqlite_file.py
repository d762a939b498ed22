"""SQLite files: foreign databases, read with care: regular files only, within a bound of time and
of bytes, and never written."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from locust_llm.files.regular_file import open_regular

BESIDE: Final = ("-journal", "-wal", "-shm")
"""The endings of the files that SQLite opens with a database."""
TIMEOUT_S: Final = 60.0
MAX_VALUE_BYTES: Final = 2**26
"""The size of a text or blob."""
STEPS: Final = 10_000
"""The steps of SQLite's machine between two readings of the clock."""


@contextmanager
def read_database(path: Path, wait_s: float = 1.0) -> Iterator[sqlite3.Connection]:
    """``wait_s`` bounds the wait for another writer. Raises sqlite3.Error, and OSError where one of
    the files is not regular."""
    require_regular(path)
    with closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=wait_s)
    ) as database:
        limit(database)
        yield database


def require_regular(path: Path) -> None:
    """Check all files of a database. Raises OSError."""
    open_regular(path).close()
    for end in BESIDE:
        beside = path.with_name(path.name + end)
        if beside.exists():
            open_regular(beside).close()


def limit(database: sqlite3.Connection) -> None:
    """Limit what a statement may take: SQLite then ends it with an error."""
    until = time.monotonic() + TIMEOUT_S
    database.set_progress_handler(lambda: time.monotonic() > until, STEPS)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
    database.execute("PRAGMA trusted_schema = OFF")


def has_table(database: sqlite3.Connection, name: str) -> bool:
    """The database has a real table of this name. A view, or a table of a module, may compute
    without end."""
    row = database.execute(
        "SELECT rootpage FROM sqlite_master WHERE type = 'table' AND lower(name) = lower(?)",
        (name,),
    ).fetchone()
    return row is not None and bool(row[0])
