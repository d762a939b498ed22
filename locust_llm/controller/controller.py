"""Controller: a run in the master or the only process: who takes part and who is lost, the records,
the end, the report.

phases.py decides when something is sent, and work_allocator.py who sends how much of it.
"""

import logging
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from locust.env import Environment
from locust.rpc.protocol import Message as LocustMessage

import gevent
import msgspec

from locust_llm.access.headers_and_api_key import read_candidate_headers, read_request_headers
from locust_llm.access.proxies import note_different_proxy
from locust_llm.client.event_loop_yields import WorkSlices
from locust_llm.controller.schedule import add_priming_phase
from locust_llm.exit_status import RunOutcome
from locust_llm.gate.shares import GateStatus
from locust_llm.locust_adapter.withheld_options import list_secret_names
from locust_llm.records.limit_blocks import LimitBlock
from locust_llm.records.outcomes import OK
from locust_llm.records.phase_plan import BETWEEN, OVER, PROFILING, WARMUP, profiling_phase
from locust_llm.records.record import Record
from locust_llm.records.run_facts import (
    LOST_WORKER,
    NO_RECORD,
    ProcessHealth,
    RateChange,
    Run,
    write_run,
)
from locust_llm.records.telemetry_counts import TelemetryCounts
from locust_llm.server.discovery import Discovery
from locust_llm.server.request_form import STREAM_OPTIONS, RequestForm
from locust_llm.settings.ab_arms import CANDIDATE
from locust_llm.settings.run_options import Settings
from locust_llm.settings.run_refusal import LINE
from locust_llm.settings.settings_validation import validate_settings
from locust_llm.text.format import format_count
from locust_llm.text.hide_secrets import collect_secrets
from locust_llm.text.sanitise import NAME_BYTES, sanitise_text
from locust_llm.wire.clock_sync import clock_id, measure_clock_offset_s
from locust_llm.wire.handshake import explain_worker_refusal, make_hello
from locust_llm.wire.worker_messages import (
    HELD_S,
    LOCAL,
    TO_CONTROL,
    TO_SENDER,
    Ack,
    ArrivalsReturned,
    AskAgain,
    Begin,
    BeginFailed,
    Cut,
    Ended,
    EndRun,
    FormLearnt,
    Hello,
    Records,
    Refused,
    RequestsReturned,
    RequestsWanted,
    SessionsReturned,
    SessionsWanted,
    StageHealth,
    Status,
    ToControl,
    pack_message,
    unpack_to_control,
)

from .early_stop import EarlyStop
from .live_stats import LostWorker, ProcessState
from .phases import PhaseRunner
from .run_context import RunContext, TimeSource
from .run_store import RunStore
from .shutdown import Shutdown
from .user_count import UserPool
from .worker_registry import WorkerRegistry, WorkerState

logger = logging.getLogger("locust_llm")

DRAIN_MARGIN_S: Final = 15.0
"""The time beyond --stop-timeout for the processes to end open requests and to hand over their
records."""
CUT_S: Final = 5.0
"""The same where nobody waits for the end (a second Ctrl-C)."""
ALL_LOST_S: Final = 3.0
"""The longest wait for other workers when all are lost."""
FIRST_WORKER_S: Final = 10.0
"""The longest wait for the first worker, which is longer than a greeting may take."""
ENDED: Final = "was ended by the locustfile"
MAX_FORMS: Final = 8
"""The most forms that a run notes: there are two arms and two fields."""
ACCOUNT_S: Final = 0.05
"""The interval of checks whether the accounts of all lost processes are closed."""
WORKERS_S: Final = 0.25
"""The interval of checks for lost processes."""
FLUSH_S: Final = 1.0
"""The interval of writes of records to the disk."""
HELLO_S: Final = 5.0
"""The longest wait for the greeting of a connected worker."""
HELLO_LOOKS: Final = 20
"""The checks in that time."""
LINE_BYTES: Final = 2_000


