"""Past runs: the folders of runs, and the files that the web page serves from them.

A name from outside is only looked up among the found folders, and never made into a path.
"""

import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from locust_llm.files.json_file import decode_json_file
from locust_llm.records.run_facts import RECORDS, RUN, Unix
from locust_llm.slo.rules import FAIL, INCONCLUSIVE, PASS
from locust_llm.text.format import format_brief, format_count

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
FIGURES: Final = "profile_export_aiperf.json"
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
    load: str = ""
    """``8 users``, ``2/s``, or the axis of a sweep."""
    duration_s: float | None = None
    ttft_p95_ms: float | None = None
    itl_p95_ms: float | None = None
    tokens_per_s: float | None = None
    """These three are of a run with one load. None: not known."""
    failure_rate: float | None = None
    client: str = ""
    """The client verdict."""


class _ListedSettings(msgspec.Struct):
    sweep: str | None = None


class _ListedRun(msgspec.Struct):
    """The fields of run.json that the list shows."""

    started_at: Unix | None = None
    model: str = ""
    settings: _ListedSettings = msgspec.field(default_factory=_ListedSettings)
    arms: list[Any] = []


class _ListedConditions(msgspec.Struct):
    loop: str = ""
    users: int | None = None
    rate_per_s: float | None = None
    duration_s: float | None = None
    failure_rate: float | None = None
    client_verdict: str | None = None


class _RunJson(msgspec.Struct):
    run: _ListedRun = msgspec.field(default_factory=_ListedRun)
    slo_status: str | None = None
    conditions: _ListedConditions = msgspec.field(default_factory=_ListedConditions)


class _Figure(msgspec.Struct):
    avg: float | None = None
    p95: float | None = None


class _Figures(msgspec.Struct):
    """The metrics of profile_export_aiperf.json that the list shows."""

    time_to_first_token: _Figure = msgspec.field(default_factory=_Figure)
    inter_token_latency: _Figure = msgspec.field(default_factory=_Figure)
    output_token_throughput: _Figure = msgspec.field(default_factory=_Figure)


class _WithSettings(msgspec.Struct):
    settings: dict[str, Any] = {}


class _RunSettings(msgspec.Struct):
    run: _WithSettings = msgspec.field(default_factory=_WithSettings)


Content = TypeVar("Content", bound=msgspec.Struct)


class Archive:
    """The runs below ``reports``, and the runs of this process wherever they are."""

    def __init__(self, reports: Path, names: str = "") -> None:
        """``names`` begins the names of run folders, before a number. Empty: any name."""
        self._reports, self._names = reports, names
        self._own: list[Path] = []
        self._read: dict[Path, tuple[int, _RunJson, _Figures]] = {}

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
        read, known, figures = self._read.get(folder, (0, _RunJson(), _Figures()))
        if read != changed:
            known = _read(folder / RUN, _RunJson)
            is_of_one_load = not known.run.settings.sweep and not known.run.arms
            figures = _read(folder / FIGURES, _Figures) if is_of_one_load else _Figures()
            self._read[folder] = changed, known, figures
        at = known.run.started_at or changed / 1e9
        status = known.slo_status if known.slo_status in STATUSES else ""
        return ArchiveEntry(
            name,
            at,
            known.run.model[:MAX_MODEL_CHARS],
            status or "",
            tuple(list_run_files(folder)),
            _describe_load(known),
            known.conditions.duration_s,
            figures.time_to_first_token.p95,
            figures.inter_token_latency.p95,
            figures.output_token_throughput.avg,
            known.conditions.failure_rate,
            (known.conditions.client_verdict or "")[:MAX_MODEL_CHARS],
        )

    def settings(self, name: str) -> dict[str, Any]:
        """The settings of a run. Empty: there is none, or it cannot be read."""
        folder = self._folders().get(name)
        return {} if folder is None else _read(folder / RUN, _RunSettings).run.settings


def _describe_load(known: _RunJson) -> str:
    """``8 users``, ``2/s``, ``sweep concurrency=1..8``, ``A/B, 8 users``."""
    conditions = known.conditions
    if known.run.settings.sweep:
        return f"sweep {known.run.settings.sweep}"[:MAX_MODEL_CHARS]
    load = "" if conditions.users is None else format_count(conditions.users, "user")
    if conditions.loop == "open" and conditions.rate_per_s is not None:
        load = format_brief(conditions.rate_per_s, "/s", 3)
    return ", ".join(filter(None, ("A/B" * bool(known.run.arms), load)))


def _name(folder: Path) -> str:
    """The name of a folder as text, which it need not be."""
    return folder.resolve().name.encode("utf-8", "replace").decode()


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def _read(file: Path, kind: type[Content]) -> Content:
    """Nothing of a file that is missing or damaged."""
    try:
        return decode_json_file(file, kind)
    except (OSError, ValueError):
        return kind()


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
