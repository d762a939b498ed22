"""Work allocator: the work of a run: requests, arrivals and sessions; which process has how much of
it, and what goes with a lost one."""

from collections.abc import Iterator

from gevent.event import Event

from locust_llm.controller.schedule import (
    DueArrival,
    list_phase_sessions,
    make_prefix_reuse,
    schedule_phase,
)
from locust_llm.records.phase_plan import PROFILING, WARMUP, PhasePlan
from locust_llm.records.record import Record
from locust_llm.records.run_facts import OpenLoopSchedule
from locust_llm.settings.run_options import Settings
from locust_llm.wire.clock_sync import measure_clock_offset_s
from locust_llm.wire.worker_messages import (
    Arrival,
    AskAgain,
    Grant,
    PhaseOver,
    ReleaseRequests,
    SessionCounts,
    SessionsReturned,
)
from locust_llm.workload.arrivals import RateFactor

from .arrival_dispatcher import Dispatcher, SessionDispatcher
from .run_context import RunContext
from .user_count import UserPool
from .worker_registry import WorkerLoss


class Allocator:
    def __init__(self, context: RunContext, users: UserPool) -> None:
        settings, workers = context.settings, context.workers
        self.plan = PhasePlan(
            settings.warmup_request_count, settings.request_count, warms_up=settings.warms_up,
            staged=settings.staged is not None,
        )  # fmt: skip
        self.dispatcher = Dispatcher(
            context.send,
            self._users_by_worker,
            self._deal,
            clock=context.time.monotonic,
            sleep=context.time.sleep,
        )
        self.phase_over = Event()
        """All requests of this phase are back, and the plan is in the next one."""
        self.closed_at: float | None = None
        """When it was closed (Unix seconds), so that nothing new started in it; None: it was
        not."""
        self.rate_factor = RateFactor()
        """What the request rate is multiplied with, since somebody changed it by hand."""
        self.open = False
        """Arrivals come by a schedule in this phase."""
        self.paused = True
        """Nothing is sent: the phase has not begun."""
        self.due: tuple[int, float] | None = None
        """Arrivals of the profiling phase that were due by its end, and over how many seconds;
        None: a closed loop."""
        self.missed = 0
        """Arrivals that found no user, or went with a process that had not sent them."""
        self._goes_on = settings.warmup_goes_on
        self._profiled = 0
        """Records of the profiling phase."""
        self._workers, self._users, self._send = workers, users, context.send
        self._store, self._time = context.store, context.time
        self._reuse = make_prefix_reuse(settings, context.survey.server_flags)
        self._sessions = SessionDispatcher(
            context.send, lambda: len(workers.active()), self._sessions_over, context.store.add_note
        )

    def begin(
        self, phase: str, s: Settings, *, goes_on: bool = False
    ) -> Iterator[DueArrival] | None:
        """This phase begins, and ``s`` are its settings. Where arrivals come by a schedule, all of
        them: to be dealt out. ``goes_on``: it takes the sessions of the phase before."""
        self.phase_over.clear()
        self.closed_at = None
        items = None if goes_on else list_phase_sessions(s, phase, self._reuse)
        dated = (item for item in items or () if item is not None)
        dues = schedule_phase(s, phase, dated, self.rate_factor)
        self.open = dues is not None
        if not goes_on:
            self._sessions.begin(phase, items)
        self.paused = False
        if goes_on and self.exhausted:
            self.close(phase)
        return dues

    def close(self, phase: str) -> None:
        """Nothing new starts in this phase: its time is over, or its sessions are. It ends when all
        requests are back."""
        if self.plan.phase != phase:
            return
        self.dispatcher.stop()
        if self.closed_at is None:
            self.closed_at = self._time.now()
        self.count_due(sent=self.exhausted)
        if self.plan.close():
            self._end_phase()
        else:
            self._send(PhaseOver(phase))

    def go_on(self, phase: str) -> None:
        """The time of this warmup is over, and its load goes on: what is under way of it is its
        own."""
        if self.plan.phase != phase:
            return
        self.plan.go_on()
        self.paused = True
        if not self.open:  # what is left of its shares comes back; arrivals are sent when due
            self._send(PhaseOver(phase))
        self.phase_over.set()

    def _end_phase(self) -> None:
        self.paused = True
        self.phase_over.set()

    def _sessions_over(self) -> None:
        """The last one has ended; the next phase may be on by now, as records come before the count
        of sessions."""
        phase = self._sessions.phase
        self.close(self.plan.phase if self._goes_on and phase == WARMUP else phase)

    # -- requests ----------------------------------------------------------------------------------

    def grant_requests(self, worker: str) -> None:
        """A process asks for a share of the requests that are still to be sent."""
        count, phase = 0, self.plan.phase
        if not (self.open or self.paused):
            count = self.plan.grant(max(1, len(self._workers.active())))
            self._workers.give(worker, phase, count)
            for other in () if count else self._workers.active():
                if other != worker:
                    self._send(ReleaseRequests(phase), other)
        self._send(Grant(phase, count), worker)

    def put_back(self, worker: str, phase: str, count: int) -> None:
        """A process gives back a share that it cannot use: to those that wait."""
        self._workers.back(worker, phase, count)
        if self.plan.put_back(phase, count):
            self._end_phase()
        else:
            self._send(AskAgain(self.plan.phase))

    def recorded(self, record: Record, phase: str) -> bool:
        """A request that was given out in ``phase`` is over. False: what its process had was
        accounted for already."""
        self._profiled += record.phase == PROFILING
        if not self._workers.back(record.worker, phase, 1):
            return False
        if self.plan.returned(phase, 1):
            self._end_phase()
        return True

    # -- arrivals ----------------------------------------------------------------------------------

    def deal_out(
        self, dues: Iterator[DueArrival], phase: str, lead_s: float, lasts_s: float | None
    ) -> None:
        """From the first arrival, in ``lead_s``, to the last. ``lasts_s``: when the schedule ends;
        None: with that one."""
        try:
            if self.closed_at is None:
                self.dispatcher.deal_out(
                    dues, phase, self._time.monotonic() + measure_clock_offset_s(), lead_s, lasts_s
                )
        except (
            ValueError,
            OSError,
        ) as error:  # a row of the dataset, far behind those that were looked at before
            self._store.add_note(f"WARNING: the schedule ends early: {error}")

    def end_schedule(self, phase: str) -> None:
        """Its last arrival is dealt out: the phase ends when all are back."""
        if self.plan.phase == phase and self.plan.close():
            self._end_phase()

    def put_back_arrivals(self, worker: str, phase: str, arrivals: list[Arrival]) -> None:
        """A process gives back arrivals that it has no users for."""
        count = self.dispatcher.put_back(phase, arrivals)
        self._workers.back(worker, phase, count)
        self.plan.returned(phase, count)  # they went out again just before

    def arrived(self) -> tuple[int, int]:
        """How many arrivals have been due so far, and how many due about now find no user; (0, 0)
        in a closed loop."""
        return (self.dispatcher.due()[0], self._users.missing) if self.open else (0, 0)

    def count_due(self, *, sent: bool = False, ago_s: float = 0.0) -> None:
        """Once, when nothing new is sent. ``sent``: there was nothing to send in the arrivals that
        are left. ``ago_s``: how long ago the run was stopped."""
        # the run may be over by now
        if self.open and self.plan.phase != WARMUP and self.due is None:
            count, span_s = self.dispatcher.due(ago_s)
            self.due = (self._profiled if sent else count), span_s

    def offer(self) -> OpenLoopSchedule | None:
        """What the schedule asked for; None: a closed loop, or it is not over."""
        if self.due is None:
            return None
        return OpenLoopSchedule(
            due=self.due[0],
            never_started=self.missed,
            duration_s=self.due[1],
            most_users=self._users.count,
            out_of_users=self._users.exhausted,
        )

    def _deal(self, worker: str, count: int) -> None:
        self._workers.give(worker, self.plan.phase, count)
        self.plan.deal(count)

    def _users_by_worker(self) -> dict[str, int]:
        """How many each process has; alike while their number follows the arrivals."""
        return (
            dict.fromkeys(self._workers.live(), 1) if self._users.grows else self._workers.users()
        )

    # -- sessions ----------------------------------------------------------------------------------

    @property
    def exhausted(self) -> bool:
        """There are no more sessions to give."""
        return self._sessions.over

    def grant_sessions(self, worker: str) -> None:
        """A process asks for sessions of the dataset, or of a number that was asked for."""
        if not self.paused:  # else it will ask again
            self._sessions.ask(worker)

    def count_sessions(self, worker: str, counts: SessionCounts) -> None:
        """A process is so far with the sessions that it has."""
        self._sessions.update(worker, counts)

    def put_back_sessions(self, worker: str, returned: SessionsReturned) -> None:
        """Sessions that a process was asked for, as others wait for them."""
        self._sessions.update(worker, returned.counts)
        self._sessions.put_back(worker, returned.items)

    # -- loss --------------------------------------------------------------------------------------

    def lose(self, worker: str, loss: WorkerLoss) -> tuple[int, int]:
        """What a lost process had to send goes to the others. How many sessions ended with it, and
        how many of its arrivals are never sent."""
        self._users.update(worker, 0)
        gone = self._sessions.lost(worker, loss.phase, loss.sessions)
        never = 0
        for phase, count in loss.done.items():
            unsent = loss.unsent[phase]
            over = self.plan.returned(phase, count - unsent)
            if self.open and phase == self.plan.phase:  # arrivals: the others have theirs
                never += unsent
                over = self.plan.returned(phase, unsent) or over
            else:
                over = self.plan.put_back(phase, unsent) or over
            if over:
                self._end_phase()
        self.missed += never
        return gone, never
