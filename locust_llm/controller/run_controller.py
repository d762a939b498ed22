"""Run controller: one run in the master or the only process, from its begin to its end and its
report.

worker_loss.py closes the accounts of workers, records_from_workers.py takes the records,
messages_from_workers.py the messages, and changes_by_hand.py what somebody changes on the live
page. phases.py decides when something is sent, and work_allocator.py who sends how much of it.
"""

import logging
import random
from collections.abc import Callable, Sequence
from typing import Final

from locust.env import Environment

import gevent
import msgspec

from locust_llm.access.headers_and_api_key import read_candidate_headers, read_request_headers
from locust_llm.controller.schedule import add_priming_phase
from locust_llm.exit_status import RunOutcome
from locust_llm.gate.shares import GateStatus
from locust_llm.records.limit_blocks import LimitBlock
from locust_llm.records.phase_plan import BETWEEN, WARMUP
from locust_llm.records.record import Record
from locust_llm.records.report_result import ReportResult
from locust_llm.records.run_facts import (
    Run,
    write_run,
)
from locust_llm.server.discovery import Discovery
from locust_llm.server.refused_request_fields import STREAM_OPTIONS, RequestForm
from locust_llm.server.server_looks import METRICS_ALONE, MemorySource, ServerLooks
from locust_llm.settings.ab_arms import CANDIDATE
from locust_llm.settings.disruption_schedule import DisruptionPlan
from locust_llm.settings.run_options import Settings
from locust_llm.settings.run_refusal import LINE
from locust_llm.text.hide_secrets import collect_secrets
from locust_llm.text.sanitise import sanitise_text
from locust_llm.wire.clock_sync import clock_id, measure_clock_offset_s
from locust_llm.wire.worker_messages import (
    Ack,
    Begin,
    Cut,
    EndRun,
    FormLearnt,
    Status,
)

from .changes_by_hand import ChangesByHand
from .disruption_runner import DisruptionRunner
from .early_stop import EarlyStop, LoadLeft
from .phases import PhaseRunner
from .records_from_workers import RecordsFromWorkers
from .reference_requests import ReferenceRequests
from .report_process import make_reports
from .run_context import RunContext, TimeSource
from .run_progress import ProcessState
from .run_store import RunStore
from .shutdown import Shutdown
from .soak_sampler import SoakSampler
from .user_count import UserPool
from .worker_loss import WorkerLosses
from .worker_registry import WorkerRegistry

logger = logging.getLogger("locust_llm")

