"""The folder of a run: its records one by one, what is known of it, and files that are whole or not there at all."""

import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import msgspec

from .jsonl import parse_line, pieces, trusted
from .partial_json import readable
from .record import Record
from .run import Run
from .settings import Settings

RECORDS: Final = "profile_export.jsonl"
RUN: Final = "run.json"
STRETCHES: Final = 100
"""A sample of records is of so many."""
BISECTED: Final = 2**16
"""Bytes of records that are not worth another step."""
LONGEST: Final = 2**28
"""Bytes of a line: the record of an answer of ten million chunks is shorter."""
NAMED: Final = 10
"""Of so many lines that cannot be read it is said why."""

T = TypeVar("T")


@dataclass(frozen=True)
class Unread:
    """Lines that hold no record, or none that can be used."""

    count: int = 0
    first: tuple[tuple[int, str], ...] = ()
    """(line number from 1, why) of the first of them, at most NAMED."""
    lines: int = 0
    """That there are in all."""

    @property
    def said(self) -> list[str]:
        return [f"line {number}: {why}" for number, why in self.first]

    def __add__(self, other: "Unread") -> "Unread":
        """``other``: of the lines that follow."""
        later = tuple((self.lines + number, why) for number, why in other.first)
        return Unread(self.count + other.count, (*self.first, *later)[:NAMED], self.lines + other.lines)


class RecordFile:
    """The records of a profile_export.jsonl, one by one. A line that holds none (half-written when the process was
    killed, damaged, of another version) is passed over; ``unread`` has them, after the last record."""

    def __init__(self, path: Path, begin: int = 0, end: float = math.inf, *, sound: bool = False) -> None:
        """``begin``, ``end``: of the lines that begin between these two bytes. ``sound``: each has been read before, and was
        a record."""
        self.path = path
        self._parse = trusted if sound else parse_line
        self._sound = sound
        self._lines = self._count = 0
        self._first: list[tuple[int, str]] = []
        self._begin, self._end = begin, end

    @property
    def unread(self) -> Unread:
        """So far."""
        return Unread(self._count, tuple(self._first), self._lines)

    def __iter__(self) -> Iterator[Record]:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            at = self._begin
            if at:  # it may lie within a line, which is not of this part
                file.seek(at - 1)
                at += _pass_line(file) - 1
            parse, readline = self._parse, file.readline
            while at < self._end and (line := readline(LONGEST)):
                at += len(line)
                self._lines += 1
                if len(line) == LONGEST and not line.endswith(b"\n"):
                    at += _pass_line(file)
                    self._left_out(f"longer than {LONGEST >> 20} MB")
                    continue
                try:
                    record = parse(line)
                except ValueError:
                    for found in _of_pieces(line):
                        if isinstance(found, Record):
                            yield found
                        else:
                            self._left_out(found)
                else:
                    yield record

    def _left_out(self, why: str) -> None:
        self._count += 1
        if self._count <= NAMED:
            self._first.append((self._lines, why))

    def evenly(self, share: float, stretches: int = STRETCHES) -> Iterator[Record]:
        """About this share of them, in stretches of neighbours spread evenly over the file; all for 1 and above."""
        if share >= 1 or not self.path.exists():
            yield from RecordFile(self.path, sound=self._sound)
            return
        length = self.path.stat().st_size / stretches
        for i in range(stretches):
            yield from RecordFile(self.path, int(i * length), int((i + share) * length), sound=self._sound)

    def since(self, at: float) -> Iterator[Record]:
        """Those of the requests that ended at ``at`` (Unix seconds) or later, found by bisection: the file is in the order
        of their ends, or nearly so over workers. A few may come that ended before. Broken lines are not counted."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            low, high = 0, self.path.stat().st_size
            while high - low > BISECTED:
                middle = (low + high) // 2
                file.seek(middle)
                _pass_line(file)  # the rest of one
                record = next(_parsed(file), None)
                if record is None or record.closed_at + record.clock_offset_s >= at:
                    high = middle
                else:
                    low = middle
            file.seek(low)
            if low:
                _pass_line(file)
            yield from _parsed(file)


def _parsed(file: BinaryIO) -> Iterator[Record]:
    while line := file.readline(LONGEST):
        if len(line) == LONGEST and not line.endswith(b"\n"):
            _pass_line(file)
            continue
        yield from (found for found in _of_pieces(line) if isinstance(found, Record))


def _of_pieces(line: bytes) -> Iterator[Record | str]:
    """Each record of a line, and why each other piece is none."""
    for piece in pieces(line):
        end = piece.rfind(b"}") + 1
        try:
            yield parse_line(piece)
            continue
        except ValueError as error:
            why = _why(piece, error)
        if rest := piece[end:].strip():  # it may stand behind a whole record
            with suppress(ValueError):
                yield parse_line(piece[:end])
                why = _why(rest, ValueError("something stands behind it"))
        yield why


def _pass_line(file: BinaryIO) -> int:
    """To the next line; how many bytes that were."""
    passed = 0
    while some := file.readline(BISECTED):
        passed += len(some)
        if some.endswith(b"\n"):
            break
    return passed


def _why(line: bytes, error: ValueError) -> str:
    """Why it is no record, in a few words."""
    text = line.strip()
    if not text.strip(b"\0"):
        return "NUL bytes"
    if not text.startswith(b"{"):
        return "it does not begin as a record does"
    if not text.endswith(b"}"):
        return "it ends in the middle"
    return str(error)[:200]


def write_run(folder: Path | str, run: Run, **more: Any) -> None:
    """run.json. Worth writing before the load, in case nothing comes after it."""
    replace(Path(folder) / RUN, run_json(run, **more))


def run_json(run: Run, **more: Any) -> bytes:
    """The run under ``run``, and ``more``."""
    return msgspec.json.format(msgspec.json.encode({"run": run, **more}), indent=2) + b"\n"


def read_run(folder: Path) -> Run:
    """What run.json says. Raises OSError, or ValueError for what is no run."""
    return decoded(folder / RUN, _RunFile).run


def readable_run(folder: Path, unknown: Run) -> Run:
    """What can be read of a damaged one; ``unread`` names the rest, as in ``unknown``. Raises OSError, ValueError."""
    known = {name: getattr(unknown, name) for name in ("name", "settings", "started_at", "profiling_at", "model")}
    run, unread = readable(decoded(folder / RUN, _RunAlone).run, Run, known)
    return msgspec.structs.replace(run, unread=(*run.unread, *(f"{name} of run.json {why}" for name, why in unread)))


def decoded(path: Path, kind: type[T]) -> T:
    """A file of JSON. Raises OSError, ValueError."""
    if path.is_fifo():
        raise ValueError("a pipe")  # whose end may never come
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


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
        return decoded(folder / RUN, _Status).slo_status
    except (OSError, ValueError):
        return ""


def read_probe(folder: Path) -> str:
    """What a probe came to, as examination.py has it: named, untold or broken; "" where the run was none."""
    try:
        found = decoded(folder / RUN, _Probe).examination
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
        return decoded(folder / "profile_export_aiperf.json", Outcome)
    except (OSError, ValueError):
        return Outcome()


class _RunFile(msgspec.Struct):
    run: Run


class _RunAlone(msgspec.Struct):
    run: msgspec.Raw


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
