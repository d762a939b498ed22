"""Past runs: the folders of runs, and the files that the web page serves from them.

A name from outside is only looked up among the found folders, and never made into a path.
"""

import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from locust_llm.files.json_file import decode_json_file
from locust_llm.records.run_facts import RECORDS, RUN, Unix
from locust_llm.slo.rules import FAIL, INCONCLUSIVE, PASS

FILES: Final = {
    "report.html": "report",
    "timeline.svg": "timeline (SVG)",
    "summary.md": "summary",
    "profile_export_aiperf.json": "figures (JSON)",
    "profile_export_aiperf.csv": "figures (CSV)",
    "sweep.csv": "stages (CSV)",
    "junit.xml": "SLO (JUnit)",
    RUN: "settings and facts",
    RECORDS: "requests",
}
"""The files of a run and their labels, the main ones first."""
MAX_RUNS: Final = 200
"""The number of listed runs, the latest ones."""
MAX_MODEL_CHARS: Final = 200
"""A model's name is cut to so many characters."""
STATUSES: Final = (PASS, FAIL, INCONCLUSIVE)


class ArchiveEntry(msgspec.Struct, frozen=True):
    """A run in the list."""

    name: str
    at: float
    """When it began, else when its folder was last written to, in Unix seconds."""
    model: str
    status: str
    """The status of its rules. Empty: there are no rules, or no report."""
    files: tuple[tuple[str, str], ...]
    """(path in its folder, label) of its files."""


class _ListedRun(msgspec.Struct):
    """The fields of run.json that the list shows."""

    started_at: Unix | None = None
    model: str = ""


class _RunJson(msgspec.Struct):
    run: _ListedRun = msgspec.field(default_factory=_ListedRun)
    slo_status: str | None = None


class Archive:
    """The runs below ``reports``, and the runs of this process wherever they are."""

    def __init__(self, reports: Path, names: str = "") -> None:
        """``names`` begins the names of run folders, before a number. Empty: any name."""
        self._reports, self._names = reports, names
        self._own: list[Path] = []
        self._read: dict[Path, tuple[int, _RunJson]] = {}

    def add(self, folder: Path) -> None:
        """Add a run of this process."""
        self._own.append(folder)

    @property
    def reports(self) -> Path | None:
        """The folder that holds nothing but runs. None: there is none, as ``--report-dir`` may name
        one among others."""
        return None if self._names else self._reports

    @property
    def last(self) -> str:
        """The name of this process's last run. Empty before the first."""
        return self._own[-1].resolve().name if self._own else ""

    def entries(self) -> list[ArchiveEntry]:
        """The runs, the last first."""
        entries_found = []
        for name, folder in self._folders().items():
            with suppress(OSError):  # it has just been deleted, or is nobody's to read
                entries_found.append(self._entry(name, folder))
        return sorted(entries_found, key=lambda entry: entry.at, reverse=True)[:MAX_RUNS]

    def folder(self, name: str) -> Path | None:
        """The folder of a run with a report. None: there is none."""
        folder = self._folders().get(name)
        return folder if folder is not None and _is_there(folder / "report.html") else None

    def file(self, name: str, path: str) -> Path | None:
        """A file of a run. None: there is none, or it is not served."""
        folder = self._folders().get(name)
        if folder is None:
            return None
        with suppress(OSError):
            return next(
                (folder / there for there, _ in list_run_files(folder) if there == path), None
            )
        return None

    def _folders(self) -> dict[str, Path]:
        there: list[Path] = []
        with suppress(OSError):
            there = sorted(path.parent for path in self._reports.glob(f"*/{RUN}"))
        below = [
            path
            for path in there
            if not self._names or re.fullmatch(rf"{re.escape(self._names)}(-\d+)?", path.name)
        ]
        return {_name(folder): folder for folder in (*below, *self._own) if _is_there(folder / RUN)}

    def _entry(self, name: str, folder: Path) -> ArchiveEntry:
        changed = (folder / RUN).stat().st_mtime_ns
        read, known = self._read.get(folder, (0, _RunJson()))
        if read != changed:
            known = _read(folder)
            self._read[folder] = changed, known
        at = known.run.started_at or changed / 1e9
        status = known.slo_status if known.slo_status in STATUSES else ""
        return ArchiveEntry(
            name, at, known.run.model[:MAX_MODEL_CHARS], status or "", tuple(list_run_files(folder))
        )


def _name(folder: Path) -> str:
    """The name of a folder as text, which it need not be."""
    return folder.resolve().name.encode("utf-8", "replace").decode()


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def _read(folder: Path) -> _RunJson:
    try:
        return decode_json_file(folder / RUN, _RunJson)
    except (OSError, ValueError):
        return _RunJson()


def list_run_files(folder: Path) -> Iterable[tuple[str, str]]:
    """(path, label) of the files of a run, then of its stages. Links are left out, as they may lead
    out of the folder."""
    for file, what in FILES.items():
        if _is_own_file(folder / file):
            yield file, what
    if (folder / "stages").is_symlink():
        return
    stages = (
        path.parent for path in folder.glob(f"stages/*/{RUN}") if not path.parent.is_symlink()
    )
    for number in sorted(
        int(stage.name) for stage in stages if stage.name.isascii() and stage.name.isdigit()
    ):
        for file, what in FILES.items():
            if _is_own_file(folder / "stages" / str(number) / file):
                yield f"stages/{number}/{file}", f"stage {number}: {what}"


def _is_own_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False