class Controller:
    """The controller of one run. The progress line reads its public fields."""

    def __init__(
        self,
        environment: Environment,
        settings: Settings,
        survey: Discovery,
        epoch: int,
        greeted: Callable[[str], bool] = lambda worker: True,
        on_record_over: Callable[[Record], object] = lambda record: None,
        time: TimeSource | None = None,
    ) -> None:
        """``greeted`` tests whether a worker has greeted and may take part. ``on_record_over`` is
        called with each record of a finished request, once it is kept."""
        self.environment, self._on_record_over = environment, on_record_over
        self._greeted = greeted
        self._time = time = time or TimeSource()
        # processes share what follows from it; the next run must not find it cached
        if settings.random_seed is None:
            settings = msgspec.structs.replace(
                settings, random_seed=random.SystemRandom().randrange(2**31)
            )
        self.settings = settings = add_priming_phase(settings, survey.server_flags)
        # what earlier runs with this seed have left in the server's cache is of no use to this one
        self._words_seed = (
            f"{random.SystemRandom().getrandbits(64):016x}" if settings.sends_fresh_words else ""
        )
        self.survey = survey
        headers = read_request_headers(environment.parsed_options)
        own = read_candidate_headers(environment.parsed_options)
        self._headers = headers
        self._own_headers = {f"candidate {name}": value for name, value in own.items()}
        self.epoch = epoch
        self.failure = ""
        """Why a process cannot send any more. Empty: all can."""
        self._telemetry: TelemetryCounts | None = None
        self._forms: set[tuple[str, RequestForm]] = set()
        """The noted forms of requests, by arm."""
        self.store = RunStore(
            settings, survey, headers, time.now, time.monotonic, words_seed=self._words_seed
        )
        self.folder, self.live_stats, self.totals = (
            self.store.folder,
            self.store.live_stats,
            self.store.totals,
        )
        self._workers = WorkerRegistry(environment.runner, self.folder, time.monotonic)
        self._greenlets: list[gevent.Greenlet] = []
        self.lost_workers: list[LostWorker] = []
        self._leaving: set[str] = set()
        """The workers whose account is being closed."""
        context = RunContext(
            environment.runner, settings, survey, epoch, self.store, self._workers, self.fail, time
        )
        self._send, self._spawn, self.take, self.heard = (
            context.send,
            context.spawn,
            context.take,
            context.heard,
        )
        self._users = UserPool(context)
        self.shutdown = Shutdown(environment, self._workers.active, time.monotonic)
        self._stop_asked_at: float | None = None
        self.phases = PhaseRunner(context, self._users, self.shutdown)
        self.stages, self.allocator, self.plan = (
            self.phases.stages,
            self.phases.allocator,
            self.phases.plan,
        )
        """``stages`` is None where the run has no stages."""

    # -- the start ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Give the order to every process, and start the first phase."""
        write_run(self.folder, self.facts())  # in case nothing comes after it
        for worker in filter(self._greeted, self._workers.clients()):
            self.begin_worker(worker)
        self.phases.begin()
        if not self._workers.alone:
            self._greenlets.append(self._spawn(self._watch_workers))
        self._greenlets.append(self._spawn(self._flush_each_second))
        self.store.watch_server(self._spawn)

    def begin_worker(self, worker: str) -> None:
        """One process takes part. It asks for its requests by itself."""
        begin = Begin(
            settings=self.settings, survey=self.survey, worker=self._workers.add(worker).place,
            folder=str(self.folder.resolve()), clock=clock_id(),
            clock_offset_s=measure_clock_offset_s(), salt=self._words_seed,
            trace=self.store.trace,
        )  # fmt: skip
        self._send(begin, worker)
        self.phases.limit.shares.join(worker, self._time.monotonic())
        if self.stages is not None and self.plan.phase not in (WARMUP, BETWEEN):
            self.phases.send_stage(self.stages.number, worker)
        self.phases.send_start(worker)

    # -- the limit, the users, and what the processes report ---------------------------------------

    @property
    def abort(self) -> EarlyStop:
        """The watched rules of the run, or of the stage of a sweep."""
        return self.phases.abort

    @property
    def limit(self) -> int | None:
        """The limit over all processes. None: there is no gate."""
        return self.phases.limit.now

    @property
    def limit_block(self) -> LimitBlock | None:
        """The present block of a comparison of prefill limits. None: there is none."""
        return self.phases.limit_block

    def processes(self) -> list[ProcessState]:
        """The processes that take part now."""
        return self._workers.processes()

    def change_limit(self, limit: int | None, ramp_s: float | None = None) -> str:
        """Change the limit by hand while requests are sent, at once or over ``ramp_s``. Returns
        what was done. Raises ValueError of one sentence."""
        if (
            self.shutdown.begun
            or self.draining
            or self.allocator.paused
            or self.plan.phase in (BETWEEN, OVER)
        ):
            raise ValueError(
                "no requests are being sent right now: the prefill limit cannot be changed"
            )
        if self.sets_limits:
            raise ValueError("this run sets the prefill limit itself, block by block")
        runner = self.environment.runner
        assert runner is not None
        users = (
            None
            if self._users.grows
            else max(runner.target_user_count, self.phases.asked.users or 0)
        )
        processes = max(1, len(self._workers.active()))
        return self.phases.limit.change_limit(
            limit,
            ramp_s,
            msgspec.structs.replace(self.phases.asked, users=users, processes=processes),
        )

    @property
    def rate(self) -> float | None:
        """The requests per second of a steady schedule, as it is now. None: there is none."""
        s = self.settings
        varies = s.request_rate_series or s.request_rate_ramp_duration or self.stages is not None
        other = s.fixed_schedule or s.user_centric_rate or self.sets_limits
        if s.request_rate is None or varies or other:
            return None
        return s.request_rate * self.allocator.rate_factor.value

    def change_rate(self, per_s: float) -> str:
        """Change the request rate by hand while requests are sent. Arrivals of the next second, and
        the first one after it, keep their times. Returns what was done. Raises ValueError of one
        sentence."""
        before, asked = self.rate, self.settings.request_rate
        if before is None or asked is None:
            raise ValueError("this run has no steady request rate that can be changed")
        if self.shutdown.begun or self.draining or self.plan.phase != PROFILING:
            raise ValueError("the request rate can be changed in the profiling phase alone")
        for mistake in validate_settings(
            msgspec.structs.replace(self.settings, request_rate=per_s)
        ):
            raise ValueError(mistake)
        self.allocator.rate_factor.value = per_s / asked
        self.store.rates.append(RateChange(self._time.now(), per_s))
        done = f"request rate changed by hand from {before:g}/s to {per_s:g}/s"
        self.store.add_note(f"{done}, {self.store.since_start()}")
        return done

    @property
    def users_follow_load(self) -> bool:
        """Nobody can change the number of users by hand."""
        return self._users.grows or self.stages is not None

    @property
    def sets_limits(self) -> bool:
        """The run sets the prefill limit itself, and nobody can change it by hand."""
        return bool(self.settings.swept_limits or self.settings.compares)

    def change_users(self, users: int) -> bool:
        """Change the users by hand while requests are sent. False: their number follows from the
        load. Raises ValueError."""
        if self.users_follow_load or self.allocator.paused:
            return False
        limit = self.limit
        for mistake in validate_settings(
            msgspec.structs.replace(self.phases.asked, users=users, prefill_concurrency=limit)
        ):
            raise ValueError(mistake)
        self.store.add_note(
            f"users changed by hand from {self._users.count} to {users}, {self.store.since_start()}"
        )
        self._users.count = users
        return True

    def on_status(self, worker: str, status: Status) -> None:
        """Take a process's status. If it asks for an answer, its lease is renewed."""
        self._failed(worker, status.failure)
        known = self._workers.seen(worker)
        if known is None:
            return
        if status.health is not None:
            known.health = status.health
        known.phase = status.sessions.phase
        self._workers.note_clock(worker, status.clock_error_s)
        self.heard(worker, status.heard)
        known.users, known.admitted, known.reads = status.users, status.admitted, status.reads
        self.store.note_users(self._workers.user_count())
        self.phases.count(
            worker, self._time.monotonic() if status.at is None else status.at, status
        )
        self.live_stats.update(
            worker, used=status.gate.used, waiting=status.gate.waiting, decoding=status.decoding,
            ttfts_s=status.ttfts_s,
            request_s=status.request_s, reads=status.reads, health=status.health,
            activity=status.activity,
        )  # fmt: skip
        shares = self.phases.limit.shares
        shares.prefill_s = max(shares.prefill_s, *status.ttfts_s, 0.0)
        if self.allocator.open and not self.shutdown.begun:
            self._users.update(worker, status.unreserved)
        self.allocator.count_sessions(worker, status.sessions)
        self.on_gate_status(worker, status.gate)
        if status.at is not None and worker in self._workers.active():
            self.phases.limit.renew(worker, status.at)

    def _shown(self, why: str) -> str:
        """The text of an exception as one line. It may quote an answer, or a header."""
        return sanitise_text(
            why, collect_secrets(self._headers, {**self._headers, **self._own_headers}), most=LINE
        )

    def fail(self, why: str) -> None:
        """End the run, as something in the controller broke."""
        self._failed("the control of the run", why)

    def _failed(self, worker: str, failure: str) -> None:
        """End the run with a report of what there is, as no other process takes over what a failed
        one cannot send."""
        if failure:
            self.failure = failure = self._shown(failure)
            self.store.add_note(
                f"ERROR: {worker}: {failure}; the run ends, and its result is incomplete"
            )
            self.shutdown.begin()

    def on_gate_status(self, worker: str, status: GateStatus) -> None:
        """Take a process's report on its gate."""
        if self._workers.seen(worker) is not None:
            self.phases.limit.update(worker, status)

    # -- lost processes ----------------------------------------------------------------------------

    def _watch_workers(self) -> None:
        """Take back what silent and dead processes have, in a greenlet, and end a run that has none
        left."""
        alone_s = 0.0
        while True:
            before = self._time.monotonic()
            self._time.sleep(WORKERS_S)
            held_s = self._time.monotonic() - before - WORKERS_S
            if held_s > HELD_S:
                self._workers.excuse(held_s)
                self.phases.limit.shares.excuse(held_s)
            for worker in self.phases.limit.shares.expire(self._time.monotonic()):
                share = (
                    ""
                    if self.limit is None
                    else ": its share of the prefill limit went to the others"
                )
                if self.draining:  # it ends what it has, and hands it over
                    continue
                self.store.add_note(
                    f"{LOST_WORKER} {worker} stopped reporting {self.store.since_start()}{share}"
                )
            for worker in self._workers.lost():
                self._lose(worker)
            alone_s = 0.0 if self._workers.active() else alone_s + WORKERS_S
            if (
                alone_s >= (ALL_LOST_S if self._workers.names else FIRST_WORKER_S)
                and not self.shutdown.begun
            ):
                lost = "all workers were lost" if self._workers.names else "no worker had joined"
                self.store.add_gap(f"{lost} {self.store.since_start()}: the run ended early")
                self.shutdown.begin()
                return

    def on_begin_failed(self, worker: str, why: str) -> str:
        """A worker could not begin. Returns why the run is impossible; empty where the others can
        do without it."""
        why = f"worker {worker} cannot begin: {self._shown(why)}"
        if self.live_stats.counts and len(self._workers.active()) > 1:
            self._lose(worker, f"could not begin ({why}), and was left out")
            return ""
        if self.shutdown.begun:
            return ""
        self.shutdown.begun = True
        self.store.add_gap(why)
        return why

    def _lose(self, worker: str, how: str = "was lost") -> None:
        """A process is lost: its records are recovered, its unsent requests go to others, and the
        rest counts as lost."""
        if worker in self._leaving:
            return
        self._leaving.add(worker)
        try:
            self._write_off(worker, how, self._recover(worker))
        finally:
            self._leaving.discard(worker)

    def _write_off(self, worker: str, how: str, recovered: int) -> None:
        """Close the account of a lost process. ``recovered`` records came from its disk."""
        loss = self._workers.drop(worker)
        self.phases.limit.shares.leave(worker)
        self.live_stats.lose(worker, loss.reads)
        self.phases.end_count(worker)  # nothing of it is under way any more
        self._note_health(worker, loss.health)
        if how != ENDED:
            place = self._workers.names.index(worker) + 1
            self.lost_workers.append(
                LostWorker(self._time.now(), place, len(self._workers.names), loss.sent, recovered)
            )
        self.store.lost += loss.sent
        sessions, never = self.allocator.lose(worker, loss)
        if how == ENDED and not (loss.sent or recovered or never or sessions):
            self.store.add_note(f"worker {worker} {how} {self.store.since_start()}")
        else:
            self.store.add_note(
                f"{LOST_WORKER} {worker} {how} {self.store.since_start()}: "
                f"{format_count(loss.sent, 'request')} that it had sent "
                f"{'has' if loss.sent == 1 else 'have'} {NO_RECORD}, "
                f"{format_count(recovered, 'record')} {'was' if recovered == 1 else 'were'} "
                "recovered from its disk"
                + (f", {never} arrivals were never sent" if never else "")
                + (f", {sessions} sessions ended with it" if sessions else "")
            )
        with suppress(OSError):  # whoever kills this process too must not lose that count
            write_run(self.folder, self.facts())
            self._workers.remove_journal(worker)
        if not self.draining:
            self._send(AskAgain(self.plan.phase))

    def _recover(self, worker: str) -> int:
        """Add the undelivered records of a process to the records. Returns their number. The event
        loop goes on meanwhile."""
        recovered = 0
        slices = WorkSlices(self._time.monotonic)
        for records in self._workers.recover(worker):
            for record in records:
                self.add_record(record)
            recovered += len(records)
            slices.pause()
        self.flush()
        return recovered

    # -- records -----------------------------------------------------------------------------------

    def add_record(self, record: Record) -> None:
        """Write a record to the disk before anything else."""
        phase = profiling_phase(record.stage) if record.phase == PROFILING else record.phase
        if self.stages is not None and record.stage == self.stages.number and record.stage:
            record = self.stages.add_record(record)
        if self.phases.limit_sweep is not None and record.phase == PROFILING:
            record = self.phases.limit_sweep.add_record(record)
        self.phases.sends.over(record)
        self.phases.add_response(record)
        if self.store.spans is not None:
            self.store.spans.request(record.id, ok=record.outcome == OK)
        if not self.store.write(record, gated=self.limit is not None):
            return  # the request is not over
        self._on_record_over(record)
        if not self.allocator.recorded(record, phase):  # of a process that was given up
            self.store.lost -= self._workers.found(record)

    def on_records(self, worker: str, batch: Records) -> None:
        """Take records of a worker."""
        self._workers.seen(worker)
        slices = WorkSlices(self._time.monotonic)
        try:
            records = self._workers.take(worker, batch)
        except ValueError as error:
            logger.error(
                f"{len(batch.packed)} records of worker {worker} are damaged, and were ignored: "
                f"{error}"
            )
            return
        for record in records:
            slices.pause()
            self.add_record(record)
        self.flush()  # what is acknowledged outlives this process
        self._send(Ack(batch.number), worker)

    def _flush_each_second(self) -> None:
        while True:
            self._time.sleep(FLUSH_S)
            self.flush()

    def flush(self) -> None:
        """Flush each second, and at the end."""
        self.store.flush()
        if self.stages is not None:
            self.stages.flush()

    # -- the end -----------------------------------------------------------------------------------

    @property
    def draining(self) -> bool:
        """The end of the run has begun: what is still on may come back."""
        return self.store.stopping_at is not None

    @property
    def phase_s(self) -> float:
        """The seconds since this phase began; at the end, since the stop."""
        stopping_at = self.store.stopping_at
        return self.phases.phase_s if stopping_at is None else self._time.now() - stopping_at

    def note_stop_asked(self) -> None:
        """Somebody asks for the end now. ``drain`` may come later, where the process has no CPU."""
        self._stop_asked_at = self._stop_asked_at or self._time.now()

    def drain(self) -> None:
        """Start nothing new, and wait until every process has ended its part and handed over its
        records."""
        if self.store.stopping_at is not None:
            self.shutdown.over.wait()
            return
        self.store.stopping_at = self._time.now()
        if not self.shutdown.begun:  # by nothing of ours
            self.store.stopped_early = self.phases.progress_when_stopped(
                self._stop_asked_at or self._time.now()
            )
        self.shutdown.begun = True
        self.phases.stop()
        self.shutdown.expect(self._workers.active())
        self._send(EndRun())
        if self._workers.alone:
            self.shutdown.over.set()
            return  # its users are stopped next, by Locust
        for worker in self.shutdown.wait(self.settings.stop_timeout_s + DRAIN_MARGIN_S):
            if worker in self._workers.active():
                self._lose(worker, "did not hand over its last records in time")
        while self._leaving:
            self._time.sleep(ACCOUNT_S)
        for note in self._workers.remarks():
            self.store.add_note(note)

    def open_line(self) -> str:
        """What a user who stops the run waits for. Empty: nothing."""
        most_s = self.settings.stop_timeout_s
        if not most_s:
            return ""
        return (
            f"The run ends: it waits at most {most_s:g} s for open requests; press Ctrl-C again "
            f"to cut them"
        )

    def cut_open(self) -> None:
        """Cut the open requests, so that the drain does not wait for them."""
        if self.store.cut_at is None and (self._workers.alone or not self.shutdown.over.is_set()):
            self.store.cut_at = self._time.now()
        self.shutdown.within(CUT_S)
        if self.store.spans is not None:
            self.store.spans.hurry()
        if not self._workers.alone:
            self._send(Cut())

    def on_form_learnt(self, learnt: FormLearnt) -> None:
        """Note the form from the first of the processes that find it out."""
        form = RequestForm(learnt.form.without and (STREAM_OPTIONS,), learnt.form.max_tokens_field)
        arm = f"{CANDIDATE}: " if learnt.side == CANDIDATE else ""
        if (arm, form) in self._forms or len(self._forms) >= MAX_FORMS:
            return
        self._forms.add((arm, form))
        for note in form.notes(self.settings, learnt.message):
            self.store.add_note(self._shown(f"{arm}{note}"))

    def on_ended(self, worker: str, ended: Ended) -> None:
        """A process has ended what it had."""
        self._failed(worker, ended.failure)
        self._note_health(worker, ended.health)
        self.live_stats.end(worker)
        # else its last records may still come, and the rules count those of the others
        if self.draining:
            self.phases.end_count(worker)
        self.store.turned_away += ended.turned_away
        self.store.unchecked_answers += ended.unchecked_answers
        known = self._workers.seen(worker)
        if known is None or worker in self._leaving:  # it was given up: the rest is accounted for
            return
        if self._missing(worker, ended):
            # its journal may be long, and the others are heard meanwhile
            self._leaving.add(worker)
            self._spawn(self._recover_and_end, worker, known, ended)
        else:
            self._end_worker(worker, known, ended)

    def _recover_and_end(self, worker: str, known: WorkerState, ended: Ended) -> None:
        try:
            recovered = self._recover(worker)
            self._workers.remove_journal(worker)
            self._end_worker(worker, known, ended, recovered)
        finally:
            self._leaving.discard(worker)

    def _end_worker(
        self, worker: str, known: WorkerState, ended: Ended, recovered: int = 0
    ) -> None:
        """``recovered`` records came from its disk."""
        if self.draining:  # else they are counted with what went with it
            self.store.lost += self._missing(worker, ended)
        self.allocator.missed += ended.missed
        if ended.telemetry is not None:
            self._telemetry = (self._telemetry or TelemetryCounts()) + ended.telemetry
        if ended.health is not None and (
            note := note_different_proxy(worker, ended.health.proxy, self.survey.proxy)
        ):
            self.store.add_note(note)
        known.through, known.health = True, None
        if not self.draining:
            recovered += self._recover(worker)
            self._write_off(worker, ENDED if ended.leaves else "left", recovered)
            if ended.leaves and not self._workers.active():
                self.shutdown.begin()
        self.shutdown.ended(worker)

    def _missing(self, worker: str, ended: Ended) -> int:
        """How many of its records are missing here. It may lack only their acknowledgement."""
        return max(0, ended.records - self._workers.inbox.taken(worker))

    def _note_health(self, worker: str, health: ProcessHealth | None) -> None:
        """Note a process's health. Its last report counts."""
        if health is not None:
            self._workers.note_clock(worker, health.clock_error_s or 0.0)
            self.store.health[:] = [
                *(
                    known_health
                    for known_health in self.store.health
                    if known_health.worker != worker
                ),
                health,
            ]

    def facts(self) -> Run:
        """The run as it is known now."""
        return msgspec.structs.replace(self.phases.facts(), telemetry=self._telemetry)

    def report(self, *, verbose: bool = False) -> str:
        """Make the reports. Returns the console's text, with all tables if ``verbose``."""
        if self.stages is not None:
            try:
                self.phases.end_stage(report=False)
            except OSError as error:
                self.store.add_gap(f"the files of the last stage could not be written: {error}")
        if self.store.spans is not None:
            for note in self.store.spans.finish(self._time.monotonic):
                self.store.add_note(note)
        if self._telemetry is not None and self._telemetry.remark:
            self.store.add_note(self._telemetry.remark)
        self.store.check_complete()
        return self.store.report(self.facts(), verbose=verbose)

    @property
    def annotations(self) -> str:
        """The annotations of the report, for the CI of a job."""
        return "" if self.store.result is None else self.store.result.annotations

    def abandon(self) -> None:
        """Remove the folder, if the start made it and failed."""
        self.close()
        self.store.remove_if_empty()

    def outcome(self) -> RunOutcome:
        """What decides the exit status, as far as this run knows it once it has its report."""
        return self.store.outcome()._replace(broke=bool(self.failure))

    def close(self) -> None:
        gevent.killall(self._greenlets, block=False)
        self.store.close()


