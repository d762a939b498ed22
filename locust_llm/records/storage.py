"""Storage: the folder of a run: records, run.json, and files written whole or not at all."""

import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Self, TypeVar

import msgspec

from locust_llm.files.regular_file import open_regular, read_regular
from locust_llm.settings.settings import Settings

from .jsonl import (
    begins_record,
    format_record_line,
    parse_record_line,
    parse_trusted_line,
    split_record_line,
)
from .record import Record
from .run import Run
from .server_metrics import EngineHistory, EngineSample

RECORDS: Final = "profile_export.jsonl"
RUN: Final = "run.json"
SERVER_METRICS: Final = "server_metrics.jsonl"
"""A line for each reading of the server's metrics."""
SAMPLE_STRETCHES: Final = 100
"""Stretches of neighbouring records in a sample."""
MIN_BISECTED_BYTES: Final = 2**16
"""Bisection of a record file stops below this."""
HEAD_BYTES: Final = 2**20
"""Of a line, by which a longer one is read on or passed over."""
MAX_LINE_BYTES: Final = 2**28
"""The record of an answer of ten million chunks is shorter."""
MAX_SAMPLE_BYTES: Final = 2**14
"""Of a line of the server's metrics."""
MAX_JSON_BYTES: Final = 2**26
"""Of run.json, and of other JSON beside it."""
MAX_REASONS: Final = 10
"""Unreadable lines whose reason is kept."""

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True)
class UnreadLines:
    """Lines that hold no record, or none that can be used."""

    count: int = 0
    first: tuple[tuple[int, str], ...] = ()
    """(line number from 1, why) of the first of them, at most MAX_REASONS."""
    lines: int = 0
    """Lines in all."""

    @property
    def reasons(self) -> list[str]:
        """``line 3: NUL bytes``"""
        return [f"line {number}: {why}" for number, why in self.first]

    def __add__(self, other: "UnreadLines") -> "UnreadLines":
        """``other``: of the lines that follow."""
        later = tuple((self.lines + number, why) for number, why in other.first)
        return UnreadLines(
            self.count + other.count, (*self.first, *later)[:MAX_REASONS], self.lines + other.lines
        )


class RecordFile:
    """The records of a profile_export.jsonl, one by one. A line that holds none (half-written when
    the process was killed, damaged, of another version) is skipped and counted in ``unread``."""

    def __init__(
        self, path: Path, begin: int = 0, end: float = math.inf, *, sound: bool = False
    ) -> None:
        """``begin``, ``end``: of the lines that begin between these two bytes. ``sound``: each has
        been read before, and was a record."""
        self.path = path
        self._parse = parse_trusted_line if sound else parse_record_line
        self._sound = sound
        self._lines = self._count = 0
        self._first: list[tuple[int, str]] = []
        self._begin, self._end = begin, end

    @property
    def unread(self) -> UnreadLines:
        """So far."""
        return UnreadLines(self._count, tuple(self._first), self._lines)

    def __iter__(self) -> Iterator[Record]:
        if not self.path.exists():
            return
        with open_regular(self.path) as file:
            at = self._begin
            if at:  # it may lie within a line, which is not of this part
                file.seek(at - 1)
                at += _pass_line(file) - 1
            parse, readline = self._parse, file.readline
            while at < self._end and (line := readline(HEAD_BYTES)):
                self._lines += 1
                if len(line) == HEAD_BYTES and not line.endswith(b"\n"):
                    line += _rest_of(line, file)
                at += len(line)
                if (
                    len(line) >= HEAD_BYTES
                    and not line.endswith(b"\n")
                    and (passed := _pass_line(file))
                ):
                    at += passed
                    self._left_out(_why_passed(line))
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
        if self._count <= MAX_REASONS:
            self._first.append((self._lines, why))

    def evenly(self, share: float, stretches: int = SAMPLE_STRETCHES) -> Iterator[Record]:
        """About this share of them, in stretches of neighbours spread evenly over the file; all for
        1 and above."""
        if share >= 1 or not self.path.exists():
            yield from RecordFile(self.path, sound=self._sound)
            return
        length = self.path.stat().st_size / stretches
        for i in range(stretches):
            yield from RecordFile(
                self.path, int(i * length), int((i + share) * length), sound=self._sound
            )

    def since(self, at: float) -> Iterator[Record]:
        """Those of the requests that ended at ``at`` (Unix seconds) or later, found by bisection:
        the file is in the order of their ends, or nearly so over workers. A few may come that ended
        before. Broken lines are not counted."""
        if not self.path.exists():
            return
        with open_regular(self.path) as file:
            low = 0
            high = self.path.stat().st_size
            while high - low > MIN_BISECTED_BYTES:
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


