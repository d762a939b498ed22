"""The folder of a run: its records one by one, what is known of it, and files that are whole or not there at all."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from .jsonl import parse_line
from .record import Record
from .run import Run
from .settings import Settings

RECORDS: Final = "profile_export.jsonl"
RUN: Final = "run.json"


class RecordFile:
    """The records of a profile_export.jsonl, one by one. A line that holds none (half-written when the process was
    killed, damaged) is passed over; ``broken`` counts them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.broken = 0

    def __iter__(self) -> Iterator[Record]:
        if not self.path.exists():
            return
        with self.path.open("rb") as lines:
            for line in lines:
                try:
                    yield parse_line(line)
                except ValueError:
                    self.broken += bool(line.strip())


def write_run(folder: Path | str, run: Run, **more: Any) -> None:
    """run.json: the run under ``run``, and ``more``. Worth writing before the load, in case nothing comes after it."""
    data = msgspec.json.encode({"run": run, **more})
    replace(Path(folder) / RUN, msgspec.json.format(data, indent=2) + b"\n")


def read_run(folder: Path) -> Run:
    """What run.json says. Raises OSError, or ValueError for what is no run."""
    return msgspec.json.decode((folder / RUN).read_bytes(), type=_RunFile).run


def replace(path: Path, data: bytes) -> None:
    """All of it or nothing: whoever reads the file sees the old one or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(data)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def read_status(folder: Path) -> str:
    """What the rules of a run came to, as run.json has it: PASS, FAIL or INCONCLUSIVE; "" where nothing is said."""
    try:
        return msgspec.json.decode((folder / RUN).read_bytes(), type=_Status).slo_status
    except (OSError, ValueError):
        return ""


class _RunFile(msgspec.Struct):
    run: Run


class _Status(msgspec.Struct):
    slo_status: str = ""


def make_folder(settings: Settings, model: str | None) -> Path:
    """A folder for one run, empty of records. Raises OSError."""
    if settings.report_dir:
        base = Path(settings.report_dir)
    else:
        name = "".join(c if c.isalnum() or c in "._-" else "_" for c in (model or "model").rpartition("/")[2])
        base = Path("reports") / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    folder, number = base, 1
    while (folder / RECORDS).exists():
        number += 1
        folder = Path(f"{base if base.name.strip('.') else base.resolve()}-{number}")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