# -- the messages of the workers -------------------------------------------------------------------


def receive_from_workers(
    environment: Environment,
    runner: Any,
    control: Callable[[], Controller | None],
    refuse: Callable[[str], object] = lambda why: None,
) -> Callable[[str], bool]:
    """Receive messages in the master, or the only process. Returns a test whether a worker has
    greeted and may take part. ``refuse`` ends an impossible run."""
    greeted = {LOCAL}
    secrets = list_secret_names(environment.parsed_options)

    def listener(msg: Any, **kw: Any) -> None:
        worker = msg.node_id
        try:
            epoch, message, number = unpack_to_control(msg.data)
        except ValueError:
            name = sanitise_text(worker, most=NAME_BYTES)
            logger.error(
                f"a message of worker {name} is damaged, or of another version, and was ignored"
            )
            return
        current = control()
        if isinstance(message, Hello):
            if why := explain_worker_refusal(
                worker, message, make_hello(environment.user_classes, secrets)
            ):
                logger.error(
                    f"worker {sanitise_text(worker, most=NAME_BYTES)} is refused: "
                    f"{sanitise_text(why, most=LINE_BYTES)}"
                )
                runner.send_message(TO_SENDER, pack_message(0, Refused(why)), worker)
                return
            greeted.add(worker)
            if current is not None:
                current.begin_worker(worker)
        elif current is not None and worker in greeted and epoch != current.epoch:
            if isinstance(message, Status):
                current.heard(worker, 0)  # its Begin is on its way, or lost
        elif current is not None and worker in greeted and current.take(worker, number):
            _handle_message(current, worker, message, refuse)

    def connected(client_id: str, **kw: Any) -> None:
        # not guarded: there may be no run
        gevent.spawn(_expect_hello, environment, runner, client_id, greeted)

    runner.register_message(TO_CONTROL, listener)
    environment.events.worker_connect.add_listener(connected)
    return greeted.__contains__


