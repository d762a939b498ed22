"""Server looks: reads the server's metrics page and its process at one moment."""

from collections.abc import Callable, Mapping
from typing import Final

from locust_llm.access.operator_command import CommandFailed, OperatorCommand
from locust_llm.client.request_exchange import UserConnection
from locust_llm.records.server_metrics_parser import DCGM, PATHS, read_engine_samples
from locust_llm.server.http_get import OK, FetchFailed, fetch
from locust_llm.settings.server_address import join_server_url

from .server_memory import (
    ProcessReading,
    parse_process_metrics,
    read_command_memory,
    read_process,
)
from .soak_sampler import ServerLook

TIMEOUT_S: Final = 2.0
METRICS_SOURCE: Final = "the server's metrics page"


class ServerLooks:
    """A server without a metrics page gets only one request for it."""

    def __init__(
        self,
        host: str,
        headers: Mapping[str, str],
        *,
        verify: bool | str = True,
        pid: int | None = None,
        command: OperatorCommand | None = None,
        read: Callable[[int], ProcessReading] = read_process,
    ) -> None:
        self._host = host
        self._headers = headers
        self._verify = verify
        self._pid = pid
        self._command = command
        self._read = read
        self._line = UserConnection()
        self._paths: tuple[str, ...] = PATHS
        self.failed_looks = 0
        """So often the process or the command gave no value."""
        self.failure = ""
        """The first reason."""
        self.found_memory = False

    @property
    def source(self) -> str:
        """What memory was read from."""
        if self._command is not None:
            return f"--memory-command {self._command.shown}"
        if self._pid is not None:
            return f"process {self._pid} with its children"
        return METRICS_SOURCE if self.found_memory else ""

    def look(self) -> ServerLook:
        page = self._fetch_page()
        process = parse_process_metrics(page)
        try:
            process = self._look_at_process(process)
        except CommandFailed as error:
            self.failed_looks += 1
            self.failure = self.failure or str(error)
            process = ProcessReading(None, process.open_files, process.started)
        self.found_memory = self.found_memory or process.memory_bytes is not None
        samples = read_engine_samples([page], 0.0)
        engine = next((sample for sample in samples if sample.engine != DCGM), None)
        if engine is None:
            return ServerLook(process)
        free = None if engine.kv_used is None else 1.0 - engine.kv_used
        return ServerLook(process, free, engine.waiting)

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

    def _fetch_page(self) -> str:
        for path in self._paths:
            try:
                answer = fetch(
                    "GET", join_server_url(self._host, path), self._headers, line=self._line,
                    verify=self._verify,
                    timeout_s=TIMEOUT_S,
                )  # fmt: skip
            except FetchFailed:
                return ""  # it may answer the next time
            if answer.status == OK:
                self._paths = (path,)
                return answer.body.decode("utf-8", "replace")
        if self._paths == PATHS:
            self._paths = ()
        return ""

    def close(self) -> None:
        self._line.close()
        if self._command is not None:
            self._command.end()
