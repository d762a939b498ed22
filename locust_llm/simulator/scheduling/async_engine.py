"""Asynchronous scheduling: the engine chooses the next step while this one runs."""

from __future__ import annotations

from typing import Any

from .engine import BatchEngine
from .scheduler_queues import Batch, Scheduler
from .sequence import Sequence


class AsyncEngine(BatchEngine):
    """Models vLLM with --async-scheduling (0.32, vllm/v1/engine/core.py, `step_with_batch_queue`).
    The next step is chosen when a step begins. A new request then waits for two steps, and a
    finished sequence leaves its place a step later. Left out: a step takes less time, as nothing
    waits for the choice. The fitted cost may include it."""

    def __init__(self, scheduler: Scheduler, *more: Any, **options: Any) -> None:
        super().__init__(scheduler, *more, **options)
        scheduler.ahead = True
        self._ahead: Batch | None = None
        self._coming: tuple[list[Sequence], list[Sequence], list[Sequence]] = (
            [],
            [],
            [],
        )  # in round, prefilled, finished

    def _choose(self) -> Batch:
        batch = self._ahead
        self._ahead = None
        while batch is None or not (batch.prefills or batch.num_decodes):
            num_preemptions = self.scheduler.num_preemptions
            batch = self.scheduler.schedule(self._due)
            if self.scheduler.num_preemptions == num_preemptions:
                break
        return batch

    def _begin_step(self) -> None:
        super()._begin_step()
        if self._idle:
            return
        in_round = self._in_round()
        self._coming = (in_round, *self.scheduler.postprocess(self._batch, self._due))
        self._ahead = self.scheduler.schedule(self._due)

    def _end_step(self) -> None:
        due = self._due
        coming = self._coming
        self._count_late()
        self.scheduler.release(coming[2])
        self._begin_step()
        self._give_out(due, *coming)
