"""Server looks: reads the memory of the server's process, and its KV cache and queue, at one moment.

Memory is of a process of this machine, of what a command prints, or of the metrics page.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from locust_llm.access.operator_command import CommandFailed, OperatorCommand
from locust_llm.settings.run_options import Settings
from locust_llm.trends.soak_readings import METRICS_SOURCE

from .server_counters import MetricsReader, find_engine
from .server_memory import (
    ProcessReading,
    parse_process_metrics,
    read_command_memory,
    read_machine_memory,
    read_process,
)

MEMORY_FLAG: Final = "--memory-command"
_KV_BLOCKS: Final = re.compile(
    r'^vllm:cache_config_info\{[^}\n]{0,8000}?\bnum_gpu_blocks="(\d{1,9})"', re.MULTILINE
)


class MemorySource(NamedTuple):
    """Where memory comes from, by the command line of this process. Nothing: the metrics page."""

    pid: int | None = None
    command: str | None = None


METRICS_ALONE: Final = MemorySource()


class ServerLook(NamedTuple):
    """What was read of the server at one moment."""

    process: ProcessReading = ProcessReading()
    kv_free: float | None = None
    waiting: float | None = None
    failure: str = ""
    """Why the process or the command gave no memory."""
    kv_blocks: float | None = None
    """The number of all blocks of the KV cache."""


class ServerLooks:
    def __init__(
        self,
        settings: Settings,
        headers: Mapping[str, str],
        memory: MemorySource = METRICS_ALONE,
        secrets: Iterable[str] = (),
        read: Callable[[int], ProcessReading] = read_process,
    ) -> None:
        """``secrets`` are the keys of the run, which no command and no report gets. Raises
        CommandFailed."""
        self._page = MetricsReader(settings, headers)
        self._pid = memory.pid
        self._command = None
        if memory.command is not None:
            self._command = OperatorCommand(MEMORY_FLAG, memory.command, secrets)
        self._read = read
        self.source = self._name_source()
        """What memory is read from. Empty: none was found."""
        self.memory_limit_bytes = None if memory.pid is None else read_machine_memory()
        """The memory of the server's machine. None: unknown."""

    def _name_source(self) -> str:
        if self._command is not None:
            return f"{MEMORY_FLAG} {self._command.shown}"
        return "" if self._pid is None else f"process {self._pid} with its children"

    def look(self) -> ServerLook:
        page = self._page.read_page(_has_values)
        process = parse_process_metrics(page)
        failure = ""
        try:
            process = self._look_at_process(process)
        except CommandFailed as error:
            failure = str(error)
            process = ProcessReading(None, process.open_files, process.started)
        if process.memory_bytes is not None:
            self.source = self.source or METRICS_SOURCE
        engine = find_engine(page)
        if engine is None:
            return ServerLook(process, failure=failure)
        free = None if engine.kv_used is None else 1.0 - engine.kv_used
        return ServerLook(process, free, engine.waiting, failure, _parse_kv_blocks(page))

    def _look_at_process(self, of_page: ProcessReading) -> ProcessReading:
        """Raises CommandFailed."""
        if self._command is not None:
            memory = read_command_memory(self._command)
            return ProcessReading(memory, of_page.open_files, of_page.started)
        if self._pid is None:
            return of_page
        process = self._read(self._pid)
        if process.memory_bytes is None:
            raise CommandFailed(f"there is no process {self._pid}, or it is another user's")
        return process

    def close(self) -> None:
        self._page.close()
        if self._command is not None:
            self._command.end()


def _parse_kv_blocks(page: str) -> float | None:
    """vLLM reports their number in a label."""
    found = _KV_BLOCKS.search(page)
    return float(found[1]) if found else None


def _has_values(page: str) -> bool:
    return parse_process_metrics(page) != ProcessReading() or find_engine(page) is not None