DRAIN_MARGIN_S: Final = 15.0
"""The time beyond --stop-timeout for the processes to end open requests and to hand over their
records."""
CUT_S: Final = 5.0
"""The same where nobody waits for the end (a second Ctrl-C)."""
MAX_FORMS: Final = 8
"""The most forms that a run notes: there are two arms and two fields."""
ACCOUNT_S: Final = 0.05
"""The interval of checks whether the accounts of all lost processes are closed."""


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
        disruptions: Sequence[DisruptionPlan] = (),
        memory: MemorySource = METRICS_ALONE,
    ) -> None:
        """``greeted`` tests whether a worker has greeted and may take part. ``on_record_over`` is
        called with each record of a finished request, once it is kept."""
        self.environment = environment
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
        self._forms: set[tuple[str, RequestForm]] = set()
        """The noted forms of requests, by arm."""
        self.store = RunStore(
            settings, survey, headers, time.now, time.monotonic, words_seed=self._words_seed
        )
        self.folder, self.run_progress, self.totals = (
            self.store.folder,
            self.store.run_progress,
            self.store.totals,
        )
        self._workers = WorkerRegistry(environment.runner, self.folder, time.monotonic)
        self._greenlets: list[gevent.Greenlet] = []
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
        self.shutdown = Shutdown(environment, self._workers.active, time.monotonic, time.now)
        self.phases = PhaseRunner(context, self._users, self.shutdown)
        self.stages, self.allocator, self.plan = (
            self.phases.stages,
            self.phases.allocator,
            self.phases.plan,
        )
        """``stages`` is None where the run has no stages."""
        given = [*headers.values(), *self._own_headers.values()]
        secrets = [*given, *(value.rpartition(" ")[2] for value in given)]  # without Bearer
        self.soak: SoakSampler | None = None
        """None: the run has no ``--soak``."""
        if settings.soak:
            self.soak = SoakSampler(
                settings, self.folder, ServerLooks(settings, headers, memory, secrets), time
            )
        self._on_record_over = on_record_over
        self.records = RecordsFromWorkers(
            context, self.phases, self.shutdown, self._note_record_over
        )
        self.losses = WorkerLosses(
            context, self.phases, self.records, self.shutdown, self.facts, self._failed, self._shown
        )
        self.by_hand = ChangesByHand(context, self.phases, self._users, self.shutdown)
        self._disruptions = DisruptionRunner(
            context, self.shutdown, disruptions, secrets, settings.longest_s
        )
        self.phases.beside_profiling = self._disruptions.begin
        self.references: ReferenceRequests | None = None
        """None: answers are not checked."""
        if settings.check_answers and settings.generates:
            self.references = ReferenceRequests(context, self.phases, headers, own)
            self.phases.before_load = self.references.ask_idle_server
            self.phases.beside_load = self.references.start

    # -- the start ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Give the order to every process, and start the first phase."""
        write_run(self.folder, self.facts())  # in case nothing comes after it
        for worker in filter(self._greeted, self._workers.clients()):
            self.begin_worker(worker)
        self.phases.begin()
        if not self._workers.alone:
            self._greenlets.append(self._spawn(self.losses.watch))
        self._greenlets.append(self._spawn(self.records.flush_each_second))
        if self.soak is not None:
            self._greenlets.append(self._spawn(self.soak.take_readings))
        self.store.watch_server(self._spawn)

    def _note_record_over(self, record: Record) -> None:
        """A request has ended, and its record is kept."""
        if self.soak is not None:
            self.soak.add(record)
        self._on_record_over(record)

    def begin_worker(self, worker: str) -> None:
        """One process takes part. It asks for its requests by itself."""
        begin = Begin(
            settings=self.settings, survey=self.survey, worker=self._workers.add(worker).place,
            folder=str(self.folder.resolve()), clock=clock_id(),
            clock_offset_s=measure_clock_offset_s(), salt=self._words_seed,
            trace=self.store.trace, marker_key=self.store.marker_key,
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

    def find_left(self) -> LoadLeft:
        """What is left of the profiling phase."""
        return self.phases.find_left()

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

    def on_status(self, worker: str, status: Status) -> None:
        """Take a process's records, and then its status. If it asks for an answer, this acknowledges
        the records and renews its lease."""
        records = status.records
        taken = records is not None and self.records.take_records(worker, records)
        number = records.number if records is not None and taken else 0
        self._note_status(worker, status)
        if status.at is not None and self._workers.takes_part(worker):
            self.phases.limit.renew(worker, status.at, number)
        elif number:
            self._send(Ack(number), worker)

    def _note_status(self, worker: str, status: Status) -> None:
        self._failed(worker, status.failure)
        known = self._workers.seen(worker)
        if known is None:
            return
        if status.health is not None:
            known.health = status.health
        known.phase = status.sessions.phase
        self._workers.note_clock(worker, status.clock_error_s)
        self.heard(worker, status.heard)
        known.admitted, known.reads = status.admitted, status.reads
        self._workers.update_users(known, status.users)
        self.store.note_users(self._workers.user_count())
        self.phases.count(
            worker, self._time.monotonic() if status.at is None else status.at, status
        )
        self.run_progress.update(
            worker, used=status.gate.used, waiting=status.gate.waiting, decoding=status.decoding,
            ttfts_s=status.ttfts_s,
            ttfts_from_due_s=status.ttfts_from_due_s,
            awaited=status.awaited,
            request_s=status.request_s, reads=status.reads, health=status.health,
            activity=status.activity,
        )  # fmt: skip
        shares = self.phases.limit.shares
        shares.prefill_s = max(shares.prefill_s, *status.ttfts_s, 0.0)
        if self.allocator.open and not self.shutdown.begun:
            self._users.update(worker, status.unreserved)
        self.allocator.count_sessions(worker, status.sessions)
        self.on_gate_status(worker, status.gate)

    def _shown(self, why: str) -> str:
        """The text of an exception as one line. It may quote an answer, or a header."""
        return sanitise_text(
            why, collect_secrets(self._headers, {**self._headers, **self._own_headers}), most=LINE
        )

    def fail(self, why: str) -> None:
        """End the run, as something in the controller broke."""
        self._failed("the run controller", why)

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

    # -- the end -----------------------------------------------------------------------------------

    @property
    def draining(self) -> bool:
        """The end of the run has begun: what is still on may come back."""
        return self.store.draining

    @property
    def phase_s(self) -> float:
        """The seconds since this phase began; at the end, since the stop."""
        stopping_at = self.store.stopping_at
        return self.phases.phase_s if stopping_at is None else self._time.now() - stopping_at

    def drain(self) -> None:
        """Start nothing new, and wait until every process has ended its part and handed over its
        records."""
        if self.store.stopping_at is not None:
            self.shutdown.over.wait()
            return
        self.shutdown.note_asked()
        now = self._time.now()
        stopped_at = min(self.shutdown.asked_at or now, now)
        self.store.stopping_at = stopped_at
        if not self.shutdown.begun:  # by nothing of ours
            self.store.stopped_early = self.phases.progress_when_stopped(stopped_at)
        self.shutdown.begun = True
        self.phases.stop(now - stopped_at)
        self.shutdown.expect(self._workers.active())
        self._send(EndRun())
        if self._workers.alone:
            self.shutdown.over.set()
            return  # its users are stopped next, by Locust
        for worker in self.shutdown.wait(self.settings.stop_timeout_s + DRAIN_MARGIN_S):
            if worker in self._workers.active():
                self.losses.lose(worker, "did not deliver its last records in time")
        while self.losses.leaving:
            self._time.sleep(ACCOUNT_S)
        for note in self._workers.remarks():
            self.store.add_note(note)

    def open_line(self) -> str:
        """What a user who stops the run waits for. Empty: nothing."""
        most_s = self.settings.stop_timeout_s
        if not most_s:
            return ""
        return (
            f"The run ends: waiting up to {most_s:g} s for open requests; press Ctrl-C again to "
            "cut them off"
        )

    def cut_open(self) -> None:
        """Cut the open requests, so that the drain does not wait for them."""
        if self.store.cut_at is None and (self._workers.alone or not self.shutdown.over.is_set()):
            self.store.cut_at = self._time.now()
        self.shutdown.within(CUT_S)
        if self.store.spans is not None:
            self.store.spans.hurry()
        if self.references is not None:
            self.references.hurry()
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

    def facts(self) -> Run:
        """The run as it is known now."""
        return msgspec.structs.replace(self.phases.facts(), telemetry=self.losses.telemetry)

    def report(self, *, verbose: bool = False) -> str:
        """Make the reports. Returns the console's text, with all tables if ``verbose``."""
        try:
            self._end_parts()
        except Exception as error:  # without this line a later report could not know why
            self.store.add_gap(
                f"the load generator failed after the load: {self._shown(repr(error))}"
            )
            self.store.write_facts(self.facts())
            raise
        if not self.store.write_facts(self.facts()):
            return ""
        result, unmade = make_reports(self.folder)
        self.store.result = result
        if unmade and (result is None or not self.store.missing):
            self.store.missing.append(unmade)
        if result is None:
            return "".join(f"INCOMPLETE: {line}\n" for line in self.store.missing)
        return result.tables if verbose else result.text

    def _end_parts(self) -> None:
        """End what went on beside the load, and complete the notes and the records."""
        self._disruptions.end()
        if self.soak is not None:
            self.soak.end()
        if self.stages is not None:
            try:
                self.phases.end_stage(report=False)
            except OSError as error:
                self.store.add_gap(f"the files of the last stage could not be written: {error}")
        if self.references is not None and not self.failure:
            self.references.ask_after_load()
        if self.store.spans is not None:
            for note in self.store.spans.finish(self._time.monotonic):
                self.store.add_note(note)
        if self.losses.telemetry is not None and self.losses.telemetry.remark:
            self.store.add_note(self.losses.telemetry.remark)
        self.store.check_complete()

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
        result = self.store.result or ReportResult()
        return RunOutcome(
            has_rules=bool(self.settings.rules.entries),
            slo_status=result.slo_status,
            probe=result.probe,
            close_to_limit=result.close_to_limit,
            inconclusive=self.settings.inconclusive,
            not_valid=bool(result.not_valid),
            incomplete=self.store.incomplete,
            broke=bool(self.failure),
        )

    def close(self) -> None:
        gevent.killall(self._greenlets, block=False)
        self._disruptions.end()
        if self.soak is not None:
            self.soak.close()
        if self.references is not None:
            self.references.close()
        self.store.close()
