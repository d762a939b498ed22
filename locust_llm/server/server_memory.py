"""Server memory: memory and open files of the server's process, from /proc, from its metrics page, or
from a command that prints it."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from locust_llm.access.operator_command import CommandFailed, OperatorCommand
from locust_llm.records.server_metrics_parser import PROCESS_FIELDS
from locust_llm.text.numbers import parse_size

from .process_tree import PROC, list_process_tree, read_process_stat

KIB: Final = 1024.0
COMMAND_LIMIT_S: Final = 10.0
COMMAND_BYTES: Final = 4096
FIELDS: Final = PROCESS_FIELDS | {"process_start_time_seconds": "started"}
_METRIC: Final = re.compile(
    rf"^({'|'.join(FIELDS)})(?:\{{[^}}\n]*+\}})? ([^ \n]{{1,40}})", re.MULTILINE
)


class ProcessReading(NamedTuple):
    """What is known of the server's process at a moment."""

    memory_bytes: float | None = None
    open_files: float | None = None
    started: float | None = None
    """When it started, in any unit."""


def read_process(pid: int, proc: Path = PROC) -> ProcessReading:
    """The process and its children together. Memory is resident or swapped out. Nothing is known of
    a process that does not exist."""
    memory = files = 0.0
    found = False
    for each in list_process_tree(pid, proc):
        with suppress(OSError, ValueError, IndexError):
            memory += sum(_read_kib(proc / str(each) / "status")) * KIB
            found = True
        with suppress(OSError):
            files += len(list((proc / str(each) / "fd").iterdir()))
    if not found:
        return ProcessReading()
    started = None
    with suppress(OSError, ValueError, IndexError):
        started = float(read_process_stat(proc / str(pid))[19])
    # another user's open files cannot be counted
    return ProcessReading(memory, files or None, started)


def _read_kib(path: Path) -> Iterator[float]:
    for line in path.read_text().splitlines():
        if line.startswith(("VmRSS:", "VmSwap:")):
            yield float(line.split()[1])


def parse_process_metrics(page: str) -> ProcessReading:
    """The process of a metrics page, also of one without an engine. Several processes add up."""
    totals = dict[str, float]()
    for name, text in _METRIC.findall(page):
        with suppress(ValueError):
            field = FIELDS[name]
            totals[field] = totals.get(field, 0.0) + float(text)
    return ProcessReading(**totals)


def read_command_memory(command: OperatorCommand, limit_s: float = COMMAND_LIMIT_S) -> float:
    """The bytes that a command prints. Raises CommandFailed."""
    try:
        end = command.run(limit_s, COMMAND_BYTES)
    finally:
        command.end()
    if end.status is None:
        raise CommandFailed(f"{command.flag} did not end within {limit_s:g} s")
    if end.status:
        why = f": {end.error}" if end.error else ""
        raise CommandFailed(f"{command.flag} ended with status {end.status}{why}")
    try:
        return parse_size(end.printed)
    except ValueError as error:
        raise CommandFailed(f"{command.flag} must print the bytes in use: {error}") from None


def read_machine_memory(proc: Path = PROC) -> float | None:
    """The memory of this machine in bytes."""
    with suppress(OSError, ValueError, IndexError):
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                return float(line.split()[1]) * KIB
    return None
