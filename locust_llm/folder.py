"""The folder of a run: its records one by one, what is known of it, and files that are whole or not there at all."""

import math
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from .jsonl import parse_line
from .record import Record
from .run import Run
from .settings import Settings

RECORDS: Final = "profile_export.jsonl"
RUN: Final = "run.json"
STRETCHES: Final = 100
"""A sample of records is of so many."""
BISECTED: Final = 2**16
"""Bytes of records that are not worth another step."""


class RecordFile:
    """The records of a profile_export.jsonl, one by one. A line that holds none (half-written when the process was
    killed, damaged) is passed over; ``broken`` counts them."""

    def __init__(self, path: Path, begin: int = 0, end: float = math.inf) -> None:
        """``begin``, ``end``: of the lines that begin between these two bytes."""
        self.path = path
        self.broken = 0
        self._begin, self._end = begin, end

    def __iter__(self) -> Iterator[Record]:
        if not self.path.exists():
            return
        with self.path.open("rb") as lines:
            at = self._begin
            if at:  # it may lie within a line, which is not of this part
                lines.seek(at - 1)
                at += len(lines.readline()) - 1
            for line in lines:
                if at >= self._end:
                    break
                at += len(line)
                try:
                    yield parse_line(line)
                except ValueError:
                    self.broken += bool(line.strip())

    def evenly(self, share: float, stretches: int = STRETCHES) -> Iterator[Record]:
        """About this share of them, in stretches of neighbours spread evenly over the file; all for 1 and above."""
        if share >= 1 or not self.path.exists():
            yield from RecordFile(self.path)
            return
        length = self.path.stat().st_size / stretches
        for i in range(stretches):
            yield from RecordFile(self.path, int(i * length), int((i + share) * length))

    def since(self, at: float) -> Iterator[Record]:
        """Those of the requests that ended at ``at`` (Unix seconds) or later, found by bisection: the file is in the order
        of their ends, or nearly so over workers. A few may come that ended before. Broken lines are not counted."""
        if not self.path.exists():
            return
        with self.path.open("rb") as lines:
            low, high = 0, self.path.stat().st_size
            while high - low > BISECTED:
                middle = (low + high) // 2
                lines.seek(middle)
                lines.readline()  # the rest of a line
                record = next(_parsed(lines), None)
                if record is None or record.closed_at + record.clock_offset_s >= at:
                    high = middle
                else:
                    low = middle
            lines.seek(low)
            if low:
                lines.readline()
            yield from _parsed(lines)


def _parsed(lines: Iterable[bytes]) -> Iterator[Record]:
    for line in lines:
        with suppress(ValueError):
            yield parse_line(line)


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


def read_probe(folder: Path) -> str:
    """What a probe came to, as examination.py has it: named, untold or broken; "" where the run was none."""
    try:
        found = msgspec.json.decode((folder / RUN).read_bytes(), type=_Probe).examination
    except (OSError, ValueError):
        return ""
    return "" if found is None else found.outcome


class _Figure(msgspec.Struct):
    avg: float | None = None


class _OfOurs(msgspec.Struct):
    slo_status: str | None = None
    conditions: dict[str, Any] = {}


class Outcome(msgspec.Struct):
    """What a run came to in a few figures, from its profile_export_aiperf.json."""

    locust_llm: _OfOurs = msgspec.field(default_factory=_OfOurs)
    time_to_first_token: dict[str, Any] = {}
    inter_token_latency: dict[str, Any] = {}
    request_throughput: _Figure = msgspec.field(default_factory=_Figure)
    output_token_throughput: _Figure = msgspec.field(default_factory=_Figure)

    @property
    def status(self) -> str | None:
        return self.locust_llm.slo_status

    @property
    def client(self) -> str | None:
        verdict = self.locust_llm.conditions.get("client_verdict")
        return None if verdict is None else str(verdict)

    @property
    def throughput(self) -> float | None:
        """Output tokens a second, else requests a second."""
        tokens, requests = self.output_token_throughput.avg, self.request_throughput.avg
        return requests if tokens is None else tokens

    def __str__(self) -> str:
        """``TTFT p50 120 ms, p99 450 ms, 812 tokens/s, SLO PASS``"""
        parts = []
        if "p50" in self.time_to_first_token:
            parts.append("TTFT p50 {p50:.0f} ms, p99 {p99:.0f} ms".format_map(self.time_to_first_token))
        if "p50" in self.inter_token_latency:
            parts.append("ITL p50 {p50:.1f} ms, p99 {p99:.1f} ms".format_map(self.inter_token_latency))
        if self.output_token_throughput.avg is not None:
            parts.append(f"{self.output_token_throughput.avg:.0f} tokens/s")
        if self.status:
            parts.append(f"SLO {self.status}")
        if self.client not in (None, "OK"):
            parts.append(f"client {self.client}")
        return ", ".join(parts) or "nothing was measured"


def read_outcome(folder: Path) -> Outcome:
    """Of a folder that has its reports; an empty one where they cannot be read."""
    try:
        return msgspec.json.decode((folder / "profile_export_aiperf.json").read_bytes(), type=Outcome)
    except (OSError, ValueError):
        return Outcome()


class _RunFile(msgspec.Struct):
    run: Run


class _Examined(msgspec.Struct):
    outcome: str = ""


class _Probe(msgspec.Struct):
    examination: _Examined | None = None


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