def read_history(folder: Path) -> EngineHistory:
    """The server's metrics over the run; of a stage those of its run. Empty where there are none.
    Raises OSError."""
    history = EngineHistory()
    path = next(
        (
            path
            for path in (folder / SERVER_METRICS, folder.parent.parent / SERVER_METRICS)
            if path.exists()
        ),
        None,
    )
    if path is None or (path.parent != folder and folder.parent.name != "stages"):
        return history
    decode = msgspec.json.Decoder(EngineSample).decode
    with open_regular(path) as file:
        while line := file.readline(MAX_SAMPLE_BYTES):
            try:
                history.add(decode(line))
            except (ValueError, RecursionError):
                history.unread += line.endswith(b"\n")  # the last one may be half written
    return history


def _parsed(file: BinaryIO) -> Iterator[Record]:
    while line := file.readline(HEAD_BYTES):
        if len(line) == HEAD_BYTES and not line.endswith(b"\n"):
            line += _rest_of(line, file)
            if not line.endswith(b"\n") and _pass_line(file):
                continue
        yield from (found for found in _of_pieces(line) if isinstance(found, Record))


def _of_pieces(line: bytes) -> Iterator[Record | str]:
    """Each record of a line, and why each other piece is none."""
    for piece in split_record_line(line):
        end = piece.rfind(b"}") + 1
        try:
            yield parse_record_line(piece)
            continue
        except ValueError as error:
            why = _why(piece, error)
        if rest := piece[end:].strip():  # it may follow a whole record
            with suppress(ValueError):
                yield parse_record_line(piece[:end])
                why = _why(rest, ValueError("something follows the record"))
        yield why


def _rest_of(head: bytes, file: BinaryIO) -> bytes:
    """The rest of a long line, up to MAX_LINE_BYTES in all; of one that cannot hold a record
    nothing."""
    return file.readline(MAX_LINE_BYTES - len(head)) if begins_record(head) else b""


def _why_passed(line: bytes) -> str:
    return (
        f"longer than {MAX_LINE_BYTES >> 20} MB"
        if begins_record(line)
        else _why(line, ValueError("no record"))
    )


def _pass_line(file: BinaryIO) -> int:
    """To the next line; how many bytes that were."""
    passed = 0
    while some := file.readline(MIN_BISECTED_BYTES):
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
        return "it does not begin like a record"
    if not text.endswith(b"}"):
        return "it ends in the middle"
    return str(error)[:200]


class RecordAppender:
    """Adds to a file of records those that it does not have; in memory are their ids alone. Raises
    OSError."""

    def __init__(self, path: Path) -> None:
        self._there = {record.id for record in RecordFile(path)}
        self._lines = path.open("r+b")
        size = self._lines.seek(0, os.SEEK_END)
        self._whole = size == 0 or (
            self._lines.seek(-1, os.SEEK_END) >= 0 and self._lines.read() == b"\n"
        )

    def add(self, record: Record) -> bool:
        """False: it was there."""
        if record.id in self._there:
            return False
        self._lines.write((b"" if self._whole else b"\n") + format_record_line(record) + b"\n")
        self._there.add(record.id)
        self._whole = True
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._lines.close()


def add_records(path: Path, records: Iterable[Record]) -> int:
    """To a file of records, each on a line of its own, but for those that are there; how many were
    not. Raises OSError."""
    with RecordAppender(path) as lines:
        return sum(lines.add(record) for record in records)


