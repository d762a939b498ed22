"""History index: a small SQLite file beside the runs keeps a history entry for each of them.

The folders are the truth. A row is valid while the files of its folder keep their times and sizes.
A damaged file, or one of another version, is rebuilt. Where the index cannot be written, the runs
are read without it.
"""

import os
import sqlite3
import stat
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from locust_llm.files.sqlite_file import has_table, limit, read_database
from locust_llm.lab.history.history_entry import KEY_FIGURES
from locust_llm.lab.interop.read_foreign_results import list_figures_files
from locust_llm.records.run_facts import RUN

from .history_entry import STILL_RUNNING, HistoryEntry, UnreadableRun, read_entry

INDEX: Final = "history.sqlite"
FILES: Final = (RUN, *list_figures_files())
"""A folder with one of these files is a run, or the result of another tool."""
OURS: Final = 0x6C6C6D68
"""This is SQLite's application id of an index. Databases of other programs stay untouched."""
MADE_BY: Final = 7
"""A new number marks a changed meaning of a column between two versions of the package."""
DEPTH: Final = 3
"""Runs are searched this many folders below the given one."""
WAIT_S: Final = 1.0
"""The index waits this long in seconds for another process that writes it."""
TEXTS: Final = (
    "tool", "model", "host", "server", "machine", "workload", "conditions", "branch", "slo",
    "client", "ended", "left_out", "note",
)  # fmt: skip
COLUMNS: Final = (
    "folder", "signature", "started", *TEXTS, "labels", "git_commit", "dirty", "simulated",
    *(figure.name for figure in KEY_FIGURES),
    *(f"{figure.name}_plus_minus" for figure in KEY_FIGURES if figure.tag),
)  # fmt: skip
"""Times are in seconds, labels are JSON."""
VERSION: Final = crc32(f"{MADE_BY} {version('locust-llm')} {COLUMNS}".encode()) >> 1
"""An index of another version is rebuilt."""


class IndexedRuns(NamedTuple):
    """Holds the runs of a folder as the index has them."""

    entries: list[HistoryEntry]
    """The oldest run comes first."""
    unread: list[tuple[str, str]]
    """Each pair has a folder and the reason why it could not be read."""
    note: str = ""
    """This explains why there is no index. Empty: there is one."""


class _IndexedFolder(NamedTuple):
    signature: str
    entry: HistoryEntry


class _IndexContent(NamedTuple):
    """Holds the rows of an existing index."""

    rows: dict[str, _IndexedFolder] = {}  # noqa: RUF012
    sound: bool = False
    """A sound index can be updated. Otherwise it is rebuilt."""
    why: str = ""
    """This explains why the index must not be written."""


def index_runs(folder: Path) -> IndexedRuns:
    """Reads all runs below ``folder`` and updates its index. Raises OSError if the folder itself is
    unreadable."""
    os.scandir(folder).close()
    known_entries = _read_index(folder / INDEX)
    current = dict[str, _IndexedFolder]()
    unread = list[tuple[str, str]]()
    for name, signature in sorted(_find_run_folders(folder, unread)):
        before = known_entries.rows.get(name)
        if before is not None and before.signature == signature:
            current[name] = before
            continue
        try:
            entry = read_entry(folder / name, name)
            # one that is killed leaves its files as they are
            signature = "" if entry.ended == STILL_RUNNING else signature
            current[name] = _IndexedFolder(signature, entry)
        except UnreadableRun as error:
            unread.append((name, str(error)))
        except OSError as error:
            unread.append((name, error.strerror or str(error)))
    note = known_entries.why
    if not note and (not known_entries.sound or current != known_entries.rows):
        note = _save_index(
            folder / INDEX, current, known_entries.rows if known_entries.sound else None
        )
    entries = sorted(
        (stamp.entry for stamp in current.values()), key=lambda entry: (entry.started, entry.folder)
    )
    return IndexedRuns(entries, unread, note)


