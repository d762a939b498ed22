"""Run context: what every part of the controller needs of its run: settings, the server, the
processes that send, the store, the time.

It is fixed: what changes during a run is in the parts.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gevent

from locust_llm.records.control_message import ControlMessage
from locust_llm.server.discovery import Discovery
from locust_llm.settings.run_options import Settings
from locust_llm.wire.critical_greenlets import spawn_critical
from locust_llm.wire.reliable_delivery import IncomingPost, OutgoingPost
from locust_llm.wire.worker_messages import TO_SENDER, ReliableMessage, pack_message

from .run_store import RunStore
from .worker_registry import WorkerRegistry


@dataclass(frozen=True)
class TimeSource:
    """The clocks and the sleep of a run. A test has its own."""

    now: Callable[[], float] = time.time
    """Unix seconds."""
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = gevent.sleep


@dataclass(frozen=True)
class RunContext:
    runner: Any
    """Locust's runner."""
    settings: Settings
    survey: Discovery
    epoch: int
    """The number of the run. Each message has it, so that messages of another run are ignored."""
    store: RunStore
    workers: WorkerRegistry
    fail: Callable[[str], object]
    """Ends the run with a reason, as something in the controller broke."""
    time: TimeSource
    outgoing: dict[str, OutgoingPost] = field(default_factory=dict)
    incoming: dict[str, IncomingPost] = field(default_factory=dict)
    """The reliable messages from each worker, by its name."""

    @property
    def folder(self) -> Path:
        return self.store.folder

    def send(self, message: ControlMessage, worker: str | None = None) -> None:
        """Send to one process, or to all that take part."""
        if self.workers.alone or not isinstance(message, ReliableMessage):
            self._send(pack_message(self.epoch, message), worker)
            return
        for name in self.workers.active() if worker is None else [worker]:
            if name not in self.outgoing:
                self.outgoing[name] = OutgoingPost(
                    partial(self._send, worker=name), self.time.monotonic
                )
            self.outgoing[name].post(partial(pack_message, self.epoch, message))

    def _send(self, packed: bytes, worker: str | None) -> None:
        self.runner.send_message(TO_SENDER, packed, worker)

    def take(self, worker: str, number: int) -> bool:
        """Whether the message with this number is new, and nothing before it is missing."""
        return not number or self.incoming.setdefault(worker, IncomingPost()).take(number)

    def heard_of(self, worker: str) -> int:
        """The last number that the worker posted and that came."""
        return self.incoming[worker].heard if worker in self.incoming else 0

    def heard(self, worker: str, number: int) -> None:
        """The worker has all messages up to this number."""
        if worker in self.outgoing:
            self.outgoing[worker].heard(number)

    def spawn(
        self, run: Callable[..., object], *args: Any, after_s: float = 0.0
    ) -> gevent.Greenlet:
        """Start a greenlet in ``after_s``. When it fails, so does the run."""
        return spawn_critical(self.fail, after_s, run, *args, sleep=self.time.sleep)
