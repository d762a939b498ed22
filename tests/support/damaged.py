"""Damaged folders: make a small run with many features, damage it in many ways, and check each."""

import io
import json
import random
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from locust_llm.commands import load_command
from locust_llm.exit_status import ExitStatus
from locust_llm.records.profile_export_jsonl import RecordFile, format_record_line
from locust_llm.records.record import Record
from locust_llm.records.run_facts import (
    RECORDS,
    RUN,
    CalibrationRequest,
    OpenLoopSchedule,
    ProcessHealth,
    Run,
    write_run,
)
from locust_llm.web.past_runs import Archive
from support.records import UNIX, a_run, answered, failed

VALUES: Final[tuple[Any, ...]] = (
    None, "text", "", -1, 0, 1e18, 1e300, -1e300, 10**30, -(10**30), 2**63, 0.5, True, [], [1e18],
    {}, "\ud800", "x" * 9000,
)  # fmt: skip
"""A field may be replaced by these values. NaN and Infinity follow in another way, as JSON has
neither."""
RAW: Final = (b"NaN", b"Infinity", b"1e999", b"[" * 5000)


def records(count: int) -> list[Record]:
    """Makes records behind a gate: a warmup, failures of three kinds, cut, cancelled, retried,
    merged, in one piece."""
    gated: dict[str, Any] = {
        "limit": 2,
        "turn": 0,
        "session": "s",
        "user_class": "Chat",
        "connect_s": 0.001,
        "rtt_us": 90,
    }

    def one(i: int) -> Record:
        at = 10.0 + i / 4
        stamps = gated | {
            "id": f"r{i}", "due_at": at - 0.3, "asked_at": at - 0.2, "admitted_at": at - 0.01,
            "sent_at": at,
            "headers_at": at + 0.01, "asked_input_tokens": 100, "asked_output_tokens": 4,
        }  # fmt: skip
        match i % 10:
            case 0:
                return answered(100, 120, **stamps, phase="warmup")
            case 1:
                return failed("http_status", **stamps, status=500, error=f"boom {i}")
            case 2:
                return failed("reset", **stamps | {"sent_at": None, "admitted_at": None})
            case 3:
                return failed("cut", **stamps)
            case 4:
                return answered(90, 110, 110, 130, **stamps, merged=((1, 100_000), (2, 100_000)))
            case 5:
                return answered(**stamps, streamed=False, closed_at=at + 1, output_tokens=4)
            case 6:
                return failed("retried", **stamps, status=429)
            case 7:
                return failed("cancelled", **stamps)
        return answered(
            100 + i % 7, 140 + i % 7, 180 + i % 7, 200 + i % 7, **stamps, freed_at=at + 0.1
        )

    return [one(i) for i in range(count)]


def a_whole_run() -> Run:
    """Makes a run with a value in each field."""
    run = a_run(
        ((0.0, 1), (5.0, 2)), slo=("ttft p50 < 1s", "error_rate < 5%", "icl p99 < 50ms",
            "warn: delivered > 90%"),
        goodput="time_to_first_token:300", prefill_concurrency=2, warmup_request_count=4,
        request_rate=4.0,
        percentiles=(50.0, 99.0), header_names=("X",), gpus=2,
    )  # fmt: skip
    return replace(
        run, profiling_at=UNIX + 5, model="m", server="uvicorn", machine="here",
        versions={"locust": "2"},
        probes=(CalibrationRequest(kind="words", words=3, tokens=4),), turned_away=1, sweep_end="",
        health=(ProcessHealth(worker="local", cpu_share=0.5, loop_lag_p99_ms=1.0,
            cpu_wait_share=0.01),),
        offer=OpenLoopSchedule(due=40, never_started=1, duration_s=90.0, most_users=2),
        dataset_sessions=3, notes=("a note",),
    )  # fmt: skip


def fill(folder: Path, lines: bytes, run: bytes) -> None:
    (folder / RECORDS).write_bytes(lines)
    (folder / RUN).write_bytes(run)


def whole(folder: Path, count: int = 12) -> tuple[bytes, bytes]:
    """Returns the records and the run.json before the damage."""
    write_run(folder, a_whole_run())
    lines = b"".join(format_record_line(record) + b"\n" for record in records(count))
    (folder / RECORDS).write_bytes(lines)
    return lines, (folder / RUN).read_bytes()


Way = tuple[str, bytes, bytes, int | None]
"""A damage has its name, the records, run.json, and the unreadable lines. None: the reader
decides."""


def cut_records(lines: bytes, run: bytes) -> Iterator[Way]:
    """Cuts at each byte."""
    for length in range(len(lines)):
        left = lines[:length]
        tail = left.rpartition(b"\n")[2]
        yield (
            f"records cut at {length}",
            left,
            run,
            int(bool(tail) and lines[length : length + 1] != b"\n"),
        )


def cut_run(lines: bytes, run: bytes) -> Iterator[Way]:
    for length in range(len(run)):
        yield f"run.json cut at {length}", lines, run[:length], 0