def write_run(folder: Path | str, run: Run, **more: Any) -> None:
    """run.json. Worth writing before the load, in case nothing comes after it."""
    replace_file(Path(folder) / RUN, encode_run_json(run, **more))


def encode_run_json(run: Run, **more: Any) -> bytes:
    """The run under ``run``, and ``more``."""
    return msgspec.json.format(msgspec.json.encode({"run": run, **more}), indent=2) + b"\n"


def read_run(folder: Path) -> Run:
    """The run of run.json. Raises OSError, or ValueError if it holds none."""
    return decode_json_file(folder / RUN, _RunFile).run


def decode_readable_run(folder: Path, unknown: Run) -> Run:
    """The readable fields of a damaged run.json; ``unread`` names the others, which are as in
    ``unknown``. Raises OSError, ValueError."""
    known = {
        name: getattr(unknown, name)
        for name in ("name", "settings", "started_at", "profiling_at", "model")
    }
    run, unread = decode_readable_fields(decode_json_file(folder / RUN, _RunAlone).run, Run, known)
    return msgspec.structs.replace(
        run, unread=(*run.unread, *(f"{name} of run.json {why}" for name, why in unread))
    )


def decode_json_file(path: Path, kind: type[T]) -> T:
    """A file of JSON in a run folder. Raises OSError, ValueError."""
    try:
        return msgspec.json.decode(read_regular(path, MAX_JSON_BYTES), type=kind)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


def replace_file(path: Path, data: bytes) -> None:
    """Atomically: a reader sees the old file or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.unlink(missing_ok=True)
        with draft.open("xb") as file:  # never into a pipe or a link of that name
            file.write(data)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


class _RunFile(msgspec.Struct):
    run: Run


class _RunAlone(msgspec.Struct):
    run: msgspec.Raw


def make_run_folder(settings: Settings, model: str | None) -> Path:
    """A folder for one run, empty of records. Raises OSError."""
    if settings.report_dir:
        base = Path(settings.report_dir)
    else:
        name = "".join(
            c if c.isalnum() or c in "._-" else "_" for c in (model or "model").rpartition("/")[2]
        )
        base = Path("reports") / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    folder, number = base, 1
    while (folder / RECORDS).exists():
        number += 1
        folder = Path(f"{base if base.name.strip('.') else base.resolve()}-{number}")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# -- JSON that is damaged, or of another version ---------------------------------------------------


def decode_readable_fields(
    data: bytes, kind: type[S], instead: Mapping[str, Any]
) -> tuple[S, list[tuple[str, str]]]:
    """(the struct, (path, reason) of each unreadable field). Such a field has the value of
    ``instead``, else its default. Raises ValueError where it is no JSON object, or a field without
    a default is missing."""
    try:
        found = msgspec.json.decode(data)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    unread: list[tuple[str, str]] = []
    return _struct(found, kind, "", instead, unread), unread


def _struct(
    found: Mapping[str, Any],
    kind: type[S],
    path: str,
    instead: Mapping[str, Any],
    unread: list[tuple[str, str]],
) -> S:
    known: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        name, inner = f"{path}{field.encode_name}", field.type
        if field.encode_name not in found:
            if field.required and field.name not in instead:
                raise ValueError(f"{name} is missing")
            if field.required:
                unread.append((name, "is missing"))
        else:
            value = found[field.encode_name]
            try:
                known[field.name] = msgspec.convert(value, inner, strict=True)
                continue
            except (ValueError, OverflowError, RecursionError) as error:
                if (
                    isinstance(value, dict)
                    and isinstance(inner, type)
                    and issubclass(inner, msgspec.Struct)
                ):
                    known[field.name] = _struct(value, inner, f"{name}.", {}, unread)
                    continue
                if field.required and field.name not in instead:
                    raise ValueError(f"{name} cannot be read ({error})") from None
                unread.append((name, f"cannot be read ({error})"))
        if field.name in instead:
            known[field.name] = instead[field.name]
    return kind(**known)
