"""Index: what is known of each run of a folder of runs, kept in a small SQLite file beside them.

The folders are what counts. A row is used while the files of its folder have the times and sizes
that they had when it was read; a file that is no index, of another version or damaged, is made
anew; where it cannot be written, it is not.
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
from locust_llm.lab.history.entry import KEY_FIGURES
from locust_llm.lab.interop.registry import list_figures_files
from locust_llm.records.run import RUN

from .entry import HistoryEntry, UnreadableRun, read_entry

INDEX: Final = "history.sqlite"
FILES: Final = (RUN, *list_figures_files())
"""A folder with one of them is a run, or the result of another tool."""
OURS: Final = 0x6C6C6D68
"""SQLite's application id of an index: a database of somebody else is left alone."""
MADE_BY: Final = 4
"""Counted up when the meaning of a column changes between two versions of the package."""
DEPTH: Final = 3
"""Folders below the one that is given in which runs are looked for."""
WAIT_S: Final = 1.0
"""For another process that writes it."""
TEXTS: Final = (
    "tool", "model", "host", "server", "machine", "workload", "conditions", "branch", "slo",
    "client", "ended", "left_out", "note",
)  # fmt: skip
COLUMNS: Final = (
    "folder", "signature", "started", *TEXTS, "labels", "git_commit", "dirty", "simulated",
    *(figure.name for figure in KEY_FIGURES),
    *(f"{figure.name}_plus_minus" for figure in KEY_FIGURES if figure.tag),
)  # fmt: skip
"""Times in seconds; labels as JSON."""
VERSION: Final = crc32(f"{MADE_BY} {version('locust-llm')} {COLUMNS}".encode()) >> 1
"""An index of another one is made anew."""


class IndexedRuns(NamedTuple):
    """The runs of a folder, as the index has them."""

    entries: list[HistoryEntry]
    """The oldest first."""
    unread: list[tuple[str, str]]
    """(folder, why nothing is known of it)."""
    note: str = ""
    """Why there is no index; empty: there is one."""


class _IndexedFolder(NamedTuple):
    signature: str
    entry: HistoryEntry


class _IndexContent(NamedTuple):
    """What there was."""

    rows: dict[str, _IndexedFolder] = {}  # noqa: RUF012
    sound: bool = False
    """It can be brought up to date: else it is to be made anew."""
    why: str = ""
    """It is not to be written."""


def index_runs(folder: Path) -> IndexedRuns:
    """All runs below ``folder``; its index is then up to date. Raises OSError where the folder
    itself cannot be read."""
    os.scandir(folder).close()
    known_entries = _read_index(folder / INDEX)
    seen = dict[str, _IndexedFolder]()
    unread = list[tuple[str, str]]()
    for name, signature in sorted(_signatures(folder, unread)):
        before = known_entries.rows.get(name)
        if before is not None and before.signature == signature:
            seen[name] = before
            continue
        try:
            seen[name] = _IndexedFolder(signature, read_entry(folder / name, name))
        except UnreadableRun as error:
            unread.append((name, str(error)))
        except OSError as error:
            unread.append((name, error.strerror or str(error)))
    note = known_entries.why
    if not note and (not known_entries.sound or seen != known_entries.rows):
        note = _keep(folder / INDEX, seen, known_entries.rows if known_entries.sound else None)
    entries = sorted(
        (stamp.entry for stamp in seen.values()), key=lambda entry: (entry.started, entry.folder)
    )
    return IndexedRuns(entries, unread, note)


def _signatures(root: Path, unread: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """(folder of a run, times and sizes of its files). A run is not looked into: its stages are no
    runs of their own. A folder that links lead to again is looked at once, by its own name where
    that is as near."""
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
        signs = [_sign(os.path.join(path, file)) for file in FILES] if name else []
        if any(signs) and not _is_text(name):
            unread.append((name.encode("utf-8", "replace").decode(), "its name is no text"))
        elif any(signs):
            yield name, " ".join(sign or "-" for sign in signs)
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
    """The name of a folder may be any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _sign(path: str) -> str:
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
        with read_database(path, WAIT_S) as db:
            application = db.execute("PRAGMA application_id").fetchone()[0]
            made_by = db.execute("PRAGMA user_version").fetchone()[0]
            if (
                application != OURS
                and db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            ):
                return _IndexContent(why=f"{path} is a database of another program")
            if (application, made_by) != (OURS, VERSION) or not has_table(db, "runs"):
                return _IndexContent()
            return _IndexContent(
                {
                    row[0]: _decode_index_row(row)
                    for row in db.execute(f"SELECT {', '.join(COLUMNS)} FROM runs")
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
    """Raises ValueError for what no index of ours holds."""
    values = dict(zip(COLUMNS, row, strict=True))
    figures = {f.name: values[f.name] for f in KEY_FIGURES if values[f.name] is not None}
    reach = {
        f.name: value
        for f in KEY_FIGURES
        if f.tag and (value := values[f"{f.name}_plus_minus"]) is not None
    }
    flags = {
        name: None if values[name] is None else bool(values[name])
        for name in ("dirty", "simulated")
    }
    known = {name: values[name] for name in ("folder", "started", *TEXTS)} | flags
    more = {"labels": msgspec.json.decode(str(values["labels"])), "commit": values["git_commit"]}
    entry = msgspec.convert(known | more | {"figures": figures, "plus_minus": reach}, HistoryEntry)
    return _IndexedFolder(str(values["signature"]), entry)


def _row(seen: _IndexedFolder) -> tuple[object, ...]:
    entry = seen.entry
    return (
        entry.folder, seen.signature, entry.started, *(getattr(entry, name) for name in TEXTS),
        msgspec.json.encode(entry.labels).decode(), entry.commit, entry.dirty, entry.simulated,
        *(entry.figures.get(f.name) for f in KEY_FIGURES),
        *(entry.plus_minus.get(f.name) for f in KEY_FIGURES if f.tag),
    )  # fmt: skip


def _keep(
    path: Path, seen: Mapping[str, _IndexedFolder], known: Mapping[str, _IndexedFolder] | None
) -> str:
    """Write what changed, or without ``known`` a new file in the place of the old one. Why that
    could not be; or empty."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if known is None:
            draft.unlink(missing_ok=True)
            _write(draft, seen, {})
            os.replace(draft, path)
        else:
            _write(path, seen, known)
    except (OSError, sqlite3.Error, UnicodeError) as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        return f"{path} cannot be written ({getattr(error, 'strerror', None) or error})"
    return ""


def _write(
    path: Path, seen: Mapping[str, _IndexedFolder], known: Mapping[str, _IndexedFolder]
) -> None:
    changed = [_row(known_row) for name, known_row in seen.items() if known.get(name) != known_row]
    with closing(sqlite3.connect(path, timeout=WAIT_S)) as db, db:
        limit(db)
        if not known:
            db.execute(f"PRAGMA application_id = {OURS}")
            db.execute(f"PRAGMA user_version = {VERSION}")
            db.execute(
                f"CREATE TABLE IF NOT EXISTS runs ({', '.join(COLUMNS)}, PRIMARY KEY (folder))"
            )
        db.executemany(
            "DELETE FROM runs WHERE folder = ?", [(name,) for name in known.keys() - seen.keys()]
        )
        db.executemany(
            f"INSERT OR REPLACE INTO runs VALUES ({', '.join('?' * len(COLUMNS))})", changed
        )