def run_fields(lines: bytes, run: bytes) -> Iterator[Way]:
    """Replaces each field of run.json, its settings and their content by each value, and removes
    it."""
    for path in _paths(json.loads(run)):
        for value in _values():
            yield (
                f"run.json {path} = {value[:20]!r}",
                lines,
                _replaced(json.loads(run), path, value),
                0,
            )


def record_fields(lines: bytes, run: bytes, numbers: tuple[int, ...] = (4, 8)) -> Iterator[Way]:
    """Replaces each field of these records."""
    rows = lines.splitlines()
    for number in numbers:
        known = json.loads(rows[number])
        known["record"] = msgspec.to_builtins(records(number + 1)[number]) | {
            "chunk_us": known["record"]["chunk_us"]
        }
        known["record"] |= {
            name: _default(name) for name in Record.__struct_fields__ if name not in known["record"]
        }
        for path in _paths({"record": known["record"]}):
            for value in _values():
                damaged = [*rows]
                damaged[number] = _replaced(json.loads(json.dumps(known)), path, value)
                yield (
                    f"record {number} {path} = {value[:20]!r}",
                    b"\n".join(damaged) + b"\n",
                    run,
                    None,
                )


def flipped(lines: bytes, run: bytes, count: int, seed: int) -> Iterator[Way]:
    """Changes some random bytes of the records, or of run.json."""
    chance = random.Random(seed)
    for i in range(count):
        both = [bytearray(lines), bytearray(run)]
        which = both[i % 2]
        for _ in range(chance.choice((1, 2, 8, 64))):
            which[chance.randrange(len(which))] = chance.choice(
                (0, 10, 34, 44, 48, 57, 91, 123, 125, chance.randrange(256))
            )
        yield f"flipped {seed}/{i}", bytes(both[0]), bytes(both[1]), None


def spliced(lines: bytes, run: bytes, count: int, seed: int) -> Iterator[Way]:
    """Removes, repeats or blanks pieces of the records."""
    chance = random.Random(seed)
    for i in range(count):
        begin = chance.randrange(len(lines))
        end = min(len(lines), begin + chance.choice((1, 10, 300, 2000)))
        piece = chance.choice(
            (b"", b"\0" * (end - begin), lines[begin:end] * 2, b"\n", b"\r\n" * 3)
        )
        yield f"spliced {seed}/{i}", lines[:begin] + piece + lines[end:], run, None


def called(command: str, *words: object) -> tuple[int, str, str]:
    """Calls a command in this process, and returns (exit status, output, errors)."""
    out = io.StringIO()
    err = io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = load_command(command)([str(word) for word in words])
    return status, out.getvalue(), err.getvalue()


def check_reports(path: Path, ways: Iterable[Way]) -> None:
    """Checks that no damage prevents the report, and that the report names the losses first."""
    for name, lines, run, broken in ways:
        for file in path.iterdir():
            file.unlink()
        fill(path, lines, run)
        status, said, _ = called("report", "--verbose", path)
        assert "Conditions" in said, name
        assert {"report.html", "summary.md", "profile_export_aiperf.json"} <= {
            p.name for p in path.iterdir()
        }, name
        assert (status == ExitStatus.INCOMPLETE) == said.startswith("INCOMPLETE: "), name
        assert status in (ExitStatus.OK, ExitStatus.INCOMPLETE), name
        assert "could not be made" not in said, name
        if broken is not None:
            file_of = RecordFile(path / RECORDS)
            read = len(list(file_of))
            assert file_of.unread.count == broken, name
            assert read == sum(1 for row in lines.split(b"\n") if row) - broken, name
            assert ("could not be read (line" in said) == bool(broken), name


def check_other_commands(whole: Path, broken: Path, name: str) -> None:
    """Checks a plot, comparisons with a complete run, and the run list of the parent folder."""
    for command, words in (
        ("figure", [broken]),
        ("compare", [whole, broken]),
        ("compare", [broken, whole]),
    ):
        status, _, error = called(command, *words)
        assert status == (ExitStatus.REFUSED if error else ExitStatus.OK), (name, command)
        assert error.count("\n") == bool(error), (name, command)
        assert "Error:" not in error, (name, error)
    assert {entry.name for entry in Archive(whole.parent).entries()} == {"whole", "broken"}, name


def _values() -> Iterator[bytes]:
    yield from (json.dumps(value).encode() for value in VALUES)
    yield from RAW
    yield b""  # left out


def _paths(data: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    inside: Iterable[tuple[Any, Any]] = ()
    if isinstance(data, dict):
        inside = data.items()
    elif isinstance(data, list):
        inside = enumerate(data[:2])
    for key, value in inside:
        yield (*at, key)
        yield from _paths(value, (*at, key))


def _replaced(data: Any, path: tuple[str | int, ...], value: bytes) -> bytes:
    place = data
    for key in path[:-1]:
        place = place[key]
    if not value:
        del place[path[-1]]
        return json.dumps(data).encode()
    place[path[-1]] = "\x00here"
    return json.dumps(data, separators=(",", ":")).encode().replace(b'"\\u0000here"', value)


def _default(name: str) -> Any:
    fields = {field.name: field for field in msgspec.structs.fields(Record)}
    return fields[name].default
