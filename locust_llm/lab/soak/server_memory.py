"""Server memory: memory and open files of the server's process, from /proc, from its metrics page, or
from a command that prints it."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from locust_llm.access.operator_command import CommandFailed, OperatorCommand
from locust_llm.lab.gateway.process_cost import PROC, list_process_tree
from locust_llm.records.server_metrics_parser import PROCESS_FIELDS

KIB: Final = 1024.0
COMMAND_LIMIT_S: Final = 10.0
COMMAND_BYTES: Final = 4096
_UNITS: Final = {
    "": 1.0, "b": 1.0, "k": 1e3, "kb": 1e3, "m": 1e6, "mb": 1e6, "g": 1e9, "gb": 1e9, "t": 1e12,
    "tb": 1e12, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40,
    "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40,
}  # fmt: skip
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?(?:[eE][+]?\d{1,2})?)[ \t]*+([A-Za-z]*+)(?![\w.])")
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


def parse_size(text: str) -> float:
    """Bytes of ``1234``, ``1.5 GiB`` or ``120MB``. What follows is left out, as in ``1.2GiB /
    16GiB``. Raises ValueError."""
    found = _SIZE.match(text)
    factor = _UNITS.get(found[2].lower()) if found else None
    if found is None or factor is None:
        raise ValueError("it is no size such as 1234567, 1.5GiB or 120MB")
    return float(found[1]) * factor


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
        fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        started = float(fields[19])
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