def _find_run_folders(root: Path, unread: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yields each folder of a run with the times and sizes of its files. Folders inside a run are
    skipped: its stages are no runs of their own. A folder that several links lead to counts once,
    by its own name if that is equally near."""
    waiting = deque([("", 0)])
    visited = set[tuple[int, int]]()
    while waiting:
        name, depth = waiting.popleft()
        path = os.path.join(root, name)
        try:
            folder = os.stat(path)
        except OSError:
            continue
        if (folder.st_dev, folder.st_ino) in visited:
            continue
        visited.add((folder.st_dev, folder.st_ino))
        signatures = [_sign_file(os.path.join(path, file)) for file in FILES] if name else []
        if any(signatures) and not _is_text(name):
            unread.append((name.encode("utf-8", "replace").decode(), "its name is not valid text"))
        elif any(signatures):
            yield name, " ".join(sign or "-" for sign in signatures)
        elif depth <= DEPTH:
            try:
                with os.scandir(path) as entries:
                    folders = [
                        entry
                        for entry in entries
                        if entry.is_dir() and not entry.name.startswith(".")
                    ]
                below = [entry.name for entry in sorted(folders, key=os.DirEntry.is_symlink)]
            except OSError as error:
                unread.append(
                    (name.encode("utf-8", "replace").decode(), error.strerror or str(error))
                )
                continue
            waiting += [(f"{name}/{inner}" if name else inner, depth + 1) for inner in below]


def _is_text(name: str) -> bool:
    """Returns whether the name is valid text, as a folder's name may be any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _sign_file(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return f"{status.st_mtime_ns}:{status.st_size}" if stat.S_ISREG(status.st_mode) else ""


# -- the file --------------------------------------------------------------------------------------


def _read_index(path: Path) -> _IndexContent:
    if not path.exists():
        return _IndexContent()
    try:
        with read_database(path, WAIT_S) as database:
            application = database.execute("PRAGMA application_id").fetchone()[0]
            made_by = database.execute("PRAGMA user_version").fetchone()[0]
            if (
                application != OURS
                and database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            ):
                return _IndexContent(why=f"{path} is a database of another program")
            if (application, made_by) != (OURS, VERSION) or not has_table(database, "runs"):
                return _IndexContent()
            return _IndexContent(
                {
                    row[0]: _decode_index_row(row)
                    for row in database.execute(f"SELECT {', '.join(COLUMNS)} FROM runs")
                },
                sound=True,
            )
    except sqlite3.OperationalError as error:
        return _IndexContent(why=f"{path} is in use" if "locked" in str(error) else "")
    except OSError as error:
        return _IndexContent(why=f"{path} cannot be used ({error.strerror or error})")
    except (sqlite3.Error, ValueError, TypeError, RecursionError):
        return _IndexContent()


def _decode_index_row(row: tuple[object, ...]) -> _IndexedFolder:
    """Decodes a row. Raises ValueError for content that no index of ours holds."""
    values = dict(zip(COLUMNS, row, strict=True))
    known_figures = (figure.name for figure in KEY_FIGURES if values[figure.name] is not None)
    figures = {name: values[name] for name in known_figures}
    errors = {
        figure.name: value
        for figure in KEY_FIGURES
        if figure.tag and (value := values[f"{figure.name}_plus_minus"]) is not None
    }
    flags = {
        name: None if values[name] is None else bool(values[name])
        for name in ("dirty", "simulated")
    }
    known = {name: values[name] for name in ("folder", "started", *TEXTS)} | flags
    more = {"labels": msgspec.json.decode(str(values["labels"])), "commit": values["git_commit"]}
    entry = msgspec.convert(known | more | {"figures": figures, "plus_minus": errors}, HistoryEntry)
    return _IndexedFolder(str(values["signature"]), entry)


def _encode_index_row(indexed: _IndexedFolder) -> tuple[object, ...]:
    entry = indexed.entry
    return (
        entry.folder, indexed.signature, entry.started, *(getattr(entry, name) for name in TEXTS),
        msgspec.json.encode(entry.labels).decode(), entry.commit, entry.dirty, entry.simulated,
        *(entry.figures.get(f.name) for f in KEY_FIGURES),
        *(entry.plus_minus.get(f.name) for f in KEY_FIGURES if f.tag),
    )  # fmt: skip


def _save_index(
    path: Path, current: Mapping[str, _IndexedFolder], known: Mapping[str, _IndexedFolder] | None
) -> str:
    """Writes the changed rows, or without ``known`` a new file in place of the old one. Returns the
    reason of a failure, else an empty text."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if known is None:
            draft.unlink(missing_ok=True)
            _write(draft, current, {})
            os.replace(draft, path)
        else:
            _write(path, current, known)
    except (OSError, sqlite3.Error, UnicodeError) as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        return f"{path} cannot be written ({getattr(error, 'strerror', None) or error})"
    return ""


def _write(
    path: Path, current: Mapping[str, _IndexedFolder], known: Mapping[str, _IndexedFolder]
) -> None:
    changed = [
        _encode_index_row(known_row)
        for name, known_row in current.items()
        if known.get(name) != known_row
    ]
    with closing(sqlite3.connect(path, timeout=WAIT_S)) as database, database:
        limit(database)
        if not known:
            database.execute(f"PRAGMA application_id = {OURS}")
            database.execute(f"PRAGMA user_version = {VERSION}")
            database.execute(
                f"CREATE TABLE IF NOT EXISTS runs ({', '.join(COLUMNS)}, PRIMARY KEY (folder))"
            )
        database.executemany(
            "DELETE FROM runs WHERE folder = ?", [(name,) for name in known.keys() - current.keys()]
        )
        database.executemany(
            f"INSERT OR REPLACE INTO runs VALUES ({', '.join('?' * len(COLUMNS))})", changed
        )
