"""What every part of the control needs of its run: settings, the server, the processes that send, the store, the time.

It is fixed: what changes during a run is in the parts.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gevent

from locust_llm.core.settings import Settings
from locust_llm.run.discovery import Discovery
from locust_llm.run.guarded import guarded
from locust_llm.run.protocol import TO_SENDER, Message, pack

from .run_store import RunStore
from .worker_registry import WorkerRegistry


@dataclass(frozen=True)
class TimeSource:
    """The clocks and the sleep of a run; a test has its own."""

    now: Callable[[], float] = time.time
    """Unix seconds."""
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = gevent.sleep


@dataclass(frozen=True)
class RunContext:
    runner: Any
    """Locust's."""
    settings: Settings
    survey: Discovery
    epoch: int
    """The number of the run: with each message, so that those of another run are ignored."""
    store: RunStore
    workers: WorkerRegistry
    fail: Callable[[str], object]
    """Ends the run, as something in the control broke; with the reason."""
    time: TimeSource

    @property
    def folder(self) -> Path:
        return self.store.folder

    def send(self, message: Message, worker: str | None = None) -> None:
        """To one process, or to all."""
        self.runner.send_message(TO_SENDER, pack(self.epoch, message), worker)

    def spawn(self, run: Callable[..., object], *args: Any, after_s: float = 0.0) -> gevent.Greenlet:
        """A greenlet that begins in ``after_s``; when it fails, so does the run."""
        return guarded(self.fail, after_s, run, *args, sleep=self.time.sleep)
