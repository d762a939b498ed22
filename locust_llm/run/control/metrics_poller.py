"""The metrics poller: reads the server's /metrics once a second during a run; in the master or the only process."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import gevent
import msgspec

from locust_llm.client.exchange import UserConnection
from locust_llm.client.fetch import FetchFailed, fetch
from locust_llm.core.engine_metrics import PATHS, EngineSample, read

from .buffered_file import BufferedFile

FILE: Final = "server_metrics.jsonl"
"""In the folder of a run: a line for each sample."""
EVERY_S: Final = 1.0
"""Between two samples."""
TIMEOUT_S: Final = 2.0
"""For a whole answer."""


class MetricsPoller:
    """Polls until it is closed. A server without such a page is not asked again."""

    def __init__(
        self, host: str, headers: Mapping[str, str], folder: Path, *, verify: bool | str = True,
        clock: Callable[[], float] = time.time, add_note: Callable[[str], object] = lambda text: None,
    ) -> None:  # fmt: skip
        self.samples: list[EngineSample] = []
        self._host, self._headers, self._verify = host, headers, verify
        self._folder, self._clock, self._add_note = folder, clock, add_note
        self._line = UserConnection()
        self._path = ""
        self._spool: BufferedFile | None = None
        self._job: gevent.Greenlet | None = None

    def start(self, spawn: Callable[..., gevent.Greenlet] = gevent.spawn) -> None:
        self._job = spawn(self._run)

    def _run(self) -> None:
        try:
            if not any(self._look(path) for path in PATHS):
                return
            while True:
                gevent.sleep(EVERY_S)
                self._look(self._path)
        except FetchFailed as error:
            self._add_note(f"the server's /metrics are not read any more: {error}")

    def _look(self, path: str) -> bool:
        """True: there was a sample. Raises FetchFailed for an answer that is too large."""
        at = self._clock()
        try:
            answer = fetch(
                "GET", self._host + path, self._headers, line=self._line, verify=self._verify, timeout_s=TIMEOUT_S
            )
        except FetchFailed as error:
            if error.outcome == "too_large":  # once a second that would be a load of its own
                raise
            return False
        sample = read(answer.body.decode("utf-8", "replace"), at) if answer.status == 200 else None
        if sample is None:
            return False
        self._path = path
        self.samples.append(sample)
        if self._spool is None:
            self._spool = BufferedFile(self._folder / FILE)
        self._spool.write(msgspec.json.encode(sample))
        self._spool.flush()
        return True

    def between(self, began_at: float, ended_at: float) -> list[EngineSample]:
        """The samples of a stretch of time (Unix seconds), and the one before it, from which its counters grow."""
        inside = [sample for sample in self.samples if began_at <= sample.at <= ended_at]
        before = [sample for sample in self.samples if sample.at < began_at]
        return [*before[-1:], *inside]

    def close(self) -> None:
        if self._job is not None:
            self._job.kill(timeout=1.0)  # to its end: its socket must not be closed later, when another has its number
        if self._spool is not None:
            self._spool.close()
        self._line.close()