def _handle_message(
    control: Controller, worker: str, message: ToControl, refuse: Callable[[str], object]
) -> None:
    match message:
        case GateStatus():
            control.on_gate_status(worker, message)
        case Status():
            control.on_status(worker, message)
        case Records():
            control.on_records(worker, message)
        case RequestsWanted():
            control.allocator.grant_requests(worker)
        case RequestsReturned():
            control.allocator.put_back(worker, message.phase, message.count)
        case ArrivalsReturned():
            control.allocator.put_back_arrivals(worker, message.phase, message.arrivals)
        case SessionsWanted():
            control.allocator.grant_sessions(worker)
        case SessionsReturned():
            control.allocator.put_back_sessions(worker, message)
        case StageHealth():
            control.phases.add_health(message.health)
        case FormLearnt():
            control.on_form_learnt(message)
        case BeginFailed():
            if why := control.on_begin_failed(worker, message.reason):
                refuse(why)
        case Ended():
            control.on_ended(worker, message)


def _expect_hello(environment: Environment, runner: Any, worker: str, greeted: set[str]) -> None:
    # as often as the loop gets round: while it is blocked no greeting is read
    for _ in range(HELLO_LOOKS):
        gevent.sleep(HELLO_S / HELLO_LOOKS)
        if worker in greeted or worker not in runner.clients:
            return
    logger.error(
        f"worker {sanitise_text(worker, most=NAME_BYTES)} is refused: it has not introduced itself "
        f"within {HELLO_S:g} s; "
        "a worker needs the locustfile of the master, with users of locust_llm"
    )
    runner.server.send_to_client(LocustMessage("quit", None, worker))
