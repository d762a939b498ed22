"""Worker loss: closes the account of a worker that is lost, leaves or ends. Its records are
recovered from its disk, its unsent requests go to others, and the rest counts as lost."""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from locust_llm.access.proxy_notes import note_different_proxy
from locust_llm.records.phase_plan import WARMUP
from locust_llm.records.run_facts import (
    IN_WARMUP,
    LOST_WORKER,
    NO_RECORD,
    ProcessHealth,
    Run,
    WorkerLossCount,
    write_run,
)
from locust_llm.records.telemetry_counts import TelemetryCounts
from locust_llm.text.format import format_count
from locust_llm.wire.worker_messages import HELD_S, AskAgain, Ended

from .phases import PhaseRunner
from .records_from_workers import RecordsFromWorkers
from .run_context import RunContext
from .run_progress import LostWorker
from .shutdown import Shutdown
from .worker_registry import WorkerState

ALL_LOST_S: Final = 3.0
"""The longest wait for other workers when all are lost."""
FIRST_WORKER_S: Final = 10.0
"""The longest wait for the first worker, which is longer than a greeting may take."""
WORKERS_S: Final = 0.25
"""The interval of checks for lost processes."""
ENDED: Final = "was ended by the locustfile"
LOST: Final = "was lost"


class WorkerLosses:
    """The workers that were lost, and those whose account is being closed."""

    def __init__(
        self,
        context: RunContext,
        phases: PhaseRunner,
        records: RecordsFromWorkers,
        shutdown: Shutdown,
        facts: Callable[[], Run],
        fail_worker: Callable[[str, str], object],
        show_as_line: Callable[[str], str],
    ) -> None:
        """``facts`` gives the run as it is known now. ``fail_worker`` ends the run if the failure
        of a worker is not empty. ``show_as_line`` makes a text without secrets."""
        self._context, self._phases, self._records = context, phases, records
        self._store, self._workers, self._shutdown = context.store, context.workers, shutdown
        self._facts, self._fail_worker, self._show_as_line = facts, fail_worker, show_as_line
        self.lost_workers: list[LostWorker] = []
        self.leaving: set[str] = set()
        """The workers whose account is being closed."""
        self.telemetry: TelemetryCounts | None = None
        """What became of the spans, metrics and logs of the workers that have ended."""

    def watch(self) -> None:
        """Take back what silent and dead processes have, in a greenlet, and end a run that has none
        left."""
        alone_s = 0.0
        while True:
            before = self._context.time.monotonic()
            self._context.time.sleep(WORKERS_S)
            held_s = self._context.time.monotonic() - before - WORKERS_S
            if held_s > HELD_S:
                self._workers.excuse(held_s)
                self._phases.limit.shares.excuse(held_s)
            for worker in self._phases.limit.shares.expire(self._context.time.monotonic()):
                share = (
                    ""
                    if self._phases.limit.now is None
                    else ": its share of the prefill limit went to the others"
                )
                if self._store.draining:  # it ends what it has, and hands it over
                    continue
                self._store.add_note(
                    f"{LOST_WORKER} {worker} stopped reporting "
                    f"{self._store.since_start(self._workers.silent_s(worker))}{share}"
                )
            dead = self._workers.lost()
            for worker in dead:
                self.lose(worker, ask_others=False)
            if dead:
                self._ask_others()
            self._workers.keep_present()
            alone_s = 0.0 if self._workers.active() else alone_s + WORKERS_S
            if (
                alone_s >= (ALL_LOST_S if self._workers.names else FIRST_WORKER_S)
                and not self._shutdown.begun
            ):
                lost = "all workers were lost" if self._workers.names else "no worker had joined"
                lost_at = [loss.at for loss in self.lost_workers]
                ago_s = self._context.time.now() - lost_at[-1] if lost_at else 0.0
                self._store.add_gap(f"{lost} {self._store.since_start(ago_s)}: the run ended early")
                self._shutdown.begin()
                return

    def on_begin_failed(self, worker: str, why: str) -> str:
        """A worker could not begin. Returns why the run is impossible; empty where the others can
        do without it."""
        why = f"worker {worker} cannot begin: {self._show_as_line(why)}"
        if self._store.run_progress.counts and len(self._workers.active()) > 1:
            self.lose(worker, f"could not begin ({why}), and was left out")
            return ""
        if self._shutdown.begun:
            return ""
        self._shutdown.begun = True
        self._shutdown.note_asked()
        self._store.add_gap(why)
        return why

    def lose(self, worker: str, how: str = LOST, *, ask_others: bool = True) -> None:
        """A process is lost: its records are recovered, its unsent requests go to others, and the
        rest counts as lost. ``ask_others``: they hear of it now. Of a thousand that are lost at once
        they hear once."""
        if worker in self.leaving:
            return
        self.leaving.add(worker)
        try:
            self._write_off(worker, how, self._records.recover(worker))
            if ask_others:
                self._ask_others()
        finally:
            self.leaving.discard(worker)

    def _ask_others(self) -> None:
        """What a process had not sent is there for the others."""
        if not self._store.draining:
            self._context.send(AskAgain(self._phases.plan.phase))

    def _write_off(self, worker: str, how: str, recovered: int) -> None:
        """Close the account of a lost process. ``recovered`` records came from its disk."""
        loss = self._workers.drop(worker)
        # it is found later than it is lost, and its users sent nothing since then
        ago_s = loss.silent_s if how == LOST else 0.0
        lost_at = self._context.time.now() - ago_s
        begun_at = self._store.began_profiling_at
        # of what it sent, all that is known was in the warmup
        in_warmup = self._phases.plan.phase == WARMUP or lost_at < (begun_at or 0.0)
        if how == LOST:
            if self._workers.active():  # else Locust would end the run before a worker can come
                self._workers.mark_missing(worker)
            self._store.note_users(self._workers.user_count(), ago_s)
        self._phases.limit.shares.leave(worker)
        self._store.run_progress.lose(worker, loss.reads)
        self._phases.end_count(worker)  # nothing of it is under way any more
        self._note_health(worker, loss.health)
        if how != ENDED:
            place = self._workers.names.index(worker) + 1
            self.lost_workers.append(
                LostWorker(
                    lost_at,
                    place,
                    len(self._workers.names),
                    loss.sent,
                    recovered,
                )
            )
        if loss.sent:
            self._store.worker_losses.append(
                WorkerLossCount(at=lost_at, requests=loss.sent, in_warmup=in_warmup)
            )
        if in_warmup:
            self._workers.forget_lost_requests(worker)
        else:
            self._store.lost += loss.sent
        sessions, never = self._phases.allocator.lose(worker, loss)
        if how == ENDED and not (loss.sent or recovered or never or sessions):
            self._store.add_note(f"worker {worker} {how} {self._store.since_start()}")
        else:
            when = self._store.since_start(ago_s)
            if how == LOST:  # it may have been lost a little later
                when = f"(last heard {when})"
            self._store.add_note(
                f"{LOST_WORKER} {worker} {how} {when}{f' {IN_WARMUP}' * in_warmup}: "
                f"{format_count(loss.sent, 'request')} that it had sent "
                f"{'has' if loss.sent == 1 else 'have'} {NO_RECORD}, "
                f"{format_count(recovered, 'record')} {'was' if recovered == 1 else 'were'} "
                "recovered from its disk"
                + (f", {never} arrivals were never sent" if never else "")
                + (f", {sessions} sessions ended with it" if sessions else "")
            )
        with suppress(OSError):  # whoever kills this process too must not lose that count
            write_run(self._store.folder, self._facts())
            self._workers.remove_journal(worker)

    def on_ended(self, worker: str, ended: Ended) -> None:
        """A process has ended what it had."""
        self._fail_worker(worker, ended.failure)
        self._note_health(worker, ended.health)
        self._store.run_progress.end(worker)
        # else its last records may still come, and the rules count those of the others
        if self._store.draining:
            self._phases.end_count(worker)
        self._store.turned_away += ended.turned_away
        self._store.unchecked_answers += ended.unchecked_answers
        known = self._workers.seen(worker)
        if known is None or worker in self.leaving:  # it was given up: the rest is accounted for
            return
        if self._missing(worker, ended):
            # its journal may be long, and the others are heard meanwhile
            self.leaving.add(worker)
            self._context.spawn(self._recover_and_end, worker, known, ended)
        else:
            self._workers.remove_journal(worker)  # it is there if an acknowledgement came too late
            self._end_worker(worker, known, ended)

    def _recover_and_end(self, worker: str, known: WorkerState, ended: Ended) -> None:
        try:
            recovered = self._records.recover(worker)
            self._workers.remove_journal(worker)
            self._end_worker(worker, known, ended, recovered)
        finally:
            self.leaving.discard(worker)

    def _end_worker(
        self, worker: str, known: WorkerState, ended: Ended, recovered: int = 0
    ) -> None:
        """``recovered`` records came from its disk."""
        if self._store.draining:  # else they are counted with what went with it
            self._store.lost += self._missing(worker, ended)
        self._phases.allocator.missed += ended.missed
        if ended.telemetry is not None:
            self.telemetry = (self.telemetry or TelemetryCounts()) + ended.telemetry
        if ended.health is not None and (
            note := note_different_proxy(worker, ended.health.proxy, self._context.survey.proxy)
        ):
            self._store.add_note(note)
        known.through, known.health = True, None
        if not self._store.draining:
            recovered += self._records.recover(worker)
            self._write_off(worker, ENDED if ended.leaves else "left", recovered)
            self._ask_others()
            if ended.leaves and not self._workers.active():
                self._shutdown.begin()
        self._shutdown.ended(worker)

    def _missing(self, worker: str, ended: Ended) -> int:
        """How many of its records are missing here. It may lack only their acknowledgement."""
        return max(0, ended.records - self._workers.inbox.taken(worker))

    def _note_health(self, worker: str, health: ProcessHealth | None) -> None:
        """Note a process's health. Its last report counts."""
        if health is not None:
            self._workers.note_clock(worker, health.clock_error_s or 0.0)
            self._store.health[:] = [
                *(
                    known_health
                    for known_health in self._store.health
                    if known_health.worker != worker
                ),
                health,
            ]
