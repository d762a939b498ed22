"""What every part of the control needs of its run: settings, the server, the processes that send, the store. It is fixed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from locust_llm.core.settings import Settings
from locust_llm.run.discovery import Discovery
from locust_llm.run.protocol import TO_SENDER, Message, pack

from .run_store import RunStore
from .worker_registry import WorkerRegistry


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

    @property
    def folder(self) -> Path:
        return self.store.folder

    def send(self, message: Message, worker: str | None = None) -> None:
        """To one process, or to all."""
        self.runner.send_message(TO_SENDER, pack(self.epoch, message), worker)
