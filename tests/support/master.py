"""Master: a registry of workers without processes, on a clock that the test sets."""

from pathlib import Path

from locust_llm.controller.worker_registry import WorkerRegistry
from support import unpatched_locust  # noqa: F401  before the rest


class Master:
    """Replaces Locust's runner, with these workers, all of them running."""

    def __init__(self, folder: Path, *workers: str) -> None:
        # not before unpatched_locust
        from locust.runners import STATE_RUNNING, WorkerNode, WorkerNodes

        self.now = 100.0
        self.clients = WorkerNodes()
        for worker in workers:
            self.clients[worker] = WorkerNode(worker, STATE_RUNNING)
        self.workers = WorkerRegistry(self, folder, clock=lambda: self.now)
        for worker in workers:
            self.workers.add(worker)
